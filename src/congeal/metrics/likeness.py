"""Likeness: how much one image looks like the mean of the others, whatever the light.

Compared is local contrast (contrast.py). The image itself is left out of the mean it is compared with: in a set of
five, every image is a fifth of the mean.
"""

from __future__ import annotations

import torch

from congeal.metrics.limits import COMMON

_VALUES = 1 << 18  # worked on at a time: they stay in the cache


class Common:
    """What some images have in common: the sums that their mean is made of.

    Parameters
    ----------
    contrast : (N,h,w) tensor
        Local contrast of the images.
    counts : (N,h,w) tensor, optional
        1 where it counts; None: everywhere.

    Attributes
    ----------
    n : int
        Images in the sums.
    """

    def __init__(self, contrast: torch.Tensor, counts: torch.Tensor | None) -> None:
        self.n = len(contrast)
        self._sum = contrast.sum(0)
        self._count = None if counts is None else counts.sum(0)

    def mean(self, contrast: torch.Tensor, counts: torch.Tensor | None, inside: torch.Tensor) -> torch.Tensor:
        """(B,h,w) mean of the others for each image; 0 where too few others show anything.

        inside (B,) bool: images that are in the sums, and are to be taken out again.
        """
        own = inside.to(contrast)[:, None, None]
        others = self._sum - own * contrast
        if self._count is None or counts is None:
            return others / (self.n - own).clamp(min=1)
        count = self._count - own * counts
        return torch.where(count >= COMMON * (self.n - own).clamp(min=1), others / count.clamp(min=1), 0.0)

    def likeness(self, contrast: torch.Tensor, counts: torch.Tensor | None, inside: torch.Tensor) -> torch.Tensor:
        """(B,) float64 correlation of each image with the mean of the others, −1…1; 0 where there is nothing."""
        values = torch.zeros(len(contrast), dtype=torch.float64)
        rows = max(1, _VALUES // max(1, contrast[0].numel())) if len(contrast) else 1
        for start in range(0, len(contrast), rows):
            part = slice(start, start + rows)
            values[part] = self._few(contrast[part], None if counts is None else counts[part], inside[part])
        return values

    def _few(self, contrast: torch.Tensor, counts: torch.Tensor | None, inside: torch.Tensor) -> torch.Tensor:
        mean = self.mean(contrast, counts, inside)
        if counts is not None:
            contrast, mean = contrast * (mean != 0), mean * counts
        a, b = contrast.flatten(1), mean.flatten(1)
        norm = a.norm(dim=1).double() * b.norm(dim=1).double()
        return (a * b).sum(1).double() / norm.clamp(min=1e-9)


def likeness(contrast: torch.Tensor, counts: torch.Tensor | None = None) -> torch.Tensor:
    """(N,) likeness of each image of a set to the mean of all others. contrast, counts: (N,h,w), as of `Common`."""
    return Common(contrast, counts).likeness(contrast, counts, torch.ones(len(contrast), dtype=torch.bool))
