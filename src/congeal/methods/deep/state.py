"""What the recipe knows about a set: the images it learns from, and where they are by now."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch

from congeal.geometry import warp
from congeal.geometry.matrix import Size
from congeal.images import Stack
from congeal.solvers.appearance import Appearance
from congeal.solvers.gauge import Gauge
from congeal.solvers.matching import Matcher, Views
from congeal.solvers.pose_prior import PosePrior
from congeal.solvers.streaming import CHUNK_VALUES, start_poses
from congeal.solvers.threads import in_order, one_thread

Work = Callable[[Views, torch.Tensor, torch.Tensor], torch.Tensor]
_FEWEST = 3  # images that always count as matching: a template needs some
_LARGEST_ZOOM = math.sqrt(2)  # of the common scale in one go: ink that fell below half is lost, not shrunk


@dataclass(frozen=True)
class Sample:
    """The images the recipe learns from, as they are compared; nothing here changes.

    Attributes
    ----------
    stack : Stack
        Of these images alone.
    images : (n, C, H, W) tensor
        Their features: what the appearance compares.
    masks : (n, 1, H, W) tensor or None
    start : (n, 3, 3) tensor
        stack_from_frame where they started.
    guards : bool
        Whether their common pose and ink are held.
    """

    stack: Stack
    appearance: Appearance
    motion: str
    guards: bool
    images: torch.Tensor
    masks: torch.Tensor | None
    start: torch.Tensor

    @classmethod
    def of(cls, stack: Stack, appearance: Appearance, motion: str, guards: bool) -> Sample:
        """All images of a stack that fits into memory."""
        everything = np.arange(len(stack))
        images, masks = appearance.features(stack.images(everything)), stack.masks(everything)
        return cls(stack, appearance, motion, guards, images, masks, start_poses(stack))

    @property
    def frame(self) -> Size:
        """(height, width) of the picture that is aligned to."""
        return self.stack.frame

    def each(self, work: Work, poses: torch.Tensor, shrink: int = 1) -> torch.Tensor:
        """`work(views, start, poses)` of all images, in pieces whose frames stay in cache.

        shrink: how many times smaller the work looks at them.
        """
        values = self.images.shape[1] * self.frame[0] * self.frame[1] // shrink**2
        count = -(-len(self.images) * values // CHUNK_VALUES)
        edges = torch.linspace(0, len(self.images), max(1, count) + 1).long().tolist()
        pieces = [slice(*pair) for pair in pairwise(edges)]

        @torch.no_grad()  # every thread decides that for itself
        def one(rows: slice) -> torch.Tensor:
            masks = None if self.masks is None else self.masks[rows]
            return work(Views(self.images[rows], masks), self.start[rows], poses[rows])

        with one_thread() as free:
            return torch.cat(list(in_order(one, pieces, free)))

    def in_gauge(self, poses: torch.Tensor, good: torch.Tensor) -> torch.Tensor:
        """Poses of which the matching ones keep the mean of the start and, for objects, their ink."""
        images, same_size = self.images[good], self.stack.size == self.frame
        ink = float(images.sum()) if self.appearance.holds_ink and same_size else None
        gauge = Gauge(self.start, self.frame, self.motion, ink, band=(1.0, 1.0))
        held = gauge.fix(poses, keep=good)
        if ink is None:
            return held
        gauge.follow_ink(float(warp(images, held[good], self.frame).sum()), step=_LARGEST_ZOOM)
        return gauge.fix(poses, keep=good)


@dataclass(frozen=True)
class State:
    """Where the images are by now; every stage of the recipe gives a new one.

    Attributes
    ----------
    template : (C, h, w) tensor
        What images are compared with: the reference, then the mean of those that match.
    poses : (n, 3, 3) tensor
        stack_from_frame.
    scores : (n,) tensor
        Likeness to the template.
    good : (n,) bool tensor
        Which of them match.
    bar : float
        The score from which on an image matches.
    prior : PosePrior or None
        Which poses the matching ones make likely.
    looser : (n,) tensor or None
        How many times as far from those an image may be: more than once for those that started elsewhere.
    """

    template: torch.Tensor
    poses: torch.Tensor
    scores: torch.Tensor
    good: torch.Tensor
    bar: float = 0.0
    prior: PosePrior | None = None
    looser: torch.Tensor | None = None

    @classmethod
    def fresh(cls, sample: Sample, template: torch.Tensor) -> State:
        """Every image at its start; nothing is known about any of them."""
        n = len(sample.images)
        return cls(template, sample.start.clone(), torch.zeros(n), torch.ones(n, dtype=torch.bool))

    def matcher(self, sample: Sample) -> Matcher:
        """To compare images with the template as it is now."""
        return Matcher(self.template, sample.appearance, self.prior)

    def scored(self, sample: Sample) -> State:
        """The same poses with scores against the template as it is now."""
        matcher = self.matcher(sample)
        return replace(self, scores=sample.each(lambda views, _, poses: matcher.score(views, poses), self.poses))

    def moved_to(self, sample: Sample, poses: torch.Tensor, bar: float | None = None, share: float = 1.0) -> State:
        """Take stock: which images match at their new poses, their common pose, and the template they make.

        bar: the score from which on they match; None for the best `share` of them.
        """
        scores = replace(self, poses=poses).scored(sample).scores
        least = float(scores.quantile(1 - share)) if bar is None else bar
        good = scores >= min(least, float(scores.topk(min(_FEWEST, len(scores))).values[-1]))
        if sample.guards:
            poses = sample.in_gauge(poses, good)
        template = warp(sample.images[good], poses[good], sample.frame).mean(0)
        prior = None
        if sample.appearance.needs_prior:
            prior = PosePrior.from_poses(sample.start[good], poses[good], sample.frame)
        return State(template, poses, scores, good, self.bar, prior)

    def median_bar(self, slack: float) -> State:
        """With the bar a little below the median score of the images that match."""
        return replace(self, bar=float(self.scores[self.good].median()) - slack)
