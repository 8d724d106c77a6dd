"""Stage 4, refine: all images together, by Gauss-Newton towards the mean of those that match, to a fraction of a pixel.

Why: a template made of settled images is sharper than the one they were settled on, and only a joint step knows where
the whole set drifts. What it buys: with the steps of `settle` 0.7 dB on clean digits and 1.2 dB under 20 % warps over
the raw net (docs/results.md, ablation, "+ refinement"). A stage that shrinks or empties the object is taken back.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

import torch

from congeal.geometry import warp
from congeal.images import Stack
from congeal.methods.deep.state import State
from congeal.metrics.limits import COLLAPSE_ENERGY, REFINED_ENERGY
from congeal.solvers.appearance import Appearance
from congeal.solvers.gauge import Gauge
from congeal.solvers.gaussnewton import GaussNewton
from congeal.solvers.matching import shrink_for, shrunk_size
from congeal.solvers.setpass import SetPass
from congeal.solvers.streaming import chunks, start_poses, total_ink

log = logging.getLogger("congeal")


@dataclass(frozen=True, kw_only=True)
class RefineSettings:
    """Numbers of this stage. The first block are parameters of `DeepCongealing`."""

    guards: bool
    refine_steps: int

    early_share: int = 4
    """Of the steps: stages before the last take so many times fewer, they only lead up to it."""


@torch.no_grad()
def refine(
    stack: Stack,
    state: State,
    appearance: Appearance,
    doubtful: float,
    motion: str,
    settings: RefineSettings,
    *,
    near: bool = False,
) -> State:
    """Joint steps towards the running mean, in the gauge of the start; doubtful: the score below which an image may be
    wrong. Gives the poses, that mean, and which poses are likely now. near: only the last, sharpest stage is needed."""
    gauge = None
    if settings.guards:
        gauge = Gauge.of_stack(stack, motion, holds_ink=appearance.holds_ink, band=REFINED_ENERGY)
    keep, found = appearance.trusted(state.scores, doubtful), state.poses
    stages = appearance.refinement(motion, stack.frame)[-1 if near else 0 :]
    early = settings.refine_steps // settings.early_share
    looks = [(freedom, sigma, shrink_for(stack.frame, sigma), early) for freedom, sigma in stages]
    freedom, sigma, shrink, _ = looks.pop()
    # The last stage, too, is mostly done in smaller pictures; what is left is a matter of a few steps.
    looks += [(freedom, sigma, small, settings.refine_steps) for small in sorted({shrink, 1}, reverse=True)]
    how: dict[str, Any] = {"keep": keep, "looser": state.looser}
    for freedom, sigma, shrink, steps in looks if settings.refine_steps else ():
        newton = GaussNewton(freedom, shrunk_size(stack.frame, shrink), robust=appearance.robust)
        prior = appearance.needs_prior
        passes = SetPass(stack, newton, appearance, sigma, shrink=shrink, gauge=gauge, use_prior=prior, **how)
        passes.target = passes.collect(found)
        for _ in range(steps):
            found, moved, _ = passes.step(found)
            if moved < appearance.settled * max(stack.frame):
                break
    if sigma > 0 or not settings.refine_steps:  # new images are compared with a sharp mean, and blurred with it
        passes = SetPass(stack, GaussNewton(freedom, stack.frame), appearance, **how)
        passes.target = passes.collect(found)
    likely = passes.prior(found) if appearance.needs_prior else None
    return replace(state, template=passes.target["mean"], poses=found, prior=likely)


@torch.no_grad()
def last_sound(stack: Stack, states: list[State], appearance: Appearance) -> State:
    """The last state whose energy ratio is sound; if none is, the last one, which is then measured as collapsed.

    The start itself is tried when every stage failed.
    """
    if not appearance.holds_ink:
        return states[-1]
    source = total_ink(stack)
    for state in reversed([replace(states[0], poses=start_poses(stack)), *states]):
        energy = _shown_ink(stack, state.poses) / source
        if COLLAPSE_ENERGY[0] <= energy <= COLLAPSE_ENERGY[1]:
            return state
        log.warning("a stage of the deep method left the energy ratio at %.2f; going back to the one before", energy)
    return states[-1]


def _shown_ink(stack: Stack, poses: torch.Tensor) -> float:
    return sum(float(warp(stack.images(part), poses[part], stack.frame).sum()) for part in chunks(stack))
