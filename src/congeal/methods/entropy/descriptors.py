"""Dense gradient-histogram descriptors and k-means: the visual words of `sift`, in plain tensors."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as functional

from congeal.filters import gradient

BINS = 8  # of orientation
DESCRIPTOR = 4 * BINS  # 2×2 cells
_FAINT = 0.05  # gradient strength, per pixel of a cell's side, at which a descriptor has half its norm
_STILL = 1e-5  # k-means ends when no centre moves farther


def dense_descriptors(images: torch.Tensor, patch: int = 8) -> torch.Tensor:
    """A 32-d descriptor at every pixel: (B, C, H, W) → (B, 32, H, W), of norm 1, or 0 where nothing is to be seen.

    A patch of `patch`×`patch` pixels around the pixel is cut into 2×2 cells; each holds a histogram of 8 gradient
    orientations weighted by gradient strength. Of several channels the one with the steepest gradient counts.
    """
    dx, dy = gradient(images)
    strength, channel = (dx.square() + dy.square()).max(1, keepdim=True)
    dx, dy, strength = dx.gather(1, channel), dy.gather(1, channel), strength.sqrt()
    place = torch.atan2(dy, dx) * (BINS / (2 * math.pi)) % BINS
    apart = (place - torch.arange(BINS, dtype=images.dtype)[:, None, None]).abs()
    # Shared between the two nearest bins, so that a small turn is a small change.
    oriented = strength * (1 - torch.minimum(apart, BINS - apart)).clamp(min=0)
    half = patch // 2
    sums = functional.avg_pool2d(functional.pad(oriented, (patch,) * 4), half, stride=1) * half**2
    height, width = images.shape[-2:]
    # sums[y, x] is the cell whose top-left pixel is (y - patch, x - patch); cells meet at the pixel in the middle.
    near, far = patch - half, patch
    cells = [sums[..., y : y + height, x : x + width] for y in (near, far) for x in (near, far)]
    found = torch.cat(cells, 1)
    norm = found.norm(dim=1, keepdim=True)
    # Faint gradients are noise: they fade to nothing instead of being blown up to norm 1.
    return found / (norm + _FAINT * half)


def kmeans(points: torch.Tensor, clusters: int, generator: torch.Generator, rounds: int = 30) -> torch.Tensor:
    """Lloyd's algorithm from a k-means++ start: points (n, d) → centres (clusters, d)."""
    centres = points[torch.randint(len(points), (1,), generator=generator)]
    for _ in range(clusters - 1):
        distance = squared_distances(points, centres).amin(1).clamp(min=1e-12)
        centres = torch.cat([centres, points[torch.multinomial(distance, 1, generator=generator)]])
    for _ in range(rounds):
        nearest = squared_distances(points, centres).argmin(1)
        members = functional.one_hot(nearest, clusters).to(points)
        counts = members.sum(0)[:, None]
        # A centre that lost all its points stays where it is.
        moved = torch.where(counts > 0, members.T @ points / counts.clamp(min=1), centres)
        if torch.allclose(moved, centres, atol=_STILL):
            return moved
        centres = moved
    return centres


def squared_distances(points: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
    """Between every point (n, d) and every centre (k, d): (n, k)."""
    cross = points @ centres.T
    return (points.square().sum(1)[:, None] - 2 * cross + centres.square().sum(1)[None]).clamp(min=0)
