"""Decode every image of a source once, place it on the canvas and store it: in this process, or by workers in shards.

In a folder the pass can be interrupted at any time: its position is saved regularly, and the next pass resumes there.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from congeal.errors import CongealError
from congeal.execution import Result, RetryShard, StoredArray, divide_images, has_workers, key_of, map_shards
from congeal.execution.threads import map_ordered, usable_cores
from congeal.files import create_npy, is_plain, make_folders
from congeal.images.canvas import place, put_on_canvas
from congeal.images.intensity import AlignOn, Ranges, range_name, select_channels
from congeal.images.sources.base import ImageSource
from congeal.images.store import (
    PER_IMAGE,
    ShardedRows,
    Size,
    Store,
    empty_store,
    find_store,
    read_description,
    write_description,
)
from congeal.memmap import PageTracker
from congeal.progress import Progress

STAGE = "reading images"
# The file that describes an interrupted pass.
UNFINISHED = "unfinished.npz"
# Size up to which pixels without a folder are kept in memory; beyond that in a temporary file.
MAX_IN_MEMORY_BYTES = 256 << 20
# Seconds between two saved positions of a pass.
SAVE_INTERVAL_S = 20.0


class MixedImages(Exception):
    """An image differs from the sampled headers: in its number of channels, or else in its dtype."""

    def __init__(self, channels: bool) -> None:
        self.channels = channels


@dataclass(frozen=True)
class DecodeOptions:
    """How and where images are stored.

    size: of the canvas. dtypes: those that occur in the source; 8-bit images are stored with 8 bits. ranges: black and
    white of dtypes known from a fitted set; other dtypes get those of this set. image_values: pixel values of a typical
    image. folder: None keeps the store in memory. fingerprint: of the source, if known.
    """

    size: Size
    align_on: AlignOn
    dtypes: frozenset[np.dtype]
    ranges: Ranges
    image_values: float
    folder: Path | None = None
    fingerprint: str | None = None
    quiet: bool = True

    @property
    def eight_bit(self) -> bool:
        """Whether all images have 8 bits."""
        return self.dtypes == {np.dtype(np.uint8)}

    def key(self, source: ImageSource) -> str:
        """Identifies the images and how they are stored."""
        about = f"{self.fingerprint or source.fingerprint()} {self.size} {self.align_on} {sorted(self.ranges.items())}"
        return hashlib.sha256(about.encode()).hexdigest()


class DecodedImage(NamedTuple):
    """Pixels (C, h, w) and mask (h, w) on the canvas; size, dtype and extreme values of the original."""

    pixels: np.ndarray
    mask: np.ndarray | None
    size: Size
    dtype: np.dtype
    low: float
    high: float


def fill_store(source: ImageSource, options: DecodeOptions) -> tuple[Store, AlignOn]:
    """Decode everything, or open the complete or interrupted store of the same images in the folder.

    If the sampled headers missed an image of another kind, the pass starts again with a store for every kind: grey for
    images with different numbers of channels, floats for different dtypes. Workers do not decode images that are
    reoriented, because they would open them in the orientation of their files.
    """
    folder = options.folder
    by_workers = has_workers() and folder is not None and source.orientation is None
    while True:
        key = "" if folder is None else options.key(source)
        found = None if folder is None else find_store(folder, key)
        if found is not None:
            return found, options.align_on
        try:
            store = (_fill_by_shards if by_workers else _fill_here)(source, options, key)
        except MixedImages as mixed:
            if mixed.channels:
                options = replace(options, align_on="grey" if options.align_on is None else options.align_on)
            else:
                options = replace(options, dtypes=frozenset())
            continue
        store.set_ranges(options.ranges)
        if folder is not None and len(store.pixels):
            store.save(folder, key)
            (folder / UNFINISHED).unlink(missing_ok=True)
        return store, options.align_on


def _fill_here(source: ImageSource, options: DecodeOptions, key: str) -> Store:
    n = len(source)
    filler = StoreFiller(n, options.size, options.eight_bit, options.folder, key)
    first = filler.resume()
    decode = partial(decode_at, source, options.size, options.align_on)
    images = map_ordered(decode, range(first, n), usable_cores())
    with Progress(n, STAGE, quiet=options.quiet, done=first) as progress, closing(images):
        for i, image in enumerate(images, start=first):
            filler.add(i, image)
            filler.save_position(i + 1)
            progress.update()
    return filler.store or empty_store(n, filler.reasons)


class StoreFiller:
    """Collects n decoded images in a store: in memory, or in a folder where an interrupted pass can be resumed."""

    def __init__(self, n: int, size: Size, eight_bit: bool, folder: Path | None = None, key: str = "") -> None:
        self.n, self.size, self.eight_bit, self.folder, self.key = n, size, eight_bit, folder, key
        self.store: Store | None = None
        self.reasons: dict[int, str] = {}
        self.unfinished = None if folder is None else folder / UNFINISHED
        self._saved = time.monotonic()

    def resume(self) -> int:
        """Continue an interrupted pass over the same images; returns its position."""
        if self.unfinished is None or not is_plain(self.unfinished):
            return 0
        found = read_description(self.unfinished, self.key, mode="r+")
        if found is None or len(found[0].sizes) != self.n:
            return 0
        self.store, about = found
        self.reasons, self.eight_bit = self.store.reasons, self.store.pixels.dtype == np.uint8
        return int(about["position"])

    def save_position(self, position: int) -> None:
        """Note from time to time, in the folder, that the images before this position are stored."""
        if self.unfinished is None or self.store is None or time.monotonic() - self._saved < SAVE_INTERVAL_S:
            return
        self.store.flush()
        write_description(self.unfinished, self.store, {"key": self.key, "position": position})
        self._saved = time.monotonic()

    def add(self, i: int, image: DecodedImage | str) -> None:
        """Store image i, or the reason why it cannot be read."""
        if isinstance(image, str):
            self.reasons[i] = image
            return
        store = self.store = self.store or self._new_store(image)
        if image.pixels.shape != store.pixels.shape[1:] or (self.eight_bit and image.dtype != np.uint8):
            if self.unfinished is not None:
                self.unfinished.unlink(missing_ok=True)
            raise MixedImages(channels=image.pixels.shape != store.pixels.shape[1:])
        assert isinstance(store.pixels, np.ndarray)
        store.pixels[i] = np.rint(image.pixels) if self.eight_bit else image.pixels
        store.pages.touched(store.pixels[i].nbytes)
        if image.mask is not None:
            if store.masks is None:
                store.masks = self._new_masks()
                store.pages.add(store.masks)
            assert isinstance(store.masks, np.ndarray)
            store.masks[i] = np.rint(image.mask * 255)
        store.sizes[i], store.black[i], store.white[i] = image.size, image.low, image.high
        store.kinds[i] = range_name(image.dtype)
        store.blank = store.blank and image.high <= image.low

    def _new_store(self, image: DecodedImage) -> Store:
        shape, dtype = (self.n, *image.pixels.shape), np.dtype(np.uint8 if self.eight_bit else np.float32)
        temporary = None
        if self.folder is None and math.prod(shape) * dtype.itemsize > MAX_IN_MEMORY_BYTES:
            temporary = tempfile.TemporaryDirectory(prefix="congeal-")
            self.folder = Path(temporary.name)
        pixels = np.zeros(shape, dtype) if self.folder is None else create_npy(self.folder / "stack.npy", shape, dtype)
        return replace(empty_store(self.n), pixels=pixels, reasons=self.reasons, temporary=temporary)

    def _new_masks(self) -> np.ndarray:
        shape = (self.n, *self.size)
        if self.folder is None:
            return np.full(shape, 255, np.uint8)
        masks = create_npy(self.folder / "masks.npy", shape, np.dtype(np.uint8))
        pages, step = PageTracker(masks), max(1, (1 << 22) // math.prod(self.size))
        for start in range(0, self.n, step):
            masks[start : start + step] = 255
            pages.touched(masks[start : start + step].nbytes)
        return masks


def decode_at(source: ImageSource, size: Size, align_on: AlignOn, i: int) -> DecodedImage | str:
    """Image i on a canvas, or the reason why it cannot be used: unreadable, or without a channel that others have."""
    try:
        image = source.read(i)
        pixels = select_channels(image.pixels, align_on)
    except CongealError as error:
        return str(error)
    own = (pixels.shape[0], pixels.shape[1])
    values, mask = put_on_canvas(pixels, size, place(own, size), image.mask)
    return DecodedImage(values, mask, own, image.pixels.dtype, float(pixels.min()), float(pixels.max()))


@dataclass
class PixelsOnDemand:
    """Pixels (N, C, h, w) of a store that are decoded when they are indexed, and not kept."""

    source: ImageSource
    size: Size
    align_on: AlignOn
    dtype: np.dtype

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        positions = range(len(self.source))[rows] if isinstance(rows, slice) else rows.tolist()
        return np.stack([self._row(i) for i in positions])

    def _row(self, i: int) -> np.ndarray:
        image = decode_at(self.source, self.size, self.align_on, i)
        if isinstance(image, str):
            raise CongealError(f"{self.source.id(i)} cannot be read any more ({image}): run the same command again")
        return (np.rint(image.pixels) if self.dtype == np.uint8 else image.pixels).astype(self.dtype, copy=False)


# ---- workers


@dataclass
class DecodeTask:
    """The work of a task: decode a shard of a source and return its store."""

    source: ImageSource
    size: Size
    align_on: AlignOn
    eight_bit: bool

    large: ClassVar[tuple[str, ...]] = ("pixels", "masks")

    def __call__(self, rows: tuple[int, int]) -> dict[str, np.ndarray]:
        first, stop = rows
        filler, mixed = StoreFiller(stop - first, self.size, self.eight_bit), ""
        try:
            for k in range(stop - first):
                filler.add(k, decode_at(self.source, self.size, self.align_on, first + k))
        except MixedImages as error:
            mixed = "channels" if error.channels else "dtype"
        reasons = {first + k: reason for k, reason in filler.reasons.items()}
        store = filler.store or empty_store(stop - first)
        facts = {"reasons": reasons, "mixed": mixed, "blank": store.blank}
        facts |= {"shape": store.pixels.shape[1:] or None, "masks": store.masks is not None}
        result = {"facts": np.array(json.dumps(facts)), **{name: getattr(store, name) for name in PER_IMAGE}}
        if filler.store is None:
            raise RetryShard(f"not one image could be read: {reasons[first]}", result)
        if not mixed:
            result["pixels"] = np.asarray(store.pixels)
            if store.masks is not None:
                result["masks"] = np.asarray(store.masks)
        return result


def _fill_by_shards(source: ImageSource, options: DecodeOptions, key: str) -> Store:
    """The same rows decoded by workers, in one file per shard."""
    assert options.folder is not None
    make_folders(options.folder)
    bounds = divide_images(len(source), options.image_values)
    task = DecodeTask(source, options.size, options.align_on, options.eight_bit)
    counts = [stop - first for first, stop in bounds]
    done = list(map_shards(task, bounds, counts, stage=STAGE, key=lambda: key_of(key, options.eight_bit)))
    facts = [json.loads(str(one["facts"])) for one in done]
    shapes = {tuple(one["shape"]) for one in facts if one["shape"]}
    if len(shapes) > 1 or any(one["mixed"] for one in facts):
        raise MixedImages(channels=len(shapes) > 1 or any(one["mixed"] == "channels" for one in facts))
    reasons = {int(i): reason for about in facts for i, reason in about["reasons"].items()}
    if not shapes:
        return empty_store(len(source), reasons)
    sizes, black, white, kinds = (np.concatenate([one[part] for one in done]) for part in PER_IMAGE)
    edges = np.array([0, *(stop for _, stop in bounds)])

    dtype = np.dtype(np.uint8 if options.eight_bit else np.float32)
    pixels = _sharded_rows(done, "pixels", edges, shapes.pop(), dtype)
    masks = None
    if any(one["masks"] for one in facts):
        masks = _sharded_rows(done, "masks", edges, options.size, np.dtype(np.uint8), fill=255)
    blank = all(one["blank"] for one in facts)
    return Store(pixels, masks, sizes, black, white, kinds, reasons, blank)


def _sharded_rows(
    results: list[Result], part: str, edges: np.ndarray, shape: tuple[int, ...], dtype: np.dtype, fill: int = 0
) -> ShardedRows:
    """The large arrays of all shards as one; shards without any have the value `fill`."""
    stored: list[StoredArray | None] = [result.get(part) for result in results]
    storage = next(one.storage for one in stored if one is not None)
    return ShardedRows(storage, [None if one is None else one.name for one in stored], edges, shape, dtype, fill)
