"""Random numbers by counter: the draw of image i depends on the seed and i alone, not on how many images there are."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

_STEP, _MIX_1, _MIX_2 = (np.uint64(v) for v in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def uniform(seed: int, index: ArrayLike, count: int) -> NDArray[np.float64]:
    """(N,) image numbers → (N, count) numbers, uniform in [0, 1)."""
    start = _mix(np.full(1, seed, dtype=np.uint64))
    image = _mix(start + np.asarray(index, dtype=np.uint64))
    lane: NDArray[np.uint64] = np.arange(count, dtype=np.uint64)
    return (_mix(image[:, None] + lane) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def normal(seed: int, index: ArrayLike, count: int) -> NDArray[np.float64]:
    """(N,) image numbers → (N, count) standard normal numbers (Box and Muller)."""
    u = uniform(seed, index, 2 * count)
    return np.sqrt(-2 * np.log1p(-u[:, :count])) * np.cos(2 * np.pi * u[:, count:])


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The output function of SplitMix64: neighbouring counters give unrelated bits."""
    x = (x + np.uint64(1)) * _STEP
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))
