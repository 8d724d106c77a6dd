"""The training of `DPRC`: a DeSTNet learns to find poses from images that already match.

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
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from congeal.filters import frame_unit
from congeal.geometry import warp
from congeal.methods.checks import find_device
from congeal.methods.dprc.losses import (
    complexity,
    distortion,
    positional_weights,
    self_supervision,
    without_common_mode,
)
from congeal.methods.dprc.networks import DeSTNet, SmallAutoEncoder, Softening
from congeal.methods.fit_context import FitContext
from congeal.methods.joint.template import Sample, State
from congeal.registration.features import at_most
from congeal.registration.template_registration import PosePrior, Views, random_warps, reduced, to_reduced

if TYPE_CHECKING:
    from congeal.methods.dprc.estimator import DPRC

# All were chosen on threes and sevens under 0–30 % warps, 500 to 6,000 images.
WARM_UP_STEPS = 50
"""Steps in which the learning rate grows to its full value: Adam's first estimates are wild."""
LAST_RATE = 0.02
"""Share of the learning rate that is left at the end of the cosine."""
MAX_GRADIENT_NORM = 1.0
"""Gradients are cut to this norm: a batch of lost images must not undo what was learnt."""
AUTOENCODER_RATE = 2e-3
"""Learning rate of the auto-encoder, where it learns in steps of its own."""
FIRST_REACH = 0.3
"""Share of `max_misalignment` that the random warps of S have at first."""
FULL_REACH_AT = 0.4
"""Share of training from which on the warps of S go all the way."""
CONGEALING_SHARE = 4
"""D and C see a batch so many times smaller than S: they cost more and teach less."""
UPDATE_STEPS, UPDATE_BLUR = 3, 1.0
"""Gauss-Newton steps, and their blur in pixels of a 28-pixel frame, at each update of the template."""
FIRST_SLACK, SLACK = 0.06, 0.08
"""How far below the median score of the matching images an image still matches: at first, and after an update."""
FIRST_UPDATES = 2
"""Updates before training may stop early: at first scores change because the template does."""
PATIENCE = 2
"""Updates in a row without change after which training stops."""
INTENSITY_SAMPLE = 2000
"""Images from which the network's input is scaled to mean 0 and deviation 1."""
MIN_SPREAD = 1e-3
"""Values are divided by at least this: a blank set has no spread and no ink."""


class Trainer:
    """The loop, and everything that changes in it. The parameters are those of the estimator."""

    def __init__(self, method: DPRC, sample: Sample, state: State, networks: tuple[DeSTNet, SmallAutoEncoder]) -> None:
        self.method, self.sample, self.state, self.device = method, sample, state, find_device(method.device)
        self.generator = torch.Generator().manual_seed(method.random_state_)
        self.aligner, self.autoencoder = networks[0].to(self.device), networks[1].to(self.device)
        first = slice(INTENSITY_SAMPLE)
        shown = warp(sample.images[first], sample.start[first], sample.frame)
        self.aligner.intensity.copy_(torch.stack([shown.mean(), shown.std().clamp(min=MIN_SPREAD)]))
        self.shrink = self.autoencoder.shrink
        self.autoencoder.template.data.copy_(reduced(state.template, self.shrink))
        self.small = reduced(sample.images, self.shrink)
        self.softened = self.aligner.soften(sample.images)  # once for all steps
        self.position = positional_weights(method.code_size, method.penalty_power).to(self.device)
        own, rebuilding = list(self.aligner.parameters()), list(self.autoencoder.parameters())
        if not method.train_apart:
            own, rebuilding = own + rebuilding, []
        self.optimisers = [torch.optim.Adam(own, lr=method.learning_rate)]
        if rebuilding:
            self.optimisers.append(torch.optim.Adam(rebuilding, lr=AUTOENCODER_RATE))
        self.done, self.updates, self.unchanged = 0, 0, 0
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

    def _draw(self, among: torch.Tensor, count: int) -> torch.Tensor:
        return among[torch.randint(len(among), (count,), generator=self.generator)]

    def _softened(self, rows: torch.Tensor) -> dict[Softening, torch.Tensor]:
        return {key: images[rows].to(self.device) for key, images in self.softened.items()}

    def _supervise(self, progress: float) -> torch.Tensor:
        """S: move images that match by a random warp, and ask the aligner to undo it."""
        method = self.method
        rows = self._draw(torch.nonzero(self.state.inliers)[:, 0], method.batch_size)
        grown = FIRST_REACH + (1 - FIRST_REACH) * progress / FULL_REACH_AT
        reach = method.max_misalignment * min(1.0, grown)
        sigma = torch.rand(len(rows), generator=self.generator, dtype=torch.float32) * reach
        warps = random_warps(sigma, self.sample.frame, self.generator, self.sample.motion)
        answer = self.state.poses[rows].to(self.device)
        poses = self.aligner.correct(self._softened(rows), answer @ warps.to(self.device))
        return self_supervision(poses, answer, self.sample.frame)

    def _congeal(self, progress: float) -> tuple[torch.Tensor, dict[str, float]]:
        """D and C of a batch aligned from where it starts."""
        method, sample = self.method, self.sample
        count = method.batch_size
        if method.self_supervision:
            count = max(2, count // CONGEALING_SHARE)
        rows = self._draw(torch.arange(len(sample.images)), count)
        # Large frames are looked at as small as the auto-encoder rebuilds them.
        images, template = self.small[rows].to(self.device), reduced(self.state.template.to(self.device), self.shrink)
        size, source_size = (template.shape[-2], template.shape[-1]), (images.shape[-2], images.shape[-1])
        pose = self.aligner.correct(self._softened(rows), sample.start[rows].to(self.device))[-1]
        aligned = warp(images, to_reduced(self.shrink, pose), size)
        masks = None if sample.masks is None else reduced(sample.masks[rows], self.shrink).to(self.device)
        weights = sample.image_features.weights(to_reduced(self.shrink, pose.detach()), source_size, size, masks)
        likeness = distortion(aligned, template, weights, by_ink=method.normalise_ink)
        loss, values = method.distortion_weight * likeness, {"distortion": float(likeness.detach())}
        if method.complexity_weight > 0:
            if method.train_apart:
                self._train_autoencoder(aligned.detach(), weights)
            if method.remove_common_mode:
                aligned = warp(images, to_reduced(self.shrink, without_common_mode(pose, sample.frame)), size)
            cost = self._complexity(aligned, weights)
            values["complexity"] = float(cost.detach())
            if method.normalise_ink and not sample.image_features.keeps_intensity:
                # Edges have no ink to lose: for them C is only brought to the unit of D.
                cost = cost / (2 * template.abs().sum()).clamp(min=MIN_SPREAD)
            begin, end = method.complexity_ramp  # while the auto-encoder learns to rebuild
            ramp = 1.0 if end <= begin else min(1.0, max(0.0, (progress - begin) / (end - begin)))
            loss = loss + method.complexity_weight * ramp * cost
        return loss, values

    def _complexity(self, aligned: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        """C as the aligner sees it: an auto-encoder that learns in steps of its own is frozen, and divided by ink the
        gradient stops at the reconstruction, so that the image moves towards it."""
        method = self.method
        by_ink = method.normalise_ink and self.sample.image_features.keeps_intensity
        self.autoencoder.requires_grad_(not method.train_apart)
        rebuilt, code = self.autoencoder(aligned)
        if by_ink and method.train_apart:
            rebuilt = rebuilt.detach()
        cost = complexity(aligned, rebuilt, code, self.position, method.capacity_penalty, weights, by_ink=by_ink)
        self.autoencoder.requires_grad_(True)
        return cost

    def _train_autoencoder(self, aligned: torch.Tensor, weights: torch.Tensor | None) -> None:
        """The auto-encoder's own step, on images that no gradient leads back from."""
        rebuilt, code = self.autoencoder(aligned)
        cost = complexity(aligned, rebuilt, code, self.position, self.method.capacity_penalty, weights)
        self.optimisers[1].zero_grad(set_to_none=True)
        cost.backward()
        self.optimisers[1].step()

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
        self.updates += 1
        gained = abs(float(self.state.scores.mean()) - before)
        still = self.updates > FIRST_UPDATES and gained < method.tolerance
        self.unchanged = self.unchanged + 1 if still else 0

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
            "numbers": {name: getattr(self, name) for name in ("done", "updates", "unchanged", "threshold")},
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
