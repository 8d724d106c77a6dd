"""What we do, from top to bottom. Each stage takes a state and gives the next one.

| stage  | what it does                                              | when              | why, in its own file |
|--------|-----------------------------------------------------------|-------------------|----------------------|
| seed   | steps towards one typical image; a first template         | always            | seed.py              |
| settle | every image: steps, tries from other poses, the best wins | always            | settle.py            |
| refine | all together, to the mean of the images that match        | always            | refine.py            |
| rescue | a wider search for the few images that are lost           | if the rest match | rescue.py            |
| train  | a net learns to find poses; then settle and refine again  | when tries helped | train.py             |
| motion | the simplest motion that suffices                         | motion "auto"     | solvers/motions.py   |
| finer  | larger pictures, up to the originals; error bars          | when it moves     | finer.py             |

A set larger than `fit_sample` goes through these with a sample; the others are then settled one by one, on what the
sample ended with. The paper's own method is in `paper.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch

from congeal.geometry import MOTIONS
from congeal.images import Stack
from congeal.images.levels import finer_sizes
from congeal.methods.deep.finer import finer_alone, go_finer, poses_at
from congeal.methods.deep.kept import guide_from_tensors, guide_tensors
from congeal.methods.deep.networks import recipe_networks, seeded
from congeal.methods.deep.refine import RefineSettings, last_sound, refine
from congeal.methods.deep.rescue import rescue
from congeal.methods.deep.seed import ALL_MATCH, most_match, reference_features, seed
from congeal.methods.deep.settle import Bars, Guide, Settled, SettleSettings, settle
from congeal.methods.deep.state import Sample, State
from congeal.methods.deep.train import Trained, TrainSettings, train
from congeal.methods.job import Job
from congeal.solvers.appearance import Appearance
from congeal.solvers.motions import MotionChoice, choose_motion, restricted
from congeal.solvers.sharpen import Details
from congeal.solvers.threads import few_threads, one_thread

Settings = TypeVar("Settings", TrainSettings, SettleSettings, RefineSettings)

_ROUNDS = 2  # of settling and refining, at most; a third finds nothing new
_A_FEW = 0.01  # of the images: if tries helped more than these, the better template is worth another round …
_MANY = 0.3  # … and if they then still help more than these, a net has something to learn; with less, one set of digits
# in ten became more alike by it …
_LEFT = 0.02  # … for those that are left unmatched, if they are more than these
_UNMATCHED = 0.85  # of the median score: what scores less is not matched
_ENOUGH = 50  # images: fewer teach a net little …
_WORTH_IT = 16  # … and fewer than so many unmatched ones gain nothing by it: among 50 digits they are foreign ones
_TRIED = 24  # photographs that show whether tries help: those that match worst, whom else would they help
_HOPELESS = 0.1  # of those: who scores less than so many is tried in any case
_MATCHING = 0.3  # of the images, the worst, say nothing about what a good score is
_MOTION_IMAGES = (24, 96)  # by which the motion is chosen, and by how many more if those leave it open


@dataclass(frozen=True)
class Learnt:
    """What the recipe ends with: the poses of the set, and what places any other image.

    poses (n, 3, 3) stack_from_frame; error (n,) in stack pixels; decisions as in `Found`.
    """

    poses: torch.Tensor
    error: torch.Tensor
    guide: Guide
    trained: Trained | None
    decisions: Mapping[str, Mapping[str, Any]]


def settings_of(cls: type[Settings], parameters: Any) -> Settings:
    """A stage's settings with the values that are parameters of the method."""
    known = {f.name: getattr(parameters, f.name) for f in fields(cls) if hasattr(parameters, f.name)}
    return cls(**known)


def follow_recipe(stack: Stack, appearance: Appearance, parameters: Any, job: Job, device: torch.device) -> Learnt:
    """Align a stack. parameters: those of `DeepCongealing`. An interrupted job continues where it was saved."""
    saved = job.load() or {}
    rows = choose_sample(len(stack), parameters.fit_sample, parameters.random_state)
    few = stack if len(rows) == len(stack) else stack.some(rows)
    recipe = Recipe(few, appearance, parameters, job, device)
    learnt = recipe.restore(saved) if "sample" in saved else recipe.learn(saved)
    if few is stack:
        return learnt
    beside = {**(learnt.trained.checkpoint if learnt.trained else {}), "sample": recipe.kept(learnt)}
    poses, error = place(stack, learnt.guide, settings_of(SettleSettings, parameters), job, beside)
    poses[rows], error[rows] = learnt.poses, learnt.error
    return replace(learnt, poses=poses, error=error)


def place(
    stack: Stack, guide: Guide, settings: SettleSettings, job: Job, beside: Mapping[str, Any] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Images, each alone, by what a model knows: poses (n, 3, 3), and errors (n,) in stack pixels."""
    done = settle(stack, guide, settings, job, beside=beside)
    both = {**(beside or {}), "placed": (len(stack), [done.poses, done.scores, done.gained])}
    return finer_alone(stack, done.poses, guide.appearance, guide.motion, guide.levels, guide.judge, job, both)


class Recipe:
    """The stages, for the images that are learnt from."""

    def __init__(self, stack: Stack, appearance: Appearance, parameters: Any, job: Job, device: torch.device) -> None:
        self.stack, self.appearance, self.parameters, self.job, self.device = stack, appearance, parameters, job, device
        self.motion: str = MOTIONS[-1] if parameters.motion == "auto" else parameters.motion
        self.decisions: dict[str, dict[str, Any]] = {}
        self.details: Details | None = None  # of larger pictures, where the motion was chosen by all of them

    def learn(self, saved: Mapping[str, Any]) -> Learnt:
        """All stages. saved: the state of an interrupted training, or nothing."""
        with one_thread():
            sample = Sample.of(self.stack, self.appearance, self.motion, self.parameters.guards)
            reference = self.parameters.reference
            first = reference_features(reference, self.stack, self.appearance, self.parameters.random_state)
            state = seed(sample, first) if self.parameters.running_reference else State.fresh(sample, first)
        trained = None
        if self._needs_training_only():
            self._decide("training", "A network was trained, as asked.")
            trained = self._train(sample, state, saved)
            state, guide = self._with_net(sample, trained)
        else:
            seeded_state = state
            state, guide, helped = self._straight(sample, state)
            if self._should_train(helped, state.scores):
                trained = self._train(sample, seeded_state, saved)
                state, guide = self._with_net(sample, trained)
        if self.parameters.motion == "auto":
            state, guide = self._choose_motion(sample, state, guide)
        if not self.parameters.refine:
            nothing = torch.full((len(self.stack),), torch.nan, dtype=torch.float32)
            return Learnt(state.poses, nothing, guide, trained, self.decisions)
        keep = self.appearance.trusted(state.scores, guide.bars.doubtful)
        finer = go_finer(
            self.stack, state.poses, self.appearance, guide.motion, keep, self.parameters.finest, self.job, self.details
        )
        self._decide("resolution", finer.sentence)
        guide = replace(guide, levels=finer.levels, judge=finer.judge)
        return Learnt(finer.poses, finer.error, guide, trained, self.decisions)

    def _decide(self, what: str, sentence: str, **facts: Any) -> None:
        self.decisions[what] = {"sentence": sentence, **facts}

    def _beside(self) -> Job:
        """For work that is short enough to be done again where an interrupted fit goes on."""
        return Job(self.job.method, quiet=self.job.quiet, crew=self.job.crew)

    # ---- without a net

    def _straight(self, sample: Sample, state: State) -> tuple[State, Guide, float]:
        """Settle and refine, twice if tries helped at all; and the share of the images that they helped."""
        guide = Guide.of(state, self.appearance, self.motion, all_match=False)
        quiet, helped = self._beside(), 0.0
        nothing_to_look_for = float(state.scores.min()) >= ALL_MATCH
        for _ in range(_ROUNDS):
            if not nothing_to_look_for:
                settled = self._settled(state, guide, quiet)
                state, helped = replace(state, poses=settled.poses, scores=settled.scores), settled.helped
            state, guide = self._refined(state, guide, near=most_match(state.scores))
            with one_thread():  # scores against the template as it is now
                state = state.scored(sample)
            guide = replace(guide, bars=Bars.of(state.scores[state.scores >= state.scores.quantile(_MATCHING)]))
            if helped <= _A_FEW:
                break
        return *self._rescued(sample, state, guide, quiet), helped

    def _settled(self, state: State, guide: Guide, quiet: Job) -> Settled:
        """Every photograph that there is something to look for, and every object.

        Of many photographs those are settled first that match worst. If tries help none of these, then of the rest only
        those are tried that end up worse than nearly all of them.
        """
        settings, n = settings_of(SettleSettings, self.parameters), len(self.stack)
        if not self.appearance.costly:
            return settle(self.stack, guide, settings, quiet)
        done = Settled(state.poses.clone(), state.scores.clone(), torch.zeros(n))
        rows = np.flatnonzero(state.scores < ALL_MATCH) if most_match(state.scores) else np.arange(n)
        if not len(rows):  # in the second round all may match
            return done
        first = rows
        if len(rows) >= 1.5 * _TRIED:
            first = np.sort(rows[np.argsort(state.scores.numpy()[rows], kind="stable")[:_TRIED]])
        some = done.put(first, settle(self.stack.some(first), guide, settings, quiet))
        rest = np.setdiff1d(rows, first)
        if len(rest):
            if not some.helped:
                bar = float((some.scores - some.gained).quantile(_HOPELESS))
                guide = replace(guide, bars=Bars(min(bar, guide.bars.doubtful), min(bar, guide.bars.lost)))
            done.put(rest, settle(self.stack.some(rest), guide, settings, quiet))
        return done

    def _rescued(self, sample: Sample, state: State, guide: Guide, quiet: Job) -> tuple[State, Guide]:
        """With the few that were lost where they are; and refined once more, if they change the mean of all."""
        settings = settings_of(SettleSettings, self.parameters)
        state, count = rescue(self.stack, state, guide, settings, quiet)
        if count <= _A_FEW * len(state.scores):
            return state, guide
        state, guide = self._refined(state, guide)
        with one_thread():
            return state.scored(sample), guide

    # ---- with one

    def _needs_training_only(self) -> bool:
        """Parts of the recipe that are switched off leave nothing to begin with but the net."""
        return not (self.parameters.refine and self.parameters.running_reference)

    def _should_train(self, helped: float, scores: torch.Tensor) -> bool:
        """Whether a net has something to learn (poses that steps from the start do not find) and somebody to help."""
        wish, unmatched = self.parameters.train, int((scores < _UNMATCHED * scores.median()).sum())
        left, enough = unmatched / len(scores), len(scores) >= _ENOUGH and unmatched >= _WORTH_IT
        many = helped > _MANY and left > _LEFT and enough
        will = self.parameters.steps > 0 and (wish == "always" or (wish == "auto" and many))
        facts = (
            f"further tries found better poses for {helped:.0%} of the images, and {left:.0%} match less well than most"
        )
        why = f"as asked; {facts}" if wish != "auto" or self.parameters.steps == 0 else facts
        self._decide("training", f"{'A' if will else 'No'} network was trained: {why}.", helped=helped, unmatched=left)
        return will

    def _train(self, sample: Sample, state: State, saved: Mapping[str, Any]) -> Trained:
        parameters = self.parameters
        networks = seeded(
            lambda: recipe_networks(sample.images.shape[1], sample.frame, self.motion, parameters.code_size),
            parameters.random_state,
        )
        settings = settings_of(TrainSettings, parameters)
        with few_threads(self.stack.frame):
            return train(sample, state, networks, settings, self.job, device=self.device, resume=saved)

    def _with_net(self, sample: Sample, trained: Trained) -> tuple[State, Guide]:
        """Settle with the net's answers, refine, and look for photographs that are lost."""
        parameters, state = self.parameters, trained.state
        all_match = not parameters.running_reference
        guide = Guide.of(state, self.appearance, self.motion, trained.aligner, all_match=all_match)
        settings = settings_of(SettleSettings, parameters)
        settled = settle(self.stack, guide, settings, self.job, beside=trained.checkpoint, name="settled")
        state = replace(state, poses=settled.poses, scores=settled.scores)
        if not parameters.refine:
            return state, guide
        state, guide = self._refined(state, guide)
        if not self.appearance.needs_prior:  # objects were all looked for
            return state, guide
        with one_thread():
            state = state.scored(sample)
        return self._rescued(sample, state, guide, self._beside())

    def _refined(
        self, settled: State, guide: Guide, *, near: bool = False, steps: int | None = None
    ) -> tuple[State, Guide]:
        """Refine, unless it spoilt what was there; and the guide with the template that it ended with. steps: how many,
        if not as many as usual."""
        settings = settings_of(RefineSettings, self.parameters)
        settings = settings if steps is None else replace(settings, refine_steps=steps)
        with one_thread():
            doubtful, motion = guide.bars.doubtful, guide.motion
            refined = refine(self.stack, settled, self.appearance, doubtful, motion, settings, near=near)
            kept = last_sound(self.stack, [settled, refined], self.appearance) if self.parameters.guards else refined
        if kept is refined:
            guide = replace(guide, template=refined.template, prior=refined.prior)
        return kept, guide

    # ---- which motion

    def _choose_motion(self, sample: Sample, state: State, guide: Guide) -> tuple[State, Guide]:
        """The simplest motion that suffices; everything again in it, if it is not the one that was used."""
        stack = self.stack
        matching = torch.nonzero(self.appearance.trusted(state.scores, guide.bars.doubtful))[:, 0]
        choice = self._choice(state, matching, _MOTION_IMAGES[0])
        if not choice.sure and len(matching) > _MOTION_IMAGES[0]:
            choice = self._choice(state, matching, _MOTION_IMAGES[1])
        self._decide("motion", choice.sentence(), foretold=choice.foretold)
        if choice.motion == guide.motion:
            return state, guide
        start = torch.as_tensor(stack.start)
        poses = restricted(state.poses, start, choice.motion, stack.frame).float()
        guide = replace(guide, motion=choice.motion)
        with one_thread():
            state = replace(state, poses=poses).scored(replace(sample, motion=choice.motion))
        # Where larger pictures will place the images, steps at this size would only be taken twice.
        steps = 0 if most_match(state.scores) and self._larger_pictures() else None
        return self._refined(state, guide, near=True, steps=steps)

    def _larger_pictures(self) -> bool:
        finest, frame = self.parameters.finest, max(self.stack.frame)
        return bool(self.parameters.refine) and min(self.stack.native_size, finest or self.stack.native_size) > frame

    def _choice(self, state: State, matching: torch.Tensor, most: int) -> MotionChoice:
        """By up to so many of the images that match, in larger pictures: these hold what poses were not fitted to."""
        stack = self.stack
        rows = matching[torch.linspace(0, len(matching) - 1, min(len(matching), most)).long()].numpy()
        some = stack if len(rows) == len(stack) else stack.some(rows)
        larger = some.at(next(iter(finer_sizes(max(stack.frame), stack.native_size)), 0))
        details = Details(larger, self.appearance)
        self.details = details if some is stack else None
        with one_thread():  # a few tiles of a few images are soon looked at
            poses, everyone = poses_at(state.poses[rows], some, larger), torch.ones(len(rows), dtype=torch.bool)
            start = poses_at(torch.as_tensor(some.start), some, larger)
            return choose_motion(details, poses, start, everyone)

    # ---- a sample that is done, in a checkpoint

    def kept(self, learnt: Learnt) -> dict[str, Any]:
        """Plain tensors and numbers."""
        return {
            "poses": learnt.poses,
            "error": learnt.error,
            "guide": guide_tensors(learnt.guide),
            "motion": learnt.guide.motion,
            "decisions": dict(learnt.decisions),
        }

    def restore(self, saved: Mapping[str, Any]) -> Learnt:
        """The inverse, with the networks of the training that was saved beside it."""
        done, trained = saved["sample"], None
        if "aligner" in saved:
            with one_thread():
                sample = Sample.of(self.stack, self.appearance, self.motion, self.parameters.guards)
                state = State.fresh(sample, saved["tensors"]["template"])
            trained = self._train(sample, state, saved)
        aligner = None if trained is None else trained.aligner
        guide = guide_from_tensors(done["guide"], done["motion"], self.appearance, aligner)
        return Learnt(done["poses"], done["error"], guide, trained, done["decisions"])


def choose_sample(n: int, most: int, random_state: int) -> np.ndarray:
    """Positions of the images the recipe learns from: all of them, or a seeded choice."""
    if n <= most:
        return np.arange(n)
    return np.sort(np.random.default_rng(random_state).choice(n, most, replace=False))
