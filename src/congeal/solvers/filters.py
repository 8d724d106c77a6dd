"""What images look like to a method: blur and image gradients, on (B, C, H, W) tensors."""

from __future__ import annotations

from functools import lru_cache

import torch

from congeal.geometry import rescale


def blur(images: torch.Tensor, sigma: float) -> torch.Tensor:
    """Gaussian blur with zeros outside, as two dense products: for frames of this size faster than a convolution."""
    if sigma <= 0:
        return images
    rows = _gaussian_matrix(images.shape[-2], sigma).to(images)
    columns = _gaussian_matrix(images.shape[-1], sigma).to(images)
    return rows @ (images @ columns.T)


@lru_cache(maxsize=32)
def _gaussian_matrix(n: int, sigma: float) -> torch.Tensor:
    distance = torch.arange(n, dtype=torch.float64)[:, None] - torch.arange(n, dtype=torch.float64)[None, :]
    weight = torch.exp(-0.5 * (distance / sigma) ** 2)
    # Normalised by the full kernel, not by the part inside: ink near the border fades, as it would on a larger canvas.
    reach = torch.arange(-4 * int(sigma + 1), 4 * int(sigma + 1) + 1, dtype=torch.float64)
    return (weight / torch.exp(-0.5 * (reach / sigma) ** 2).sum()).float()


def gradient(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """d/dx and d/dy by central differences, one-sided at the border; same shape as the images."""
    dy, dx = torch.gradient(images, dim=(-2, -1))
    return dx, dy


_WINDOW = 0.45  # standard deviation of the window, in half frames

EDGE_NOISE = 0.03
"""Differences of oriented gradients beyond this count linearly: most of what differs between two photographs of one
kind, a smile, a shadow, a hat, is not a matter of pose."""


@lru_cache(maxsize=32)
def centre_window(size: tuple[int, int]) -> torch.Tensor:
    """(h, w), mean 1: how much a pixel of a photograph's frame counts. What is to be aligned is in the middle; hair,
    hats and background are at the edge."""
    y, x = (torch.linspace(-1, 1, n) for n in size)
    window = torch.exp(-0.5 * (y[:, None].square() + x.square()) / _WINDOW**2)
    return window / window.mean()


def oriented_gradients(images: torch.Tensor) -> torch.Tensor:
    """(B, C, H, W) → (B, 4, H, W): edges to the right, left, down and up, normalised by their neighbourhood.

    Light and contrast differ from photograph to photograph and within one; which way edges point does not.
    """
    dx, dy = gradient(images.mean(1, keepdim=True))
    near = max(images.shape[-2:]) / 32
    strength = blur((dx.square() + dy.square()).sqrt(), near)
    scale = strength + 0.3 * strength.mean((-2, -1), keepdim=True) + 1e-4
    parts = torch.cat([dx, -dx, dy, -dy], 1).clamp(min=0) / scale
    return (parts / 4).clamp(max=1.0)


def scaling(factor: float) -> torch.Tensor:
    """The matrix that makes a picture `factor` times as large, outer edges on outer edges."""
    return torch.as_tensor(rescale((1, 1), (factor, factor))).float()  # type: ignore[arg-type]
