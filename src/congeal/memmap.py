"""Arrays in memory-mapped files whose resident pages are released, so that memory does not grow with the set.

`allocate` returns an array in memory while it is small and in an unnamed file of `memmap_dir` beyond that.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np

# Bytes of a memory map that may stay resident: without a release the kernel keeps every page it has memory for, and
# counts it as memory of this process.
MAX_RESIDENT_BYTES = 16 << 20
# Bytes that Linux maps around a single byte that is read (fault-around).
READAHEAD_BYTES = 64 << 10
# Size up to which `allocate` returns a plain array: a file is not worth its overhead below a few megabytes.
MAX_IN_MEMORY_BYTES = 4 << 20

_DIRECTORY: ContextVar[Path | None] = ContextVar("directory of memory-mapped arrays", default=None)
_MAPS: dict[int, weakref.ref[mmap.mmap]] = {}  # those of all tracked arrays, by identity
_touched_bytes = 0  # since pages were released


def track_pages(*arrays: np.ndarray | None) -> None:
    """Let `touch_pages` and `release_pages` release the pages of these arrays, if they are memory-mapped.

    Released pages stay in the kernel's file cache, and modified ones reach the disk as usual. A view that is still in
    use maps them again.
    """
    for array in arrays:
        found: Any = array
        while found is not None and not isinstance(found, mmap.mmap):  # of a view, look at the array behind it
            inner = getattr(found, "_mmap", None)
            found = inner if inner is not None else getattr(found, "base", None)
        if found is not None:
            _MAPS[id(found)] = weakref.ref(found)


def touch_pages(size: int) -> None:
    """Note `size` bytes that were read from or written to tracked arrays; releases all pages from time to time."""
    global _touched_bytes
    _touched_bytes += size
    if _touched_bytes > MAX_RESIDENT_BYTES:
        release_pages()


@contextmanager
def memmap_dir(folder: Path) -> Iterator[None]:
    """Let `allocate` put large arrays into unnamed files of this folder, which vanish with the process."""
    before = _DIRECTORY.set(folder)
    try:
        yield
    finally:
        _DIRECTORY.reset(before)


def allocate(shape: tuple[int, ...], dtype: Any, fill: Any = None) -> np.ndarray:
    """A new array, memory-mapped if it is large and `memmap_dir` is set; its values are `fill`, if given."""
    folder, size = _DIRECTORY.get(), math.prod(shape) * np.dtype(dtype).itemsize
    array = _map_file(folder, shape, dtype, size) if folder is not None and size > MAX_IN_MEMORY_BYTES else None
    if array is None:
        array = np.empty(shape, dtype)
    if fill is not None:
        rows = max(1, MAX_RESIDENT_BYTES * max(1, len(array)) // max(1, size))
        for first in range(0, len(array), rows):
            array[first : first + rows] = fill
            touch_pages(MAX_RESIDENT_BYTES)
    return array


def _map_file(folder: Path, shape: tuple[int, ...], dtype: Any, size: int) -> np.ndarray | None:
    """None where the system cannot release pages, or the disk is full: memory may still suffice."""
    if not hasattr(mmap, "MADV_DONTNEED") or not hasattr(os, "posix_fallocate"):
        return None
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, size)  # a write to a map on a full disk would kill the process
            space = mmap.mmap(file.fileno(), size)
    except OSError:
        return None
    _MAPS[id(space)] = weakref.ref(space)
    return np.frombuffer(space, dtype).reshape(shape)


def release_pages() -> None:
    """Release the resident pages of all tracked arrays (madvise DONTNEED); their values stay in the files."""
    global _touched_bytes
    _touched_bytes = 0
    for identity, one in list(_MAPS.items()):
        space = one()
        if space is None:
            _MAPS.pop(identity, None)
        elif hasattr(mmap, "MADV_DONTNEED"):
            space.madvise(mmap.MADV_DONTNEED)
