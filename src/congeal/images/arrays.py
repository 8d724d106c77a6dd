"""Arrays in memory or memory-mapped: numpy (channels last), torch (channels first), .npy, .npz, lists of images."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from congeal.errors import CongealError
from congeal.images.mapped import MappedPages
from congeal.images.source import Image, ImageSource, Indices, UnreadableImage
from congeal.transforms.ids import Ids

if TYPE_CHECKING:
    import torch

NOT_FINITE = "the image has NaN or infinite values"
# Marks the JSON file beside an array as written by `pack`.
PACKED = "congeal-pack-1"


class ArraySource(ImageSource):
    """Images of one size in an array (N, H, W) or (N, H, W, C); nothing is copied until it is read."""

    layout = "array"

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
        self._pages = MappedPages(array, mask_array)

    def __len__(self) -> int:
        return len(self.array)

    def id(self, i: int) -> str:
        """Name of image i: as given, or its number."""
        return str(range(len(self))[i]) if self._ids is None else self._ids[i]

    def ids(self) -> Ids:
        """All names."""
        return super().ids() if self._ids is None else self._ids

    @property
    def shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of every image."""
        return (*self.array.shape[1:3], 1 if self.grey else self.array.shape[3])

    @property
    def dtype(self) -> np.dtype:
        """Type of the pixels."""
        # float16 and the like are kept; only a foreign byte order is turned into the machine's.
        return self.array.dtype.newbyteorder("=")

    @property
    def unreadable(self) -> dict[int, str]:
        """Position → why that image cannot be used."""
        return self._bad

    def read(self, i: int) -> Image:
        """Image i as pixels (H, W, C), with its mask if there is one."""
        if i in self._bad:
            raise UnreadableImage(self._bad[i])
        pixels = self.batch([i])[0]
        if pixels.dtype.kind == "f" and not np.isfinite(pixels).all():
            raise UnreadableImage(NOT_FINITE)
        mask = self.masks([i])[0] if self.has_masks else None
        return Image(self.id(i), pixels, mask)

    def batch(self, indices: Indices) -> np.ndarray:
        """(B, H, W, C) pixels of these positions."""
        pixels = np.asarray(self.array[as_slice(indices)])
        self._pages.touched(pixels.nbytes)
        if not pixels.dtype.isnative:
            pixels = pixels.astype(self.dtype)
        return pixels[..., None] if self.grey else pixels

    def masks(self, indices: Indices) -> np.ndarray:
        """(B, H, W) float32 masks of these positions."""
        if self.mask_array is None:
            raise CongealError(f"{self.name} has no masks")
        masks = np.asarray(self.mask_array[as_slice(indices)], dtype=np.float32) / np.float32(255)
        self._pages.touched(masks.size)
        return masks


class ListSource(ImageSource):
    """Images of any sizes in a Python list: numpy arrays (H, W[, C]), torch tensors ([C,] H, W) or PIL images."""

    def __init__(self, items: Sequence[Any], *, name: str = "list") -> None:
        self.items, self.name = items, name

    def __len__(self) -> int:
        return len(self.items)

    def id(self, i: int) -> str:
        """Name of image i."""
        return str(range(len(self))[i])

    def read(self, i: int) -> Image:
        """Image i as pixels (H, W, C)."""
        item = self.items[i]
        if hasattr(item, "getexif"):
            from congeal.images.decode import from_pillow

            return from_pillow(item, self.id(i))
        is_tensor = not isinstance(item, np.ndarray) and hasattr(item, "detach")
        pixels = numpy_from_tensor(item) if is_tensor else np.asarray(item)
        if pixels.ndim not in (2, 3) or pixels.dtype.kind not in "buif" or 0 in pixels.shape:
            raise UnreadableImage(f"shape {pixels.shape} of {pixels.dtype} is not an image (H, W) or (H, W, C)")
        if pixels.dtype.kind == "f" and not np.isfinite(pixels).all():
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
    about = json.loads(sidecar(path).read_text(encoding="utf-8")) if sidecar(path).exists() else None
    if not isinstance(about, dict) or about.get("format") != PACKED:
        return ArraySource(array, name=path.name)
    if len(about["ids"]) != len(array):
        raise CongealError(
            f"{sidecar(path)} lists {len(about['ids'])} ids but {path} holds {len(array)} images: pack again"
        )
    masks = _load(path.with_name(about["masks"])) if about["masks"] else None
    bad = {int(i): reason for i, reason in about["skipped"].items()}
    source = ArraySource(array, name=path.name, ids=about["ids"], bad=bad, mask_array=masks)
    source.kind = about["kind"]
    source.initial_size = tuple(about["initial_size"]) if about["initial_size"] else None
    source.initial = _load(path.with_name(about["initial"])) if about["initial"] else None
    source.truth = _load(path.with_name(about["truth"])) if about["truth"] else None
    return source


def _load(path: Path) -> np.ndarray:
    try:
        loaded: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise CongealError(f"{path} is not a readable .npy file of numbers ({error})") from error
    return loaded


def open_npz(path: Path) -> ArraySource:
    """An .npz file with one array, or with one called 'images'."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            names = archive.files
            key = "images" if "images" in names else names[0] if len(names) == 1 else None
            if key is None:
                raise CongealError(f"{path} holds the arrays {', '.join(names) or '(none)'}: call one of them 'images'")
            array = archive[key]
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise CongealError(f"{path} is not a readable .npz file of numbers ({error})") from error
    return ArraySource(array, name=path.name)
