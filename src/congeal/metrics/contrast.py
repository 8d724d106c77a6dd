"""Local contrast: what is left of an image when its light is taken out.

Every pixel minus the mean around it, divided by the deviation around it. Exposure, shading and vignettes go; edges,
strokes and texture stay, all of about the same strength.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from congeal.metrics.limits import FLAT_CONTRAST, LEAST_SURROUNDINGS, SEEN, SURROUNDINGS

_REDUCED = 1.5  # pixels of sigma that are left when a wide blur is made of a smaller picture
_REACH = 2.5  # sigmas that a blur reaches
_NOTHING = 1e-8  # variance of an image that shows nothing: a fortieth of a grey level of 256
_SOMETHING = 1e-3  # weight below which there is nothing around a pixel


def local_contrast(
    images: torch.Tensor, weights: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Local contrast (B,h,w) of images (B,C,h,w), and (B,h,w) 1 where it counts; None if it counts everywhere.

    weights (B,1,h,w): share of each pixel that has image under it; None: all of it. Where there is none the contrast
    is 0, and so it is in an image that shows nothing. Flat places are not blown up to noise: the deviation is at least
    a share of the usual one of its image.
    """
    grey = images.mean(1, keepdim=True)
    sigma = max(LEAST_SURROUNDINGS, SURROUNDINGS * max(grey.shape[-2:]))
    weight = torch.ones_like(grey[:1]) if weights is None else weights
    around = _blur(weight, sigma).clamp_(min=_SOMETHING)
    difference = grey - _blur(weight * grey, sigma) / around
    variance = _blur(weight * difference**2, sigma) / around
    everywhere = weight.expand_as(grey).flatten(1)
    usual = (everywhere * variance.flatten(1)).sum(1) / everywhere.sum(1).clamp(min=1)
    floor = (FLAT_CONTRAST**2 * usual + _NOTHING)[:, None, None, None]
    contrast = (difference / (variance + floor).sqrt() * (usual > _NOTHING)[:, None, None, None])[:, 0]
    if weights is None:
        return contrast, None
    counts = (weights[:, 0] >= SEEN).to(contrast)
    return contrast * counts, counts


def _blur(images: torch.Tensor, sigma: float) -> torch.Tensor:
    """Gaussian blur of (B,1,h,w) with zeros beyond the edge; a wide one is made of a smaller picture."""
    height, width = images.shape[-2:]
    times = max(1, int(sigma / _REDUCED))
    small = images
    if times > 1:
        small = functional.avg_pool2d(functional.pad(images, (0, -width % times, 0, -height % times)), times)
    sigma /= times
    reach = math.ceil(_REACH * sigma)
    bell = torch.exp(-0.5 * (torch.arange(-reach, reach + 1, dtype=images.dtype) / sigma) ** 2)
    bell /= bell.sum()
    small = functional.conv2d(functional.pad(small, (reach, reach, 0, 0)), bell[None, None, None, :])
    small = functional.conv2d(functional.pad(small, (0, 0, reach, reach)), bell[None, None, :, None])
    if times == 1:
        return small
    return functional.interpolate(small, scale_factor=float(times), mode="bilinear")[..., :height, :width]
