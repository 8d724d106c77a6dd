"""Searching one image's pose against a template: random perturbations, steps towards it, the better of several."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from congeal.geometry import (
    coverage,
    from_normalised,
    homography_from_points,
    matrix_from_parameters,
    normalise,
    warp,
)
from congeal.geometry.matrix import Size, corners
from congeal.methods.appearance import blur
from congeal.methods.gaussnewton import GaussNewton, point_motion

NO_MATCH = -1.0
_INK_RANGE = (0.5, 2.0)


def random_warps(
    sigma: torch.Tensor, frame: Size, generator: torch.Generator, motion: str = "homography"
) -> torch.Tensor:
    """(B, 3, 3) warps of the frame whose corners move by N(0, σ²) of its side each, and once more together.

    sigma (B,). A smaller motion takes the part of that noise it can express. A draw that folds the frame over, or
    nearly does, is replaced by the identity.
    """
    n, corner = len(sigma), torch.as_tensor(corners(frame)).float()
    side = torch.tensor([frame[1], frame[0]], dtype=torch.float32)
    noise = torch.randn(n, 4, 2, generator=generator) + torch.randn(n, 1, 2, generator=generator)
    moved = noise * sigma[:, None, None] * side
    if motion != "homography":
        field = point_motion(corner, frame, motion).flatten(1)  # (k, 8)
        parameters = moved.flatten(1) @ torch.linalg.pinv(field)
        return from_normalised(matrix_from_parameters(parameters), frame)
    warps = torch.as_tensor(homography_from_points(corner.numpy(), (corner + moved).numpy()))
    depth = (torch.cat([corner, torch.ones(4, 1)], 1).double() @ warps[:, 2, :, None])[..., 0]
    folded = (depth.amin(1) < 0.2 * depth.amax(1)) | (torch.linalg.det(warps) / depth.mean(1) ** 3 < 0.02)
    warps[folded] = torch.eye(3, dtype=warps.dtype)
    return warps.float()


class Matcher:
    """Compares images with a template (C, h, w) and moves them towards it.

    objects: empty ground counts, and an image that lost or doubled its ink is no match. Otherwise only pixels that lie
    on the source image count.
    """

    def __init__(self, template: torch.Tensor, motion: str, *, objects: bool) -> None:
        self.template, self.motion, self.objects = template, motion, objects
        self.frame: Size = (template.shape[-2], template.shape[-1])

    def weights(
        self, images: torch.Tensor, poses: torch.Tensor, masks: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """Which pixels of the frame count: those under a mask (B, 1, H, W), or on the source image; None for all."""
        if masks is not None:
            return warp(masks, poses, self.frame)
        if self.objects:
            return None
        return coverage(poses, (images.shape[-2], images.shape[-1]), self.frame)

    def score(self, images: torch.Tensor, poses: torch.Tensor, masks: torch.Tensor | None = None) -> torch.Tensor:
        """(B,) normalised correlation with the template, or NO_MATCH where the pose makes no sense."""
        shown, weight = warp(images, poses, self.frame), self.weights(images, poses, masks)
        a, t = shown.flatten(1), self.template.flatten()[None]
        if weight is None:
            a = a - a.mean(1, keepdim=True)
            t = t - t.mean()
            value = (a @ t[0]) / (a.norm(dim=1) * t.norm()).clamp(min=1e-9)
        else:
            w = weight.expand_as(shown).flatten(1)
            total = w.sum(1, keepdim=True).clamp(min=1e-6)
            a = a - (w * a).sum(1, keepdim=True) / total
            t = t - (w * t).sum(1, keepdim=True) / total
            value = (w * a * t).sum(1) / ((w * a * a).sum(1) * (w * t * t).sum(1)).sqrt().clamp(min=1e-9)
        if self.objects:
            ink = shown.flatten(1).sum(1) / images.flatten(1).sum(1).clamp(min=1e-6)
            sound = (ink > _INK_RANGE[0]) & (ink < _INK_RANGE[1])
        else:
            sound = torch.ones_like(value, dtype=torch.bool) if weight is None else weight.mean((1, 2, 3)) > 0.5
        return torch.where(sound & torch.isfinite(value), value, torch.full_like(value, NO_MATCH))

    def towards(
        self,
        images: torch.Tensor,
        poses: torch.Tensor,
        steps: int,
        motion: str | None = None,
        sigma: float = 0.0,
        masks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`steps` Gauss-Newton steps; sigma blurs both sides, in frame pixels."""
        newton = GaussNewton(motion or self.motion, self.frame)
        line = newton.linearise(blur(self.template[None], sigma)[0])
        soft = blur(images, sigma)
        if self.objects and masks is None:
            return newton.descend(soft, poses, line, steps)
        for _ in range(steps):
            shown = warp(soft, poses, self.frame)
            delta = newton.delta(shown, line, self.weights(images, poses, masks))
            poses = normalise(newton.compose(poses, delta))
        return poses

    def better(
        self, images: torch.Tensor, candidates: Sequence[torch.Tensor], masks: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """For each image the candidate pose with the higher score, and that score."""
        scores = torch.stack([self.score(images, poses, masks) for poses in candidates])
        best, which = scores.max(0)
        return torch.stack(list(candidates))[which, torch.arange(len(images))], best


def taken(masks: torch.Tensor | None, rows: torch.Tensor) -> torch.Tensor | None:
    """Rows of masks, where there are any."""
    return None if masks is None else masks[rows]
