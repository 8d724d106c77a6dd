"""Stage 3, settle: the pose of every image, old or new: steps from the start, then the net's answer or where the
object's ink lies, and more tries where these fail.

Why: a net's answer is right to about a pixel, and for a few images in a hundred wrong altogether. What it buys: with
`refine`, 1.2 dB under 20 % warps; tries from perturbed poses another 0.5 dB (docs/results.md, ablation, "+ refinement"
and "+ restarts"). Every image is treated alone and gets the same tries, so a result does not depend on its neighbours.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from congeal.distributed.broadcast import key_of
from congeal.images import Stack
from congeal.mapped import room
from congeal.methods.deep.networks import DeSTNet
from congeal.methods.deep.state import State
from congeal.methods.job import Job, Spread
from congeal.solvers.appearance import Appearance, at_most
from congeal.solvers.filters import frame_unit
from congeal.solvers.level import Level
from congeal.solvers.matching import Matcher, Views, random_warps
from congeal.solvers.moments import evenly_turned, poses_by_ink
from congeal.solvers.motions import restricted
from congeal.solvers.pose_prior import PosePrior
from congeal.solvers.streaming import chunks, stack_values
from congeal.solvers.threads import in_order, one_thread

_DOUBTFUL, _LOST = 0.25, 0.1  # of the matching images: so many would be tried again once, and until tries agree
HELPED = 0.02
"""A try that ends with a score higher by this much than steps from the start found another, better pose."""


@dataclass(frozen=True, kw_only=True)
class SettleSettings:
    """Numbers of this stage; blurs in pixels of a 28-pixel frame. The first block are `DeepCongealing`'s own."""

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
    turns: int = 9
    turn_reach: float = 60.0
    """Without a net, an object whose ink is brought to the template's is turned so often, up to so many degrees …"""
    turns_kept: int = 3
    """… and stepped from so many of them. Chosen on threes and sevens under 10–30 % warps."""
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
    """What a fitted model keeps to place any image.

    Attributes
    ----------
    motion : str
        What a pose may be.
    aligner : DeSTNet or None
        The net, if one was trained; it may know a larger motion.
    template : (C, h, w) tensor
        What images are compared with, at working size.
    appearance : Appearance
    bars : Bars
        What a good score is.
    prior : PosePrior or None
    levels : tuple of Level
        Finer templates, coarse to fine, that a pose is sharpened on.
    judge : Level or None
        The level that says how sure a pose is: the last of `levels`, or one that had nothing to add.
    """

    motion: str
    aligner: DeSTNet | None
    template: torch.Tensor
    appearance: Appearance
    bars: Bars
    prior: PosePrior | None
    levels: tuple[Level, ...] = ()
    judge: Level | None = None

    @classmethod
    def of(
        cls, state: State, appearance: Appearance, motion: str, aligner: DeSTNet | None = None, *, all_match: bool
    ) -> Guide:
        """From a state. all_match: nothing is known about which images match, so all of them count."""
        bars = Bars.of(state.scores if all_match else state.scores[state.good])
        return cls(motion, aligner, state.template, appearance, bars, state.prior)


@dataclass(frozen=True)
class Settled:
    """Poses (n, 3, 3) of n images, their scores (n,), and what tries at random added to those (n,)."""

    poses: torch.Tensor
    scores: torch.Tensor
    gained: torch.Tensor

    @property
    def helped(self) -> float:
        """Share of the images that a try at random placed clearly better than steps from the start, or from where its
        ink lies, did."""
        return float((self.gained > HELPED).float().mean())

    def put(self, rows: np.ndarray, part: Settled) -> Settled:
        """Take over what was found for some rows, and give it."""
        self.poses[rows], self.scores[rows], self.gained[rows] = part.poses, part.scores, part.gained
        return part


@torch.no_grad()
def settle(
    stack: Stack,
    guide: Guide,
    settings: SettleSettings,
    job: Job,
    *,
    beside: Mapping[str, Any] | None = None,
    name: str = "placed",
) -> Settled:
    """Every image, each by itself, at working size; goes on where an interrupted job left off."""
    settling, n = Settling(stack, guide, settings), len(stack)
    found, scores, gained = (torch.from_numpy(room((n, *shape), np.float32)) for shape in ((3, 3), (), ()))

    def work(parts: Sequence[np.ndarray]) -> Iterator[tuple[torch.Tensor, ...]]:
        with one_thread() as free:
            yield from in_order(settling.one, map(settling.read, parts), free)

    # The same runs for any number of threads: sums over other runs differ in their last bits.
    parts = chunks(stack, settings.batch, multiple=settings.batch)
    spread = Spread(settling, settling.key(), stack_values(stack)) if job.crew is not None else None
    job.place(parts, work, found, scores, gained, beside=beside, name=name, spread=spread)
    return Settled(found, scores, gained)


@dataclass
class Settling:
    """What this stage does with a run of images, in this process or another."""

    stack: Stack
    guide: Guide
    settings: SettleSettings

    @cached_property
    def _settler(self) -> Settler:
        return Settler(self.guide, self.settings)

    def read(self, part: np.ndarray) -> tuple[np.ndarray, torch.Tensor, torch.Tensor | None]:
        """A run, its images and its masks."""
        _ = self._settler  # made before threads ask for it
        return part, self.stack.images(part), self.stack.masks(part)

    @torch.no_grad()
    def one(self, some: tuple[np.ndarray, torch.Tensor, torch.Tensor | None]) -> tuple[torch.Tensor, ...]:
        """Poses, scores and what tries gained, of a run that was read."""
        part, images, masks = some
        views = Views(self.guide.appearance.features(images), masks)
        return self._settler.settle(views, torch.as_tensor(self.stack.start[part]).float())

    def __call__(self, part: np.ndarray) -> tuple[torch.Tensor, ...]:
        return self.one(self.read(part))

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("stack", "guide", "settings")}

    def key(self) -> str:
        """What the answer depends on, besides the images."""
        guide, stack = self.guide, self.stack
        knows = (guide.motion, guide.template, guide.bars, guide.prior and guide.prior.tensor(), guide.appearance.kind)
        net = {} if guide.aligner is None else guide.aligner.state_dict()
        return key_of("settle", knows, net, self.settings, stack.kept, stack.start, stack.size, stack.frame)


class Settler:
    """Finds stack_from_frame (B, 3, 3) and score (B,) of images as the aligner sees them."""

    def __init__(self, guide: Guide, settings: SettleSettings) -> None:
        self.settings, self.bars, self.motion = settings, guide.bars, guide.motion
        # In float64, so that an image gets the same answer in any batch.
        self.aligner = None if guide.aligner is None else copy.deepcopy(guide.aligner).double()
        self.matcher = Matcher(guide.template, guide.appearance, guide.prior)
        self.unit = frame_unit(self.matcher.frame)
        self.last_blur = guide.appearance.last_blur(self.matcher.frame)
        self.by_ink = guide.appearance.holds_ink and guide.aligner is None  # a net knows the way by itself
        self.turns = evenly_turned(settings.turn_reach, settings.turns)
        generator = torch.Generator().manual_seed(settings.random_state)
        reach = torch.full((settings.restarts,), settings.reach, dtype=torch.float32)
        tries = random_warps(reach, self.matcher.frame, generator, guide.motion)
        self.tries = tries.split(settings.tries_at_once) if settings.restarts else ()

    def settle(self, views: Views, start: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The best pose of each image, its score, and what tries at random added to it."""
        settings = self.settings
        if not settings.refine and self.aligner is not None:
            poses = self.aligner.predict(views.images, start.double(), settings.passes).float()
            scores = self.matcher.score(views, poses)
            return poses, scores, torch.zeros_like(scores)
        best = _BestOfTries(self.matcher, settings, views, start)
        everyone, direct = torch.arange(len(views)), start
        for sigma in settings.direct_blurs:
            blur = max(sigma * self.unit, self.last_blur)
            direct = self.matcher.towards(views, start, direct, settings.direct_steps, self.motion, blur)
        best.offer(everyone, views, direct[:, None])
        straight = best.scores.clone()
        unsure = best.below(self.bars.doubtful)
        doubtful = views.take(unsure)
        best.offer(unsure, doubtful, self._home(doubtful, start[unsure], start[unsure])[:, None])
        if self.by_ink:
            best.offer(unsure, *self._by_ink(doubtful, start[unsure]), one_try=True)
            straight = best.scores.clone()
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
        return best.poses, best.scores, best.scores - straight

    def _by_ink(self, views: Views, start: torch.Tensor) -> tuple[Views, torch.Tensor]:
        """Views (B·T) and their poses (B, T, 3, 3): an object's ink brought to that of the template, then steps.

        Of all turns, those that match best.
        """
        n, kept = len(views), self.settings.turns_kept
        ink = views.images if views.masks is None else views.images * views.masks
        turned = poses_by_ink(ink, self.matcher.template, start, self.turns)
        every = torch.arange(n).repeat_interleave(len(self.turns))
        turned = restricted(turned.flatten(0, 1), start[every], self.motion, self.matcher.frame).float()
        scores = self.matcher.merit(views.take(every), start[every], turned).view(n, len(self.turns))
        best = scores.topk(kept, 1).indices + len(self.turns) * torch.arange(n)[:, None]
        each = torch.arange(n).repeat_interleave(kept)
        few = views.take(each)
        return few, self._steps(few, start[each], turned[best.flatten()]).view(n, kept, 3, 3)

    def _home(self, views: Views, start: torch.Tensor, poses: torch.Tensor) -> torch.Tensor:
        """The net's answer if there is a net, then steps to the template: first a coarse blur with at most an affine
        motion, then sharp with the whole motion."""
        settings = self.settings
        if self.aligner is not None:
            softened = {key: views.at(*key) for key in self.aligner.softenings}
            poses = self.aligner.predict_softened(softened, poses.double(), settings.passes)
            poses = restricted(poses, start, self.motion, self.matcher.frame).float()
        return self._steps(views, start, poses)

    def _steps(self, views: Views, start: torch.Tensor, poses: torch.Tensor) -> torch.Tensor:
        settings = self.settings
        coarse, blur = at_most("affine", self.motion), settings.coarse_blur * self.unit
        poses = self.matcher.towards(views, start, poses, settings.coarse_steps, coarse, blur)
        return self.matcher.towards(views, start, poses, settings.fine_steps, self.motion, self.last_blur)


class _BestOfTries:
    """The best pose of each image so far, and how many tries ended there."""

    def __init__(self, matcher: Matcher, settings: SettleSettings, views: Views, start: torch.Tensor) -> None:
        self.matcher, self.settings = matcher, settings
        self.start, self.poses, self.scores = start, start.clone(), matcher.merit(views, start, start)
        self.agreeing = torch.zeros(len(views), dtype=torch.long)

    def below(self, bar: float) -> torch.Tensor:
        """Rows that match badly and may do better."""
        return torch.nonzero((self.scores < bar) & (self.agreeing < self.settings.enough))[:, 0]

    def offer(self, rows: torch.Tensor, views: Views, poses: torch.Tensor, *, one_try: bool = False) -> None:
        """Candidate poses (R, T, 3, 3) for some rows, and the views (R·T) they are of: keep what is better.

        one_try: they began near each other, so that all of them agree says no more than one of them.
        """
        if not len(rows):
            return
        start = self.start[rows].repeat_interleave(poses.shape[1], 0)
        scores = self.matcher.merit(views, start, poses.flatten(0, 1)).view(len(rows), -1)
        best, which = scores.max(1)
        before, top = self.scores[rows], torch.maximum(self.scores[rows], best)
        near = top - self.settings.same
        still = torch.where(before > near, self.agreeing[rows], 0)
        agree = ((scores > near[:, None]) & (scores > 0)).sum(1)
        self.agreeing[rows] = still + (agree.clamp(max=1) if one_try else agree)
        better = best > before
        self.poses[rows[better]] = poses[torch.arange(len(rows)), which][better]
        self.scores[rows] = top
