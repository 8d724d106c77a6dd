"""What every kind of input looks like to the rest of the package: a numbered set of images."""

from __future__ import annotations

import hashlib
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from congeal.errors import CongealError
from congeal.transforms.ids import Ids

if TYPE_CHECKING:
    from congeal.images.hyperstack import Hyperstack

FINGERPRINT = "2:"
"""How a fingerprint begins, with the version of what goes into it."""
_CHEAP_BYTES, _CHEAP_FILES = 64 << 20, 5_000  # read whole for the fingerprint; of more, size and time tell
_VALUES_AT_ONCE = 4 << 20

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
    # What a writer gives back for it: "files", "array", "tiff", "zarr", "fits", "shards", "video" or "gif".
    layout: str = "files"
    # "object" on empty ground, "photo", or None where nobody knows.
    kind: str | None = None
    # Starting warps (N,3,3) aligned_from_source in source pixels, and the (height, width) they lead to.
    initial: np.ndarray | None = None
    initial_size: tuple[int, int] | None = None
    # Known aligned_from_source (N,3,3), up to one transform common to all.
    truth: np.ndarray | None = None
    # What each image shows (N,), where that is known; only ever compared with groups that were found without it.
    labels: np.ndarray | None = None
    # (low, high) pixel values that become 0 and 1, if the source knows them and has no NaN; else they are measured.
    intensity: tuple[float, float] | None = None
    # The arrays behind the source have no channel axis: (N, H, W).
    grey: bool = False
    has_masks: bool = False
    # Frames a second, where the images are those of a film and say so.
    frame_rate: float | None = None
    # The local files that hold all the images together, if there are such; their size and time belong to the set.
    files: tuple[Path, ...] = ()
    # Reading all images costs next to nothing: their pixels belong to the set.
    in_memory: bool = False
    # Axes, pixel size and the like of a scientific stack of which every image is a plane.
    hyperstack: Hyperstack | None = None
    channel_names: tuple[str, ...] = ()
    # What is written where an image stands for several (planes of a Z stack): n_parts of these for each, in order.
    parts: ImageSource | None = None
    n_parts: int = 1
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

    @property
    def original(self) -> ImageSource:
        """The same images as they lie in their files; only what `OrientedSource` made upright differs."""
        return self

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

    def part_rows(self, rows: Indices) -> np.ndarray:
        """Positions among what is written of some images: their parts where they have several, else themselves."""
        given = np.asarray(rows, dtype=np.int64)
        if self.parts is None:
            return given
        return (given[:, None] * self.n_parts + np.arange(self.n_parts)).reshape(-1)

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

    def header_of(self, i: int) -> str:
        """The header that the file of image i has beside its pixels, as text; empty if there is none (FITS has)."""
        return ""

    def files_behind(self, rows: np.ndarray) -> Iterator[str]:
        """The local files that hold the images at these positions."""
        return map(str, self.files)

    def fingerprint(self) -> str:
        """Changes when the set changes: all ids, all files, and the pixels of 16 images, of all that are in memory."""
        digest = hashlib.blake2b(f"{self.fingerprint_name} {len(self)} {self.shape} {self.dtype}\n".encode())
        for name in self.ids():
            digest.update(name.encode("utf-8", "surrogatepass") + b"\n")
        rows = np.arange(len(self))
        digest.update(_digest_of_files(lambda: self.files_behind(rows)))
        for pixels in self._all_pixels() if self.in_memory else self._some_pixels(16):
            digest.update(pixels)
        return f"{FINGERPRINT}{digest.hexdigest()[:64]}"

    def _all_pixels(self) -> Iterator[bytes]:
        if self.shape is None:
            yield from self._some_pixels(len(self))
            return
        step = max(1, _VALUES_AT_ONCE // int(np.prod(self.shape)))
        for start in range(0, len(self), step):
            yield np.ascontiguousarray(self.batch(range(start, min(len(self), start + step)))).tobytes()

    def _some_pixels(self, count: int) -> Iterator[bytes]:
        for i in np.unique(np.linspace(0, len(self) - 1, count).astype(int)) if len(self) else ():
            try:
                yield np.ascontiguousarray(self.read(int(i)).pixels).tobytes()
            except UnreadableImage as error:
                yield str(error).encode("utf-8", "surrogatepass")

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
        self.intensity, self.has_masks, self.in_memory = source.intensity, source.has_masks, source.in_memory
        self.truth = None if source.truth is None else source.truth[indices]
        self.frame_rate = source.frame_rate
        self.hyperstack = None if source.hyperstack is None else source.hyperstack.taken(indices)
        self.channel_names, self.n_parts = source.channel_names, source.n_parts
        self.parts = None if source.parts is None else source.parts.subset(source.part_rows(indices))
        self.labels = None if source.labels is None else source.labels[indices]

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

    def header_of(self, i: int) -> str:
        """That of image i of the chosen ones."""
        return self.source.header_of(int(self.indices[i]))

    def files_behind(self, rows: np.ndarray) -> Iterator[str]:
        """Those of the chosen images."""
        return self.source.files_behind(self.indices[rows])

    def shard_of(self, i: int) -> tuple[str, str] | None:
        """Where image i of the chosen ones comes from."""
        return self.source.shard_of(int(self.indices[i]))


def _digest_of_files(paths: Callable[[], Iterator[str]]) -> bytes:
    """Changes when one of these files does: by content where that is quickly read, else by size and time."""
    sizes_and_times, count, total = hashlib.blake2b(), 0, 0
    for path in paths():
        known = _stat_of_file(path)
        if known is None:
            sizes_and_times.update(b"no file\n")
            continue
        count, total = count + 1, total + known.st_size
        sizes_and_times.update(b"%d %d\n" % (known.st_size, known.st_mtime_ns))
    if total > _CHEAP_BYTES or count > _CHEAP_FILES:
        return sizes_and_times.digest()
    content = hashlib.blake2b()
    for path in paths():
        try:
            if _stat_of_file(path) is None:
                raise OSError  # a pipe would never end
            with open(path, "rb") as file:
                content.update(hashlib.file_digest(file, "blake2b").digest())
        except OSError:
            content.update(b"no file\n")
    return content.digest()


def _stat_of_file(path: str) -> os.stat_result | None:
    try:
        known = os.stat(path)
    except (OSError, ValueError):  # no file can have a NUL in its name
        return None
    return known if stat.S_ISREG(known.st_mode) else None


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
