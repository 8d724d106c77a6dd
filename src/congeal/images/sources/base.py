"""The interface of every kind of input: a numbered set of images."""

from __future__ import annotations

import hashlib
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from congeal.errors import CongealError
from congeal.rows import evenly_spaced_rows
from congeal.transforms.ids import Ids

if TYPE_CHECKING:
    from congeal.images.formats.hyperstack import Hyperstack

# Sets of files up to this total size and number are hashed by content, which takes less than a second; larger ones by
# size and modification time.
MAX_HASHED_BYTES, MAX_HASHED_FILES = 64 << 20, 5_000
# Images that stand for a set where each has to be opened: for its fingerprint and its number of channels.
PROBED_IMAGES = 16

# Positions in a source: a list, a range or an integer array.
Indices = Sequence[int] | np.ndarray


class UnreadableImage(CongealError):
    """One image cannot be used; the message is the reason that goes into `skipped.csv`."""


class SkippedImage(NamedTuple):
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
    """One decoded image.

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
    # The kind of output that matches the input: "files", "array", "tiff", "zarr", "fits", "shards", "video" or "gif".
    layout: str = "files"
    # "object" on empty ground, "photo", or None if unknown.
    kind: str | None = None
    # Initial poses (N,3,3) aligned_from_source in source pixels, and the (height, width) of the aligned frame.
    initial: np.ndarray | None = None
    initial_size: tuple[int, int] | None = None
    # Known aligned_from_source (N,3,3), up to one transform common to all.
    truth: np.ndarray | None = None
    # Class of each image (N,), if known; only compared with groups that were found without it.
    labels: np.ndarray | None = None
    # The arrays behind the source have no channel axis: (N, H, W).
    grey: bool = False
    has_masks: bool = False
    # Frames per second of a video that states them.
    frame_rate: float | None = None
    # Local files that hold all the images together; their size and time are part of the fingerprint.
    files: tuple[Path, ...] = ()
    # The images are in memory already: all their pixels are part of the fingerprint.
    in_memory: bool = False
    # Axes, pixel size and other metadata of a scientific stack of which every image is a plane.
    hyperstack: Hyperstack | None = None
    channel_names: tuple[str, ...] = ()
    # The source that is written where an image is a projection of several planes: n_parts of these for each, in order.
    parts: ImageSource | None = None
    n_parts: int = 1
    # (N,) 0 to 7, see `congeal.geometry.orientation`, if images are given upright that are not so in their files.
    orientation: np.ndarray | None = None
    # Ids of images that the user excluded; they count as unreadable.
    excluded: tuple[str, ...] = ()
    _ids: Any = None  # names, if they are stored

    @property
    def fingerprint_name(self) -> str:
        """The kind of source, as part of its fingerprint."""
        return type(self).__name__

    @abstractmethod
    def __len__(self) -> int:
        """Number of images, including unreadable ones."""

    def id(self, i: int) -> str:
        """A name that is unique in the source and stays the same between runs; the number of the image by default."""
        return str(range(len(self))[i] if self._ids is None else self._ids[i])

    @abstractmethod
    def read(self, i: int) -> Image:
        """Image i; raises `UnreadableImage` with the reason if it cannot be used."""

    @property
    def original(self) -> ImageSource:
        """The same images in the orientation of their files."""
        return self

    def ids(self) -> Ids:
        """All names, in order; collected once."""
        names = self._ids
        if not isinstance(names, Ids):
            names = self._ids = Ids(map(self.id, range(len(self))))
        return names

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
        """Positions that are known to be unreadable before reading, with the reason."""
        return {}

    def batch(self, indices: Indices) -> np.ndarray:
        """(B, H, W, C) pixels of images of one size."""
        return np.stack([self.read(int(i)).pixels for i in indices])

    def masks(self, indices: Indices) -> np.ndarray:
        """(B, H, W) float32 masks; for sources with `has_masks` only."""
        raise NotImplementedError

    def part_rows(self, rows: Indices) -> np.ndarray:
        """Positions of some images in the source that is written: their parts if they have several, else themselves."""
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
        """The header of the file of image i as text; empty for formats other than FITS."""
        return ""

    def files_behind(self, rows: np.ndarray) -> Iterator[str]:
        """The local files that hold the images at these positions."""
        return map(str, self.files)

    def fingerprint(self) -> str:
        """A hash of all ids, all files and the pixels of 16 images (of all images that are in memory)."""
        digest = hashlib.blake2b(f"{self.fingerprint_name} {len(self)} {self.shape} {self.dtype}\n".encode())
        for name in self.ids():
            digest.update(name.encode("utf-8", "surrogatepass") + b"\n")
        rows = np.arange(len(self))
        digest.update(_digest_of_files(lambda: self.files_behind(rows)))
        for i in evenly_spaced_rows(len(self), len(self) if self.in_memory else PROBED_IMAGES):
            try:
                digest.update(np.ascontiguousarray(self.read(int(i)).pixels).tobytes())
            except UnreadableImage as error:
                digest.update(str(error).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()[:64]

    def subset(self, indices: Indices) -> ImageSource:
        """The images at these positions, in this order."""
        from congeal.images.sources.views import SourceView

        return SourceView(self, np.asarray(indices, dtype=np.int64))

    def limit(self, n: int | None) -> ImageSource:
        """The first n images."""
        if n is None or n >= len(self):
            return self
        if n < 1:
            raise CongealError(f"the limit must be at least 1 image, not {n}")
        return self.subset(np.arange(n))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}: {len(self)} images>"


def _digest_of_files(paths: Callable[[], Iterator[str]]) -> bytes:
    """A hash of these files: by content if they are small, else by size and modification time."""
    sizes_and_times, count, total = hashlib.blake2b(), 0, 0
    for path in paths():
        known = _stat_of_file(path)
        if known is not None:
            count, total = count + 1, total + known.st_size
        sizes_and_times.update(b"no file\n" if known is None else b"%d %d\n" % (known.st_size, known.st_mtime_ns))
    if total > MAX_HASHED_BYTES or count > MAX_HASHED_FILES:
        return sizes_and_times.digest()
    content = hashlib.blake2b()
    for path in paths():
        found = b"no file\n"
        if _stat_of_file(path) is not None:  # a pipe would never end
            with suppress(OSError), open(path, "rb") as file:
                found = hashlib.file_digest(file, "blake2b").digest()
        content.update(found)
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
