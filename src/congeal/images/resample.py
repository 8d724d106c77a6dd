"""Original pixels → aligned pixels, in the same dtype."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch

from congeal.errors import CongealError
from congeal.geometry.sampling import MIN_DENOMINATOR, Mode, Padding, sample_in_units, to_units
from congeal.images.canvas import Placement, put_on_canvas
from congeal.images.source import Image

Size = tuple[int, int]
# Below this many source pixels per aligned pixel bilinear sampling misses nothing that matters.
_PREFILTER_FROM = 2.0
_PIXELS_AT_ONCE = 1 << 17  # of the output: their grid and samples stay in the cache


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
        result = _sample(values[None], (placement.matrix @ matrix)[None], size, image.dtype, padding, mode)[0]
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
    """(B, H, W, C) → (B, h, w, C) in the same dtype, one matrix (B, 3, 3) each, without the filter for shrinking.

    The identity returns the image bit for bit.
    """
    wide = pixels.dtype.itemsize > 2 and pixels.dtype != np.float32  # float32 holds no more than 24 bits exactly
    kind = np.dtype(np.float64 if wide else np.float32)
    matrices = np.asarray(source_from_aligned, dtype=np.float64)
    still = (matrices.astype(kind) == np.eye(3)).all((1, 2)) & (pixels.shape[1:3] == size)
    if still.all():
        return pixels.copy()
    batch, height, width, channels = pixels.shape
    values = np.empty((batch, channels, height, width), kind)
    for channel in range(channels):
        values[:, channel] = pixels[..., channel]
    out = _sample(values, matrices, size, pixels.dtype, padding, mode)
    if still.any():
        out[still] = pixels[still]
    return out


def _sample(
    values: np.ndarray, source_from_aligned: np.ndarray, size: Size, dtype: np.dtype, padding: Padding, mode: Mode
) -> np.ndarray:
    """(B, C, H, W) floats → (B, h, w, C) of `dtype`, a few images or a few rows of one at a time."""
    images = torch.from_numpy(values)
    units = to_units(torch.from_numpy(source_from_aligned), (images.shape[2], images.shape[3]), size)
    out = np.empty((len(images), *size, images.shape[1]), dtype)
    for some, rows, unit in _parts(units, size):
        part = sample_in_units(images[some], unit.to(images.dtype), (rows.stop - rows.start, size[1]), mode, padding)
        _put(out[some, rows], part.numpy(), exceeds=mode != "bilinear")
    return out


def _parts(units: torch.Tensor, size: Size) -> Iterator[tuple[slice, slice, torch.Tensor]]:
    """Images, rows of the output, and matrices (b, 3, 3) that do for these rows, counted from 0, what `units` do."""
    at_once, rows = max(1, _PIXELS_AT_ONCE // (size[0] * size[1])), max(1, _PIXELS_AT_ONCE // size[1])
    for first in range(0, len(units), at_once):
        some = slice(first, first + at_once)
        for top in range(0, size[0], rows):
            unit = units[some].clone()
            unit[:, :, 2] += top * unit[:, :, 1]
            yield some, slice(top, min(top + rows, size[0])), unit


def _put(out: np.ndarray, values: np.ndarray, *, exceeds: bool) -> None:
    """Floats (b, C, h, w) into (b, h, w, C) of any type; exceeds: they may lie outside the range of their sources."""
    if out.dtype.kind == "b":
        values = values >= 0.5
    elif out.dtype.kind in "ui":
        values = np.rint(values, out=values)
        if exceeds or out.dtype.itemsize > 2:  # 64 bits end where no float is
            limits = np.iinfo(out.dtype)
            values = np.clip(values, limits.min, limits.max, out=values)
    for channel in range(out.shape[-1]):
        out[..., channel] = values[:, channel]


def covered(source_from_aligned: np.ndarray, source: Size, size: Size) -> np.ndarray:
    """(B, h, w) float32: what `congeal.geometry.sampling.coverage` gives, in closed form and exactly 1 inside.

    A bilinear sample less than a pixel outside the outermost pixel centres has a share of that pixel, on each axis.
    """
    units = to_units(torch.from_numpy(np.asarray(source_from_aligned, dtype=np.float64)), source, size)
    out = np.ones((len(units), *size), np.float32)
    for some, rows, unit in _parts(units, size):
        height, inside = rows.stop - rows.start, slice(0, 0)
        if len(unit) == 1:
            inside = _columns_inside(unit[0].numpy(), source, (height, size[1]))
        for columns in (slice(0, inside.start), slice(inside.stop, size[1])):
            if columns.start < columns.stop:
                out[some, rows, columns] = _shares(unit.numpy(), source, height, columns)
    return out


def _shares(units: np.ndarray, source: Size, height: int, columns: slice) -> np.ndarray:
    """What `covered` gives in some columns of so many rows, for unit_from_output (b, 3, 3)."""
    x, y = np.arange(columns.start, columns.stop), np.arange(height)[:, None]
    matrix = units[..., None, None]
    place = (matrix[:, :, 0] * x).astype(np.float32) + (matrix[:, :, 1] * y + matrix[:, :, 2]).astype(np.float32)
    depth = np.maximum(place[:, 2], np.float32(MIN_DENOMINATOR))
    for axis, length in ((0, source[1]), (1, source[0])):
        share = np.abs(np.divide(place[:, axis], depth, out=place[:, axis]), out=place[:, axis])
        share *= -length / 2  # from -1 to 1 between the outer edges, in pixels from the outermost that count
        share += (length + 1) / 2
        np.clip(share, 0, 1, out=share)
    return place[:, 0] * place[:, 1] * (place[:, 2] > MIN_DENOMINATOR)


def _columns_inside(unit: np.ndarray, source: Size, size: Size) -> slice:
    """Columns of an output of `size` whose samples all lie inside the image; most of them, as a rule.

    Being inside is five linear conditions on x and y, so a column that meets them in its first and its last row does.
    """
    conditions = [unit[2] - [0, 0, MIN_DENOMINATOR]]
    for axis, length in ((0, source[1]), (1, source[0])):
        conditions += [(1 - 1 / length) * unit[2] + sign * unit[axis] for sign in (1, -1)]
    first, last = 0.0, size[1] - 1.0
    for slope, down, rest in conditions:
        for least in (rest, rest + down * (size[0] - 1)):
            if slope > 0:
                first = max(first, -least / slope + 1)  # a column to spare for what rounding does
            elif slope < 0:
                last = min(last, -least / slope - 1)
            elif least < 0:
                return slice(0, 0)
    return slice(math.ceil(first), math.floor(last) + 1) if first <= last else slice(0, 0)


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
