"""Values between pixels: four kernels, from blocky to sharp.

nearest    the pixel itself; no new values appear
bilinear   the four pixels around; soft, and fast
bicubic    a cubic spline through the pixels (16 of them), as sharp as the pixels allow: the default
lanczos    a windowed sinc over 36 pixels

The spline is the cubic o-MOMS of Blu, Thévenaz and Unser (2001): of all kernels as wide as the cubic B-spline it loses
the least. Pixels become its coefficients first (`spline_coefficients`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, get_args

import numpy as np
import torch

from congeal.geometry.matrix import Size
from congeal.geometry.warping import lookup, project, sampling_grid_in_units, to_pixels

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
INTERPOLATIONS: tuple[Interpolation, ...] = get_args(Interpolation)

SPLINE_STEPS = {"float32": 4, "float64": 5}
"""Steps of the spline's filter: the factor of one more is below the last digit of the dtype."""
LINES_AT_ONCE = 128
"""Rows, and columns, that are filtered together: they stay in the processor's cache, which halves the time."""
LANCZOS_LOBES = 3
"""Lobes of the windowed sinc to each side, the usual choice."""


def spline_coefficients(values: np.ndarray) -> np.ndarray:
    """Coefficients of the spline through images (B, C, H, W): a new array of the same dtype.

    Beyond its edges an image goes on as its mirror image, the outermost pixels twice.
    """
    height, width = values.shape[2:]
    planes, out = values.reshape(-1, height, width), np.empty(values.shape, values.dtype)
    filtered, rows = out.reshape(planes.shape), out.reshape(-1, width)
    at_once = max(1, LINES_AT_ONCE // width)
    for first in range(0, len(planes), at_once):
        for left in range(0, width, LINES_AT_ONCE):
            part = np.s_[first : first + at_once, :, left : left + LINES_AT_ONCE]
            filtered[part] = _inverse_filter(planes[part])
    for top in range(0, len(rows), LINES_AT_ONCE):
        rows[top : top + LINES_AT_ONCE] = _inverse_filter(rows[top : top + LINES_AT_ONCE])
    return out


def _inverse_filter(lines: np.ndarray) -> np.ndarray:
    """Lines that run along axis 1, through the inverse of (4/z + 13 + 4z) / 21, the kernel's values at whole numbers.

    1 / (1 − b (1/z + z)) is (1 + b (1/z + z)) / (1 − 2b²) / (1 − b' (1/z² + z²)) with b' = b² / (1 − 2b²): the same
    for every second pixel. Every step about squares b, so it is soon negligible.
    """
    factors, gain = _filter_steps(lines.dtype)
    margin = 2 ** len(factors) - 1
    values = lines.take(np.pad(np.arange(lines.shape[1]), margin, mode="symmetric"), 1)
    values *= gain
    for step, factor in factors.items():
        around = values[:, : -2 * step] + values[:, 2 * step :]
        around *= factor
        values = values[:, step:-step]
        values += around
    return values


@lru_cache(maxsize=2)
def _filter_steps(dtype: np.dtype) -> tuple[dict[int, np.floating], np.floating]:
    """The factor of each step, by the distance of the pixels that it adds, and the factor of all pixels."""
    factors, gain, b = {}, 21 / 13, -4 / 13
    for number in range(SPLINE_STEPS[dtype.name]):
        factors[2**number] = dtype.type(b)
        gain, b = gain / (1 - 2 * b * b), b * b / (1 - 2 * b * b)
    return factors, dtype.type(gain)


def interpolate(values: torch.Tensor, unit: torch.Tensor, size: Size, kind: Interpolation) -> torch.Tensor:
    """Images (B, C, H, W) through unit_from_output (B, 3, 3), in the sampler's own coordinates → (B, C, h, w).

    Outside, an image goes on as its outermost pixels. bicubic takes `spline_coefficients` for images; it and lanczos
    may leave the range of the pixels.
    """
    if kind in ("nearest", "bilinear"):
        return lookup(values, sampling_grid_in_units(unit.to(values.dtype), size), kind)
    height, width = values.shape[-2:]
    places = project(to_pixels(unit, (height, width)).to(values.dtype), size)
    x, y = places[:, 0].clamp(0, width - 1), places[:, 1].clamp(0, height - 1)
    return _spline(values, x, y) if kind == "bicubic" else _lanczos(values, x, y)


def spline_at(coefficients: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Values of one image, given by its `spline_coefficients` (H, W), at pixels x, y (...) of the same dtype; or of
    images (E, H, W), each at its own x, y (E, ...).

    Outside, an image goes on as its outermost pixels.
    """
    images = coefficients if coefficients.ndim == 3 else coefficients[None]
    height, width = images.shape[1:]
    columns, rows = (place.reshape(len(images), 1, -1).clamp(0, side - 1) for place, side in ((x, width), (y, height)))
    return _spline(images[:, None], columns, rows).view(x.shape)


def _spline(coefficients: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """At pixels x, y (B, h, w) inside the images. Two neighbours weighted in their proportion are one bilinear look-up
    between them: 4 look-ups instead of 16."""
    height, width = coefficients.shape[-2:]
    left, right, near_x = _pairs(x, width)
    above, below, near_y = _pairs(y, height)
    rows = []
    for row in (above, below):
        near, far = (lookup(coefficients, _grid(column, row), "bilinear") for column in (left, right))
        rows.append(torch.lerp(far, near, near_x[:, None]))
    return torch.lerp(rows[1], rows[0], near_y[:, None])


def _grid(column: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """(B, h, w, 2), all columns before all rows, which `grid_sample` reads faster."""
    return torch.stack([column, row]).permute(1, 2, 3, 0)


def _pairs(place: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For places along an axis: where to look between the two pixels before and between the two behind, from −1 to 1,
    and what the two before weigh together. The kernel is 13/21 + |x|/14 − x² + |x|³/2 up to 1, and up to 2
    (2 − |x|)³/6 + (2 − |x|)/42."""
    t = place.frac()
    first, scale = place - t, 2 / length
    inner = (t / 2).sub_(1).mul_(t).add_(1 / 14).mul_(t).add_(13 / 21)
    near = (t / 3).sub_(1 / 2).mul_(t).sub_(19 / 42).mul_(t).add_(17 / 21)  # with the outer one on the left
    outer = (t.square() / 6).add_(1 / 42).mul_(t)  # on the right
    before = torch.addcdiv(first, inner, near).sub_(0.5).mul_(scale).sub_(1)
    behind = torch.addcdiv(first, outer, 1 - near).add_(1.5).mul_(scale).sub_(1)
    return before, behind, near


def _lanczos(values: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    columns, weights_x = _taps(x, values.shape[-1])
    rows, weights_y = _taps(y, values.shape[-2])
    out = torch.zeros(())
    for row, weight_y in zip(rows, weights_y, strict=True):
        line = torch.zeros(())
        for column, weight_x in zip(columns, weights_x, strict=True):
            line = line + lookup(values, _grid(column, row), "nearest") * weight_x[:, None]
        out = out + line * weight_y[:, None]
    return out


def _taps(place: torch.Tensor, length: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The pixels around places along an axis, from −1 to 1, and their weights, which sum to 1."""
    first = place.floor()
    pixels = [first + step for step in range(1 - LANCZOS_LOBES, LANCZOS_LOBES + 1)]
    weights = [torch.sinc(place - pixel) * torch.sinc((place - pixel) / LANCZOS_LOBES) for pixel in pixels]
    total = torch.stack(weights).sum(0)
    return [(pixel + 0.5) * (2 / length) - 1 for pixel in pixels], [weight / total for weight in weights]
