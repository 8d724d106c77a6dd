"""Files that are either whole or absent, and one sentence where the disk says no. Everything that writes uses these."""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from congeal.errors import CongealError, RunFailed

FULL = (errno.ENOSPC, errno.EDQUOT)
TEMPORARY = ".tmp"
REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOENT)


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
        if error.errno in REFUSED:
            reason = os.strerror(error.errno).lower()
            raise CongealError(f"cannot write to {path} ({reason}); choose another folder with -o") from error
        raise


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A file to write that takes the place of `path` when it is whole: a temporary file beside it, then a rename."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    with writing(path):
        try:
            with open(temporary, "w+b") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def put_in_place(finished: Path, path: Path) -> None:
    """Give a file that was built under another name, over several runs perhaps, its own."""
    with writing(path):
        os.replace(finished, path)


def sweep(folder: Path) -> None:
    """Remove what a killed process was about to write in a folder; it may be large."""
    for path in folder.glob(f".*{TEMPORARY}"):
        path.unlink(missing_ok=True)


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
    text = io.StringIO()
    table = csv.DictWriter(text, names, restval="", lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_text(path, text.getvalue())


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


def allocate(path: Path, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """A new memory-mapped .npy file, zero, with its disk space reserved.

    Without the reservation a full disk would end the process with a signal in the middle of an assignment.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
        if hasattr(os, "posix_fallocate"):
            with path.open("r+b") as file:
                try:
                    os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
                except OSError:
                    path.unlink()
                    raise
    return array
