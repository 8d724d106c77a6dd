"""Where an object's ink lies: poses that give it the place, size and slant of another, at several turns.

Steps towards a template reach an object a few pixels away. The moments of its ink reach it from anywhere, up to a
turn, which is tried out.
"""

from __future__ import annotations

import math

import torch

_LEAST_SPREAD = 0.25  # square pixels: of a dot, or of nothing, there is no slant to speak of
_LEAST_INK = 1e-6


def ink_moments(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (B, C, H, W) → centre of their ink (B, 2) as (x, y), and its covariance (B, 2, 2), in float64."""
    ink = images.double().clamp(min=0).sum(1)
    y, x = (torch.arange(size, dtype=torch.float64) for size in ink.shape[-2:])
    columns, rows = ink.sum(1), ink.sum(2)
    total = rows.sum(1).clamp(min=_LEAST_INK)
    centre = torch.stack([(columns * x).sum(1), (rows * y).sum(1)], 1) / total[:, None]
    from_x, from_y = x - centre[:, :1], y - centre[:, 1:]
    xx = (columns * from_x.square()).sum(1) / total + _LEAST_SPREAD
    yy = (rows * from_y.square()).sum(1) / total + _LEAST_SPREAD
    xy = ((ink * from_x[:, None, :]).sum(2) * from_y).sum(1) / total
    return centre, torch.stack([xx, xy, xy, yy], 1).view(-1, 2, 2)


def poses_by_ink(
    images: torch.Tensor, template: torch.Tensor, start: torch.Tensor, turns: torch.Tensor
) -> torch.Tensor:
    """(B, T, 3, 3) affine stack_from_frame under which an image's ink has the moments of the template's (C, h, w).

    turns (T,) radians, from the turn that is nearest to `start` (B, 3, 3).
    """
    centre, spread = ink_moments(images)
    aim, aim_spread = ink_moments(template[None])
    root, aim_root = _root(spread), _root(aim_spread)
    linear = _inverse(root) @ _linear_at(start.double(), aim[0]) @ aim_root
    nearest = torch.atan2(linear[:, 1, 0] - linear[:, 0, 1], linear[:, 0, 0] + linear[:, 1, 1])
    angle = nearest[:, None] + turns.double()
    cos, sin = angle.cos(), angle.sin()
    turned = torch.stack([cos, -sin, sin, cos], -1).view(*angle.shape, 2, 2)
    moved = root[:, None] @ turned @ _inverse(aim_root)
    poses = torch.eye(3, dtype=torch.float64).repeat(*angle.shape, 1, 1)
    poses[..., :2, :2] = moved
    poses[..., :2, 2] = centre[:, None] - (moved * aim[0]).sum(-1)
    return poses.to(images.dtype)


def evenly_turned(reach: float, count: int) -> torch.Tensor:
    """`count` turns from −reach to reach, in degrees; radians."""
    return torch.linspace(-reach, reach, count, dtype=torch.float64) * (math.pi / 180)


def _root(matrix: torch.Tensor) -> torch.Tensor:
    """The symmetric root of positive matrices (B, 2, 2)."""
    least = _determinant(matrix).clamp(min=0).sqrt()
    trace = matrix[..., 0, 0] + matrix[..., 1, 1]
    eye = torch.eye(2, dtype=matrix.dtype)
    return (matrix + least[..., None, None] * eye) / (trace + 2 * least).sqrt()[..., None, None]


def _determinant(matrix: torch.Tensor) -> torch.Tensor:
    return matrix[..., 0, 0] * matrix[..., 1, 1] - matrix[..., 0, 1] * matrix[..., 1, 0]


def _inverse(matrix: torch.Tensor) -> torch.Tensor:
    swapped = torch.stack([matrix[..., 1, 1], -matrix[..., 0, 1], -matrix[..., 1, 0], matrix[..., 0, 0]], -1)
    return swapped.view(matrix.shape) / _determinant(matrix)[..., None, None]


def _linear_at(poses: torch.Tensor, point: torch.Tensor) -> torch.Tensor:
    """(B, 2, 2) derivative of (B, 3, 3) at a point (2,)."""
    landed = poses[:, :, :2] @ point + poses[:, :, 2]
    depth = landed[:, 2, None, None]
    return (poses[:, :2, :2] - landed[:, :2, None] * poses[:, 2:, :2] / depth) / depth
