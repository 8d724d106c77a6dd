"""Which motion a set needs: the simplest that foretells images as well as any larger one does.

Nested motions are compared on what the others foretell of an image (`Poll.foretold`), which more freedom does not
raise by itself. A larger motion must win by more than chance, image by image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch

from congeal.geometry import MOTIONS, invert
from congeal.geometry.matrix import Size
from congeal.solvers.gauge import within_motion
from congeal.solvers.sharpen import Details, sharpen
from congeal.solvers.votes import Poll

_PASSES = 2  # for each motion: enough to see which is best …
_TILES = 64  # … on so many tiles
_LEAST_GAIN = 0.002  # of what an image shows: less is not worth a freedom, however sure it is
_NOTHING = 1e-6  # of an image: less than this is never missed
_ERRORS = 2.0  # standard errors that a gain must exceed, image by image …
_ERRORS_OF_ONE = 4.0  # … or block by block in one image, the one of many that gains most


class Foretold(NamedTuple):
    """What the others foretell of n images with one motion.

    share (n,): of what an image shows. missed (n, blocks): what they do not, block by block, where that is known.
    """

    share: torch.Tensor
    missed: torch.Tensor | None = None


@dataclass(frozen=True)
class MotionChoice:
    """What was chosen.

    Attributes
    ----------
    motion : str
    foretold : dict
        Mean share of an image that the others foretell, with every motion that was tried.
    """

    motion: str
    foretold: dict[str, float]

    @property
    def sure(self) -> bool:
        """Whether no larger motion seemed to foretell more, be it by chance: then more images will not change it."""
        larger = [share for name, share in self.foretold.items() if MOTIONS.index(name) > MOTIONS.index(self.motion)]
        return all(share - self.foretold[self.motion] <= _LEAST_GAIN for share in larger)

    def sentence(self) -> str:
        """What was chosen and what the next larger motion would have bought."""
        share = self.foretold[self.motion]
        said = f"With {self.motion} the other images foretell {share:.1%} of an image"
        larger = [name for name in self.foretold if MOTIONS.index(name) > MOTIONS.index(self.motion)]
        if not larger:
            smaller = MOTIONS[MOTIONS.index(self.motion) - 1]
            return said + f", {share - self.foretold[smaller]:.1%} more than with {smaller}."
        return said + f"; {larger[0]} would change that by {self.foretold[larger[0]] - share:+.2%}."


@torch.no_grad()
def choose_motion(
    details: Details, poses: torch.Tensor, start: torch.Tensor, keep: torch.Tensor, motions: Sequence[str] = MOTIONS
) -> MotionChoice:
    """The simplest sufficient motion of a stack, from poses that the largest of `motions` found.

    poses, start: stack_from_frame (n, 3, 3) of the stack of `details`. From the simplest on, a motion is compared with
    the next one and with the largest; larger ones than that need not be tried.
    """
    return simplest(_Trial(details, poses, start, keep).foretold, motions)


def simplest(foretold: Callable[[str], Foretold], motions: Sequence[str] = MOTIONS) -> MotionChoice:
    """The simplest sufficient motion. foretold: tries one, and gives what it foretells of each of some images."""
    done: dict[str, Foretold] = {}

    def of(motion: str) -> Foretold:
        if motion not in done:
            done[motion] = foretold(motion)
        return done[motion]

    def chosen(motion: str) -> MotionChoice:
        return MotionChoice(motion, {name: float(done[name].share.nanmean()) for name in motions if name in done})

    largest = motions[-1]
    of(largest)
    for motion, following in pairwise(motions):
        if not any(_better(of(other), of(motion)) for other in (largest, following)):
            return chosen(motion)
    return chosen(largest)


class _Trial:
    """What the others foretell of each image with one motion and another, each tried once, all on the same tiles."""

    def __init__(self, details: Details, poses: torch.Tensor, start: torch.Tensor, keep: torch.Tensor) -> None:
        self.details, self.poses, self.start, self.keep = details, poses.double(), start, keep
        self.tiles = details.tiles(self.poses, keep, most=_TILES)
        self.noise: torch.Tensor | None = None

    def foretold(self, motion: str) -> Foretold:
        """Of the images that match."""
        details, tiles = self.details, self.tiles
        begin = restricted(self.poses, self.start, motion, details.stack.frame)
        tried = sharpen(details, begin, motion, self.keep, passes=_PASSES, tiles=tiles)
        noise = self.noise = tried.level.noise if self.noise is None else self.noise
        poll = Poll(tried.level, motion)
        seen_by = details.look(tried.poses, tiles)
        parts = [poll.foretold(seen, covered, self.keep[part], noise) for part, (seen, covered) in seen_by]
        share, missed = (torch.cat(one)[self.keep] for one in zip(*parts, strict=True))
        return Foretold(share, missed)


def restricted(poses: torch.Tensor, start: torch.Tensor, motion: str, frame: Size) -> torch.Tensor:
    """Poses nearest to these of which start⁻¹ · pose is a member of the motion, in float64."""
    if motion == "homography":
        return poses.double()
    begin = start.double()
    return begin @ within_motion(invert(begin) @ poses.double(), motion, frame)


def _better(one: Foretold, other: Foretold) -> bool:
    """Whether one motion foretells more of the images than another, by more than chance."""
    known = one.share.isfinite() & other.share.isfinite()
    if int(known.sum()) < 2 or float((one.share - other.share)[known].mean()) <= _LEAST_GAIN:
        return False
    return _most_gain(one.share[known], other.share[known]) or _one_gains(one, other, known)


def _most_gain(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Image by image. What is missed is compared by its logarithm: one image may need the larger motion far more than
    the rest."""
    gain = (1 - other).clamp(min=_NOTHING).log() - (1 - one).clamp(min=_NOTHING).log()
    return float(gain.mean()) > _ERRORS * float(gain.std()) / len(gain) ** 0.5


def _one_gains(one: Foretold, other: Foretold, known: torch.Tensor) -> bool:
    """Block by block in single images: of five frames only the first may have turned, and images say nothing then."""
    if one.missed is None or other.missed is None:
        return False
    gain = (one.share - other.share)[known]
    chance = (other.missed - one.missed)[known].square().sum(1).sqrt()
    return bool((gain > _ERRORS_OF_ONE * chance.clamp(min=_NOTHING)).any())
