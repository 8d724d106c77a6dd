"""Mean and variance of a stream of images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from congeal.errors import CongealError
from congeal.metrics.arrays import Array, as_numpy

_CHUNK_VALUES = 1 << 16  # float64 values worked on at a time: half a megabyte stays in the second-level cache


NORMAL_MAD = 1.4826
"""Of a normal distribution: standard deviation over median absolute deviation."""


class RunningStats:
    """Mean and population variance of a stream of arrays, in float64, mergeable (Welford; Chan for batches).

    Each batch is summed relative to its own first image, which keeps large offsets from cancelling. With `weights`
    (masks, broadcast against the batch) each pixel has its own total weight; the mean is 0 where that is 0.

    Attributes
    ----------
    count : int
        Arrays seen.
    """

    def __init__(self) -> None:
        self.count = 0
        self._weight: Array | float = 0.0  # per pixel only once weights were given
        self._mean: Array | None = None
        self._squares: Array = np.zeros(())  # Σ w (x − mean)²

    def update(self, batch: Any, weights: Any = None) -> RunningStats:
        """Take in a batch (B, …)."""
        images = as_numpy(batch)
        if images.ndim == 0 or (self._mean is not None and images.shape[1:] != self._mean.shape):
            known = "" if self._mean is None else f" of {self._mean.shape}"
            raise CongealError(f"statistics need batches (B, …){known}, not an array of shape {images.shape}")
        if len(images) == 0:
            return self
        weight, mean, squares = _batch_moments(images, None if weights is None else as_numpy(weights))
        self._merge(len(images), weight, mean, squares)
        return self

    def merge(self, other: RunningStats) -> RunningStats:
        """Take in all that `other` has seen."""
        if other._mean is not None:
            if self._mean is not None and self._mean.shape != other._mean.shape:
                raise CongealError(f"cannot merge statistics of {self._mean.shape} and {other._mean.shape}")
            self._merge(other.count, other._weight, other._mean, other._squares)
        return self

    def state(self) -> dict[str, Array]:
        """All that was seen, as arrays by name; `restore` goes on from there as if nothing had happened."""
        if self._mean is None:
            return {}
        parts = {"weight": self._weight, "mean": self._mean, "squares": self._squares}
        return {"count": np.array(self.count), **{name: np.asarray(part) for name, part in parts.items()}}

    @classmethod
    def restore(cls, state: Mapping[str, Array]) -> RunningStats:
        """The inverse of `state`."""
        stats = cls()
        if state:
            weight = state["weight"]
            stats.count, stats._weight = int(state["count"]), weight if weight.ndim else float(weight)
            stats._mean, stats._squares = state["mean"], state["squares"]
        return stats

    def _merge(self, count: int, weight: Array | float, mean: Array, squares: Array) -> None:
        self.count += count
        if self._mean is None:
            self._weight, self._mean, self._squares = weight, mean.copy(), squares.copy()
            return
        total = self._weight + weight
        share = np.divide(weight, total, out=np.zeros(np.shape(total)), where=np.asarray(total) > 0)
        delta = mean - self._mean
        self._mean = self._mean + delta * share
        self._squares = self._squares + squares + delta * delta * (self._weight * share)
        self._weight = total

    @property
    def mean(self) -> Array:
        """Mean of all arrays seen, 0 where the total weight is 0."""
        if self._mean is None:
            raise CongealError("there is no mean of no images")
        return self._mean

    @property
    def variance(self) -> Array:
        """Population variance per pixel, 0 where nothing was seen."""
        shape = self.mean.shape
        weight = np.broadcast_to(self._weight, shape)
        return np.divide(self._squares, weight, out=np.zeros(shape), where=weight > 0)

    @property
    def mse(self) -> float:
        """Mean squared distance to the mean over all pixels of all images, each as much as it weighs."""
        total = float(np.broadcast_to(self._weight, self.mean.shape).sum())
        return float(self._squares.sum()) / total if total > 0 else float("nan")


def _batch_moments(images: Array, weights: Array | None) -> tuple[Array | float, Array, Array]:
    """Total weight, mean and Σ w (x − mean)² of one batch."""
    shape = images.shape[1:]
    flat = images.reshape(len(images), -1)
    origin = flat[0].astype(np.float64)
    first, second = np.zeros_like(origin), np.zeros_like(origin)
    rows = max(1, _CHUNK_VALUES // max(1, flat.shape[1]))
    shifted = np.empty((min(rows, len(flat)), flat.shape[1]))
    if weights is None:
        for start in range(0, len(flat), rows):
            part = flat[start : start + rows]
            chunk = np.subtract(part, origin, out=shifted[: len(part)])
            first += chunk.sum(0)
            second += np.multiply(chunk, chunk, out=chunk).sum(0)
        total: Array | float = float(len(flat))
        offset = first / total
        squares = second - first * offset
    else:
        heavy = np.broadcast_to(weights, images.shape)
        seen = np.zeros_like(origin)
        for start in range(0, len(flat), rows):
            part = flat[start : start + rows]
            w = heavy[start : start + rows].reshape(part.shape).astype(np.float64)
            chunk = np.subtract(part, origin, out=shifted[: len(part)])
            weighted = w * chunk
            seen += w.sum(0)
            first += weighted.sum(0)
            second += np.multiply(weighted, chunk, out=weighted).sum(0)
        offset = np.divide(first, seen, out=np.zeros_like(first), where=seen > 0)
        squares = second - first * offset
        origin = np.where(seen > 0, origin, 0)
        total = seen.reshape(shape)
    return total, (origin + offset).reshape(shape), np.maximum(squares, 0).reshape(shape)
