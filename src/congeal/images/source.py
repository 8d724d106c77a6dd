"""What every kind of input looks like to the rest of the package: a numbered set of images."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from congeal.errors import CongealError
from congeal.transforms.ids import Ids

# Rows of a Python list, a range or an integer array: positions in a source.
Indices = Sequence[int] | np.ndarray


class UnreadableImage(CongealError):
    """One image cannot be used; the message is the reason that goes into `skipped.csv`."""


class Skipped(NamedTuple):
    """An image that was left out, and why."""

    id: str
    reason: str


class Header(NamedTuple):
    """Size and type of one image, known without decoding it where the format allows."""

    height: int
    width: int
    channels: int
    dtype: np.dtype


@dataclass(frozen=True)
class Image:
    """One image as it is in the file, upright.

    pixels (H, W, C) in their native dtype, without alpha; mask (H, W) float32 in [0, 1] if the image has alpha (1 is
    opaque); orientation is the EXIF value 1–8 that has already been applied.
    """

    id: str
    pixels: np.ndarray
    mask: np.ndarray | None = None
    orientation: int = 1


class ImageSource(ABC):
    """A numbered set of images. `read` raises UnreadableImage for a bad one; it never returns half an image."""

    name: str = "images"
    # What a writer gives back for it: "files", "array", "tiff" or "shards".
    layout: str = "files"
    # "object" on empty ground, "photo", or None where nobody knows.
    kind: str | None = None
    # Starting warps (N,3,3) aligned_from_source in source pixels, and the (height, width) they lead to.
    initial: np.ndarray | None = None
    initial_size: tuple[int, int] | None = None
    # Known aligned_from_source (N,3,3), up to one transform common to all.
    truth: np.ndarray | None = None
    # (low, high) pixel values that become 0 and 1, if the source knows them and has no NaN; else they are measured.
    intensity: tuple[float, float] | None = None
    # The arrays behind the source have no channel axis: (N, H, W).
    grey: bool = False
    has_masks: bool = False
    _all_ids: Ids | None = None

    @property
    def fingerprint_name(self) -> str:
        """What kind of source this is, as its fingerprint says it."""
        return type(self).__name__

    @abstractmethod
    def __len__(self) -> int:
        """How many images there are, unreadable ones included."""

    @abstractmethod
    def id(self, i: int) -> str:
        """A name that is unique in the source and stays the same between runs."""

    @abstractmethod
    def read(self, i: int) -> Image:
        """Image i; `UnreadableImage` says why there is none."""

    def ids(self) -> Ids:
        """All names, in order; collected once."""
        if self._all_ids is None:
            self._all_ids = Ids(map(self.id, range(len(self))))
        return self._all_ids

    @property
    def shape(self) -> tuple[int, int, int] | None:
        """(H, W, C) if all images are known to share it without reading them."""
        return None

    @property
    def dtype(self) -> np.dtype | None:
        """The pixel type if all images are known to share it without reading them."""
        return None

    @property
    def unreadable(self) -> dict[int, str]:
        """Positions that are known to be bad before reading, with the reason."""
        return {}

    def batch(self, indices: Indices) -> np.ndarray:
        """(B, H, W, C) pixels of images of one size."""
        return np.stack([self.read(int(i)).pixels for i in indices])

    def masks(self, indices: Indices) -> np.ndarray:
        """(B, H, W) float32 masks; only asked of sources with `has_masks`."""
        raise NotImplementedError

    def probe(self, i: int) -> Header:
        """Size and type of image i, from its header where that is possible."""
        if self.shape is not None and self.dtype is not None:
            return Header(*self.shape, self.dtype)
        pixels = self.read(i).pixels
        height, width, channels = pixels.shape
        return Header(height, width, channels, pixels.dtype)

    def shard_of(self, i: int) -> tuple[str, str] | None:
        """(file name of the shard, key of the sample) for images that come from shards."""
        return None

    def fingerprint(self) -> str:
        """Changes when the set changes: all ids, and the pixels of 16 images spread over the set."""
        digest = hashlib.sha256(f"{self.fingerprint_name} {len(self)} {self.shape} {self.dtype}\n".encode())
        for name in self.ids():
            digest.update(name.encode("utf-8", "surrogatepass") + b"\n")
        for i in np.unique(np.linspace(0, len(self) - 1, 16).astype(int)) if len(self) else ():
            try:
                digest.update(np.ascontiguousarray(self.read(int(i)).pixels).tobytes())
            except UnreadableImage as error:
                digest.update(str(error).encode())
        return digest.hexdigest()

    def subset(self, indices: Indices) -> ImageSource:
        """The images at these positions, in this order."""
        return Subset(self, np.asarray(indices, dtype=np.int64))

    def limit(self, n: int | None) -> ImageSource:
        """The first n images."""
        if n is None or n >= len(self):
            return self
        if n < 1:
            raise CongealError(f"the limit must be at least 1 image, not {n}")
        return self.subset(np.arange(n))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}: {len(self)} images>"


class Subset(ImageSource):
    """Some images of another source, in any order."""

    def __init__(self, source: ImageSource, indices: np.ndarray) -> None:
        self.source, self.indices = source, indices
        self.name, self.layout, self.kind, self.grey = source.name, source.layout, source.kind, source.grey
        self.intensity, self.has_masks = source.intensity, source.has_masks
        self.truth = None if source.truth is None else source.truth[indices]

    # A start may take long to find (see `congeal.images.faces`), so it is not asked for before it is needed.
    @cached_property
    def initial(self) -> np.ndarray | None:  # type: ignore[override]
        """Those of the chosen images."""
        whole = self.source.initial
        return None if whole is None else whole[self.indices]

    @cached_property
    def initial_size(self) -> tuple[int, int] | None:  # type: ignore[override]
        """That of the whole source."""
        return self.source.initial_size

    def __len__(self) -> int:
        return len(self.indices)

    def id(self, i: int) -> str:
        """The name it has in the whole source."""
        return self.source.id(int(self.indices[i]))

    def read(self, i: int) -> Image:
        """Image i of the chosen ones."""
        return self.source.read(int(self.indices[i]))

    def probe(self, i: int) -> Header:
        """Size and type of image i of the chosen ones."""
        return self.source.probe(int(self.indices[i]))

    def batch(self, indices: Indices) -> np.ndarray:
        """(B, H, W, C) pixels of these of the chosen images."""
        return self.source.batch(self.indices[np.asarray(indices)])

    def masks(self, indices: Indices) -> np.ndarray:
        """(B, H, W) masks of these of the chosen images."""
        return self.source.masks(self.indices[np.asarray(indices)])

    @property
    def shape(self) -> tuple[int, int, int] | None:
        """That of the whole source."""
        return self.source.shape

    @property
    def dtype(self) -> np.dtype | None:
        """That of the whole source."""
        return self.source.dtype

    @property
    def unreadable(self) -> dict[int, str]:
        """Positions among the chosen images that are known to be bad."""
        bad = self.source.unreadable
        return {k: bad[int(i)] for k, i in enumerate(self.indices) if int(i) in bad} if bad else {}

    def shard_of(self, i: int) -> tuple[str, str] | None:
        """Where image i of the chosen ones comes from."""
        return self.source.shard_of(int(self.indices[i]))


def unique_ids(names: Iterable[str]) -> Ids:
    """The same names; a repeated one gets '#2', '#3', …, because transforms are matched by id."""
    given = Ids(names)
    if given.unique:
        return given
    seen: dict[str, int] = {}
    ids = []
    for name in given:
        seen[name] = seen.get(name, 0) + 1
        ids.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return Ids(ids)
