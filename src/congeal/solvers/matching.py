"""Searching one image's pose against a template: random perturbations, steps towards it, the better of several."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import avg_pool2d

from congeal.geometry import (
    coverage,
    from_normalised,
    homography_from_points,
    matrix_from_parameters,
    normalise,
    warp,
)
from congeal.geometry.matrix import Size, corners
from congeal.solvers.filters import EDGE_NOISE, blur, centre_window, scaling
from congeal.solvers.gauge import CHUNK_VALUES
from congeal.solvers.gaussnewton import GaussNewton, point_motion
from congeal.solvers.pose_prior import Plausible

NO_MATCH = -1.0
_INK_RANGE = (1 / 3, 3.0)  # a narrow or flat two needs more than twice its ink to become a typical one
_SMALL_FRAME = 40  # pixels a side, up to which there is nothing to win by looking at less


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


class Views:
    """A batch of images (B, C, H, W), with masks (B, 1, H, W) or None; shrunk and blurred on demand, each once."""

    def __init__(self, images: torch.Tensor, masks: torch.Tensor | None = None) -> None:
        self.images, self.masks = images, masks
        self._made: dict[tuple[int, float], torch.Tensor] = {}

    def __len__(self) -> int:
        return len(self.images)

    def at(self, shrink: int, sigma: float) -> torch.Tensor:
        """Images `shrink` times smaller; sigma in pixels of the result."""
        if shrink == 1 and sigma <= 0:
            return self.images
        if (shrink, sigma) not in self._made:
            self._made[shrink, sigma] = blur(shrunk(self.images, shrink), sigma)
        return self._made[shrink, sigma]

    def masks_at(self, shrink: int) -> torch.Tensor | None:
        return None if self.masks is None else shrunk(self.masks, shrink)

    def take(self, rows: torch.Tensor) -> Views:
        """Some of them, what was made included."""
        few = Views(self.images[rows], None if self.masks is None else self.masks[rows])
        few._made = {key: made[rows] for key, made in self._made.items()}
        return few


class Matcher:
    """Compares images with a template (C, h, w) and moves them towards it.

    objects: empty ground counts, and an image whose ink fell below a third or rose above three times is no match.
    Otherwise only pixels that lie on the source image count. plausible: which poses are to be expected, given where
    an image started.
    """

    def __init__(self, template: torch.Tensor, *, objects: bool, plausible: Plausible | None = None) -> None:
        self.template, self.objects, self.plausible = template, objects, plausible
        self.frame: Size = (template.shape[-2], template.shape[-1])

    def weights(
        self, source_size: Size, poses: torch.Tensor, masks: torch.Tensor | None = None, frame: Size | None = None
    ) -> torch.Tensor | None:
        """Which pixels of the frame count: those under a mask (B, 1, H, W), or on the source image; None for all."""
        if masks is not None:
            return warp(masks, poses, frame or self.frame)
        if self.objects:
            return None
        frame = frame or self.frame
        return coverage(poses, source_size, frame) * centre_window(frame).to(poses)

    def merit(self, views: Views, start: torch.Tensor, poses: torch.Tensor) -> torch.Tensor:
        """(B,) the score, less for a pose that is not to be expected of an image that started there."""
        scores = self.score(views, poses)
        if self.plausible is None:
            return scores
        return self.plausible.discount(scores, start, poses, centre_window(self.frame))

    def score(self, views: Views, poses: torch.Tensor) -> torch.Tensor:
        """(B,) normalised correlation with the template, or NO_MATCH where the pose makes no sense."""
        images = views.images
        shown, weight = warp(images, poses, self.frame), self.weights(_size(images), poses, views.masks)
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
            usual = 1.0 if views.masks is None else views.masks.mean((1, 2, 3))  # a mask may be small by itself
            sound = torch.ones_like(value, dtype=torch.bool) if weight is None else weight.mean((1, 2, 3)) > 0.5 * usual
        return torch.where(sound & torch.isfinite(value), value, torch.full_like(value, NO_MATCH))

    def towards(
        self, views: Views, start: torch.Tensor, poses: torch.Tensor, steps: int, motion: str, sigma: float = 0.0
    ) -> torch.Tensor:
        """`steps` Gauss-Newton steps from `poses`; sigma blurs both sides, in frame pixels.

        Large frames are looked at as much smaller as the blur allows.
        """
        shrink = 1 if max(self.frame) <= _SMALL_FRAME else min(max(1, int(sigma / 0.75)), max(self.frame) // 16)
        template = blur(shrunk(self.template[None], shrink), sigma / shrink)[0]
        images, frame = views.at(shrink, sigma / shrink), _size(template)
        newton = GaussNewton(motion, frame, robust=None if self.objects else EDGE_NOISE)
        line = newton.linearise(template)
        poses, start = at_size(shrink, poses), at_size(shrink, start)
        if self.objects and views.masks is None:
            block = max(1, CHUNK_VALUES // template.numel())  # what stays in cache between steps
            pieces = zip(images.split(block), poses.split(block), strict=True)
            poses = torch.cat([newton.descend(few, pose, line, steps) for few, pose in pieces]) if len(poses) else poses
        else:
            masks = views.masks_at(shrink)
            for _ in range(steps):
                shown, weights = warp(images, poses, frame), self.weights(_size(images), poses, masks, frame)
                prior = None
                if self.plausible is not None:
                    prior = self.plausible.pull(start, poses, frame, line.jacobian.shape[1])
                poses = normalise(newton.compose(poses, newton.delta(shown, line, weights, prior)))
        return normalise(scaling(shrink) @ poses @ scaling(1 / shrink))

    def better(self, views: Views, candidates: Sequence[torch.Tensor]) -> torch.Tensor:
        """For each image the candidate pose with the higher score."""
        which = torch.stack([self.score(views, poses) for poses in candidates]).argmax(0)
        return torch.stack(list(candidates))[which, torch.arange(len(views))]


def shrunk(images: torch.Tensor, shrink: int) -> torch.Tensor:
    """Pictures (..., H, W) `shrink` times smaller."""
    return images if shrink == 1 else avg_pool2d(images, shrink)


def at_size(shrink: int, poses: torch.Tensor) -> torch.Tensor:
    """stack_from_frame between pictures of stack and frame that are both `shrink` times smaller."""
    if shrink == 1:
        return poses
    return scaling(1 / shrink).to(poses) @ poses @ scaling(shrink).to(poses)


def _size(images: torch.Tensor) -> Size:
    return images.shape[-2], images.shape[-1]


def taken(masks: torch.Tensor | None, rows: torch.Tensor) -> torch.Tensor | None:
    """Rows of masks, where there are any."""
    return None if masks is None else masks[rows]
