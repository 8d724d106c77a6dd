"""Convolutional features learnt from the set itself, without labels: filters by k-means on a ring, pooled along it.

Neighbouring units of the ring learn together, so they end up alike (a stroke a little turned, a little moved); pooling
over neighbours makes a feature blind to such small changes. Layers stack: the second sees the pooled maps of the first.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as functional

_THRESHOLD = 0.2  # cosine between patch and filter below which a unit is silent: features stay sparse
_FAINT = 0.7
"""Of the median patch's contrast: what counts as half seen. With less, the faint fringe of a stroke, which is what its
interpolation left, counts as much as the stroke."""
_LEARNT = 1.0  # of the median patch's contrast: fainter patches teach nothing
_PATCHES = 20_000  # that k-means sees
_EMPTY = 1e-3  # contrast of a patch that shows nothing
_SHARED = 0.5  # of a unit's patches that each neighbour learns from too, at first


@dataclass(frozen=True)
class Layer:
    """filters (units, C, s, s) of norm 1, `dilation` pixels between their taps; faint: contrast that is half seen;
    centred: brightness does not matter."""

    filters: torch.Tensor
    faint: float
    dilation: int = 1
    centred: bool = False


def respond(maps: torch.Tensor, layer: Layer, pool: int = 3) -> torch.Tensor:
    """One layer: maps (B, C, H, W) in [0, 1] → (B, units / 2, H, W) in [0, 1]; empty maps give 0.

    Cosine of each patch with each filter, thresholded; root mean square over three neighbours on the ring at every
    second unit; mean over `pool`×`pool` pixels.
    """
    reach = layer.dilation * (layer.filters.shape[-1] // 2)
    raw = functional.conv2d(maps, layer.filters.to(maps), padding=reach, dilation=layer.dilation)
    cosine = raw / (_patch_energy(maps, layer).sqrt() + layer.faint)
    active = ((cosine - _THRESHOLD) / (1 - _THRESHOLD)).clamp(0, 1).square()
    pooled = ((active + active.roll(1, 1) + active.roll(-1, 1)) / 3)[:, ::2].sqrt()
    return functional.avg_pool2d(pooled, pool, stride=1, padding=pool // 2)


def learn_layer(
    maps: torch.Tensor, units: int, side: int, generator: torch.Generator, dilation: int = 1, centred: bool = False
) -> Layer:
    """A layer for `respond`, from sample maps (B, C, H, W)."""
    channels = maps.shape[1]
    patches = functional.unfold(maps, side, dilation=dilation).transpose(1, 2).reshape(-1, channels * side * side)
    if centred:
        patches = patches - patches.mean(1, keepdim=True)
    strength = patches.norm(dim=1)
    seen = strength > _EMPTY
    usual = float(strength[seen].median()) if bool(seen.any()) else 1.0
    patches = patches[strength > _LEARNT * usual]
    if len(patches) < units:  # next to nothing to see: any filters do
        patches = torch.randn(units, channels * side * side, generator=generator, dtype=torch.float32)
        patches = patches - patches.mean(1, keepdim=True) if centred else patches
    patches = patches[torch.randperm(len(patches), generator=generator)[:_PATCHES]]
    points = patches / patches.norm(dim=1, keepdim=True)
    filters = ring_kmeans(points, units, generator).reshape(units, channels, side, side)
    return Layer(filters, _FAINT * usual, dilation, centred)


def ring_kmeans(points: torch.Tensor, units: int, generator: torch.Generator, rounds: int = 30) -> torch.Tensor:
    """Spherical k-means of unit vectors (n, d) whose centres (units, d) lie on a ring and share with neighbours."""
    centres = points[torch.randperm(len(points), generator=generator)[:units]].clone()
    for i in range(rounds):
        members = functional.one_hot((points @ centres.T).argmax(1), units).to(points)
        sums = members.T @ points
        share = _SHARED * (1 - i / rounds)  # neighbours matter less and less
        smooth = sums + share * (sums.roll(1, 0) + sums.roll(-1, 0))
        norm = smooth.norm(dim=1, keepdim=True)
        centres = torch.where(norm > 1e-6, smooth / norm.clamp(min=1e-6), centres)
    return centres


def _patch_energy(maps: torch.Tensor, layer: Layer) -> torch.Tensor:
    """Sum of squares in the patch around every pixel, about the patch's mean if centred: (B, 1, H, W)."""
    ones = torch.ones_like(layer.filters[:1]).to(maps)
    reach = layer.dilation * (ones.shape[-1] // 2)
    squares = functional.conv2d(maps.square(), ones, padding=reach, dilation=layer.dilation)
    if layer.centred:
        sums = functional.conv2d(maps, ones, padding=reach, dilation=layer.dilation)
        squares = squares - sums.square() / ones.numel()
    return squares.clamp(min=0)
