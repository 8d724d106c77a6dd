"""The pose of an image from a trained aligner: steps from the start, the net's answer, more tries where these fail.

Every image is treated alone and every image gets the same tries, so a result does not depend on its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from congeal.geometry import normalise
from congeal.methods.deep.networks import DeSTNet
from congeal.methods.deep.poses import Matcher, random_warps, taken

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


class Settler:
    """Finds stack_from_frame (B, 3, 3) and score (B,) of images as the aligner sees them (B, C, H, W)."""

    def __init__(self, settings: DeepCongealing, aligner: DeSTNet, matcher: Matcher, bars: Bars) -> None:
        self.settings, self.aligner, self.matcher, self.bars = settings, aligner, matcher, bars
        self.unit = max(matcher.frame) / 28
        self.coarse = "affine" if settings.motion == "homography" else settings.motion
        generator = torch.Generator().manual_seed(settings.random_state)
        self.tries = random_warps(
            torch.full((settings.restarts,), _REACH), matcher.frame, generator, settings.motion
        ).split(_TRIES_AT_ONCE)

    def settle(
        self, images: torch.Tensor, masks: torch.Tensor | None, start: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.settings.refine:
            poses = self._predict(images, start)
            return poses, self.matcher.score(images, poses, masks)
        batch = _Batch(self.matcher, images, masks, start)
        direct = self.matcher.towards(images, start, 10, sigma=2 * self.unit, masks=masks)
        batch.offer(torch.arange(len(images)), self.matcher.towards(images, direct, 10, masks=masks)[:, None])
        unsure = batch.below(self.bars.doubtful)
        batch.offer(unsure, self._home(images[unsure], start[unsure], taken(masks, unsure))[:, None])
        for number, tries in enumerate(self.tries if self.settings.restarts else ()):
            rows = batch.below(self.bars.lost if number else self.bars.doubtful)
            for few in rows.split(max(1, len(images) // len(tries))) if len(rows) else ():
                origins = torch.stack([start[few] if k % 2 else batch.poses[few] for k in range(len(tries))], 1)
                each = few.repeat_interleave(len(tries))
                found = self._home(images[each], (origins @ tries).flatten(0, 1), taken(masks, each))
                batch.offer(few, found.view(len(few), -1, 3, 3))
        return batch.poses, batch.scores

    def _home(self, images: torch.Tensor, poses: torch.Tensor, masks: torch.Tensor | None) -> torch.Tensor:
        """The net's answer, then Gauss-Newton to the template: first blurred and stiff, then sharp and free."""
        poses = self._predict(images, poses)
        poses = self.matcher.towards(images, poses, 5, self.coarse, self.unit, masks)
        return self.matcher.towards(images, poses, 10, masks=masks)

    def _predict(self, images: torch.Tensor, poses: torch.Tensor) -> torch.Tensor:
        softened = self.aligner.soften(images)
        for _ in range(self.settings.passes):
            poses = normalise(self.aligner.look(softened, poses)[-1])
        return poses


class _Batch:
    """The best pose of each image so far, and how many tries ended there."""

    def __init__(self, matcher: Matcher, images: torch.Tensor, masks: torch.Tensor | None, start: torch.Tensor) -> None:
        self.matcher, self.images, self.masks = matcher, images, masks
        self.poses, self.scores = start.clone(), matcher.score(images, start, masks)
        self.agreeing = torch.zeros(len(images), dtype=torch.long)

    def below(self, bar: float) -> torch.Tensor:
        """Rows that match badly and may do better."""
        return torch.nonzero((self.scores < bar) & (self.agreeing < _ENOUGH))[:, 0]

    def offer(self, rows: torch.Tensor, poses: torch.Tensor) -> None:
        """Candidate poses (R, T, 3, 3) for some rows: keep what is better."""
        each = rows.repeat_interleave(poses.shape[1])
        scores = self.matcher.score(self.images[each], poses.flatten(0, 1), taken(self.masks, each)).view(len(rows), -1)
        best, which = scores.max(1)
        before, top = self.scores[rows], torch.maximum(self.scores[rows], best)
        still = torch.where(before > top - _SAME, self.agreeing[rows], 0)
        self.agreeing[rows] = still + ((scores > top[:, None] - _SAME) & (scores > 0)).sum(1)
        better = best > before
        self.poses[rows[better]] = poses[torch.arange(len(rows)), which][better]
        self.scores[rows] = top
