"""The files that driver and workers share: in a folder of a shared disk, or in object storage.

Writing is atomic: a file on a disk is renamed when it is complete, an object appears when its upload ends.
"""

from __future__ import annotations

import atexit
import hashlib
import io
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from congeal.errors import CongealError, first_line
from congeal.files import replacing, writing

# Bytes of a file in memory while it is copied; no result depends on it.
BLOCK_BYTES = 8 << 20


class SharedStorage:
    """Files by name in a folder of a shared disk, or at a URL that fsspec reaches."""

    def __init__(self, folder: str) -> None:
        from fsspec.implementations.local import LocalFileSystem

        self.folder, self._is_remote = folder, "://" in folder
        self._system, self._root = open_filesystem(folder) if self._is_remote else (LocalFileSystem(), folder)

    def __str__(self) -> str:
        return self.folder

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedStorage, (self.folder,)

    def write(self, name: str, *parts: bytes | memoryview) -> None:
        """Write a file from successive parts; arrays that are mapped need not fit into memory."""
        path = f"{self._root}/{name}"
        if not self._is_remote:
            with writing(path):
                Path(path).parent.mkdir(parents=True, exist_ok=True)
        with (
            storage_errors(self.folder, "written"),
            self._system.open(path, "wb") if self._is_remote else replacing(path) as file,
        ):
            for part in parts:
                for start in range(0, len(part), BLOCK_BYTES):
                    file.write(part[start : start + BLOCK_BYTES])

    def write_array(self, name: str, array: np.ndarray) -> None:
        """Write an array as .npy."""
        header, rows = io.BytesIO(), np.ascontiguousarray(array)
        np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(rows))
        self.write(name, header.getvalue(), rows.reshape(-1).view(np.uint8).data)

    def read(self, name: str) -> bytes:
        """The bytes of a file; `FileNotFoundError` if there is none."""
        with storage_errors(self.folder, "read"):
            return bytes(self._system.cat_file(f"{self._root}/{name}"))

    def names(self, below: str) -> set[str]:
        """Names of the files in a subfolder."""
        try:
            with storage_errors(self.folder, "read"):
                return {path.rsplit("/", 1)[-1] for path in self._system.ls(f"{self._root}/{below}", detail=False)}
        except FileNotFoundError:
            return set()

    def local(self, name: str) -> Path:
        """A path at which a file can be mapped into memory.

        An object is copied to this machine once, block by block: poses of millions of images need not fit into memory,
        and s3fs would fetch half a gigabyte in parallel.
        """
        if not self._is_remote:
            return Path(self._root) / name
        kept = file_cache_folder() / hashlib.sha256(f"{self.folder}/{name}".encode()).hexdigest()[:32]
        if not kept.is_file():
            with (
                storage_errors(self.folder, "read"),
                replacing(kept) as copy,
                self._system.open(f"{self._root}/{name}", "rb", block_size=BLOCK_BYTES) as file,
            ):
                shutil.copyfileobj(file, copy, BLOCK_BYTES)
        return kept

    def remove(self, below: str) -> None:
        """Remove a folder and its contents, if it exists."""
        if self._system.exists(f"{self._root}/{below}"):
            self._system.rm(f"{self._root}/{below}", recursive=True)


@dataclass(frozen=True)
class StoredArray:
    """An array that stays in a file of the shared storage."""

    storage: SharedStorage
    name: str


def open_filesystem(url: str) -> tuple[Any, str]:
    """The file system of a URL, without a cache of listings, and the path there."""
    from fsspec import core

    with storage_errors(url, "opened"):
        try:
            system, root = core.url_to_fs(url, use_listings_cache=False)
        except ImportError as error:
            raise CongealError(f"{url} needs another package: {error}") from error
    return system, root.rstrip("/")


@contextmanager
def storage_errors(url: str, done: str) -> Iterator[None]:
    """Report an error of a file system in one sentence; `FileNotFoundError` is kept where a file is read.

    done: what was to be done there: "written", "read" or "opened".
    """
    try:
        yield
    except CongealError:
        raise
    except Exception as error:
        if done == "read" and isinstance(error, FileNotFoundError):
            raise
        name, reason = type(error).__name__, first_line(error)
        if "Credentials" in name or isinstance(error, PermissionError):
            raise CongealError(
                f"{url} cannot be {done}: credentials are missing or not accepted ({reason}); "
                "give them to the driver and to all workers"
            ) from error
        raise CongealError(f"{url} cannot be {done} ({name}: {reason})") from error


@cache
def file_cache_folder() -> Path:
    """The folder for copies of remote files, removed with this process."""
    folder = tempfile.mkdtemp(prefix="congeal-worker-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def pack_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of an .npz file of these arrays."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def unpack(data: bytes) -> dict[str, np.ndarray]:
    """The inverse of `pack`."""
    with np.load(io.BytesIO(data), allow_pickle=False) as saved:
        return {name: saved[name] for name in saved.files}
