"""Mean and variance of a stream of images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from congeal.errors import CongealError
from congeal.metrics.arrays import Array, as_numpy

_CHUNK_VALUES = 1 << 18  # values worked on at a time: a megabyte of float32 stays in the cache
_TINY = 1e-300  # instead of a weight of 0, whose sums are 0 as well
_EXACT_IMAGES = 256  # so many squares of 8-bit differences add up exactly in float32


NORMAL_MAD = 1.4826
"""Of a normal distribution: standard deviation over median absolute deviation."""


class RunningStats:
    """Mean and population variance of a stream of arrays, in float64, mergeable (Welford; Chan for batches).

    Each batch is summed relative to its own first image, which keeps large offsets from cancelling. With `weights`
    (masks, broadcast against the batch) each pixel has its own total weight; the mean is 0 where that is 0.
    Batches of 8-bit images are summed in float32: exact without weights, good to seven digits with them.

    Attributes
    ----------
    count : int
        Arrays seen.
    """

    def __init__(self) -> None:
        self.count = 0
        self._weight: Array = np.zeros(())  # Σ w: one for all pixels until weights are given
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
        if self._mean is None:
            self._mean, self._squares = np.zeros(images.shape[1:]), np.zeros(images.shape[1:])
        heavy = None if weights is None else as_numpy(weights)
        if heavy is not None and heavy.ndim != images.ndim:
            heavy = np.broadcast_to(heavy, images.shape)
        seen = np.array(float(len(images))) if heavy is None else np.empty(heavy.shape[1:])
        # A few rows of all images at a time, and their share of the totals: nothing leaves the cache in between.
        rows = max(1, _CHUNK_VALUES // max(1, len(images) * math.prod(images.shape[2:])))
        for start in range(0, images.shape[1] if images.ndim > 1 else 1, rows):
            part = slice(start, start + rows) if images.ndim > 1 else ...
            own = None if heavy is None else heavy if heavy.shape[1:2] == (1,) else heavy[:, part]
            weight, mean, squares = _moments(images[:, part], own)
            if seen.ndim:
                seen[... if seen.shape[:1] == (1,) else part] = weight
            self._merge(part, weight, mean, squares)
        self._weight, self.count = self._weight + seen, self.count + len(images)
        return self

    def merge(self, other: RunningStats) -> RunningStats:
        """Take in all that `other` has seen."""
        if other._mean is None:
            return self
        if self._mean is None:
            self._mean, self._squares = np.zeros(other._mean.shape), np.zeros(other._mean.shape)
        if self._mean.shape != other._mean.shape:
            raise CongealError(f"cannot merge statistics of {self._mean.shape} and {other._mean.shape}")
        self._merge(..., other._weight, other._mean, other._squares)
        self._weight, self.count = self._weight + other._weight, self.count + other.count
        return self

    def state(self) -> dict[str, Array]:
        """All that was seen, as arrays by name; `restore` goes on from there as if nothing had happened."""
        if self._mean is None:
            return {}
        parts = {"weight": self._weight, "mean": self._mean, "squares": self._squares}
        return {"count": np.array(self.count), **parts}

    @classmethod
    def restore(cls, state: Mapping[str, Array]) -> RunningStats:
        """The inverse of `state`."""
        stats = cls()
        if state:
            stats.count, stats._weight = int(state["count"]), state["weight"]
            stats._mean, stats._squares = state["mean"], state["squares"]
        return stats

    def _merge(self, part: Any, weight: Array, mean: Array, squares: Array) -> None:
        """Put the moments of new images into this part of the totals; the total weight is left to the caller."""
        assert self._mean is not None
        known = self._weight_of(part)
        share = weight / np.maximum(known + weight, _TINY)
        delta = mean - self._mean[part]
        self._squares[part] += squares
        self._squares[part] += np.square(delta) * (known * share)
        self._mean[part] += delta * share

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

    def rows(self, part: slice) -> RunningStats:
        """The statistics of some rows of the arrays."""
        some = RunningStats()
        some.count = self.count
        some._mean, some._squares = self.mean[part], self._squares[part]
        some._weight = self._weight_of(part)
        return some

    def _weight_of(self, part: Any) -> Array:
        """The total weight of a part of the arrays; one for all rows stays one for all."""
        return self._weight if self._weight.shape[:1] in ((), (1,)) else self._weight[part]

    @property
    def mse(self) -> float:
        """Mean squared distance to the mean over all pixels of all images, each as much as it weighs."""
        total = float(np.broadcast_to(self._weight, self.mean.shape).sum())
        return float(self._squares.sum()) / total if total > 0 else float("nan")


def _moments(images: Array, weights: Array | None) -> tuple[Array, Array, Array]:
    """What `_batch_moments` gives; columns in which all weights are 1, as most are, apart from those beside them."""
    if weights is None or images.ndim < 3 or weights.shape[-1] != images.shape[-1]:
        return _batch_moments(images, weights)
    width = weights.shape[-1]
    partly = np.flatnonzero(weights.min(tuple(range(weights.ndim - 1))) < 1)
    gaps = np.diff(partly, prepend=-1, append=width)
    widest = int(gaps.argmax())
    stop = [*partly.tolist(), width][widest]
    edges = (0, stop - int(gaps[widest]) + 1, stop, width)
    parts = [slice(first, last) for first, last in pairwise(edges) if first < last]
    moments = [_batch_moments(images[..., part], weights[..., part]) for part in parts]
    weight, mean, squares = (np.concatenate(one, -1) for one in zip(*moments, strict=True))
    return weight, mean, squares


def _batch_moments(images: Array, weights: Array | None) -> tuple[Array, Array, Array]:
    """Total weight, mean and Σ w (x − mean)² of images (B, …), few enough pixels to stay in the cache."""
    origin = images[0].astype(np.float32 if images.dtype == np.uint8 else np.float64)
    if weights is not None and weights.min() == 1 == weights.max():
        total, weights = np.full(weights.shape[1:], float(len(images))), None  # inside the images, as most pixels are
    elif weights is not None:
        total, weights = np.zeros(weights.shape[1:]), np.broadcast_to(weights, (len(images), *weights.shape[1:]))
    else:
        total = np.array(float(len(images)))
    first, second = np.zeros(origin.shape), np.zeros(origin.shape)
    step = min(_EXACT_IMAGES, max(1, _CHUNK_VALUES // max(1, origin.size)))
    for start in range(0, len(images), step):
        chunk = images[start : start + step].astype(origin.dtype)  # several times as fast as on the way
        chunk -= origin
        if weights is None:
            first += chunk.sum(0)
            second += np.square(chunk, out=chunk).sum(0)
        else:
            own = weights[start : start + step].astype(origin.dtype, copy=False)
            weighted = own * chunk
            total += own.sum(0)
            first += weighted.sum(0)
            second += np.multiply(weighted, chunk, out=weighted).sum(0)
    offset = first / np.maximum(total, _TINY)
    return total, origin + offset, np.maximum(second - first * offset, 0)
