"""The files that driver and workers share: below a folder that all of them see, or in object storage.

Every file appears whole or not at all: on a disk under a temporary name that is changed in the end, in object storage
because that is how it works.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from congeal.errors import CongealError, first_line
from congeal.files import replacing, write_bytes, writing

_PIECE = 8 << 20  # bytes of a large object that are in memory


class Exchange:
    """Files by name below a folder of a shared disk."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __str__(self) -> str:
        return self.folder

    def write(self, name: str, data: bytes) -> None:
        """A whole file."""
        write_bytes(self._made(name), data)

    def write_parts(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        """A whole file, given piece by piece."""
        with replacing(self._made(name)) as file:
            for part in parts:
                file.write(part)

    def write_array(self, name: str, array: np.ndarray) -> None:
        """An array as .npy."""
        with replacing(self._made(name)) as file:
            np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)

    def read(self, name: str) -> bytes:
        """All of a file; `FileNotFoundError` if there is none."""
        return (Path(self.folder) / name).read_bytes()

    def has(self, name: str) -> bool:
        """Whether the file is there."""
        return (Path(self.folder) / name).is_file()

    def names(self, below: str) -> set[str]:
        """The files of a folder below this one."""
        try:
            return set(os.listdir(Path(self.folder) / below))
        except FileNotFoundError:
            return set()

    def local(self, name: str) -> Path:
        """Where a file can be mapped."""
        return Path(self.folder) / name

    def remove(self, below: str) -> None:
        """A file or a folder with all that is in it."""
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


class RemoteExchange(Exchange):
    """The same in object storage, or wherever fsspec reaches. What is mapped is copied to this machine once."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self._system, self._root = system_of(folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteExchange, (self.folder,)

    def write(self, name: str, data: bytes) -> None:
        """A whole object."""
        try:
            self._system.pipe_file(f"{self._root}/{name}", data)
        except Exception as error:
            raise refusal(self.folder, error, "written") from error

    def write_parts(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        """A whole object, given piece by piece; nothing is there before its end."""
        try:
            with self._system.open(f"{self._root}/{name}", "wb") as file:
                for part in parts:
                    file.write(part)
        except Exception as error:
            raise refusal(self.folder, error, "written") from error

    def write_array(self, name: str, array: np.ndarray) -> None:
        """An array as .npy."""
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, np.ascontiguousarray(array), allow_pickle=False)
        self.write(name, buffer.getvalue())

    def read(self, name: str) -> bytes:
        """All of an object."""
        try:
            return bytes(self._system.cat_file(f"{self._root}/{name}"))
        except FileNotFoundError:
            raise
        except Exception as error:
            raise refusal(self.folder, error, "read") from error

    def has(self, name: str) -> bool:
        """Whether the object is there, asked anew."""
        self._system.invalidate_cache(f"{self._root}/{os.path.dirname(name)}")
        return bool(self._system.exists(f"{self._root}/{name}"))

    def names(self, below: str) -> set[str]:
        """The objects of a folder."""
        self._system.invalidate_cache(f"{self._root}/{below}")
        try:
            return {path.rsplit("/", 1)[-1] for path in self._system.ls(f"{self._root}/{below}", detail=False)}
        except FileNotFoundError:
            return set()
        except Exception as error:
            raise refusal(self.folder, error, "read") from error

    def local(self, name: str) -> Path:
        """A copy beside the worker."""
        kept = cache_folder() / hashlib.sha256(f"{self.folder}/{name}".encode()).hexdigest()[:32]
        if not kept.is_file():
            self._fetch(name, kept)
        return kept

    def _fetch(self, name: str, kept: Path) -> None:
        """Copy an object piece by piece: poses of millions of images need not be in memory at once, and s3fs would
        fetch half a gigabyte side by side."""
        try:
            with (
                replacing(kept, lasting=False) as copy,
                self._system.open(f"{self._root}/{name}", "rb", block_size=_PIECE) as file,
            ):
                shutil.copyfileobj(file, copy, _PIECE)
        except (FileNotFoundError, CongealError):
            raise
        except Exception as error:
            raise refusal(self.folder, error, "read") from error

    def remove(self, below: str) -> None:
        """An object or a folder with all that is in it."""
        path = f"{self._root}/{below}"
        if self._system.exists(path):
            self._system.rm(path, recursive=True)


def open_exchange(folder: str) -> Exchange:
    """A folder of a shared disk, or an address."""
    return RemoteExchange(folder) if "://" in folder else Exchange(folder)


def system_of(url: str) -> tuple[Any, str]:
    """The file system behind an address, which remembers nothing of what others change, and the path there."""
    from fsspec import core

    try:
        system, root = core.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        raise CongealError(f"{url} needs another package: {error}") from error
    except Exception as error:
        raise refusal(url, error, "opened") from error
    return system, root.rstrip("/")


def refusal(url: str, error: Exception, done: str) -> CongealError:
    """One sentence for what a remote system says."""
    name = type(error).__name__
    if "Credentials" in name or isinstance(error, PermissionError):
        return CongealError(
            f"{url} cannot be {done}: credentials are missing or not accepted ({first_line(error)}); "
            "give them to the driver and to all workers"
        )
    return CongealError(f"{url} cannot be {done} ({name}: {first_line(error)})")


def cache_folder() -> Path:
    """Where this process keeps copies of what is elsewhere; it goes with the process."""
    global _CACHE
    if _CACHE is None:
        _CACHE = tempfile.TemporaryDirectory(prefix="congeal-worker-")
    return Path(_CACHE.name)


_CACHE: tempfile.TemporaryDirectory[str] | None = None


def pack(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Arrays by name in one block of bytes, the same for the same arrays."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def unpack(data: bytes) -> dict[str, np.ndarray]:
    """The inverse of `pack`."""
    with np.load(io.BytesIO(data), allow_pickle=False) as saved:
        return {name: saved[name] for name in saved.files}
