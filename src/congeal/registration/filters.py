"""Image gradients and the window of the frame, on (B, C, H, W) tensors."""

from __future__ import annotations

from functools import lru_cache

import torch

from congeal.filters import gaussian_blur
from congeal.geometry import rescale


def gradient(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """d/dx and d/dy by central differences, one-sided at the border; same shape as the images."""
    dx, dy = (
        torch.gradient(images, dim=axis)[0] if images.shape[axis] > 1 else torch.zeros_like(images) for axis in (-1, -2)
    )
    return dx, dy


WINDOW_DEVIATION = 0.45
"""Standard deviation of the window in half frames: a face fills it (LFW, boxes of three sizes)."""

EDGE_REACH = 1 / 32
"""Standard deviation of the neighbourhood that gradients are normalised by, as a share of the longer side (LFW)."""
EDGE_FLOOR = 0.3
"""Share of an image's mean gradient added to the local one, so that flat regions are not amplified to noise (LFW)."""
EDGE_MOST = 4.0
"""Gradients this many times as strong as their neighbourhood are clipped to 1 (LFW)."""

REFERENCE_SIDE = 28
"""Blurs of all methods are given in pixels of an MNIST digit, the set they were first chosen on."""


def frame_unit(frame: tuple[int, int]) -> float:
    """Frame pixels per pixel of a 28-pixel frame."""
    return max(frame) / REFERENCE_SIDE


@lru_cache(maxsize=32)
def centre_window(size: tuple[int, int]) -> torch.Tensor:
    """(h, w), mean 1: how much a pixel of a photograph's frame counts. What is to be aligned is in the middle; hair,
    hats and background are at the edge."""
    y, x = (torch.linspace(-1, 1, n, dtype=torch.float32) for n in size)
    window = torch.exp(-0.5 * (y[:, None].square() + x.square()) / WINDOW_DEVIATION**2)
    return window / window.mean()


def oriented_gradients(images: torch.Tensor) -> torch.Tensor:
    """(B, C, H, W) → (B, 4, H, W): edges to the right, left, down and up, normalised by their neighbourhood.

    Light and contrast differ from photograph to photograph and within one; which way edges point does not.
    """
    dx, dy = gradient(images.mean(1, keepdim=True))
    strength = gaussian_blur((dx.square() + dy.square()).sqrt(), max(images.shape[-2:]) * EDGE_REACH)
    scale = strength + EDGE_FLOOR * strength.mean((-2, -1), keepdim=True) + 1e-4
    parts = torch.cat([dx, -dx, dy, -dy], 1).clamp(min=0) / scale
    return (parts / EDGE_MOST).clamp(max=1.0)


def scaling(factor: float) -> torch.Tensor:
    """The matrix that makes a picture `factor` times as large, outer edges on outer edges."""
    return torch.as_tensor(rescale((1, 1), (factor, factor))).float()  # type: ignore[arg-type]
