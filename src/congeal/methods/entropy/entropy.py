"""Entropy congealing, and the funnel for new images that it shares with `sift` and `deepfeatures`.

The cost is the entropy of the set's distribution field (see `entropy_search`). Entropy is concave, so all images may
move at once: the sum of their gains under the old field bounds the entropy's change from above. The sequence of fields,
from blurred to sharp, is the funnel: a new image that goes through it in the same order is drawn to the same pose.

Learned-Miller, "Data driven image models through continuous joint alignment", 2006; Miller, Matsakis and Viola,
"Learning from one example through shared densities on transforms", 2000; Huang, Jain and Learned-Miller, "Unsupervised
joint alignment of complex images", 2007.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch

from congeal.errors import CongealError
from congeal.filters import frame_unit, gaussian_blur
from congeal.geometry import normalise
from congeal.images import Stack
from congeal.methods.base import Method
from congeal.methods.checks import CountOrZero, Factor, NotNegative, Positive, Range, Some
from congeal.methods.entropy.entropy_search import EntropySearch, SearchLevel
from congeal.methods.fit_context import FitContext
from congeal.methods.iterative import Iterations, place_each, why_still
from congeal.registration.features import ImageFeatures
from congeal.registration.gauge import mean_motion

SHORT_STEP = 2.0
"""Times the shortest step: where most steps are no longer, a set that stands still is done with its level. Chosen by
judgement: while most images still try long steps, standing still ends nothing."""
OBJECT_BINS, PHOTO_BINS = 2, 8
"""Bins of values by default: ink or ground says all of an object; grey values of photographs mean more."""


@dataclass(kw_only=True, eq=False)
class FunnelMethod(Method):
    """Base of the three methods; a subclass says what its levels are and may learn something for them first.

    Parameters
    ----------
    sweeps : tuple of int
        Sweeps over all parameters at each level, at most.
    relative : bool
        Count only what an image disagrees with the set about, not the entropy it has by itself from grey values and
        blur, which an image can lower by shrinking; False as published.
    shrink : float
        An image that refuses both directions of a parameter tries a step this much shorter next time; 1 as published.
    min_step : float
        Steps, in pixels of corner motion, do not become shorter than this.
    noise : float
        Standard deviation of the random change of each step's length, relative to it. Steps of one length leave some
        images behind.
    tolerance : float
        A level ends when the mean corner motion of a sweep falls below this many pixels.

    Attributes
    ----------
    history_ : list of dict
        After every sweep: cost (nats per pixel), motion (mean corner motion in pixels), level.
    """

    sweeps: Some[CountOrZero] = (15, 15, 25)
    relative: bool = True
    shrink: Factor = 0.5
    min_step: Positive = 0.05
    noise: NotNegative = 0.0
    tolerance: NotNegative = 0.02

    def _levels(self, stack: Stack, image_features: ImageFeatures) -> list[SearchLevel]:
        """The stages, from coarse to fine."""
        raise NotImplementedError

    def _learn(self, stack: Stack) -> dict[str, torch.Tensor]:
        """Whatever the levels need that is learnt from the set."""
        return {}

    @torch.no_grad()
    def _align(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> torch.Tensor:
        own: dict[str, Any] = dict.fromkeys(("learnt", "fields", "gauges", "reach", "anchor"))
        run = Iterations(self, stack, image_features, context, self.sweeps, **own)
        self._learnt: dict[str, torch.Tensor] = self._learn(stack) if run.own["learnt"] is None else run.own["learnt"]
        levels = self._levels(stack, image_features)
        self._fields: list[list[torch.Tensor]] = run.own["fields"] or [[] for _ in levels]
        self._gauges: list[list[torch.Tensor]] = run.own["gauges"] or [[] for _ in levels]
        funnel = {"learnt": self._learnt, "fields": self._fields, "gauges": self._gauges}
        for at in run.levels():
            resumed = run.resumed and run.own["reach"] is not None
            anchor = run.own["anchor"] if resumed else run.poses
            search = EntropySearch(stack, levels[at], self, anchor)
            reach = run.own["reach"] if resumed else search.first_reach()
            for _ in run.steps():
                field, ink = search.collect(run.poses)
                cost = float(field[-1].mean())  # in nats, what an average image costs at a pixel
                if at == len(levels) - 1:
                    run.offer(run.poses, cost, ink)
                self._fields[at].append(field)
                moved, reach = search.sweep(run.poses, reach, field, seed=sum(map(len, self._fields)))
                if run.gauge is not None:
                    run.gauge.follow_intensity(ink)
                    correction = run.gauge.correction(moved)
                    self._gauges[at].append(correction)
                    moved = normalise(moved.double() @ correction).float()
                motion = mean_motion(run.poses, moved, stack.frame)
                run.poses = moved
                short = self.shrink >= 1 or float(reach.median()) <= SHORT_STEP * self.min_step
                ended = why_still(motion, self.tolerance) if short else ""
                run.end_step({"cost": cost, "motion": motion, "level": at}, ended, reach=reach, anchor=anchor, **funnel)
        field, ink = search.collect(run.poses)
        run.offer(run.poses, float(field[-1].mean()), ink)
        return run.result()

    def _align_new(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> torch.Tensor:
        """Through the funnel: one sweep on each field, in the order in which `fit` met them."""
        levels = self._levels(stack, image_features)
        return place_each(stack, context, lambda part: self._place(stack.some(part), levels))

    def _place(self, stack: Stack, levels: list[SearchLevel]) -> torch.Tensor:
        """Poses (B, 3, 3) of a few images, in float64: which step is better must not hang on how sums are rounded.

        What the gauge did to the whole set after a sweep is done to a new image too: early fields pull every image the
        same wrong way, towards showing less, and only the gauge took that back.
        """
        poses = torch.as_tensor(np.array(stack.start))
        for level, fields, gauges in zip(levels, self._fields, self._gauges, strict=True):
            search = EntropySearch(stack, level, self, poses)
            reach = search.first_reach()
            for i, field in enumerate(fields):
                poses, reach = search.sweep(poses, reach, field)
                if gauges:
                    poses = normalise(poses @ gauges[i].to(poses))
        return poses.float()

    def _state(self) -> dict[str, torch.Tensor]:
        state = {f"learnt.{name}": value for name, value in self._learnt.items()}
        for i, (fields, gauges) in enumerate(zip(self._fields, self._gauges, strict=True)):
            state[f"fields.{i}"] = torch.stack(fields)
            state[f"gauges.{i}"] = torch.stack(gauges) if gauges else torch.zeros(0, 3, 3, dtype=torch.float32)
        return state

    def _restore(self, state: Mapping[str, torch.Tensor]) -> None:
        self._learnt = {k.removeprefix("learnt."): v for k, v in state.items() if k.startswith("learnt.")}
        numbers = sorted(int(k.removeprefix("fields.")) for k in state if k.startswith("fields."))
        self._fields = [list(state[f"fields.{i}"]) for i in numbers]
        self._gauges = [list(state[f"gauges.{i}"]) for i in numbers]


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

    Attributes
    ----------
    transforms_, quality_, history_, stack_from_frame_, layout_
        As for every method, see `Method`.
    """

    bins: Annotated[int, Range(least=2)] | Literal["auto"] = "auto"
    blurs: Some[NotNegative] = (2.0, 1.0, 0.0)
    steps: Some[Positive] = (1.0, 1.0, 0.5)
    noise: NotNegative = 0.2

    motion: str = "affine"
    name: ClassVar[str] = "entropy"

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if not len(self.blurs) == len(self.steps) == len(self.sweeps):
            raise CongealError(f"blurs {self.blurs}, steps {self.steps} and sweeps {self.sweeps} need one length")

    def _levels(self, stack: Stack, image_features: ImageFeatures) -> list[SearchLevel]:
        usual = OBJECT_BINS if image_features.empty_ground else PHOTO_BINS
        bins, unit = self.bins if isinstance(self.bins, int) else usual, frame_unit(stack.frame)
        ground = shares(torch.zeros(1, stack.channels, 1, 1, dtype=torch.float32), bins, 0.0)[0, :, 0, 0]
        outside = ground if image_features.empty_ground else None
        return [
            SearchLevel(partial(shares, bins=bins, sigma=sigma * unit), step * unit, 1 if bins == 2 else bins, outside)
            for sigma, step in zip(self.blurs, self.steps, strict=True)
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
