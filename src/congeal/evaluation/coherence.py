"""Whether an image shows anything at all: does a pixel tell something about the pixels next to it?

In noise it does not, whatever a set of noise images has in common: the same frame, the same share of bright pixels.
"""

from __future__ import annotations

import torch

from congeal.evaluation.thresholds import COHERENT_SET, COHERENT_SHARE

LAGS = ((0, 1), (1, 0), (1, 1), (0, 2), (2, 0))
"""(rows, columns) between pixels that are compared: a fine pattern may repeat at the second pixel, not at the first."""


def coherence(images: torch.Tensor) -> torch.Tensor:
    """(B,) the strongest correlation, of either sign, of an image's pixels with those near them; images (B,C,h,w)."""
    height, width = images.shape[-2:]
    away = images.double() - images.double().mean((2, 3), keepdim=True)
    found = [torch.zeros(len(images), dtype=torch.float64)]
    for down, right in LAGS:
        one, other = away[..., down:, right:], away[..., : height - down, : width - right]
        both, own, its = ((a * b).sum((1, 2, 3)) for a, b in ((one, other), (one, one), (other, other)))
        found.append((both / (own * its).sqrt().clamp(min=1e-12)).abs())
    return torch.stack(found).amax(0)


def least_coherence(values: torch.Tensor) -> float:
    """What an image of a set with these coherences (N,) has at least; 0 where the whole set is noisy."""
    usual = float(values.median()) if len(values) else 0.0
    return COHERENT_SHARE * usual if usual >= COHERENT_SET else 0.0
