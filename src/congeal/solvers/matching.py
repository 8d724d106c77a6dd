"""Searching one image's pose against a template: random perturbations, steps towards it, the better of several."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import avg_pool2d

from congeal.geometry import from_normalised, homography_from_points, matrix_from_parameters, normalise, warp
from congeal.geometry.matrix import Size, corners
from congeal.solvers.appearance import Appearance
from congeal.solvers.filters import blur, centre_window, scaling
from congeal.solvers.gaussnewton import GaussNewton, point_motion
from congeal.solvers.pose_prior import PosePrior
from congeal.solvers.streaming import CHUNK_VALUES

_SMALL_FRAME = 40  # pixels a side, up to which there is nothing to win by looking at less
_BLUR_PER_PIXEL = 0.75  # of blur, in pixels of the smaller picture: less would alias, more would be waste
_SMALLEST_SIDE = 16  # pixels a side that are left when a large frame is looked at smaller
_NEAREST, _FLATTEST = 0.2, 0.02  # depth of the nearest corner and area of a drawn warp: beyond them it is nearly folded


def random_warps(
    sigma: torch.Tensor, frame: Size, generator: torch.Generator, motion: str = "homography"
) -> torch.Tensor:
    """(B, 3, 3) warps of the frame whose corners move by N(0, σ²) of its side each, and once more together.

    sigma (B,). A smaller motion takes the part of that noise it can express. A draw that folds the frame over, or
    nearly does, is replaced by the identity.
    """
    n, corner = len(sigma), torch.as_tensor(corners(frame)).float()
    side = torch.tensor([frame[1], frame[0]], dtype=torch.float32)
    each, all_corners = (torch.randn(n, k, 2, generator=generator, dtype=torch.float32) for k in (4, 1))
    noise = each + all_corners
    moved = noise * sigma[:, None, None] * side
    if motion != "homography":
        field = point_motion(corner, frame, motion).flatten(1)  # (k, 8)
        parameters = moved.flatten(1) @ torch.linalg.pinv(field)
        return from_normalised(matrix_from_parameters(parameters), frame)
    warps = torch.as_tensor(homography_from_points(corner.numpy(), (corner + moved).numpy()))
    depth = (torch.cat([corner, torch.ones(4, 1, dtype=torch.float32)], 1).double() @ warps[:, 2, :, None])[..., 0]
    folded = depth.amin(1) < _NEAREST * depth.amax(1)
    folded |= torch.linalg.det(warps) / depth.mean(1) ** 3 < _FLATTEST
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
        """Masks `shrink` times smaller."""
        return None if self.masks is None else shrunk(self.masks, shrink)

    def take(self, rows: torch.Tensor) -> Views:
        """Some of them, what was made included."""
        few = Views(self.images[rows], None if self.masks is None else self.masks[rows])
        few._made = {key: made[rows] for key, made in self._made.items()}
        return few


class Matcher:
    """Compares images with a template (C, h, w) and moves them towards it.

    Parameters
    ----------
    template : (C, h, w) tensor
        In terms of what the appearance compares.
    appearance : Appearance
        What counts where, and which poses are sound.
    prior : PosePrior, optional
        Which poses are to be expected, given where an image started.
    """

    def __init__(self, template: torch.Tensor, appearance: Appearance, prior: PosePrior | None = None) -> None:
        self.template, self.appearance, self.prior = template, appearance, prior
        self.frame: Size = (template.shape[-2], template.shape[-1])

    def merit(self, views: Views, start: torch.Tensor, poses: torch.Tensor) -> torch.Tensor:
        """(B,) the score, less for a pose that is not to be expected of an image that started there."""
        scores = self.score(views, poses)
        if self.prior is None:
            return scores
        return self.prior.discount(scores, start, poses, centre_window(self.frame))

    def score(self, views: Views, poses: torch.Tensor) -> torch.Tensor:
        """(B,) normalised correlation with the template, or NO_MATCH where the pose makes no sense."""
        images = views.images
        shown = warp(images, poses, self.frame)
        weights = self.appearance.weights(poses, _size(images), self.frame, views.masks)
        usual = 1.0 if views.masks is None else views.masks.mean((1, 2, 3))
        return self.appearance.score(shown, self.template, images, weights, usual)

    def towards(
        self, views: Views, start: torch.Tensor, poses: torch.Tensor, steps: int, motion: str, sigma: float = 0.0
    ) -> torch.Tensor:
        """`steps` Gauss-Newton steps from `poses`; sigma blurs both sides, in frame pixels.

        Large frames are looked at as much smaller as the blur allows.
        """
        shrink = shrink_for(self.frame, sigma)
        template = blur(shrunk(self.template[None], shrink), sigma / shrink)[0]
        images, frame = views.at(shrink, sigma / shrink), _size(template)
        newton = GaussNewton(motion, frame, robust=self.appearance.robust)
        line = newton.linearise(template)
        poses, start = at_size(shrink, poses), at_size(shrink, start)
        alike = self.appearance.empty_ground and views.masks is None  # every pixel counts: one Hessian serves all
        if alike and self.appearance.robust is None and self.prior is None:
            block = max(1, CHUNK_VALUES // template.numel())  # what stays in cache between steps
            pieces = zip(images.split(block), poses.split(block), strict=True)
            poses = torch.cat([newton.descend(few, pose, line, steps) for few, pose in pieces]) if len(poses) else poses
        else:
            masks = views.masks_at(shrink)
            for _ in range(steps):
                shown, weights = warp(images, poses, frame), self.appearance.weights(poses, _size(images), frame, masks)
                prior = None
                if self.prior is not None:
                    prior = self.prior.pull(start, poses, frame, line.jacobian.shape[1])
                poses = normalise(newton.compose(poses, newton.delta(shown, line, weights, prior)))
        return from_size(shrink, poses)

    def better(self, views: Views, candidates: Sequence[torch.Tensor]) -> torch.Tensor:
        """For each image the candidate pose with the higher score."""
        which = torch.stack([self.score(views, poses) for poses in candidates]).argmax(0)
        return torch.stack(list(candidates))[which, torch.arange(len(views))]


def shrink_for(frame: Size, sigma: float) -> int:
    """How many times smaller a frame may be looked at, at a blur of sigma frame pixels."""
    if max(frame) <= _SMALL_FRAME:
        return 1
    return min(max(1, int(sigma / _BLUR_PER_PIXEL)), max(frame) // _SMALLEST_SIDE)


def shrunk(images: torch.Tensor, shrink: int) -> torch.Tensor:
    """Pictures (..., H, W) `shrink` times smaller, but at least one pixel wide and high."""
    height, width = _size(images)
    return images if shrink == 1 else avg_pool2d(images, (min(shrink, height), min(shrink, width)))


def at_size(shrink: int, poses: torch.Tensor) -> torch.Tensor:
    """stack_from_frame between pictures of stack and frame that are both `shrink` times smaller."""
    if shrink == 1:
        return poses
    return scaling(1 / shrink).to(poses) @ poses @ scaling(shrink).to(poses)


def from_size(shrink: int, poses: torch.Tensor) -> torch.Tensor:
    """The inverse of `at_size`."""
    if shrink == 1:
        return normalise(poses)
    return normalise(scaling(shrink).to(poses) @ poses @ scaling(1 / shrink).to(poses))


def shrunk_size(size: Size, shrink: int) -> Size:
    """(height, width) of what `shrunk` makes of a picture."""
    return max(1, size[0] // shrink), max(1, size[1] // shrink)


def _size(images: torch.Tensor) -> Size:
    return images.shape[-2], images.shape[-1]
