"""Mean and variance of a stream of images, given as NumPy arrays or torch tensors with the image index first."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from congeal.errors import CongealError

Array = NDArray[Any]
NORMAL_MAD = 1.4826
"""Of a normal distribution: standard deviation over median absolute deviation."""
CHUNK_VALUES = 1 << 16
"""Values that are summed at a time: half a megabyte of float64 stays in the processor's cache."""


def as_numpy(values: Any) -> Array:
    """A NumPy view of an array or torch tensor (on any device, with or without gradient)."""
    return values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)


class RunningStats:
    """Mean and population variance of a stream of arrays, in float64, mergeable.

    Sums are taken relative to the first array, which keeps large offsets from cancelling. Those of 8-bit images are
    relative to 0: they are whole numbers, which float64 holds exactly, so images may come in any order and grouping.
    With `weights` (masks, broadcast against the batch) each pixel has its own total weight; the mean is 0 where that
    is 0.

    Attributes
    ----------
    count : int
        Arrays seen.
    """

    def __init__(self) -> None:
        self.count = 0
        self._origin: Array = np.zeros(())  # one for all pixels of 8-bit images
        self._weight: Array = np.zeros(())  # Σ w: one for all pixels until weights are given
        self._first: Array = np.zeros(())  # Σ w (x − origin)
        self._second: Array = np.zeros(())  # Σ w (x − origin)²

    def update(self, batch: Any, weights: Any = None) -> RunningStats:
        """Take in a batch (B, …)."""
        images = as_numpy(batch)
        if images.ndim == 0 or (self.count and images.shape[1:] != self.shape):
            known = f" of {self.shape}" if self.count else ""
            raise CongealError(f"statistics need batches (B, …){known}, not an array of shape {images.shape}")
        if len(images) == 0:
            return self
        if not self.count:
            self._origin = np.zeros(()) if images.dtype == np.uint8 else images[0].astype(np.float64)
            self._first, self._second = np.zeros(images.shape[1:]), np.zeros(images.shape[1:])
        self.count += len(images)
        own = None
        if weights is not None:  # one weight for all channels of a pixel stays one
            own = as_numpy(weights)
            own = np.broadcast_to(own, (*images.shape[:-1], own.shape[-1]) if images.ndim > 2 else images.shape)
        self._weight = self._weight + (len(images) if own is None else own.sum(0, dtype=np.float64))
        rows = max(1, CHUNK_VALUES // max(1, len(images) * math.prod(images.shape[2:])))
        parts: list[Any] = [...]
        if images.ndim > 1:
            parts = [slice(top, top + rows) for top in range(0, images.shape[1], rows)]
        for part in parts:
            values = images[:, part] - _part(self._origin, part)
            squares = np.square(values)
            if own is not None:  # most weights are 1
                weight = own[:, part]
                partial = weight != 1
                if partial.shape != values.shape:
                    partial = partial[..., 0]
                values[partial] *= weight[partial]
                squares[partial] *= weight[partial]
            self._first[part] += values.sum(0)
            self._second[part] += squares.sum(0)
        return self

    def merge(self, other: RunningStats) -> RunningStats:
        """Take in all that `other` has seen."""
        if self.count and other.count and self.shape != other.shape:
            raise CongealError(f"cannot merge statistics of {self.shape} and {other.shape}")
        if other.count:
            if not self.count:
                self._origin = other._origin
            apart = other._origin - self._origin
            moved = other._weight * apart
            self._second = self._second + other._second + apart * (2 * other._first + moved)
            self._first = self._first + other._first + moved
            self._weight = self._weight + other._weight
            self.count += other.count
        return self

    def state(self) -> dict[str, Array]:
        """All that was seen, as arrays by name, no copies; `restore` goes on from there as if nothing had happened."""
        if not self.count:
            return {}
        sums = {"origin": self._origin, "weight": self._weight, "first": self._first, "second": self._second}
        return {"count": np.array(self.count), **sums}

    @classmethod
    def restore(cls, state: Mapping[str, Array]) -> RunningStats:
        """The inverse of `state`."""
        stats = cls()
        if state:
            stats.count = int(state["count"])
            stats._origin, stats._weight = state["origin"], state["weight"]
            stats._first, stats._second = state["first"], state["second"]
        return stats

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the arrays seen."""
        return self._first.shape

    @property
    def mean(self) -> Array:
        """Mean of all arrays seen, 0 where the total weight is 0."""
        if not self.count:
            raise CongealError("there is no mean of no images")
        return np.where(self._weight > 0, self._origin + _divided(self._first, self._weight), 0)

    @property
    def variance(self) -> Array:
        """Population variance per pixel, 0 where nothing was seen."""
        return _divided(self._squares, self._weight)

    @property
    def mse(self) -> float:
        """Mean squared distance to the mean over all pixels of all images, each as much as it weighs."""
        total = float(np.broadcast_to(self._weight, self.shape).sum())
        return float(self._squares.sum()) / total if total > 0 else float("nan")

    @property
    def _squares(self) -> Array:
        """Σ w (x − mean)²."""
        if not self.count:
            raise CongealError("there is no mean of no images")
        return np.maximum(self._second - self._first * _divided(self._first, self._weight), 0)

    def rows(self, part: slice) -> RunningStats:
        """The statistics of some rows of the arrays."""
        return RunningStats.restore(
            {name: array if name == "count" else _part(array, part) for name, array in self.state().items()}
        )


def _part(array: Array, part: Any) -> Array:
    """A part of an array; one number for all pixels stays one for all."""
    return array[part] if array.ndim else array


def _divided(values: Array, weight: Array) -> Array:
    """values / weight, 0 where the weight is 0."""
    return np.divide(values, weight, out=np.zeros(values.shape), where=np.broadcast_to(weight > 0, values.shape))
