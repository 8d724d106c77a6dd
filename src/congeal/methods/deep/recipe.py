"""What we do, from top to bottom: seed → train → settle → refine. Each stage takes a state and gives the next one.

| stage  | what it does                                         | why, in its own file |
|--------|------------------------------------------------------|----------------------|
| seed   | steps towards one typical image; a first template    | seed.py              |
| train  | a net learns to find poses from images that match    | train.py             |
| settle | every image: steps, the net's answer, more tries     | settle.py            |
| refine | all together, to the mean of the images that match   | refine.py            |

A set larger than `fit_sample` goes through these with a sample; the others are then settled one by one, on the template
that the sample ended with. The paper's own method is in `paper.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch

from congeal.images import Stack
from congeal.methods.deep.networks import RecipeNetworks, recipe_networks, seeded
from congeal.methods.deep.refine import RefineSettings, last_sound, refine
from congeal.methods.deep.seed import reference_features, seed
from congeal.methods.deep.settle import Guide, SettleSettings, settle, settle_sample
from congeal.methods.deep.state import Sample, State
from congeal.methods.deep.train import Trained, TrainSettings, train
from congeal.methods.job import Job
from congeal.solvers.appearance import Appearance
from congeal.solvers.pose_prior import PosePrior
from congeal.solvers.threads import few_threads

Settings = TypeVar("Settings", TrainSettings, SettleSettings, RefineSettings)


@dataclass(frozen=True)
class Learnt:
    """What the recipe ends with: the poses of the set, and what places any other image."""

    poses: torch.Tensor
    guide: Guide
    autoencoder: torch.nn.Module


def settings_of(cls: type[Settings], parameters: Any) -> Settings:
    """A stage's settings with the values that are parameters of the method."""
    known = {f.name: getattr(parameters, f.name) for f in fields(cls) if hasattr(parameters, f.name)}
    return cls(**known)


def follow_recipe(stack: Stack, appearance: Appearance, parameters: Any, job: Job, device: torch.device) -> Learnt:
    """Align a stack. parameters: those of `DeepCongealing`. An interrupted job continues where it was saved."""
    saved = job.load() or {}
    rows = choose_sample(len(stack), parameters.fit_sample, parameters.random_state)
    few = stack if len(rows) == len(stack) else stack.some(rows)
    with few_threads(stack.frame):
        sample = Sample.of(few, appearance, parameters.motion, parameters.guards)
        reference = reference_features(parameters.reference, stack, appearance, parameters.random_state)
        fresh = State.fresh(sample, reference)
        seeded_state = seed(sample, reference) if parameters.running_reference and not saved else fresh
        trained = train(
            sample,
            seeded_state,
            seeded(lambda: _networks(sample, parameters), parameters.random_state),
            settings_of(TrainSettings, parameters),
            job,
            device=device,
            resume=saved,
        )
    guide = Guide.of(trained, appearance, all_match=not parameters.running_reference)
    if "sample" in saved:  # all of them are done, and it was the others that were being placed
        settled, guide = _from_checkpoint(trained.state, guide, saved["sample"])
    else:
        settled = settle_sample(few, trained, guide, settings_of(SettleSettings, parameters), job)
        if parameters.refine:
            settled, guide = _refined(few, settled, guide, parameters)
    if few is stack:
        return Learnt(settled.poses, guide, trained.autoencoder)
    others = _all_placed(stack, settled, guide, trained, parameters, job)
    others[rows] = settled.poses
    return Learnt(others, guide, trained.autoencoder)


def _networks(sample: Sample, parameters: Any) -> RecipeNetworks:
    return recipe_networks(sample.images.shape[1], sample.frame, parameters.motion, parameters.code_size)


def _refined(stack: Stack, settled: State, guide: Guide, parameters: Any) -> tuple[State, Guide]:
    """Stage 4, unless it spoilt what was there; and the guide with the template that it ended with."""
    with few_threads(stack.frame):
        refined = refine(stack, settled, guide.appearance, guide.bars.doubtful, settings_of(RefineSettings, parameters))
        kept = last_sound(stack, [settled, refined], guide.appearance) if parameters.guards else refined
    if kept is refined:
        guide = replace(guide, template=refined.template, prior=refined.prior)
    return kept, guide


def _all_placed(
    stack: Stack, settled: State, guide: Guide, trained: Trained, parameters: Any, job: Job
) -> torch.Tensor:
    """Every image of a large set, each alone, on the template that the sample ended with."""
    found, scores = (torch.empty(len(stack), *rest, dtype=torch.float32) for rest in ((3, 3), ()))
    prior = None if guide.prior is None else guide.prior.tensor()
    done = {"poses": settled.poses, "template": guide.template, "prior": prior}
    beside = {**trained.checkpoint, "sample": done}
    settle(stack, guide, settings_of(SettleSettings, parameters), job, found, scores, beside=beside)
    return found


def _from_checkpoint(state: State, guide: Guide, done: dict[str, Any]) -> tuple[State, Guide]:
    prior = None if done["prior"] is None else PosePrior(*done["prior"])
    return replace(state, poses=done["poses"]), replace(guide, template=done["template"], prior=prior)


def choose_sample(n: int, most: int, random_state: int) -> np.ndarray:
    """Positions of the images the recipe learns from: all of them, or a seeded choice."""
    if n <= most:
        return np.arange(n)
    return np.sort(np.random.default_rng(random_state).choice(n, most, replace=False))
