"""From many values of each pixel to one: means, medians, and means without what does not belong."""

from __future__ import annotations

import numpy as np

from congeal.stacking.frames import Frames

BUDGET = 512 << 20  # bytes of all images in some rows of the picture
QUARTERS = 1.349  # between the quartiles of a normal distribution, in standard deviations
_PIXELS_AT_ONCE = 1 << 16


def mean(frames: Frames, weights: dict[int, float] | None, *, what: str, quiet: bool) -> np.ndarray:
    """(h, w, C) float32: the mean of all images, weighted by what covers a pixel and by image; NaN where none does."""
    total = np.zeros((*frames.size, frames.channels))
    weight = np.zeros((*frames.size, 1))
    for one in frames.sample(what=what, quiet=quiet):
        own = one.weight[..., None] * (1.0 if weights is None else weights[one.row])
        total += one.values * own
        weight += own
    return _ratio(total, weight)


def combine_by_rows(frames: Frames, clip: float | None, *, quiet: bool) -> np.ndarray:
    """(h, w, C) float32: the median of each pixel, or the mean of those values that are less than `clip` standard
    deviations from it; NaN where no image is.

    All images are in memory at a time, but only as many rows of them as fit into the budget.
    """
    height, width = frames.size
    per_row = len(frames.rows) * width * (frames.channels + 1) * 4
    step = min(height, max(1, BUDGET // per_row))
    out = np.full((height, width, frames.channels), np.nan, np.float32)
    tops = range(0, height, step)
    for number, top in enumerate(tops, start=1):
        bottom = min(height, top + step)
        values = np.empty((bottom - top, width, frames.channels, len(frames.rows)), np.float32)
        weight = np.zeros((bottom - top, width, len(frames.rows)), np.float32)
        count = 0
        what = "stacking" if len(tops) == 1 else f"stacking, part {number} of {len(tops)}"
        for one in frames.sample(top, bottom, what=what, quiet=quiet):
            values[..., count], weight[..., count] = one.values, one.weight
            count += 1
        out[top:bottom] = combine(values[..., :count], weight[..., :count], clip, noise_floor(frames.dtype))
    return out


def noise_floor(dtype: np.dtype) -> float:
    """The least standard deviation that values of a type have: that of rounding."""
    return 0.5 if dtype.kind in "uib" else 0.0


def combine(values: np.ndarray, weight: np.ndarray, clip: float | None, floor: float) -> np.ndarray:
    """(h, w, C, n) values with weights (h, w, n) → (h, w, C)."""
    height, width, channels, count = values.shape
    flat, weights = values.reshape(-1, channels, count), weight.reshape(-1, 1, count)
    out = np.full((len(flat), channels), np.nan, np.float32)
    for first in range(0, len(flat) if count else 0, _PIXELS_AT_ONCE):
        part = slice(first, first + _PIXELS_AT_ONCE)
        out[part] = _combine(flat[part], weights[part], clip, floor)
    return out.reshape(height, width, channels)


def _combine(values: np.ndarray, weight: np.ndarray, clip: float | None, floor: float) -> np.ndarray:
    """(p, C, n) values with weights (p, 1, n) → (p, C): pixels that are mostly outside do not count."""
    counts = weight >= 0.5
    ordered = np.sort(np.where(counts, values, np.inf), axis=-1)
    known = np.broadcast_to(counts.sum(-1), values.shape[:2])
    middle = _quantile(ordered, known, 0.5)
    if clip is None:
        return np.where(known > 0, middle, np.nan)
    spread = (_quantile(ordered, known, 0.75) - _quantile(ordered, known, 0.25)) / QUARTERS
    with np.errstate(invalid="ignore"):
        near = np.abs(values - middle[..., None]) <= clip * np.maximum(spread, floor)[..., None]
    own = np.where(near & counts, weight, 0)
    return _ratio((np.where(own > 0, values, 0) * own).sum(-1, dtype=np.float64), own.sum(-1, dtype=np.float64))


def _quantile(ordered: np.ndarray, known: np.ndarray, share: float) -> np.ndarray:
    """(p, C) from (p, C, n) of which the first `known` (p, C) count, between neighbours where it falls there."""
    place = np.maximum(known - 1, 0) * share
    low = np.floor(place).astype(np.intp)
    high = np.minimum(low + 1, np.maximum(known - 1, 0))
    below = np.take_along_axis(ordered, low[..., None], -1)[..., 0]
    above = np.take_along_axis(ordered, high[..., None], -1)[..., 0]
    with np.errstate(invalid="ignore"):
        return below + (above - below) * (place - low).astype(np.float32)


def _ratio(total: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """total / weight as float32, NaN where nothing weighs."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(weight > 1e-6, total / weight, np.nan).astype(np.float32)
