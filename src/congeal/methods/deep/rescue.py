"""Rescue: a wider search for the few images that are lost while the others match.

Why: one lost face of a hundred costs the set more than all that refinement wins. What it buys: one copy of twenty was
39 pixels off in a star field under homographies; of 530 photographs of Bush four had a box beside the face, and with
their faces found the landmark error of all falls from 6.66 to 6.38 % (benchmarks/everyday.py lfw).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from congeal.images import Stack
from congeal.methods.deep.seed import most_match
from congeal.methods.deep.settle import HELPED, Guide, SettleSettings, settle
from congeal.methods.deep.state import State
from congeal.methods.job import Job

_FEW = 0.25  # of the images, at most: more than these are not lost, they are another kind of thing
_ODD = 5.0  # times what the median score misses of 1: where most match to 0.98, one that matches to 0.85 is lost, too


@dataclass(frozen=True)
class RescueSettings:
    """Whom to look for, and how."""

    lost: float
    """Of the median score: who scores less is lost."""
    tries: int
    """For each of them; four that agree end them."""
    looser: float
    """Times as far from the usual pose as the others may such an image be."""
    gain: float
    """Score that a pose must add to be believed."""


COPIES = RescueSettings(lost=0.7, tries=64, looser=8.0, gain=HELPED)
"""Where most match closely: copies of a picture, frames of a stack."""
PHOTOGRAPHS = RescueSettings(lost=0.55, tries=32, looser=8.0, gain=0.1)
"""Where scores vary, as among faces, and a box may be drawn beside one. Chosen on Bush, where right poses gain 0.13 to
0.19; nobody is moved among the other three people of LFW."""


@torch.no_grad()
def rescue(stack: Stack, state: State, guide: Guide, settings: SettleSettings, quiet: Job) -> tuple[State, int]:
    """The state with lost images where they were found, and how many they are. Of objects that do not match closely
    none is looked for: `settle` has tried them all."""
    how = COPIES if most_match(state.scores) else PHOTOGRAPHS
    rows = lost_ones(state.scores, how)
    if not len(rows) or (how is PHOTOGRAPHS and guide.prior is None):
        return state, 0
    looser = replace(guide, prior=guide.prior and guide.prior.wider(how.looser))
    settings = replace(settings, restarts=how.tries, random_state=settings.random_state + 1)
    found = settle(stack.some(rows.numpy()), looser, settings, quiet)
    better = found.scores > state.scores[rows] + how.gain
    if not better.any():
        return state, 0
    poses, scores = state.poses.clone(), state.scores.clone()
    poses[rows[better]], scores[rows[better]] = found.poses[better], found.scores[better]
    freed = torch.ones_like(scores)
    freed[rows[better]] = how.looser
    return replace(state, poses=poses, scores=scores, looser=freed), int(better.sum())


def lost_ones(scores: torch.Tensor, how: RescueSettings) -> torch.Tensor:
    """The rows (k,) of images that are lost; nobody where those would be more than a few. An image that could not gain
    enough to be believed is not among them."""
    middle, most = float(scores.median()), _FEW * len(scores)
    lost, odd = how.lost * middle, min(middle - _ODD * (1 - middle), 1 - how.gain)
    for bar in (max(lost, odd), lost):
        rows = torch.nonzero(scores < bar)[:, 0]
        if len(rows) <= most:
            return rows
    return rows[:0]
