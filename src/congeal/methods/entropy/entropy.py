"""Entropy congealing: make the values that images show at each pixel as predictable as possible.

Learned-Miller, "Data driven image models through continuous joint alignment", 2006; Miller, Matsakis and Viola,
"Learning from one example through shared densities on transforms", 2000.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

import torch

from congeal.errors import CongealError
from congeal.filters import frame_unit, gaussian_blur
from congeal.images import Stack
from congeal.methods.checks import CountOrZero, NotNegative, Positive, Range, Some
from congeal.methods.entropy.entropy_search import Level
from congeal.methods.entropy.funnel import FunnelMethod
from congeal.registration.features import ImageFeatures

_OBJECT_BINS, _PHOTO_BINS = 2, 8  # ink or ground says all of an object; grey values of photographs mean more


@dataclass(kw_only=True, eq=False)
class Entropy(FunnelMethod):
    """Entropy congealing with a funnel for new images.

    Minimises Σ_x H(p(x)), where p(x) is the distribution of the set's values at pixel x, by trial steps.

    Parameters
    ----------
    bins : int or "auto"
        Of values. With 2 a value is the probability of ink; with more, values are spread over bins by a triangular
        Parzen window. "auto": 2 for objects on empty ground, 8 for photographs.
    blurs : tuple of float
        Gaussian blur of the distributions at each level, in pixels of a 28-pixel frame.
    steps : tuple of float
        First step at each level: corner motion in pixels of a 28-pixel frame.
    sweeps : tuple of int
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

    bins: Annotated[int, Range(least=2)] | Literal["auto"] = "auto"
    """Of values: 2 or more, or "auto" for 2 on objects and 8 on photographs."""
    blurs: Some[NotNegative] = (2.0, 1.0, 0.0)
    """Gaussian blur of the distributions at each level, in pixels of a 28-pixel frame."""
    steps: Some[Positive] = (1.0, 1.0, 0.5)
    """First step at each level: corner motion in pixels of a 28-pixel frame."""
    sweeps: Some[CountOrZero] = (15, 15, 25)
    """Sweeps over all parameters at each level, at most."""
    noise: NotNegative = 0.2  # steps of one length leave images of straight strokes behind

    motion: str = "affine"
    name: ClassVar[str] = "entropy"

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if not len(self.blurs) == len(self.steps) == len(self.sweeps):
            raise CongealError(f"blurs {self.blurs}, steps {self.steps} and sweeps {self.sweeps} need one length")

    def _levels(self, stack: Stack, image_features: ImageFeatures) -> list[Level]:
        usual = _OBJECT_BINS if image_features.empty_ground else _PHOTO_BINS
        bins, unit = self.bins if isinstance(self.bins, int) else usual, frame_unit(stack.frame)
        ground = shares(torch.zeros(1, stack.channels, 1, 1, dtype=torch.float32), bins, 0.0)[0, :, 0, 0]
        outside = ground if image_features.empty_ground else None
        return [
            Level(
                partial(shares, bins=bins, sigma=sigma * unit), step * unit, sweeps, 1 if bins == 2 else bins, outside
            )
            for sigma, step, sweeps in zip(self.blurs, self.steps, self.sweeps, strict=True)
        ]


def shares(images: torch.Tensor, bins: int, sigma: float) -> torch.Tensor:
    """How much of each pixel falls into each bin, then blurred: (B, C, H, W) → (B, C·bins, H, W); C maps for 2 bins."""
    images = images.clamp(0, 1)
    if bins > 2:
        centres = torch.arange(bins, dtype=images.dtype)[:, None, None]
        images = (1 - (images[:, :, None] * (bins - 1) - centres).abs()).clamp(min=0).flatten(1, 2)
    if sigma <= 0:
        return images
    # Beyond the border there is no image, so the window is cut there, not filled with zeros.
    return gaussian_blur(images, sigma) / gaussian_blur(torch.ones_like(images[:1, :1]), sigma)
