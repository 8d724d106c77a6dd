"""The template, and all images registered to it jointly: the first template, then Gauss-Newton to the inliers' mean.

A typical image is the first template. All images take a few Gauss-Newton steps towards it, with few parameters and much
blur; those most like it make the next template. A template made of registered images is sharper than the one they were
registered to, and only a joint step knows where the whole set drifts. A result that shrinks or empties the object is
rejected.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from congeal.evaluation.thresholds import COLLAPSE_ENERGY, REFINED_ENERGY
from congeal.execution.threads import map_ordered, single_torch_thread
from congeal.filters import frame_unit
from congeal.geometry import warp
from congeal.geometry.matrix import Size
from congeal.images import Stack
from congeal.registration.batching import CHUNK_VALUES, chunks, medoid, reference_image, start_poses, total_intensity
from congeal.registration.features import ImageFeatures, at_most
from congeal.registration.gauge import Gauge
from congeal.registration.gauss_newton import GaussNewton
from congeal.registration.joint_gauss_newton import JointGaussNewton
from congeal.registration.template_registration import (
    PosePrior,
    TemplateRegistration,
    Views,
    reduced_size,
    reduction_for,
)

log = logging.getLogger("congeal")
Work = Callable[[Views, torch.Tensor, torch.Tensor], torch.Tensor]

STAGES = (("translation", 3.0, 6), ("similarity", 2.5, 6), ("affine", 2.0, 8))
"""(largest motion, blur in pixels of a 28-pixel frame, steps): few parameters and much blur first, so that images far
away are not deformed to fit. Chosen, as all below, on MNIST threes and sevens under 0–30 % warps."""
TEMPLATE_SHARE = 0.3
"""Share of the images, those most like the template, that make the next one."""
TEMPLATE_ROUNDS, ROUND_STEPS, ROUND_BLUR = 3, 5, 1.5
"""How often the template is renewed after that, at most; the steps of each round, and its blur."""
CLOSE_SCORE = 0.7
"""If every image scores this much, as copies of one picture and frames of a stack do, the template is final."""
MIN_INLIERS = 3
"""Images that always count as inliers: a template of fewer is one of them."""
MAX_ZOOM = math.sqrt(2)
"""Largest correction of the common scale at once: an object that lost half of its intensity left the frame, and was not
only reduced."""
MAX_STEPS = 40
"""Gauss-Newton steps of the last stage at each of its sizes, reduced and full; most sets converge after 10 to 25."""
MAX_EARLY_STEPS = 10
"""Steps of the stages before, whose only use is to lead up to it."""


@dataclass(frozen=True)
class Sample:
    """The images that are aligned together, as features in memory."""

    stack: Stack  # of these images alone
    image_features: ImageFeatures
    motion: str
    guards: bool  # whether the common pose and the total intensity are held
    images: torch.Tensor  # (n, C, H, W) their features
    masks: torch.Tensor | None  # (n, 1, H, W)
    start: torch.Tensor  # (n, 3, 3) initial poses, stack_from_frame

    @classmethod
    def of(cls, stack: Stack, image_features: ImageFeatures, motion: str, guards: bool) -> Sample:
        """All images of a stack that fits into memory."""
        everything = np.arange(len(stack))
        images, masks = image_features.features(stack.images(everything)), stack.masks(everything)
        return cls(stack, image_features, motion, guards, images, masks, start_poses(stack))

    @property
    def frame(self) -> Size:
        """(height, width) of the aligned frame."""
        return self.stack.frame

    def map(self, work: Work, poses: torch.Tensor, reduction: int = 1) -> torch.Tensor:
        """`work(views, start, poses)` of all images, in batches that stay in the processor's cache.

        reduction: the factor by which the work reduces the images.
        """
        values = self.images.shape[1] * self.frame[0] * self.frame[1] // reduction**2
        count = -(-len(self.images) * values // CHUNK_VALUES)
        edges = torch.linspace(0, len(self.images), max(1, count) + 1).long().tolist()

        @torch.no_grad()  # every thread has its own setting
        def one(rows: slice) -> torch.Tensor:
            masks = None if self.masks is None else self.masks[rows]
            return work(Views(self.images[rows], masks), self.start[rows], poses[rows])

        with single_torch_thread() as free:
            return torch.cat(list(map_ordered(one, [slice(*pair) for pair in pairwise(edges)], free)))

    def fix_gauge(self, poses: torch.Tensor, inliers: torch.Tensor) -> torch.Tensor:
        """Poses whose inliers keep the mean initial pose and, for objects, their total intensity.

        The intensity is held at 1.0 of that of the sources here. The joint stage, which comes after, ends at 0.95
        (`REFINED_ENERGY`), so that results are compared at one energy ratio (docs/lessons.md).
        """
        images, same_size = self.images[inliers], self.stack.size == self.frame
        intensity = float(images.sum()) if self.image_features.keeps_intensity and same_size else None
        gauge = Gauge(self.start, self.frame, self.motion, intensity, band=(1.0, 1.0))
        fixed = gauge.fix(poses, keep=inliers)
        if intensity is None:
            return fixed
        gauge.follow_intensity(float(warp(images, fixed[inliers], self.frame).sum()), step=MAX_ZOOM)
        return gauge.fix(poses, keep=inliers)


@dataclass(frozen=True)
class State:
    """The state of an alignment; every stage returns a new one."""

    template: torch.Tensor  # (C, h, w) what images are registered to: the reference, then the mean of the inliers
    poses: torch.Tensor  # (n, 3, 3) stack_from_frame
    scores: torch.Tensor  # (n,) normalised correlation with the template; after `register_each` discounted by the prior
    inliers: torch.Tensor  # (n,) bool, as `moved_to` left them; only dprc reads them, `joint` asks its `ScoreModel`
    prior: PosePrior | None = None  # the distribution of the poses of the inliers
    prior_width: torch.Tensor | None = None  # (n,) factors on its width: wider for images that were restarted

    @classmethod
    def initial(cls, sample: Sample, template: torch.Tensor) -> State:
        """Every image at its initial pose, all of them inliers."""
        n = len(sample.images)
        return cls(template, sample.start.clone(), torch.zeros(n), torch.ones(n, dtype=torch.bool))

    def registration(self, sample: Sample) -> TemplateRegistration:
        """Compares images with the current template."""
        return TemplateRegistration(self.template, sample.image_features, self.prior)

    def scored(self, sample: Sample) -> State:
        """The same poses with scores against the current template."""
        registration = self.registration(sample)
        return replace(self, scores=sample.map(lambda views, _, poses: registration.score(views, poses), self.poses))

    def moved_to(self, sample: Sample, poses: torch.Tensor, threshold: float | None = None) -> State:
        """New poses, with the inliers there, the gauge fixed, and the mean of the inliers as template.

        threshold: the score of an inlier, which only dprc gives; None for the best `TEMPLATE_SHARE` of the images.
        """
        scores = replace(self, poses=poses).scored(sample).scores
        least = float(scores.quantile(1 - TEMPLATE_SHARE)) if threshold is None else threshold
        inliers = scores >= min(least, float(scores.topk(min(MIN_INLIERS, len(scores))).values[-1]))
        if sample.guards:
            poses = sample.fix_gauge(poses, inliers)
        template = warp(sample.images[inliers], poses[inliers], sample.frame).mean(0)
        prior = None
        if sample.image_features.needs_prior:
            prior = PosePrior.from_poses(sample.start[inliers], poses[inliers], sample.frame)
        return State(template, poses, scores, inliers, prior)


@torch.no_grad()
def initialise_poses(sample: Sample, reference: torch.Tensor) -> State:
    """Gauss-Newton steps of all images towards the reference, then towards the mean of those most like it."""
    unit, state = frame_unit(sample.frame), State.initial(sample, reference)
    poses = state.poses
    for motion, sigma, steps in STAGES:
        poses = _descend(sample, state, poses, steps, motion, sigma * unit)
    state = state.moved_to(sample, poses)
    for _ in range(TEMPLATE_ROUNDS):
        poses = _descend(sample, state, state.poses, ROUND_STEPS, "affine", ROUND_BLUR * unit)
        state = state.moved_to(sample, poses)
        if float(state.scores.min()) >= CLOSE_SCORE:
            break
    return state


def _descend(sample: Sample, state: State, poses: torch.Tensor, steps: int, motion: str, sigma: float) -> torch.Tensor:
    """Gauss-Newton steps of every image towards the template, within the motion of the method."""
    registration, motion = state.registration(sample), at_most(motion, sample.motion)

    def work(views: Views, start: torch.Tensor, pose: torch.Tensor) -> torch.Tensor:
        return registration.step_to_template(views, start, pose, steps, motion, sigma)

    return sample.map(work, poses, reduction_for(sample.frame, sigma))


def reference_features(reference: Any, stack: Stack, image_features: ImageFeatures, random_state: int) -> torch.Tensor:
    """The features (C, h, w) of the reference: "auto" is a typical image of the stack."""
    if isinstance(reference, str) and reference == "auto":
        reference = medoid(stack, random_state)
    if isinstance(reference, int | np.integer) and 0 <= reference < len(stack):
        # Features first, then the warp: the border of the source image is no edge of the object.
        rows = np.array([int(reference)])
        features = image_features.features(stack.images(rows))
        return warp(features, torch.as_tensor(stack.start[rows]).float(), stack.frame)[0]
    return image_features.features(reference_image(reference, stack, random_state)[None])[0]


@torch.no_grad()
def register_jointly(
    sample: Sample,
    state: State,
    keep: torch.Tensor,
    motion: str,
    *,
    only_last_stage: bool = False,
    max_steps: int = MAX_STEPS,
) -> State:
    """Joint Gauss-Newton to the running mean of the inliers `keep` (n,), in the gauge of the initial poses.

    Gives the poses, that mean, and the prior on poses. only_last_stage: the poses are near already. max_steps: only
    dprc sets it. With guards, objects end at an energy ratio of 0.95 (`REFINED_ENERGY`).
    """
    stack, image_features, found = sample.stack, sample.image_features, state.poses
    gauge = None
    if sample.guards:
        gauge = Gauge.of_stack(stack, motion, keeps_intensity=image_features.keeps_intensity, band=REFINED_ENERGY)
    stages = image_features.refinement(motion, stack.frame)[-1 if only_last_stage else 0 :]
    plan = [(freedom, sigma, reduction_for(stack.frame, sigma), MAX_EARLY_STEPS) for freedom, sigma in stages]
    freedom, sigma, shrink, _ = plan.pop()
    # The last stage, too, is mostly done at reduced size; the rest is a matter of a few steps.
    plan += [(freedom, sigma, small, max_steps) for small in sorted({shrink, 1}, reverse=True)]
    options: dict[str, Any] = {"keep": keep, "prior_width": state.prior_width}
    for freedom, sigma, shrink, steps in plan:
        newton = GaussNewton(freedom, reduced_size(stack.frame, shrink), robust=image_features.robust)
        passes = JointGaussNewton(
            stack,
            newton,
            image_features,
            sigma,
            shrink=shrink,
            gauge=gauge,
            **options,
        )
        passes.target = passes.collect(found)
        for _ in range(min(steps, max_steps)):
            found, moved, _ = passes.step(found)
            if moved < image_features.settled * max(stack.frame):
                break
    if sigma > 0:  # images are compared with a sharp mean, and blurred with it
        passes = JointGaussNewton(stack, GaussNewton(freedom, stack.frame), image_features, **options)
        passes.target = passes.collect(found)
    prior = passes.prior(found) if image_features.needs_prior else None
    return replace(state, template=passes.target["mean"], poses=found, prior=prior)


@torch.no_grad()
def last_sound(stack: Stack, states: list[State], image_features: ImageFeatures) -> State:
    """The last state in which the object keeps its total intensity; the initial poses are tried when all failed. If
    none is sound it is the last one, which is then measured as collapsed."""
    if not image_features.keeps_intensity:
        return states[-1]
    source = total_intensity(stack)
    for state in reversed([replace(states[0], poses=start_poses(stack)), *states]):
        shown = sum(float(warp(stack.images(part), state.poses[part], stack.frame).sum()) for part in chunks(stack))
        energy = shown / source
        if COLLAPSE_ENERGY[0] <= energy <= COLLAPSE_ENERGY[1]:
            return state
        log.warning("a stage left the energy ratio at %.2f; going back to the one before", energy)
    return states[-1]
