"""How much of the detail of the whole set each image shows: for choosing the best, and for weighing them."""

from __future__ import annotations

import numpy as np

from congeal.stacking.frames import Frames

COARSE = 8  # pixels, along each side, that are averaged to see an image without its detail
LEAST_GAIN = 0.1  # an image that shows less of the coarse structure shows something else


def sharpness(frames: Frames, mean: np.ndarray, *, quiet: bool) -> dict[int, float]:
    """For each image, by its row: its gradients as a multiple of those of the mean, 0 and more.

    That is a regression on the mean of the others, so noise counts as little as what these do not show: neither a
    grainy image nor another subject passes for a sharp one. Divided by the same of the coarse structure, so that a
    brighter image is not a sharper one.
    """
    template = np.nan_to_num(mean.mean(-1))
    own, n = gradients(template), len(frames.rows)
    coarse_side = max(1, min(COARSE, min(template.shape) // 8))
    found = {}
    for one in frames.sample(what="comparing", quiet=quiet):
        grey = one.values.mean(-1)
        weight = np.where(np.isfinite(mean[..., 0]), one.weight, 0)
        both = np.minimum(np.minimum(weight[:-1, :-1], weight[:-1, 1:]), weight[1:, :-1])
        edges = gradients(grey)
        fine = _slope(edges, (n * own - edges) / (n - 1) if n > 1 else own, both[None])  # the mean of the others
        small, seen = (coarse(values, coarse_side) for values in (grey * weight, weight))
        target = coarse(template * weight, coarse_side)
        inside = seen > 0.5
        levels, aim = small[inside] / seen[inside], target[inside] / seen[inside]
        gain = _slope(levels - levels.mean(), aim - aim.mean(), np.ones_like(aim)) if inside.any() else 0.0
        found[one.row] = max(0.0, fine / gain) if gain > LEAST_GAIN else 0.0
    return found


def gradients(grey: np.ndarray) -> np.ndarray:
    """(2, h - 1, w - 1): steps to the right and down."""
    return np.stack([grey[:-1, 1:] - grey[:-1, :-1], grey[1:, :-1] - grey[:-1, :-1]])


def coarse(values: np.ndarray, side: int) -> np.ndarray:
    """Means of squares of pixels; what is left over at the ends is left out."""
    height, width = (length // side for length in values.shape)
    return values[: height * side, : width * side].reshape(height, side, width, side).mean((1, 3))


def _slope(values: np.ndarray, target: np.ndarray, weight: np.ndarray) -> float:
    """How often the target has to be taken to come nearest to the values."""
    power = float((weight * target * target).sum())
    return float((weight * values * target).sum()) / power if power > 0 else 0.0
