"""What an image covers of a frame it is drawn in, in closed form.

A bilinear sample less than a pixel outside the outermost pixel centres has a share of that pixel, on each axis; samples
at or behind the horizon have none. `congeal.geometry.warping.coverage` gives the same numbers with gradients.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from congeal.geometry.matrix import MIN_DENOMINATOR, Size
from congeal.geometry.warping import PIXELS_AT_ONCE, to_units


def covered(source_from_frame: np.ndarray, source: Size, size: Size) -> np.ndarray:
    """(B, h, w) float32: the share of each pixel that lies inside, exactly 1 well inside, for matrices (B, 3, 3)."""
    out = np.ones((len(source_from_frame), *size), np.float32)
    units = to_units(torch.from_numpy(np.asarray(source_from_frame, dtype=np.float64)), source, size).numpy()
    if len(units) == 1:  # only the pixels of each row before and behind those inside have to be computed
        column = np.arange(size[1])
        first, stop = columns_inside(units[0], source, size)
        y, x = np.nonzero((column < first[:, None]) | (column >= stop[:, None]))
        out[0, y, x] = _shares(units[0, :, 0, None] * x + units[0, :, 1, None] * y + units[0, :, 2:], source)
        return out
    at_once = max(1, PIXELS_AT_ONCE // (size[0] * size[1]))
    for start in range(0, len(out), at_once):
        out[start : start + at_once] = shares_of(units[start : start + at_once], source, size[0], slice(0, size[1]))
    return out


def shares_of(units: np.ndarray, source: Size, height: int, columns: slice) -> np.ndarray:
    """What `covered` gives in some columns of so many rows, for unit_from_output (b, 3, 3)."""
    x, y = np.arange(columns.start, columns.stop), np.arange(height)[:, None]
    matrix = np.moveaxis(units, 0, -1)[..., None, None]
    place = (matrix[:, 0] * x).astype(np.float32) + (matrix[:, 1] * y + matrix[:, 2]).astype(np.float32)
    return _shares(place, source)


def _shares(place: np.ndarray, source: Size) -> np.ndarray:
    """The float32 shares of points (3, …) in homogeneous units; or of (b, 3, …), see `shares_of`."""
    share = (place[2] > MIN_DENOMINATOR).astype(np.float32)
    depth = np.maximum(place[2], MIN_DENOMINATOR, dtype=place.dtype)
    for axis, length in ((0, source[1]), (1, source[0])):
        # From -1 to 1 between the outer edges, in pixels from the outermost that count.
        share *= np.clip((length + 1) / 2 - length / 2 * np.abs(place[axis] / depth), 0, 1)
    return share


def columns_inside(unit: np.ndarray, source: Size, size: Size) -> tuple[np.ndarray, np.ndarray]:
    """In each row of an output of `size` the first column whose sample lies inside the image, and the one behind the
    last; both are the width where there is none. For unit_from_output (3, 3).

    Being inside is five linear conditions on x and y.
    """
    y = np.arange(float(size[0]))
    conditions = [unit[2] - [0, 0, MIN_DENOMINATOR]]
    for axis, length in ((0, source[1]), (1, source[0])):
        conditions += [(1 - 1 / length) * unit[2] + sign * unit[axis] for sign in (1, -1)]
    first, last = np.zeros(len(y)), np.full(len(y), size[1] - 1.0)
    for slope, down, rest in conditions:
        least = rest + down * y
        if slope > 0:
            np.maximum(first, 1 - least / slope, out=first)  # a column to spare for what rounding does
        elif slope < 0:
            np.minimum(last, -1 - least / slope, out=last)
        else:
            first[least < 0] = math.inf
    some = first <= last
    first, stop = np.ceil(first), np.floor(last) + 1
    some &= first < stop
    return tuple(np.where(some, edge, size[1]).astype(np.int64) for edge in (first, stop))  # type: ignore[return-value]
