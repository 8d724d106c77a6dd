"""Stage 3, settle: the pose of every image, old or new: steps from the start, the net's answer, more tries where
these fail.

Why: a net's answer is right to about a pixel, and for a few images in a hundred wrong altogether. What it buys: with
`refine`, 1.2 dB under 20 % warps; tries from perturbed poses another 0.5 dB (docs/results.md, ablation, "+ refinement"
and "+ restarts"). Every image is treated alone and gets the same tries, so a result does not depend on its neighbours.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from congeal.images import Stack
from congeal.methods.deep.networks import DeSTNet
from congeal.methods.deep.state import State
from congeal.methods.deep.train import Trained
from congeal.methods.job import Job
from congeal.solvers.appearance import Appearance, at_most
from congeal.solvers.filters import frame_unit
from congeal.solvers.matching import Matcher, Views, random_warps
from congeal.solvers.pose_prior import PosePrior
from congeal.solvers.streaming import chunks
from congeal.solvers.threads import few_threads, in_order

_DOUBTFUL, _LOST = 0.25, 0.1  # of the matching images: so many would be tried again once, and until tries agree


@dataclass(frozen=True, kw_only=True)
class SettleSettings:
    """Numbers of this stage; blurs in pixels of a 28-pixel frame. The first block are `DeepCongealing`'s own."""

    motion: str
    passes: int
    restarts: int
    refine: bool
    random_state: int

    direct_blurs: tuple[float, float] = (2.0, 0.0)
    """Of the steps from the start, without the net; the last is as sharp as the appearance allows."""
    direct_steps: int = 8
    """At each of these blurs; ten gain 0.002 dB (threes, and sevens under 20 % warps) and take a sixth longer."""
    coarse_steps: int = 5
    coarse_blur: float = 1.0
    """After the net's answer, with at most an affine motion …"""
    fine_steps: int = 10
    """… and then, sharp, with the whole motion."""
    reach: float = 0.2
    """Corner noise of the tries, as a share of the frame's side."""
    tries_at_once: int = 4
    """Half of them from the start, half from the best pose so far; then who is still lost is asked again."""
    enough: int = 4
    """Tries that end at the same score have found what there is to find …"""
    same: float = 0.005
    """… to within this."""
    batch: int = 4
    """Images at once, in usual chunks: the few that are tried again should still fill a batch."""


@dataclass(frozen=True)
class Bars:
    """Scores against the template: below `doubtful` an image is tried again once, below `lost` until tries agree."""

    doubtful: float
    lost: float

    @classmethod
    def of(cls, scores: torch.Tensor) -> Bars:
        """From the scores of images that match."""
        return cls(float(scores.quantile(_DOUBTFUL)), float(scores.quantile(_LOST)))


@dataclass(frozen=True)
class Guide:
    """What a fitted model keeps to place any image: the net, the template, and what a good score is."""

    aligner: DeSTNet
    template: torch.Tensor
    appearance: Appearance
    bars: Bars
    prior: PosePrior | None

    @classmethod
    def of(cls, trained: Trained, appearance: Appearance, *, all_match: bool) -> Guide:
        """From what training left. all_match: nothing is known about which images match, so all of them count."""
        state = trained.state
        bars = Bars.of(state.scores if all_match else state.scores[state.good])
        return cls(trained.aligner, state.template, appearance, bars, state.prior)


def settle_sample(stack: Stack, trained: Trained, guide: Guide, settings: SettleSettings, job: Job) -> State:
    """`settle` of the images that were learnt from, as the next state of the recipe."""
    state = trained.state
    found, scores = (torch.empty(len(stack), *rest, dtype=torch.float32) for rest in ((3, 3), ()))
    settle(stack, guide, settings, job, found, scores, beside=trained.checkpoint, name="settled")
    return State(state.template, found, scores, state.good, state.bar, guide.prior)


@torch.no_grad()
def settle(
    stack: Stack,
    guide: Guide,
    settings: SettleSettings,
    job: Job,
    found: torch.Tensor,
    scores: torch.Tensor,
    *,
    beside: Mapping[str, Any] | None = None,
    name: str = "placed",
) -> None:
    """Fill every image's pose (n, 3, 3) and score (n,); goes on where an interrupted job left off."""
    settler = Settler(guide, settings)

    def work(parts: Sequence[np.ndarray]) -> Iterator[tuple[torch.Tensor, ...]]:
        read = ((part, stack.images(part), stack.masks(part)) for part in parts)
        with few_threads(stack.frame) as free:
            yield from in_order(one, read, free)

    @torch.no_grad()
    def one(some: tuple[np.ndarray, torch.Tensor, torch.Tensor | None]) -> tuple[torch.Tensor, torch.Tensor]:
        part, images, masks = some
        views = Views(guide.appearance.features(images), masks)
        return settler.settle(views, torch.as_tensor(stack.start[part]).float())

    # The same runs for any number of threads: sums over other runs differ in their last bits.
    job.place(chunks(stack, settings.batch, multiple=settings.batch), work, found, scores, beside=beside, name=name)


class Settler:
    """Finds stack_from_frame (B, 3, 3) and score (B,) of images as the aligner sees them."""

    def __init__(self, guide: Guide, settings: SettleSettings) -> None:
        self.settings, self.bars = settings, guide.bars
        # In float64, so that an image gets the same answer in any batch.
        self.aligner = copy.deepcopy(guide.aligner).double()
        self.matcher = Matcher(guide.template, guide.appearance, guide.prior)
        self.unit = frame_unit(self.matcher.frame)
        self.last_blur = guide.appearance.last_blur(self.matcher.frame)
        generator = torch.Generator().manual_seed(settings.random_state)
        reach = torch.full((settings.restarts,), settings.reach, dtype=torch.float32)
        tries = random_warps(reach, self.matcher.frame, generator, settings.motion)
        self.tries = tries.split(settings.tries_at_once) if settings.restarts else ()

    def settle(self, views: Views, start: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The best pose of each image, and its score."""
        settings = self.settings
        if not settings.refine:
            poses = self.aligner.predict(views.images, start.double(), settings.passes).float()
            return poses, self.matcher.score(views, poses)
        best = _BestOfTries(self.matcher, settings, views, start)
        everyone, direct = torch.arange(len(views)), start
        for sigma in settings.direct_blurs:
            blur = max(sigma * self.unit, self.last_blur)
            direct = self.matcher.towards(views, start, direct, settings.direct_steps, settings.motion, blur)
        best.offer(everyone, views, direct[:, None])
        unsure = best.below(self.bars.doubtful)
        doubtful = views.take(unsure)
        best.offer(unsure, doubtful, self._home(doubtful, start[unsure], start[unsure])[:, None])
        place = torch.zeros(len(views), dtype=torch.long)
        place[unsure] = torch.arange(len(unsure))  # where an image is among the doubtful, which are softened by now
        for number, tries in enumerate(self.tries):
            rows = best.below(self.bars.lost if number else self.bars.doubtful)
            for some in rows.split(max(1, len(views) // len(tries))) if len(rows) else ():
                origins = torch.stack([start[some] if k % 2 else best.poses[some] for k in range(len(tries))], 1)
                each = some.repeat_interleave(len(tries))
                few = doubtful.take(place[each])
                found = self._home(few, start[each], (origins @ tries).flatten(0, 1))
                best.offer(some, few, found.view(len(some), -1, 3, 3))
        return best.poses, best.scores

    def _home(self, views: Views, start: torch.Tensor, poses: torch.Tensor) -> torch.Tensor:
        """The net's answer, then steps to the template: first a coarse blur with at most an affine motion, then sharp
        with the whole motion."""
        settings = self.settings
        softened = {key: views.at(*key) for key in self.aligner.softenings}
        poses = self.aligner.predict_softened(softened, poses.double(), settings.passes).float()
        coarse, blur = at_most("affine", settings.motion), settings.coarse_blur * self.unit
        poses = self.matcher.towards(views, start, poses, settings.coarse_steps, coarse, blur)
        return self.matcher.towards(views, start, poses, settings.fine_steps, settings.motion, self.last_blur)


class _BestOfTries:
    """The best pose of each image so far, and how many tries ended there."""

    def __init__(self, matcher: Matcher, settings: SettleSettings, views: Views, start: torch.Tensor) -> None:
        self.matcher, self.settings = matcher, settings
        self.start, self.poses, self.scores = start, start.clone(), matcher.merit(views, start, start)
        self.agreeing = torch.zeros(len(views), dtype=torch.long)

    def below(self, bar: float) -> torch.Tensor:
        """Rows that match badly and may do better."""
        return torch.nonzero((self.scores < bar) & (self.agreeing < self.settings.enough))[:, 0]

    def offer(self, rows: torch.Tensor, views: Views, poses: torch.Tensor) -> None:
        """Candidate poses (R, T, 3, 3) for some rows, and the views (R·T) they are of: keep what is better."""
        if not len(rows):
            return
        start = self.start[rows].repeat_interleave(poses.shape[1], 0)
        scores = self.matcher.merit(views, start, poses.flatten(0, 1)).view(len(rows), -1)
        best, which = scores.max(1)
        before, top = self.scores[rows], torch.maximum(self.scores[rows], best)
        near = top - self.settings.same
        still = torch.where(before > near, self.agreeing[rows], 0)
        self.agreeing[rows] = still + ((scores > near[:, None]) & (scores > 0)).sum(1)
        better = best > before
        self.poses[rows[better]] = poses[torch.arange(len(rows)), which][better]
        self.scores[rows] = top
