"""A prepared stack that another process sees exactly the same: images, start and frame, without its originals.

The pixels of a decoded stack are in files already, and those are what the other process reads. Other images are written
once more. Larger pictures, which `Stack.at` would make of the originals, are made before.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from congeal.evaluation.thresholds import MEASURED_SIDE_PX
from congeal.files import create_npy
from congeal.images import Image, ImageSource, Stack
from congeal.images.intensity import CHUNK_VALUES
from congeal.images.plan import pyramid_sizes
from congeal.images.store import Store


class SharedStack(Stack):
    """A stack that can be sent to another process, larger pictures included.

    Parameters
    ----------
    stack : Stack
    folder : Path
        Where pixels are written that are in no file yet.
    caps : sequence of int
        Sizes beyond which some method will not go.
    """

    def __init__(self, stack: Stack, folder: Path, caps: Sequence[int] | None = ()) -> None:
        self.__dict__ |= stack.__getstate__()
        self.source = _NamedImages(stack.source)
        self._store = stack._store if stack.store_folder is not None else _write_pixels(stack, folder)
        self._levels: dict[int, SharedStack] = {}
        for size in [] if caps is None else sizes_asked_for(stack, caps):
            larger = stack.at(size)
            if larger is stack:
                break
            self._levels[size] = SharedStack(larger, folder / f"at-{size}", caps=None)

    def _build_at(self, size: int) -> Stack:
        """The one of that size made before; this one, which says that there is nothing finer, if there is none."""
        return self._levels.get(size, self)

    def _decode_on_demand(self, size: int, known: Store) -> Stack:
        return self._build_at(size)


class _NamedImages(ImageSource):
    """The names of a source and its images, without their pixels."""

    def __init__(self, source: ImageSource) -> None:
        self.name, self.kind, self.channel_names = source.name, source.kind, source.channel_names
        self._ids = source.ids()

    def __len__(self) -> int:
        return len(self._ids)

    def read(self, i: int) -> Image:
        raise NotImplementedError("a shared stack has no originals")


def sizes_asked_for(stack: Stack, caps: Sequence[int] = ()) -> list[int]:
    """The sizes that methods and measures ask `Stack.at` for, coarse to fine, up to that of the originals."""
    coarsest, native = max(stack.frame), stack.native_size
    sizes = {min(MEASURED_SIDE_PX, native)}
    for top in (native, *(min(cap, native) for cap in caps)):
        sizes |= set(pyramid_sizes(coarsest, top))
    return sorted(size for size in sizes if size > coarsest)


def _write_pixels(stack: Stack, folder: Path) -> Store:
    """The pixels, and masks if there are some, as a store in the folder."""
    n, first = len(stack.source), stack.unscaled([0])
    dtype = np.dtype(np.uint8 if first.dtype == np.uint8 else np.float32)  # as methods get them, one byte where exact
    pixels = create_npy(folder / "stack.npy", (n, *first.shape[1:]), dtype)
    masks = create_npy(folder / "masks.npy", (n, *stack.size), np.dtype(np.uint8)) if stack.has_masks else None
    limits: dict[str, Any] = {"black": np.zeros(n), "white": np.ones(n)}
    store = Store(pixels, masks, np.zeros((n, 2), np.int32), kinds=np.zeros(n, np.uint8), blank=False, **limits)
    step = max(1, CHUNK_VALUES // first.size)
    for start in range(0, len(stack), step):
        part = np.arange(start, min(len(stack), start + step))
        rows = stack.kept[part]
        pixels[rows] = stack.unscaled(part)
        store.black[rows], store.white[rows] = stack.black_and_white(part)
        shown = stack.masks(part)
        if masks is not None and shown is not None:
            masks[rows] = np.rint(shown[:, 0].numpy() * 255)
        store.pages.touched(pixels[rows[:1]].nbytes * len(part))
    store.ranges = stack.layout.ranges
    store.save(folder)
    return store
