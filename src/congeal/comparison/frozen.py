"""A prepared stack as files, so that another process sees exactly the same images, start and frame."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from congeal.files import allocate, writing
from congeal.images import Image, ImageSource, Layout, Skipped, Stack
from congeal.images.arrays import as_slice
from congeal.images.source import Indices

CHUNK_VALUES = 4_000_000


def freeze(stack: Stack, folder: Path) -> None:
    """Write the stack into `folder`; `about.npz`, written last, says that it is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "about.npz").unlink(missing_ok=True)
    _write_array(folder / "images.npy", stack.images, len(stack))
    if stack.has_masks:
        _write_array(folder / "masks.npy", lambda part: _masks(stack, part), len(stack))
    source = stack.source
    about = {
        "name": source.name,
        "kind": source.kind,
        "source_ids": [source.id(i) for i in range(len(source))],
        "skipped": stack.skipped,
        "intensity": stack.intensity,
        "masks": stack.has_masks,
        "layout": stack.layout.as_dict(),
    }
    with writing(folder / "about.npz"):
        np.savez(
            folder / "about.npz",
            about=json.dumps(about),
            kept=stack.kept,
            source_sizes=stack.source_sizes,
            stack_from_source=stack.stack_from_source,
            start=stack.start,
        )


class FrozenStack(Stack):
    """The stack `freeze` wrote. Its source has names and no pixels: methods work on the stack alone."""

    _per_image = (*Stack._per_image, "_stored")

    def __init__(self, folder: Path) -> None:
        with np.load(folder / "about.npz", allow_pickle=False) as saved:
            about = json.loads(str(saved["about"]))
            self.kept, self.source_sizes = saved["kept"], saved["source_sizes"]
            self.stack_from_source, self.start = saved["stack_from_source"], saved["start"]
        self._layout = Layout(**about["layout"])
        self.size, self.frame, self.aligned_size = self._layout.size, self._layout.frame, self._layout.aligned_size
        self.align_on = self._layout.align_on
        if self._layout.kind is not None:
            self.kind = self._layout.kind
        self.source = _Names(about["name"], about["kind"], about["source_ids"])
        self.skipped = [Skipped(*one) for one in about["skipped"]]
        self.intensity = tuple(about["intensity"])
        self._images = folder / "images.npy"
        self._masks = folder / "masks.npy" if about["masks"] else None
        self._stored = np.arange(len(self.kept))  # which rows of these files are the stack's

    @property
    def layout(self) -> Layout:
        return self._layout

    @property
    def has_masks(self) -> bool:
        return self._masks is not None

    def images(self, indices: Indices | slice) -> torch.Tensor:
        return _read_array(self._images, self._at(indices))

    def masks(self, indices: Indices | slice) -> torch.Tensor | None:
        return None if self._masks is None else _read_array(self._masks, self._at(indices))

    def _at(self, indices: Indices | slice) -> np.ndarray:
        return self._stored[indices if isinstance(indices, slice) else np.asarray(indices, dtype=np.int64)]


class _Names(ImageSource):
    """What is left of a source: its name, its kind and the names of its images."""

    def __init__(self, name: str, kind: str | None, ids: list[str]) -> None:
        self.name, self.kind, self._ids = name, kind, ids

    def __len__(self) -> int:
        return len(self._ids)

    def id(self, i: int) -> str:
        return self._ids[i]

    def read(self, i: int) -> Image:
        raise NotImplementedError("a frozen stack has no source pixels")


def _masks(stack: Stack, part: Indices) -> torch.Tensor:
    masks = stack.masks(part)
    return torch.ones(len(part), 1, *stack.size) if masks is None else masks


def _write_array(path: Path, read: Callable[[Any], torch.Tensor], n: int) -> None:
    """n images of values in [0, 1]: one byte each where that is exact, as it is for 8-bit images, else float32."""
    if not _write_as(np.dtype(np.uint8), path, read, n):
        _write_as(np.dtype(np.float32), path, read, n)


def _write_as(dtype: np.dtype, path: Path, read: Callable[[Any], torch.Tensor], n: int) -> bool:
    """Whether every value could be written without a change; stops at the first that cannot."""
    shape = tuple(read(np.arange(1)).shape[1:])
    step = max(1, CHUNK_VALUES // math.prod(shape))
    array = allocate(path, (n, *shape), dtype)
    for first in range(0, n, step):
        part = np.arange(first, min(n, first + step))
        values = read(part).numpy()
        stored = np.rint(values * 255).astype(dtype) if dtype == np.uint8 else values
        if not np.array_equal(_unit(stored), values):
            return False
        array[first : first + len(part)] = stored
    return True


def _read_array(path: Path, rows: np.ndarray) -> torch.Tensor:
    # Mapped anew for every batch: pages of a map that stays open would be counted as memory of the method.
    mapped = np.load(path, mmap_mode="r")
    return torch.from_numpy(_unit(np.array(mapped[as_slice(rows)])))


def _unit(values: np.ndarray) -> np.ndarray:
    """Stored values → float32 in [0, 1], with the same rounding as `Stack.images`."""
    return values.astype(np.float32) / np.float32(255) if values.dtype == np.uint8 else values
