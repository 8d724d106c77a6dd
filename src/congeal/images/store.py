"""One pass over a source: every image decoded once, put on the canvas, kept in memory or in a memory-mapped file.

In a folder the pass can be stopped at any time: what was decoded is noted now and then, and the next one goes on there.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from congeal.distributed import Crew
from congeal.errors import CongealError
from congeal.files import DAMAGED, allocate, is_plain, replacing
from congeal.images.canvas import place, put_on_canvas
from congeal.images.intensity import AlignOn, Ranges, intensity_range, range_name, select_channels
from congeal.images.sharded import ShardedRows
from congeal.images.source import ImageSource, UnreadableImage
from congeal.images.threads import in_order, usable_cores
from congeal.mapped import MappedPages
from congeal.progress import Progress

Size = tuple[int, int]
_IN_MEMORY = 256 << 20
_VERSION = 4
MARKER = "stack.npz"
_SAVE_EVERY = 20.0  # seconds
UNREAD = 255  # instead of a number in `Store.names`


class AnotherKind(Exception):
    """An image turned up that the sampled headers did not announce: other channels, or else another dtype."""

    def __init__(self, channels: bool) -> None:
        self.channels = channels


class _Decoded(NamedTuple):
    pixels: np.ndarray
    mask: np.ndarray | None
    size: Size
    dtype: np.dtype
    low: float
    high: float


@dataclass
class Store:
    """Rows are positions in the source: pixels (N, C, h, w) uint8 or float32, masks (N, h, w) uint8 or None.

    black and white (N,) are the stored values that mean 0 and 1, the same for all images of a dtype (`ranges`); kinds
    (N,) are positions in `names`, the dtypes; sizes (N, 2); reasons say which rows are unusable. `folder` is where it
    is kept for good, None if it goes with the process.
    """

    pixels: np.ndarray | ShardedRows
    masks: np.ndarray | ShardedRows | None
    sizes: np.ndarray
    black: np.ndarray
    white: np.ndarray
    kinds: np.ndarray
    names: list[str] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)
    blank: bool = True
    ranges: Ranges = field(default_factory=dict)
    folder: Path | None = None
    temporary: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.pages = MappedPages(*(array for array in (self.pixels, self.masks) if isinstance(array, np.ndarray)))

    # To other processes go the names of large files, not what is in them.

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "pages": None, "temporary": None}
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
        """Bring what was written to the disk."""
        for array in (self.pixels, self.masks):
            if isinstance(array, np.memmap):
                array.flush()


class Keeping(NamedTuple):
    """Where a store is kept, None for nowhere, the fingerprint of its images if it is known already, and who fills it,
    None for this process."""

    folder: Path | None = None
    fingerprint: str | None = None
    crew: Crew | None = None

    def larger(self, side: int) -> Keeping:
        """Where the same images are kept in larger pictures, beside these."""
        return self._replace(folder=None if self.folder is None else self.folder / f"at-{side}")


def fill_store(
    source: ImageSource,
    size: Size,
    *,
    align_on: AlignOn,
    dtypes: frozenset[np.dtype],
    keeping: Keeping,
    ranges: Ranges,
    quiet: bool,
    larger: Mapping[int, Size] | None = None,
) -> Store:
    """Decode everything, or pick up the finished or half-finished store of the same images in the folder.

    `ranges`: black and white of dtypes that are known from a fitted set; other dtypes get those of this set. `larger`:
    longer sides and sizes of larger pictures that will be asked for: they are made of what is decoded here, so that it
    is decoded once.
    """
    folder, key = keeping.folder, ""
    if folder is not None:
        key = store_key(source, size, align_on, keeping, ranges)
        found = kept_store(folder, key)
        if found is not None:
            return found
    filling = _Filling(source, size, dtypes == {np.dtype(np.uint8)}, folder, key)
    filling.resume()
    first = filling.position
    ahead = {} if folder is None or first else dict(larger or {})  # of a pass that was interrupted they are not whole
    others = [
        _Filling(source, other, filling.eight_bit, keeping.larger(side).folder, "", resumable=False)
        for side, other in ahead.items()
    ]
    decode, usual = partial(decode_at, source, (size, *ahead.values()), align_on), torch.get_num_threads()
    images = in_order(decode, range(first, len(source)), usable_cores(), begin=partial(torch.set_num_threads, 1))
    try:
        with Progress(len(source), "reading images", quiet=quiet, done=first) as progress, closing(images):
            for i, decoded in enumerate(images, start=first):
                for one, of_size in zip((filling, *others), decoded, strict=True):
                    one.take(i, of_size)
                progress.update()
    finally:
        torch.set_num_threads(usual)  # threads to come would have what the last one asked for
    store = filling.store
    if store is None:
        nothing = np.empty(0)
        sizes = np.zeros((len(source), 2), np.int32)
        return Store(nothing, None, sizes, nothing, nothing, nothing, reasons=filling.reasons)
    store.reasons = filling.reasons
    set_ranges(store, ranges)
    if folder is not None:
        keep_store(store, folder, key)
        filling.unfinished.unlink(missing_ok=True)
    for (side, other), one in zip(ahead.items(), others, strict=True):
        _keep_larger(one, store, keeping.larger(side), store_key(source, other, align_on, keeping, store.ranges))
    return store


def _keep_larger(filling: _Filling, small: Store, keeping: Keeping, key: str) -> None:
    """What was made beside a smaller store, as `fill_store` would have made it by itself."""
    store = filling.store
    if store is None or keeping.folder is None:
        return
    store.reasons = filling.reasons
    set_ranges(store, small.ranges)
    keep_store(store, keeping.folder, key)


def store_key(source: ImageSource, size: Size, align_on: AlignOn, keeping: Keeping, ranges: Ranges) -> str:
    """What a store in a folder is told by: the images, and what is made of them."""
    fingerprint = keeping.fingerprint or source.fingerprint()
    about = f"{_VERSION} {fingerprint} {size} {align_on} {sorted(ranges.items())}"
    return hashlib.sha256(about.encode()).hexdigest()


def keep_store(store: Store, folder: Path, key: str = "") -> None:
    """Note beside the files stack.npy and masks.npy of `folder`, which the store's arrays are, that they are whole."""
    store.flush()
    _write_facts(folder / MARKER, store, {"key": key, "ranges": store.ranges})
    store.folder = folder


def open_store(folder: Path) -> Store:
    """The finished store of a folder, whatever its images are."""
    found = _read_facts(folder / MARKER, folder, None, mode="r")
    if found is None:
        raise CongealError(f"{folder} holds no images at working resolution")
    return found[0]


class _Read:
    """Pixels (N, C, h, w) of a store that are decoded when they are asked for."""

    def __init__(self, source: ImageSource, size: Size, align_on: AlignOn, dtype: np.dtype) -> None:
        self._source, self._size, self._align_on, self._dtype = source, size, align_on, dtype

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        wanted = range(len(self._source))[rows] if isinstance(rows, slice) else rows.tolist()
        return np.stack([self._row(i) for i in wanted])

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


def reading_store(known: Store, source: ImageSource, size: Size, align_on: AlignOn) -> Store:
    """The images of a store without masks in another size, none of them kept."""
    pixels = _Read(source, size, align_on, known.pixels.dtype)
    facts = (known.sizes, known.black, known.white, known.kinds, known.names, known.reasons, known.blank, known.ranges)
    return Store(cast("np.ndarray", pixels), None, *facts)


class _Filling:
    """A store while images arrive in order, and the file that says how far it is."""

    def __init__(
        self,
        source: ImageSource,
        size: Size,
        eight_bit: bool,
        folder: Path | None,
        key: str,
        *,
        resumable: bool = True,
    ) -> None:
        self.source, self.size, self.eight_bit, self.home, self.key = source, size, eight_bit, folder, key
        self.store: Store | None = None
        self.reasons: dict[int, str] = {}
        self.position = 0
        self.unfinished = (folder or Path()) / "unfinished.npz"
        self._resumable = resumable and folder is not None
        self._saved = time.monotonic()

    def resume(self) -> None:
        """Go on where an earlier, interrupted pass over the same images stopped."""
        if self.home is None or not is_plain(self.unfinished):
            return
        found = _read_facts(self.unfinished, self.home, self.key, mode="r+")
        if found is None or len(found[0].sizes) != len(self.source):
            return
        self.store, about = found
        self.position, self.reasons = int(about["position"]), self.store.reasons
        self.eight_bit = self.store.pixels.dtype == np.uint8

    def take(self, i: int, one: _Decoded | str) -> None:
        """Keep image i, or why there is none."""
        if isinstance(one, str):
            self.reasons[i] = one
        else:
            self._keep(i, one)
        self.position = i + 1
        if self._resumable and self.store is not None and time.monotonic() - self._saved >= _SAVE_EVERY:
            self.store.flush()
            self.store.reasons = self.reasons
            _write_facts(self.unfinished, self.store, {"key": self.key, "position": self.position})
            self._saved = time.monotonic()

    def _keep(self, i: int, one: _Decoded) -> None:
        store = self.store or self._new(one)
        self.store = store
        if one.pixels.shape != store.pixels.shape[1:] or (self.eight_bit and one.dtype != np.uint8):
            self.unfinished.unlink(missing_ok=True)
            raise AnotherKind(channels=one.pixels.shape != store.pixels.shape[1:])
        assert isinstance(store.pixels, np.ndarray)
        store.pixels[i] = np.rint(one.pixels) if self.eight_bit else one.pixels
        store.pages.touched(store.pixels[i].nbytes)
        if one.mask is not None:
            if store.masks is None:
                store.masks = masks = _full_masks(self.home, len(self.source), self.size)
                store.pages.add(masks)
            assert isinstance(store.masks, np.ndarray)
            store.masks[i] = np.rint(one.mask * 255)
        store.sizes[i], store.black[i], store.white[i] = one.size, one.low, one.high
        name = range_name(one.dtype)
        if name not in store.names:
            store.names.append(name)
        store.kinds[i] = store.names.index(name)
        store.blank = store.blank and one.high <= one.low

    def _new(self, one: _Decoded) -> Store:
        shape = (len(self.source), *one.pixels.shape)
        dtype = np.dtype(np.uint8 if self.eight_bit else np.float32)
        temporary = None
        if self.home is None and int(np.prod(shape)) * dtype.itemsize > _IN_MEMORY:
            temporary = tempfile.TemporaryDirectory(prefix="congeal-")
            self.home = Path(temporary.name)
        pixels = np.zeros(shape, dtype) if self.home is None else allocate(self.home / "stack.npy", shape, dtype)
        n = shape[0]
        black, white, kinds = np.zeros(n, np.float32), np.ones(n, np.float32), np.full(n, UNREAD, np.uint8)
        return Store(pixels, None, np.zeros((n, 2), np.int32), black, white, kinds, temporary=temporary)


def decode_small(source: ImageSource, size: Size, align_on: AlignOn, i: int) -> _Decoded | str:
    """Image i of a source as a store keeps it, or why there is none."""
    return decode_at(source, (size,), align_on, i)[0]


def decode_at(source: ImageSource, sizes: Sequence[Size], align_on: AlignOn, i: int) -> list[_Decoded | str]:
    """Image i as stores of these sizes keep it, or why there is none."""
    try:
        image = source.read(i)
    except UnreadableImage as error:
        return [str(error)] * len(sizes)
    try:
        pixels = select_channels(image.pixels, align_on)
    except CongealError as error:  # one among others that have it
        return [str(error)] * len(sizes)
    own, low, high = (pixels.shape[0], pixels.shape[1]), float(pixels.min()), float(pixels.max())
    placed = (put_on_canvas(pixels, size, place(own, size), image.mask) for size in sizes)
    return [_Decoded(values, mask, own, image.pixels.dtype, low, high) for values, mask in placed]


def _full_masks(home: Path | None, n: int, size: Size) -> np.ndarray:
    masks = (
        np.empty((n, *size), np.uint8) if home is None else allocate(home / "masks.npy", (n, *size), np.dtype(np.uint8))
    )
    pages, step = MappedPages(masks), max(1, (1 << 22) // (size[0] * size[1]))
    for start in range(0, n, step):
        masks[start : start + step] = 255
        pages.touched(masks[start : start + step].nbytes)
    return masks


def set_ranges(store: Store, known: Ranges) -> None:
    """Replace each image's own smallest and largest value by black and white of all images of its dtype."""
    ranges: dict[str, tuple[float, float]] = {}
    for kind, name in sorted(enumerate(store.names), key=lambda pair: pair[1]):
        rows = store.kinds == kind
        low, high = float(store.black[rows].min()), float(store.white[rows].max())
        ranges[name] = known.get(name) or intensity_range(np.dtype(name), low, high)
        store.black[rows], store.white[rows] = ranges[name]
    store.ranges = ranges


# ---- the small file beside the large ones: what they hold, written when that is on the disk


def _write_facts(path: Path, store: Store, about: dict[str, Any]) -> None:
    facts = {"reasons": store.reasons, "blank": store.blank, "names": store.names, "masks": store.masks is not None}
    if isinstance(store.pixels, ShardedRows):
        sharded = {"pixels": store.pixels, "masks": store.masks}
        facts["sharded"] = {name: rows.as_dict() for name, rows in sharded.items() if isinstance(rows, ShardedRows)}
    arrays = {"sizes": store.sizes, "black": store.black, "white": store.white, "kinds": store.kinds}
    with replacing(path) as file:
        np.savez(file, about=json.dumps({**facts, **about}), **arrays)  # type: ignore[arg-type]


def _read_facts(path: Path, folder: Path, key: str | None, mode: Any) -> tuple[Store, dict[str, Any]] | None:
    """The store `path` speaks of, and all that is said there; None if it is damaged or not of the images of `key`."""
    try:
        return _read_whole(path, folder, key, mode)
    except DAMAGED:
        return None


def _read_whole(path: Path, folder: Path, key: str | None, mode: Any) -> tuple[Store, dict[str, Any]] | None:
    with np.load(path, allow_pickle=False) as saved:
        about = json.loads(str(saved["about"]))
        if key not in (None, about["key"]):
            return None
        sharded = {name: ShardedRows.from_dict(rows) for name, rows in about.get("sharded", {}).items()}
        if not sharded and not is_plain(folder / "stack.npy"):
            return None
        if not sharded and about["masks"] and not is_plain(folder / "masks.npy"):
            return None
        arrays = [saved[name] for name in ("sizes", "black", "white", "kinds")]
    if sharded:
        if not all(rows.there() for rows in sharded.values()):
            return None
        pixels, masks = sharded["pixels"], sharded.get("masks")
    else:
        pixels = np.load(folder / "stack.npy", mmap_mode=mode)
        masks = np.load(folder / "masks.npy", mmap_mode=mode) if about["masks"] else None
    reasons = {int(i): reason for i, reason in about["reasons"].items()}
    ranges = {name: (low, high) for name, (low, high) in about.get("ranges", {}).items()}
    sizes, black, white, kinds = arrays
    if not len(pixels) == len(sizes) == len(black) == len(white) == len(kinds):
        return None
    store = Store(pixels, masks, sizes, black, white, kinds, about["names"], reasons, about["blank"], ranges, folder)
    return store, about


def kept_store(folder: Path, key: str) -> Store | None:
    """The finished store in the folder if it is of these images; a stale one is cleared away."""
    marker = folder / MARKER
    if not is_plain(marker):
        return None
    found = _read_facts(marker, folder, key, mode="r")
    if found is None:
        marker.unlink()
        return None
    return found[0]
