"""Congealing on learned features, deep layer first: in the spirit of Deep Congealing.

Huang, Mattar, Lee and Learned-Miller, "Learning to align from scratch", 2012. There the features are a convolutional
deep belief network with topographic pooling; here two layers of topographic convolutional k-means, learnt in seconds.
Neighbouring units of a ring learn together, so they end up alike (a stroke a little turned, a little moved); pooling
over neighbours makes a feature blind to such small changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import numpy as np
import torch
import torch.nn.functional as functional

from congeal.errors import CongealError
from congeal.filters import frame_unit
from congeal.images import Stack
from congeal.methods.checks import CountOrZero, Factor, NotNegative, Positive, Range
from congeal.methods.entropy.entropy import FunnelMethod
from congeal.methods.entropy.entropy_search import SearchLevel
from congeal.registration.batching import frames
from congeal.registration.features import ImageFeatures

Units = Annotated[int, Range(least=4, every=2)]

SAMPLE_VALUES = 1_000_000
"""Pixel values of the images that the filters are learnt from. Chosen by judgement: patches of them are 4 MB a pixel
of the filter."""
DEEP_SAMPLE = 100
"""Images that the second layer is learnt from: its patches are large, and there are enough of them."""
POOLS = (5, 3, 1)
"""Pixels a side that features are averaged over at each level. Chosen by judgement: from forgiving to exact."""
MIN_COSINE = 0.2
"""Cosine between patch and filter below which a unit is silent: features stay sparse."""
FAINT_SHARE = 0.7
"""Of the median patch's contrast: what counts as half seen. With less, the faint fringe of a stroke, which is what its
interpolation left, counts as much as the stroke."""
MAX_PATCHES = 20_000
"""Patches that k-means sees. Chosen by judgement: about a thousand for each unit."""
NEIGHBOUR_SHARE = 0.5
"""Of a unit's patches that each neighbour learns from too, at first. Chosen by judgement: half makes neighbours alike
without making them equal."""


@dataclass(kw_only=True, eq=False)
class DeepFeatures(FunnelMethod):
    """Entropy congealing on features learnt from the set, with a funnel for new images.

    Two convolutional layers are learnt without labels. The set is congealed first on the second, which sees whole parts
    and forgives much, then on the first, which sees strokes and edges and is exact.

    Parameters
    ----------
    units : tuple of two int
        Filters of the first and second layer, even; neighbours are pooled, so half as many maps come out.
    side : int
        Width of the filters in pixels, odd; the second layer's taps lie two pixels apart.
    steps : tuple of three float
        First step at each level (the second layer, the first, the first again): corner motion in pixels of a 28-pixel
        frame.

    Attributes
    ----------
    transforms_, quality_, history_, stack_from_frame_, layout_
        As for every method, see `Method`.
    """

    units: tuple[Units, Units] = (16, 24)
    side: Annotated[int, Range(least=3, every=2)] = 5
    steps: tuple[Positive, Positive, Positive] = (1.0, 0.5, 0.25)
    sweeps: tuple[CountOrZero, CountOrZero, CountOrZero] = (15, 12, 8)
    shrink: Factor = 0.7
    noise: NotNegative = 0.2

    motion: str = "similarity"
    name: ClassVar[str] = "deepfeatures"

    def _learn(self, stack: Stack) -> dict[str, torch.Tensor]:
        """Both layers, from images spread over the set as the start shows them."""
        least = 2 * self.side - 1  # what the second layer's filters span
        if min(stack.frame) < least:
            height, width = stack.frame
            raise CongealError(
                f"pictures of {height} × {width} pixels are too small for deepfeatures, whose filters see {least}: "
                "use a larger size, or another method"
            )
        pixels = stack.channels * stack.frame[0] * stack.frame[1]
        count = int(np.clip(SAMPLE_VALUES // pixels, 1, len(stack)))
        images = frames(stack, np.unique(np.linspace(0, len(stack) - 1, count).astype(int)))
        generator = torch.Generator().manual_seed(self.random_state_)
        shallow = learn_layer(images, self.units[0], self.side, generator, centred=True)
        deep = learn_layer(respond(images, shallow)[:DEEP_SAMPLE], self.units[1], self.side, generator, dilation=2)
        faint = torch.tensor([shallow.faint, deep.faint], dtype=torch.float64)
        return {"shallow": shallow.filters, "deep": deep.filters, "faint": faint}

    def _levels(self, stack: Stack, image_features: ImageFeatures) -> list[SearchLevel]:
        faint = self._learnt["faint"].tolist()
        shallow = Layer(self._learnt["shallow"], faint[0], centred=True)
        deep = Layer(self._learnt["deep"], faint[1], dilation=2)
        first: list[Callable[[torch.Tensor], torch.Tensor]] = [
            partial(respond, layer=shallow, pool=pool) for pool in POOLS[1:]
        ]
        views = [lambda images: respond(respond(images, shallow), deep, pool=POOLS[0]), *first]
        counts = [self.units[1] // 2, self.units[0] // 2, self.units[0] // 2]
        unit, ground = frame_unit(stack.frame), image_features.empty_ground
        # Empty ground shows no feature at all.
        grounds = [torch.zeros(count, dtype=torch.float32) if ground else None for count in counts]
        return [
            SearchLevel(view, step * unit, 1, outside, anchored=True)
            for view, step, outside in zip(views, self.steps, grounds, strict=True)
        ]


# ---- the features: filters by k-means on a ring, pooled along it


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
    # Sum of squares in the patch around every pixel, about the patch's mean if centred.
    ones = torch.ones_like(layer.filters[:1]).to(maps)
    energy = functional.conv2d(maps.square(), ones, padding=reach, dilation=layer.dilation)
    if layer.centred:
        sums = functional.conv2d(maps, ones, padding=reach, dilation=layer.dilation)
        energy = energy - sums.square() / ones.numel()
    cosine = raw / (energy.clamp(min=0).sqrt() + layer.faint)
    active = ((cosine - MIN_COSINE) / (1 - MIN_COSINE)).clamp(0, 1).square()
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
    seen = strength > 1e-3  # the others show nothing
    usual = float(strength[seen].median()) if bool(seen.any()) else 1.0
    patches = patches[strength > usual]  # fainter ones teach nothing
    if len(patches) < units:  # next to nothing to see: any filters do
        patches = torch.randn(units, channels * side * side, generator=generator, dtype=torch.float32)
        patches = patches - patches.mean(1, keepdim=True) if centred else patches
    patches = patches[torch.randperm(len(patches), generator=generator)[:MAX_PATCHES]]
    points = patches / patches.norm(dim=1, keepdim=True)
    filters = ring_kmeans(points, units, generator).reshape(units, channels, side, side)
    return Layer(filters, FAINT_SHARE * usual, dilation, centred)


def ring_kmeans(points: torch.Tensor, units: int, generator: torch.Generator, rounds: int = 30) -> torch.Tensor:
    """Spherical k-means of unit vectors (n, d) whose centres (units, d) lie on a ring and share with neighbours."""
    centres = points[torch.randperm(len(points), generator=generator)[:units]].clone()
    for i in range(rounds):
        members = functional.one_hot((points @ centres.T).argmax(1), units).to(points)
        sums = members.T @ points
        share = NEIGHBOUR_SHARE * (1 - i / rounds)  # neighbours matter less and less
        smooth = sums + share * (sums.roll(1, 0) + sums.roll(-1, 0))
        norm = smooth.norm(dim=1, keepdim=True)
        centres = torch.where(norm > 1e-6, smooth / norm.clamp(min=1e-6), centres)
    return centres
