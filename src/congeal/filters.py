"""Gaussian blur, gradients, local contrast, normalised correlation of images (B, C, H, W): each exists once, here."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import torch
from torch.nn.functional import avg_pool2d, interpolate, pad

NEIGHBOURHOOD_SHARE = 1 / 64
"""Standard deviation of the neighbourhood that local contrast compares a pixel with, as a share of the longer side.
Small images get up to twice that, until it reaches `MIN_NEIGHBOURHOOD_PX`. Chosen on the errors of known shifts."""
MIN_NEIGHBOURHOOD_PX = 6.0
"""Standard deviation in pixels that a neighbourhood should have, if twice `NEIGHBOURHOOD_SHARE` allows it."""
FLAT_DEVIATION_SHARE = 0.17
"""Share of an image's usual deviation that is added to the local one, so that flat regions are not amplified to
noise. Shares of 0.2 to 1 tell foreign digits equally well."""
PRESMOOTHING_PX = 0.8
"""Standard deviation of a blur before local contrast: samples between pixels are softer than samples on them."""
MIN_REDUCED_SIGMA_PX = 3
"""Standard deviation of a blur that is computed on a reduced image; less would alias."""
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


def gaussian_blur(images: torch.Tensor, sigma: float, padding: Literal["zeros", "replicate"] = "zeros") -> torch.Tensor:
    """Gaussian blur with standard deviation `sigma` in pixels; 0 gives the images themselves.

    padding: what lies beyond the edge. "zeros": two dense matrix products, which for small frames are faster than a
    convolution. "replicate": the edge repeated; the kernel ends at 3 sigma, and large images need little memory.
    """
    if sigma <= 0:
        return images
    if padding == "replicate":
        return _blur_replicated(images, sigma)
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


def _blur_replicated(images: torch.Tensor, sigma: float) -> torch.Tensor:
    """Sums of shifted images, which for few weights are several times as fast as a convolution."""
    reach = max(1, min(round(3 * sigma), min(images.shape[-2:]) - 1))
    weights = torch.exp(-0.5 * (torch.arange(reach + 1, dtype=torch.float32) / sigma) ** 2)
    shares = (weights / (2 * weights.sum() - weights[0])).tolist()
    for axis, margins in ((-1, (reach, reach, 0, 0)), (-2, (0, 0, reach, reach))):
        size, wide = images.shape[axis], pad(images, margins, mode="replicate")
        images = images * shares[0]
        for distance in range(1, reach + 1):
            before, after = (wide.narrow(axis, reach + shift, size) for shift in (-distance, distance))
            images.add_(before + after, alpha=shares[distance])
    return images


def local_contrast(images: torch.Tensor, scale: float = 1.0, weights: torch.Tensor | None = None) -> torch.Tensor:
    """(B, C, H, W) → (B, 1, H, W): grey value minus the mean of its neighbourhood, divided by its deviation there.

    Exposure, shading and vignettes go; edges, strokes and texture stay, all of about the same strength.

    scale: how many times larger the neighbourhood is. In an image that shows an object enlarged it has to be enlarged,
    too; otherwise it contains something else, and comparing the two images biases the scale.
    weights (B, 1, H, W): share of each pixel that has image under it; None: all of it.
    """
    grey = images.mean(1, keepdim=True) if images.shape[1] > 1 else images
    side = max(images.shape[-2:])
    sigma = max(NEIGHBOURHOOD_SHARE * side, min(2 * NEIGHBOURHOOD_SHARE * side, MIN_NEIGHBOURHOOD_PX))
    reduction = max(1, int(sigma / MIN_REDUCED_SIGMA_PX))
    smooth = _weighted_blur(grey, weights, PRESMOOTHING_PX * scale, 1)
    difference = smooth - _weighted_blur(smooth, weights, scale * sigma, reduction)
    deviation = _weighted_blur(difference.square(), weights, scale * sigma, reduction).clamp(min=0).sqrt()
    usual = _image_mean(deviation.square(), weights) / (_image_mean(deviation, weights) + 1e-9)
    return difference / (deviation + FLAT_DEVIATION_SHARE * usual + 1e-6)


def _image_mean(values: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """(B, 1, 1, 1) mean of each image where it has weight."""
    if weights is None:
        return values.mean((-2, -1), keepdim=True)
    return (weights * values).sum((-2, -1), keepdim=True) / weights.sum((-2, -1), keepdim=True).clamp(min=1)


def _weighted_blur(images: torch.Tensor, weights: torch.Tensor | None, sigma: float, reduction: int) -> torch.Tensor:
    """Gaussian mean around each pixel of the pixels that have weight."""
    if weights is None:
        return _reduced_blur(images, sigma, reduction)
    present = _reduced_blur(weights, sigma, reduction).clamp(min=1e-3)  # where hardly any image is
    return _reduced_blur(weights * images, sigma, reduction) / present


def _reduced_blur(images: torch.Tensor, sigma: float, reduction: int) -> torch.Tensor:
    """Gaussian blur with replicated edges, computed on an image that is `reduction` times smaller."""
    if reduction == 1:
        return gaussian_blur(images, sigma, "replicate")
    small = avg_pool2d(images, reduction, ceil_mode=True, count_include_pad=False)
    small = gaussian_blur(small, sigma / reduction, "replicate")
    height, width = images.shape[-2:]
    full = interpolate(small, scale_factor=reduction, mode="bilinear", align_corners=False)
    return full[..., :height, :width]


def gradient(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """d/dx and d/dy by central differences, one-sided at the border; same shape as the images."""
    dx, dy = (
        torch.gradient(images, dim=axis)[0] if images.shape[axis] > 1 else torch.zeros_like(images) for axis in (-1, -2)
    )
    return dx, dy


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


def normalised_correlation(
    images: torch.Tensor, template: torch.Tensor, weights: torch.Tensor | None = None
) -> torch.Tensor:
    """(B,) normalised correlation of images (B, C, h, w) with a template (C, h, w), weighted by (B, 1, h, w)."""
    # Sums in float64: of two poses that score alike, the same one must win whatever other images are in the batch.
    if weights is None:
        a, t = images.flatten(1).double(), template.flatten()[None].double()
        a = a - a.mean(1, keepdim=True)
        t = t - t.mean()
        return ((a @ t[0]) / (a.norm(dim=1) * t.norm()).clamp(min=1e-9)).to(images.dtype)
    weighted = images * weights
    ours, both, squares = (_total(part) for part in (weighted, weighted * template, weighted * images))
    mass, theirs, their_squares = (
        _total(weights * part) for part in (images.new_tensor(len(template)), template.sum(0), template.square().sum(0))
    )
    mass = mass.clamp(min=1e-6)
    own, other = squares - ours.square() / mass, their_squares - theirs.square() / mass
    value = (both - ours * theirs / mass) / (own.clamp(min=0) * other.clamp(min=0)).sqrt().clamp(min=1e-9)
    return value.to(images.dtype)


def _total(values: torch.Tensor) -> torch.Tensor:
    return values.flatten(1).sum(1, dtype=torch.float64)
