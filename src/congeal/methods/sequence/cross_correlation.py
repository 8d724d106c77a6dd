"""The shift between two pictures by normalised cross-correlation at every shift at once, however far it is.

    ρ(s) = corr( a(x), b(x + s) )  over all x that both show

Sums over what both show are correlations with pictures of ones, so all of them come from Fourier transforms of the
pictures, their squares and their outlines.
"""

from __future__ import annotations

import torch
from torch import fft

from congeal.geometry.matrix import Size


@torch.no_grad()
def find_shifts(pictures: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Shifts (E, 2) in pixels (x, y) at which pictures `second` (E,) show what pictures `first` do, and how alike they
    are there (E,). pictures (n, h, w) of local contrast."""
    height, width = pictures.shape[-2:]
    padded = (2 * height, 2 * width)
    ones = fft.rfft2(torch.ones_like(pictures[:1]), s=padded)
    shifts, likeness = [], []

    def summed(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return fft.irfft2(left.conj() * right, s=padded)

    for some in torch.arange(len(first)).split(64):
        a, b = pictures[first[some]], pictures[second[some]]
        in_a, in_b, in_aa, in_bb = (fft.rfft2(values, s=padded) for values in (a, b, a.square(), b.square()))
        count = summed(ones, ones).clamp(min=1)
        sum_a, sum_b = summed(in_a, ones), summed(ones, in_b)
        spread_a = (summed(in_aa, ones) - sum_a.square() / count).clamp(min=0)
        spread_b = (summed(ones, in_bb) - sum_b.square() / count).clamp(min=0)
        share = count / (height * width)
        alike = (summed(in_a, in_b) - sum_a * sum_b / count) / (spread_a * spread_b).sqrt().clamp(min=1e-6 * count)
        # The less two pictures share, the more alike they get by chance: below a fifth any two do.
        best = torch.where(share >= 0.2, alike * share.sqrt(), -1.0).flatten(1).argmax(1)
        y, x = best // padded[1], best % padded[1]
        signed = (torch.where(shift >= side, shift - 2 * side, shift) for shift, side in ((x, width), (y, height)))
        shifts.append(torch.stack(list(signed), 1).double())
        likeness.append(alike.flatten(1).gather(1, best[:, None])[:, 0].double())
    return torch.cat(shifts), torch.cat(likeness)


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
