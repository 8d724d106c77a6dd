"""Sharpness of the mean: how much of the edges of single images survives when they are averaged."""

from __future__ import annotations

import torch


class Sharpness:
    """Running sums over batches of images as the frame shows them."""

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
