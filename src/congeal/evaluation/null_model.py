"""Null model: the likeness that images without anything in common reach when they are aligned.

Aligning noise makes it look alike too, the more so the smoother it is. So every image gets a surrogate with the same
spectrum and random phases, which shows nothing, and the surrogate is shifted to where it fits the mean of the others
best. A homography has six more parameters than a shift; `homography_noise_likeness` adds what they explain.
"""

from __future__ import annotations

import torch
from torch import fft

from congeal.evaluation.likeness import MeanContrast
from congeal.evaluation.thresholds import MAX_SURROGATE_SHIFT_SHARE, MAX_SURROGATES

_EXTRA_PARAMETERS = 6  # of a homography, beyond those of a shift


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
    explained = min(1.0, _EXTRA_PARAMETERS / effective_samples(contrast, counts))
    return float((1 - residual * (1 - explained)) ** 0.5)


def effective_samples(contrast: torch.Tensor, counts: torch.Tensor | None = None) -> float:
    """Number of independent samples of an image: pixels, divided by the pixels over which they are correlated."""
    power = torch.zeros(contrast.shape[1:], dtype=torch.float64)
    for rows in torch.arange(len(contrast)).split(MAX_SURROGATES):
        shown = contrast[rows] if counts is None else contrast[rows] * counts[rows]
        power += fft.fft2(shown).abs().square().sum(0)
    power[0, 0] = 0
    return max(1.0, float(power.sum().square() / power.square().sum().clamp(min=1e-12)))
