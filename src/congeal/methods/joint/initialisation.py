"""Initialisation: the first template, and coarse poses of all images towards it.

A typical image is the first template. All images take a few Gauss-Newton steps towards it, with few parameters and much
blur; those most like it make the next template, from which everything else grows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from congeal.filters import frame_unit
from congeal.geometry import warp
from congeal.images import Stack
from congeal.methods.joint.state import Sample, State
from congeal.registration.features import ImageFeatures, at_most
from congeal.registration.reference import medoid, reference_image
from congeal.registration.template_registration import Views, reduction_for

STAGES = (("translation", 3.0, 6), ("similarity", 2.5, 6), ("affine", 2.0, 8))
"""(largest motion, blur in pixels of a 28-pixel frame, steps): few parameters and much blur first, so that images far
away are not deformed to fit. Chosen, as all below, on MNIST threes and sevens under 0–30 % warps."""
TEMPLATE_SHARE = 0.3
"""Share of the images, those most like the template, that make the next one."""
TEMPLATE_ROUNDS, ROUND_STEPS, ROUND_BLUR = 3, 5, 1.5
"""How often they do, the steps of each round, and its blur: the template is better each time."""
CLOSE_SCORE = 0.7
"""If every image scores this much, as copies of one picture and frames of a stack do, the template is final."""
THRESHOLD_SLACK = 0.06
"""How far below the median score of the inliers an image still is an inlier when the training of a network begins."""


@torch.no_grad()
def initialise(sample: Sample, reference: torch.Tensor) -> State:
    """Gauss-Newton steps of all images towards the reference, then towards the mean of those most like it."""
    unit, state = frame_unit(sample.frame), State.initial(sample, reference)
    poses = state.poses
    for motion, sigma, steps in STAGES:
        poses = _descend(sample, state, poses, steps, motion, sigma * unit)
    state = state.moved_to(sample, poses, share=TEMPLATE_SHARE)
    for _ in range(TEMPLATE_ROUNDS):
        poses = _descend(sample, state, state.poses, ROUND_STEPS, "affine", ROUND_BLUR * unit)
        state = state.moved_to(sample, poses, share=TEMPLATE_SHARE)
        if float(state.scores.min()) >= CLOSE_SCORE:
            break
    return state.with_median_threshold(THRESHOLD_SLACK)


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
