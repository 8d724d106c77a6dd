"""What noise of the same kind reaches: the likeness that images with nothing in common would have.

Aligning noise makes it look alike too, the more so the smoother it is. So every image gets a double with the same
spectrum and random phases, which shows nothing at all, and the double is moved to where it fits the mean of the others
best. What it reaches there is chance. Moves are shifts of up to a quarter of the frame.

A homography has six freedoms more. What these explain of noise is their share of the places in which a picture can
differ at all: next to nothing of a sharp photograph, a fifth of twenty large blobs. `fitted_chance` adds that.
"""

from __future__ import annotations

import torch
from torch import fft

from congeal.metrics.likeness import Common
from congeal.metrics.limits import CHANCE_IMAGES, CHANCE_REACH, FREEDOMS


def doubles(contrast: torch.Tensor, counts: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Doubles (M,h,w) of up to `CHANCE_IMAGES` images, moved to where they fit best, and the likeness (M,) they reach.

    contrast, counts: (N,h,w), the set as of `Common`. The same set always has the same doubles.
    """
    n, height, width = contrast.shape
    some = torch.linspace(0, n - 1, min(n, CHANCE_IMAGES)).round().long()
    shown, seen = contrast[some], None if counts is None else counts[some]
    mean = Common(contrast, counts).mean(shown, seen, torch.ones(len(some), dtype=torch.bool))
    phases = fft.rfft2(torch.randn(shown.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32))
    spectrum = fft.rfft2(shown).abs() * phases / phases.abs().clamp(min=1e-9)
    made = fft.irfft2(spectrum, s=(height, width))
    match = fft.irfft2(spectrum.conj() * fft.rfft2(mean), s=(height, width))
    down, right = max(1, int(CHANCE_REACH * height)), max(1, int(CHANCE_REACH * width))
    near = torch.roll(match, (down, right), (1, 2))[:, : 2 * down + 1, : 2 * right + 1]
    norm = (made.flatten(1).norm(dim=1) * mean.flatten(1).norm(dim=1)).clamp(min=1e-9)
    best, where = near.flatten(1).max(1)
    for i, at in enumerate(where.tolist()):
        y, x = divmod(at, near.shape[2])
        made[i] = torch.roll(made[i], (y - down, x - right), (0, 1))
    return made, best.double() / norm.double()


def fitted_chance(chance: float, contrast: torch.Tensor, counts: torch.Tensor | None = None) -> float:
    """The likeness that noise reaches by all freedoms of a homography, if it reaches `chance` by shifts."""
    left = 1 - min(chance, 1.0) ** 2
    return float((1 - left * (1 - min(1.0, FREEDOMS / independent_places(contrast, counts)))) ** 0.5)


def independent_places(contrast: torch.Tensor, counts: torch.Tensor | None = None) -> float:
    """In how many places images (N,h,w) can differ: pixels, divided by those that are alike because they are near."""
    power = torch.zeros(contrast.shape[1:], dtype=torch.float64)
    for some in torch.arange(len(contrast)).split(CHANCE_IMAGES):
        shown = contrast[some] if counts is None else contrast[some] * counts[some]
        power += fft.fft2(shown).abs().square().sum(0)
    power[0, 0] = 0
    return max(1.0, float(power.sum().square() / power.square().sum().clamp(min=1e-12)))


def best_shift_likeness(image: torch.Tensor, other: torch.Tensor) -> float:
    """The likeness that a double of one image (h,w) reaches against another one, moved to where it fits best."""
    height, width = image.shape
    phases = fft.rfft2(torch.randn(image.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32))
    spectrum = fft.rfft2(image).abs() * phases / phases.abs().clamp(min=1e-9)
    made, match = (fft.irfft2(part, s=(height, width)) for part in (spectrum, spectrum.conj() * fft.rfft2(other)))
    down, right = max(1, int(CHANCE_REACH * height)), max(1, int(CHANCE_REACH * width))
    near = torch.roll(match, (down, right), (0, 1))[: 2 * down + 1, : 2 * right + 1]
    return float(near.max()) / max(float(made.norm()) * float(other.norm()), 1e-9)
