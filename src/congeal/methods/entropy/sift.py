"""SIFT congealing: entropy congealing on soft visual words, for images whose raw values mean little.

Huang, Jain and Learned-Miller, "Unsupervised joint alignment of complex images", 2007.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import numpy as np
import torch
import torch.nn.functional as functional

from congeal.errors import CongealError
from congeal.filters import frame_unit, gradient
from congeal.images import Stack
from congeal.methods.checks import CountOrZero, NotNegative, Positive, Range, Some
from congeal.methods.entropy.entropy import FunnelMethod
from congeal.methods.entropy.entropy_search import SearchLevel
from congeal.registration.batching import chunks
from congeal.registration.features import ImageFeatures

SAMPLE_DESCRIPTORS = 20_000
"""Descriptors that k-means sees. Chosen by judgement: a thousand and more of each word."""
BINS = 8
"""Of gradient orientation, as in Lowe's descriptor."""
DESCRIPTOR = 4 * BINS  # values of a descriptor: a histogram of each of 2×2 cells
FAINT_GRADIENT = 0.05
"""Gradient strength, per pixel of a cell's side, at which a descriptor has half its norm. Chosen by judgement:
fainter gradients are mostly noise."""


@dataclass(kw_only=True, eq=False)
class SIFT(FunnelMethod):
    """SIFT congealing with a funnel for new images.

    Every pixel gets a 32-d gradient histogram of the patch around it and from that soft shares of `clusters` visual
    words, learnt by k-means on the set. Minimises the entropy of the words at each pixel of the frame.

    Parameters
    ----------
    clusters : int
        Visual words.
    patch : int
        Side of the patch in pixels, even. It is halved for each later part of the sweeps, to 2 at least: large patches
        see far, small ones are exact. Before each part descriptors are taken anew from the images as they lie.
    softness : float
        Shares fall off as exp(−d²/2σ²), with σ² the mean squared distance to the nearest word times this.
    step : float
        First step: corner motion in pixels of a 28-pixel frame.

    Attributes
    ----------
    transforms_, quality_, history_, stack_from_frame_, layout_
        As for every method, see `Method`.
    """

    clusters: Annotated[int, Range(least=2)] = 12
    patch: Annotated[int, Range(least=2, every=2)] = 8
    softness: Positive = 1.0
    step: Positive = 1.0
    sweeps: Some[CountOrZero] = (10, 10, 10)
    noise: NotNegative = 0.1

    motion: str = "similarity"
    name: ClassVar[str] = "sift"

    def _patches(self) -> list[int]:
        """Of the parts of the sweeps."""
        return [max(2, self.patch // 2 ** (part + 1) * 2) for part in range(len(self.sweeps))]

    def _learn(self, stack: Stack) -> dict[str, torch.Tensor]:
        """Words and their spread, for every size of patch."""
        learnt = {}
        for patch in sorted(set(self._patches())):
            learnt[f"words.{patch}"], learnt[f"spread.{patch}"] = self._vocabulary(stack, patch)
        return learnt

    def _vocabulary(self, stack: Stack, patch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """k-means on a sample of descriptors that shows every part of the set; flat ones are one word among others."""
        rng = np.random.default_rng(self.random_state_)
        each = max(1, SAMPLE_DESCRIPTORS // len(stack))
        sample, pixels = [], stack.size[0] * stack.size[1]
        for part in (
            chunks(stack)
            if len(stack) <= SAMPLE_DESCRIPTORS
            else [np.sort(rng.permutation(len(stack))[:SAMPLE_DESCRIPTORS])]
        ):
            found = dense_descriptors(stack.images(part), patch).flatten(2)
            chosen = torch.from_numpy(rng.integers(0, pixels, (len(part), 1, each))).expand(-1, DESCRIPTOR, -1)
            sample.append(found.gather(2, chosen).transpose(1, 2).reshape(-1, DESCRIPTOR))
        points = torch.cat(sample)
        seen = points[points.norm(dim=1) > 0.1]  # in the others there is nothing to be seen or learnt
        generator = torch.Generator().manual_seed(self.random_state_)
        if len(seen) < self.clusters:
            raise CongealError(f"{stack.source.name} shows too little structure for {self.clusters} visual words")
        # The empty descriptor is a word by itself: on empty ground it is most of what there is.
        words = torch.cat([torch.zeros(1, DESCRIPTOR, dtype=torch.float32), kmeans(seen, self.clusters - 1, generator)])
        return words, squared_distances(seen, words).amin(1).mean().clamp(min=1e-6)

    def _levels(self, stack: Stack, image_features: ImageFeatures) -> list[SearchLevel]:
        unit = frame_unit(stack.frame)
        # Each part begins where the last one ended, so its first step may be shorter.
        steps = [max(self.step * self.shrink**i, self.min_step) * unit for i in range(len(self.sweeps))]
        levels = []
        for patch, step in zip(self._patches(), steps, strict=True):
            words = partial(self._words, patch=patch)
            # Published: beyond the edge any word is as likely as any other. Around an object there is empty ground.
            empty = words(torch.zeros(1, stack.channels, 1, 1, dtype=torch.float32))[0, :, 0, 0]
            known = image_features.empty_ground and self.guards
            outside = empty if known else torch.full((self.clusters,), 1 / self.clusters, dtype=torch.float32)
            levels.append(SearchLevel(words, step, self.clusters, outside, anchored=True))
        return levels

    def _words(self, images: torch.Tensor, patch: int) -> torch.Tensor:
        """Soft shares of the visual words at every pixel: (B, C, H, W) → (B, clusters, H, W)."""
        b, _, height, width = images.shape
        if height * width == 1:
            found = images.new_zeros(b, DESCRIPTOR, 1, 1)
        else:
            found = dense_descriptors(images, patch)
        points = found.movedim(1, -1).reshape(-1, DESCRIPTOR)
        distance = squared_distances(points, self._learnt[f"words.{patch}"].to(points))
        shares = torch.softmax(-distance / (2 * self.softness * self._learnt[f"spread.{patch}"]), 1)
        return shares.reshape(b, height, width, -1).movedim(-1, 1).contiguous()


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
    return found / (norm + FAINT_GRADIENT * half)


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
        if torch.allclose(moved, centres, atol=1e-5):
            return moved
        centres = moved
    return centres


def squared_distances(points: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
    """Between every point (n, d) and every centre (k, d): (n, k)."""
    cross = points @ centres.T
    return (points.square().sum(1)[:, None] - 2 * cross + centres.square().sum(1)[None]).clamp(min=0)
