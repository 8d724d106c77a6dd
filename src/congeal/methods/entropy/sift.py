"""SIFT congealing: entropy congealing on soft visual words, for images whose raw values mean little.

Huang, Jain and Learned-Miller, "Unsupervised joint alignment of complex images", 2007.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import numpy as np
import torch

from congeal.errors import CongealError
from congeal.filters import frame_unit
from congeal.images import Stack
from congeal.methods.checks import CountOrZero, NotNegative, Positive, Range, Some
from congeal.methods.entropy.descriptors import DESCRIPTOR, dense_descriptors, kmeans, squared_distances
from congeal.methods.entropy.entropy_search import Level
from congeal.methods.entropy.funnel import FunnelMethod
from congeal.registration.batching import chunks
from congeal.registration.features import ImageFeatures

_SAMPLE = 20_000  # descriptors that k-means sees
_FLAT = 0.1  # norm of a descriptor up to which there is nothing to be seen, and nothing to be learnt


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
        Side of the patch in pixels, even. It is halved for each later part of the sweeps, to 2 at least.
    softness : float
        Shares fall off as exp(−d²/2σ²), with σ² the mean squared distance to the nearest word times this.
    step : float
        First step: corner motion in pixels of a 28-pixel frame.
    sweeps : tuple of int
        Sweeps over all parameters in each part, at most. Before each part descriptors are taken anew from the images as
        they lie.
    relative : bool
        Count only what an image disagrees with the set about, not the entropy it has by itself; False as published.
    shrink : float
        An image that refuses both directions of a parameter tries a step this much shorter next time; 1 as published.
    min_step : float
        Steps, in pixels of corner motion, do not become shorter than this.
    noise : float
        Standard deviation of the random change of each step's length, relative to it.
    tolerance : float
        A level ends when the mean corner motion of a sweep falls below this many pixels.
    motion, size, align_on, kind, guards, random_state
        As for every method, see `Method`.

    Attributes
    ----------
    transforms_ : Transforms
        aligned_from_source of every image of the fit, in source pixels.
    quality_ : Quality
        Numbers and verdict of the fit.
    history_ : list of dict
        After every sweep: cost (nats per pixel), motion (mean corner motion in pixels), level.
    stack_from_frame_ : (n, 3, 3) array
        The poses between the pictures the method worked on.
    layout_ : Layout
        Sizes, channels, value ranges and kind of those pictures.
    """

    clusters: Annotated[int, Range(least=2)] = 12
    """Visual words."""
    patch: Annotated[int, Range(least=2, every=2)] = 8
    """Side of the patch in pixels, even. It is halved for each later part of the sweeps, to 2 at least: large patches
    see far, small ones are exact."""
    softness: Positive = 1.0
    """Shares fall off as exp(−d²/2σ²), with σ² the mean squared distance to the nearest word times this."""
    step: Positive = 1.0
    """First step: corner motion in pixels of a 28-pixel frame."""
    sweeps: Some[CountOrZero] = (10, 10, 10)
    """Sweeps over all parameters, at most. Before each part descriptors are taken anew from the images as they lie."""
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
        each = max(1, _SAMPLE // len(stack))
        sample, pixels = [], stack.size[0] * stack.size[1]
        for part in chunks(stack) if len(stack) <= _SAMPLE else [np.sort(rng.permutation(len(stack))[:_SAMPLE])]:
            found = dense_descriptors(stack.images(part), patch).flatten(2)
            chosen = torch.from_numpy(rng.integers(0, pixels, (len(part), 1, each))).expand(-1, DESCRIPTOR, -1)
            sample.append(found.gather(2, chosen).transpose(1, 2).reshape(-1, DESCRIPTOR))
        points = torch.cat(sample)
        seen = points[points.norm(dim=1) > _FLAT]
        generator = torch.Generator().manual_seed(self.random_state_)
        if len(seen) < self.clusters:
            raise CongealError(f"{stack.source.name} shows too little structure for {self.clusters} visual words")
        # The empty descriptor is a word by itself: on empty ground it is most of what there is.
        words = torch.cat([torch.zeros(1, DESCRIPTOR, dtype=torch.float32), kmeans(seen, self.clusters - 1, generator)])
        return words, squared_distances(seen, words).amin(1).mean().clamp(min=1e-6)

    def _levels(self, stack: Stack, image_features: ImageFeatures) -> list[Level]:
        unit = frame_unit(stack.frame)
        # Each part begins where the last one ended, so its first step may be shorter.
        steps = [max(self.step * self.shrink**i, self.min_step) * unit for i in range(len(self.sweeps))]
        levels = []
        for patch, step, sweeps in zip(self._patches(), steps, self.sweeps, strict=True):
            words = partial(self._words, patch=patch)
            # Published: beyond the edge any word is as likely as any other. Around an object there is empty ground.
            empty = words(torch.zeros(1, stack.channels, 1, 1, dtype=torch.float32))[0, :, 0, 0]
            known = image_features.empty_ground and self.guards
            outside = empty if known else torch.full((self.clusters,), 1 / self.clusters, dtype=torch.float32)
            levels.append(Level(words, step, sweeps, self.clusters, outside, anchored=True))
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
