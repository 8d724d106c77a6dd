"""Arrays in memory, memory-mapped or lazy: numpy, torch, .npy, .npz, lists, and the planes of scientific stacks."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from congeal.errors import CongealError, first_line
from congeal.images.intensity import NOT_FINITE, finite
from congeal.images.sources.base import Image, ImageSource, Indices, UnreadableImage
from congeal.memmap import READAHEAD_BYTES, touch_pages, track_pages
from congeal.transforms.ids import Ids

if TYPE_CHECKING:
    import torch


from collections.abc import Mapping
from itertools import pairwise
from threading import Lock
from typing import Protocol

from congeal.images.formats.decode import check_size
from congeal.images.formats.hyperstack import PLANE, Hyperstack, projects
from congeal.images.sources.base import Header

# Marks the JSON file beside an array as written by `pack`.
PACKED = "congeal-pack-1"
# Size up to which one chunk is kept of an array that is computed or decoded in chunks. Chosen by judgement: a small
# part of the memory that a run takes.
MAX_KEPT_CHUNK_BYTES = 64 << 20
# Bytes of a compressed file that are unpacked in memory: more would not fit on a common machine.
MOST_UNPACKED = 8 << 30


class ArraySource(ImageSource):
    """Images of one size in an array (N, H, W) or (N, H, W, C); nothing is copied until it is read."""

    def __init__(
        self,
        array: np.ndarray,
        *,
        name: str = "array",
        ids: Sequence[str] | None = None,
        layout: str = "array",
        bad: dict[int, str] | None = None,
        mask_array: np.ndarray | None = None,
    ) -> None:
        if array.ndim not in (3, 4):
            raise CongealError(
                f"{name} has shape {array.shape}; a set of images is (N, H, W) or (N, H, W, C), channels last"
            )
        if array.dtype.kind not in "buif":
            raise CongealError(f"{name} has dtype {array.dtype}; images are integers, floats or booleans")
        if 0 in array.shape[1:]:
            raise CongealError(f"{name} has shape {array.shape}: its images have no pixels")
        self.array, self.name, self.layout, self.grey = array, name, layout, array.ndim == 3
        self.mask_array, self.has_masks = mask_array, mask_array is not None
        self._ids, self._bad = None if ids is None else Ids(ids), bad or {}
        track_pages(array, mask_array)

    def __len__(self) -> int:
        return len(self.array)

    @property
    def shape(self) -> tuple[int, int, int]:
        return (*self.array.shape[1:3], 1 if self.grey else self.array.shape[3])

    @property
    def dtype(self) -> np.dtype:
        # float16 and the like are kept; only a foreign byte order is turned into the machine's.
        return self.array.dtype.newbyteorder("=")

    @property
    def unreadable(self) -> dict[int, str]:
        return self._bad

    def read(self, i: int) -> Image:
        if i in self._bad:
            raise UnreadableImage(self._bad[i])
        pixels = self.batch([i])[0]
        if not finite(pixels):
            raise UnreadableImage(NOT_FINITE)
        mask = self.masks([i])[0] if self.has_masks else None
        return Image(self.id(i), pixels, mask)

    def batch(self, indices: Indices) -> np.ndarray:
        rows = as_slice(indices)
        pixels = np.asarray(self.array[rows])
        # Of scattered images the system maps more than is read.
        touch_pages(pixels.nbytes if isinstance(rows, slice) else max(pixels.nbytes, len(rows) * READAHEAD_BYTES))
        if not pixels.dtype.isnative:
            pixels = pixels.astype(self.dtype)
        return pixels[..., None] if self.grey else pixels

    def masks(self, indices: Indices) -> np.ndarray:
        if self.mask_array is None:
            raise CongealError(f"{self.name} has no masks")
        masks = np.asarray(self.mask_array[as_slice(indices)], dtype=np.float32) / np.float32(255)
        touch_pages(masks.size)
        return masks


class ListSource(ImageSource):
    """Images of any sizes in a Python list: numpy arrays (H, W[, C]), torch tensors ([C,] H, W) or PIL images."""

    def __init__(self, items: Sequence[Any], *, name: str = "list") -> None:
        self.items, self.name = items, name

    def __len__(self) -> int:
        return len(self.items)

    def read(self, i: int) -> Image:
        item = self.items[i]
        if hasattr(item, "getexif"):
            from congeal.images.formats.decode import from_pillow

            return from_pillow(item, self.id(i))
        is_tensor = not isinstance(item, np.ndarray) and hasattr(item, "detach")
        pixels = numpy_from_tensor(item) if is_tensor else np.asarray(item)
        if pixels.ndim not in (2, 3) or pixels.dtype.kind not in "buif" or 0 in pixels.shape:
            raise UnreadableImage(f"shape {pixels.shape} of {pixels.dtype} is not an image (H, W) or (H, W, C)")
        if not finite(pixels):
            raise UnreadableImage(NOT_FINITE)
        if pixels.ndim == 2:
            pixels = pixels[..., None]
        elif is_tensor:
            pixels = np.moveaxis(pixels, 0, -1)
        return Image(self.id(i), pixels)


def as_slice(indices: Indices) -> slice | np.ndarray:
    """Consecutive positions as a slice, so that a memory map is viewed instead of gathered."""
    positions = np.asarray(indices)
    if positions.dtype == bool:
        positions = np.flatnonzero(positions)
    n = len(positions)
    if n and positions[0] >= 0 and positions[-1] - positions[0] == n - 1 and (n < 3 or (np.diff(positions) == 1).all()):
        return slice(int(positions[0]), int(positions[0]) + n)
    return positions.astype(np.intp)


def numpy_from_tensor(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's values on the CPU; bfloat16, which numpy lacks, becomes float32."""
    tensor = tensor.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":
        tensor = tensor.float()
    return tensor.numpy()


def from_tensor(tensor: torch.Tensor) -> ArraySource:
    """A source over a tensor (N, H, W) or (N, C, H, W)."""
    if tensor.ndim not in (3, 4):
        raise CongealError(
            f"tensor has shape {tuple(tensor.shape)}; a set of images is (N, H, W) or (N, C, H, W), channels first"
        )
    array = numpy_from_tensor(tensor)
    return ArraySource(array if array.ndim == 3 else np.moveaxis(array, 1, -1), name="tensor")


def sidecar(path: Path) -> Path:
    """Where `pack` keeps the ids and skipped reasons of a packed array."""
    return path.with_name(path.name + ".json")


def open_npy(path: Path) -> ArraySource:
    """A memory-mapped .npy file; one that `pack` wrote brings back its ids, masks, warps and skipped images."""
    array = _load(path)
    try:
        about = json.loads(sidecar(path).read_text(encoding="utf-8")) if sidecar(path).exists() else None
        if not isinstance(about, dict) or about.get("format") != PACKED:
            return ArraySource(array, name=path.name)
        return _packed(path, array, about)
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError) as error:
        raise CongealError(f"{sidecar(path)} is damaged ({type(error).__name__}: {error}): pack again") from error


def _packed(path: Path, array: np.ndarray, about: dict[str, Any]) -> ArraySource:
    """The array with all that `pack` wrote down about it."""
    n = len(array)
    if len(about["ids"]) != n:
        raise CongealError(f"{sidecar(path)} lists {len(about['ids'])} ids but {path} holds {n} images: pack again")
    beside = {}
    for name, shape in (("masks", array.shape[:3]), ("initial", (n, 3, 3)), ("truth", (n, 3, 3))):
        beside[name] = _load(path.with_name(about[name])) if about[name] else None
        found = beside[name]
        if found is not None and (found.shape != shape or found.dtype.kind not in "uif"):
            raise ValueError(f"{about[name]} holds {found.shape} of {found.dtype}, not {shape}")
    bad = {range(n)[int(i)]: str(reason) for i, reason in about["skipped"].items() if int(i) < n}
    if not all(isinstance(one, str) for one in about["ids"]):
        raise TypeError("an id is not text")
    source = ArraySource(array, name=path.name, ids=about["ids"], bad=bad, mask_array=beside["masks"])
    if about["kind"] not in (None, "object", "photo"):
        raise ValueError(f"no kind of images is called {about['kind']!r}")
    source.kind = about["kind"]
    source.initial, source.truth = beside["initial"], beside["truth"]
    if about["initial_size"]:
        height, width = about["initial_size"]
        source.initial_size = (int(height), int(width))
    return source


def _load(path: Path) -> np.ndarray:
    try:
        with np.errstate(over="ignore"):  # a size beyond all numbers is refused just after
            loaded: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # a damaged header raises nearly anything
        raise CongealError(f"{path} is not a readable .npy file of numbers ({first_line(error)})") from error
    if not isinstance(loaded, np.ndarray):
        raise CongealError(f"{path} is not a readable .npy file of numbers (it is an .npz archive)")
    return loaded


def open_npz(path: Path) -> ArraySource:
    """An .npz file with one array, or with one called 'images'."""
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {info.filename.removesuffix(".npy"): info.file_size for info in archive.infolist()}
        key = "images" if "images" in sizes else next(iter(sizes)) if len(sizes) == 1 else None
        if key is None:
            raise CongealError(f"{path} holds the arrays {', '.join(sizes) or '(none)'}: call one of them 'images'")
        if sizes[key] > MOST_UNPACKED:
            raise CongealError(f"{path} holds {sizes[key] / 1e9:.1f} GB, too much to unpack in memory: save it as .npy")
        with np.load(path, allow_pickle=False) as arrays:
            array = arrays[key]
    except CongealError:
        raise
    except Exception as error:  # a damaged archive raises nearly anything
        raise CongealError(f"{path} is not a readable .npz file of numbers ({first_line(error)})") from error
    if not isinstance(array, np.ndarray):
        raise CongealError(f"{path} is not a readable .npz file of numbers ('{key}' is no array)")
    return ArraySource(array, name=path.name)


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
    chunks = getattr(array, "chunks", None) or (1,)  # dask says the size of every chunk, others once for all
    first = max(map(int, chunks[0])) if isinstance(chunks[0], tuple) else int(chunks[0])
    reader = IndexedReader(array, stack.axes, chunk=first)
    ids = [str(i) for i in range(stack.n_images)]
    source = HyperstackSource(stack, reader, name=kind, layout="array", ids=ids)
    source.hyperstack = None  # an array comes back as an array
    return source
