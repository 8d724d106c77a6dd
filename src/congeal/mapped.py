"""Large arrays without large memory: they lie in files, and pages that were used are given back now and then.

A driver of many machines holds some numbers of every image. `room` makes arrays for them, in the memory while they are
small and in files without a name beyond that; `runs` goes through them a part at a time.
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
from numpy.typing import NDArray

# Bytes of a map that may stay in memory. The system would keep every page it has room for, and count it as ours.
KEPT = 16 << 20
FAR = 64 << 10  # bytes that the system maps around one that is read
IN_MEMORY = 4 << 20  # bytes of an array that `room` does not put into a file
ROWS_AT_ONCE = 50_000  # images whose matrices are looked at together

_HOME: ContextVar[Path | None] = ContextVar("home of large arrays", default=None)
_ROOMS: list[weakref.ref[mmap.mmap]] = []


class MappedPages:
    """Counts what is read from or written to some arrays; a no-op for arrays that are not mapped files.

    Pages given back stay in the system's file cache, written ones reach the disk as usual: only their place in this
    process is released, and a view that is still in use reads them again.
    """

    def __init__(self, *arrays: np.ndarray | None) -> None:
        self._maps: list[mmap.mmap] = []
        self._touched = 0
        for array in arrays:
            self.add(array)

    def add(self, array: np.ndarray | None) -> None:
        """Count this array too, if a mapped file is behind it."""
        found = _map_behind(array)
        if found is not None:
            self._maps.append(found)

    def __bool__(self) -> bool:
        return bool(self._maps)

    def touched(self, size: int) -> None:
        """Note `size` bytes about to be used."""
        self._touched += size
        if self._touched > KEPT:
            self.release()

    def release(self) -> None:
        """Give back all pages now."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for one in self._maps:
                one.madvise(mmap.MADV_DONTNEED)
        self._touched = 0


def _map_behind(array: Any) -> mmap.mmap | None:
    """The map an array, or the array it is a view of, lies in."""
    while array is not None and not isinstance(array, mmap.mmap):
        found = getattr(array, "_mmap", None)
        array = found if found is not None else getattr(array, "base", None)
    return array


@contextmanager
def at_home(folder: Path) -> Iterator[None]:
    """While this lasts, `room` puts large arrays into files of this folder. They have no name there and go with the
    process, however that ends."""
    before = _HOME.set(folder)
    try:
        yield
    finally:
        _HOME.reset(before)


def room(shape: tuple[int, ...], dtype: Any, fill: Any = None) -> np.ndarray:
    """An array, in a file if it is large and there is a place for it (`at_home`); its values are `fill`, if given."""
    folder, size = _HOME.get(), math.prod(shape) * np.dtype(dtype).itemsize
    array = _mapped(folder, shape, dtype, size) if folder is not None and size > IN_MEMORY else None
    if array is None:
        array = np.empty(shape, dtype)
    if fill is not None:
        for part in runs(len(array)):
            array[part] = fill
    return array


def _mapped(folder: Path, shape: tuple[int, ...], dtype: Any, size: int) -> np.ndarray | None:
    """None where the system cannot do that, or the disk has no room: then there may still be some in memory."""
    if not hasattr(mmap, "MADV_DONTNEED") or not hasattr(os, "posix_fallocate"):
        return None
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, size)  # writing to a map that finds no room would end the process
            space = mmap.mmap(file.fileno(), size)
    except OSError:
        return None
    _ROOMS[:] = [one for one in _ROOMS if one() is not None]
    _ROOMS.append(weakref.ref(space))
    return np.frombuffer(space, dtype).reshape(shape)


def let_go() -> None:
    """Give back the pages of all rooms; what is in them stays in their files."""
    for one in _ROOMS:
        space = one()
        if space is not None:
            space.madvise(mmap.MADV_DONTNEED)


def runs(n: int, rows: int = ROWS_AT_ONCE) -> Iterator[slice]:
    """Successive parts of n rows; pages that were used for one are given back before the next."""
    for first in range(0, n, rows):
        yield slice(first, min(n, first + rows))
        let_go()


def finite_rows(matrices: np.ndarray) -> NDArray[np.bool_]:
    """(N,) bool: which of these (N, …) have finite values only."""
    known = np.empty(len(matrices), dtype=bool)
    for part in runs(len(matrices)):
        known[part] = np.isfinite(matrices[part]).reshape(len(matrices[part]), -1).all(1)
    return known
