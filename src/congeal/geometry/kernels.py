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
from itertools import product
from typing import Literal, get_args

import numpy as np
import torch

from congeal.geometry.matrix import Size
from congeal.geometry.warping import lookup, project, sampling_grid_in_units, to_pixels

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
INTERPOLATIONS: tuple[Interpolation, ...] = get_args(Interpolation)

_STEPS = {"float32": 4, "float64": 5}  # of the filter: one more would change nothing in that precision
_LINES = 128  # rows, and then columns, that are filtered at a time: they stay in the cache
_LOBES = 3  # of the windowed sinc, to each side
_PLANES = 8  # of numbers on the way to the values of a spline


def spline_coefficients(values: np.ndarray, *, overwrite: bool = False) -> np.ndarray:
    """Coefficients of the spline through images (B, C, H, W): a new array of the same dtype, or the images' own.

    Beyond its edges an image goes on as its mirror image, the outermost pixels twice.
    """
    out = values if overwrite and values.flags.c_contiguous else np.empty(values.shape, values.dtype)
    factors, gain = _filter(values.dtype.name)
    margin = 2 ** len(factors) - 1
    height, width = values.shape[2:]
    given, planes, lines = values.reshape(-1, height, width), out.reshape(-1, height, width), out.reshape(-1, width)
    above, below = _mirrored(height, margin)
    for few, columns in product(_slices(len(planes), max(1, _LINES // width)), _slices(width, _LINES)):
        part = given[few, :, columns].swapaxes(0, 1)
        room = np.empty((height + 2 * margin, *part.shape[1:]), values.dtype)
        np.multiply(part, gain, out=room[margin:-margin])
        room[:margin], room[-margin:] = room[margin + above], room[margin + below]
        _filter_in_place(room, part[0].size, factors)
        planes[few, :, columns] = room[margin:-margin].swapaxes(0, 1)
    left, right = _mirrored(width, margin)
    for some in _slices(len(lines), _LINES):
        room = np.empty((len(lines[some]), width + 2 * margin), values.dtype)
        np.multiply(lines[some], gain, out=room[:, margin:-margin])
        room[:, :margin], room[:, -margin:] = room[:, margin + left], room[:, margin + right]
        _filter_in_place(room, 1, factors)
        lines[some] = room[:, margin:-margin]
    return out


def _filter_in_place(values: np.ndarray, step: int, factors: list[np.floating]) -> None:
    """Numbers that lie `step` from their neighbours along an axis; a margin at both of its ends comes out wrong."""
    flat = values.reshape(-1)
    spare = np.empty_like(flat)
    for factor in factors:
        around = np.add(flat[: -2 * step], flat[2 * step :], out=spare[: len(flat) - 2 * step])
        around *= factor
        flat = flat[step:-step]
        flat += around
        step *= 2


@lru_cache(maxsize=2)
def _filter(dtype: str) -> tuple[list[np.floating], np.floating]:
    """The inverse of (4/z + 13 + 4z) / 21, the values of the kernel at whole numbers: short filters, one after another,
    and a factor.

    1 / (1 - b (1/z + z)) is (1 + b (1/z + z)) / (1 - 2b²) / (1 - b' (1/z² + z²)), where b' is b² / (1 - 2b²): the same
    for every second pixel. With every such step b is about squared; soon it is nothing.
    """
    factors, gain, b = [], 21 / 13, -4 / 13
    for _ in range(_STEPS[dtype]):
        rest = 1 - 2 * b * b
        factors.append(b)
        gain, b = gain / rest, b * b / rest
    kind = np.dtype(dtype).type
    return [kind(factor) for factor in factors], kind(gain)


def _mirrored(length: int, margin: int) -> tuple[np.ndarray, np.ndarray]:
    """Which pixels of an axis lie before it and behind it, so many each, if it is mirrored at its ends."""
    places = np.pad(np.arange(length), margin, mode="symmetric")
    return places[:margin], places[-margin:]


def _slices(length: int, step: int) -> list[slice]:
    return [slice(first, first + step) for first in range(0, length, step)]


class Room:
    """Memory for numbers on the way, used again by the next part of a picture: to ask for new memory every time takes
    longer than the arithmetic in it."""

    def __init__(self) -> None:
        self._kept: dict[torch.dtype, torch.Tensor] = {}

    def planes(self, count: int, like: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """(count, *like) of any content; what was given out before is given out again."""
        length = count * like.numel()
        kept = self._kept.get(dtype)
        if kept is None or len(kept) < length:
            kept = self._kept[dtype] = torch.empty(length, dtype=dtype)
        return kept[:length].view(count, *like)


def interpolate(
    values: torch.Tensor, unit: torch.Tensor, size: Size, kind: Interpolation, room: Room | None = None
) -> torch.Tensor:
    """Images (B, C, H, W) through unit_from_output (B, 3, 3), in the sampler's own coordinates → (B, C, h, w).

    Outside, an image goes on as its outermost pixels. bicubic takes `spline_coefficients` for images; it and lanczos
    may leave the range of the pixels.
    """
    if kind in ("nearest", "bilinear"):
        return lookup(values, sampling_grid_in_units(unit.to(values.dtype), size), kind)
    height, width = values.shape[-2:]
    planes = (Room() if room is None else room).planes(_PLANES, torch.Size((len(unit), *size)), values.dtype)
    project(to_pixels(unit, (height, width)).to(values.dtype), size, out=planes[1:4].transpose(0, 1))
    x, y = planes[1].clamp_(0, width - 1), planes[2].clamp_(0, height - 1)
    return _spline(values, planes) if kind == "bicubic" else _lanczos(values, x, y)


def spline_at(coefficients: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Values of one image, given by its `spline_coefficients` (H, W), at pixels x, y (...) of the same dtype; or of
    images (E, H, W), each at its own x, y (E, ...).

    Outside, an image goes on as its outermost pixels.
    """
    images = coefficients if coefficients.ndim == 3 else coefficients[None]
    height, width = images.shape[1:]
    planes = images.new_empty((_PLANES, len(images), 1, x.numel() // len(images)))
    for plane, place, side in ((1, x, width), (2, y, height)):
        torch.clamp(place.reshape(len(images), 1, -1), 0, side - 1, out=planes[plane])
    return _spline(images[:, None], planes).view(x.shape)


def _spline(coefficients: torch.Tensor, planes: torch.Tensor) -> torch.Tensor:
    """Two neighbours weighted in their proportion are one bilinear look-up between them: 4 instead of 16.

    planes (8, B, h, w): the second and the third hold x and y, inside the images; all are overwritten.
    """
    height, width = coefficients.shape[-2:]
    left, right, below, spare, above, near_x, near_y, share = planes
    _pairs(right, width, left, near_x, (spare, share))
    _pairs(below, height, above, near_y, (spare, share))
    rows = []
    for pair in ((slice(0, 5, 4), slice(1, 5, 3)), (slice(0, 3, 2), slice(1, 3))):  # with what is above; below
        here, there = (lookup(coefficients, planes[one].permute(1, 2, 3, 0), "bilinear") for one in pair)
        rows.append(torch.lerp(there, here, near_x[:, None], out=here))
    return torch.lerp(rows[1], rows[0], near_y[:, None], out=rows[0])


def _pairs(
    place: torch.Tensor, length: int, before: torch.Tensor, near: torch.Tensor, spare: tuple[torch.Tensor, torch.Tensor]
) -> None:
    """For places along an axis: what the two pixels before weigh together goes to `near`. Where to look between them
    goes to `before`, and between the two behind to `place`, from -1 to 1. The kernel is 13/21 + |x|/14 - x² + |x|³/2 up
    to 1, and up to 2 (2 - |x|)³/6 + (2 - |x|)/42."""
    scale = 2 / length
    t, share = torch.frac(place, out=spare[0]), spare[1]
    torch.add(_number(-0.5 * scale - 1, t.dtype), place.sub_(t), alpha=scale, out=place)
    _cubic(t, (1 / 3, -1 / 2, -19 / 42, 17 / 21), near)  # the inner and the outer one on the left
    _cubic(t, (1 / 2, -1, 1 / 14, 13 / 21), share)  # the inner one on the left
    torch.addcdiv(place, share, near, value=scale, out=before)
    torch.addcmul(_number(1 / 42, t.dtype), t, t, value=1 / 6, out=share).mul_(t)  # the outer one on the right
    far = torch.sub(_number(1, t.dtype), near, out=t)
    torch.addcdiv(place.add_(2 * scale), share, far, value=scale, out=place)


def _cubic(t: torch.Tensor, factors: tuple[float, float, float, float], out: torch.Tensor) -> None:
    """factors[0] t³ + factors[1] t² + factors[2] t + factors[3], in three passes."""
    torch.add(_number(factors[1], t.dtype), t, alpha=factors[0], out=out)
    for factor in factors[2:]:
        torch.addcmul(_number(factor, t.dtype), out, t, out=out)


@lru_cache(maxsize=256)
def _number(value: float, dtype: torch.dtype) -> torch.Tensor:
    """A number to which products are added: torch takes it as a tensor only."""
    return torch.tensor(value, dtype=dtype)


def _empty_grid(place: torch.Tensor) -> torch.Tensor:
    """Room for (B, h, w, 2), all x before all y: they are written one after the other."""
    batch, height, width = place.shape
    return torch.empty((batch, 2, height, width), dtype=place.dtype, device=place.device).permute(0, 2, 3, 1)


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
