"""The pose of an image from a trained aligner: steps from the start, the net's answer, more tries where these fail.

Every image is treated alone and every image gets the same tries, so a result does not depend on its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from congeal.geometry.matrix import Size
from congeal.methods.deep.networks import DeSTNet
from congeal.solvers.matching import Matcher, Views, random_warps

if TYPE_CHECKING:
    from congeal.methods.deep.congealing import DeepCongealing

_TRIES_AT_ONCE = 4
_REACH = 0.2  # corner noise of the tries, as a share of the frame's side
_ENOUGH, _SAME = 4, 0.005  # tries that end at the same score, to within this, have found what there is to find


@dataclass
class Bars:
    """Scores against the template: below `doubtful` an image is tried again once, below `lost` until tries agree."""

    doubtful: float
    lost: float


def photo_blur(frame: Size) -> float:
    """Sigma, in frame pixels, at which photographs are compared last."""
    return 1.5 * max(frame) / 64


class Settler:
    """Finds stack_from_frame (B, 3, 3) and score (B,) of images as the aligner sees them."""

    def __init__(self, settings: DeepCongealing, aligner: DeSTNet, matcher: Matcher, bars: Bars) -> None:
        self.settings, self.aligner, self.matcher, self.bars = settings, aligner, matcher, bars
        self.unit = max(matcher.frame) / 28
        self.coarse = "affine" if settings.motion == "homography" else settings.motion
        # Photographs are compared a little out of focus: what is sharp differs from one to the next.
        self.last_blur = 0.0 if matcher.objects else photo_blur(matcher.frame)
        generator = torch.Generator().manual_seed(settings.random_state)
        self.tries = random_warps(
            torch.full((settings.restarts,), _REACH), matcher.frame, generator, settings.motion
        ).split(_TRIES_AT_ONCE)

    def settle(self, views: Views, start: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.settings.refine:
            poses = self.aligner.predict(views.images, start, self.settings.passes)
            return poses, self.matcher.score(views, poses)
        best = _Best(self.matcher, views, start)
        everyone = torch.arange(len(views))
        direct = self.matcher.towards(views, start, start, 10, self.settings.motion, 2 * self.unit)
        direct = self.matcher.towards(views, start, direct, 10, self.settings.motion, self.last_blur)
        best.offer(everyone, views, direct[:, None])
        unsure = best.below(self.bars.doubtful)
        doubtful = views.take(unsure)
        best.offer(unsure, doubtful, self._home(doubtful, start[unsure], start[unsure])[:, None])
        place = torch.zeros(len(views), dtype=torch.long)
        place[unsure] = torch.arange(len(unsure))  # where an image is among the doubtful, which are softened by now
        for number, tries in enumerate(self.tries if self.settings.restarts else ()):
            rows = best.below(self.bars.lost if number else self.bars.doubtful)
            for some in rows.split(max(1, len(views) // len(tries))) if len(rows) else ():
                origins = torch.stack([start[some] if k % 2 else best.poses[some] for k in range(len(tries))], 1)
                each = some.repeat_interleave(len(tries))
                few = doubtful.take(place[each])
                found = self._home(few, start[each], (origins @ tries).flatten(0, 1))
                best.offer(some, few, found.view(len(some), -1, 3, 3))
        return best.poses, best.scores

    def _home(self, views: Views, start: torch.Tensor, poses: torch.Tensor) -> torch.Tensor:
        """The net's answer, then Gauss-Newton to the template: first blurred and stiff, then sharp and free."""
        softened = {key: views.at(*key) for key in self.aligner.softenings}
        poses = self.aligner.predict_softened(softened, poses, self.settings.passes)
        poses = self.matcher.towards(views, start, poses, 5, self.coarse, self.unit)
        return self.matcher.towards(views, start, poses, 10, self.settings.motion, self.last_blur)


class _Best:
    """The best pose of each image so far, and how many tries ended there."""

    def __init__(self, matcher: Matcher, views: Views, start: torch.Tensor) -> None:
        self.matcher = matcher
        self.start, self.poses, self.scores = start, start.clone(), matcher.merit(views, start, start)
        self.agreeing = torch.zeros(len(views), dtype=torch.long)

    def below(self, bar: float) -> torch.Tensor:
        """Rows that match badly and may do better."""
        return torch.nonzero((self.scores < bar) & (self.agreeing < _ENOUGH))[:, 0]

    def offer(self, rows: torch.Tensor, views: Views, poses: torch.Tensor) -> None:
        """Candidate poses (R, T, 3, 3) for some rows, and the views (R·T) they are of: keep what is better."""
        if not len(rows):
            return
        start = self.start[rows].repeat_interleave(poses.shape[1], 0)
        scores = self.matcher.merit(views, start, poses.flatten(0, 1)).view(len(rows), -1)
        best, which = scores.max(1)
        before, top = self.scores[rows], torch.maximum(self.scores[rows], best)
        still = torch.where(before > top - _SAME, self.agreeing[rows], 0)
        self.agreeing[rows] = still + ((scores > top[:, None] - _SAME) & (scores > 0)).sum(1)
        better = best > before
        self.poses[rows[better]] = poses[torch.arange(len(rows)), which][better]
        self.scores[rows] = top
