"""DPRC as an estimator: train the aligner and the auto-encoder on the set, predict poses, refine them by Gauss-Newton.

Deep penalised reconstruction congealing (Annunziata, Sagonas and Calì, ICCV 2019), with the changes that make it train.
docs/methods.md lists them: some have a parameter that switches them off, others (networks, features, learning rates,
gradient clipping) have none. `DPRC` with every switch off is therefore still not the paper. For the paper use
`as_printed_mnist` or `as_printed_lfw` (`as_printed.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
import torch

from congeal.execution.threads import single_torch_thread
from congeal.geometry.matrix import Size
from congeal.images import Stack
from congeal.methods.checks import Count, CountOrZero, NotNegative, Range, Share, find_device
from congeal.methods.dprc.as_printed import PRINTED_LFW, PRINTED_MNIST, PrintedDPRC
from congeal.methods.dprc.networks import DeSTNet, SmallAutoEncoder, recipe_networks, seeded
from congeal.methods.dprc.prediction import NetworkMethod
from congeal.methods.dprc.training import Trainer
from congeal.methods.fit_context import FitContext, FitResult
from congeal.methods.joint.alignment import choose_sample
from congeal.methods.joint.model import ScoreModel
from congeal.methods.joint.template import (
    Sample,
    State,
    initialise_poses,
    last_sound,
    reference_features,
    register_jointly,
)
from congeal.registration.batching import chunks
from congeal.registration.features import ImageFeatures, robust_features
from congeal.registration.template_registration import TemplateRegistration, Views


@dataclass(kw_only=True, eq=False)
class DPRC(NetworkMethod):
    """Deep penalised reconstruction congealing: a spatial transformer network trained on the set itself.

    Parameters
    ----------
    reference : str, int, path or array
        The first template: "auto" (a typical image), a position, a file or an array.
    steps, batch_size, learning_rate
        Of training, by Adam with warm-up and a cosine.
    distortion_weight, complexity_weight : float
        Of D (1 in the paper, 0 for its ablation without D) and of C (λ).
    capacity_penalty, penalty_power, code_size
        γ, k and |z| of C.
    complexity_ramp : (float, float)
        C's weight grows from zero between these shares of training, while the auto-encoder learns to rebuild.
    train_apart : bool
        The auto-encoder learns on detached images; the aligner sees it frozen.
    remove_common_mode : bool
        C gives no gradient for moving or shrinking all images together.
    normalise_ink : bool
        D and C are divided by total intensity (ink), so that shrinking the object does not lower them.
    self_supervision : float
        Weight of S: undoing known random warps of images that already match.
    max_misalignment : float
        Largest corner noise of those warps, as a share of the frame's side.
    running_reference : bool
        The template is the mean of the inliers, updated as training goes on. Off, the reference image is the template
        during training, and with `refine_steps=0` also afterwards; the Gauss-Newton steps of all images before the
        training are left out, too. S then needs images that match from the start: set `self_supervision=0` as well.
    refreshes : int
        The template is updated after every 1 / (refreshes + 1) of the steps.
    tolerance : float
        Training stops early when the mean score changes by less than this between two updates, twice.
    fit_sample : int
        The networks are trained on at most this many images; all are aligned.
    passes : int
        How often the aligner is applied, each time from its last answer.
    refine_steps : int
        Gauss-Newton steps to the mean after the prediction, at most; 0 gives the network's own answer.
    device : str
        "auto", "cpu", "cuda" or "mps".

    Attributes
    ----------
    aligner_, autoencoder_ : torch.nn.Module
        The trained networks.
    transforms_, quality_, history_, stack_from_frame_, layout_
        As for every method, see `Method`.
    """

    distortion_weight: NotNegative = 1.0
    complexity_ramp: tuple[Share, Share] = (0.1, 0.4)
    train_apart: bool = True
    remove_common_mode: bool = True
    normalise_ink: bool = True
    self_supervision: NotNegative = 1.0
    max_misalignment: Share = 0.35
    running_reference: bool = True
    refreshes: CountOrZero = 6
    tolerance: NotNegative = 0.001
    fit_sample: Annotated[int, Range(least=2)] = 6000
    passes: Count = 2
    refine_steps: CountOrZero = 40
    device: str = "auto"

    name: ClassVar[str] = "dprc"

    @staticmethod
    def as_printed_mnist(**overrides: Any) -> PrintedDPRC:
        """The method as printed, with the paper's MNIST networks; overrides are parameters of `PrintedDPRC`."""
        return PrintedDPRC(**PRINTED_MNIST | overrides)

    @staticmethod
    def as_printed_lfw(**overrides: Any) -> PrintedDPRC:
        """The method as printed, with the paper's networks for 250×250 faces."""
        return PrintedDPRC(**PRINTED_LFW | overrides)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        find_device(self.device)

    def _features(self, kind: str) -> ImageFeatures:
        return robust_features(kind)

    # ---- fitting

    def _align(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> FitResult:
        rows = choose_sample(len(stack), self.fit_sample, self.random_state_)
        few = stack if len(rows) == len(stack) else stack.some(rows)
        trainer = self._train(few, image_features, context)
        self._keep(trainer.aligner, trainer.autoencoder)
        self._template = trainer.state.template
        poses = self._predict(stack, image_features, context, passes=self.passes, beside=trainer.checkpoint())
        if self.refine_steps:
            poses[rows], self._template = self._refine(few, image_features, trainer.state, poses[rows])
            if few is not stack:
                others = np.setdiff1d(np.arange(len(stack)), rows)
                poses[others] = self._register(stack, image_features, others, poses[others])
        return FitResult(poses, self.motion, (max(stack.frame),), True)

    def _train(self, few: Stack, image_features: ImageFeatures, context: FitContext) -> Trainer:
        """Train from an initial template, or from where an interrupted fit was saved.

        Without `running_reference` poses begin at those of the stack, and all images count as matching.
        """
        with single_torch_thread():
            sample = Sample.of(few, image_features, self.motion, self.guards)
            first = reference_features(self.reference, few, image_features, self.random_state_)
            state = initialise_poses(sample, first) if self.running_reference else State.initial(sample, first)
        networks = self._make_networks(sample.images.shape[1], sample.frame)
        small = max(few.frame) <= 64  # up to which one torch thread was measured to be faster than two
        with single_torch_thread() if small else nullcontext():
            trainer = Trainer(self, sample, state, networks)
            trainer.run(context)
        return trainer

    def _make_networks(self, channels: int, frame: Size) -> tuple[DeSTNet, SmallAutoEncoder]:
        return seeded(partial(recipe_networks, channels, frame, self.motion, self.code_size), self.random_state_)

    @torch.no_grad()
    def _refine(
        self, few: Stack, image_features: ImageFeatures, state: State, poses: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Joint Gauss-Newton from the predicted poses, unless that empties the frame; and the mean it ends with."""
        with single_torch_thread():
            sample = Sample.of(few, image_features, self.motion, self.guards)
            predicted = replace(state, poses=poses).scored(sample)
            keep = ScoreModel.fit(predicted.scores).inliers(predicted.scores)
            refined = register_jointly(sample, predicted, keep, self.motion, max_steps=self.refine_steps)
            sound = last_sound(few, [predicted, refined], image_features) if self.guards else refined
        return sound.poses.float(), sound.template

    # ---- prediction

    def _align_new(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> FitResult:
        poses = self._predict(stack, image_features, context, passes=self.passes)
        if self.refine_steps:
            poses = self._register(stack, image_features, np.arange(len(stack)), poses)
        return FitResult(poses, self.motion, (max(stack.frame),), True)

    @torch.no_grad()
    def _register(
        self, stack: Stack, image_features: ImageFeatures, rows: np.ndarray, poses: torch.Tensor
    ) -> torch.Tensor:
        """Gauss-Newton of each image alone to the template of the fit."""
        registration, blur = TemplateRegistration(self._template, image_features), image_features.last_blur(stack.frame)
        found = []
        with single_torch_thread():
            for part in chunks(stack.some(rows)):
                views = Views(image_features.features(stack.images(rows[part])), stack.masks(rows[part]))
                start = torch.as_tensor(stack.start[rows[part]]).float()
                found.append(
                    registration.step_to_template(views, start, poses[part], self.refine_steps, self.motion, blur)
                )
        return torch.cat(found)

    # ---- the model file

    def _state(self) -> dict[str, torch.Tensor]:
        return super()._state() | {"template": self._template}

    def _restore(self, state: Mapping[str, torch.Tensor]) -> None:
        self._template = state["template"]
        super()._restore(state)
