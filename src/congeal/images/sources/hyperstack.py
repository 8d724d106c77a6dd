"""Images of a scientific stack or a lazy array (dask, Zarr, HDF5), read on demand by plane or projected along Z."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from threading import Lock
from typing import Any, Protocol

import numpy as np

from congeal.errors import CongealError, first_line
from congeal.images.formats.decode import check_size
from congeal.images.formats.hyperstack import PLANE, Hyperstack, projects
from congeal.images.intensity import NOT_FINITE, finite
from congeal.images.sources.arrays import ArraySource
from congeal.images.sources.base import Header, Image, ImageSource, UnreadableImage
from congeal.transforms.ids import Ids

# Size up to which one chunk is kept of an array that is computed or decoded in chunks.
MAX_KEPT_CHUNK_BYTES = 64 << 20


class Reader(Protocol):
    """Where the numbers of a stack come from."""

    dtype: np.dtype

    def take(self, at: Mapping[str, int]) -> np.ndarray:
        """The block at these positions of the image axes; its other axes in the order of the stack."""


class IndexedReader:
    """Anything that is indexed as an array is: memory maps, Zarr, FITS sections, dask. Only what is asked for is read.

    chunk: how many positions of the first axis are best read together; they are kept until others are asked for.
    """

    def __init__(self, array: Any, axes: str, *, chunk: int = 1) -> None:
        self.array, self.axes, self.dtype = array, axes, np.dtype(array.dtype).newbyteorder("=")
        one = int(np.prod([int(n) for n in array.shape[1:]])) * self.dtype.itemsize
        self._chunk = chunk if chunk > 1 and chunk * one <= MAX_KEPT_CHUNK_BYTES else 1
        self._lock = Lock()
        self._kept: tuple[int, np.ndarray] | None = None

    def take(self, at: Mapping[str, int]) -> np.ndarray:
        """The plane at these positions of named axes; axes that are not named come whole."""
        index = tuple(at.get(letter, slice(None)) for letter in self.axes)
        first = index[0] if index else slice(None)
        if self._chunk == 1 or isinstance(first, slice):
            return self._native(self.array[index])
        with self._lock:
            number = first // self._chunk
            if self._kept is None or self._kept[0] != number:
                start = number * self._chunk
                self._kept = None
                self._kept = number, self._native(self.array[start : start + self._chunk])
            block = self._kept[1]
        return np.asarray(block[(first % self._chunk, *index[1:])])

    def _native(self, block: Any) -> np.ndarray:
        found = np.asarray(block)
        return found if found.dtype.isnative else found.astype(self.dtype)


class HyperstackSource(ImageSource):
    """Every plane of a stack is an image (H, W, C), decoded when it is asked for."""

    def __init__(
        self, stack: Hyperstack, reader: Reader, *, name: str, layout: str, ids: Sequence[str] | None = None
    ) -> None:
        if reader.dtype.kind not in "buif":
            raise CongealError(f"{name} has dtype {reader.dtype}; images are integers, floats or booleans")
        if 0 in stack.shape:
            raise CongealError(f"{name} has shape {stack.shape}: it holds no pixels")
        self.hyperstack = self._stack = stack
        self.reader, self.name, self.layout = reader, name, layout
        self.grey, self.channel_names = not stack.channel_axes, stack.channel_names
        self._ids = Ids(stack.ids() if ids is None else ids)
        self._rest = "".join(letter for letter in stack.axes if letter not in stack.image_axes)

    def __len__(self) -> int:
        return self._stack.n_images

    def probe(self, i: int) -> Header:
        return Header(*self._stack.size, self._stack.n_channels, self.reader.dtype)

    def read(self, i: int) -> Image:
        stack = self._stack
        check_size(*stack.size, nbytes=stack.size[0] * stack.size[1] * stack.n_channels * self.reader.dtype.itemsize)
        try:
            block = self.reader.take(stack.place(i))
        except (UnreadableImage, MemoryError):
            raise
        except Exception as error:  # damaged data raise nearly anything; each is a reason in skipped.csv
            raise UnreadableImage(f"damaged data ({first_line(error)})") from error
        pixels = stack.as_pixels(block, self._rest)
        if not finite(pixels):
            raise UnreadableImage(NOT_FINITE)
        return Image(self.id(i), pixels)


class ProjectedSource(ImageSource):
    """One image per time point or position of a stack with depth: the maximum or the mean of its planes.

    `parts` are the planes themselves, in which image i is the planes i · n_parts and on. They are what is written.
    """

    def __init__(self, planes: ImageSource, stack: Hyperstack, how: str) -> None:
        self.parts = self._planes = planes
        self.n_parts, self.how = stack.length("Z"), how
        self.name, self.layout, self.grey = planes.name, planes.layout, planes.grey
        self.channel_names = stack.channel_names
        self._ids = Ids(stack.ids(stack.image_axes.removesuffix("Z")))

    @property
    def fingerprint_name(self) -> str:
        return f"{type(self).__name__} {self.how}"

    def __len__(self) -> int:
        return len(self.ids())

    def probe(self, i: int) -> Header:
        plane = self._planes.probe(i * self.n_parts)
        return plane if self.how == "max" else plane._replace(dtype=np.dtype(np.float32))

    def read(self, i: int) -> Image:
        i = range(len(self))[i]
        first = i * self.n_parts
        together = self._planes.read(first).pixels
        if self.how == "mean":
            together = together.astype(np.float64)
        for k in range(first + 1, first + self.n_parts):
            plane = self._planes.read(k).pixels
            together = np.maximum(together, plane) if self.how == "max" else together + plane
        if self.how == "mean":
            together = (together / self.n_parts).astype(np.float32)
        return Image(self.id(i), together)


def open_stack(
    stack: Hyperstack, reader: Reader, *, name: str, layout: str, z: str | None = None, mapped: np.ndarray | None = None
) -> ImageSource:
    """The source of a stack; mapped: its numbers as one array in the order of its axes, if they need no decoding."""
    planes: ImageSource | None = None
    if mapped is not None:
        in_place = _in_place(mapped, stack)
        if in_place is not None:
            planes = ArraySource(in_place, name=name, ids=stack.ids(), layout=layout)
            planes.hyperstack, planes.channel_names = stack, stack.channel_names
    if planes is None:
        planes = HyperstackSource(stack, reader, name=name, layout=layout)
    how = projects(stack, z, name)
    return planes if how is None else ProjectedSource(planes, stack, how)


def _in_place(array: np.ndarray, stack: Hyperstack) -> np.ndarray | None:
    """The array as (N, H, W[, C]) without copying a number; None if that cannot be."""
    if array.dtype.kind not in "buif" or 0 in array.shape:
        return None
    letters = stack.image_axes + PLANE + stack.channel_axes
    ordered = array.transpose([stack.axes.index(letter) for letter in letters])
    n = len(stack.image_axes)
    if not (_evenly_spaced(ordered, range(n)) and _evenly_spaced(ordered, range(n + 2, ordered.ndim))):
        return None
    channels = (stack.n_channels,) if stack.channel_axes else ()
    return ordered.reshape(stack.n_images, *stack.size, *channels)


def _evenly_spaced(array: np.ndarray, axes: range) -> bool:
    """Whether these neighbouring axes can be one without copying."""
    longer = [k for k in axes if array.shape[k] > 1]
    pairs = pairwise(longer)
    return all(array.strides[a] == array.strides[b] * array.shape[b] for a, b in pairs)


def open_lazy(array: Any) -> ImageSource:
    """An array (N, H, W) or (N, H, W, C), channels last, like one of NumPy; images are asked for one by one."""
    kind, shape = type(array).__name__, tuple(array.shape)
    if len(shape) not in (3, 4):
        raise CongealError(f"the {kind} has shape {shape}; a set of images is (N, H, W) or (N, H, W, C), channels last")
    if not all(isinstance(n, int) or n == n for n in shape):
        raise CongealError(f"the {kind} does not know its own shape {shape}: call compute_chunk_sizes() first")
    stack = Hyperstack("IYXC"[: len(shape)], tuple(map(int, shape)))
    reader = IndexedReader(array, stack.axes, chunk=_first_chunk(array))
    ids = [str(i) for i in range(stack.n_images)]
    source = HyperstackSource(stack, reader, name=kind, layout="array", ids=ids)
    source.hyperstack = None  # an array comes back as an array
    return source


def _first_chunk(array: Any) -> int:
    """How many images one chunk of the array holds: dask says it for every chunk, others once for all."""
    chunks = getattr(array, "chunks", None)
    first = chunks[0] if chunks else 1
    return max(map(int, first)) if isinstance(first, tuple) else int(first)
