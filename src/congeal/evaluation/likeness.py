"""Likeness of images: correlation of their local contrast, so that light does not matter.

An image is compared with the mean of the *other* images, because in a set of five it is a fifth of the mean; or with
every other image, one by one.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from congeal.evaluation.thresholds import MIN_PIXEL_COVERAGE, MIN_SHOWING_SHARE
from congeal.filters import local_contrast

Matrix = NDArray[np.float64]
Pictures = tuple[torch.Tensor, torch.Tensor | None]
"""Local contrast (N,h,w), and (N,h,w) 1 where it counts; None: everywhere."""

_VALUES_AT_ONCE = 1 << 18  # so that they stay in the cache
_MIN_VARIANCE = 1e-8  # of an image that shows anything: a fortieth of a grey level of 256, squared


def visible_contrast(images: torch.Tensor, weights: torch.Tensor | None = None) -> Pictures:
    """Local contrast of images (B,C,h,w): 0 where there is no image, and in images that show nothing.

    weights (B,1,h,w): share of each pixel that has image under it; None: all of it.
    """
    contrast = local_contrast(images, weights=weights)[:, 0]
    grey = images.mean(1)
    present = torch.ones_like(grey) if weights is None else weights[:, 0]
    total = present.sum((1, 2)).clamp(min=1)
    mean = (present * grey).sum((1, 2)) / total
    variance = (present * (grey - mean[:, None, None]).square()).sum((1, 2)) / total
    contrast = contrast * (variance > _MIN_VARIANCE)[:, None, None]
    if weights is None:
        return contrast, None
    counts = (weights[:, 0] >= MIN_PIXEL_COVERAGE).to(contrast)
    return contrast * counts, counts


class MeanContrast:
    """Mean of the local contrast of some images, from which each of them can be left out.

    Parameters
    ----------
    contrast, counts : (N,h,w) tensors
        The images, as of `Pictures`.

    Attributes
    ----------
    n : int
        Images in the mean.
    """

    def __init__(self, contrast: torch.Tensor, counts: torch.Tensor | None) -> None:
        self.n = len(contrast)
        self._sum = contrast.sum(0)
        self._count = None if counts is None else counts.sum(0)

    def of_others(self, contrast: torch.Tensor, counts: torch.Tensor | None, included: torch.Tensor) -> torch.Tensor:
        """(B,h,w) mean of the others for each image; 0 where too few others show anything.

        included (B,) bool: images that are in the mean and have to be left out of it.
        """
        own = included.to(contrast)[:, None, None]
        others = self._sum - own * contrast
        if self._count is None or counts is None:
            return others / (self.n - own).clamp(min=1)
        count = self._count - own * counts
        shown = count >= MIN_SHOWING_SHARE * (self.n - own).clamp(min=1)
        return torch.where(shown, others / count.clamp(min=1), 0.0)

    def likeness(self, contrast: torch.Tensor, counts: torch.Tensor | None, included: torch.Tensor) -> torch.Tensor:
        """(B,) float64 correlation of each image with the mean of the others, −1…1; 0 where there is nothing."""
        values = torch.zeros(len(contrast), dtype=torch.float64)
        rows = max(1, _VALUES_AT_ONCE // max(1, contrast[0].numel())) if len(contrast) else 1
        for start in range(0, len(contrast), rows):
            part = slice(start, start + rows)
            values[part] = self._likeness(contrast[part], None if counts is None else counts[part], included[part])
        return values

    def _likeness(self, contrast: torch.Tensor, counts: torch.Tensor | None, included: torch.Tensor) -> torch.Tensor:
        mean = self.of_others(contrast, counts, included)
        if counts is not None:
            contrast, mean = contrast * (mean != 0), mean * counts
        a, b = contrast.flatten(1), mean.flatten(1)
        norm = a.norm(dim=1).double() * b.norm(dim=1).double()
        return (a * b).sum(1).double() / norm.clamp(min=1e-9)


def likeness_to_others(contrast: torch.Tensor, counts: torch.Tensor | None = None) -> NDArray[np.float64]:
    """(N,) likeness of each image to the mean of all others, NaN for one that shows nothing; 1 for a single image."""
    if len(contrast) < 2:
        values = np.ones(len(contrast))
    else:
        included = torch.ones(len(contrast), dtype=torch.bool)
        values = MeanContrast(contrast, counts).likeness(contrast, counts, included).numpy()
    return np.where(contrast.flatten(1).any(1).numpy(), values, np.nan)


def pair_likeness(pictures: Pictures, others: Pictures | None = None) -> Matrix:
    """(N,M) correlation of every image with every other one, or with each image of `others`, where both count."""
    contrast, counts = pictures
    other, other_counts = others or pictures
    a, b = contrast.flatten(1), other.flatten(1)
    product = a @ b.T
    if counts is None or other_counts is None:
        norms = a.square().sum(1)[:, None] * b.square().sum(1)
    else:
        norms = (a.square() @ other_counts.flatten(1).T) * (counts.flatten(1) @ b.square().T)
    return (product / norms.sqrt().clamp(min=1e-9)).double().numpy()
