"""Joint registration: all images together by Gauss-Newton, to the mean of the inliers, coarse to fine.

A template made of registered images is sharper than the one they were registered to, and only a joint step knows where
the whole set drifts. A result that shrinks or empties the object is rejected.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import torch

from congeal.evaluation.thresholds import COLLAPSE_ENERGY, REFINED_ENERGY
from congeal.geometry import warp
from congeal.images import Stack
from congeal.methods.joint.state import Sample, State
from congeal.registration.batching import chunks, start_poses, total_intensity
from congeal.registration.features import ImageFeatures
from congeal.registration.gauge import Gauge
from congeal.registration.gauss_newton import GaussNewton
from congeal.registration.joint_gauss_newton import JointGaussNewton
from congeal.registration.template_registration import reduced_size, reduction_for

log = logging.getLogger("congeal")

MAX_STEPS = 40
"""Gauss-Newton steps of the last stage; most sets converge after 10 to 25."""
MAX_EARLY_STEPS = 10
"""Steps of the stages before, whose only use is to lead up to it."""


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

    Gives the poses, that mean, and the prior on poses. only_last_stage: the poses are near already.
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
            use_prior=image_features.needs_prior,
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
