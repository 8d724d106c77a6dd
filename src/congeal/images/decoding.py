"""Decoding by shards: workers decode runs of images into files, and those together are the store."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from congeal.distributed import Crew, TryAgain
from congeal.distributed.broadcast import key_of
from congeal.files import make_folders
from congeal.images.intensity import AlignOn, Ranges, range_name
from congeal.images.sharded import ShardedRows, cut
from congeal.images.source import ImageSource, UnreadableImage
from congeal.images.store import (
    UNREAD,
    AnotherKind,
    Keeping,
    Size,
    Store,
    decode_small,
    keep_store,
    kept_store,
    set_ranges,
    store_key,
)

STAGE = "reading images"
_PROBED = 64  # images by which the size of the originals is told


@dataclass
class Decoding:
    """The work of a task: decode some images of a source, put them on the canvas and keep them small."""

    source: ImageSource
    size: Size
    align_on: AlignOn
    eight_bit: bool

    large: ClassVar[tuple[str, ...]] = ("pixels", "masks")

    def __call__(self, rows: tuple[int, int]) -> dict[str, np.ndarray]:
        first, stop = rows
        n = stop - first
        pixels = masks = None
        sizes, low, high = np.zeros((n, 2), np.int32), np.zeros(n, np.float32), np.ones(n, np.float32)
        kinds, names, reasons, odd, blank = np.full(n, UNREAD, np.uint8), list[str](), dict[int, str](), "", True
        for k in range(n):
            one = decode_small(self.source, self.size, self.align_on, first + k)
            if isinstance(one, str):
                reasons[first + k] = one
                continue
            if pixels is None:
                dtype = np.uint8 if self.eight_bit else np.float32
                pixels = np.zeros((n, *one.pixels.shape), dtype)
            if one.pixels.shape != pixels.shape[1:]:
                odd = "channels"
                break
            if self.eight_bit and one.dtype != np.uint8:
                odd = "dtype"
                break
            pixels[k] = np.rint(one.pixels) if self.eight_bit else one.pixels
            if one.mask is not None:
                masks = np.full((n, *self.size), 255, np.uint8) if masks is None else masks
                masks[k] = np.rint(one.mask * 255)
            sizes[k], low[k], high[k] = one.size, one.low, one.high
            name = range_name(one.dtype)
            if name not in names:
                names.append(name)
            kinds[k] = names.index(name)
            blank = blank and one.high <= one.low
        facts = {"reasons": reasons, "names": names, "odd": odd, "blank": blank}
        facts["shape"] = None if pixels is None else pixels.shape[1:]
        facts["masks"] = masks is not None
        result = {"facts": np.array(json.dumps(facts)), "sizes": sizes, "black": low, "white": high, "kinds": kinds}
        if len(reasons) == n:
            raise TryAgain(f"not one image could be read: {reasons[first]}", result)
        if not odd and pixels is not None:
            result["pixels"] = pixels
            if masks is not None:
                result["masks"] = masks
        return result


def fill_by_shards(
    source: ImageSource,
    size: Size,
    *,
    align_on: AlignOn,
    dtypes: frozenset[np.dtype],
    keeping: Keeping,
    ranges: Ranges,
    crew: Crew,
) -> Store:
    """`fill_store` by workers: the same rows, in as many files as there are shards."""
    if keeping.folder is None:
        raise ValueError("others can only fill a store that is kept")
    make_folders(keeping.folder)
    key = store_key(source, size, align_on, keeping, ranges)
    found = kept_store(keeping.folder, key)
    if found is not None:
        return found
    eight_bit = dtypes == {np.dtype(np.uint8)}
    items = cut(len(source), _values(source))
    name = key_of(key, eight_bit)
    counts = [stop - first for first, stop in items]
    done = list(crew.map(STAGE, name, Decoding(source, size, align_on, eight_bit), items, counts))
    facts = [json.loads(str(one["facts"])) for one in done]
    shapes = {tuple(one["shape"]) for one in facts if one["shape"]}
    if len(shapes) > 1 or any(one["odd"] == "channels" for one in facts):
        raise AnotherKind(channels=True)
    if any(one["odd"] for one in facts):
        raise AnotherKind(channels=False)
    sizes, black, white = (np.concatenate([one[part] for one in done]) for part in ("sizes", "black", "white"))
    names, kinds = list[str](), []
    for one, about in zip(done, facts, strict=True):
        names += [dtype for dtype in about["names"] if dtype not in names]
        places = np.array([*(names.index(dtype) for dtype in about["names"]), *[UNREAD] * 256], np.uint8)
        kinds.append(np.where(one["kinds"] == UNREAD, UNREAD, places[one["kinds"]]).astype(np.uint8))
    reasons = {int(i): reason for about in facts for i, reason in about["reasons"].items()}
    if not shapes:
        nothing = np.empty(0)
        return Store(nothing, None, np.zeros((len(source), 2), np.int32), nothing, nothing, nothing, reasons=reasons)
    edges = np.array([0, *(stop for _, stop in items)])

    def files(part: str, there: list[bool]) -> list[str | None]:
        return [crew.path(STAGE, name, k, part) if has else None for k, has in enumerate(there)]

    dtype = np.dtype(np.uint8 if eight_bit else np.float32)
    pixel_files = files("pixels", [bool(one["shape"]) for one in facts])
    pixels = ShardedRows(crew.exchange, pixel_files, edges, shapes.pop(), dtype)
    masks = None
    if any(one["masks"] for one in facts):
        mask_files = files("masks", [one["masks"] for one in facts])
        masks = ShardedRows(crew.exchange, mask_files, edges, size, np.dtype(np.uint8), fill=255)
    blank = all(one["blank"] for one in facts)
    store = Store(pixels, masks, sizes, black, white, np.concatenate(kinds), names, reasons, blank)
    set_ranges(store, ranges)
    keep_store(store, keeping.folder, key)
    return store


def _values(source: ImageSource) -> float:
    """Pixel values of a usual image of the source, from some of their headers."""
    if source.shape is not None:
        return float(np.prod(source.shape))
    known = []
    for i in np.unique(np.linspace(0, len(source) - 1, min(len(source), _PROBED)).astype(int)):
        try:
            header = source.probe(int(i))
        except UnreadableImage:
            continue
        known.append(header.height * header.width * header.channels)
    return float(np.median(known)) if known else 1.0
