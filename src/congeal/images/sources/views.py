"""Views of a source: some of its images, in another orientation, cached, without excluded images or initial poses."""

from __future__ import annotations

import copy
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from congeal.errors import CongealError
from congeal.geometry.orientation import make_upright
from congeal.images.sources.base import Header, Image, ImageSource, Indices, UnreadableImage
from congeal.transforms.ids import IdList, Ids, match_ids, resolve_ids

log = logging.getLogger("congeal")

# Reason in skipped.csv of images that the user excluded.
EXCLUDED = "excluded"
# Bytes of decoded images that are kept: about 700 photographs of 250 × 250 in colour.
MAX_CACHE_BYTES = 128 << 20
_SELECTION = re.compile(r"(?P<path>.+)\[(?P<slice>[^\[\]]*)\]", re.DOTALL)


class DecodeCache:
    """Decoded images, kept as long as all of them fit into `max_bytes`.

    A run reads its originals several times: to find faces, to make the stack, and to sample the result at full
    resolution. Small sets are decoded once for all of that. As soon as a set turns out to be larger the cache is
    dropped, so that memory does not grow with the number of images.
    """

    def __init__(self, max_bytes: int) -> None:
        self._free_bytes, self._images = max_bytes, dict[int, Image]()
        self._lock = threading.Lock()  # several threads decode the stack

    def read(self, i: int, decode: Callable[[int], Image]) -> Image:
        """Image i from the cache, or decoded now."""
        with self._lock:
            image = self._images.get(i)
        if image is not None:
            return image
        image = decode(i)
        with self._lock:
            if self._free_bytes >= 0 and i not in self._images:
                self._images[i] = image
                self._free_bytes -= image.pixels.nbytes + (0 if image.mask is None else image.mask.nbytes)
                if self._free_bytes < 0:
                    self._images.clear()
        return image


class SourceView(ImageSource):
    """Images of another source.

    Parameters
    ----------
    source : ImageSource
    rows : (n,) int, optional
        Positions in the source, in any order. Default: all images, which the options below require.
    orientation : (n,) int, optional
        0 to 7 of each image, see `congeal.geometry.orientation`. Images are given upright; sizes and initial poses
        remain those of the originals. Methods never see mirrored images: `Stack.stack_from_source` has a negative
        determinant instead.
    excluded : set of str
        Ids of images that count as unreadable.
    cache : DecodeCache, optional
        Where decoded images are kept. Not sent to other processes.
    address : optional
        How another process opens the same images, see `congeal.opening.SourceAddress`.
    """

    def __init__(
        self,
        source: ImageSource,
        rows: np.ndarray | None = None,
        *,
        orientation: np.ndarray | None = None,
        excluded: frozenset[str] = frozenset(),
        cache: DecodeCache | None = None,
        address: Any = None,
    ) -> None:
        self._whole = rows is None
        rows = np.arange(len(source)) if rows is None else rows
        self.source, self.rows, self._cache = source, rows, cache
        self.orientation = None if orientation is None else np.asarray(orientation, dtype=np.int64)
        self._excluded = {i for i, id in enumerate(source.ids()) if id in excluded} if excluded else set[int]()
        self.excluded = tuple(source.id(i) for i in sorted(self._excluded)) or source.excluded
        for name in ("name", "layout", "kind", "grey", "has_masks", "in_memory", "frame_rate"):
            setattr(self, name, getattr(source, name))
        self.channel_names, self.n_parts = source.channel_names, source.n_parts
        self.truth = None if source.truth is None else source.truth[rows]
        self.labels = None if source.labels is None else source.labels[rows]
        self.hyperstack = None if source.hyperstack is None else source.hyperstack.taken(rows)
        self.parts = None if source.parts is None else source.parts.subset(source.part_rows(rows))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": None}  # a worker reads each image once per task

    # Initial poses may take long to find (see `congeal.images.sources.faces`), so they are computed on first use.
    @cached_property
    def initial(self) -> np.ndarray | None:  # type: ignore[override]
        """Initial poses (n,3,3) of these images."""
        poses = self.source.initial
        return None if poses is None else poses[self.rows]

    @cached_property
    def initial_size(self) -> tuple[int, int] | None:  # type: ignore[override]
        """(height, width) of the frame of the initial poses."""
        return self.source.initial_size

    @property
    def fingerprint_name(self) -> str:
        """The kind of the source, and how the view changes it."""
        changes = [type(self).__name__] if type(self) is not SourceView else []
        changes += ["subset"] if not self._whole else []
        changes += ["excluding"] if self._excluded else []
        return " ".join([*changes, self.source.fingerprint_name])

    def fingerprint(self) -> str:
        """That of the images, and their orientation."""
        return super().fingerprint() if self.orientation is None else self.with_orientation(self.source.fingerprint())

    def with_orientation(self, fingerprint: str) -> str:
        """The fingerprint of the images in the orientation of their files, with that of this view."""
        if self.orientation is None:
            return fingerprint
        return f"{fingerprint} {bytes(self.orientation.astype(np.uint8)).hex()}"

    @property
    def original(self) -> ImageSource:
        return self if self.orientation is None else self.source.original

    def __len__(self) -> int:
        return len(self.rows)

    def id(self, i: int) -> str:
        return self.source.id(int(self.rows[i]))

    def ids(self) -> Ids:
        return self.source.ids() if self._whole else super().ids()

    def read(self, i: int) -> Image:
        if i in self._excluded:
            raise UnreadableImage(EXCLUDED)
        row = int(self.rows[i])
        image = self.source.read(row) if self._cache is None else self._cache.read(row, self.source.read)
        if self.orientation is None:
            return image
        way = int(self.orientation[i])
        mask = None if image.mask is None else np.ascontiguousarray(make_upright(image.mask, way))
        return Image(image.id, np.ascontiguousarray(make_upright(image.pixels, way)), mask, image.orientation)

    def probe(self, i: int) -> Header:
        if i in self._excluded:
            raise UnreadableImage(EXCLUDED)
        if self._cache is not None and type(self.source).probe is ImageSource.probe:
            return super().probe(i)  # the source would decode the image, and nothing would keep it
        header = self.source.probe(int(self.rows[i]))
        if self.orientation is None or self.orientation[i] % 2 == 0:
            return header
        return header._replace(height=header.width, width=header.height)

    def batch(self, indices: Indices) -> np.ndarray:
        return self._upright(self.source.batch, np.asarray(indices))

    def masks(self, indices: Indices) -> np.ndarray:
        return self._upright(self.source.masks, np.asarray(indices))

    def _upright(self, read: Callable[[Any], np.ndarray], indices: np.ndarray) -> np.ndarray:
        values = read(self.rows[indices])
        if self.orientation is None:
            return values
        values, orientation = np.array(values), self.orientation[indices]
        for way in np.unique(orientation):
            which = orientation == way
            values[which] = np.stack([make_upright(one, int(way)) for one in values[which]])
        return values

    @property
    def shape(self) -> tuple[int, int, int] | None:
        shape = self.source.shape
        turned = self.orientation is not None and bool((self.orientation % 2).any())
        return None if shape is None or (turned and shape[0] != shape[1]) else shape

    @property
    def dtype(self) -> np.dtype | None:
        return self.source.dtype

    @property
    def unreadable(self) -> dict[int, str]:
        known = self.source.unreadable
        reasons = {k: known[int(i)] for k, i in enumerate(self.rows) if int(i) in known} if known else {}
        return reasons | dict.fromkeys(sorted(self._excluded), EXCLUDED)

    def header_of(self, i: int) -> str:
        return self.source.header_of(int(self.rows[i]))

    def files_behind(self, rows: np.ndarray) -> Iterator[str]:
        return self.source.files_behind(self.rows[rows])

    def shard_of(self, i: int) -> tuple[str, str] | None:
        return self.source.shard_of(int(self.rows[i]))

    def subset(self, indices: Indices) -> ImageSource:
        """The images at these positions of the view, in this order."""
        rows = np.asarray(indices, dtype=np.int64)
        if self.orientation is None:
            return super().subset(rows)
        return SourceView(self.source.subset(self.rows[rows]), orientation=self.orientation[rows])


def cache_decoded(source: ImageSource) -> ImageSource:
    """The same source, decoding each image once if the set is small. Arrays need no decoding and are left as is."""
    if source.shape is not None or (isinstance(source, SourceView) and source._cache is not None):
        return source
    if isinstance(source, SourceView):  # faces are searched in the images below the view, so those are cached
        same = copy.copy(source)
        same.source = cache_decoded(source.source)
        return same
    return SourceView(source, cache=DecodeCache(MAX_CACHE_BYTES))


def exclude_images(source: ImageSource, listed: IdList | None, *, strict: bool = True) -> ImageSource:
    """The source without these images: ids, or a file that lists them. The source itself if nothing is listed.

    strict: ids that the source does not have are an error; otherwise, as for a part of a set, they are ignored.
    """
    given = resolve_ids(listed, "images to exclude")
    if not given:
        return source
    known = source.ids()
    meant = match_ids(given, known)
    unknown = [id for id in given if id not in meant]
    if unknown and strict:
        more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        raise CongealError(
            f"cannot exclude {unknown[0]!r}{more}: {source.name} has no image of that name; use the ids of "
            f"transforms.csv, such as {known[0]!r}"
        )
    if unknown:
        log.info("%d of the ids to exclude are not among the first %d images", len(unknown), len(source))
    excluded = frozenset(meant.values())
    if len(excluded) == len(source):
        raise CongealError(f"no image of {source.name} is left: all {len(source)} are excluded")
    return SourceView(source, excluded=excluded) if excluded else source


class Selection(NamedTuple):
    """A file or folder and a slice of its images, as in clip.mp4[0:500:5] or stack.tif[7]."""

    path: Path
    slice: str

    @property
    def full_name(self) -> str:
        """The same with an absolute path."""
        return f"{self.path.resolve()}[{self.slice}]"


def parse_selection(text: str) -> Selection | None:
    """The two parts of such a name; None for any other, such as a path with brackets or a glob."""
    found = _SELECTION.fullmatch(text)
    if found is None or os.path.exists(text) or not os.path.exists(found["path"]):
        return None
    return Selection(Path(found["path"]), found["slice"])


def select_images(source: ImageSource, text: str) -> ImageSource:
    """The images of a source in a slice such as "0:500:5" or "7"."""
    name, n, parts = source.name, len(source), text.split(":")
    try:
        numbers = [int(part) if part.strip() else None for part in parts]
    except ValueError:
        numbers = []
    if not text or not 1 <= len(numbers) <= 3:
        raise CongealError(
            f"'[{text}]' behind {name} cannot be understood: write {name}[START:STOP:STEP], such as {name}[0:500:5]"
        )
    if len(numbers) == 1 and numbers[0] is not None:
        if not -n <= numbers[0] < n:
            raise CongealError(f"there is no image {numbers[0]} in {name}: it has 0 to {n - 1}")
        rows = np.array([numbers[0] % n])
    else:
        if len(numbers) == 3 and numbers[2] is not None and numbers[2] < 1:
            raise CongealError(f"the step of {name}[{text}] must be at least 1: images are read forwards")
        rows = np.arange(n)[slice(*numbers)]
    if not len(rows):
        raise CongealError(f"{name}[{text}] is none of its {n} images: they have the numbers 0 to {n - 1}")
    selected = source.subset(rows)
    selected.name = f"{name}[{text}]"
    return selected
