"""Decode every image of a source once, place it on the canvas and store it: in this process, or by workers in shards.

In a folder the pass can be interrupted at any time: its position is saved regularly, and the next pass resumes there.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple, cast

import numpy as np

from congeal.errors import CongealError
from congeal.execution import Result, RetryShard, StoredArray, divide_images, has_workers, key_of, map_shards
from congeal.execution.threads import map_ordered, usable_cores
from congeal.files import create_npy, is_plain, make_folders
from congeal.images.canvas import place, put_on_canvas
from congeal.images.intensity import AlignOn, Ranges, range_name, select_channels
from congeal.images.sources.base import ImageSource, UnreadableImage
from congeal.images.store import (
    UNREAD,
    ShardedRows,
    Size,
    Store,
    StorePlace,
    find_store,
    read_description,
    write_description,
)
from congeal.memmap import PageTracker
from congeal.progress import Progress
from congeal.rows import evenly_spaced_rows

STAGE = "reading images"
# The file that describes an interrupted pass.
UNFINISHED = "unfinished.npz"
# Size up to which pixels without a folder are kept in memory; beyond that in a temporary file.
MAX_IN_MEMORY_BYTES = 256 << 20
# Seconds between two saved positions of a pass.
SAVE_INTERVAL_S = 20.0
# Headers from which the size of a typical image is estimated.
PROBED_IMAGES = 64


class MixedImages(Exception):
    """An image differs from the sampled headers: in its number of channels, or else in its dtype."""

    def __init__(self, channels: bool) -> None:
        self.channels = channels


@dataclass(frozen=True)
class DecodeOptions:
    """How images are stored.

    size: of the canvas. dtypes: those that occur in the source; 8-bit images are stored with 8 bits. ranges: black and
    white of dtypes known from a fitted set; other dtypes get those of this set. larger: longer sides and sizes of
    larger copies that will be requested: they are made in the same pass, so that every image is decoded once.
    """

    size: Size
    align_on: AlignOn
    dtypes: frozenset[np.dtype]
    place: StorePlace
    ranges: Ranges
    quiet: bool = True
    larger: Mapping[int, Size] = field(default_factory=dict)

    @property
    def eight_bit(self) -> bool:
        """Whether all images have 8 bits."""
        return self.dtypes == {np.dtype(np.uint8)}


class _Decoded(NamedTuple):
    pixels: np.ndarray
    mask: np.ndarray | None
    size: Size
    dtype: np.dtype
    low: float
    high: float


def is_distributed(source: ImageSource, place: StorePlace) -> bool:
    """Whether workers decode the images: into a folder, and not if they are reoriented, because workers would open
    them in the orientation of their files."""
    return has_workers() and place.folder is not None and source.orientation is None


def fill_store(source: ImageSource, options: DecodeOptions) -> tuple[Store, AlignOn]:
    """Decode everything, or open the complete or interrupted store of the same images in the folder.

    If the sampled headers missed an image of another kind, the pass starts again with a store for every kind: grey for
    images with different numbers of channels, floats for different dtypes.
    """
    while True:
        try:
            fill = _fill_by_shards if is_distributed(source, options.place) else _fill_here
            return fill(source, options), options.align_on
        except MixedImages as mixed:
            if mixed.channels:
                options = replace(options, align_on="grey" if options.align_on is None else options.align_on)
            else:
                options = replace(options, dtypes=frozenset())


def _fill_here(source: ImageSource, options: DecodeOptions) -> Store:
    folder, key, n = options.place.folder, "", len(source)
    if folder is not None:
        key = options.place.key(source, options.size, options.align_on, options.ranges)
        found = find_store(folder, key)
        if found is not None:
            return found
    filler = StoreFiller(n, options.size, options.eight_bit, folder, key)
    first = filler.resume()
    larger = {} if folder is None or first else options.larger  # an interrupted pass has not seen all images
    others = [
        StoreFiller(n, size, filler.eight_bit, options.place.larger(side).folder) for side, size in larger.items()
    ]
    decode = partial(decode_at, source, (options.size, *larger.values()), options.align_on)
    images = map_ordered(decode, range(first, n), usable_cores())
    with Progress(n, STAGE, quiet=options.quiet, done=first) as progress, closing(images):
        for i, decoded in enumerate(images, start=first):
            for one, of_size in zip((filler, *others), decoded, strict=True):
                one.add(i, of_size)
            filler.save_position(i + 1)
            progress.update()
    store = filler.finish(options.ranges)
    if filler.store is None:
        return store
    if folder is not None:
        store.save(folder, key)
        (folder / UNFINISHED).unlink(missing_ok=True)
    for (side, size), one in zip(larger.items(), others, strict=True):
        place = options.place.larger(side)
        if one.store is not None and place.folder is not None:
            one.finish(store.ranges).save(place.folder, place.key(source, size, options.align_on, store.ranges))
    return store


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
        self.store.reasons = self.reasons
        write_description(self.unfinished, self.store, {"key": self.key, "position": position})
        self._saved = time.monotonic()

    def add(self, i: int, image: _Decoded | str) -> None:
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
                store.masks = masks = _full_masks(self.folder, self.n, self.size)
                store.pages.add(masks)
            assert isinstance(store.masks, np.ndarray)
            store.masks[i] = np.rint(image.mask * 255)
        store.sizes[i], store.black[i], store.white[i] = image.size, image.low, image.high
        name = range_name(image.dtype)
        if name not in store.names:
            store.names.append(name)
        store.kinds[i] = store.names.index(name)
        store.blank = store.blank and image.high <= image.low

    def finish(self, ranges: Ranges) -> Store:
        """The store after the last image."""
        if self.store is None:
            return Store.without_images(self.n, self.reasons)
        self.store.reasons = self.reasons
        self.store.set_ranges(ranges)
        return self.store

    def _new_store(self, image: _Decoded) -> Store:
        n, shape = self.n, (self.n, *image.pixels.shape)
        dtype = np.dtype(np.uint8 if self.eight_bit else np.float32)
        temporary = None
        if self.folder is None and int(np.prod(shape)) * dtype.itemsize > MAX_IN_MEMORY_BYTES:
            temporary = tempfile.TemporaryDirectory(prefix="congeal-")
            self.folder = Path(temporary.name)
        pixels = np.zeros(shape, dtype) if self.folder is None else create_npy(self.folder / "stack.npy", shape, dtype)
        black, white, kinds = np.zeros(n, np.float32), np.ones(n, np.float32), np.full(n, UNREAD, np.uint8)
        return Store(pixels, None, np.zeros((n, 2), np.int32), black, white, kinds, temporary=temporary)


def _full_masks(folder: Path | None, n: int, size: Size) -> np.ndarray:
    shape, dtype = (n, *size), np.dtype(np.uint8)
    masks = np.empty(shape, dtype) if folder is None else create_npy(folder / "masks.npy", shape, dtype)
    pages, step = PageTracker(masks), max(1, (1 << 22) // (size[0] * size[1]))
    for start in range(0, n, step):
        masks[start : start + step] = 255
        pages.touched(masks[start : start + step].nbytes)
    return masks


def decode_at(source: ImageSource, sizes: Sequence[Size], align_on: AlignOn, i: int) -> list[_Decoded | str]:
    """Image i on canvases of these sizes, or the reason why it cannot be read."""
    try:
        image = source.read(i)
    except UnreadableImage as error:
        return [str(error)] * len(sizes)
    try:
        pixels = select_channels(image.pixels, align_on)
    except CongealError as error:  # it lacks a channel that others have
        return [str(error)] * len(sizes)
    own, low, high = (pixels.shape[0], pixels.shape[1]), float(pixels.min()), float(pixels.max())
    placed = (put_on_canvas(pixels, size, place(own, size), image.mask) for size in sizes)
    return [_Decoded(values, mask, own, image.pixels.dtype, low, high) for values, mask in placed]


class _PixelsOnDemand:
    """Pixels (N, C, h, w) of a store that are decoded when they are indexed."""

    def __init__(self, source: ImageSource, size: Size, align_on: AlignOn, dtype: np.dtype) -> None:
        self._source, self._size, self._align_on, self._dtype = source, size, align_on, dtype

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        positions = range(len(self._source))[rows] if isinstance(rows, slice) else rows.tolist()
        return np.stack([self._row(i) for i in positions])

    def _row(self, i: int) -> np.ndarray:
        try:
            image = self._source.read(i)
            pixels = select_channels(image.pixels, self._align_on)
        except CongealError as error:
            raise CongealError(
                f"{self._source.id(i)} cannot be read any more ({error}): run the same command again"
            ) from error
        size = (pixels.shape[0], pixels.shape[1])
        if size == self._size and pixels.dtype == self._dtype:
            return np.moveaxis(pixels, -1, 0)
        values, _ = put_on_canvas(pixels, self._size, place(size, self._size), image.mask)
        return (np.rint(values) if self._dtype == np.uint8 else values).astype(self._dtype, copy=False)


def on_demand_store(known: Store, source: ImageSource, size: Size, align_on: AlignOn) -> Store:
    """The images of a store without masks in another size, decoded on demand and not kept."""
    pixels = _PixelsOnDemand(source, size, align_on, known.pixels.dtype)
    facts = (known.sizes, known.black, known.white, known.kinds, known.names, known.reasons, known.blank, known.ranges)
    return Store(cast("np.ndarray", pixels), None, *facts)


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
                filler.add(k, decode_at(self.source, (self.size,), self.align_on, first + k)[0])
        except MixedImages as error:
            mixed = "channels" if error.channels else "dtype"
        reasons = {first + k: reason for k, reason in filler.reasons.items()}
        store = filler.store
        if store is None:
            n = stop - first
            kinds, ones = np.full(n, UNREAD, np.uint8), np.ones(n, np.float32)
            store = Store(np.empty(0), None, np.zeros((n, 2), np.int32), 0 * ones, ones, kinds)
        facts = {"reasons": reasons, "names": store.names, "mixed": mixed, "blank": store.blank}
        facts |= {"shape": store.pixels.shape[1:] or None, "masks": store.masks is not None}
        result = {"facts": np.array(json.dumps(facts))}
        result |= {"sizes": store.sizes, "black": store.black, "white": store.white, "kinds": store.kinds}
        if filler.store is None:
            raise RetryShard(f"not one image could be read: {reasons[first]}", result)
        if not mixed:
            result["pixels"] = np.asarray(store.pixels)
            if store.masks is not None:
                result["masks"] = np.asarray(store.masks)
        return result


def _fill_by_shards(source: ImageSource, options: DecodeOptions) -> Store:
    """The same rows decoded by workers, in one file per shard."""
    folder = options.place.folder
    assert folder is not None
    make_folders(folder)
    key = options.place.key(source, options.size, options.align_on, options.ranges)
    found = find_store(folder, key)
    if found is not None:
        return found
    bounds = divide_images(len(source), _typical_values(source))
    task = DecodeTask(source, options.size, options.align_on, options.eight_bit)
    counts = [stop - first for first, stop in bounds]
    done = list(map_shards(task, bounds, counts, stage=STAGE, key=lambda: key_of(key, options.eight_bit)))
    facts = [json.loads(str(one["facts"])) for one in done]
    shapes = {tuple(one["shape"]) for one in facts if one["shape"]}
    if len(shapes) > 1 or any(one["mixed"] for one in facts):
        raise MixedImages(channels=len(shapes) > 1 or any(one["mixed"] == "channels" for one in facts))
    reasons = {int(i): reason for about in facts for i, reason in about["reasons"].items()}
    if not shapes:
        return Store.without_images(len(source), reasons)
    sizes, black, white = (np.concatenate([one[part] for one in done]) for part in ("sizes", "black", "white"))
    names, kinds = _merge_kinds([one["kinds"] for one in done], [about["names"] for about in facts])
    edges = np.array([0, *(stop for _, stop in bounds)])

    dtype = np.dtype(np.uint8 if options.eight_bit else np.float32)
    pixels = _sharded_rows(done, "pixels", edges, shapes.pop(), dtype)
    masks = None
    if any(one["masks"] for one in facts):
        masks = _sharded_rows(done, "masks", edges, options.size, np.dtype(np.uint8), fill=255)
    blank = all(one["blank"] for one in facts)
    store = Store(pixels, masks, sizes, black, white, kinds, names, reasons, blank)
    store.set_ranges(options.ranges)
    store.save(folder, key)
    return store


def _merge_kinds(kinds: list[np.ndarray], names: list[list[str]]) -> tuple[list[str], np.ndarray]:
    """The dtypes of all shards, and the position of each image's dtype among them."""
    merged, positions = list[str](), []
    for own_kinds, own_names in zip(kinds, names, strict=True):
        merged += [dtype for dtype in own_names if dtype not in merged]
        lookup = np.full(256, UNREAD, np.uint8)
        lookup[: len(own_names)] = [merged.index(dtype) for dtype in own_names]
        positions.append(lookup[own_kinds])
    return merged, np.concatenate(positions)


def _sharded_rows(
    results: list[Result], part: str, edges: np.ndarray, shape: tuple[int, ...], dtype: np.dtype, fill: int = 0
) -> ShardedRows:
    """The large arrays of all shards as one; shards without any have the value `fill`."""
    stored: list[StoredArray | None] = [result.get(part) for result in results]
    storage = next(one.storage for one in stored if one is not None)
    return ShardedRows(storage, [None if one is None else one.name for one in stored], edges, shape, dtype, fill)


def _typical_values(source: ImageSource) -> float:
    """Median number of pixel values of an image, from some of the headers."""
    if source.shape is not None:
        return float(np.prod(source.shape))
    known = []
    for i in evenly_spaced_rows(len(source), PROBED_IMAGES):
        try:
            header = source.probe(int(i))
        except UnreadableImage:
            continue
        known.append(header.height * header.width * header.channels)
    return float(np.median(known)) if known else 1.0
