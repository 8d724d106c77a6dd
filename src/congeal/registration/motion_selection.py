"""Choice of the motion: the simplest that explains as much of the images as any larger one.

Nested motions are compared by the share of each image's variance that the other images explain, corrected for
overfitting (`TileSolver.explained_variance`). A larger motion must win by more than chance, image by image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from congeal.geometry import MOTIONS, invert
from congeal.geometry.matrix import Size
from congeal.registration.gauge import within_motion
from congeal.registration.tile_refinement import LevelImages, refine_tiles
from congeal.registration.tiles import TileSolver

TRIAL_PASSES, TRIAL_TILES = 2, 64
"""Refinement passes and tiles with which each motion is tried: enough to order them (everyday.py precision)."""
MIN_GAIN = 0.01
"""Share of the unexplained variance that a larger motion must explain, however significant less would be. Under noise
and changing blur a parameter too many takes 0.3 % (the clip of docs/tutorials/lunar.md), the true motion of copies 2 %
and more (python benchmarks/golden.py)."""
GAIN_ERRORS = 2.0
"""Standard errors by which the gain must exceed zero over all images."""
NOTHING_UNEXPLAINED = 1e-6
"""Unexplained shares below this count as this: copies without noise are explained up to rounding."""


@dataclass(frozen=True)
class MotionChoice:
    """The chosen motion, and the mean explained variance with every motion that was tried."""

    motion: str
    explained_variance: dict[str, float]

    @property
    def _larger(self) -> dict[str, float]:
        rank = MOTIONS.index(self.motion)
        return {name: share for name, share in self.explained_variance.items() if MOTIONS.index(name) > rank}

    @property
    def sure(self) -> bool:
        """Whether no larger motion seemed to explain more, even by chance: then more images will not change it."""
        share = self.explained_variance[self.motion]
        return all(larger - share <= MIN_GAIN * (1 - share) for larger in self._larger.values())

    def sentence(self) -> str:
        """What was chosen, and what the next larger motion would have gained."""
        share = self.explained_variance[self.motion]
        text = f"With {self.motion} the other images explain {share:.1%} of the variance of an image"
        if self._larger:
            name, larger = next(iter(self._larger.items()))
            return f"{text}; {name} would change that by {larger - share:+.2%}."
        smaller = MOTIONS[MOTIONS.index(self.motion) - 1]
        return f"{text}, {share - self.explained_variance[smaller]:.1%} more than with {smaller}."


@torch.no_grad()
def choose_motion(
    level: LevelImages, poses: torch.Tensor, start: torch.Tensor, keep: torch.Tensor, motions: Sequence[str] = MOTIONS
) -> MotionChoice:
    """The simplest sufficient motion of a stack, from poses that the largest of `motions` found.

    poses, start: stack_from_frame (n, 3, 3) at the level. keep (n,) bool: inliers.
    """
    poses, tiles = poses.double(), level.choose_tiles(poses.double(), keep, most=TRIAL_TILES)
    variance: torch.Tensor | None = None

    def explain(motion: str) -> torch.Tensor:
        nonlocal variance
        begin = restricted(poses, start, motion, level.stack.frame)
        refined = refine_tiles(level, begin, motion, keep, passes=TRIAL_PASSES, tiles=tiles)
        variance = refined.template.variance if variance is None else variance
        solver = TileSolver(refined.template, motion)
        parts = [
            solver.explained_variance(values, covered, keep[rows], variance)
            for rows, values, covered in level.sample(refined.poses, tiles)
        ]
        return torch.cat(parts)[keep]

    return simplest(explain, motions)


def simplest(explain: Callable[[str], torch.Tensor], motions: Sequence[str] = MOTIONS) -> MotionChoice:
    """The simplest sufficient motion; explain: the explained variance of n images (n,) with one motion.

    From the simplest on, a motion is compared with the next one and with the largest; the rest need not be tried.
    """
    chosen, tried = motions[-1], {motions[-1]: explain(motions[-1])}
    for motion, following in pairwise(motions):
        for other in (motion, following):
            if other not in tried:
                tried[other] = explain(other)
        if not any(_explains_more(tried[other], tried[motion]) for other in (motions[-1], following)):
            chosen = motion
            break
    return MotionChoice(chosen, {name: float(tried[name].nanmean()) for name in motions if name in tried})


def restricted(poses: torch.Tensor, start: torch.Tensor, motion: str, frame: Size) -> torch.Tensor:
    """Poses nearest to these for which start⁻¹ · pose belongs to the motion, in float64."""
    if motion == "homography":
        return poses.double()
    begin = start.double()
    return begin @ within_motion(invert(begin) @ poses.double(), motion, frame)


def _explains_more(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether one motion explains more of the images than another, by more than chance."""
    known = one.isfinite() & other.isfinite()
    if known.sum() < 2:
        return False
    # Unexplained shares are compared by their logarithms: one image may gain far more than the rest.
    less, more = ((1 - each[known]).clamp(min=NOTHING_UNEXPLAINED).log() for each in (other, one))
    gain = less - more
    return float(gain.mean()) > max(MIN_GAIN, GAIN_ERRORS * float(gain.std()) / len(gain) ** 0.5)
