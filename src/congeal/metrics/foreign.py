"""Which images do not belong to a set: told from how like its likest images each one is.

A set may vary, so an image is not held against the mean alone but against the quarter of the set that it is most like.
Foreign is what is like them by much less than is usual, or by no more than noise of the same kind would be.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from congeal.metrics.chance import doubles
from congeal.metrics.kinds import Matrix, pair_likeness
from congeal.metrics.limits import BENT_SHARE, CENTRE, CHANCE_DEVIATIONS, MATCH_SHARE, NEAREST, PAIRED_IMAGES


class Crowd:
    """Up to `PAIRED_IMAGES` (256) images of a set, and how like them an image of the set is.

    Parameters
    ----------
    contrast, counts : (N,h,w) tensors
        Local contrast of the images, and where it counts (None: everywhere).

    Attributes
    ----------
    chance_likeness : float
        Likeness to the mean of the others that noise of the same kind reaches.
    least : float
        Nearness that an image of the set has at least.
    least_if_bent : float
        The same for an image in a pose that makes no sense: bent far enough, anything looks like anything.
    near : (N,) array
        Nearness of the images given.
    """

    def __init__(self, contrast: torch.Tensor, counts: torch.Tensor | None) -> None:
        self._rows = np.unique(np.linspace(0, len(contrast) - 1, min(len(contrast), PAIRED_IMAGES)).round().astype(int))
        self._contrast, self._counts = contrast[self._rows], None if counts is None else counts[self._rows]
        self.near = self._all_near(contrast, counts)
        made, reached = doubles(contrast, counts)
        self.chance_likeness = float(reached.mean())
        noise = self._nearest(pair_likeness(made, None, (self._contrast, None)))
        usual = float(np.quantile(self.near, CENTRE))
        low, high = MATCH_SHARE
        relative = usual * (low + (high - low) * max(usual, 0.0))
        self.least = max(relative, float(noise.mean() + CHANCE_DEVIATIONS * noise.std()))
        self.least_if_bent = max(self.least, BENT_SHARE * usual)

    def _all_near(self, contrast: torch.Tensor, counts: torch.Tensor | None) -> NDArray[np.float64]:
        """(N,) nearness of the images the crowd was made of; none is its own neighbour."""
        alike = pair_likeness(contrast, counts, (self._contrast, self._counts))
        alike[self._rows, np.arange(len(self._rows))] = -np.inf
        return self._nearest(alike)

    def nearness(self, contrast: torch.Tensor, counts: torch.Tensor | None) -> NDArray[np.float64]:
        """(B,) mean likeness of other images (B,h,w) to the quarter of the crowd that they are most like."""
        return self._nearest(pair_likeness(contrast, counts, (self._contrast, self._counts)))

    def _nearest(self, alike: Matrix) -> NDArray[np.float64]:
        m = alike.shape[1]
        if m < 2:
            return np.ones(len(alike))
        k = max(1, round(NEAREST * (m - 1)))
        return np.partition(alike, m - k, axis=1)[:, m - k :].mean(1)
