"""Outlier detection: images that are much less like the set than its other images are, or no more than noise.

A set may vary, so an image is compared with the quarter of the inliers that it is most like, not with their mean.
Objects on empty ground are compared in two views: as aligned, and normalised by the moments of their own ink. An
alignment that is free enough bends a foreign object until it looks like the others, and spoils some that belong; no
alignment has a part in the second view.

The null model says what likeness means: that of images without anything in common, once aligned. Aligning noise makes
it look alike too, the more so the smoother it is. So every image gets a surrogate with the same spectrum and random
phases, which shows nothing, and the surrogate is shifted to where it fits the mean of the others best.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fft

from congeal.evaluation.likeness import Matrix, MeanContrast, Pictures, pair_likeness
from congeal.evaluation.thresholds import (
    MAX_PAIRED_IMAGES,
    MAX_SURROGATE_SHIFT_SHARE,
    MAX_SURROGATES,
    MIN_LIKENESS_SHARE,
    NEAREST_SHARE,
    TYPICAL_QUANTILE,
)
from congeal.rows import evenly_spaced_rows

MAX_ROUNDS = 4
"""Rounds in which inliers are told from outliers; further ones change next to nothing (foreign digits)."""
HOMOGRAPHY_EXTRA_PARAMETERS = 6
"""Parameters of a homography beyond those of a shift."""


class InlierModel:
    """Up to `MAX_PAIRED_IMAGES` images of a set, and the likeness to them that an image of the set has at least.

    views: the same N images in one or two views. noise_likeness: likeness to the mean of the others that noise of the
    same spectrum reaches in the first view. likeness (N,): mean likeness of each image to the inliers that it is most
    like. min_likeness: the least likeness of an inlier.
    """

    def __init__(self, views: Sequence[Pictures], kind: str) -> None:
        n = len(views[0][0])
        rows = evenly_spaced_rows(n, MAX_PAIRED_IMAGES)
        self._sample = [_select(pictures, rows) for pictures in views]
        pairs = self._pair_likeness(views)
        pairs[rows, np.arange(len(rows))] = -np.inf  # no image is its own neighbour
        surrogates = [surrogates_of_set(*pictures) for pictures in views]
        self.noise_likeness = round(float(surrogates[0][1].mean()), 6)  # more digits depend on the number of threads
        limit_by_noise = float(_nearest(self._pair_likeness([(made, None) for made, _ in surrogates])).mean())
        inlier = np.ones(n, dtype=bool)
        for _ in range(MAX_ROUNDS):
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


# ---- null model


def fit_surrogates(contrast: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A surrogate (M,h,w) of each image, shifted to where it fits its target (M,h,w) best, and the likeness (M,) there.

    Shifts are up to a quarter of the frame. The same images always have the same surrogates.
    """
    height, width = contrast.shape[1:]
    noise = torch.randn(contrast.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    phases = fft.rfft2(noise)
    spectrum = fft.rfft2(contrast).abs() * phases / phases.abs().clamp(min=1e-9)
    surrogates = fft.irfft2(spectrum, s=(height, width))
    match = fft.irfft2(spectrum.conj() * fft.rfft2(targets), s=(height, width))
    down, right = (max(1, int(MAX_SURROGATE_SHIFT_SHARE * side)) for side in (height, width))
    near = torch.roll(match, (down, right), (1, 2))[:, : 2 * down + 1, : 2 * right + 1]
    norm = (surrogates.flatten(1).norm(dim=1) * targets.flatten(1).norm(dim=1)).clamp(min=1e-9)
    best, where = near.flatten(1).max(1)
    for i, at in enumerate(where.tolist()):
        y, x = divmod(at, near.shape[2])
        surrogates[i] = torch.roll(surrogates[i], (y - down, x - right), (0, 1))
    return surrogates, best.double() / norm.double()


def surrogates_of_set(contrast: torch.Tensor, counts: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Surrogates (M,h,w) of up to `MAX_SURROGATES` images of a set, fitted to the mean of the others, and the likeness
    (M,) that they reach."""
    rows = torch.linspace(0, len(contrast) - 1, min(len(contrast), MAX_SURROGATES)).round().long()
    some, some_counts = contrast[rows], None if counts is None else counts[rows]
    included = torch.ones(len(rows), dtype=torch.bool)
    return fit_surrogates(some, MeanContrast(contrast, counts).of_others(some, some_counts, included))


def homography_noise_likeness(
    noise_likeness: float, contrast: torch.Tensor, counts: torch.Tensor | None = None
) -> float:
    """Likeness that noise reaches by a homography, if it reaches `noise_likeness` by a shift.

    Of the variance that a shift leaves, the six further parameters explain their share of the independent samples of an
    image: next to nothing of a sharp photograph, a fifth of twenty large blobs.
    """
    residual = 1 - min(noise_likeness, 1.0) ** 2
    explained = min(1.0, HOMOGRAPHY_EXTRA_PARAMETERS / effective_samples(contrast, counts))
    return float((1 - residual * (1 - explained)) ** 0.5)


def effective_samples(contrast: torch.Tensor, counts: torch.Tensor | None = None) -> float:
    """Number of independent samples of an image: pixels, divided by the pixels over which they are correlated."""
    power = torch.zeros(contrast.shape[1:], dtype=torch.float64)
    for rows in torch.arange(len(contrast)).split(MAX_SURROGATES):
        shown = contrast[rows] if counts is None else contrast[rows] * counts[rows]
        power += fft.fft2(shown).abs().square().sum(0)
    power[0, 0] = 0
    return max(1.0, float(power.sum().square() / power.square().sum().clamp(min=1e-12)))
