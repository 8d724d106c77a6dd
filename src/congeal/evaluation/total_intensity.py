"""Ink is the sum of an image's pixel values: what there is of an object on empty ground. Is it still there?"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from congeal.evaluation.arrays import as_numpy
from congeal.evaluation.thresholds import BLANK_INK, MAX_DARK_SHARE, MIN_DARK_BORDER, MIN_DARK_PIXELS, WHITE_QUANTILE


def ink(images: Any) -> NDArray[np.float64]:
    """Sum of pixel values of each image: (N, …) → (N,)."""
    values = as_numpy(images)
    return values.reshape(len(values), -1).sum(1, dtype=np.float64)


def energy_ratio(aligned_ink: Any, source_ink: Any) -> float:
    """Ink of all aligned images over ink of all source images; 1 is right. NaN when the source has none."""
    source = float(np.sum(as_numpy(source_ink), dtype=np.float64))
    return float(np.sum(as_numpy(aligned_ink), dtype=np.float64)) / source if source > 0 else float("nan")


def blank(image_ink: Any, median: float | None = None) -> NDArray[np.bool_]:
    """(N,) True for images with no more than `BLANK_INK` (2 %) of the median ink (their own median unless given)."""
    values = as_numpy(image_ink)
    if len(values) == 0:
        return np.zeros(0, dtype=bool)
    return values <= BLANK_INK * (float(np.median(values)) if median is None else median)


def looks_like_objects(images: Any, masks: Any = None) -> str:
    """Kind of set: "object" on empty dark ground, where ink is a quantity to keep, or "photo", everything else.

    images (N,H,W) or (N,C,H,W). Object: at least `MIN_DARK_BORDER` (75 %) of the border pixels and `MIN_DARK_PIXELS`
    (40 %) of all pixels are darker than a tenth of the brightest value. `masks`, same shape up to broadcasting, are 0
    where there is only padding, which does not count.
    """
    values = as_numpy(images)
    valid = np.ones(values.shape, dtype=bool) if masks is None else np.broadcast_to(as_numpy(masks) > 0.5, values.shape)
    if values.ndim < 3 or not valid.any():
        return "photo"
    dark = values <= MAX_DARK_SHARE * float(np.quantile(values[valid], WHITE_QUANTILE))
    border = np.zeros(values.shape[-2:], dtype=bool)
    border[[0, -1]], border[:, [0, -1]] = True, True
    edge = valid & border
    if not edge.any():
        return "photo"
    empty = dark[edge].mean() >= MIN_DARK_BORDER and dark[valid].mean() >= MIN_DARK_PIXELS
    return "object" if empty else "photo"
