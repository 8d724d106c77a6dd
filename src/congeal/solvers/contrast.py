"""Local contrast: pictures freed from light, so that only what they show is compared."""

from __future__ import annotations

import torch
from torch.nn.functional import avg_pool2d, interpolate, pad

REACH = 1 / 64
"""Of the longer side: standard deviation of the neighbourhood that a pixel is compared with …"""
_SMALL_REACH, _LEAST_REACH = 1 / 32, 6.0  # … but in small pictures up to twice that, until it is so many pixels
_FLOOR = 0.17  # of the deviation where there is any, added to the local one: what is flat must not be blown up to noise
_SOFT = 0.8  # pixels of blur before anything else: samples between pixels are softer than samples on them
_FEW = 3  # pixels of deviation that a neighbourhood keeps in the smaller picture it is measured in


def local_contrast(images: torch.Tensor, wider: float = 1.0) -> torch.Tensor:
    """(B, C, H, W) → (B, 1, H, W): grey, a little soft, minus its neighbourhood's mean, over its deviation.

    wider: how many times as wide the neighbourhood is. In a picture that shows a thing enlarged it has to be enlarged,
    too, or it holds something else, and comparing the two pulls at the size.
    """
    grey = images.mean(1, keepdim=True) if images.shape[1] > 1 else images
    soft = _blurred(grey, _SOFT * wider)
    side = max(images.shape[-2:])
    sigma = max(REACH * side, min(_SMALL_REACH * side, _LEAST_REACH))
    shrink = max(1, int(sigma / _FEW))
    mean = _around(soft, wider * sigma, shrink)
    off = soft - mean
    deviation = _around(off.square(), wider * sigma, shrink).clamp(min=0).sqrt()
    usual = deviation.square().mean((-2, -1), keepdim=True) / (deviation.mean((-2, -1), keepdim=True) + 1e-9)
    return off / (deviation + _FLOOR * usual + 1e-6)


def _around(images: torch.Tensor, sigma: float, shrink: int) -> torch.Tensor:
    """Gaussian mean of the neighbourhood, measured in a picture that is so many times smaller."""
    if shrink == 1:
        return _blurred(images, sigma)
    small = avg_pool2d(images, shrink, ceil_mode=True, count_include_pad=False)
    small = _blurred(small, sigma / shrink)
    height, width = images.shape[-2:]
    full = interpolate(small, scale_factor=shrink, mode="bilinear", align_corners=False)
    return full[..., :height, :width]


def _blurred(images: torch.Tensor, sigma: float) -> torch.Tensor:
    """Gaussian blur along both axes, the edge repeated beyond it; for so few weights, sums of shifted pictures are
    several times as fast as a convolution."""
    reach = max(1, min(round(3 * sigma), min(images.shape[-2:]) - 1))
    weights = torch.exp(-0.5 * (torch.arange(reach + 1, dtype=torch.float32) / sigma) ** 2)
    weights = weights / (2 * weights.sum() - weights[0])
    height, width = images.shape[-2:]
    wide = pad(images, (reach, reach, 0, 0), mode="replicate")
    across = _summed([wide[..., k : k + width] for k in range(2 * reach + 1)], weights)
    high = pad(across, (0, 0, reach, reach), mode="replicate")
    return _summed([high[..., k : k + height, :] for k in range(2 * reach + 1)], weights)


def _summed(shifted: list[torch.Tensor], weights: torch.Tensor) -> torch.Tensor:
    """The middle one and pairs at equal distance from it, by their weights."""
    middle = len(shifted) // 2
    total = shifted[middle] * float(weights[0])
    for distance in range(1, middle + 1):
        total.add_(shifted[middle - distance] + shifted[middle + distance], alpha=float(weights[distance]))
    return total
