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
from congeal.methods.deep.networks import recipe_networks, seeded
from congeal.methods.deep.refine import RefineSettings, last_sound, refine
from congeal.methods.deep.seed import reference_features, seed
from congeal.methods.deep.settle import Bars, Guide, SettleSettings, settle, settle_sample
from congeal.methods.deep.state import Sample, State
from congeal.methods.deep.train import TrainSettings, train
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
    saved = job.load()
    rows = choose_sample(len(stack), parameters.fit_sample, parameters.random_state)
    few = stack if len(rows) == len(stack) else stack.some(rows)
    with few_threads(stack.frame):
        sample = Sample.of(few, appearance, parameters.motion, parameters.guards)
        reference = reference_features(parameters.reference, stack, appearance, parameters.random_state)
        state = State.fresh(sample, reference)
        if parameters.running_reference and saved is None:
            state = seed(sample, reference)
        networks = seeded(
            lambda: recipe_networks(sample.images.shape[1], stack.frame, parameters.motion, parameters.code_size),
            parameters.random_state,
        )
        settings = settings_of(TrainSettings, parameters)
        trained, checkpoint = train(sample, state, networks, settings, job, device=device, resume=saved)
    if saved is None or "placed" not in saved:
        job.save(checkpoint)
    state = trained.state
    matching = state.scores[state.good] if parameters.running_reference else state.scores
    guide = Guide(trained.aligner, state.template, appearance, Bars.of(matching), state.prior)
    if saved is not None and "sample_poses" in saved:
        state, guide = _sample_as_saved(state, guide, saved)
    else:
        state, guide = _settled_and_refined(few, state, guide, parameters)
    if few is stack:
        return Learnt(state.poses, guide, trained.autoencoder)
    found, scores = (torch.empty(len(stack), *rest, dtype=torch.float32) for rest in ((3, 3), ()))
    beside = {**checkpoint, "sample_poses": state.poses, "sample_template": guide.template}
    beside["sample_prior"] = None if guide.prior is None else guide.prior.tensor()
    settle(stack, guide, settings_of(SettleSettings, parameters), job, found, scores, beside)
    found[rows] = state.poses
    return Learnt(found, guide, trained.autoencoder)


def _settled_and_refined(stack: Stack, state: State, guide: Guide, parameters: Any) -> tuple[State, Guide]:
    """Stages 3 and 4 of the images that were learnt from, and what later images are placed with."""
    settled = settle_sample(stack, state, guide, settings_of(SettleSettings, parameters))
    if not parameters.refine:
        return settled, guide
    with few_threads(stack.frame):
        refined = refine(stack, settled, guide.appearance, guide.bars.doubtful, settings_of(RefineSettings, parameters))
        kept = last_sound(stack, [settled, refined], guide.appearance) if parameters.guards else refined
    if kept is refined:
        guide = replace(guide, template=refined.template, prior=refined.prior)
    return kept, guide


def _sample_as_saved(state: State, guide: Guide, saved: dict[str, Any]) -> tuple[State, Guide]:
    prior = None if saved["sample_prior"] is None else PosePrior(*saved["sample_prior"])
    guide = replace(guide, template=saved["sample_template"], prior=prior)
    return replace(state, poses=saved["sample_poses"]), guide


def choose_sample(n: int, most: int, random_state: int) -> np.ndarray:
    """Positions of the images the recipe learns from: all of them, or a seeded choice."""
    if n <= most:
        return np.arange(n)
    return np.sort(np.random.default_rng(random_state).choice(n, most, replace=False))
