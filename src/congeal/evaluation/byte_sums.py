"""Exact sums of a stream of 8-bit images, from which mean and variance follow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from congeal.evaluation.arrays import Array
from congeal.geometry.frame_coverage import Cover

_CHUNK_VALUES = 1 << 16  # values worked on at a time: as float32 they and their sums stay in the cache
_EXACT_IMAGES = 256  # whose squared bytes add up exactly in float32
_TINY = 1e-300  # instead of a weight of 0, whose sums are 0 as well

Moments = tuple[Array, Array, Array]
"""Total weight, mean, and Σ w (x − mean)²."""


class ByteSums:
    """Σ w, Σ w x and Σ w x² of 8-bit images. They are whole numbers where weights are, and float64 holds those exactly:
    nothing cancels, and images may come in any order and any grouping."""

    def __init__(self) -> None:
        self._weight: Array = np.zeros(())  # one for all pixels until weights are given
        self._steps: Array = np.zeros(())  # of weights of 1 from column to column; their sums along rows come on top
        self._first: Array = np.zeros(())
        self._second: Array = np.zeros(())

    @property
    def empty(self) -> bool:
        """Whether no image was seen."""
        return self._first.ndim == 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the images seen."""
        return self._first.shape

    def add(self, images: Array, weights: Array | None) -> None:
        """Take in images (B, …), at least two axes, and what they weigh, broadcast against them."""
        if weights is None:
            self._weight = self._weight + len(images)
        elif images.ndim < 3 or weights.shape != (*images.shape[:-1], 1):
            weights = np.broadcast_to(weights, images.shape)
        for start in range(0, len(images), _EXACT_IMAGES):
            some = slice(start, start + _EXACT_IMAGES)
            self._add_values([images[some]])
            if weights is not None:
                self._weight = self._weight + weights[some].sum(0, dtype=np.float64)
                self._take_back(images[some], weights[some])

    def add_covering(self, images: Sequence[Array], covers: Sequence[Cover]) -> None:
        """Take in images (h, w, C), each of which weighs what it covers of the frame."""
        for start in range(0, len(images), _EXACT_IMAGES):
            self._add_values([image[None] for image in images[start : start + _EXACT_IMAGES]])
        height, width, channels = images[0].shape
        if not self._steps.ndim:
            self._steps = np.zeros((height, width + 1), np.int32)
        if self._weight.ndim < 3:
            self._weight = self._weight + np.zeros((height, width, 1))
        rows = np.arange(height)
        weight = self._weight.reshape(height * width, -1)
        first, second = (sums.reshape(height * width, channels) for sums in (self._first, self._second))
        for image, cover in zip(images, covers, strict=True):
            self._steps[rows, cover.first] += 1
            self._steps[rows, cover.stop] -= 1
            values = image.reshape(height * width, channels)[cover.places]
            counts = cover.shares > 0
            for channel in range(channels):
                counts |= values[:, channel] > 0  # black that does not count is in no sum
            places, shares = cover.places[counts], cover.shares[counts, None].astype(np.float64)
            values = values[counts].astype(np.float64)
            weight[places] += shares
            excess = values * (shares - 1)
            first[places] += excess
            second[places] += np.multiply(excess, values, out=excess)

    def _add_values(self, batches: Sequence[Array]) -> None:
        """Add to the sums what images of batches (B, …), 256 in all at most, would add if each pixel weighed 1."""
        shape = batches[0].shape[1:]
        if self.empty:
            self._first, self._second = np.zeros(shape), np.zeros(shape)
        rows = max(1, _CHUNK_VALUES // max(1, max(map(len, batches)) * math.prod(shape[1:])))
        for top in range(0, shape[0], rows):
            part = slice(top, top + rows)
            first = np.zeros(self._first[part].shape, np.float32)
            second = np.zeros_like(first)
            for batch in batches:
                chunk = batch[:, part].astype(np.float32)
                first += chunk[0] if len(chunk) == 1 else chunk.sum(0)
                np.square(chunk, out=chunk)
                second += chunk[0] if len(chunk) == 1 else chunk.sum(0)
            self._first[part] += first
            self._second[part] += second

    def _take_back(self, images: Array, weights: Array) -> None:
        """Subtract the excess of pixels that weigh less than 1 from the sums."""
        channels, pixels = images.shape[-1] // weights.shape[-1], weights.size // len(weights)
        flat = weights.reshape(-1)
        places = np.flatnonzero(flat != 1)
        values = images.reshape(-1, channels)[places].astype(np.float64)
        excess = values * (flat[places, None].astype(np.float64) - 1)
        index = ((places % pixels)[:, None] * channels + np.arange(channels)).reshape(-1)  # of several images, perhaps
        np.add.at(self._first.reshape(-1), index, excess.reshape(-1))
        np.add.at(self._second.reshape(-1), index, np.multiply(excess, values, out=excess).reshape(-1))

    def merge(self, other: ByteSums) -> None:
        """Take in all that `other` has seen."""
        self._weight = self._weight + other._weight
        self._steps = self._steps + other._steps
        self._first = self._first + other._first
        self._second = self._second + other._second

    def rows(self, part: slice) -> ByteSums:
        """The sums of some rows of the images; a view of them."""
        some = ByteSums()
        if not self.empty:
            some._weight = self._weight[part] if self._weight.ndim else self._weight
            some._steps = self._steps[part] if self._steps.ndim else self._steps
            some._first, some._second = self._first[part], self._second[part]
        return some

    @property
    def weight(self) -> Array:
        """Σ w, which broadcasts against the images."""
        return self._weight + self._steps.cumsum(1)[:, :-1, None] if self._steps.ndim else self._weight

    @property
    def mean(self) -> Array:
        """Σ w x / Σ w, 0 where nothing was seen."""
        return _divided(self._first, np.maximum(self.weight, _TINY))

    @property
    def moments(self) -> Moments:
        """Of all images seen."""
        mean = self.mean
        squares = self._first * mean
        np.subtract(self._second, squares, out=squares)
        return self.weight, mean, np.maximum(squares, 0, out=squares)

    @property
    def variance(self) -> Array:
        """Σ w (x − mean)² / Σ w, 0 where nothing was seen."""
        weight, _, squares = self.moments
        return _divided(squares, np.maximum(weight, _TINY))

    def state(self) -> dict[str, Array]:
        """All that was seen, as arrays by name."""
        if self.empty:
            return {}
        return {"weight": self._weight, "steps": self._steps, "first": self._first, "second": self._second}

    @classmethod
    def restore(cls, state: Mapping[str, Array]) -> ByteSums:
        """The inverse of `state`."""
        sums = cls()
        if state:
            sums._weight, sums._steps = state["weight"], state["steps"]
            sums._first, sums._second = state["first"], state["second"]
        return sums


def _divided(values: Array, by: Array) -> Array:
    """values / by, which broadcasts: channel by channel where there is one number for all, because that is faster."""
    if by.ndim != values.ndim or by.shape == values.shape:
        return values / by
    out = np.empty(values.shape)
    for channel in range(values.shape[-1]):
        np.divide(values[..., channel], by[..., 0], out=out[..., channel])
    return out
