"""Values between pixels: four kernels, from blocky to sharp.

nearest    the pixel itself; no new values appear
bilinear   the four pixels around; soft, and fast
bicubic    a cubic spline through the pixels (16 of them), as sharp as the pixels allow: the default
lanczos    a windowed sinc over 36 pixels

The spline is the cubic o-MOMS of Blu, Thévenaz and Unser (2001): of all kernels as wide as the cubic B-spline it loses
the least. Pixels become its coefficients first (`spline_coefficients`).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
import torch

from congeal.geometry.matrix import Size
from congeal.geometry.sampling import lookup, sampling_grid_in_units

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
INTERPOLATIONS: tuple[Interpolation, ...] = get_args(Interpolation)

_POLE = (math.sqrt(105) - 13) / 8
"""Of the inverse of (4z + 13 + 4/z) / 21, the values of the kernel at whole numbers."""
_REACH = {"float32": 14, "float64": 34}  # the pole to this power is nothing in that precision
_PART = 48  # coefficients that are filtered at a time
_LOBES = 3  # of the windowed sinc, to each side


def spline_coefficients(values: np.ndarray) -> np.ndarray:
    """Coefficients of the spline through images (B, C, H, W): a new array of the same dtype.

    Beyond its edges an image goes on as its mirror image, the outermost pixels twice.
    """
    across, down = np.empty_like(values), np.empty_like(values)
    columns = torch.from_numpy(values).flatten(0, 2)
    for part, used, weights in _filter(values.shape[3], values.dtype.name):
        torch.mm(columns[:, used], weights, out=torch.from_numpy(across).flatten(0, 2)[:, part])
    rows, out = torch.from_numpy(across).flatten(0, 1), torch.from_numpy(down).flatten(0, 1)
    for part, used, weights in _filter(values.shape[2], values.dtype.name):
        torch.matmul(weights.T, rows[:, used], out=out[:, part])
    return down


@lru_cache(maxsize=32)
def _filter(length: int, dtype: str) -> list[tuple[slice, slice, torch.Tensor]]:
    """Along an axis, for one part of the coefficients after the other: the pixels they depend on, and their weights.

    That is the inverse of the matrix of the kernel's values at whole numbers. It falls off by the pole with every
    pixel, and an axis that ends is one that is mirrored there.
    """
    reach = _REACH[dtype]
    if length <= 2 * reach:
        taps = np.arange(length)
        kernel = np.zeros((length, length))
        for step, value in ((-1, 4 / 21), (0, 13 / 21), (1, 4 / 21)):
            np.add.at(kernel, (np.clip(taps + step, 0, length - 1), taps), value)
        whole = torch.from_numpy(np.linalg.inv(kernel).astype(dtype))
        return [(slice(0, length), slice(0, length), whole)]
    parts = []
    for first in range(0, length, _PART):
        last = min(first + _PART, length)
        used = slice(max(0, first - reach), min(length, last + reach))
        pixel, place = np.arange(used.start, used.stop)[:, None], np.arange(first, last)
        fall = _POLE ** np.abs(pixel - place) + _POLE ** (pixel + place + 1) + _POLE ** (2 * length - 1 - pixel - place)
        weights = fall * (-21 * _POLE / 4 / (1 - _POLE**2))
        parts.append((slice(first, last), used, torch.from_numpy(weights.astype(dtype))))
    return parts


def interpolate(values: torch.Tensor, unit: torch.Tensor, size: Size, kind: Interpolation) -> torch.Tensor:
    """Images (B, C, H, W) through unit_from_output (B, 3, 3) (see `to_units`) → (B, C, h, w).

    Outside, an image goes on as its outermost pixels. bicubic takes `spline_coefficients` for images; it and lanczos
    may leave the range of the pixels.
    """
    grid = sampling_grid_in_units(unit, size)
    if kind in ("nearest", "bilinear"):
        return lookup(values, grid, kind)
    height, width = values.shape[-2:]
    x = _pixels(grid[..., 0], width)
    y = _pixels(grid[..., 1], height)
    return _spline(values, x, y) if kind == "bicubic" else _lanczos(values, x, y)


def spline_at(coefficients: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Values of one image, given by its `spline_coefficients` (H, W), at pixels x, y (...) of the same dtype; or of
    images (E, H, W), each at its own x, y (E, ...).

    Outside, an image goes on as its outermost pixels.
    """
    images = coefficients if coefficients.ndim == 3 else coefficients[None]
    height, width = images.shape[1:]
    flat = (place.reshape(len(images), 1, -1).clamp(0, side - 1) for place, side in ((x, width), (y, height)))
    return _spline(images[:, None], *flat).view(x.shape)


def _pixels(unit: torch.Tensor, length: int) -> torch.Tensor:
    """From -1 … 1 between the outer edges to pixels, held inside the outermost centres."""
    return ((unit + 1) * (length / 2) - 0.5).clamp_(0, length - 1)


def _spline(coefficients: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Two neighbours weighted in their proportion are one bilinear look-up between them: 4 instead of 16."""
    height, width = coefficients.shape[-2:]
    places = x.new_empty((4, *x.shape))  # left, right, above, below: any of the first two with any of the others
    near_x, near_y = _pairs(x, width, places[:2]), _pairs(y, height, places[2:])
    rows = []
    for left, right in ((slice(0, 3, 2), slice(1, 3)), (slice(0, 4, 3), slice(1, 4, 2))):
        here, there = (lookup(coefficients, places[pair].permute(1, 2, 3, 0), "bilinear") for pair in (left, right))
        rows.append(torch.lerp(there, here, near_x[:, None]))
    return torch.lerp(rows[1], rows[0], near_y[:, None])


def _empty_grid(place: torch.Tensor) -> torch.Tensor:
    """Room for (B, h, w, 2), all x before all y: they are written one after the other."""
    batch, height, width = place.shape
    return torch.empty((batch, 2, height, width), dtype=place.dtype, device=place.device).permute(0, 2, 3, 1)


def _pairs(place: torch.Tensor, length: int, between: torch.Tensor) -> torch.Tensor:
    """For places along an axis: what the two pixels before weigh together. Where to look between them and between the
    two behind goes to `between` (2, ...), from -1 to 1. The kernel is 13/21 + |x|/14 - x² + |x|³/2 up to 1, and up to
    2 (2 - |x|)³/6 + (2 - |x|)/42."""
    scale = 2 / length
    t = torch.frac(place)
    first = (place - t).mul_(scale)
    square = t * t
    outer_right = (square / 6).add_(1 / 42).mul_(t)
    inner_left = (t / 2).sub_(1).mul_(square).add_(t, alpha=1 / 14).add_(13 / 21)
    near = (t / 3).sub_(1 / 2).mul_(square).add_(t, alpha=-19 / 42).add_(17 / 21)  # with the outer one on the left
    torch.sub(inner_left.div_(near).mul_(scale).add_(first), 0.5 * scale + 1, out=between[0])
    torch.add(outer_right.div_(1 - near).mul_(scale).add_(first), 1.5 * scale - 1, out=between[1])
    return near


def _lanczos(values: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    height, width = values.shape[-2:]
    columns, weights_x = _taps(x, width)
    rows, weights_y = _taps(y, height)
    grid = _empty_grid(x)
    out: torch.Tensor | None = None
    for row, weight_y in zip(rows, weights_y, strict=True):
        grid[..., 1] = row
        line: torch.Tensor | None = None
        for column, weight_x in zip(columns, weights_x, strict=True):
            grid[..., 0] = column
            part = lookup(values, grid, "nearest") * weight_x[:, None]
            line = part if line is None else line.add_(part)
        assert line is not None
        line *= weight_y[:, None]
        out = line if out is None else out.add_(line)
    assert out is not None
    return out


def _taps(place: torch.Tensor, length: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The pixels around places along an axis, from -1 to 1, and their weights, which sum to 1."""
    first = place.floor()
    steps = range(1 - _LOBES, _LOBES + 1)
    weights = [_windowed_sinc(place - (first + step)) for step in steps]
    total = torch.stack(weights).sum(0)
    return [(first + (step + 0.5)) * (2 / length) - 1 for step in steps], [weight / total for weight in weights]


def _windowed_sinc(distance: torch.Tensor) -> torch.Tensor:
    return torch.sinc(distance) * torch.sinc(distance / _LOBES)
