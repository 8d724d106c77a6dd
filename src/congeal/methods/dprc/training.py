"""The training of `DPRC`: a DeSTNet learns to find poses from images that already match.

Gauss-Newton steps reach images that start a few pixels away; a network reaches the others, and places new images in
milliseconds (docs/results.md, MNIST and perspective). It learns from
  D  likeness of the aligned batch to the template,
  C  what a small auto-encoder fails to rebuild of it,
  S  answers the set gives itself: images that already match are moved by a random warp, and the network has to undo it.
     This is what reaches images that start too far away for D to have a useful slope (docs/results.md, ablation).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from congeal.filters import frame_unit
from congeal.geometry import warp
from congeal.methods.checks import find_device
from congeal.methods.dprc.losses import (
    MIN_INK,
    complexity,
    distortion,
    positional_weights,
    self_supervision,
    without_common_mode,
)
from congeal.methods.dprc.networks import DeSTNet, SmallAutoEncoder
from congeal.methods.fit_context import FitContext
from congeal.methods.joint.template import Sample, State
from congeal.registration.features import at_most
from congeal.registration.template_registration import PosePrior, Views, random_warps

if TYPE_CHECKING:
    from congeal.methods.dprc.estimator import DPRC

# All were chosen on threes and sevens under 0–30 % warps, 500 to 6,000 images.
WARM_UP_STEPS = 50
"""Steps in which the learning rate grows to its full value: Adam's first estimates are wild."""
LAST_RATE = 0.02
"""Share of the learning rate at the end of the cosine: with none the last steps would be lost."""
MAX_GRADIENT_NORM = 1.0
"""Gradients are cut to this norm: a batch of lost images must not undo what was learnt."""
AUTOENCODER_RATE = 2e-3
"""Learning rate of the auto-encoder, where it learns in steps of its own."""
FIRST_REACH, FULL_REACH_AT = 0.3, 0.4
"""Share of `max_misalignment` that the random warps of S have at first, and share of training after which they have
all of it: small errors are learnt first."""
CONGEALING_SHARE = 4
"""D and C see a batch so many times smaller than S: they cost more and teach less."""
UPDATE_STEPS, UPDATE_BLUR = 3, 1.0
"""Gauss-Newton steps, and their blur in pixels of a 28-pixel frame, at each update of the template."""
FIRST_SLACK, SLACK = 0.06, 0.08
"""How far below the median score of the matching images an image still matches: at first, and after an update."""
PATIENCE = 2
"""Updates in a row without change after which training stops: at one alone a score may stand still by chance."""


class Trainer:
    """The loop, and everything that changes in it. The parameters are those of the estimator."""

    def __init__(self, method: DPRC, sample: Sample, state: State, networks: tuple[DeSTNet, SmallAutoEncoder]) -> None:
        self.method, self.sample, self.state, self.device = method, sample, state, find_device(method.device)
        self.generator = torch.Generator().manual_seed(method.random_state_)
        self.aligner, self.autoencoder = networks[0].to(self.device), networks[1].to(self.device)
        shown = warp(sample.images, sample.start, sample.frame)
        self.aligner.intensity.copy_(torch.stack([shown.mean(), shown.std().clamp(min=MIN_INK)]))
        self.autoencoder.template.data.copy_(state.template)
        self.blurred = self.aligner.blurred(sample.images)
        self.position = positional_weights(method.code_size, method.penalty_power).to(self.device)
        own, rebuilding = list(self.aligner.parameters()), list(self.autoencoder.parameters())
        if not method.train_apart:
            own, rebuilding = own + rebuilding, []
        self.optimisers = [torch.optim.Adam(own, lr=method.learning_rate)]
        if rebuilding:
            self.optimisers.append(torch.optim.Adam(rebuilding, lr=AUTOENCODER_RATE))
        self.done, self.unchanged = 0, 0
        self.threshold = float(state.scores[state.inliers].median()) - FIRST_SLACK

    def run(self, context: FitContext) -> None:
        """Steps, with an update of the template now and then, until nothing changes any more.

        Goes on where an interrupted fit was saved, and leaves the networks and the state as they are in the end.
        """
        saved = context.load()
        if saved is not None:
            self.restore(saved)
        method, first = self.method, self.done
        every = max(1, method.steps // (method.refreshes + 1))
        for _ in range(first, method.steps):
            if self.unchanged >= PATIENCE:  # also where a checkpoint says so
                context.ends_early(f"the images matched no better at {PATIENCE} updates in a row")
                break
            values = self.step()
            self.done += 1
            context.step(self.done, method.steps, **values)
            if method.running_reference and self.done % every == 0 and self.done < method.steps:
                self.update_template()
            if context.due():
                context.save(self.checkpoint())
        if self.done > first:
            context.save(self.checkpoint())

    # ---- one step

    def step(self) -> dict[str, float]:
        """One step of the aligner on S + D + C; gives the losses."""
        method, progress = self.method, self.done / self.method.steps
        optimiser, warm_up = self.optimisers[0], min(1.0, (self.done + 1) / WARM_UP_STEPS)
        for group in optimiser.param_groups:
            cosine = max(LAST_RATE, 0.5 * (1 + math.cos(math.pi * progress)))
            group["lr"] = method.learning_rate * (warm_up * cosine)
        loss = torch.zeros((), device=self.device, dtype=torch.float32)
        values: dict[str, float] = {}
        if method.self_supervision > 0:
            answers = self._supervise(progress)
            loss = loss + method.self_supervision * answers
            values["self_supervision"] = float(answers.detach())
        if method.distortion_weight > 0 or method.complexity_weight > 0:
            congealing, parts = self._congeal(progress)
            loss, values = loss + congealing, values | parts
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.aligner.parameters(), MAX_GRADIENT_NORM)
        optimiser.step()
        return {"loss": float(loss.detach())} | values

    def _ask(self, rows: torch.Tensor, poses: torch.Tensor) -> list[torch.Tensor]:
        """The aligner's answers for some images, level by level."""
        blurred = {sigma: images[rows].to(self.device) for sigma, images in self.blurred.items()}
        return self.aligner.correct(blurred, poses)

    def _supervise(self, progress: float) -> torch.Tensor:
        """S: move images that match by a random warp, and ask the aligner to undo it."""
        method = self.method
        among = torch.nonzero(self.state.inliers)[:, 0]
        rows = among[torch.randint(len(among), (method.batch_size,), generator=self.generator)]
        grown = FIRST_REACH + (1 - FIRST_REACH) * progress / FULL_REACH_AT
        reach = method.max_misalignment * min(1.0, grown)
        sigma = torch.rand(len(rows), generator=self.generator, dtype=torch.float32) * reach
        warps = random_warps(sigma, self.sample.frame, self.generator, self.sample.motion)
        answer = self.state.poses[rows].to(self.device)
        poses = self._ask(rows, answer @ warps.to(self.device))
        return self_supervision(poses, answer, self.sample.frame)

    def _congeal(self, progress: float) -> tuple[torch.Tensor, dict[str, float]]:
        """D and C of a batch aligned from where it starts."""
        method, sample = self.method, self.sample
        count = method.batch_size
        if method.self_supervision:
            count = max(2, count // CONGEALING_SHARE)
        rows = torch.randint(len(sample.images), (count,), generator=self.generator)
        images, template = sample.images[rows].to(self.device), self.state.template.to(self.device)
        source_size = (images.shape[-2], images.shape[-1])
        pose = self._ask(rows, sample.start[rows].to(self.device))[-1]
        aligned = warp(images, pose, sample.frame)
        masks = None if sample.masks is None else sample.masks[rows].to(self.device)
        weights = sample.image_features.weights(pose.detach(), source_size, sample.frame, masks)
        likeness = distortion(aligned, template, weights, by_ink=method.normalise_ink)
        loss, values = method.distortion_weight * likeness, {"distortion": float(likeness.detach())}
        if method.complexity_weight > 0:
            if method.train_apart:  # the auto-encoder's own step, on images that no gradient leads back from
                rebuilt, code = self.autoencoder(aligned.detach())
                own = complexity(aligned.detach(), rebuilt, code, self.position, method.capacity_penalty, weights)
                self.optimisers[1].zero_grad(set_to_none=True)
                own.backward()
                self.optimisers[1].step()
            if method.remove_common_mode:
                aligned = warp(images, without_common_mode(pose, sample.frame), sample.frame)
            # An auto-encoder that learns in steps of its own is frozen here; divided by ink the gradient stops at the
            # reconstruction, so that the image moves towards it.
            by_ink = method.normalise_ink and sample.image_features.keeps_intensity
            self.autoencoder.requires_grad_(not method.train_apart)
            rebuilt, code = self.autoencoder(aligned)
            rebuilt = rebuilt.detach() if by_ink and method.train_apart else rebuilt
            how = (self.position, method.capacity_penalty, weights)
            cost = complexity(aligned, rebuilt, code, *how, by_ink=by_ink)
            self.autoencoder.requires_grad_(True)
            values["complexity"] = float(cost.detach())
            if method.normalise_ink and not by_ink:
                # Edges have no ink to lose: for them C is only brought to the unit of D.
                cost = cost / (2 * template.abs().sum()).clamp(min=MIN_INK)
            begin, end = method.complexity_ramp  # while the auto-encoder learns to rebuild
            ramp = 1.0 if end <= begin else min(1.0, max(0.0, (progress - begin) / (end - begin)))
            loss = loss + method.complexity_weight * ramp * cost
        return loss, values

    # ---- an update on the whole sample

    @torch.no_grad()
    def update_template(self) -> None:
        """Ask the aligner for every image, keep what matches better than before, and renew the template."""
        method, sample, before = self.method, self.sample, float(self.state.scores.mean())
        blur, motion = UPDATE_BLUR * frame_unit(sample.frame), at_most("affine", sample.motion)
        registration = self.state.registration(sample)

        def better(views: Views, start: torch.Tensor, pose: torch.Tensor) -> torch.Tensor:
            images = views.images.to(self.device)
            asked = self.aligner.predict(images, start.to(self.device), method.passes).cpu()
            candidates = [
                registration.step_to_template(views, start, one, UPDATE_STEPS, motion, blur) for one in (pose, asked)
            ]
            best = torch.stack([registration.score(views, one) for one in candidates]).argmax(0)
            return torch.stack(candidates)[best, torch.arange(len(views))]

        self.state = self.state.moved_to(sample, sample.map(better, self.state.poses), self.threshold).scored(sample)
        self.threshold = float(self.state.scores[self.state.inliers].median()) - SLACK
        gained = abs(float(self.state.scores.mean()) - before)
        self.unchanged = self.unchanged + 1 if gained < method.tolerance else 0

    # ---- resume

    def checkpoint(self) -> dict[str, Any]:
        """Plain tensors and numbers from which training continues as if it had not stopped."""
        state = self.state
        return {
            "aligner": self.aligner.state_dict(),
            "autoencoder": self.autoencoder.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            "generator": self.generator.get_state(),
            "tensors": {name: getattr(state, name) for name in ("template", "poses", "scores", "inliers")},
            "prior": None if state.prior is None else state.prior.tensor(),
            "numbers": {name: getattr(self, name) for name in ("done", "unchanged", "threshold")},
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Continue where `checkpoint` was taken."""
        self.aligner.load_state_dict(saved["aligner"])
        self.autoencoder.load_state_dict(saved["autoencoder"])
        for optimiser, state in zip(self.optimisers, saved["optimisers"], strict=True):
            optimiser.load_state_dict(state)
        self.generator.set_state(saved["generator"])
        prior = None if saved["prior"] is None else PosePrior(*saved["prior"])
        self.state = replace(self.state, **saved["tensors"], prior=prior)
        for name, value in saved["numbers"].items():
            setattr(self, name, value)
