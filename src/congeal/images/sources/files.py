"""Image files, on disk (folders, globs, list files) or behind an fsspec URL (also containers and tar shards)."""

from __future__ import annotations

import glob
import hashlib
import logging
import os
import re
import shlex
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from congeal.errors import CongealError
from congeal.images.formats.decode import EXTENSIONS, FITS, decode, probe, read_regular
from congeal.images.formats.shards import ShardSource
from congeal.images.formats.video import VIDEO
from congeal.images.sources.base import Header, Image, ImageSource, UnreadableImage, unique_ids
from congeal.transforms.ids import Ids

log = logging.getLogger("congeal")

# Bytes of a file in which a header is looked for: those of photographs hold a thumbnail of up to 64 KB.
HEADER_BYTES = 1 << 16


class FileSource(ImageSource):
    """Image files below a base folder; ids are paths relative to it, with '/'."""

    def __init__(self, base: Path, relative: Sequence[str], *, name: str, links: Sequence[str] = ()) -> None:
        self.base, self.relative, self.name = base, Ids(relative), name
        self._links = {i for i, path in enumerate(relative) if path in links} if links else set()
        self._ids = unique_ids(self.relative if os.sep == "/" else (path.replace(os.sep, "/") for path in relative))

    def __len__(self) -> int:
        return len(self.relative)

    def path(self, i: int) -> Path:
        """Where file i is."""
        return self.base / self.relative[i]

    def files_behind(self, rows: np.ndarray) -> Iterator[str]:
        return (os.path.join(self.base, self.relative[i]) for i in rows.tolist())

    def header_of(self, i: int) -> str:
        if _suffix(self.relative[i]) not in FITS:
            return ""
        from congeal.images.formats.fits import header_text

        return header_text(self.path(i))

    def read(self, i: int) -> Image:
        return decode(self._bytes(i), self.id(i))

    def probe(self, i: int) -> Header:
        if _suffix(self.relative[i]) in (".tif", ".tiff"):
            from congeal.images.formats.tiff import probe_tiff

            self._bytes(i, 0)
            return probe_tiff(self.path(i)) or super().probe(i)
        return probe(self._bytes(i, HEADER_BYTES), self.id(i)) or super().probe(i)

    def _bytes(self, i: int, count: int = -1) -> bytes:
        if i in self._links:
            raise UnreadableImage("is a link to a folder, which is not followed: give that folder by itself")
        if _suffix(self.relative[i]) in VIDEO:
            raise UnreadableImage("is a video, not an image: align it by itself")
        return read_regular(self.path(i), count)


def open_folder(folder: Path) -> FileSource:
    """All image files below a folder, hidden ones left out, in natural order."""
    links: list[str] = []
    found = [*list_files(folder, EXTENSIONS | VIDEO, links)]
    videos = sorted((path for path in found if _suffix(path) in VIDEO), key=natural_key)
    relative = sorted([*(path for path in found if _suffix(path) not in VIDEO), *links], key=natural_key)
    if videos and not relative:
        first = folder / videos[0]
        raise CongealError(f"the folder {folder} has {len(videos)} videos: align one at a time, such as {first}")
    if videos:
        log.warning(
            "%s: %d video(s) beside the images are left out, such as %s; align a video by itself",
            folder,
            len(videos),
            videos[0],
        )
    if not relative:
        hint = _glob_that_works(folder) or f"; these are read: {' '.join(sorted(EXTENSIONS))}"
        raise CongealError(f"the folder {folder} has no images by their names{hint}")
    return FileSource(folder, relative, name=folder.resolve().name or str(folder), links=links)


def _glob_that_works(folder: Path) -> str | None:
    """For a folder whose files are images under other names: how to say which ones are meant. None if none is."""
    named = sorted(islice((path for path in folder.rglob("[!.]*") if path.is_file()), 100))
    for path in named:
        try:
            decode(read_regular(path), path.name)
        except UnreadableImage:
            continue
        below = "" if path.parent == folder else "**/"
        return f", but {path.name} is one: give the glob {shlex.quote(str(folder / f'{below}*{path.suffix}'))}"
    return None


def open_paths(paths: Sequence[Path], *, name: str) -> FileSource:
    """Given files in the given order; ids are relative to the deepest folder that holds them all."""
    absolute = [os.path.abspath(path) for path in paths]
    base = os.path.commonpath([os.path.dirname(path) for path in absolute])
    return FileSource(Path(base), [os.path.relpath(path, base) for path in absolute], name=name)


def open_list(path: Path) -> FileSource:
    """A text file with one path per line, relative to the list's own folder; empty lines and '#' lines are comments."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise CongealError(f"{path} is not a text file with one image path per line ({error.reason})") from error
    entries = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not entries:
        raise CongealError(f"the list {path} names no images: write one path per line")
    # Blanks around a path do not matter, unless they are part of its name.
    files = [line if os.path.lexists(path.parent / line) else line.strip() for line in entries]
    return open_paths([path.parent / file for file in files], name=path.name)


def matches(pattern: str) -> list[Path]:
    """Files that match a glob with `**` and `{a,b}` or `{000..010}` braces, in natural order."""
    found: set[str] = set()
    for one in expand_braces(pattern):
        paths = {path for path in glob.glob(one, recursive=True) if not os.path.isdir(path)}
        found |= _outside_runs(paths, one) if "**" in one else paths
    return [Path(path) for path in sorted(found, key=natural_key)]


def _outside_runs(paths: set[str], pattern: str) -> set[str]:
    """Those that lie in no run folder below the part of the pattern that says where to look."""
    root = os.path.dirname(re.split(r"[*?\[]", pattern, maxsplit=1)[0])

    @cache
    def inside(folder: str) -> bool:
        return folder not in ("", root) and (is_run_folder(folder) or inside(os.path.dirname(folder)))

    return {path for path in paths if not inside(os.path.dirname(path))}


def is_run_folder(folder: str) -> bool:
    """Whether this program wrote its results there; they are not images to align."""
    return os.path.isdir(os.path.join(folder, ".work")) and os.path.isfile(os.path.join(folder, "config.json"))


def expand_braces(pattern: str) -> list[str]:
    """`a-{000..002}.tar` → three names; `{x,y}` → two; anything else → itself."""
    found = re.search(r"\{([^{}]*)\}", pattern)
    if not found:
        return [pattern]
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", found[1])
    if numbers:
        choices = [str(n).zfill(len(numbers[1])) for n in range(int(numbers[1]), int(numbers[2]) + 1)]
    else:
        choices = found[1].split(",")
    before, after = pattern[: found.start()], pattern[found.end() :]
    return [whole for choice in choices for whole in expand_braces(before + choice + after)]


def list_files(folder: Path, extensions: frozenset[str], links: list[str] | None = None) -> Iterator[str]:
    """Paths of files below a folder, relative to it, by extension; one directory scan each and no stat per file.

    Links to folders are not followed; they are noted in `links`. Run folders are left out, so that
    `align photos -o photos/run` works a second time.
    """
    pending = [""]
    while pending:
        below = pending.pop()
        try:
            with os.scandir(folder / below) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    path = os.path.join(below, entry.name)
                    if entry.is_dir(follow_symlinks=False):
                        if not is_run_folder(entry.path):
                            pending.append(path)
                    elif _suffix(entry.name) in extensions:
                        yield path
                    elif links is not None and entry.is_symlink() and entry.is_dir():
                        links.append(path)
        except PermissionError as error:
            raise CongealError(f"the folder {folder / below} cannot be listed: {error.strerror}") from error


def natural_key(name: str) -> tuple[list[tuple[int, int | str]], str]:
    """Sorts 'image2' before 'image10'."""
    parts: list[tuple[int, int | str]] = [
        (0, int(part)) if part.isdecimal() else (1, part.lower()) for part in re.split(r"(\d+)", name) if part
    ]
    return parts, name


# ---- behind an fsspec URL (s3://, gs://, https://, memory://, file://, …)

# A person and a password before the host, and the values of a query, which are often keys.
_PERSON = re.compile(r"(?<=://)[^/\s]*@")
_VALUES = re.compile(r"([?&#;][^=&#;\s]*=)[^&#;\s]*?(?=['\")]?(?:[&#;\s]|$))")


def without_credentials(text: str) -> str:
    """The same text with '***' for what the addresses in it may keep to themselves."""
    words = re.split(r"(\s+)", text)
    return "".join(_VALUES.sub(r"\1***", _PERSON.sub("***@", word)) if "://" in word else word for word in words)


class RemoteSource(ImageSource):
    """Image files on another file system, fetched one at a time when read."""

    def __init__(self, system: Any, paths: Sequence[str], *, base: str, name: str) -> None:
        self.system, self.paths, self.name = system, list(paths), name
        self._ids = unique_ids(path[len(base) :].lstrip("/") for path in paths)

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, i: int) -> Image:
        try:
            data = self.system.cat_file(self.paths[i])
        except Exception as error:  # each remote system has its own errors
            reason = without_credentials(str(error))
            raise UnreadableImage(f"cannot be fetched ({type(error).__name__}: {reason})") from error
        return decode(data, self.id(i))


def open_url(url: str, open_path: Callable[[Path], ImageSource]) -> ImageSource:
    """A folder, a glob or a single file behind a URL; containers (.npy, .tar, …) are copied to a temporary folder.

    open_path: opens what turns out to be on this machine.
    """
    from fsspec import core
    from fsspec.implementations.local import LocalFileSystem

    shown = without_credentials(url)
    if any(part.lower().startswith("reference") for part in url.split("::")):
        # Such a file may hold templates, which older versions of fsspec run as programs.
        raise CongealError(f"{shown} is a table of references, which is not read; give the address of the images")
    try:
        system, path = core.url_to_fs(url)
        if isinstance(system, LocalFileSystem):
            return open_path(Path(path))
        names, base = [path], os.path.dirname(path)
        if any(character in path for character in "*?["):
            names = [name for name in system.glob(path) if not _hidden(name)]
            base = os.path.commonpath([os.path.dirname(name) for name in names] or ["/"])
        elif system.isdir(path):
            below = [name for name in system.find(path) if not _hidden(name[len(path) :])]
            images = [name for name in below if _suffix(name) in EXTENSIONS]
            names, base = images or [name for name in below if _suffix(name) == ".tar"], path
        elif not system.exists(path):
            raise CongealError(f"no such file or folder: {shown}")
        elif _suffix(path) not in EXTENSIONS - {".tif", ".tiff", ".gif", ".webp"}:
            return _fetched(system, path, open_path)
        if not names:
            raise CongealError(f"{shown} has no images; these are read: {' '.join(sorted(EXTENSIONS))}")
        names = sorted(names, key=natural_key)
        if {_suffix(name) for name in names} == {".tar"}:
            return RemoteShardSource(system, names, name=shown)
        return RemoteSource(system, names, base=base, name=shown)
    except UnreadableImage as error:
        raise CongealError(str(error)) from error
    except CongealError:
        raise
    except ImportError as error:
        raise CongealError(f"{shown} needs another package: {error}") from error
    except Exception as error:
        reason = without_credentials(str(error))
        raise CongealError(f"{shown} cannot be opened ({type(error).__name__}: {reason})") from error


def _fetched(system: Any, path: str, open_path: Callable[[Path], ImageSource]) -> ImageSource:
    folder = tempfile.TemporaryDirectory(prefix="congeal-")
    local = Path(folder.name) / os.path.basename(path)
    system.get_file(path, str(local))
    source = open_path(local)
    source.files = ()  # a copy, made just now
    source.fetched = folder  # type: ignore[attr-defined]  # lives as long as the source
    return source


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def _hidden(path: str) -> bool:
    return any(part.startswith(".") for part in path.split("/"))


# Shards that a process keeps on this machine. Chosen by judgement: images are read in order, so that one is in use, and
# threads that read ahead need the next.
MAX_COPIED_SHARDS = 3


class RemoteShardSource(ShardSource):
    """Images inside tar files of another file system. Their headers are read once, where the source is opened; another
    process is sent what was found there, and copies a shard when it reads from it."""

    def __init__(self, system: Any, paths: Sequence[str], *, name: str) -> None:
        self.system, self._remote = system, list(paths)
        self._begin()
        super().__init__([Path(path) for path in paths], name=name)
        self._versions = [str(system.ukey(path)) for path in paths]

    def _begin(self) -> None:
        self._lock, self._copies = threading.Lock(), dict[int, Path]()
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_copies", "_folder")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state
        self._begin()

    def _file(self, number: int) -> Path:
        """A copy of a shard on this machine; the oldest one makes room."""
        with self._lock:
            if number not in self._copies:
                if self._folder is None:
                    self._folder = tempfile.TemporaryDirectory(prefix="congeal-shards-")
                while len(self._copies) >= MAX_COPIED_SHARDS:
                    self._copies.pop(next(iter(self._copies))).unlink(missing_ok=True)
                copy, remote = Path(self._folder.name) / str(number), self._remote[number]
                try:
                    self.system.get_file(remote, str(copy))
                except Exception as error:  # each remote system has its own errors
                    raise UnreadableImage(f"{remote} cannot be fetched ({type(error).__name__})") from error
                self._copies[number] = copy
            return self._copies[number]

    def fingerprint(self) -> str:
        """Changes when the other system says that a shard did."""
        about = repr((self._remote, self._versions, len(self)))
        return hashlib.blake2b(about.encode()).hexdigest()[:64]
