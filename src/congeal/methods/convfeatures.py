"""Convolutional features learnt from the set itself, without labels: filters by k-means on a ring, pooled along it.

Neighbouring units of the ring learn together, so they end up alike (a stroke a little turned, a little moved); pooling
over neighbours makes a feature blind to such small changes. Layers stack: the second sees the pooled maps of the first.
"""

from __future__ import annotations

import torch
import torch.nn.functional as functional

_THRESHOLD = 0.3  # cosine between patch and filter below which a unit is silent: features stay sparse
_FAINT = 0.1  # root mean square contrast, in [0, 1], that counts as half seen


def respond(maps: torch.Tensor, filters: torch.Tensor, dilation: int = 1, pool: int = 3) -> torch.Tensor:
    """One layer: maps (B, C, H, W) in [0, 1] → (B, units / 2, H, W) in [0, 1]; empty maps give 0.

    filters (units, C, s, s) have norm 1. Cosine of each patch with each filter, thresholded; root mean square over three
    neighbours on the ring at every second unit; mean over `pool`×`pool` pixels.
    """
    side = filters.shape[-1]
    reach = dilation * (side // 2)
    raw = functional.conv2d(maps, filters, padding=reach, dilation=dilation)
    energy = _patch_energy(maps, side, dilation, centred=_is_centred(filters))
    cosine = raw / (energy.sqrt() + _FAINT * side * maps.shape[1] ** 0.5)
    active = ((cosine - _THRESHOLD) / (1 - _THRESHOLD)).clamp(0, 1).square()
    pooled = ((active + active.roll(1, 1) + active.roll(-1, 1)) / 3)[:, ::2].sqrt()
    return functional.avg_pool2d(pooled, pool, stride=1, padding=pool // 2)


def learn_filters(
    maps: torch.Tensor, units: int, side: int, generator: torch.Generator, dilation: int = 1, centred: bool = False
) -> torch.Tensor:
    """Filters (units, C, side, side) for `respond`, from sample maps (B, C, H, W); `centred` ones ignore brightness."""
    channels = maps.shape[1]
    patches = functional.unfold(maps, side, dilation=dilation).transpose(1, 2).reshape(-1, channels * side * side)
    if centred:
        patches = patches - patches.mean(1, keepdim=True)
    strength = patches.norm(dim=1)
    patches = patches[strength > 0.5 * _FAINT * side * channels**0.5]
    if len(patches) < units:  # next to nothing to see: any filters do
        patches = torch.randn(units, channels * side * side, generator=generator)
        patches = patches - patches.mean(1, keepdim=True) if centred else patches
    patches = patches[torch.randperm(len(patches), generator=generator)[:_PATCHES]]
    points = patches / patches.norm(dim=1, keepdim=True)
    return ring_kmeans(points, units, generator).reshape(units, channels, side, side)


_PATCHES = 20_000


def ring_kmeans(points: torch.Tensor, units: int, generator: torch.Generator, rounds: int = 30) -> torch.Tensor:
    """Spherical k-means of unit vectors (n, d) whose centres (units, d) lie on a ring and share with neighbours."""
    centres = points[torch.randperm(len(points), generator=generator)[:units]].clone()
    for i in range(rounds):
        members = functional.one_hot((points @ centres.T).argmax(1), units).to(points)
        sums = members.T @ points
        share = 0.5 * (1 - i / rounds)  # neighbours matter less and less
        smooth = sums + share * (sums.roll(1, 0) + sums.roll(-1, 0))
        norm = smooth.norm(dim=1, keepdim=True)
        centres = torch.where(norm > 1e-6, smooth / norm.clamp(min=1e-6), centres)
    return centres


def _is_centred(filters: torch.Tensor) -> bool:
    return bool(filters.flatten(1).sum(1).abs().max() < 1e-3)


def _patch_energy(maps: torch.Tensor, side: int, dilation: int, centred: bool) -> torch.Tensor:
    """Sum of squares in the patch around every pixel, about the patch's mean if `centred`: (B, 1, H, W)."""
    ones = torch.ones(1, maps.shape[1], side, side)
    reach = dilation * (side // 2)
    squares = functional.conv2d(maps.square(), ones, padding=reach, dilation=dilation)
    if centred:
        sums = functional.conv2d(maps, ones, padding=reach, dilation=dilation)
        squares = squares - sums.square() / ones.numel()
    return squares.clamp(min=0)
