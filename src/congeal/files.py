"""Files that are either whole or absent, and one sentence where the disk says no. Everything that writes uses these.

Nothing is written through a link. A file takes the place of a link of its name; a folder or a lock that is a link is
refused, because there is nothing to put in its place.
"""

from __future__ import annotations

import csv
import errno
import json
import logging
import math
import os
import re
import secrets
import stat
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from congeal.errors import CongealError, RunFailed

try:
    import fcntl
except ImportError:  # no such module on Windows; there two processes at once are the user's business
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("congeal")

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
TEMPORARY = ".tmp"
REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOENT, errno.ELOOP)
_OURS = re.compile(rf"\.(\d+)-[0-9a-f]{{12}}{re.escape(TEMPORARY)}$")
# What reading a damaged .npy or .npz file raises, depending on where the damage is.
DAMAGED = (
    *(OSError, EOFError, ValueError, KeyError, TypeError, IndexError, RuntimeError, SyntaxError),
    *(zipfile.BadZipFile, zlib.error, tokenize.TokenError, struct.error),
)
# Bytes of a file's name, on nearly every file system.
LONGEST_NAME = 255


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn the operating system's refusals to write at `path` into one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise RunFailed(
                f"the disk is full: could not write {path}; free some space and run the same command again to resume"
            ) from error
        if error.errno in (*REFUSED, errno.ENAMETOOLONG):
            reason = os.strerror(error.errno).lower()
            raise CongealError(f"cannot write to {path} ({reason}); choose another folder with -o") from error
        raise


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A file to write that takes the place of `path` when it is whole, even if the machine loses its power then."""
    path = Path(path)
    # A name that no other writer has, be it another process or another thread of this one.
    temporary = path.with_name(f".{shortened(path.name, 200)}.{os.getpid()}-{secrets.token_hex(6)}{TEMPORARY}")
    with writing(path):
        try:
            with open(temporary, "x+b") as file:  # never through a link
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def shortened(name: str, longest: int = LONGEST_NAME) -> str:
    """The name, cut to so many bytes."""
    data = os.fsencode(name)
    return name if len(data) <= longest else data[:longest].decode("utf-8", "ignore")


def is_plain(path: Path) -> bool:
    """Whether this is a file itself: neither a link to one, nor a pipe, nor a device."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def refuse_links(*folders: Path) -> None:
    """Refuse folders with links in them (or pipes and devices): whoever made those says where we read and write."""
    own = {"follow_symlinks": False}
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                odd = [one for one in entries if not (one.is_file(**own) or one.is_dir(**own))]
        except (FileNotFoundError, NotADirectoryError):
            continue
        for one in odd[:1]:
            what = "a link" if one.is_symlink() else "no plain file"
            raise CongealError(f"{one.path} is {what}, which is never followed; delete it, or choose another folder")


def make_folders(base: Path, below: str | os.PathLike[str] = "") -> Path:
    """Make the folder `base`, which the user named, and `below` in it, no part of which may be a link; gives it."""
    with writing(base):
        base.mkdir(parents=True, exist_ok=True)
    folder = base
    for part in Path(below).parts:
        folder = folder / part
        with writing(folder):
            folder.mkdir(exist_ok=True)
        if folder.is_symlink():
            raise CongealError(f"{folder} is a link, which is never followed; delete it, or choose another folder")
    return folder


@contextmanager
def locked(path: Path, busy: str) -> Iterator[None]:
    """Keep other processes and threads out; `busy` is what the error for them says that this one does."""
    lock = acquire_lock(path, busy)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is held: who opened it before notices that it is gone
        os.close(lock)


def acquire_lock(path: Path, busy: str) -> int:
    """Lock a file, with our pid in it for people to read; gives the descriptor, and closing that unlocks.

    The kernel holds the lock, so a killed process leaves nothing to clean up.
    """
    if path.is_symlink():
        raise CongealError(f"{path} is a link, which is never followed; delete it, or choose another folder")
    lock = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
    try:
        if not stat.S_ISREG(os.fstat(lock).st_mode):
            raise CongealError(f"{path} is no plain file; delete it, or choose another folder")
        try:
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(lock, 32).decode(errors="replace").strip() or "unknown"
            raise CongealError(
                f"another process (pid {pid}) is {busy}; wait for it, stop it, or choose another folder"
            ) from None
        except OSError as error:
            folder = path.parent
            log.warning(
                "%s is on a file system without locks (%s): do not start a second run in it", folder, error.strerror
            )
        if not path.exists() or not os.path.samestat(os.fstat(lock), os.stat(path)):
            raise FileNotFoundError  # the one before us removed it at its end
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
    except FileNotFoundError:
        os.close(lock)
        return acquire_lock(path, busy)
    except BaseException:
        os.close(lock)
        raise
    return lock


def put_in_place(finished: Path, path: Path) -> None:
    """Give a file that was built under another name, over several runs perhaps, its own."""
    with writing(path):
        os.replace(finished, path)


def sweep(folder: Path, *, shared: bool = False) -> None:
    """Remove what a killed process was about to write in a folder; it may be large.

    shared: the folder is not ours alone, so only what a process that has ended left under such a name goes.
    """
    for path in folder.glob(f".*{TEMPORARY}"):
        ours = _OURS.search(path.name)
        if not shared or (ours and not _is_running(int(ours[1]))):
            path.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # somebody else's
        return True
    return True


class OutputFolders:
    """The folders below an output folder that the user named, each made when it is first needed and never a link.

    alone: no process of another machine writes there, so that unfinished files of processes that ended are removed.
    """

    def __init__(self, base: Path, *, alone: bool = True) -> None:
        self._base, self._alone, self._made = base, alone, dict[Path, Path]()

    def above(self, below: str | os.PathLike[str]) -> Path:
        """The folder of the file `below`."""
        parent = Path(below).parent
        if parent not in self._made:
            self._made[parent] = make_folders(self._base, parent)
            if self._alone:
                sweep(self._made[parent], shared=True)
        return self._made[parent]


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write the whole file or nothing."""
    with replacing(path) as file:
        file.write(data)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write text as UTF-8, the whole file or nothing."""
    write_bytes(path, text.encode("utf-8", "surrogateescape"))  # file names that are not UTF-8 come back as they were


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write a value in JSON's own words (see `plain`), the whole file or nothing."""
    write_text(path, json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: str | os.PathLike[str]) -> Any:
    """The value in a JSON file."""
    return json.loads(Path(path).read_text(encoding="utf-8", errors="surrogateescape"))


def write_rows(path: str | os.PathLike[str], rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> None:
    """Write a table; its columns are `columns` and then whatever keys the rows bring, in order of appearance."""
    names = list(dict.fromkeys([*columns, *(key for row in rows for key in row)]))
    with replacing(path) as file:
        table = CsvWriter(file)
        table.writerow(names)
        table.writerows([row.get(name, "") for name in names] for row in rows)


class CsvWriter:
    """A `csv.writer` to a binary file in UTF-8; every cell comes back as it was: any bytes, line ends, blanks."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        # Python quotes what is in the line terminator, and nothing else, as a line end.
        self._plain = csv.writer(self, lineterminator="\r\n")
        self._quoted = csv.writer(self, lineterminator="\r\n", quoting=csv.QUOTE_ALL)

    def write(self, line: str) -> int:
        """Take one line from `csv`."""
        return self._file.write((line.removesuffix("\r\n") + "\n").encode("utf-8", "surrogateescape"))

    def writerow(self, cells: Iterable[Any]) -> None:
        """Write one row. csv writes floats with repr, which is exact."""
        cells = list(cells)
        blanks = any(isinstance(cell, str) and cell != cell.strip() for cell in cells)
        (self._quoted if blanks else self._plain).writerow(cells)

    def writerows(self, rows: Iterable[Iterable[Any]]) -> None:
        """Write many rows."""
        for row in rows:
            self.writerow(row)


def plain(value: Any) -> Any:
    """The value in JSON's own words: NumPy numbers and arrays unpacked, paths as text, NaN and infinity as null."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    return str(value)


def create_npy(path: Path, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """A new memory-mapped .npy file, zero, with its disk space reserved.

    Without the reservation a full disk would end the process with a signal in the middle of an assignment.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # a link, or a file that somebody else still has mapped, is left as it is
        array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
        if hasattr(os, "posix_fallocate"):
            with path.open("r+b") as file:
                try:
                    os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
                except OSError:
                    path.unlink()
                    raise
    return array
