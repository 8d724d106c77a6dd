"""Moments of an object's intensity: initial poses that match those of a template, and normalised views.

Gauss-Newton reaches an object a few pixels away. Its first and second moments reach it from anywhere, up to a rotation.
"""

from __future__ import annotations

import math

import torch

from congeal.geometry.matrix import Size

MIN_VARIANCE_PX2 = 0.25
"""Added to the variances, so that the covariance of a dot can be inverted."""
MIN_TOTAL = 1e-6
"""Smallest total intensity that is divided by."""
VIEW_DEVIATIONS = 2.3
"""Half the side of the normalised view, in standard deviations of the intensity: a digit fills it."""
MAX_SHEAR = 0.7
"""Largest shear that is undone: a horizontal bar is no slanted vertical one."""
MIN_SPREAD_PX = 0.5
"""Smallest standard deviation of an object, so that a dot is not enlarged to fill the view."""


def intensity_moments(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (B, C, H, W) → centre of their ink (B, 2) as (x, y), and its covariance (B, 2, 2), in float64."""
    _, centre, xx, yy, xy = _moments(images.double().clamp(min=0).sum(1))
    return centre, torch.stack([xx + MIN_VARIANCE_PX2, xy, xy, yy + MIN_VARIANCE_PX2], 1).view(-1, 2, 2)


def _moments(ink: torch.Tensor) -> tuple[torch.Tensor, ...]:
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


def frame_from_view(shown: torch.Tensor, view: Size) -> torch.Tensor:
    """(B, 3, 3) for images (B, C, h, w) as the frame shows them: pixels of an upright view → pixels of the frame.

    The view is centred on the intensity, scaled by its spread and sheared by its slant: x + shear · y. An empty image
    is shown whole.
    """
    ink = shown.mean(1).double().clamp(min=0)
    height, width = ink.shape[-2:]
    total, centre, xx, yy, xy = _moments(ink)
    known = total > MIN_TOTAL
    shear = (xy / yy.clamp(min=MIN_SPREAD_PX**2)).clamp(-MAX_SHEAR, MAX_SHEAR)
    across = (xx - 2 * shear * xy + shear.square() * yy).clamp(min=0)
    spread = (across + yy).sqrt().clamp(min=MIN_SPREAD_PX)
    scale = torch.where(known, 2 * VIEW_DEVIATIONS * spread / max(view), max(height, width) / max(view))
    shear = torch.where(known, shear, 0)
    centre_x, centre_y = torch.where(known[:, None], centre, centre.new_tensor([width - 1, height - 1]) / 2).unbind(1)
    matrix = torch.zeros(len(ink), 3, 3, dtype=torch.float64)
    middle_x, middle_y = (view[1] - 1) / 2, (view[0] - 1) / 2
    matrix[:, 0, 0], matrix[:, 0, 1] = scale, shear * scale
    matrix[:, 0, 2] = centre_x - scale * middle_x - shear * scale * middle_y
    matrix[:, 1, 1], matrix[:, 1, 2] = scale, centre_y - scale * middle_y
    matrix[:, 2, 2] = 1
    return matrix
