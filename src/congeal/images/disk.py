"""Files that are complete or absent, and one sentence when the disk says no."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from congeal.errors import CongealError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an operating system's refusal (full disk, no permission) into one sentence about `path`."""
    try:
        yield
    except OSError as error:
        raise CongealError(
            f"cannot write {path}: {error.strerror or error}; free some space or choose another folder"
        ) from error


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file that is never seen half done."""
    partial = path.with_name(f".{path.name}.partial")
    with writing(path):
        try:
            partial.write_bytes(data)
            os.replace(partial, path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise


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
