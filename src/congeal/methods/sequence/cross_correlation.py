"""How far one picture is shifted against another, however far that is: by correlation at every shift at once.

    ρ(s) = corr( a(x), b(x + s) )  over all x that both show

Sums over what both show are correlations with pictures of ones, so all of them come from Fourier transforms of the
pictures, their squares and their outlines.
"""

from __future__ import annotations

import torch
from torch import fft

from congeal.geometry.matrix import Size

MIN_SHARED = 0.2
"""Share of a picture that two must both show: with less in common any two agree by chance."""
PAIRS_AT_ONCE = 64
"""Pairs whose Fourier transforms are in memory together; no result depends on it."""


@torch.no_grad()
def find_shifts(pictures: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Shifts (E, 2) in pixels (x, y) at which pictures `second` (E,) show what pictures `first` do, and how alike they
    are there (E,). pictures (n, h, w) of local contrast."""
    shifts, alike = [], []
    for some in torch.arange(len(first)).split(PAIRS_AT_ONCE):
        shift, value = _few(pictures[first[some]], pictures[second[some]])
        shifts.append(shift)
        alike.append(value)
    return torch.cat(shifts), torch.cat(alike)


def _few(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    size = (a.shape[-2], a.shape[-1])
    padded = (2 * size[0], 2 * size[1])
    ones = torch.ones_like(a[:1])
    spectra = [fft.rfft2(values, s=padded) for values in (a, b, a.square(), b.square(), ones)]
    in_a, in_b, in_aa, in_bb, in_ones = spectra

    def summed(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return fft.irfft2(left.conj() * right, s=padded)

    count = summed(in_ones, in_ones).clamp(min=1)
    sum_a, sum_b, both = summed(in_a, in_ones), summed(in_ones, in_b), summed(in_a, in_b)
    spread_a = summed(in_aa, in_ones) - sum_a.square() / count
    spread_b = summed(in_ones, in_bb) - sum_b.square() / count
    share = count / (size[0] * size[1])
    least = 1e-6 * count
    alike = (both - sum_a * sum_b / count) / (spread_a.clamp(min=0) * spread_b.clamp(min=0)).sqrt().clamp(min=least)
    # The less two pictures share, the more alike they get by chance.
    posterior_score = torch.where(share >= MIN_SHARED, alike * share.sqrt(), -1.0)
    best = posterior_score.flatten(1).argmax(1)
    y, x = best // padded[1], best % padded[1]
    value = alike.flatten(1).gather(1, best[:, None])[:, 0]
    return torch.stack([_signed(x, size[1]), _signed(y, size[0])], 1).double(), value.double()


def _signed(shift: torch.Tensor, side: int) -> torch.Tensor:
    return torch.where(shift >= side, shift - 2 * side, shift)


def shifted(shift: torch.Tensor) -> torch.Tensor:
    """b_from_a (E, 3, 3) of shifts (E, 2)."""
    matrices = torch.eye(3, dtype=torch.float64).repeat(len(shift), 1, 1)
    matrices[:, :2, 2] = shift
    return matrices


def overlap(view_from_view: torch.Tensor, frame: Size, steps: int = 12) -> torch.Tensor:
    """(E,) share of a frame that lies inside another one of the same size, under (E, 3, 3), from a few points of it."""
    y, x = ((torch.arange(steps, dtype=torch.float64) + 0.5) / steps * side - 0.5 for side in frame)
    points = torch.stack([*torch.meshgrid(x, y, indexing="ij"), torch.ones(steps, steps, dtype=torch.float64)], -1)
    moved = points.reshape(-1, 3) @ view_from_view.double().transpose(1, 2)
    place = moved[..., :2] / moved[..., 2:].clamp(min=1e-6)
    inside = (place > -0.5) & (place < place.new_tensor([frame[1], frame[0]]) - 0.5)
    return (inside.all(-1) & (moved[..., 2] > 0)).double().mean(1)
