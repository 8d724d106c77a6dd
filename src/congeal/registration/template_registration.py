"""Registration of single images to a template: scores, the prior on poses, Gauss-Newton steps, random perturbations.

The prior is estimated from the inliers of the set itself. Initial boxes of photographs are wrong in similar ways: most
are shifted a little, few are sheared. The spread of the inliers' motion parameters regularises images with little
evidence of their own (a profile, an occluded face).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn.functional import avg_pool2d

from congeal.evaluation.statistics import NORMAL_MAD
from congeal.filters import centre_window, gaussian_blur
from congeal.geometry import (
    from_normalised,
    homography_from_points,
    invert,
    matrix_from_parameters,
    normalise,
    rescale,
    to_normalised,
    warp,
)
from congeal.geometry.matrix import Size, corners
from congeal.geometry.motion import GENERATORS
from congeal.registration.batching import CHUNK_VALUES
from congeal.registration.features import ImageFeatures
from congeal.registration.gauss_newton import GaussNewton, point_motion

MAX_UNREDUCED_SIDE_PX = 40
"""Frames up to this size are not reduced: they fit into the cache as they are."""
MIN_BLUR_PX = 0.75
"""Blur, in pixels of the reduced image, below which reduction would alias."""
MIN_REDUCED_SIDE_PX = 16
"""Reduced images keep at least this many pixels along the longer side."""
MIN_DEPTH, MIN_AREA = 0.2, 0.02
"""Depth of the nearest corner and relative area of a random homography, below which it nearly folds the frame."""
MIN_DEVIATION = 0.01
"""Smallest standard deviation of a parameter, in units of the half frame: inliers may not have moved at all yet."""
PIXELS_PER_OBSERVATION = 20.0
"""Neighbouring pixels are correlated: this many count as one independent observation (faces of LFW)."""
MIN_VARIANCE_PX2 = 0.25
"""Added to the variances, so that the covariance of a dot can be inverted."""
MIN_TOTAL = 1e-6
"""Smallest total intensity that is divided by."""


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
    folded = depth.amin(1) < MIN_DEPTH * depth.amax(1)
    folded |= torch.linalg.det(warps) / depth.mean(1) ** 3 < MIN_AREA
    warps[folded] = torch.eye(3, dtype=warps.dtype)
    return warps.float()


def intensity_moments(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (B, C, H, W) → centre of their ink (B, 2) as (x, y), and its covariance (B, 2, 2), in float64."""
    _, centre, xx, yy, xy = moments_of(images.double().clamp(min=0).sum(1))
    return centre, torch.stack([xx + MIN_VARIANCE_PX2, xy, xy, yy + MIN_VARIANCE_PX2], 1).view(-1, 2, 2)


def moments_of(ink: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Of intensities (B, H, W): total, centre (B, 2), variance along x and along y, and covariance."""
    y, x = (torch.arange(size, dtype=torch.float64) for size in ink.shape[-2:])
    columns, rows = ink.sum(1), ink.sum(2)
    total = rows.sum(1).clamp(min=MIN_TOTAL)
    centre = torch.stack([(columns * x).sum(1), (rows * y).sum(1)], 1) / total[:, None]
    from_x, from_y = x - centre[:, :1], y - centre[:, 1:]
    xx, yy = (columns * from_x.square()).sum(1) / total, (rows * from_y.square()).sum(1) / total
    return total, centre, xx, yy, ((ink * from_x[:, None, :]).sum(2) * from_y).sum(1) / total


def moment_poses(
    images: torch.Tensor, template: torch.Tensor, start: torch.Tensor, turns: torch.Tensor
) -> torch.Tensor:
    """(B, T, 3, 3) affine stack_from_frame under which an image's ink has the moments of the template's (C, h, w).

    turns (T,) radians, from the turn that is nearest to `start` (B, 3, 3).
    """
    centre, spread = intensity_moments(images)
    aim, aim_spread = intensity_moments(template[None])
    root, aim_root = _root(spread), _root(aim_spread)
    linear = torch.linalg.inv(root) @ _linear_at(start.double(), aim[0]) @ aim_root
    nearest = torch.atan2(linear[:, 1, 0] - linear[:, 0, 1], linear[:, 0, 0] + linear[:, 1, 1])
    angle = nearest[:, None] + turns.double()
    cos, sin = angle.cos(), angle.sin()
    turned = torch.stack([cos, -sin, sin, cos], -1).view(*angle.shape, 2, 2)
    moved = root[:, None] @ turned @ torch.linalg.inv(aim_root)
    poses = torch.eye(3, dtype=torch.float64).repeat(*angle.shape, 1, 1)
    poses[..., :2, :2] = moved
    poses[..., :2, 2] = centre[:, None] - (moved * aim[0]).sum(-1)
    return poses.to(images.dtype)


def evenly_spaced_angles(reach: float, count: int) -> torch.Tensor:
    """`count` turns from −reach to reach, in degrees; radians."""
    return torch.linspace(-reach, reach, count, dtype=torch.float64) * (math.pi / 180)


def _root(matrix: torch.Tensor) -> torch.Tensor:
    """The symmetric root of positive matrices (B, 2, 2)."""
    least = torch.linalg.det(matrix).clamp(min=0).sqrt()[..., None, None]
    trace = matrix.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    return (matrix + least * torch.eye(2, dtype=matrix.dtype)) / (trace + 2 * least).sqrt()


def _linear_at(poses: torch.Tensor, point: torch.Tensor) -> torch.Tensor:
    """(B, 2, 2) derivative of (B, 3, 3) at a point (2,)."""
    landed = poses[:, :, :2] @ point + poses[:, :, 2]
    depth = landed[:, 2, None, None]
    return (poses[:, :2, :2] - landed[:, :2, None] * poses[:, 2:, :2] / depth) / depth


class Views:
    """A batch of images (B, C, H, W), with masks (B, 1, H, W) or None; reduced and blurred on demand, each once."""

    def __init__(self, images: torch.Tensor, masks: torch.Tensor | None = None) -> None:
        self.images, self.masks = images, masks
        self._made: dict[tuple[int, float], torch.Tensor] = {}

    def __len__(self) -> int:
        return len(self.images)

    def at(self, shrink: int, sigma: float) -> torch.Tensor:
        """Images reduced by the factor `shrink`; sigma in pixels of the result."""
        if shrink == 1 and sigma <= 0:
            return self.images
        if (shrink, sigma) not in self._made:
            self._made[shrink, sigma] = gaussian_blur(reduced(self.images, shrink), sigma)
        return self._made[shrink, sigma]

    def take(self, rows: torch.Tensor) -> Views:
        """Some rows, with their reduced images."""
        few = Views(self.images[rows], None if self.masks is None else self.masks[rows])
        few._made = {key: made[rows] for key, made in self._made.items()}
        return few


@dataclass
class PosePrior:
    """A Gaussian over the eight motion parameters of start⁻¹ · stack_from_frame."""

    centre: torch.Tensor  # (8,)
    spread: torch.Tensor  # (8,), standard deviations

    @classmethod
    def from_poses(cls, start: torch.Tensor, poses: torch.Tensor, frame: Size) -> PosePrior:
        """From poses (N, 3, 3) of inliers and their initial poses."""
        moved = parameters(start, poses, frame)
        centre = moved.median(0).values
        spread = NORMAL_MAD * (moved - centre).abs().median(0).values
        return cls(centre, (spread.square() + MIN_DEVIATION**2).sqrt())

    def tensor(self) -> torch.Tensor:
        """(2, 8), to keep it in a file."""
        return torch.stack([self.centre, self.spread])

    def pull(
        self, start: torch.Tensor, poses: torch.Tensor, frame: Size, count: int, prior_width: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """For a Gauss-Newton step in `count` parameters: deviations (B, count), and their precision (B or 1, count).

        The precision is per unit of residual variance. `frame` may be a smaller picture of the same frame. prior_width
        (B,): factors on the standard deviations of each image.
        """
        away, spread = parameters(start, poses, frame) - self.centre, self.spread[None, :count]
        spread = spread if prior_width is None else spread * prior_width[:, None]
        return away[:, :count], PIXELS_PER_OBSERVATION / spread.square()

    def discount(
        self, scores: torch.Tensor, start: torch.Tensor, poses: torch.Tensor, window: torch.Tensor
    ) -> torch.Tensor:
        """Correlations (B,) under a window (h, w), multiplied by the prior of the pose.

        A correlation s of n observations has the likelihood (1 − s²)^(−n/2); the result is the correlation of the same
        posterior.
        """
        frame = (window.shape[0], window.shape[1])
        away = (parameters(start, poses, frame) - self.centre) / self.spread
        observations = float(window.sum().square() / window.square().sum()) / PIXELS_PER_OBSERVATION
        exponent = (away.square().sum(1) / observations).clamp(max=50)  # beyond that every score is 0 anyway
        unexplained = (1 - scores.clamp(min=0).square()) * exponent.exp()
        return torch.where(scores > 0, (1 - unexplained).clamp(min=0).sqrt(), scores)


def parameters(start: torch.Tensor, poses: torch.Tensor, frame: Size) -> torch.Tensor:
    """(B, 8) motion parameters of start⁻¹ · pose: its logarithm to second order."""
    eye, basis = torch.eye(3).to(poses), GENERATORS.to(poses).reshape(8, 9)
    off = normalise(to_normalised(invert(start) @ poses, frame)) - eye
    log = (off - off @ off / 2).flatten(1)
    log = log - log[:, 8:] * eye.flatten()
    return (log @ basis.T) / basis.square().sum(1)


class TemplateRegistration:
    """Scores and registers images against a template (C, h, w).

    template: in the same features as the images. prior: regularises poses, given the initial ones.
    """

    def __init__(self, template: torch.Tensor, image_features: ImageFeatures, prior: PosePrior | None = None) -> None:
        self.template, self.image_features, self.prior = template, image_features, prior
        self.frame: Size = (template.shape[-2], template.shape[-1])

    def posterior_score(self, views: Views, start: torch.Tensor, poses: torch.Tensor) -> torch.Tensor:
        """(B,) the score combined with the prior on the pose, given the initial one."""
        scores = self.score(views, poses)
        if self.prior is None:
            return scores
        return self.prior.discount(scores, start, poses, centre_window(self.frame))

    def score(self, views: Views, poses: torch.Tensor) -> torch.Tensor:
        """(B,) normalised correlation with the template, or NO_MATCH where the pose is not admissible."""
        images = views.images
        shown = warp(images, poses, self.frame)
        weights = self.image_features.weights(poses, _size(images), self.frame, views.masks)
        usual = 1.0 if views.masks is None else views.masks.mean((1, 2, 3))
        return self.image_features.score(shown, self.template, images, weights, usual)

    def step_to_template(
        self, views: Views, start: torch.Tensor, poses: torch.Tensor, steps: int, motion: str, sigma: float = 0.0
    ) -> torch.Tensor:
        """`steps` Gauss-Newton steps from `poses`; sigma blurs both sides, in frame pixels.

        Large frames are reduced as far as the blur allows.
        """
        shrink = reduction_for(self.frame, sigma)
        template = gaussian_blur(reduced(self.template[None], shrink), sigma / shrink)[0]
        images, frame = views.at(shrink, sigma / shrink), _size(template)
        newton = GaussNewton(motion, frame, robust=self.image_features.robust)
        line = newton.linearise(template)
        poses, start = to_reduced(shrink, poses), to_reduced(shrink, start)
        uniform = self.image_features.empty_ground and views.masks is None and self.image_features.robust is None
        if uniform and self.prior is None:  # all pixels weigh alike: one Hessian for all images
            block = max(1, CHUNK_VALUES // template.numel())  # what stays in cache between steps
            pieces = zip(images.split(block), poses.split(block), strict=True)
            poses = torch.cat([newton.descend(few, pose, line, steps) for few, pose in pieces]) if len(poses) else poses
        else:
            masks = None if views.masks is None else reduced(views.masks, shrink)
            for _ in range(steps):
                weights = self.image_features.weights(poses, _size(images), frame, masks)
                shown, count = warp(images, poses, frame), line.jacobian.shape[1]
                prior = None if self.prior is None else self.prior.pull(start, poses, frame, count)
                poses = normalise(newton.compose(poses, newton.delta(shown, line, weights, prior)))
        return from_reduced(shrink, poses)


def reduction_for(frame: Size, sigma: float) -> int:
    """The factor by which a frame may be reduced at a blur of sigma frame pixels."""
    if max(frame) <= MAX_UNREDUCED_SIDE_PX:
        return 1
    return min(max(1, int(sigma / MIN_BLUR_PX)), max(frame) // MIN_REDUCED_SIDE_PX)


def reduced(images: torch.Tensor, shrink: int) -> torch.Tensor:
    """Images (..., H, W) reduced by the factor `shrink`, to at least one pixel."""
    height, width = _size(images)
    return images if shrink == 1 else avg_pool2d(images, (min(shrink, height), min(shrink, width)))


def to_reduced(shrink: int, poses: torch.Tensor) -> torch.Tensor:
    """stack_from_frame between stack and frame, both reduced by the factor `shrink`."""
    if shrink == 1:
        return poses
    return scaling(1 / shrink).to(poses) @ poses @ scaling(shrink).to(poses)


def from_reduced(shrink: int, poses: torch.Tensor) -> torch.Tensor:
    """The inverse of `to_reduced`."""
    if shrink == 1:
        return normalise(poses)
    return normalise(scaling(shrink).to(poses) @ poses @ scaling(1 / shrink).to(poses))


def reduced_size(size: Size, shrink: int) -> Size:
    """(height, width) of an image after `reduced`."""
    return max(1, size[0] // shrink), max(1, size[1] // shrink)


def _size(images: torch.Tensor) -> Size:
    return images.shape[-2], images.shape[-1]


def scaling(factor: float) -> torch.Tensor:
    """The matrix that makes a picture `factor` times as large, outer edges on outer edges."""
    return torch.as_tensor(rescale((1, 1), (factor, factor))).float()  # type: ignore[arg-type]
