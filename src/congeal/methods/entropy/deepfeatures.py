"""Congealing on learned features, deep layer first: in the spirit of Deep Congealing.

Huang, Mattar, Lee and Learned-Miller, "Learning to align from scratch", 2012. There the features are a convolutional
deep belief network with topographic pooling; here two layers of topographic convolutional k-means, learnt in seconds.
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
from congeal.methods.checks import CountOrZero, Factor, NotNegative, Positive, Range
from congeal.methods.entropy.convolutional_features import Layer, learn_layer, respond
from congeal.methods.entropy.entropy_search import Level
from congeal.methods.entropy.funnel import FunnelMethod
from congeal.registration.features import ImageFeatures
from congeal.registration.reference import frames

Units = Annotated[int, Range(least=4, every=2)]

_SAMPLE_VALUES = 1_000_000  # pixel values of the images the filters are learnt from
_DEEP_SAMPLE = 100  # images that the second layer is learnt from: its patches are large, and there are enough of them
_DEEP_POOL, _SHALLOW_POOLS = 5, (3, 1)  # pixels a side that features are averaged over at each level


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
    sweeps : tuple of three int
        Sweeps over all parameters at each level, at most.
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

    units: tuple[Units, Units] = (16, 24)
    """Filters of the first and second layer, even; neighbours are pooled, so half as many maps come out."""
    side: Annotated[int, Range(least=3, every=2)] = 5
    """Width of the filters, odd; the second layer's taps lie two pixels apart."""
    steps: tuple[Positive, Positive, Positive] = (1.0, 0.5, 0.25)
    """First step at each level (the second layer, the first, the first again): corner motion in pixels of a 28-pixel
    frame."""
    sweeps: tuple[CountOrZero, CountOrZero, CountOrZero] = (15, 12, 8)
    """Sweeps over all parameters at each level, at most."""
    shrink: Factor = 0.7
    noise: NotNegative = 0.2  # with even steps that are quickly halved, single images are left behind on the deep level

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
        count = int(np.clip(_SAMPLE_VALUES // pixels, 1, len(stack)))
        images = frames(stack, np.unique(np.linspace(0, len(stack) - 1, count).astype(int)))
        generator = torch.Generator().manual_seed(self.random_state_)
        shallow = learn_layer(images, self.units[0], self.side, generator, centred=True)
        deep = learn_layer(respond(images, shallow)[:_DEEP_SAMPLE], self.units[1], self.side, generator, dilation=2)
        faint = torch.tensor([shallow.faint, deep.faint], dtype=torch.float64)
        return {"shallow": shallow.filters, "deep": deep.filters, "faint": faint}

    def _levels(self, stack: Stack, image_features: ImageFeatures) -> list[Level]:
        faint = self._learnt["faint"].tolist()
        shallow = Layer(self._learnt["shallow"], faint[0], centred=True)
        deep = Layer(self._learnt["deep"], faint[1], dilation=2)
        first = [partial(respond, layer=shallow, pool=pool) for pool in _SHALLOW_POOLS]
        views = [partial(_deep, shallow=shallow, deep=deep), *first]
        counts = [self.units[1] // 2, self.units[0] // 2, self.units[0] // 2]
        unit, ground = frame_unit(stack.frame), image_features.empty_ground
        return [
            # Empty ground shows no feature at all.
            Level(
                view, step * unit, sweeps, 1, torch.zeros(count, dtype=torch.float32) if ground else None, anchored=True
            )
            for view, step, sweeps, count in zip(views, self.steps, self.sweeps, counts, strict=True)
        ]


def _deep(images: torch.Tensor, shallow: Layer, deep: Layer) -> torch.Tensor:
    return respond(respond(images, shallow), deep, pool=_DEEP_POOL)
