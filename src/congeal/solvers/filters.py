"""Blur, image gradients and a window, on (B, C, H, W) tensors."""

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
    dx, dy = (
        torch.gradient(images, dim=axis)[0] if images.shape[axis] > 1 else torch.zeros_like(images) for axis in (-1, -2)
    )
    return dx, dy


_WINDOW = 0.45  # standard deviation of the window, in half frames

EDGE_REACH = 1 / 32
"""Of the longer side: the neighbourhood whose strength edges are divided by."""
EDGE_FLOOR = 0.3
"""Of an image's mean strength: what is added to it, so that flat regions are not blown up to noise."""
EDGE_MOST = 4.0
"""An edge this many times as strong as its neighbourhood counts 1; stronger ones do not count more."""

REFERENCE_SIDE = 28
"""Blurs and steps of all methods are given in pixels of an MNIST digit, the set they were first chosen on."""


def frame_unit(frame: tuple[int, int]) -> float:
    """Frame pixels per pixel of a 28-pixel frame."""
    return max(frame) / REFERENCE_SIDE


@lru_cache(maxsize=32)
def centre_window(size: tuple[int, int]) -> torch.Tensor:
    """(h, w), mean 1: how much a pixel of a photograph's frame counts. What is to be aligned is in the middle; hair,
    hats and background are at the edge."""
    y, x = (torch.linspace(-1, 1, n, dtype=torch.float32) for n in size)
    window = torch.exp(-0.5 * (y[:, None].square() + x.square()) / _WINDOW**2)
    return window / window.mean()


def oriented_gradients(images: torch.Tensor) -> torch.Tensor:
    """(B, C, H, W) → (B, 4, H, W): edges to the right, left, down and up, normalised by their neighbourhood.

    Light and contrast differ from photograph to photograph and within one; which way edges point does not.
    """
    dx, dy = gradient(images.mean(1, keepdim=True))
    strength = blur((dx.square() + dy.square()).sqrt(), max(images.shape[-2:]) * EDGE_REACH)
    scale = strength + EDGE_FLOOR * strength.mean((-2, -1), keepdim=True) + 1e-4
    parts = torch.cat([dx, -dx, dy, -dy], 1).clamp(min=0) / scale
    return (parts / EDGE_MOST).clamp(max=1.0)


def scaling(factor: float) -> torch.Tensor:
    """The matrix that makes a picture `factor` times as large, outer edges on outer edges."""
    return torch.as_tensor(rescale((1, 1), (factor, factor))).float()  # type: ignore[arg-type]
