"""Joint alignment by direct optimisation, from top to bottom.

    initialise        a typical image is the first template, the mean of the 30 % most like it the second; the mean is
                      renewed up to three times
    up to three rounds, while the mean of 1 − score falls by 3 %:
        register each     Gauss-Newton of every image alone; those with low scores from several initial poses
        register jointly  all images together, to the mean of the inliers
    choose the motion the smallest over which neither the next larger nor the largest explains clearly more
    pyramid           finer levels, up to the originals, while they move the poses by several standard errors

Inliers are the best 30 % in the initialisation. After it a mixture, refitted to the scores, decides: `ScoreModel`.

Gauge: with `guards`, after every joint step one common correction brings the inliers' mean pose back to the mean
initial pose and, for objects, holds the total intensity of the set. Prior: for photographs, the poses of the inliers
give a Gaussian prior (`PosePrior`) that pulls every image towards them.

Motion "auto" works in homography until the motion is chosen. A larger motion explains clearly more if it explains more
than `MIN_GAIN` of the unexplained variance, and by more than two standard errors (`choose_motion`).

A set larger than `fit_sample` does all this with a sample. All images are then registered alone to its templates, as
new images are (`place_each`), and the sample's rows are replaced by their joint result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import torch

from congeal.errors import CongealError
from congeal.execution.threads import single_torch_thread
from congeal.geometry import MOTIONS
from congeal.images import Stack
from congeal.images.plan import pyramid_sizes
from congeal.methods.base import Method
from congeal.methods.checks import Count, CountOrZero, Range, Reference
from congeal.methods.fit_context import FitContext, FitResult
from congeal.methods.joint.model import FittedModel, ScoreModel
from congeal.methods.joint.multistart import RESTART_PRIOR_WIDTH, register_each
from congeal.methods.joint.pyramid import place_images, poses_at, refine_on_pyramid
from congeal.methods.joint.template import (
    Sample,
    State,
    initialise_poses,
    last_sound,
    reference_features,
    register_jointly,
)
from congeal.methods.semantic.extractors import PLAIN_FEATURES
from congeal.registration.batching import check_one_image
from congeal.registration.features import ImageFeatures, PhotoEdges, pixel_features, robust_features
from congeal.registration.gauge import restricted
from congeal.registration.tile_refinement import LevelImages, MotionChoice, choose_motion
from congeal.rows import evenly_spaced_rows

MAX_ROUNDS = 3
"""Rounds of registering each image and all of them jointly; a fourth improves nothing (digits under 0–30 % warps)."""
MIN_IMPROVEMENT = 0.03
"""A round that lowers the mean of 1 − score by a smaller share is the last (digits under 0–30 % warps, LFW)."""
MOTION_SAMPLE = 96
"""Inliers by which the motion is chosen."""


@dataclass(kw_only=True, eq=False)
class JointAlignment(Method):
    """Direct joint optimisation of all poses; the default method. It trains no network.

    Every image is registered to a template by Gauss-Newton from its pose so far, and an image with a low score also
    from others. The template is the mean of the inliers. Poses are refined together on a pyramid up to the resolution
    of the originals (`alignment.py`).

    Parameters
    ----------
    motion : str
        "auto" (the simplest that suffices), translation, rigid, similarity, affine or homography.
    features : str
        What is compared: "auto" (pixels of objects on empty ground, edges of photographs), "edges" or "pixels".
    finest : int or None
        Longer side of the finest pyramid level; None for the resolution of the originals.
    reference : str, int, path or array
        The first template: "auto" (a typical image), a position, a file or an array.
    fit_sample : int
        The template and the motion are found with at most this many images; all are aligned.
    restarts : int
        Images that match badly are registered again: from the initial pose, for objects from the moments of their
        intensity, and from at most this many perturbed poses. 0 switches all of these off.

    Attributes
    ----------
    transforms_, quality_, history_, stack_from_frame_, layout_
        As for every method.
    """

    motion: str = "auto"
    features: str = "auto"
    finest: Count | None = None
    reference: Reference = "auto"
    fit_sample: Annotated[int, Range(least=2)] = 6000
    restarts: CountOrZero = 16

    name: ClassVar[str] = "joint"
    motions: ClassVar[tuple[str, ...]] = (*MOTIONS, "auto")

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.features not in PLAIN_FEATURES:
            raise CongealError(
                f"{self.name}: features must be one of {', '.join(PLAIN_FEATURES)}, not {self.features!r}; "
                "those of a network belong to the method semantic"
            )
        check_one_image(self.reference, self.name)

    def _features(self, kind: str) -> ImageFeatures:
        return {"edges": PhotoEdges(), "pixels": pixel_features(kind)}.get(self.features) or robust_features(kind)

    def _align(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> FitResult:
        fit = align_stack(stack, image_features, self, context)
        self._model = fit.model
        return self._found(stack, fit.poses, fit.error, fit.decisions)

    def _align_new(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> FitResult:
        placed = place_images(stack, self._model, self.restarts, self.random_state_, context)
        return self._found(stack, *placed, {})

    def _found(
        self, stack: Stack, poses: torch.Tensor, error: torch.Tensor, decisions: Mapping[str, Mapping[str, Any]]
    ) -> FitResult:
        model, base = self._model, max(stack.frame)
        finer = [max(level.frame) for level in model.levels if model.refines and max(level.frame) > base]
        return FitResult(poses, model.motion, (base, *finer), False, error, decisions)

    # ---- the model file

    def _state(self) -> dict[str, torch.Tensor]:
        return self._model.tensors()

    def _restore(self, state: Mapping[str, torch.Tensor]) -> None:
        self._model = FittedModel.from_tensors(state, self._features(self.layout_.kind or "photo"))
        self.motion_ = self._model.motion


@dataclass(frozen=True)
class JointFit:
    """The result of an alignment: poses of the set, and the model that places any other image.

    poses (n, 3, 3) stack_from_frame; error (n,) of a corner in stack pixels; decisions as in `FitResult`.
    """

    poses: torch.Tensor
    error: torch.Tensor
    model: FittedModel
    decisions: Mapping[str, Mapping[str, Any]]


def align_stack(stack: Stack, image_features: ImageFeatures, parameters: Any, context: FitContext) -> JointFit:
    """Align a stack. An interrupted context continues where it was saved.

    parameters: those of `JointAlignment`; a `random_state` of None has been replaced by the seed that was drawn.
    """
    saved = (context.load() or {}).get("sample")
    rows = choose_sample(len(stack), parameters.fit_sample, parameters.random_state)
    sample = stack if len(rows) == len(stack) else stack.some(rows)
    if saved:
        fit = JointFit(**{**saved, "model": FittedModel.from_tensors(saved["model"], image_features)})
    else:
        fit = align_sample(sample, image_features, parameters, context)
        context.save({"sample": _saved(fit)})
    if sample is stack:
        return fit
    restarts, seed = parameters.restarts, parameters.random_state
    poses, error = place_images(stack, fit.model, restarts, seed, context, {"sample": _saved(fit)})
    poses[rows], error[rows] = fit.poses, fit.error
    return replace(fit, poses=poses, error=error)


def align_sample(stack: Stack, image_features: ImageFeatures, parameters: Any, context: FitContext) -> JointFit:
    """Align a stack that fits into memory, all images together."""
    motion = MOTIONS[-1] if parameters.motion == "auto" else parameters.motion
    with single_torch_thread():
        sample = Sample.of(stack, image_features, motion, parameters.guards)
        reference = reference_features(parameters.reference, stack, image_features, parameters.random_state)
        state = initialise_poses(sample, reference)
    # The rounds are short enough to be repeated after an interruption, so this context has no checkpoint.
    unsaved = FitContext(context.method, quiet=context.quiet)
    for number in range(MAX_ROUNDS):
        before = float((1 - state.scores).mean())
        model = _model(state, image_features, motion)
        seed = parameters.random_state + number
        poses, scores, gain = register_each(stack, model, state.poses, parameters.restarts, seed, unsaved)
        width = torch.where(gain > 0, RESTART_PRIOR_WIDTH, 1.0)
        width = width if state.prior_width is None else torch.maximum(width, state.prior_width)
        state = replace(state, poses=poses, scores=scores, prior_width=width)
        state = _register_jointly(sample, state, model)
        if float((1 - state.scores).mean()) > (1 - MIN_IMPROVEMENT) * before:
            break
    decisions: dict[str, dict[str, Any]] = {}
    if parameters.motion == "auto":
        choice = _choose_motion(sample, state, image_features)
        decisions["motion"] = {"sentence": choice.sentence(), "explained_variance": choice.explained_variance}
        if choice.motion != motion:
            motion = choice.motion
            sample = replace(sample, motion=motion)
            poses = restricted(state.poses, torch.as_tensor(stack.start), motion, stack.frame).float()
            model = _model(state, image_features, motion)
            state = _register_jointly(sample, replace(state, poses=poses), model, last=True)
    model = _model(state, image_features, motion)
    keep = model.scores.inliers(state.scores)
    pyramid = refine_on_pyramid(stack, state.poses, image_features, motion, keep, parameters.finest, context)
    decisions["resolution"] = {"sentence": pyramid.sentence}
    model = replace(model, levels=pyramid.levels, refines=pyramid.refines)
    return JointFit(pyramid.poses, pyramid.error, model, decisions)


def choose_sample(n: int, most: int, random_state: int) -> np.ndarray:
    """Rows of the images that are aligned together: all of them, or a seeded choice."""
    if n <= most:
        return np.arange(n)
    return np.sort(np.random.default_rng(random_state).choice(n, most, replace=False))


def _model(state: State, image_features: ImageFeatures, motion: str) -> FittedModel:
    return FittedModel(motion, state.template, image_features, ScoreModel.fit(state.scores), state.prior)


def _register_jointly(sample: Sample, state: State, model: FittedModel, *, last: bool = False) -> State:
    """Joint Gauss-Newton to the mean of the inliers, unless that loses the object; with scores against that mean."""
    with single_torch_thread():
        keep = model.scores.inliers(state.scores)
        refined = register_jointly(sample, state, keep, model.motion, only_last_stage=last)
        if sample.guards:
            refined = last_sound(sample.stack, [state, refined], sample.image_features)
        return refined.scored(sample)


def _choose_motion(sample: Sample, state: State, image_features: ImageFeatures) -> MotionChoice:
    """The simplest sufficient motion, from inliers at the next pyramid level, whose pixels the poses were not fitted
    to. Where there is no larger level the working size is used, whose pixels they were fitted to."""
    stack = sample.stack
    inliers = np.flatnonzero(ScoreModel.fit(state.scores).inliers(state.scores).numpy())
    rows = inliers[evenly_spaced_rows(len(inliers), MOTION_SAMPLE)]
    some = stack if len(rows) == len(stack) else stack.some(rows)
    larger = some.at(next(iter(pyramid_sizes(max(stack.frame), stack.native_size)), 0))
    with single_torch_thread():
        poses, start = (poses_at(one, some, larger) for one in (state.poses[rows], torch.as_tensor(some.start)))
        everyone = torch.ones(len(rows), dtype=torch.bool)
        return choose_motion(LevelImages(larger, image_features), poses, start, everyone)


# ---- a sample that is aligned, in a checkpoint


def _saved(fit: JointFit) -> dict[str, Any]:
    """Plain tensors and numbers."""
    return {**vars(fit), "model": fit.model.tensors(), "decisions": dict(fit.decisions)}
