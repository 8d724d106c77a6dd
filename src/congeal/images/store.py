"""The pixels of a stack: read in place, or decoded once, stored in memory or in files, and found again.

In a folder the pass can be interrupted at any time: its position is saved regularly, and the next pass resumes there.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from congeal.errors import CongealError
from congeal.execution import Result, RetryShard, StoredArray, divide_images, has_workers, key_of, map_shards
from congeal.execution.shared_storage import SharedStorage
from congeal.execution.threads import map_ordered, usable_cores
from congeal.files import DAMAGED, create_npy, is_plain, make_folders, replacing
from congeal.images.canvas import place, put_on_canvas
from congeal.images.intensity import (
    CHUNK_VALUES,
    NOT_FINITE,
    AlignOn,
    Ranges,
    finite,
    intensity_range,
    range_name,
    select_channels,
)
from congeal.images.plan import Plan
from congeal.images.sources.arrays import as_slice
from congeal.images.sources.base import ImageSource, Indices
from congeal.memmap import touch_pages, track_pages
from congeal.progress import Progress
from congeal.rows import row_slices

Size = tuple[int, int]
# The file that marks a store as complete.
MARKER = "stack.npz"
# Arrays of a store with one row per image, in the order of its fields.
PER_IMAGE = ("sizes", "black", "white", "kinds")


class ShardedRows:
    """Rows of several .npy files one after the other, read on demand; behaves like an array.

    storage: where the files are. names: the files, in order; None for one whose rows all have the value `fill`. edges:
    first row of each file, and the number of all rows. shape, dtype: of one row.
    """

    def __init__(
        self,
        storage: SharedStorage,
        names: list[str | None],
        edges: np.ndarray,
        shape: tuple[int, ...],
        dtype: np.dtype,
        fill: int = 0,
    ) -> None:
        self.storage, self.names, self.edges = storage, names, edges
        self.shape, self.dtype, self.fill = (int(edges[-1]), *shape), np.dtype(dtype), fill

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Indices | slice) -> np.ndarray:
        positions = np.arange(len(self))[rows] if isinstance(rows, slice) else np.asarray(rows, dtype=np.int64)
        out = np.full((len(positions), *self.shape[1:]), self.fill, dtype=self.dtype)
        shards = np.searchsorted(self.edges, positions, side="right") - 1
        for shard in np.unique(shards):
            name = self.names[shard]
            if name is not None:
                here = np.flatnonzero(shards == shard)
                file = np.load(self.storage.local(name), mmap_mode="r")  # closed again after this file
                out[here] = file[as_slice(positions[here] - self.edges[shard])]
        return out


@dataclass
class SourceRows:
    """Pixels (N, C, h, w) of a source in the channels that are aligned on, or its masks (N, h, w) as 0 to 255."""

    source: ImageSource
    what: Literal["pixels", "masks"]
    align_on: AlignOn = None

    def __getitem__(self, rows: Indices | slice) -> np.ndarray:
        positions = np.arange(len(self.source))[rows] if isinstance(rows, slice) else rows
        if self.what == "masks":
            return np.rint(255 * self.source.masks(positions))
        return np.moveaxis(select_channels(self.source.batch(positions), self.align_on), -1, 1)


@dataclass
class Store:
    """Rows are positions in the source: pixels (N, C, h, w) uint8 or float32, masks (N, h, w) uint8 or None.

    black and white (N,) are the stored values that mean 0 and 1, the same for all images of a dtype (`ranges`); kinds
    (N,) are the names of the dtypes, "" where unread; sizes (N, 2); reasons say which rows are unusable. `folder` is
    where the store is kept, None if it ends with the process.
    """

    pixels: np.ndarray | ShardedRows | SourceRows
    masks: np.ndarray | ShardedRows | SourceRows | None
    sizes: np.ndarray
    black: np.ndarray
    white: np.ndarray
    kinds: np.ndarray
    reasons: dict[int, str] = field(default_factory=dict)
    blank: bool = True
    ranges: Ranges = field(default_factory=dict)
    folder: Path | None = None
    temporary: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        track_pages(*(array for array in (self.pixels, self.masks) if isinstance(array, np.ndarray)))

    # Other processes receive the names of memory-mapped files, not their contents.

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "temporary": None}
        for name in ("pixels", "masks"):
            if isinstance(state[name], np.memmap):
                state[name] = Path(str(state[name].filename)).resolve()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name in ("pixels", "masks"):
            if isinstance(state[name], Path):
                state[name] = np.load(state[name], mmap_mode="r")
        self.__dict__ = state
        self.__post_init__()

    def flush(self) -> None:
        """Write modified pages to the disk."""
        for array in (self.pixels, self.masks):
            if isinstance(array, np.memmap):
                array.flush()

    def set_ranges(self, known: Ranges) -> None:
        """Replace the smallest and largest value of each image by black and white of all images of its dtype.

        `blank` says whether no image has two values.
        """
        self.blank = not (self.white > self.black)[self.kinds != ""].any()
        ranges: dict[str, tuple[float, float]] = {}
        for name in filter(None, np.unique(self.kinds).tolist()):
            rows = self.kinds == name
            low, high = float(self.black[rows].min()), float(self.white[rows].max())
            ranges[name] = known.get(name) or intensity_range(np.dtype(name), low, high)
            self.black[rows], self.white[rows] = ranges[name]
        self.ranges = ranges

    def save(self, folder: Path, key: str = "") -> None:
        """Mark stack.npy and masks.npy of `folder`, which are the arrays of this store, as complete."""
        self.flush()
        write_description(folder / MARKER, self, {"key": key, "ranges": self.ranges})
        self.folder = folder


def write_description(path: Path, store: Store, about: dict[str, Any]) -> None:
    """The small file beside the large arrays: sizes, ranges and reasons; written when the arrays are on the disk."""
    facts = {"reasons": store.reasons, "blank": store.blank, "masks": store.masks is not None}
    arrays: dict[str, Any] = {name: getattr(store, name) for name in PER_IMAGE}
    with replacing(path) as file:
        np.savez(file, about=json.dumps({**facts, **about}), **arrays)


def read_description(path: Path, key: str, mode: Any) -> tuple[Store, dict[str, Any]] | None:
    """The store that `path` describes, and the description; None if there is none, or a damaged or another one."""
    try:
        return _read_store(path, key, mode) if is_plain(path) else None
    except DAMAGED:
        return None


def _read_store(path: Path, key: str, mode: Any) -> tuple[Store, dict[str, Any]] | None:
    with np.load(path, allow_pickle=False) as saved:
        about = json.loads(str(saved["about"]))
        sizes, black, white, kinds = per_image = [saved[name] for name in PER_IMAGE]
    files = [path.parent / name for name in ("stack.npy", "masks.npy")[: 1 + about["masks"]]]
    if about["key"] != key or not all(map(is_plain, files)):
        return None
    found = [np.load(file, mmap_mode=mode) for file in files]
    if any(len(array) != len(found[0]) for array in per_image):
        return None
    pixels, masks = [*found, None][:2]
    reasons = {int(i): reason for i, reason in about["reasons"].items()}
    ranges = {name: (low, high) for name, (low, high) in about.get("ranges", {}).items()}
    store = Store(pixels, masks, sizes, black, white, kinds, reasons, about["blank"], ranges, path.parent)
    return store, about


def find_store(folder: Path, key: str) -> Store | None:
    """The complete store of a folder if it has this key; the marker of another one is removed."""
    found = read_description(folder / MARKER, key, mode="r")
    if found is None:
        (folder / MARKER).unlink(missing_ok=True)
        return None
    return found[0]


STAGE = "reading images"
# The file that describes an interrupted pass.
UNFINISHED = "unfinished.npz"
# Size up to which pixels without a folder are kept in memory; beyond that in a temporary file. Chosen by judgement: a
# small part of the memory of a common machine.
MAX_IN_MEMORY_BYTES = 256 << 20
# Seconds between two saved positions of a pass, which an interrupted pass loses at most. Chosen by judgement.
SAVE_INTERVAL_S = 20.0


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
    """Pixels (C, h, w) and mask (h, w) on the canvas; size, name of the range and extreme values of the original."""

    pixels: np.ndarray
    mask: np.ndarray | None
    size: Size
    kind: str
    low: float
    high: float


def decode_at(source: ImageSource, plan: Plan, i: int) -> DecodedImage | str:
    """Image i on a canvas, or the reason why it cannot be used: unreadable, or without a channel that others have.

    An image of another kind than the sampled headers is brought to theirs: grey is repeated in all channels, and of
    other dtypes among 8-bit images black becomes 0 and white 255.
    """
    try:
        image = source.read(i)
        pixels = select_channels(image.pixels, plan.align_on)
    except CongealError as error:
        return str(error)
    own = (pixels.shape[0], pixels.shape[1])
    low, high, dtype = float(pixels.min()), float(pixels.max()), image.pixels.dtype
    values, mask = put_on_canvas(pixels, plan.size, place(own, plan.size), image.mask)
    if len(values) != plan.stored_channels:
        grey = select_channels(np.moveaxis(values, 0, -1), "grey")[..., 0]
        values = np.broadcast_to(grey, (plan.stored_channels, *plan.size))
    if plan.eight_bit and dtype != np.uint8:
        black, white = intensity_range(dtype, low, high)
        values = np.clip((values - black) * (255 / (white - black)), 0, 255)
        low, high, dtype = 0.0, 255.0 * (low < high), np.dtype(np.uint8)
    return DecodedImage(values, mask, own, range_name(dtype), low, high)


def fill_store(source: ImageSource, plan: Plan, folder: Path | None, fingerprint: str | None, *, quiet: bool) -> Store:
    """Decode everything, or open the complete or interrupted store of the same images in the folder.

    Workers do not decode images that are reoriented, because they would open them in the orientation of their files.
    """
    if folder is None:
        store = _fill_here(source, plan, None, "", quiet)
        store.set_ranges(plan.ranges)
        return store
    ranges = sorted(plan.ranges.items())
    about = f"{fingerprint or source.fingerprint()} {plan.size} {plan.align_on} {plan.eight_bit} {ranges}"
    key = hashlib.sha256(about.encode()).hexdigest()
    found = find_store(folder, key)
    if found is not None:
        return found
    make_folders(folder)
    if has_workers() and source.orientation is None:
        store = _fill_by_shards(source, plan, key)  # whose results are found again by their key
        store.set_ranges(plan.ranges)
        store.folder = folder
        return store
    store = _fill_here(source, plan, folder, key, quiet)
    store.set_ranges(plan.ranges)
    if len(store.reasons) < len(source):
        store.save(folder, key)
        (folder / UNFINISHED).unlink(missing_ok=True)
    return store


def _fill_here(source: ImageSource, plan: Plan, folder: Path | None, key: str, quiet: bool) -> Store:
    n, unfinished, saved = len(source), None if folder is None else folder / UNFINISHED, time.monotonic()
    found = None if unfinished is None else read_description(unfinished, key, mode="r+")
    store, first = new_store(n, plan, folder), 0
    if found is not None and len(found[0].sizes) == n:
        store, first = found[0], int(found[1]["position"])
    images = map_ordered(partial(decode_at, source, plan), range(first, n), usable_cores())
    with Progress(n, STAGE, quiet=quiet, done=first) as progress, closing(images):
        for i, image in enumerate(images, start=first):
            add_image(store, i, image)
            if unfinished is not None and time.monotonic() - saved >= SAVE_INTERVAL_S:
                store.flush()
                write_description(unfinished, store, {"key": key, "position": i + 1})
                saved = time.monotonic()
            progress.update()
    return store


def new_store(n: int, plan: Plan, folder: Path | None = None) -> Store:
    """The store of n images before any is decoded: in memory, or in files of a folder."""
    shape, dtype = (n, plan.stored_channels, *plan.size), np.dtype(np.uint8 if plan.eight_bit else np.float32)
    temporary = None
    if folder is None and math.prod(shape) * dtype.itemsize > MAX_IN_MEMORY_BYTES:
        temporary = tempfile.TemporaryDirectory(prefix="congeal-")
        folder = Path(temporary.name)
    pixels = np.zeros(shape, dtype) if folder is None else create_npy(folder / "stack.npy", shape, dtype)
    black, white, kinds = np.zeros(n, np.float32), np.ones(n, np.float32), np.zeros(n, "U8")
    sizes = np.zeros((n, 2), np.int32)
    return Store(pixels, None, sizes, black, white, kinds, temporary=temporary)


def add_image(store: Store, i: int, image: DecodedImage | str) -> None:
    """Store image i, or the reason why it cannot be read."""
    if isinstance(image, str):
        store.reasons[i] = image
        return
    assert isinstance(store.pixels, np.ndarray)
    store.pixels[i] = np.rint(image.pixels) if store.pixels.dtype == np.uint8 else image.pixels
    touch_pages(store.pixels[i].nbytes)
    if image.mask is not None:
        if store.masks is None:
            store.masks = _new_masks(store.pixels)
        assert isinstance(store.masks, np.ndarray)
        store.masks[i] = np.rint(image.mask * 255)
    store.sizes[i], store.black[i], store.white[i] = image.size, image.low, image.high
    store.kinds[i] = image.kind


def _new_masks(images: np.ndarray) -> np.ndarray:
    """Masks that are 255 everywhere, in a file beside that of the images if they are in one."""
    n, _, *size = images.shape
    if not isinstance(images, np.memmap):
        return np.full((n, *size), 255, np.uint8)
    masks = create_npy(Path(str(images.filename)).with_name("masks.npy"), (n, *size), np.dtype(np.uint8))
    track_pages(masks)
    for part in row_slices(n, max(1, CHUNK_VALUES // math.prod(size))):
        masks[part] = 255
        touch_pages(masks[part].nbytes)
    return masks


# ---- workers


@dataclass
class DecodeTask:
    """The work of a task: decode a shard of a source and return its store."""

    source: ImageSource
    plan: Plan

    large: ClassVar[tuple[str, ...]] = ("pixels", "masks")

    def __call__(self, rows: tuple[int, int]) -> dict[str, np.ndarray]:
        first, stop = rows
        store = new_store(stop - first, self.plan)
        for i in range(first, stop):
            add_image(store, i - first, decode_at(self.source, self.plan, i))
        result = {name: np.asarray(getattr(store, name)) for name in ("pixels", *PER_IMAGE)}
        result["reasons"] = np.array(json.dumps({first + k: reason for k, reason in store.reasons.items()}))
        if store.masks is not None:
            result["masks"] = np.asarray(store.masks)
        if len(store.reasons) == stop - first:
            raise RetryShard(f"not one image could be read: {store.reasons[0]}", result)
        return result


def _fill_by_shards(source: ImageSource, plan: Plan, key: str) -> Store:
    """The same rows decoded by workers, in one file per shard."""
    bounds = divide_images(len(source), plan.image_values)
    task = DecodeTask(source, replace(plan, initial=None))
    counts = [stop - first for first, stop in bounds]
    done = list(map_shards(task, bounds, counts, stage=STAGE, key=lambda: key_of(key)))
    reasons = {int(i): reason for one in done for i, reason in json.loads(str(one["reasons"])).items()}
    sizes, black, white, kinds = (np.concatenate([one[part] for one in done]) for part in PER_IMAGE)
    edges = np.array([0, *(stop for _, stop in bounds)])
    dtype = np.dtype(np.uint8 if plan.eight_bit else np.float32)
    pixels = _sharded_rows(done, "pixels", edges, (plan.stored_channels, *plan.size), dtype)
    masks = None
    if any("masks" in one for one in done):
        masks = _sharded_rows(done, "masks", edges, plan.size, np.dtype(np.uint8), fill=255)
    return Store(pixels, masks, sizes, black, white, kinds, reasons)


def _sharded_rows(
    results: list[Result], part: str, edges: np.ndarray, shape: tuple[int, ...], dtype: np.dtype, fill: int = 0
) -> ShardedRows:
    """The large arrays of all shards as one; shards without any have the value `fill`."""
    stored: list[StoredArray | None] = [result.get(part) for result in results]
    storage = next(one.storage for one in stored if one is not None)
    return ShardedRows(storage, [None if one is None else one.name for one in stored], edges, shape, dtype, fill)
