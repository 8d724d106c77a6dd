"""The files that driver and workers share: in a folder of a shared disk, or in object storage.

Writing is atomic: a file on a disk is renamed when it is complete, an object appears when its upload ends.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from congeal.errors import CongealError, first_line
from congeal.files import replacing, write_bytes, writing

_BLOCK_BYTES = 8 << 20  # of a large object in memory


class SharedStorage:
    """Files by name in a folder of a shared disk."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __str__(self) -> str:
        return self.folder

    def write(self, name: str, data: bytes) -> None:
        """Write a file."""
        write_bytes(self._made(name), data)

    def write_parts(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        """Write a file from successive chunks."""
        with replacing(self._made(name)) as file:
            for part in parts:
                file.write(part)

    def write_array(self, name: str, array: np.ndarray) -> None:
        """Write an array as .npy."""
        with replacing(self._made(name)) as file:
            np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)

    def read(self, name: str) -> bytes:
        """The bytes of a file; `FileNotFoundError` if there is none."""
        return (Path(self.folder) / name).read_bytes()

    def has(self, name: str) -> bool:
        """Whether the file exists."""
        return (Path(self.folder) / name).is_file()

    def names(self, below: str) -> set[str]:
        """Names of the files in a subfolder."""
        try:
            return set(os.listdir(Path(self.folder) / below))
        except FileNotFoundError:
            return set()

    def local(self, name: str) -> Path:
        """A path at which the file can be mapped into memory."""
        return Path(self.folder) / name

    def remove(self, below: str) -> None:
        """Remove a file, or a folder and its contents."""
        path = Path(self.folder) / below
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    def _made(self, name: str) -> Path:
        path = Path(self.folder) / name
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        return path


@dataclass(frozen=True)
class StoredArray:
    """An array that stays in a file of the shared storage."""

    storage: SharedStorage
    name: str


class RemoteStorage(SharedStorage):
    """Files in object storage, or wherever fsspec reaches. Mapped files are copied to this machine once."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self._system, self._root = open_filesystem(folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteStorage, (self.folder,)

    def write(self, name: str, data: bytes) -> None:
        """Write an object."""
        try:
            self._system.pipe_file(f"{self._root}/{name}", data)
        except Exception as error:
            raise storage_error(self.folder, error, "written") from error

    def write_parts(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        """Write an object from successive chunks."""
        try:
            with self._system.open(f"{self._root}/{name}", "wb") as file:
                for part in parts:
                    file.write(part)
        except Exception as error:
            raise storage_error(self.folder, error, "written") from error

    def write_array(self, name: str, array: np.ndarray) -> None:
        """Write an array as .npy."""
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, np.ascontiguousarray(array), allow_pickle=False)
        self.write(name, buffer.getvalue())

    def read(self, name: str) -> bytes:
        """The bytes of an object."""
        try:
            return bytes(self._system.cat_file(f"{self._root}/{name}"))
        except FileNotFoundError:
            raise
        except Exception as error:
            raise storage_error(self.folder, error, "read") from error

    def has(self, name: str) -> bool:
        """Whether the object exists, past the cache of listings."""
        self._system.invalidate_cache(f"{self._root}/{os.path.dirname(name)}")
        return bool(self._system.exists(f"{self._root}/{name}"))

    def names(self, below: str) -> set[str]:
        """Names of the objects in a folder."""
        self._system.invalidate_cache(f"{self._root}/{below}")
        try:
            return {path.rsplit("/", 1)[-1] for path in self._system.ls(f"{self._root}/{below}", detail=False)}
        except FileNotFoundError:
            return set()
        except Exception as error:
            raise storage_error(self.folder, error, "read") from error

    def local(self, name: str) -> Path:
        """A copy on this machine."""
        kept = cache_folder() / hashlib.sha256(f"{self.folder}/{name}".encode()).hexdigest()[:32]
        if not kept.is_file():
            self._fetch(name, kept)
        return kept

    def _fetch(self, name: str, kept: Path) -> None:
        """Copy an object block by block: poses of millions of images need not fit into memory, and s3fs would fetch
        half a gigabyte in parallel."""
        try:
            with (
                replacing(kept, lasting=False) as copy,
                self._system.open(f"{self._root}/{name}", "rb", block_size=_BLOCK_BYTES) as file,
            ):
                shutil.copyfileobj(file, copy, _BLOCK_BYTES)
        except (FileNotFoundError, CongealError):
            raise
        except Exception as error:
            raise storage_error(self.folder, error, "read") from error

    def remove(self, below: str) -> None:
        """Remove an object, or a folder and its contents."""
        path = f"{self._root}/{below}"
        if self._system.exists(path):
            self._system.rm(path, recursive=True)


def open_storage(folder: str) -> SharedStorage:
    """The storage in a folder of a shared disk, or at a URL."""
    return RemoteStorage(folder) if "://" in folder else SharedStorage(folder)


def open_filesystem(url: str) -> tuple[Any, str]:
    """The file system of a URL, without a cache of listings, and the path there."""
    from fsspec import core

    try:
        system, root = core.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        raise CongealError(f"{url} needs another package: {error}") from error
    except Exception as error:
        raise storage_error(url, error, "opened") from error
    return system, root.rstrip("/")


def storage_error(url: str, error: Exception, done: str) -> CongealError:
    """An error in one sentence for one of a remote file system."""
    name = type(error).__name__
    if "Credentials" in name or isinstance(error, PermissionError):
        return CongealError(
            f"{url} cannot be {done}: credentials are missing or not accepted ({first_line(error)}); "
            "give them to the driver and to all workers"
        )
    return CongealError(f"{url} cannot be {done} ({name}: {first_line(error)})")


def cache_folder() -> Path:
    """The folder for copies of remote files, removed with this process."""
    global _CACHE
    if _CACHE is None:
        _CACHE = tempfile.TemporaryDirectory(prefix="congeal-worker-")
    return Path(_CACHE.name)


_CACHE: tempfile.TemporaryDirectory[str] | None = None


def pack(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of an .npz file of these arrays."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def unpack(data: bytes) -> dict[str, np.ndarray]:
    """The inverse of `pack`."""
    with np.load(io.BytesIO(data), allow_pickle=False) as saved:
        return {name: saved[name] for name in saved.files}
