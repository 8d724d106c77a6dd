"""Outlier detection: images that are much less like the set than its other images are, or no more than noise.

A set may vary, so an image is compared with the quarter of the inliers that it is most like, not with their mean.
Objects on empty ground are compared in two views: as aligned, and normalised by the moments of their own ink. An
alignment that is free enough bends a foreign object until it looks like the others, and spoils some that belong; no
alignment has a part in the second view.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from congeal.evaluation.likeness import Matrix, Pictures, pair_likeness
from congeal.evaluation.null_model import surrogates_of_set
from congeal.evaluation.thresholds import (
    MAX_PAIRED_IMAGES,
    MIN_LIKENESS_SHARE,
    NEAREST_SHARE,
    NOISE_DEVIATIONS,
    TYPICAL_QUANTILE,
)
from congeal.rows import evenly_spaced_rows

_MAX_ROUNDS = 4  # in which inliers are told from outliers; further ones change next to nothing


class InlierModel:
    """Up to `MAX_PAIRED_IMAGES` images of a set, and the likeness to them that an image of the set has at least.

    Parameters
    ----------
    views : sequence of Pictures
        The same N images in one or two views.
    kind : str
        "object" or "photo".

    Attributes
    ----------
    noise_likeness : float
        Likeness to the mean of the others that noise of the same spectrum reaches in the first view.
    likeness : (N,) array
        Mean likeness of each image to the inliers that it is most like.
    min_likeness : float
        The least likeness of an inlier.
    """

    def __init__(self, views: Sequence[Pictures], kind: str) -> None:
        n = len(views[0][0])
        rows = evenly_spaced_rows(n, MAX_PAIRED_IMAGES)
        self._sample = [_select(pictures, rows) for pictures in views]
        pairs = self._pair_likeness(views)
        pairs[rows, np.arange(len(rows))] = -np.inf  # no image is its own neighbour
        surrogates = [surrogates_of_set(*pictures) for pictures in views]
        self.noise_likeness = round(float(surrogates[0][1].mean()), 6)  # more digits depend on the number of threads
        noise = _nearest(self._pair_likeness([(made, None) for made, _ in surrogates]))
        limit_by_noise = float(noise.mean() + NOISE_DEVIATIONS * noise.std())
        inlier = np.ones(n, dtype=bool)
        for _ in range(_MAX_ROUNDS):
            self._inlier = inlier[rows]
            self.likeness = _nearest(pairs[:, self._inlier])
            typical = float(np.quantile(self.likeness[inlier], TYPICAL_QUANTILE))
            self.min_likeness = max(MIN_LIKENESS_SHARE[kind] * typical, limit_by_noise)
            found = self.likeness >= self.min_likeness
            if found[rows].sum() < 2 or (found == inlier).all():
                break
            inlier = found

    def likeness_to_inliers(self, views: Sequence[Pictures]) -> NDArray[np.float64]:
        """(B,) mean likeness of other images to the inliers that they are most like."""
        return _nearest(self._pair_likeness(views)[:, self._inlier])

    def _pair_likeness(self, views: Sequence[Pictures]) -> Matrix:
        """(B,m) likeness of images to those of the sample, mean over the views."""
        pairs = [pair_likeness(one, other) for one, other in zip(views, self._sample, strict=True)]
        return np.asarray(np.mean(pairs, axis=0))


def _select(pictures: Pictures, rows: NDArray[np.int64]) -> Pictures:
    contrast, counts = pictures
    return contrast[rows], None if counts is None else counts[rows]


def _nearest(pairs: Matrix) -> NDArray[np.float64]:
    """(B,) mean of the largest quarter of each row of (B,m)."""
    m = pairs.shape[1]
    if m < 2:
        return np.ones(len(pairs))
    k = max(1, round(NEAREST_SHARE * (m - 1)))
    return np.asarray(np.partition(pairs, m - k, axis=1)[:, m - k :].mean(1))
