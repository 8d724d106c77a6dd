"""How much one image looks like the mean of the set."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from congeal.metrics.arrays import as_numpy


def score_against_mean(images: Any, mean: Any, weights: Any = None) -> NDArray[np.float64]:
    """(N,) normalised correlation of each image (N, …) with the mean image, in −1…1; 0 for a flat image.

    weights (masks) broadcast against the images; averages are then taken over the weighted pixels of each image.
    """
    x = as_numpy(images).astype(np.float64)
    x, r = x.reshape(len(x), -1), as_numpy(mean).astype(np.float64).ravel()[None]
    w = np.ones((1, 1)) if weights is None else np.broadcast_to(as_numpy(weights), as_numpy(images).shape)
    w = np.broadcast_to(w.reshape(len(w), -1).astype(np.float64), x.shape)
    total = np.maximum(w.sum(1, keepdims=True), 1e-300)
    x = x - (w * x).sum(1, keepdims=True) / total
    r = r - (w * r).sum(1, keepdims=True) / total
    norm = np.sqrt((w * x * x).sum(1) * (w * r * r).sum(1))
    return np.divide((w * x * r).sum(1), norm, out=np.zeros(len(x)), where=norm > 1e-12)
