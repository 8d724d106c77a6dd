"""What `entropy`, `sift` and `deepfeatures` share: congealing on distribution fields, and the funnel for new images.

The cost is the entropy of the set's field (see `entropy_search`). Entropy is concave, so all images may move at
once: the sum of their gains under the old field bounds the entropy's change from above. The sequence of fields, from
blurred to sharp, is the funnel: a new image that goes through it in the same order is drawn to the same pose.

Learned-Miller, "Data driven image models through continuous joint alignment", 2006; Huang, Jain and Learned-Miller,
"Unsupervised joint alignment of complex images", 2007.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from congeal.geometry import normalise
from congeal.images import Stack
from congeal.methods.base import Method
from congeal.methods.checks import Factor, NotNegative, Positive
from congeal.methods.entropy.entropy_search import Level, Search, SearchSettings
from congeal.methods.fit_context import FitContext
from congeal.registration.batching import chunks, start_poses
from congeal.registration.features import ImageFeatures
from congeal.registration.gauge import BestIterate, Gauge, mean_motion

_LONGEST = 3.0  # pixels: with guards no trial step moves a corner farther
_SHORT = 2.0  # times the shortest step: where most steps are no longer, standing still means the level is done


@dataclass(kw_only=True, eq=False)
class FunnelMethod(Method):
    """Base of the three methods; a subclass says what its levels are and may learn something for them first.

    Parameters
    ----------
    relative : bool
        Count only what an image disagrees with the field about, not the entropy it has by itself.
    shrink : float
        An image that refuses both directions of a parameter tries a step this much shorter next time.
    min_step : float
        Steps, in pixels of corner motion, do not become shorter than this.
    noise : float
        Standard deviation of the random change of each step's length, relative to it.
    tolerance : float
        A level ends when the mean corner motion of a sweep falls below this many pixels.
    """

    relative: bool = True
    """Count only what an image disagrees with the field about, not the entropy it has by itself from grey values and
    blur, which an image can lower by shrinking. False: the plain entropy, as published."""
    shrink: Factor = 0.5
    """An image that refuses both directions of a parameter tries a step this much shorter next time; 1 as published."""
    min_step: Positive = 0.05
    """Steps, in pixels of corner motion, do not become shorter than this."""
    noise: NotNegative = 0.0
    """Standard deviation of the random change of each step's length, relative to it."""
    tolerance: NotNegative = 0.02
    """A level ends when the mean corner motion of a sweep falls below this many pixels."""

    def _levels(self, stack: Stack, image_features: ImageFeatures) -> list[Level]:
        """The stages, from coarse to fine."""
        raise NotImplementedError

    def _learn(self, stack: Stack) -> dict[str, torch.Tensor]:
        """Whatever the levels need that is learnt from the set."""
        return {}

    def _align(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> torch.Tensor:
        with torch.no_grad():
            return self._congeal(stack, image_features, context)

    def _congeal(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> torch.Tensor:
        start = start_poses(stack)
        state = context.load() or _fresh(start)
        self._learnt: dict[str, torch.Tensor] = state["learnt"] if state["learnt"] is not None else self._learn(stack)
        levels = self._levels(stack, image_features)
        self._fields: list[list[torch.Tensor]] = state["fields"] or [[] for _ in levels]
        self._gauges: list[list[torch.Tensor]] = state["gauges"] or [[] for _ in levels]
        gauge = None
        if self.guards:
            zoom = float(state["zoom"])
            gauge = Gauge.of_stack(stack, self.motion, keeps_intensity=image_features.keeps_intensity, zoom=zoom)
        found, best, total = state["found"], BestIterate(start, state["best"]), sum(level.sweeps for level in levels)
        for at in range(int(state["level"]), len(levels)):
            resumed = at == state["level"] and state["reach"] is not None
            anchor = state["anchor"] if resumed else found
            search = Search(stack, levels[at], self._settings(), anchor)
            reach = state["reach"] if resumed else search.first_reach()
            for sweep in range(int(state["sweep"]) if resumed else 0, levels[at].sweeps):
                field, ink = search.collect(found)
                cost = search.cost(field)
                if gauge is not None and at == len(levels) - 1:
                    best.offer(found, cost, gauge.energy(ink))
                self._fields[at].append(field)
                moved, reach = search.sweep(found, reach, field, seed=sum(map(len, self._fields)))
                if gauge is not None:
                    gauge.follow_intensity(ink)
                    correction = gauge.correction(moved)
                    self._gauges[at].append(correction)
                    moved = normalise(moved.double() @ correction).float()
                motion = mean_motion(found, moved, stack.frame)
                settled = motion < self.tolerance and self._short(reach)
                found = moved
                done = sum(level.sweeps for level in levels[:at]) + sweep + 1
                context.step(done, total, cost=cost, motion=motion, level=at)
                if context.due():
                    zoom = 1.0 if gauge is None else gauge.zoom
                    next_sweep = levels[at].sweeps if settled else sweep + 1
                    where = {"level": at, "sweep": next_sweep, "reach": reach, "anchor": anchor, "zoom": zoom}
                    funnel = {"learnt": self._learnt, "fields": self._fields, "gauges": self._gauges}
                    context.save({"found": found, **where, **funnel, "best": best.state()})
                if settled:
                    context.ends_early(f"a step moved the images by less than {self.tolerance:g} px")
                    break
        if gauge is None:
            return found
        field, ink = search.collect(found)
        best.offer(found, search.cost(field), gauge.energy(ink))
        return best.found

    def _settings(self) -> SearchSettings:
        return SearchSettings(
            motion=self.motion,
            relative=self.relative,
            shrink=self.shrink,
            min_step=self.min_step,
            longest=_LONGEST if self.guards else math.inf,
            noise=self.noise,
            random_state=self.random_state_,
        )

    def _short(self, reach: torch.Tensor) -> bool:
        """Whether most steps are about as short as they may become: while they are not, standing still ends nothing."""
        return self.shrink >= 1 or float(reach.median()) <= _SHORT * self.min_step

    def _align_new(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> torch.Tensor:
        """Through the funnel: one sweep on each field, in the order in which `fit` met them."""
        found = start_poses(stack)
        with torch.no_grad():
            levels = self._levels(stack, image_features)
            context.map_images(lambda part: (self._place(stack.some(part), levels),), chunks(stack), found)
        return found

    def _place(self, stack: Stack, levels: list[Level]) -> torch.Tensor:
        """Poses (B, 3, 3) of a few images, in float64: which step is better must not hang on how sums are rounded.

        What the gauge did to the whole set after a sweep is done to a new image too: early fields pull every image the
        same wrong way, towards showing less, and only the gauge took that back.
        """
        poses = torch.as_tensor(np.array(stack.start))
        for level, fields, gauges in zip(levels, self._fields, self._gauges, strict=True):
            search = Search(stack, level, self._settings(), poses)
            reach = search.first_reach()
            for i, field in enumerate(fields):
                poses, reach = search.follow(poses, reach, field)
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


def _fresh(start: torch.Tensor) -> dict[str, Any]:
    at = {"level": 0, "sweep": 0, "reach": None, "anchor": None, "zoom": 1.0}
    return {"found": start, "learnt": None, "fields": None, "gauges": None, "best": None, **at}
