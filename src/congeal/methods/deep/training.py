"""Training the aligner: one plain loop over batches, with a look at the whole sample now and then.

What is learnt from:
  D  likeness of the aligned batch to the template,
  C  what an auto-encoder of low capacity fails to rebuild of it,
  S  answers the set gives itself: images that already match the template are moved by a random warp, and the aligner
     has to undo it. This is what reaches images that start too far away for D to have a useful slope.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from congeal.geometry import mean_matrix, normalise, warp
from congeal.images import Stack
from congeal.methods.deep.losses import complexity, distortion, self_supervision, without_common_mode
from congeal.methods.deep.networks import SmallAutoEncoder, Softening, positional_weights
from congeal.methods.deep.presets import make_networks
from congeal.methods.job import Job
from congeal.solvers.filters import oriented_gradients
from congeal.solvers.gauge import can_scale, set_kind
from congeal.solvers.matching import Matcher, Views, at_size, random_warps, shrunk, taken
from congeal.solvers.pose_prior import Plausible
from congeal.solvers.reference import medoid, reference_image

if TYPE_CHECKING:
    from congeal.methods.deep.congealing import DeepCongealing

_SEED_SHARE = 0.3  # of the sample: the images that match the reference best, from which everything else grows
_SEED_SLACK, _SLACK = 0.06, 0.08  # how far below the median score of the matching images an image still matches
_BATCH_MEMORY = 512  # images at once where no gradient is kept


class Trainer:
    """Everything that changes while fitting. `poses` are the best stack_from_frame known for the sample."""

    def __init__(self, settings: DeepCongealing, stack: Stack, device: torch.device) -> None:
        self.settings, self.frame, self.device = settings, stack.frame, device
        self.objects = set_kind(stack) == "object"
        self.generator = torch.Generator().manual_seed(settings.random_state)
        self.sample = sample = choose_sample(len(stack), settings.fit_sample, settings.random_state)
        self.images, self.masks = look(stack.images(sample), self.objects), stack.masks(sample)
        self.start = torch.as_tensor(stack.start[sample]).float()
        with torch.random.fork_rng():  # the user's own random numbers stay as they are
            torch.manual_seed(settings.random_state)
            aligner, autoencoder = make_networks(
                settings.preset, self.images.shape[1], self.frame, settings.motion, settings.code_size
            )
        self.aligner, self.autoencoder = aligner.to(device), autoencoder.to(device)
        if not settings.end_to_end_preset:
            shown = warp(self.images[:2000], self.start[:2000], self.frame)
            self.aligner.intensity.copy_(torch.stack([shown.mean(), shown.std().clamp(min=1e-3)]))
        self.shrink = autoencoder.shrink if isinstance(autoencoder, SmallAutoEncoder) else 1
        self.small = shrunk(self.images, self.shrink)
        self.softened = self.aligner.soften(self.images)  # once for all steps
        self.position = positional_weights(settings.code_size, settings.penalty_power).to(device)
        apart = settings.train_apart
        joint = list(self.aligner.parameters()) + ([] if apart else list(self.autoencoder.parameters()))
        self.optimiser = torch.optim.Adam(joint, lr=settings.learning_rate)
        self.rebuilder = torch.optim.Adam(self.autoencoder.parameters(), lr=2e-3) if apart else None
        self.step_number, self.refreshes, self.settled = 0, 0, 0
        self.holds_ink = self.objects and stack.size == stack.frame and can_scale(settings.motion)
        self.template = self._reference(stack)
        self.poses = self.start.clone()
        self.scores = torch.zeros(len(self.images))
        self.good = torch.ones(len(self.images), dtype=torch.bool)
        self.bar, self.stocked = 0.0, False

    # ---- where it starts

    def _reference(self, stack: Stack) -> torch.Tensor:
        reference = self.settings.reference
        if isinstance(reference, str) and reference == "auto":
            reference = medoid(stack, self.settings.random_state)
        if not self.objects and isinstance(reference, int | np.integer):
            picture = look(stack.images(np.array([reference])), objects=False)
            return warp(picture, torch.as_tensor(stack.start[int(reference)]).float(), self.frame)[0]
        image = reference_image(reference, stack, self.settings.random_state)
        return image if self.objects else look(image[None], objects=False)[0]

    @torch.no_grad()
    def begin(self) -> None:
        """First poses: plain steps towards the reference, then towards the mean of what matches it best."""
        if not self.settings.running_reference:
            self._rebuild_from_template()
            return
        unit = max(self.frame) / 28
        poses = self.start
        for motion, sigma, steps in (("translation", 3.0, 6), ("similarity", 2.5, 6), ("affine", 2.0, 8)):
            poses = self._towards(poses, steps, self._at_most(motion), sigma * unit)
        self._take_stock(poses, None)
        for _ in range(3):
            poses = self._towards(self.poses, 5, self._at_most("affine"), 1.5 * unit)
            self._take_stock(poses, None)
        self.bar = float(self.scores[self.good].median()) - _SEED_SLACK
        self._rebuild_from_template()

    def _at_most(self, motion: str) -> str:
        from congeal.geometry import MOTIONS

        return MOTIONS[min(MOTIONS.index(motion), MOTIONS.index(self.settings.motion))]

    def _take_stock(self, poses: torch.Tensor, bar: float | None) -> None:
        """Which images match (the best share without a bar), their common pose, and the template they make."""
        self.scores = self._each(lambda m, views, start, pose: m.score(views, pose), poses)
        if bar is None:
            bar = float(self.scores.quantile(1 - _SEED_SHARE))
        few = min(3, len(self.scores))
        bar = min(bar, float(self.scores.topk(few).values[-1]))
        self.good = self.scores >= bar
        self.poses, self.stocked = poses, True
        if self.settings.guards:
            self._fix_gauge()
        self.template = warp(self.images[self.good], self.poses[self.good], self.frame).mean(0)

    def _fix_gauge(self) -> None:
        """The matching images keep the mean pose of the start and, for objects, their ink."""
        wanted = mean_matrix(self.start.double(), self.frame)
        found = mean_matrix(self.poses[self.good].double(), self.frame)
        poses = normalise(self.poses.double() @ torch.linalg.inv(found) @ wanted).float()
        if self.holds_ink:
            images = self.images[self.good]
            ratio = float(warp(images, poses[self.good], self.frame).sum() / images.sum())
            z = math.sqrt(min(max(ratio, 0.5), 2.0))
            x, y = (self.frame[1] - 1) / 2, (self.frame[0] - 1) / 2
            poses = poses @ torch.tensor([[z, 0, x - z * x], [0, z, y - z * y], [0, 0, 1]])
        self.poses = poses

    def _rebuild_from_template(self) -> None:
        if isinstance(self.autoencoder, SmallAutoEncoder):
            self.autoencoder.template.data.copy_(shrunk(self.template, self.shrink))

    # ---- one step

    def train(self, job: Job) -> None:
        settings = self.settings
        for _ in range(self.step_number, settings.steps):
            if self.settled >= 2:  # nothing changes any more; also where a checkpoint says so
                break
            values = self.step()
            self.step_number += 1
            job.step(self.step_number, settings.steps, **values)
            if self._refresh_due():
                self.refresh()
            if job.due():
                job.save(self.state())

    def step(self) -> dict[str, float]:
        settings, progress = self.settings, self.step_number / self.settings.steps
        for group in self.optimiser.param_groups:
            group["lr"] = settings.learning_rate * self._rate(progress)
        loss = torch.zeros((), device=self.device)
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
        if settings.schedule != "constant":
            torch.nn.utils.clip_grad_norm_(self.aligner.parameters(), 1.0)
        self.optimiser.step()
        return {"loss": float(loss.detach())} | values

    def _rate(self, progress: float) -> float:
        if self.settings.schedule == "constant":
            return 1.0
        warm_up = min(1.0, (self.step_number + 1) / 50)
        return warm_up * max(0.02, 0.5 * (1 + math.cos(math.pi * progress)))

    def _draw(self, among: torch.Tensor, count: int) -> torch.Tensor:
        return among[torch.randint(len(among), (count,), generator=self.generator)]

    def _softened(self, rows: torch.Tensor) -> dict[Softening, torch.Tensor]:
        return {key: images[rows].to(self.device) for key, images in self.softened.items()}

    def _supervise(self, progress: float) -> torch.Tensor:
        """S: move images that match by a random warp, and ask the aligner to undo it."""
        rows = self._draw(torch.nonzero(self.good)[:, 0], self.settings.batch_size)
        reach = self.settings.max_misalignment * min(1.0, 0.3 + 0.7 * progress / 0.4)
        sigma = torch.rand(len(rows), generator=self.generator) * reach
        warps = random_warps(sigma, self.frame, self.generator, self.settings.motion)
        answer = self.poses[rows].to(self.device)
        poses = self.aligner.look(self._softened(rows), answer @ warps.to(self.device))
        return self_supervision(poses, answer, self.frame)

    def _congeal(self, progress: float) -> tuple[torch.Tensor, dict[str, float]]:
        """D and C of a batch aligned from where it starts."""
        settings = self.settings
        among = torch.arange(len(self.images))
        count = settings.batch_size if not settings.self_supervision else max(2, settings.batch_size // 4)
        rows = self._draw(among, count)
        # Large frames are looked at as small as the auto-encoder rebuilds them.
        images, template = self.small[rows].to(self.device), shrunk(self.template.to(self.device), self.shrink)
        size, source_size = (template.shape[-2], template.shape[-1]), (images.shape[-2], images.shape[-1])
        pose = self.aligner.look(self._softened(rows), self.start[rows].to(self.device))[-1]
        aligned = warp(images, at_size(self.shrink, pose), size)
        masks = None if self.masks is None else shrunk(self.masks[rows], self.shrink).to(self.device)
        matcher = Matcher(template, objects=self.objects)
        weights = matcher.weights(source_size, at_size(self.shrink, pose.detach()), masks)
        likeness = distortion(aligned, template, weights, by_ink=settings.normalise_ink)
        loss, values = settings.distortion_weight * likeness, {"distortion": float(likeness.detach())}
        if settings.complexity_weight > 0:
            if settings.train_apart:
                self._train_autoencoder(aligned.detach(), weights)
            if settings.remove_common_mode:
                aligned = warp(images, at_size(self.shrink, without_common_mode(pose, self.frame)), size)
            self.autoencoder.requires_grad_(not settings.train_apart)
            by_ink = settings.normalise_ink and self.objects
            cost = complexity(
                self.autoencoder,
                aligned,
                self.position,
                settings.capacity_penalty,
                weights,
                by_ink=by_ink,
                given=by_ink and settings.train_apart,
            )
            self.autoencoder.requires_grad_(True)
            values["complexity"] = float(cost.detach())
            if settings.normalise_ink and not self.objects:  # edges have no ink to lose: the unit of D is enough
                cost = cost / (2 * template.abs().sum()).clamp(min=1e-3)
            begin, end = settings.complexity_ramp
            ramp = 1.0 if end <= begin else min(1.0, max(0.0, (progress - begin) / (end - begin)))
            loss = loss + settings.complexity_weight * ramp * cost
        return loss, values

    def _train_autoencoder(self, aligned: torch.Tensor, weights: torch.Tensor | None) -> None:
        """The auto-encoder's own step, on images that no gradient leads back from."""
        assert self.rebuilder is not None
        cost = complexity(self.autoencoder, aligned, self.position, self.settings.capacity_penalty, weights)
        self.rebuilder.zero_grad(set_to_none=True)
        cost.backward()
        self.rebuilder.step()

    # ---- a look at the whole sample

    def _refresh_due(self) -> bool:
        if not self.settings.running_reference:
            return False
        every = max(1, self.settings.steps // (self.settings.refreshes + 1))
        return self.step_number % every == 0 and self.step_number < self.settings.steps

    @torch.no_grad()
    def refresh(self) -> None:
        """Ask the aligner for every image, keep what matches better than before, and renew the template."""
        before = float(self.scores.mean())
        unit = max(self.frame) / 28
        affine = self._at_most("affine")

        def settle(matcher: Matcher, views: Views, start: torch.Tensor, pose: torch.Tensor) -> torch.Tensor:
            asked = matcher.towards(views, start, self.predict(views.images, start), 3, affine, unit)
            return matcher.better(views, [matcher.towards(views, start, pose, 3, affine, unit), asked])

        self._take_stock(self._each(settle, self.poses), self.bar)
        self.scores = self._each(lambda m, views, start, pose: m.score(views, pose), self.poses)
        self.bar = float(self.scores[self.good].median()) - _SLACK
        self.refreshes += 1
        gained = float(self.scores.mean()) - before
        self.settled = self.settled + 1 if self.refreshes > 2 and abs(gained) < self.settings.tolerance else 0

    @torch.no_grad()
    def predict(self, images: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        """The aligner's answer, `passes` times over, each from where the last one ended."""
        pose = self.aligner.predict(images.to(self.device), start.to(self.device), self.settings.passes)
        return pose.cpu()

    def _towards(self, poses: torch.Tensor, steps: int, motion: str, sigma: float) -> torch.Tensor:
        return self._each(lambda m, views, start, pose: m.towards(views, start, pose, steps, motion, sigma), poses)

    def _each(self, work: Any, poses: torch.Tensor) -> torch.Tensor:
        """`work(matcher, views, start, poses)` over the sample, in pieces that stay in cache."""
        matcher = self._matcher(self.template)
        parts = torch.arange(len(self.images)).split(_BATCH_MEMORY)
        views = (Views(self.images[rows], taken(self.masks, rows)) for rows in parts)
        return torch.cat(
            [work(matcher, v, self.start[rows], poses[rows]) for v, rows in zip(views, parts, strict=True)]
        )

    def _matcher(self, template: torch.Tensor) -> Matcher:
        return Matcher(template, objects=self.objects, plausible=self.likely())

    def likely(self) -> Plausible | None:
        """Which poses the matching photographs make likely; objects on empty ground need no such help."""
        if self.objects or not self.stocked:
            return None
        return Plausible.from_poses(self.start[self.good], self.poses[self.good], self.frame)

    # ---- resume

    def state(self) -> dict[str, Any]:
        """Plain tensors and numbers from which training continues as if it had not stopped."""
        return {
            "aligner": self.aligner.state_dict(),
            "autoencoder": self.autoencoder.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "rebuilder": self.rebuilder.state_dict() if self.rebuilder is not None else {},
            "generator": self.generator.get_state(),
            "tensors": {n: getattr(self, n) for n in ("template", "poses", "scores", "good")},
            "numbers": {n: getattr(self, n) for n in ("step_number", "refreshes", "settled", "bar", "stocked")},
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.aligner.load_state_dict(state["aligner"])
        self.autoencoder.load_state_dict(state["autoencoder"])
        self.optimiser.load_state_dict(state["optimiser"])
        if self.rebuilder is not None:
            self.rebuilder.load_state_dict(state["rebuilder"])
        self.generator.set_state(state["generator"])
        for name, value in (state["tensors"] | state["numbers"]).items():
            setattr(self, name, value)


def choose_sample(n: int, most: int, random_state: int) -> np.ndarray:
    """Positions of the images the aligner learns from: all of them, or a seeded choice."""
    if n <= most:
        return np.arange(n)
    return np.sort(np.random.default_rng(random_state).choice(n, most, replace=False))


def look(images: torch.Tensor, objects: bool) -> torch.Tensor:
    """What is compared: the pixels of objects on empty ground, the edges of photographs."""
    return images if objects else oriented_gradients(images)
