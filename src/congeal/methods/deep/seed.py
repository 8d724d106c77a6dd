"""Stage 1, seed: first poses and a first template, from plain steps towards one typical image.

Why: everything later needs a template that is sharper than the mean of the raw images, and images to learn from that
already match. What it buys: with the running template, the auto-encoder's own steps and C faded in, all ten clean
digits stay sound instead of seven (docs/results.md, ablation, "+ curriculum").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from congeal.geometry import warp
from congeal.images import Stack
from congeal.methods.deep.state import Sample, State
from congeal.solvers.appearance import Appearance, at_most
from congeal.solvers.filters import frame_unit
from congeal.solvers.matching import Views, shrink_for
from congeal.solvers.reference import medoid, reference_image

ALL_MATCH = 0.7
"""A score of every image that leaves nothing to look for: copies of one picture, frames of a stack."""


def most_match(scores: torch.Tensor) -> bool:
    """Whether there is nothing to look for in most images: copies of one picture, frames of a stack."""
    return float(scores.median()) >= ALL_MATCH


@dataclass(frozen=True)
class SeedSettings:
    """Numbers of this stage; blurs in pixels of a 28-pixel frame. Chosen on threes and sevens under 0–30 % warps."""

    stages: tuple[tuple[str, float, int], ...] = (("translation", 3.0, 6), ("similarity", 2.5, 6), ("affine", 2.0, 8))
    """(largest motion, blur, steps): few freedoms and much blur first, so that far images are not bent to fit."""
    share: float = 0.3
    """Of the images: those that match the reference best, from which everything else grows."""
    rounds: int = 3
    """Times that these make a new template and everything steps towards it."""
    round_steps: int = 5
    """Steps of each round: the template changes with the next one anyway …"""
    round_blur: float = 1.5
    """… and their blur, less than before because it is a better template."""
    slack: float = 0.06
    """How far below the median score of the matching images an image still matches when training begins."""


@torch.no_grad()
def seed(sample: Sample, reference: torch.Tensor, settings: SeedSettings | None = None) -> State:
    """Steps of all images towards the reference, then towards the mean of those that match it best."""
    settings = settings or SeedSettings()
    unit, state = frame_unit(sample.frame), State.fresh(sample, reference)
    poses = state.poses
    for motion, sigma, steps in settings.stages:
        poses = step_towards(sample, state, poses, steps, motion, sigma * unit)
    state = state.moved_to(sample, poses, share=settings.share)
    for _ in range(settings.rounds):
        poses = step_towards(sample, state, state.poses, settings.round_steps, "affine", settings.round_blur * unit)
        state = state.moved_to(sample, poses, share=settings.share)
        if float(state.scores.min()) >= ALL_MATCH:
            break
    return state.median_bar(settings.slack)


def step_towards(
    sample: Sample, state: State, poses: torch.Tensor, steps: int, motion: str, sigma: float
) -> torch.Tensor:
    """Gauss-Newton steps of every image towards the template, with no more freedom than the method may use."""
    matcher, motion, shrink = state.matcher(sample), at_most(motion, sample.motion), shrink_for(sample.frame, sigma)

    def work(views: Views, start: torch.Tensor, pose: torch.Tensor) -> torch.Tensor:
        return matcher.towards(views, start, pose, steps, motion, sigma)

    return sample.each(work, poses, shrink)


def reference_features(reference: Any, stack: Stack, appearance: Appearance, random_state: int) -> torch.Tensor:
    """The reference (C, h, w) as the appearance compares it: "auto" is a typical image of the stack."""
    if isinstance(reference, str) and reference == "auto":
        reference = medoid(stack, random_state)
    if isinstance(reference, int | np.integer) and 0 <= reference < len(stack):
        # Features first, then the warp: the edge of the source picture is no edge of anything.
        rows = np.array([int(reference)])
        features = appearance.features(stack.images(rows))
        return warp(features, torch.as_tensor(stack.start[rows]).float(), stack.frame)[0]
    return appearance.features(reference_image(reference, stack, random_state)[None])[0]
