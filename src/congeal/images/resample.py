"""Original pixels → aligned pixels, in the same dtype."""

from __future__ import annotations

import numpy as np
import torch

from congeal.errors import CongealError
from congeal.geometry.sampling import Mode, Padding, warp
from congeal.images.canvas import Placement, put_on_canvas
from congeal.images.source import Image

Size = tuple[int, int]
# Below this many source pixels per aligned pixel bilinear sampling misses nothing that matters.
_PREFILTER_FROM = 2.0


def warp_pixels(
    pixels: np.ndarray,
    source_from_aligned: np.ndarray,
    size: Size,
    padding: Padding = "zeros",
    mode: Mode = "bilinear",
) -> np.ndarray:
    """(H, W, C) or (H, W) source pixels → the aligned picture of `size` (h, w), same dtype and channels.

    Integers are rounded and clipped to their range. A picture much smaller than its source is filtered
    first, so that photographs do not alias.
    """
    if pixels.ndim not in (2, 3):
        raise CongealError(f"pixels must be (H, W) or (H, W, C), not {pixels.shape}")
    grey = pixels.ndim == 2
    image = pixels[..., None] if grey else pixels
    matrix = np.asarray(source_from_aligned, dtype=np.float64)
    shrink = scale_at_centre(matrix, size)
    if shrink > _PREFILTER_FROM and image.dtype != bool:
        reduced = (max(1, round(image.shape[0] / shrink)), max(1, round(image.shape[1] / shrink)))
        placement = Placement(reduced[1] / image.shape[1], reduced[0] / image.shape[0], 0.0, 0.0)
        values, _ = put_on_canvas(image, reduced, placement)
        matrix = placement.matrix @ matrix
        out = warp(torch.from_numpy(values[None]), torch.from_numpy(matrix)[None], size, mode=mode, padding=padding)
        result = _back(out, image.dtype)[0]
    else:
        result = warp_pixel_batch(image[None], matrix[None], size, padding, mode)[0]
    return result[..., 0] if grey else result


def warp_pixel_batch(
    pixels: np.ndarray,
    source_from_aligned: np.ndarray,
    size: Size,
    padding: Padding = "zeros",
    mode: Mode = "bilinear",
) -> np.ndarray:
    """(B, H, W, C) → (B, h, w, C) in the same dtype, one matrix (B, 3, 3) each, without the filter for shrinking."""
    wide = pixels.dtype.itemsize > 2 and pixels.dtype != np.float32  # float32 holds no more than 24 bits exactly
    values = np.ascontiguousarray(np.moveaxis(pixels, -1, 1), dtype=np.float64 if wide else np.float32)
    matrices = torch.from_numpy(np.ascontiguousarray(source_from_aligned, dtype=np.float64))
    return _back(warp(torch.from_numpy(values), matrices, size, mode=mode, padding=padding), pixels.dtype)


def warp_image(image: Image, source_from_aligned: np.ndarray, size: Size, padding: Padding = "zeros") -> Image:
    """An aligned Image: pixels and, if it has alpha, the mask."""
    mask = None
    if image.mask is not None:
        mask = np.clip(warp_pixels(image.mask, source_from_aligned, size), 0, 1)
    return Image(image.id, warp_pixels(image.pixels, source_from_aligned, size, padding), mask)


def scale_at_centre(matrix: np.ndarray, size: Size) -> float:
    """Source pixels per output pixel (length, not area) in the middle of the output, for source_from_output."""
    x, y = (size[1] - 1) / 2, (size[0] - 1) / 2
    depth = matrix[2] @ (x, y, 1)
    # det of the Jacobian of a homography at a point is det(M) / depth³.
    return float(np.sqrt(abs(np.linalg.det(matrix)) / max(abs(depth) ** 3, 1e-12)))


def _back(images: torch.Tensor, dtype: np.dtype) -> np.ndarray:
    """(B, C, h, w) tensor → (B, h, w, C) array of `dtype`."""
    values = images.permute(0, 2, 3, 1).contiguous().numpy()
    if dtype.kind == "b":
        return values >= 0.5
    if dtype.kind in "ui":
        limits = np.iinfo(dtype)
        return np.clip(np.rint(values), limits.min, limits.max).astype(dtype)
    return values.astype(dtype, copy=False)
