"""One pass over a source: every image decoded once, put on the canvas, kept in memory or in a memory-mapped file."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from congeal.images.canvas import place, render
from congeal.images.disk import allocate, writing
from congeal.images.intensity import AlignOn, Ranges, intensity_range, range_name, select_channels
from congeal.images.source import ImageSource, UnreadableImage
from congeal.progress import Progress

Size = tuple[int, int]
_IN_MEMORY = 256 << 20
_VERSION = 2


class AnotherKind(Exception):
    """An image turned up that the sampled headers did not announce: other channels, or else another dtype."""

    def __init__(self, channels: bool) -> None:
        self.channels = channels


class _Rendered(NamedTuple):
    pixels: np.ndarray
    mask: np.ndarray | None
    size: Size
    dtype: np.dtype
    low: float
    high: float


@dataclass
class Store:
    """Rows are positions in the source: pixels (N, C, h, w) uint8 or float32, masks (N, h, w) uint8 or None.

    black and white (N,) are the stored values that mean 0 and 1, the same for all images of a dtype (`ranges`); sizes
    (N, 2); reasons say which rows are unusable.
    """

    pixels: np.ndarray
    masks: np.ndarray | None
    sizes: np.ndarray
    black: np.ndarray
    white: np.ndarray
    reasons: dict[int, str]
    blank: bool
    ranges: Ranges = field(default_factory=dict)
    temporary: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False)


def fill_store(
    source: ImageSource,
    size: Size,
    *,
    align_on: AlignOn,
    dtypes: frozenset[np.dtype],
    folder: Path | None,
    ranges: Ranges,
    quiet: bool,
) -> Store:
    """Decode everything, or pick up the finished store of the same images in `folder`.

    `ranges`: black and white of dtypes that are known from a fitted set; other dtypes get those of this set.
    """
    key = ""
    if folder is not None:
        about = f"{_VERSION} {source.fingerprint()} {size} {align_on} {sorted(ranges.items())}"
        key = hashlib.sha256(about.encode()).hexdigest()
        found = _load(folder, key)
        if found is not None:
            return found
    eight_bit = dtypes == {np.dtype(np.uint8)}
    render_one = partial(_render, source, size, align_on)
    store: Store | None = None
    home: Path | None = folder
    temporary = None
    types = np.full(len(source), "", dtype="<U16")
    blank = True
    reasons: dict[int, str] = {}
    with Progress(len(source), "reading images", quiet=quiet) as progress:
        for i, one in _in_threads(render_one, len(source)):
            progress.update()
            if isinstance(one, str):
                reasons[i] = one
                continue
            if store is None:
                shape = (len(source), *one.pixels.shape)
                dtype = np.dtype(np.uint8 if eight_bit else np.float32)
                if home is None and int(np.prod(shape)) * dtype.itemsize > _IN_MEMORY:
                    temporary = tempfile.TemporaryDirectory(prefix="congeal-")
                    home = Path(temporary.name)
                store = _empty(home, shape, dtype)
            if one.pixels.shape != store.pixels.shape[1:] or (eight_bit and one.dtype != np.uint8):
                raise AnotherKind(channels=one.pixels.shape != store.pixels.shape[1:])
            store.pixels[i] = np.rint(one.pixels) if eight_bit else one.pixels
            if one.mask is not None:
                if store.masks is None:
                    store.masks = _full_masks(home, len(source), size)
                store.masks[i] = np.rint(one.mask * 255)
            store.sizes[i], store.black[i], store.white[i] = one.size, one.low, one.high
            types[i] = range_name(one.dtype)
            blank = blank and one.high <= one.low
    if store is None:
        return Store(np.empty((0,)), None, np.zeros((len(source), 2), int), np.empty(0), np.empty(0), reasons, True)
    store.reasons, store.blank, store.temporary = reasons, blank, temporary
    _set_ranges(store, types, ranges)
    if folder is not None:
        _finish(store, folder, key)
    return store


def _render(source: ImageSource, size: Size, align_on: AlignOn, i: int) -> _Rendered | str:
    try:
        image = source.read(i)
    except UnreadableImage as error:
        return str(error)
    pixels = select_channels(image.pixels, align_on)
    height, width = pixels.shape[:2]
    values, mask = render(pixels, size, place((height, width), size), image.mask)
    return _Rendered(values, mask, (height, width), image.pixels.dtype, float(pixels.min()), float(pixels.max()))


def _in_threads(work: partial[_Rendered | str], n: int) -> Iterator[tuple[int, _Rendered | str]]:
    """Results in order; decoders release the interpreter lock, so threads help, and few images are held at once."""
    workers = min(8, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool:
        for start in range(0, n, 16 * workers):
            positions = range(start, min(n, start + 16 * workers))
            yield from zip(positions, pool.map(work, positions), strict=True)


def _empty(home: Path | None, shape: tuple[int, ...], dtype: np.dtype) -> Store:
    pixels = np.zeros(shape, dtype) if home is None else allocate(home / "stack.npy", shape, dtype)
    n = shape[0]
    return Store(pixels, None, np.zeros((n, 2), np.int64), np.zeros(n, np.float32), np.ones(n, np.float32), {}, True)


def _full_masks(home: Path | None, n: int, size: Size) -> np.ndarray:
    masks = (
        np.empty((n, *size), np.uint8) if home is None else allocate(home / "masks.npy", (n, *size), np.dtype(np.uint8))
    )
    masks[:] = 255
    return masks


def _set_ranges(store: Store, types: np.ndarray, known: Ranges) -> None:
    """Replace each image's own smallest and largest value by black and white of all images of its dtype."""
    ranges: dict[str, tuple[float, float]] = {}
    for name in np.unique(types[types != ""]).tolist():
        rows = types == name
        low, high = float(store.black[rows].min()), float(store.white[rows].max())
        ranges[name] = known.get(name) or intensity_range(np.dtype(name), low, high)
        store.black[rows], store.white[rows] = ranges[name]
    store.ranges = ranges


def _finish(store: Store, folder: Path, key: str) -> None:
    """The small file that says the large ones are complete; written last."""
    for array in (store.pixels, store.masks):
        if isinstance(array, np.memmap):
            array.flush()
    partial_file = folder / ".stack.npz.partial"
    facts = {"key": key, "reasons": store.reasons, "blank": store.blank, "ranges": store.ranges}
    about = json.dumps({**facts, "masks": store.masks is not None})
    with writing(folder / "stack.npz"):
        with partial_file.open("wb") as file:
            np.savez(file, about=about, sizes=store.sizes, black=store.black, white=store.white)
        os.replace(partial_file, folder / "stack.npz")


def _load(folder: Path, key: str) -> Store | None:
    """The finished store in the folder if it is of these images; a stale one is cleared away."""
    marker = folder / "stack.npz"
    if not marker.exists():
        return None
    with np.load(marker, allow_pickle=False) as saved:
        about = json.loads(str(saved["about"]))
        if about["key"] == key and (folder / "stack.npy").exists():
            masks = np.load(folder / "masks.npy", mmap_mode="r") if about["masks"] else None
            reasons = {int(i): reason for i, reason in about["reasons"].items()}
            pixels = np.load(folder / "stack.npy", mmap_mode="r")
            ranges = {name: (low, high) for name, (low, high) in about["ranges"].items()}
            black, white = saved["black"], saved["white"]
            return Store(pixels, masks, saved["sizes"], black, white, reasons, about["blank"], ranges)
    marker.unlink()
    return None
