"""Large files behind arrays without large memory: pages of a map that were used are given back now and then."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

# Bytes of a map that may stay in memory. The system would keep every page it has room for, and count it as ours.
KEPT = 64 << 20


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
