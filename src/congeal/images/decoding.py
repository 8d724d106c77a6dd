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
from congeal.files import create_npy, make_folders
from congeal.images.canvas import place, put_on_canvas
from congeal.images.intensity import (
    CHUNK_VALUES,
    NOT_FINITE,
    AlignOn,
    finite,
    intensity_range,
    range_name,
    select_channels,
)
from congeal.images.plan import Plan
from congeal.images.sources.base import ImageSource
from congeal.images.store import (
    PER_IMAGE,
    ShardedRows,
    Size,
    SourceRows,
    Store,
    empty_store,
    find_store,
    read_description,
    write_description,
)
from congeal.memmap import PageTracker
from congeal.progress import Progress
from congeal.rows import row_slices

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


def open_in_place(source: ImageSource, shape: tuple[int, int, int], dtype: np.dtype, plan: Plan, quiet: bool) -> Store:
    """The store of a source whose images have the size of the stack: its pixels stay in the source.

    All images are read once for the range of their values. Where the range is known in advance, the scan ends at the
    first chunk with an image that is not blank.
    """
    select_channels(np.empty((0, *shape), dtype), plan.align_on)  # which refuses a channel that does not exist
    align_on = None if plan.align_on == "grey" else plan.align_on
    n, known = len(source), dtype in (np.dtype(np.uint8), np.dtype(bool))
    reasons, low, high, blank = dict(source.unreadable), np.inf, -np.inf, True
    with Progress(n, "measuring brightness", quiet=quiet) as progress:
        for part in row_slices(n, max(1, CHUNK_VALUES // math.prod(shape))):
            progress.update(part.stop - part.start)
            rows = np.array([i for i in range(part.start, part.stop) if i not in reasons], dtype=np.int64)
            values = source.batch(rows) if len(rows) else np.empty((0, *shape), dtype)
            if not known and dtype.kind == "f":
                usable = finite(values.reshape(len(rows), -1), axis=1)
                reasons |= {int(i): NOT_FINITE for i in rows[~usable]}
                values = values[usable]
            if not len(values):
                continue
            values = select_channels(values, align_on).reshape(len(values), -1)
            smallest, largest = values.min(1), values.max(1)
            low, high = min(low, float(smallest.min())), max(high, float(largest.max()))
            blank = blank and bool((smallest == largest).all())
            if known and not blank:
                break
    name = range_name(dtype)
    ends = plan.ranges.get(name) or intensity_range(dtype, low, high)
    black, white = (np.broadcast_to(np.float64(end), n) for end in ends)
    sizes, kinds = np.broadcast_to(np.array(shape[:2], np.int32), (n, 2)), np.empty(0, "U8")
    masks = SourceRows(source, "masks") if source.has_masks else None
    pixels = SourceRows(source, "pixels", plan.align_on)
    return Store(pixels, masks, sizes, black, white, kinds, reasons, blank, {name: ends})


class DecodedImage(NamedTuple):
    """Pixels (C, h, w) and mask (h, w) on the canvas; size, dtype and extreme values of the original."""

    pixels: np.ndarray
    mask: np.ndarray | None
    size: Size
    dtype: np.dtype
    low: float
    high: float


def fill_store(
    source: ImageSource, plan: Plan, folder: Path | None, fingerprint: str | None, *, quiet: bool
) -> tuple[Store, Plan]:
    """Decode everything, or open the complete or interrupted store of the same images in the folder.

    If the sampled headers missed an image of another kind, the pass starts again with a store for every kind: grey for
    images with different numbers of channels, floats for different dtypes. Workers do not decode images that are
    reoriented, because they would open them in the orientation of their files.
    """
    by_workers = has_workers() and folder is not None and source.orientation is None
    while True:
        key = ""
        if folder is not None:
            ranges = sorted(plan.ranges.items())
            about = f"{fingerprint or source.fingerprint()} {plan.size} {plan.align_on} {ranges}"
            key = hashlib.sha256(about.encode()).hexdigest()
            found = find_store(folder, key)
            if found is not None:
                return found, plan
        try:
            if by_workers:
                make_folders(folder)
                store = _fill_by_shards(source, plan, key)
            else:
                store = _fill_here(source, plan, folder, key, quiet)
        except MixedImages as mixed:
            plan = replace(plan, align_on="grey") if mixed.channels else replace(plan, eight_bit=False)
            continue
        store.set_ranges(plan.ranges)
        if folder is not None and len(store.pixels):
            store.save(folder, key)
            (folder / UNFINISHED).unlink(missing_ok=True)
        return store, plan


def _fill_here(source: ImageSource, plan: Plan, folder: Path | None, key: str, quiet: bool) -> Store:
    n = len(source)
    filler = StoreFiller(n, plan.size, plan.eight_bit, folder, key)
    first = filler.resume()
    decode = partial(decode_at, source, plan.size, plan.align_on)
    images = map_ordered(decode, range(first, n), usable_cores())
    with Progress(n, STAGE, quiet=quiet, done=first) as progress, closing(images):
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
        found = None if self.unfinished is None else read_description(self.unfinished, self.key, mode="r+")
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


def _fill_by_shards(source: ImageSource, plan: Plan, key: str) -> Store:
    """The same rows decoded by workers, in one file per shard."""
    bounds = divide_images(len(source), plan.image_values)
    task = DecodeTask(source, plan.size, plan.align_on, plan.eight_bit)
    counts = [stop - first for first, stop in bounds]
    done = list(map_shards(task, bounds, counts, stage=STAGE, key=lambda: key_of(key, plan.eight_bit)))
    facts = [json.loads(str(one["facts"])) for one in done]
    shapes = {tuple(one["shape"]) for one in facts if one["shape"]}
    if len(shapes) > 1 or any(one["mixed"] for one in facts):
        raise MixedImages(channels=len(shapes) > 1 or any(one["mixed"] == "channels" for one in facts))
    reasons = {int(i): reason for about in facts for i, reason in about["reasons"].items()}
    if not shapes:
        return empty_store(len(source), reasons)
    sizes, black, white, kinds = (np.concatenate([one[part] for one in done]) for part in PER_IMAGE)
    edges = np.array([0, *(stop for _, stop in bounds)])

    dtype = np.dtype(np.uint8 if plan.eight_bit else np.float32)
    pixels = _sharded_rows(done, "pixels", edges, shapes.pop(), dtype)
    masks = None
    if any(one["masks"] for one in facts):
        masks = _sharded_rows(done, "masks", edges, plan.size, np.dtype(np.uint8), fill=255)
    blank = all(one["blank"] for one in facts)
    return Store(pixels, masks, sizes, black, white, kinds, reasons, blank)


def _sharded_rows(
    results: list[Result], part: str, edges: np.ndarray, shape: tuple[int, ...], dtype: np.dtype, fill: int = 0
) -> ShardedRows:
    """The large arrays of all shards as one; shards without any have the value `fill`."""
    stored: list[StoredArray | None] = [result.get(part) for result in results]
    storage = next(one.storage for one in stored if one is not None)
    return ShardedRows(storage, [None if one is None else one.name for one in stored], edges, shape, dtype, fill)
