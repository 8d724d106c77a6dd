"""Original pixels → aligned pixels, in the same dtype."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as functional

from congeal.errors import CongealError
from congeal.geometry import native
from congeal.geometry.frame_coverage import columns_at_edges, columns_inside, shares_of
from congeal.geometry.kernels import Interpolation, interpolate, spline_coefficients
from congeal.geometry.matrix import rescale
from congeal.geometry.warping import sample_in_units, to_units
from congeal.images.canvas import Placement, put_on_canvas
from congeal.images.sources.base import Image

Size = tuple[int, int]
Fill = float | Literal["edge"]
# From so many source pixels per aligned pixel on a picture is filtered first. Below that bilinear sampling, which is
# soft itself, misses nothing that matters.
_PREFILTER_FROM = {"nearest": math.inf, "bilinear": 2.0, "bicubic": 1.1, "lanczos": 1.1}
_PIXELS_AT_ONCE = 1 << 17  # of the output: their grid and samples stay in the cache …
_LOOKUPS = {"nearest": 1, "bilinear": 1, "bicubic": 2, "lanczos": 4}  # … where they are read so many times
_WHOLE = 1e-4  # pixels by which a shift may miss whole pixels and still be one


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
        """What is put outside an image of this dtype, inside its range."""
        if self.fill == "edge" or (dtype.kind != "f" and not math.isfinite(self.fill)):
            return 0.0
        if dtype.kind in "ui":
            limits = np.iinfo(dtype)
            return float(min(max(self.fill, limits.min), limits.max))
        return float(self.fill)

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
    if shrink > _PREFILTER_FROM[sampling.interpolation] and image.dtype != bool:
        reduced = (max(1, round(image.shape[0] / shrink)), max(1, round(image.shape[1] / shrink)))
        placement = Placement(reduced[1] / image.shape[1], reduced[0] / image.shape[0], 0.0, 0.0)
        values, _ = put_on_canvas(image, reduced, placement, sharp=sampling.interpolation != "bilinear")
        result = _sample_reduced(values, placement.matrix @ matrix, size, image.dtype, sampling)
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
    moved = np.flatnonzero(~still)
    if len(moved):
        some = pixels if len(moved) == len(pixels) else pixels[moved]
        sampled = _sample_pixels(some, matrices[moved], size, sampling)
        if len(moved) == len(pixels):
            return sampled
        out[moved] = sampled
    return out


def _sample_pixels(pixels: np.ndarray, matrices: np.ndarray, size: Size, sampling: Sampling) -> np.ndarray:
    """`warp_pixel_batch` of images that move."""
    if native.suits(pixels.dtype, sampling.kernel(pixels.dtype)):
        out = np.empty((len(pixels), *size, pixels.shape[-1]), pixels.dtype)
        left = ~_draw(pixels, matrices, out, sampling)
        if left.any():
            out[left] = _sample_by_torch(pixels[left], matrices[left], size, sampling)
        return out
    return _sample_by_torch(pixels, matrices, size, sampling)


def _sample_by_torch(pixels: np.ndarray, matrices: np.ndarray, size: Size, sampling: Sampling) -> np.ndarray:
    batch, height, width, channels = pixels.shape
    wide = pixels.dtype.itemsize > 2 and pixels.dtype != np.float32  # float32 holds no more than 24 bits exactly
    values = np.empty((batch, channels, height, width), np.float64 if wide else np.float32)
    for channel in range(channels):
        values[:, channel] = pixels[..., channel]
    return _sample(values, matrices, size, pixels.dtype, sampling)


def _sample_reduced(
    values: np.ndarray, source_from_aligned: np.ndarray, size: Size, dtype: np.dtype, sampling: Sampling
) -> np.ndarray:
    """(C, H, W) floats of an image that was filtered first → (h, w, C) of `dtype`."""
    if values.dtype == np.float32 and native.suits(dtype, sampling.kernel(dtype)):
        out = np.empty((1, *size, len(values)), dtype)
        if _draw(np.moveaxis(values, 0, -1)[None], source_from_aligned[None], out, sampling)[0]:
            return out[0]
    return _sample(values[None], source_from_aligned[None], size, dtype, sampling)[0]


def _draw(pixels: np.ndarray, matrices: np.ndarray, out: np.ndarray, sampling: Sampling) -> np.ndarray:
    """(B,) which images were drawn into `out`, by the library that is built for it."""
    kernel, fill = sampling.kernel(out.dtype), sampling.value(out.dtype)
    if sampling.fill == "edge":
        return native.warp(pixels, matrices, out, kernel, "edge", 0.0)
    if math.isnan(fill):
        return native.warp(pixels, matrices, out, kernel, "cut", fill)
    return native.warp(pixels, matrices, out, kernel, "fade", fill)


def is_plain_resize(source_from_output: np.ndarray, source: Size, size: Size) -> bool:
    """Whether a matrix (3, 3) does nothing but fit the whole image into a picture of `size`."""
    return bool(np.allclose(source_from_output, rescale(size, source), rtol=0, atol=_WHOLE / max(source) ** 2))


def shrink(pixels: np.ndarray, size: Size) -> np.ndarray:
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
    return (linear < _WHOLE) & (depth.max(1) < _WHOLE) & (miss < _WHOLE) & (np.abs(shift).max(1) < 1e9)


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
        out[:] = _fitting(sampling.value(out.dtype), out.dtype)
    if top < bottom and left < right:
        out[top:bottom, left:right] = pixels[top + down : bottom + down, left + across : right + across]


def _fitting(value: float, dtype: np.dtype) -> float:
    """A value as this dtype holds it."""
    if dtype.kind == "b":
        return float(value >= 0.5)
    return float(round(value)) if dtype.kind in "ui" else value


def _sample(
    values: np.ndarray, source_from_aligned: np.ndarray, size: Size, dtype: np.dtype, sampling: Sampling
) -> np.ndarray:
    """(B, C, H, W) floats → (B, h, w, C) of `dtype`, a few images or rows of one at a time. May overwrite them."""
    kernel = sampling.kernel(dtype)
    source = values.shape[2], values.shape[3]
    sharp = kernel in ("bicubic", "lanczos")
    if sharp:
        low, high = _range(values, dtype)
    images = torch.from_numpy(spline_coefficients(values) if kernel == "bicubic" else values)
    fades = kernel == "bilinear" and sampling.fill == 0  # into black, which the sampler does itself
    units = to_units(torch.from_numpy(source_from_aligned), source, size)
    first = stop = np.full(size[0], size[1])  # anything may lie outside
    if len(units) == 1:
        first, stop = columns_inside(units[0].numpy(), source, size)
    out = np.empty((len(images), *size, images.shape[1]), dtype)
    for some, rows, unit in _parts(units, size, _PIXELS_AT_ONCE // _LOOKUPS[kernel]):
        here = rows.stop - rows.start, size[1]
        if fades:
            part = sample_in_units(images[some], unit.to(images.dtype), here)
        else:
            part = interpolate(images[some], unit, here, kernel)
        if sharp:
            np.clip(part.numpy(), low[some], high[some], out=part.numpy())
        if not fades and sampling.fill != "edge":
            for columns in columns_at_edges(first[rows], stop[rows], size[1]):
                cover = shares_of(unit.numpy(), source, here[0], columns)
                outer = part.numpy()[..., columns]
                _fill_outside(outer, cover >= 0.5 if kernel == "nearest" else cover, sampling.value(dtype))
        _put(out[some, rows], part.numpy())
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


def _parts(units: torch.Tensor, size: Size, pixels: int) -> Iterator[tuple[slice, slice, torch.Tensor]]:
    """Images, rows of the output, and matrices (b, 3, 3) that do for these rows, counted from 0, what `units` do.

    pixels: how many of the output may be done at a time.
    """
    at_once, rows = max(1, pixels // (size[0] * size[1])), max(1, pixels // size[1])
    for first in range(0, len(units), at_once):
        some = slice(first, first + at_once)
        for top in range(0, size[0], rows):
            unit = units[some].clone()
            unit[:, :, 2] += top * unit[:, :, 1]
            yield some, slice(top, min(top + rows, size[0])), unit


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


def needs_filter(source_from_output: np.ndarray, size: Size, sampling: Sampling) -> np.ndarray:
    """(B,) whether a picture is so much smaller than its source that it is filtered first, for (B, 3, 3)."""
    return np.asarray(scale_at_centre(source_from_output, size) > _PREFILTER_FROM[sampling.interpolation])


def scale_at_centre(source_from_output: np.ndarray, size: Size) -> np.ndarray:
    """(…) source pixels per output pixel (length, not area) in the middle of the output, for (…, 3, 3)."""
    matrix = np.asarray(source_from_output, dtype=np.float64)
    x, y = (size[1] - 1) / 2, (size[0] - 1) / 2
    depth = matrix[..., 2, :] @ (x, y, 1.0)
    # det of the Jacobian of a homography at a point is det(M) / depth³.
    return np.asarray(np.sqrt(np.abs(np.linalg.det(matrix)) / np.maximum(np.abs(depth) ** 3, 1e-12)))
