"""A prepared stack as files, so that another process sees exactly the same images, start and frame.

The pixels of a decoded stack and of a mapped array are in files already, and those are what the other process reads.
Only images that are in memory, or made as they are asked for, are written once more.

A frozen stack has no originals, from which `Stack.at` would make larger pictures: those are frozen beside it.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from congeal.evaluation.thresholds import MEASURED_SIDE_PX
from congeal.files import create_npy, replacing, writing
from congeal.images import Image, ImageSource, Layout, SkippedImage, Stack
from congeal.images.plan import pyramid_sizes
from congeal.images.sources.arrays import ArraySource, as_slice
from congeal.images.sources.base import Indices
from congeal.images.sources.views import SourceView
from congeal.images.store import Store, open_store

CHUNK_VALUES = 4_000_000
ABOUT = "about.npz"
MOST_BYTES = 1 << 30  # of larger pictures; where all would take more, the finest are left out


def freeze(stack: Stack, folder: Path, caps: Sequence[int] = ()) -> None:
    """Write what another process needs of the stack, and of the larger ones it may ask for, into `folder`.

    caps: sizes beyond which some method will not go.
    """
    levels, room = [], MOST_BYTES
    for size in sizes_asked_for(stack, caps):
        room -= _bytes_at(stack, size)
        larger = stack.at(size) if room >= 0 else stack
        if larger is stack:
            break
        _freeze_one(larger, folder / f"at-{size}", [])
        levels.append(size)
    _freeze_one(stack, folder, levels)


def sizes_asked_for(stack: Stack, caps: Sequence[int] = ()) -> list[int]:
    """The sizes that methods and measures ask `Stack.at` for, coarse to fine, up to that of the originals."""
    coarsest, native = max(stack.frame), stack.native_size
    sizes = {min(MEASURED_SIDE_PX, native)}
    for top in (native, *(min(cap, native) for cap in caps)):
        sizes |= set(pyramid_sizes(coarsest, top))
    return sorted(size for size in sizes if size > coarsest)


def _bytes_at(stack: Stack, size: int) -> int:
    """About how many bytes the pictures of that size take."""
    one = stack.unscaled([0])
    finer = size / max(stack.frame)
    return round(len(stack) * finer**2 * (one.size * (1 if one.dtype == np.uint8 else 4) + one[0, 0].size))


def _freeze_one(stack: Stack, folder: Path, levels: list[int]) -> None:
    """One stack into its folder; about.npz, written last, says that it is whole. levels: frozen under at-SIZE there."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    (folder / ABOUT).unlink(missing_ok=True)
    source, mapped = stack.source, None if stack.store_folder else _mapped_file(stack.source)
    pixels = None if mapped else str((stack.store_folder or _copy_pixels(stack, folder)).resolve())
    about = {
        "name": source.name,
        "source_ids": list(source.ids()),
        "channel_names": source.channel_names,
        "source_channels": sorted(stack.source_channels),
        "skipped": stack.skipped,
        "intensity": stack.intensity,
        "layout": stack.layout.as_dict(),
        "pixels": pixels,
        "mapped": mapped,
        "levels": levels,
    }
    with replacing(folder / ABOUT) as file:
        np.savez(
            file,
            about=json.dumps(about),
            kept=stack.kept,
            source_sizes=stack.source_sizes,
            stack_from_source=stack.stack_from_source,
            start=stack.start,
            rows=_rows_behind(source),
        )


class FrozenStack(Stack):
    """The stack `freeze` wrote. Its source has names and no pixels: methods work on the stack alone."""

    def __init__(self, folder: Path) -> None:
        with np.load(folder / ABOUT, allow_pickle=False) as saved:
            about = json.loads(str(saved["about"]))
            self.kept, self.source_sizes = saved["kept"], saved["source_sizes"]
            self.stack_from_source, self.start = saved["stack_from_source"], saved["start"]
            rows = saved["rows"]
        self._layout = Layout(**about["layout"])
        self.size, self.frame, self.aligned_size = self._layout.size, self._layout.frame, self._layout.aligned_size
        self.align_on, self.kind = self._layout.align_on, self._layout.kind or "photo"
        self.source = _Frozen(about["name"], about["source_ids"], about["mapped"], rows)
        self.source.channel_names = tuple(about["channel_names"])
        self.source_channels = frozenset(about["source_channels"])
        self.skipped = [SkippedImage(*one) for one in about["skipped"]]
        self.intensity = tuple(about["intensity"])
        self._store = open_store(Path(about["pixels"])) if about["pixels"] else None
        self._folder, self._levels, self._larger = folder, about["levels"], {}

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenStack, (self._folder,)  # another process reads the files itself

    def _build_at(self, size: int) -> Stack:
        """The frozen one of that size; this one, which says that there is nothing finer to be had, if there is none."""
        return FrozenStack(self._folder / f"at-{size}") if size in self._levels else self

    @property
    def layout(self) -> Layout:
        """That of the stack it was made of."""
        return self._layout

    # Pages of the files that stay mapped would be counted as memory of the method.

    def images(self, indices: Indices | slice) -> torch.Tensor:
        """As those of the stack it was made of."""
        images = super().images(indices)
        self._release()
        return images

    def masks(self, indices: Indices | slice) -> torch.Tensor | None:
        """As those of the stack it was made of."""
        masks = super().masks(indices)
        self._release()
        return masks

    def _release(self) -> None:
        if self._store is not None:
            self._store.pages.release()


class _Frozen(ImageSource):
    """What is left of a source: its name, the names of its images, and the file it maps if there is one."""

    def __init__(self, name: str, ids: list[str], mapped: Mapping[str, Any] | None, rows: np.ndarray) -> None:
        self.name, self._ids, self._mapped, self._rows = name, ids, mapped, rows

    def __len__(self) -> int:
        return len(self._ids)

    def id(self, i: int) -> str:
        return self._ids[i]

    def read(self, i: int) -> Image:
        raise NotImplementedError("a frozen stack has no originals")

    def batch(self, indices: Indices) -> np.ndarray:
        if self._mapped is None:
            raise NotImplementedError("the pixels are in the store")
        about = self._mapped
        array = np.memmap(about["file"], about["dtype"], "r", about["offset"], tuple(about["shape"]))
        pixels = np.array(array[as_slice(self._rows[np.asarray(indices)])])  # and the map is closed again
        return pixels[..., None] if pixels.ndim == 3 else pixels


def _rows_behind(source: ImageSource) -> np.ndarray:
    """Which images the source has of the one below all subsets."""
    rows = np.arange(len(source))
    while isinstance(source, SourceView):
        rows, source = source.rows[rows], source.source
    return rows


def _mapped_file(source: ImageSource) -> dict[str, Any] | None:
    """Where the array below all subsets lies on the disk; None if it is in memory, or has masks beside it."""
    while isinstance(source, SourceView):
        if source.original is not source:
            return None  # what methods see is not what lies in the file
        source = source.source
    array = source.array if isinstance(source, ArraySource) and not source.has_masks else None
    if not isinstance(array, np.memmap) or not isinstance(array.base, mmap.mmap) or not array.flags.c_contiguous:
        return None  # a view of a map does not know where it begins
    file = str(Path(str(array.filename)).resolve())
    return {"file": file, "dtype": array.dtype.str, "offset": array.offset, "shape": array.shape}


def _copy_pixels(stack: Stack, folder: Path) -> Path:
    """Write the pixels as a store; gives its folder."""
    n = len(stack.source)
    first = stack.unscaled([0])
    dtype = np.dtype(np.uint8 if first.dtype == np.uint8 else np.float32)  # as methods get them, one byte where exact
    pixels = create_npy(folder / "stack.npy", (n, *first.shape[1:]), dtype)
    masks = create_npy(folder / "masks.npy", (n, *stack.size), np.dtype(np.uint8)) if stack.has_masks else None
    black, white = np.zeros(n), np.ones(n)
    store = Store(pixels, masks, np.zeros((n, 2), np.int32), black, white, np.zeros(n, np.uint8), blank=False)
    step = max(1, CHUNK_VALUES // first.size)
    for start in range(0, len(stack), step):
        part = np.arange(start, min(len(stack), start + step))
        rows = stack.kept[part]
        pixels[rows] = stack.unscaled(part)
        black[rows], white[rows] = stack.black_and_white(part)
        shown = stack.masks(part)
        if masks is not None and shown is not None:
            masks[rows] = np.rint(shown[:, 0].numpy() * 255)
        store.pages.touched(pixels[rows[:1]].nbytes * len(part))
    store.save(folder)
    return folder
