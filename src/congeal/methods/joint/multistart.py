"""Multistart registration of each image alone to the template: Gauss-Newton from the pose so far, and for images with
low scores from the initial pose, from moments of an object's intensity, and from random perturbations.

Every image is registered from the same perturbations, so a result does not depend on its neighbours.
"""

from __future__ import annotations

import numpy as np
import torch

from congeal.execution import key_of
from congeal.execution.threads import single_torch_thread
from congeal.filters import frame_unit
from congeal.images import Stack
from congeal.memmap import allocate
from congeal.methods.fit_context import FitContext
from congeal.methods.joint.model import FittedModel
from congeal.registration.batching import chunks, stack_values
from congeal.registration.features import at_most
from congeal.registration.gauge import restricted
from congeal.registration.template_registration import (
    PosePrior,
    TemplateRegistration,
    Views,
    evenly_spaced_angles,
    moment_poses,
    random_warps,
)

COARSE_BLUR, COARSE_STEPS = 2.0, 8
"""Blur, in pixels of a 28-pixel frame, and Gauss-Newton steps of the coarse stage, which moves by at most an affine
motion: what is bent under blur fits anything. Ten steps gain 0.002 dB (MNIST threes, sevens under 20 % warps)."""
FINE_STEPS = 10
"""Gauss-Newton steps of the fine stage, without blur and with the full motion."""
RESTART_REACH = 0.2
"""Corner noise of the perturbations, as a share of the frame's side: the largest warps of the perspective protocol
are drawn with 0.3, and twenty draws reach those (threes and sevens under 10–30 % warps). The default of `restarts` is
16."""
RESTART_BATCH = 4
"""Perturbations that are tried together, half from the initial pose and half from the best so far."""
SAME_SCORE = 0.005
"""As many restarts as a batch that end at the same score, to within this, have found the optimum."""
MOMENT_TURNS, MOMENT_REACH_DEG, MOMENT_KEPT = 9, 60.0, 3
"""Rotations at which the moments of an object are matched to those of the template, how far they go, and how many of
them are refined (threes and sevens under 10–30 % warps)."""
RESTART_PRIOR_WIDTH = 8.0
"""An image that is restarted may lie this many times as far from the usual pose as others: of 530 photographs of one
person four had a box beside the face."""
IMAGES_PER_BATCH = 4
"""In usual batches: the few images that are registered again should still fill one."""


@torch.no_grad()
def register_each(
    stack: Stack, model: FittedModel, poses: torch.Tensor, restarts: int, random_state: int, context: FitContext
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Every image of a stack alone, from poses (n, 3, 3): poses, scores (n,) discounted by the prior, gains (n,)."""
    work, n = Multistart(stack, model, poses.numpy(), restarts, random_state), len(stack)
    found, scores, gain = (torch.from_numpy(allocate((n, *shape), np.float32)) for shape in ((3, 3), (), ()))
    with single_torch_thread() as threads:
        batches, values = register_batches(stack), stack_values(stack)
        context.map_images(work, batches, found, scores, gain, key=work.key, values=values, threads=threads)
    return found, scores, gain


def register_batches(stack: Stack) -> list[np.ndarray]:
    """Batches for any number of threads: sums over other batches differ in their last bits."""
    return chunks(stack, IMAGES_PER_BATCH, multiple=IMAGES_PER_BATCH)


class Multistart:
    """Registration of batches of images to the template of a model, in this process or another."""

    def __init__(self, stack: Stack, model: FittedModel, poses: np.ndarray, restarts: int, random_state: int) -> None:
        self.stack, self.model, self.motion, self.poses = stack, model, model.motion, poses
        self.restarts, self.random_state = restarts, random_state
        self.registration = TemplateRegistration(model.template, model.image_features, model.prior)
        prior = model.prior
        wide = None if prior is None else PosePrior(prior.centre, RESTART_PRIOR_WIDTH * prior.spread)
        self.wide_registration = TemplateRegistration(model.template, model.image_features, wide)
        self.unit = frame_unit(self.registration.frame)
        self.last_blur = model.image_features.last_blur(self.registration.frame)
        generator = torch.Generator().manual_seed(random_state)
        reach = torch.full((restarts,), RESTART_REACH, dtype=torch.float32)
        perturbations = random_warps(reach, self.registration.frame, generator, self.motion)
        self.perturbations = perturbations.split(RESTART_BATCH) if restarts else ()

    def key(self) -> str:
        """What the answer depends on, besides the images."""
        stack, options = self.stack, (self.restarts, self.random_state, self.poses)
        return key_of(type(self).__name__, self.model.key(), options, stack.kept, stack.start, stack.size, stack.frame)

    @torch.no_grad()
    def __call__(self, part: np.ndarray) -> tuple[torch.Tensor, ...]:
        """Poses, scores and gains of a batch of rows."""
        views = Views(self.model.image_features.features(self.stack.images(part)), self.stack.masks(part))
        start = torch.as_tensor(self.stack.start[part]).float()
        return self.register(views, start, torch.from_numpy(self.poses[part]).float())

    def register(
        self, views: Views, start: torch.Tensor, poses: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The best pose of each image, its score, and by how much restarts raised it. With `restarts=0` no image is
        registered again, neither from its initial pose nor from its moments."""
        found = self._descend(self.registration, views, start, poses)
        scores = self.registration.posterior_score(views, start, found)
        before = self.registration.posterior_score(views, start, poses)
        worse = before > scores
        found, scores = torch.where(worse[:, None, None], poses, found), torch.where(worse, before, scores)
        low = torch.nonzero(scores < self.model.scores.low_score)[:, 0]
        if not len(low) or not self.perturbations:
            return found, scores, torch.zeros_like(scores)
        better, higher = self._restart(views.take(low), start[low], found[low])
        # With a prior `higher` is discounted by the wide one and `scores` by the narrow one, and an unusual pose must
        # gain more than inliers vary by anyway.
        gain = higher - scores[low]
        taken = gain > (0.0 if self.model.prior is None else self.model.scores.deviation)
        rows = low[taken]
        found[rows], gains = better[taken], torch.zeros_like(scores)
        scores[rows], gains[rows] = higher[taken], gain[taken]
        return found, scores, gains

    def _restart(self, views: Views, start: torch.Tensor, poses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Images again from their initial pose, from their moments and from perturbations, until restarts agree."""
        registration = self.wide_registration
        best = poses.clone()
        scores, agreeing = registration.posterior_score(views, start, poses), torch.zeros(len(views), dtype=torch.long)

        def propose(rows: torch.Tensor, proposals: torch.Tensor, *, counts: bool = True) -> None:
            """Proposals (R, T, 3, 3) for some rows: refine them, and keep the best."""
            each = rows.repeat_interleave(proposals.shape[1])
            some, from_start = views.take(each), start[each]
            found = self._descend(registration, some, from_start, proposals.flatten(0, 1))
            each_score = registration.posterior_score(some, from_start, found).view(len(rows), -1)
            top, which = each_score.max(1)
            before, highest = scores[rows], torch.maximum(scores[rows], top)
            same = (each_score > highest[:, None] - SAME_SCORE).sum(1)
            agreeing[rows] = torch.where(highest > before + SAME_SCORE, 0, agreeing[rows]) + (same if counts else 0)
            won = top > before
            found = found.view(len(rows), -1, 3, 3)[torch.arange(len(rows)), which]
            best[rows[won]], scores[rows] = found[won], highest

        everyone = torch.arange(len(views))
        propose(everyone, start[:, None])
        if self.model.image_features.keeps_intensity:
            propose(everyone, self._moment_poses(views, start), counts=False)
        for perturbations in self.perturbations:
            rows = torch.nonzero((scores < self.model.scores.low_score) & (agreeing < RESTART_BATCH))[:, 0]
            if not len(rows):
                break
            half = len(perturbations) // 2
            origins = torch.stack([start[rows]] * half + [best[rows]] * (len(perturbations) - half), 1)
            propose(rows, origins @ perturbations)
        return best, scores

    def _moment_poses(self, views: Views, start: torch.Tensor) -> torch.Tensor:
        """(B, MOMENT_KEPT, 3, 3): the moments of each object brought to those of the template, at the rotations that
        match best."""
        n = len(views)
        intensity = views.images if views.masks is None else views.images * views.masks
        turned = moment_poses(
            intensity, self.registration.template, start, evenly_spaced_angles(MOMENT_REACH_DEG, MOMENT_TURNS)
        )
        each = torch.arange(n).repeat_interleave(MOMENT_TURNS)
        turned = restricted(turned.flatten(0, 1), start[each], self.motion, self.registration.frame).float()
        scores = self.wide_registration.posterior_score(views.take(each), start[each], turned).view(n, MOMENT_TURNS)
        best = scores.topk(MOMENT_KEPT, 1).indices
        return turned.view(n, MOMENT_TURNS, 3, 3)[torch.arange(n)[:, None], best]

    def _descend(
        self, registration: TemplateRegistration, views: Views, start: torch.Tensor, poses: torch.Tensor
    ) -> torch.Tensor:
        """Gauss-Newton to the template: a coarse blur with at most an affine motion, then the full motion."""
        blur = max(COARSE_BLUR * self.unit, self.last_blur)
        poses = registration.step_to_template(views, start, poses, COARSE_STEPS, at_most("affine", self.motion), blur)
        return registration.step_to_template(views, start, poses, FINE_STEPS, self.motion, self.last_blur)
