"""Likeness of images: correlation of their local contrast, so that light does not matter.

An image is compared with the mean of the *other* images, because in a set of five it is a fifth of the mean; or with
every other image, one by one. Beside it are the sharpness of the mean image, and the coherence of single ones.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from congeal.evaluation.thresholds import COHERENT_SET, COHERENT_SHARE, MIN_PIXEL_COVERAGE
from congeal.filters import local_contrast

Matrix = NDArray[np.float64]
Pictures = tuple[torch.Tensor, torch.Tensor | None]
"""Local contrast (N,h,w), and (N,h,w) 1 where it counts; None: everywhere."""

VALUES_AT_ONCE = 1 << 18
"""Values of local contrast that are compared together: they stay in the processor's cache."""
MIN_VARIANCE = 1e-8
"""Variance of an image that shows anything: a fortieth of a grey level of 256, squared."""
COHERENCE_LAGS = ((0, 1), (1, 0), (1, 1), (0, 2), (2, 0))
"""(rows, columns) between pixels that are compared: a fine pattern may repeat at the second pixel, not at the first."""


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
    contrast = contrast * (variance > MIN_VARIANCE)[:, None, None]
    if weights is None:
        return contrast, None
    counts = (weights[:, 0] >= MIN_PIXEL_COVERAGE).to(contrast)
    return contrast * counts, counts


class MeanContrast:
    """Mean of the local contrast of `n` images (`Pictures`), from which each of them can be left out."""

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
        shown = count >= MIN_PIXEL_COVERAGE * (self.n - own).clamp(min=1)
        return torch.where(shown, others / count.clamp(min=1), 0.0)

    def likeness(self, contrast: torch.Tensor, counts: torch.Tensor | None, included: torch.Tensor) -> torch.Tensor:
        """(B,) float64 correlation of each image with the mean of the others, −1…1; 0 where there is nothing."""
        values = torch.zeros(len(contrast), dtype=torch.float64)
        rows = max(1, VALUES_AT_ONCE // max(1, contrast[0].numel())) if len(contrast) else 1
        for start in range(0, len(contrast), rows):
            part = slice(start, start + rows)
            shown, count = contrast[part], None if counts is None else counts[part]
            mean = self.of_others(shown, count, included[part])
            if count is not None:
                shown, mean = shown * (mean != 0), mean * count
            a, b = shown.flatten(1), mean.flatten(1)
            norm = a.norm(dim=1).double() * b.norm(dim=1).double()
            values[part] = (a * b).sum(1).double() / norm.clamp(min=1e-9)
        return values


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


class Sharpness:
    """Sharpness of the mean: how much of the edges of single images survives when they are averaged.

    Takes batches of images as the frame shows them.
    """

    def __init__(self) -> None:
        self._sum: torch.Tensor | float = 0.0
        self._count: torch.Tensor | float = 0.0
        self._edges = self._pixels = 0.0

    def update(self, images: torch.Tensor, weights: torch.Tensor | None) -> None:
        """Take in images (B,C,h,w), weighted by (B,1,h,w): the share of a pixel that has image under it."""
        grey = images.mean(1)
        weight = torch.ones_like(grey) if weights is None else weights[:, 0]
        self._sum = self._sum + (weight * grey).sum(0)
        self._count = self._count + weight.sum(0)
        edges, both = _edges(grey, weight)
        self._edges += float((both * edges).sum())
        self._pixels += float(both.sum())

    @property
    def value(self) -> float:
        """Gradient of the mean image over that of single images, both root mean square; 1 for identical images."""
        if not isinstance(self._sum, torch.Tensor) or not isinstance(self._count, torch.Tensor):
            return float("nan")
        mean = self._sum / self._count.clamp(min=1e-9)
        edges, both = _edges(mean[None], self._count[None])
        total = float(both.sum())
        if self._edges <= 0 or total <= 0 or self._pixels <= 0:
            return float("nan")
        return (float((both * edges).sum()) / total / (self._edges / self._pixels)) ** 0.5


def _edges(grey: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Squared gradient (B,h−1,w−1), and the weight it has: that of the least of its three pixels."""
    here, right, below = grey[:, :-1, :-1], grey[:, :-1, 1:], grey[:, 1:, :-1]
    least = torch.minimum(torch.minimum(weight[:, :-1, :-1], weight[:, :-1, 1:]), weight[:, 1:, :-1])
    return (right - here) ** 2 + (below - here) ** 2, least


def coherence(images: torch.Tensor) -> torch.Tensor:
    """(B,) the strongest correlation, of either sign, of an image's pixels with those near them; images (B,C,h,w).

    In noise there is none, whatever a set of noise images has in common: the frame, the share of bright pixels.
    """
    height, width = images.shape[-2:]
    away = images.double() - images.double().mean((2, 3), keepdim=True)
    found = [torch.zeros(len(images), dtype=torch.float64)]
    for down, right in COHERENCE_LAGS:
        one, other = away[..., down:, right:], away[..., : height - down, : width - right]
        both, own, its = ((a * b).sum((1, 2, 3)) for a, b in ((one, other), (one, one), (other, other)))
        found.append((both / (own * its).sqrt().clamp(min=1e-12)).abs())
    return torch.stack(found).amax(0)


def least_coherence(values: torch.Tensor) -> float:
    """What an image of a set with these coherences (N,) has at least; 0 where the whole set is noisy."""
    usual = float(values.median()) if len(values) else 0.0
    return COHERENT_SHARE * usual if usual >= COHERENT_SET else 0.0
