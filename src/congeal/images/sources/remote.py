"""Images behind an fsspec URL (s3://, gs://, https://, memory://, file://, …): files, containers and tar shards."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from congeal.errors import CongealError
from congeal.images.formats.decode import EXTENSIONS, decode
from congeal.images.formats.shards import ShardSource
from congeal.images.sources.base import Image, ImageSource, UnreadableImage, unique_ids
from congeal.images.sources.files import natural_key

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
        if any(character in path for character in "*?["):
            found = [name for name in system.glob(path) if not _hidden(name)]
            base = os.path.commonpath([os.path.dirname(p) for p in found] or ["/"])
            if found and all(name.lower().endswith(".tar") for name in found):
                return open_remote_shards(system, found, name=shown)
            return _files(system, found, base=base, name=shown)
        if system.isdir(path):
            below = [name for name in system.find(path) if not _hidden(name[len(path) :])]
            images = [name for name in below if _is_image(name)]
            tars = [name for name in below if name.lower().endswith(".tar")]
            if tars and not images:
                return open_remote_shards(system, tars, name=shown)
            return _files(system, images, base=path, name=shown)
        if not system.exists(path):
            raise CongealError(f"no such file or folder: {shown}")
        if _is_image(path) and not path.lower().endswith((".tif", ".tiff", ".gif", ".webp")):
            return _files(system, [path], base=os.path.dirname(path), name=shown)
        return _fetched(system, path, open_path)
    except CongealError:
        raise
    except ImportError as error:
        raise CongealError(f"{shown} needs another package: {error}") from error
    except Exception as error:
        reason = without_credentials(str(error))
        raise CongealError(f"{shown} cannot be opened ({type(error).__name__}: {reason})") from error


def _files(system: Any, paths: Sequence[str], *, base: str, name: str) -> RemoteSource:
    if not paths:
        raise CongealError(f"{name} has no images; these are read: {' '.join(sorted(EXTENSIONS))}")
    return RemoteSource(system, sorted(paths, key=natural_key), base=base, name=name)


def _fetched(system: Any, path: str, open_path: Callable[[Path], ImageSource]) -> ImageSource:
    folder = tempfile.TemporaryDirectory(prefix="congeal-")
    local = Path(folder.name) / os.path.basename(path)
    system.get_file(path, str(local))
    source = open_path(local)
    source.files = ()  # a copy, made just now
    source.fetched = folder  # type: ignore[attr-defined]  # lives as long as the source
    return source


def _is_image(path: str) -> bool:
    return os.path.splitext(path)[1].lower() in EXTENSIONS


def _hidden(path: str) -> bool:
    return any(part.startswith(".") for part in path.split("/"))


COPIES = 3
"""Shards that a process keeps."""


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
                while len(self._copies) >= COPIES:
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


def open_remote_shards(system: Any, paths: Sequence[str], *, name: str) -> RemoteShardSource:
    """Tar files behind an address, in the order of their names."""
    try:
        return RemoteShardSource(system, sorted(paths, key=natural_key), name=name)
    except UnreadableImage as error:
        raise CongealError(str(error)) from error
