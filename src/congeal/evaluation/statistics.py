"""Mean and variance of a stream of images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from congeal.errors import CongealError
from congeal.evaluation.arrays import Array, as_numpy
from congeal.evaluation.byte_sums import ByteSums, Moments
from congeal.geometry.frame_coverage import Cover

_CHUNK_VALUES = 1 << 17  # values worked on at a time: a megabyte of float64 stays in the cache
_TINY = 1e-300  # instead of a weight of 0, whose sums are 0 as well
_BYTES = "bytes_"  # before the names of what is noted of 8-bit images


NORMAL_MAD = 1.4826
"""Of a normal distribution: standard deviation over median absolute deviation."""


class RunningStats:
    """Mean and population variance of a stream of arrays, in float64, mergeable.

    8-bit images are summed as they are, see `ByteSums`. Batches of others are summed relative to their own first image,
    which keeps large offsets from cancelling, and put together (Welford; Chan for batches). With `weights` (masks,
    broadcast against the batch) each pixel has its own total weight; the mean is 0 where that is 0.

    Attributes
    ----------
    count : int
        Arrays seen.
    """

    def __init__(self) -> None:
        self.count = 0
        self._bytes = ByteSums()
        # Of arrays that are not 8-bit:
        self._weight: Array = np.zeros(())  # Σ w: one for all pixels until weights are given
        self._mean: Array | None = None
        self._squares: Array = np.zeros(())  # Σ w (x − mean)²

    def update(self, batch: Any, weights: Any = None) -> RunningStats:
        """Take in a batch (B, …)."""
        images = as_numpy(batch)
        if images.ndim == 0 or (self.count and images.shape[1:] != self.shape):
            known = f" of {self.shape}" if self.count else ""
            raise CongealError(f"statistics need batches (B, …){known}, not an array of shape {images.shape}")
        if len(images) == 0:
            return self
        heavy = None if weights is None else as_numpy(weights)
        if heavy is not None and heavy.ndim != images.ndim:
            heavy = np.broadcast_to(heavy, images.shape)
        if images.dtype == np.uint8 and images.ndim > 1:
            self._bytes.add(images, heavy)
        else:
            self._add(images, heavy)
        self.count += len(images)
        return self

    def update_covering(self, images: Sequence[Array], covers: Sequence[Cover]) -> RunningStats:
        """Take in 8-bit images (h, w, C), each of which weighs what it covers of the frame."""
        if self.count and images[0].shape != self.shape:
            raise CongealError(f"statistics need images of {self.shape}, not {images[0].shape}")
        self._bytes.add_covering(images, covers)
        self.count += len(images)
        return self

    def _add(self, images: Array, heavy: Array | None) -> None:
        """Take in images that are not 8-bit."""
        if self._mean is None:
            self._mean, self._squares = np.zeros(images.shape[1:]), np.zeros(images.shape[1:])
        seen = np.array(float(len(images))) if heavy is None else np.empty(heavy.shape[1:])
        # A few rows of all images at a time, and their share of the totals: nothing leaves the cache in between.
        rows = max(1, _CHUNK_VALUES // max(1, len(images) * math.prod(images.shape[2:])))
        for start in range(0, images.shape[1] if images.ndim > 1 else 1, rows):
            part = slice(start, start + rows) if images.ndim > 1 else ...
            own = None if heavy is None else heavy if heavy.shape[1:2] == (1,) else heavy[:, part]
            new = _moments(images[:, part], own)
            if seen.ndim:
                seen[... if seen.shape[:1] == (1,) else part] = new[0]
            known = self._weight_of(part), self._mean[part], self._squares[part]
            _, self._mean[part], self._squares[part] = _together(known, new)
        self._weight = self._weight + seen

    def merge(self, other: RunningStats) -> RunningStats:
        """Take in all that `other` has seen."""
        if self.count and other.count and self.shape != other.shape:
            raise CongealError(f"cannot merge statistics of {self.shape} and {other.shape}")
        if not other._bytes.empty:
            self._bytes.merge(other._bytes)
        if other._mean is not None:
            zero = np.zeros(())
            known = (zero, zero, zero) if self._mean is None else (self._weight, self._mean, self._squares)
            self._weight, self._mean, self._squares = _together(known, (other._weight, other._mean, other._squares))
        self.count += other.count
        return self

    def state(self) -> dict[str, Array]:
        """All that was seen, as arrays by name, no copies; `restore` goes on from there as if nothing had happened."""
        if not self.count:
            return {}
        parts = {f"{_BYTES}{key}": array for key, array in self._bytes.state().items()}
        if self._mean is not None:
            parts |= {"weight": self._weight, "mean": self._mean, "squares": self._squares}
        return {"count": np.array(self.count), **parts}

    @classmethod
    def restore(cls, state: Mapping[str, Array]) -> RunningStats:
        """The inverse of `state`."""
        stats = cls()
        if state:
            stats.count = int(state["count"])
            own = {key.removeprefix(_BYTES): array for key, array in state.items() if key.startswith(_BYTES)}
            stats._bytes = ByteSums.restore(own)
        if "mean" in state:
            stats._weight, stats._mean, stats._squares = state["weight"], state["mean"], state["squares"]
        return stats

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the arrays seen."""
        return self._bytes.shape if self._mean is None else self._mean.shape

    def _moments(self) -> Moments:
        """Total weight, mean and Σ w (x − mean)² of all arrays seen."""
        if not self.count:
            raise CongealError("there is no mean of no images")
        if self._mean is None:
            return self._bytes.moments
        others = self._weight, self._mean, self._squares
        return others if self._bytes.empty else _together(others, self._bytes.moments)

    @property
    def mean(self) -> Array:
        """Mean of all arrays seen, 0 where the total weight is 0."""
        if self.count and self._mean is None:
            return self._bytes.mean
        return self._moments()[1]

    @property
    def variance(self) -> Array:
        """Population variance per pixel, 0 where nothing was seen."""
        if self.count and self._mean is None:
            return self._bytes.variance
        weight, mean, squares = self._moments()
        weight = np.broadcast_to(weight, mean.shape)
        return np.divide(squares, weight, out=np.zeros(mean.shape), where=weight > 0)

    def rows(self, part: slice) -> RunningStats:
        """The statistics of some rows of the arrays."""
        some = RunningStats()
        some.count, some._bytes = self.count, self._bytes.rows(part)
        if self._mean is not None:
            some._weight, some._mean, some._squares = self._weight_of(part), self._mean[part], self._squares[part]
        return some

    def _weight_of(self, part: Any) -> Array:
        """The total weight of a part of the arrays; one for all rows stays one for all."""
        return self._weight if self._weight.shape[:1] in ((), (1,)) else self._weight[part]

    @property
    def mse(self) -> float:
        """Mean squared distance to the mean over all pixels of all images, each as much as it weighs."""
        weight, mean, squares = self._moments()
        total = float(np.broadcast_to(weight, mean.shape).sum())
        return float(squares.sum()) / total if total > 0 else float("nan")


def _together(known: Moments, new: Moments) -> Moments:
    """The moments of what two sets have of (total weight, mean, Σ w (x − mean)²)."""
    (weight, mean, squares), (more, new_mean, new_squares) = known, new
    total = weight + more
    share = more / np.maximum(total, _TINY)
    delta = new_mean - mean
    return total, mean + delta * share, squares + new_squares + np.square(delta) * (weight * share)


def _moments(images: Array, weights: Array | None) -> Moments:
    """What `_batch_moments` gives; columns in which all weights are 1, as most are, apart from those beside them."""
    shared = [] if weights is None else [k for k, n in enumerate(images.shape) if k > 1 and weights.shape[k] == n > 1]
    if weights is None or not shared:
        return _batch_moments(images, weights)
    axis = shared[-1]
    width = weights.shape[axis]
    partly = np.flatnonzero(weights.min(tuple(k for k in range(weights.ndim) if k != axis)) < 1)
    gaps = np.diff(partly, prepend=-1, append=width)
    widest = int(gaps.argmax())
    stop = [*partly.tolist(), width][widest]
    edges = (0, stop - int(gaps[widest]) + 1, stop, width)
    parts = [(slice(None),) * axis + (slice(first, last),) for first, last in pairwise(edges) if first < last]
    moments = [_batch_moments(images[part], weights[part]) for part in parts]
    weight, mean, squares = (np.concatenate(one, axis - 1) for one in zip(*moments, strict=True))
    return weight, mean, squares


def _batch_moments(images: Array, weights: Array | None) -> Moments:
    """Total weight, mean and Σ w (x − mean)² of images (B, …), few enough pixels to stay in the cache."""
    origin = images[0].astype(np.float64)
    if weights is not None and weights.min() == 1 == weights.max():
        total, weights = np.full(weights.shape[1:], float(len(images))), None  # inside the images, as most pixels are
    elif weights is not None:
        total, weights = np.zeros(weights.shape[1:]), np.broadcast_to(weights, (len(images), *weights.shape[1:]))
    else:
        total = np.array(float(len(images)))
    first, second = np.zeros(origin.shape), np.zeros(origin.shape)
    step = max(1, _CHUNK_VALUES // max(1, origin.size))
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
