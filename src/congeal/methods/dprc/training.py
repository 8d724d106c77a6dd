"""Stage 2, train: a DeSTNet learns to find poses from images that already match.

Why: Gauss-Newton steps reach images that start a few pixels away; a net reaches the others, and places new images in
milliseconds. What it buys: next to nothing on clean digits (19.33 dB against `lsc`'s 19.25); 2.3 dB more than `lsc`
under 20 % warps, and 3.5 dB under 30 %, where `lsc` loses two digits of ten (docs/results.md, MNIST and perspective).

It learns from
  D  likeness of the aligned batch to the template,
  C  what a small auto-encoder fails to rebuild of it,
  S  answers the set gives itself: images that already match are moved by a random warp, and the net has to undo it.
     This is what reaches images that start too far away for D to have a useful slope. After refinement D and C are
     worth 0.01–0.02 dB together (docs/results.md, ablation, "the default without D and C"); S is worth the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from congeal.filters import frame_unit
from congeal.geometry import warp
from congeal.methods.dprc.losses import positional_weights
from congeal.methods.dprc.networks import DeSTNet, RecipeNetworks, SmallAutoEncoder, Softening
from congeal.methods.dprc.training_losses import (
    self_supervision,
    weighted_complexity,
    weighted_distortion,
    without_common_mode,
)
from congeal.methods.fit_context import FitContext
from congeal.methods.joint.state import Sample, State
from congeal.registration.features import at_most
from congeal.registration.template_registration import PosePrior, Views, random_warps, reduced, to_reduced

_LEAST = 1e-3  # divided by at least this: a blank set has no spread and no ink


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """Numbers of this stage. The first block are parameters of `DPRC`, which documents them.

    The second block was chosen on threes and sevens under 0–30 % warps, 500 to 6,000 images.
    """

    steps: int
    batch_size: int
    learning_rate: float
    distortion_weight: float
    complexity_weight: float
    capacity_penalty: float
    penalty_power: float
    code_size: int
    complexity_ramp: tuple[float, float]
    train_apart: bool
    remove_common_mode: bool
    normalise_ink: bool
    self_supervision: float
    max_misalignment: float
    running_reference: bool
    refreshes: int
    tolerance: float
    passes: int
    random_state: int

    warm_up: int = 50
    """Steps in which the learning rate grows to its full value: Adam's first estimates are wild."""
    last_rate: float = 0.02
    """Of the learning rate, at the end of the cosine."""
    largest_gradient: float = 1.0
    """Gradients are cut to this norm: a batch of lost images must not undo what was learnt."""
    rebuilder_rate: float = 2e-3
    """Learning rate of the auto-encoder, where it learns in steps of its own."""
    first_reach: float = 0.3
    """Of `max_misalignment`: how far the random warps of S go at first."""
    full_reach_at: float = 0.4
    """Of training: from here on they go all the way."""
    congealing_share: int = 4
    """D and C see a batch so many times smaller than S: they cost more and teach less."""
    look_steps: int = 3
    look_blur: float = 1.0
    """Gauss-Newton steps, and their blur in pixels of a 28-pixel frame, at each look at the whole sample."""
    slack: float = 0.08
    """How far below the median score of the matching images an image still matches."""
    first_looks: int = 2
    """Looks before training may stop early: at first scores change because the template does."""
    patience: int = 2
    """Looks in a row without change after which training stops."""
    intensity_sample: int = 2000
    """Images from which the net's input is scaled to mean 0 and deviation 1."""


@dataclass(frozen=True)
class Trained:
    """What training leaves: the state, networks on the CPU, and a checkpoint from which it need not be done again."""

    state: State
    aligner: DeSTNet
    autoencoder: SmallAutoEncoder
    checkpoint: dict[str, Any]


def train(
    sample: Sample,
    state: State,
    networks: RecipeNetworks,
    settings: TrainSettings,
    context: FitContext,
    *,
    device: torch.device,
    resume: Mapping[str, Any],
) -> Trained:
    """Train the aligner from `state`, or from where the checkpoint `resume` ended, if it is not empty."""
    trainer = Trainer(sample, state, networks, settings, device)
    if resume:
        trainer.restore(resume)
    before = trainer.done
    trainer.run(context)
    checkpoint = trainer.checkpoint()
    if trainer.done > before:
        context.save(checkpoint)
    return Trained(trainer.state, trainer.aligner.cpu().eval(), trainer.autoencoder.cpu().eval(), checkpoint)


class Trainer:
    """The loop, and everything that changes in it."""

    def __init__(
        self,
        sample: Sample,
        state: State,
        networks: RecipeNetworks,
        settings: TrainSettings,
        device: torch.device,
    ) -> None:
        self.sample, self.state, self.settings, self.device = sample, state, settings, device
        self.generator = torch.Generator().manual_seed(settings.random_state)
        self.aligner, self.autoencoder = networks[0].to(device), networks[1].to(device)
        first = slice(settings.intensity_sample)
        shown = warp(sample.images[first], sample.start[first], sample.frame)
        self.aligner.intensity.copy_(torch.stack([shown.mean(), shown.std().clamp(min=_LEAST)]))
        self.shrink = self.autoencoder.shrink
        self.autoencoder.template.data.copy_(reduced(state.template, self.shrink))
        self.small = reduced(sample.images, self.shrink)
        self.softened = self.aligner.soften(sample.images)  # once for all steps
        self.position = positional_weights(settings.code_size, settings.penalty_power).to(device)
        learning = list(self.aligner.parameters())
        self.rebuilder = None
        if settings.train_apart:
            self.rebuilder = torch.optim.Adam(self.autoencoder.parameters(), lr=settings.rebuilder_rate)
        else:
            learning += list(self.autoencoder.parameters())
        self.optimiser = torch.optim.Adam(learning, lr=settings.learning_rate)
        self.done, self.looks, self.unchanged = 0, 0, 0

    def run(self, context: FitContext) -> None:
        """Steps, with a look at the whole sample now and then, until nothing changes any more."""
        settings = self.settings
        every = max(1, settings.steps // (settings.refreshes + 1))
        for _ in range(self.done, settings.steps):
            if self.unchanged >= settings.patience:  # also where a checkpoint says so
                context.ends_early(f"the images matched no better at {settings.patience} looks in a row")
                break
            values = self.step()
            self.done += 1
            context.step(self.done, settings.steps, **values)
            if settings.running_reference and self.done % every == 0 and self.done < settings.steps:
                self.look_at_all()
            if context.due():
                context.save(self.checkpoint())

    # ---- one step

    def step(self) -> dict[str, float]:
        """One step of the aligner on S + D + C; gives the losses."""
        settings, progress = self.settings, self.done / self.settings.steps
        for group in self.optimiser.param_groups:
            group["lr"] = settings.learning_rate * self._rate(progress)
        loss = torch.zeros((), device=self.device, dtype=torch.float32)
        values: dict[str, float] = {}
        if settings.self_supervision > 0:
            answers = self._supervise(progress)
            loss = loss + settings.self_supervision * answers
            values["self_supervision"] = float(answers.detach())
        if settings.distortion_weight > 0 or settings.complexity_weight > 0:
            congealing, parts = self._congeal(progress)
            loss, values = loss + congealing, values | parts
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.aligner.parameters(), settings.largest_gradient)
        self.optimiser.step()
        return {"loss": float(loss.detach())} | values

    def _rate(self, progress: float) -> float:
        warm_up = min(1.0, (self.done + 1) / self.settings.warm_up)
        return warm_up * max(self.settings.last_rate, 0.5 * (1 + math.cos(math.pi * progress)))

    def _draw(self, among: torch.Tensor, count: int) -> torch.Tensor:
        return among[torch.randint(len(among), (count,), generator=self.generator)]

    def _softened(self, rows: torch.Tensor) -> dict[Softening, torch.Tensor]:
        return {key: images[rows].to(self.device) for key, images in self.softened.items()}

    def _supervise(self, progress: float) -> torch.Tensor:
        """S: move images that match by a random warp, and ask the aligner to undo it."""
        settings = self.settings
        rows = self._draw(torch.nonzero(self.state.inliers)[:, 0], settings.batch_size)
        grown = settings.first_reach + (1 - settings.first_reach) * progress / settings.full_reach_at
        reach = settings.max_misalignment * min(1.0, grown)
        sigma = torch.rand(len(rows), generator=self.generator, dtype=torch.float32) * reach
        warps = random_warps(sigma, self.sample.frame, self.generator, self.sample.motion)
        answer = self.state.poses[rows].to(self.device)
        poses = self.aligner.correct(self._softened(rows), answer @ warps.to(self.device))
        return self_supervision(poses, answer, self.sample.frame)

    def _congeal(self, progress: float) -> tuple[torch.Tensor, dict[str, float]]:
        """D and C of a batch aligned from where it starts."""
        settings, sample = self.settings, self.sample
        count = settings.batch_size
        if settings.self_supervision:
            count = max(2, count // settings.congealing_share)
        rows = self._draw(torch.arange(len(sample.images)), count)
        # Large frames are looked at as small as the auto-encoder rebuilds them.
        images, template = self.small[rows].to(self.device), reduced(self.state.template.to(self.device), self.shrink)
        size, source_size = (template.shape[-2], template.shape[-1]), (images.shape[-2], images.shape[-1])
        pose = self.aligner.correct(self._softened(rows), sample.start[rows].to(self.device))[-1]
        aligned = warp(images, to_reduced(self.shrink, pose), size)
        masks = None if sample.masks is None else reduced(sample.masks[rows], self.shrink).to(self.device)
        weights = sample.image_features.weights(to_reduced(self.shrink, pose.detach()), source_size, size, masks)
        likeness = weighted_distortion(aligned, template, weights, by_ink=settings.normalise_ink)
        loss, values = settings.distortion_weight * likeness, {"distortion": float(likeness.detach())}
        if settings.complexity_weight > 0:
            if settings.train_apart:
                self._train_autoencoder(aligned.detach(), weights)
            if settings.remove_common_mode:
                aligned = warp(images, to_reduced(self.shrink, without_common_mode(pose, sample.frame)), size)
            cost = self._complexity(aligned, weights)
            values["complexity"] = float(cost.detach())
            loss = loss + settings.complexity_weight * self._ramp(progress) * self._in_units_of_d(cost, template)
        return loss, values

    def _complexity(self, aligned: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        settings = self.settings
        by_ink = settings.normalise_ink and self.sample.image_features.keeps_intensity
        self.autoencoder.requires_grad_(not settings.train_apart)
        cost = weighted_complexity(
            self.autoencoder,
            aligned,
            self.position,
            settings.capacity_penalty,
            weights,
            by_ink=by_ink,
            stop_gradient=by_ink and settings.train_apart,
        )
        self.autoencoder.requires_grad_(True)
        return cost

    def _in_units_of_d(self, cost: torch.Tensor, template: torch.Tensor) -> torch.Tensor:
        """Edges have no ink to lose: for them C is only brought to the unit of D."""
        if not self.settings.normalise_ink or self.sample.image_features.keeps_intensity:
            return cost
        return cost / (2 * template.abs().sum()).clamp(min=_LEAST)

    def _ramp(self, progress: float) -> float:
        """C's weight grows while the auto-encoder learns to rebuild."""
        begin, end = self.settings.complexity_ramp
        return 1.0 if end <= begin else min(1.0, max(0.0, (progress - begin) / (end - begin)))

    def _train_autoencoder(self, aligned: torch.Tensor, weights: torch.Tensor | None) -> None:
        """The auto-encoder's own step, on images that no gradient leads back from."""
        assert self.rebuilder is not None
        cost = weighted_complexity(self.autoencoder, aligned, self.position, self.settings.capacity_penalty, weights)
        self.rebuilder.zero_grad(set_to_none=True)
        cost.backward()
        self.rebuilder.step()

    # ---- a look at the whole sample

    @torch.no_grad()
    def look_at_all(self) -> None:
        """Ask the aligner for every image, keep what matches better than before, and renew the template."""
        settings, sample, before = self.settings, self.sample, float(self.state.scores.mean())
        blur, motion = settings.look_blur * frame_unit(sample.frame), at_most("affine", sample.motion)
        registration = self.state.registration(sample)

        def better(views: Views, start: torch.Tensor, pose: torch.Tensor) -> torch.Tensor:
            images = views.images.to(self.device)
            asked = self.aligner.predict(images, start.to(self.device), settings.passes).cpu()
            candidates = [
                registration.step_to_template(views, start, one, settings.look_steps, motion, blur)
                for one in (pose, asked)
            ]
            return registration.better(views, candidates)

        state = self.state.moved_to(sample, sample.map(better, self.state.poses), self.state.threshold)
        self.state = state.scored(sample).with_median_threshold(settings.slack)
        self.looks += 1
        gained = abs(float(self.state.scores.mean()) - before)
        still = self.looks > settings.first_looks and gained < settings.tolerance
        self.unchanged = self.unchanged + 1 if still else 0

    # ---- resume

    def checkpoint(self) -> dict[str, Any]:
        """Plain tensors and numbers from which training continues as if it had not stopped."""
        state = self.state
        return {
            "aligner": self.aligner.state_dict(),
            "autoencoder": self.autoencoder.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "rebuilder": self.rebuilder.state_dict() if self.rebuilder is not None else {},
            "generator": self.generator.get_state(),
            "tensors": {name: getattr(state, name) for name in ("template", "poses", "scores", "inliers")},
            "threshold": state.threshold,
            "prior": None if state.prior is None else state.prior.tensor(),
            "numbers": {name: getattr(self, name) for name in ("done", "looks", "unchanged")},
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Continue where `checkpoint` was taken."""
        self.aligner.load_state_dict(saved["aligner"])
        self.autoencoder.load_state_dict(saved["autoencoder"])
        self.optimiser.load_state_dict(saved["optimiser"])
        if self.rebuilder is not None:
            self.rebuilder.load_state_dict(saved["rebuilder"])
        self.generator.set_state(saved["generator"])
        prior = None if saved["prior"] is None else PosePrior(*saved["prior"])
        self.state = replace(self.state, **saved["tensors"], threshold=saved["threshold"], prior=prior)
        for name, value in saved["numbers"].items():
            setattr(self, name, value)
