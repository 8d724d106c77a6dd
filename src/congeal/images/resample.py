"""Original pixels → aligned pixels, in the same dtype."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as functional

from congeal.errors import CongealError
from congeal.geometry import native
from congeal.geometry.frame_coverage import shares_of
from congeal.geometry.kernels import Interpolation, interpolate, spline_coefficients
from congeal.geometry.matrix import rescale
from congeal.geometry.warping import to_units
from congeal.images.canvas import Placement, put_on_canvas
from congeal.images.sources.base import Image
from congeal.rows import row_slices

Size = tuple[int, int]
Fill = float | Literal["edge"]
# Source pixels per aligned pixel from which an image is filtered first. Below that bilinear sampling, which is soft
# itself, misses nothing that matters; sharp kernels alias sooner.
MIN_FILTERED_REDUCTION = {"nearest": math.inf, "bilinear": 2.0, "bicubic": 1.1, "lanczos": 1.1}
# Pixels of the output that torch samples at a time: their grid and samples stay in the cache.
PIXELS_AT_ONCE = 1 << 16
# Pixels by which a shift may miss whole pixels and still be one: at most 0.03 of 255 grey levels.
MAX_SHIFT_ERROR_PX = 1e-4


@dataclass(frozen=True)
class Sampling:
    """How pixels are looked up between pixels, and what lies outside an image.

    interpolation: see `congeal.geometry.kernels`. Sharp kernels are held inside the range of each image, so that
    nothing rings beyond black and white. fill: a value on the scale of the pixels; NaN, which integers have none of
    (theirs is 0); or "edge", which goes on with the outermost pixels.
    """

    interpolation: Interpolation = "bicubic"
    fill: Fill = 0.0

    def value(self, dtype: np.dtype) -> float:
        """What is put outside an image of this dtype, as the dtype holds it."""
        if self.fill == "edge" or (dtype.kind != "f" and not math.isfinite(self.fill)):
            return 0.0
        if dtype.kind in "ui":
            limits = np.iinfo(dtype)
            return float(round(min(max(self.fill, limits.min), limits.max)))
        return float(self.fill >= 0.5) if dtype.kind == "b" else float(self.fill)

    def kernel(self, dtype: np.dtype) -> Interpolation:
        """The kernel for images of this dtype: what is true or false is not blended."""
        return "bilinear" if dtype.kind == "b" and self.interpolation != "nearest" else self.interpolation


SHARP = Sampling()
SOFT = Sampling("bilinear")


def warp_pixels(
    pixels: np.ndarray, source_from_aligned: np.ndarray, size: Size, sampling: Sampling = SHARP
) -> np.ndarray:
    """(H, W, C) or (H, W) source pixels → the aligned picture of `size` (h, w), same dtype and channels.

    Integers are rounded and clipped to their range. A picture smaller than its source is filtered first, so that
    photographs do not alias.
    """
    if pixels.ndim not in (2, 3):
        raise CongealError(f"pixels must be (H, W) or (H, W, C), not {pixels.shape}")
    grey = pixels.ndim == 2
    image = pixels[..., None] if grey else pixels
    matrix = np.asarray(source_from_aligned, dtype=np.float64)
    shrink = float(scale_at_centre(matrix, size))
    if shrink > MIN_FILTERED_REDUCTION[sampling.interpolation] and image.dtype != bool:
        reduced = (max(1, round(image.shape[0] / shrink)), max(1, round(image.shape[1] / shrink)))
        placement = Placement(reduced[1] / image.shape[1], reduced[0] / image.shape[0], 0.0, 0.0)
        values, _ = put_on_canvas(image, reduced, placement, sharp=sampling.interpolation != "bilinear")
        filtered, reduced_from_aligned = np.moveaxis(values, 0, -1)[None], (placement.matrix @ matrix)[None]
        result = _sample(filtered, reduced_from_aligned, size, image.dtype, sampling)[0]
    else:
        result = warp_pixel_batch(image[None], matrix[None], size, sampling)[0]
    return result[..., 0] if grey else result


def warp_pixel_batch(
    pixels: np.ndarray, source_from_aligned: np.ndarray, size: Size, sampling: Sampling = SHARP
) -> np.ndarray:
    """(B, H, W, C) → (B, h, w, C) in the same dtype, one matrix (B, 3, 3) each, without the filter for shrinking.

    The identity and shifts by whole pixels return the pixels bit for bit.
    """
    matrices = np.asarray(source_from_aligned, dtype=np.float64)
    still = whole_shifts(matrices, size)
    out = np.empty((len(pixels), *size, pixels.shape[-1]), pixels.dtype)
    for k in np.flatnonzero(still):
        _shift(pixels[k], np.rint(matrices[k, :2, 2]).astype(int), sampling, out[k])
    if not still.all():
        moved = ~still if still.any() else slice(None)
        out[moved] = _sample(pixels[moved], matrices[moved], size, pixels.dtype, sampling)
    return out


def _sample(pixels: np.ndarray, matrices: np.ndarray, size: Size, dtype: np.dtype, sampling: Sampling) -> np.ndarray:
    """(B, H, W, C) → (B, h, w, C) of `dtype`, by the native library where it can, else by torch."""
    kernel, out = sampling.kernel(dtype), np.empty((len(pixels), *size, pixels.shape[-1]), dtype)
    rest = np.ones(len(pixels), bool)
    if native.suits(pixels.dtype, kernel) and native.suits(dtype, kernel):
        fill = sampling.value(dtype)
        outside: Literal["edge", "cut", "fade"] = "cut" if math.isnan(fill) else "fade"
        outside = "edge" if sampling.fill == "edge" else outside
        rest = ~native.warp_native(pixels, matrices, out, kernel, outside, fill)
    if rest.any():
        out[rest] = _sample_by_torch(pixels[rest], matrices[rest], size, dtype, sampling)
    return out


def is_plain_resize(source_from_output: np.ndarray, source: Size, size: Size) -> bool:
    """Whether a matrix (3, 3) does nothing but fit the whole image into a picture of `size`."""
    return bool(
        np.allclose(source_from_output, rescale(size, source), rtol=0, atol=MAX_SHIFT_ERROR_PX / max(source) ** 2)
    )


def shrink_pixels(pixels: np.ndarray, size: Size) -> np.ndarray:
    """8-bit pixels (B, H, W, C) in a smaller size (h, w), every one of them counted: a triangle as wide as the step."""
    own = pixels if pixels.flags.writeable else pixels.copy()  # torch warns of memory it must not write to
    # Of an axis of length 1 the step may be anything to NumPy; torch would not see that channels come last.
    images = torch.from_numpy(own[0])[None] if len(own) == 1 else torch.from_numpy(own)
    small = functional.interpolate(images.permute(0, 3, 1, 2), size, mode="bilinear", antialias=True)
    return np.ascontiguousarray(small.permute(0, 2, 3, 1).numpy())


def warp_masks(
    masks: np.ndarray, source_from_aligned: np.ndarray, size: Size, interpolation: Interpolation
) -> np.ndarray:
    """(B, H, W) in [0, 1] → (B, h, w): 0 outside. A mask that is only 0 and 1 stays so: it takes what is nearest."""
    soft = Sampling("nearest" if interpolation == "nearest" else "bilinear")
    if len(masks) == 1:
        out = warp_pixels(masks[0], source_from_aligned[0], size, soft)[None]
    else:
        out = warp_pixel_batch(masks[..., None], source_from_aligned, size, soft)[..., 0]
    for mask, given in zip(out, masks, strict=True):
        if ((given == 0) | (given == 1)).all():
            mask[:] = mask >= 0.5
    return np.clip(out, 0, 1)


def whole_shifts(matrices: np.ndarray, size: Size) -> np.ndarray:
    """(B,) whether each matrix (B, 3, 3) moves a picture of this size by whole pixels, or not at all."""
    longest = max(size)
    linear = np.abs(matrices[:, :2, :2] - np.eye(2)).max((1, 2)) * longest
    depth = np.abs(matrices[:, 2] - [0, 0, 1]) * [longest**2, longest**2, longest]
    shift = matrices[:, :2, 2]
    miss = np.abs(shift - np.rint(shift)).max(1)
    return (
        (linear < MAX_SHIFT_ERROR_PX)
        & (depth.max(1) < MAX_SHIFT_ERROR_PX)
        & (miss < MAX_SHIFT_ERROR_PX)
        & (np.abs(shift).max(1) < 1e9)
    )


def _shift(pixels: np.ndarray, shift: np.ndarray, sampling: Sampling, out: np.ndarray) -> None:
    """Pixels (H, W, C) that lie so many columns and rows further, as they are."""
    (height, width), (h, w), (across, down) = pixels.shape[:2], out.shape[:2], shift.tolist()
    if sampling.fill == "edge":
        rows, columns = np.clip(np.arange(h) + down, 0, height - 1), np.clip(np.arange(w) + across, 0, width - 1)
        out[:] = pixels[rows[:, None], columns]
        return
    left, right = (min(max(side, 0), w) for side in (-across, width - across))  # of the output that the image covers
    top, bottom = (min(max(side, 0), h) for side in (-down, height - down))
    if (top, left, bottom, right) != (0, 0, h, w):
        out[:] = sampling.value(out.dtype)
    if top < bottom and left < right:
        out[top:bottom, left:right] = pixels[top + down : bottom + down, left + across : right + across]


def _sample_by_torch(
    pixels: np.ndarray, source_from_aligned: np.ndarray, size: Size, dtype: np.dtype, sampling: Sampling
) -> np.ndarray:
    """`_sample` without the native library, some rows of all images at a time."""
    batch, height, width, channels = pixels.shape
    wide = pixels.dtype.itemsize > 2 and pixels.dtype != np.float32  # float32 holds no more than 24 bits exactly
    values = np.empty((batch, channels, height, width), np.float64 if wide else np.float32)
    for channel in range(channels):
        values[:, channel] = pixels[..., channel]
    kernel = sampling.kernel(dtype)
    limits = _range(values, dtype) if kernel in ("bicubic", "lanczos") else None
    images = torch.from_numpy(spline_coefficients(values) if kernel == "bicubic" else values)
    units = to_units(torch.from_numpy(source_from_aligned), (height, width), size)
    out = np.empty((batch, *size, channels), dtype)
    for rows in row_slices(size[0], max(1, PIXELS_AT_ONCE // (batch * size[1]))):
        unit, count = units.clone(), rows.stop - rows.start
        unit[:, :, 2] += rows.start * unit[:, :, 1]  # rows are counted from the first of this part
        part = interpolate(images, unit, (count, size[1]), kernel).numpy()
        if limits is not None:
            np.clip(part, *limits, out=part)
        if sampling.fill != "edge":
            cover = shares_of(unit.numpy(), (height, width), count, slice(0, size[1]))
            _fill_outside(part, cover >= 0.5 if kernel == "nearest" else cover, sampling.value(dtype))
        _put(out[:, rows], part)
    return out


def _range(values: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Least and largest of each channel (B, C, 1, 1); of what was filtered first, not beyond what `dtype` holds."""
    low, high = (limit.reduce(values, (2, 3), keepdims=True) for limit in (np.fmin, np.fmax))  # NaN is no limit
    if dtype.kind in "ui":
        limits = np.iinfo(dtype)
        low, high = np.maximum(low, limits.min), np.minimum(high, limits.max)
    return low, high


def _fill_outside(part: np.ndarray, cover: np.ndarray, fill: float) -> None:
    """Let samples (b, C, h, w) fade into `fill` where the image ends, by the share (b, h, w) that lies inside.

    Nothing fades into NaN, nor where the share is true or false.
    """
    if math.isnan(fill) or cover.dtype == bool:
        np.copyto(part, fill, where=(cover < 0.5)[:, None])
        return
    part *= cover[:, None]
    if fill:
        part += fill * (1 - cover[:, None])


def _put(out: np.ndarray, values: np.ndarray) -> None:
    """Floats (b, C, h, w) into (b, h, w, C) of any type."""
    if out.dtype.kind == "b":
        values = values >= 0.5
    elif out.dtype.kind in "ui":
        values = np.rint(values, out=values)
        limits = np.iinfo(out.dtype)
        if out.dtype.itemsize > 2:  # 64 bits end where no float is
            values = np.clip(values, limits.min, limits.max, out=values)
    for channel in range(out.shape[-1]):
        out[..., channel] = values[:, channel]


def warp_image(image: Image, source_from_aligned: np.ndarray, size: Size, sampling: Sampling = SHARP) -> Image:
    """An aligned Image: pixels and, if it has alpha, the mask."""
    mask = None
    if image.mask is not None:
        mask = warp_masks(image.mask[None], source_from_aligned[None], size, sampling.interpolation)[0]
    return Image(image.id, warp_pixels(image.pixels, source_from_aligned, size, sampling), mask)


def scale_at_centre(source_from_output: np.ndarray, size: Size) -> np.ndarray:
    """(…) source pixels per output pixel (length, not area) in the middle of the output, for (…, 3, 3)."""
    matrix = np.asarray(source_from_output, dtype=np.float64)
    x, y = (size[1] - 1) / 2, (size[0] - 1) / 2
    depth = matrix[..., 2, :] @ (x, y, 1.0)
    # det of the Jacobian of a homography at a point is det(M) / depth³.
    return np.asarray(np.sqrt(np.abs(np.linalg.det(matrix)) / np.maximum(np.abs(depth) ** 3, 1e-12)))
