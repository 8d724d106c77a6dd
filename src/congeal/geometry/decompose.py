"""A matrix in words: how far it shifts, turns, scales and skews a picture."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from congeal.geometry.matrix import Size, corners, map_points


@dataclass(frozen=True)
class Parts:
    """What (N,3,3) matrices do at one point; every field is (N,), NaN where a matrix has NaN.

    shift_x, shift_y  where the point goes, in pixels, to the right and down
    rotation          of the x axis, in degrees, positive from x towards y (clockwise on a screen)
    scale             of lengths: the square root of the scale of areas; negative for a mirror image
    stretch           scale along x over scale along y
    skew              degrees by which the angle between the axes is less than a right angle
    corners           how far the corners of the frame go, in pixels: the mean of the four
    perspective       how many times larger the nearest corner is drawn than the farthest; 1 for affine matrices, NaN
                      where the horizon runs through the frame
    """

    shift_x: np.ndarray
    shift_y: np.ndarray
    rotation: np.ndarray
    scale: np.ndarray
    stretch: np.ndarray
    skew: np.ndarray
    corners: np.ndarray
    perspective: np.ndarray


def decompose(matrices: np.ndarray, size: Size) -> Parts:
    """(N,3,3) b_from_a in pixels, as seen at the centre of a frame of `size`.

    The 2×2 Jacobian J there is taken apart as J = rotation · [[sx, sx·tan(skew)], [0, sy]]. For affine matrices J is
    the same everywhere; a homography is described by its best affine approximation at the centre.
    """
    m = np.asarray(matrices, dtype=np.float64)
    x, y = (size[1] - 1) / 2, (size[0] - 1) / 2
    landed = map_points(m, np.array([[x, y]]))[:, 0]
    depth = m[:, 2] @ (x, y, 1.0)
    # d/dx of (row · p) / (row₂ · p), with the point itself put in for the quotient
    jacobian = (m[:, :2, :2] - landed[:, :, None] * m[:, 2:, :2]) / depth[:, None, None]
    (a, b), (c, d) = np.moveaxis(jacobian, 0, -1)
    outer = corners(size)
    depths = np.concatenate([outer, np.ones((4, 1))], axis=1) @ m[:, 2].T * np.sign(depth)  # (4, N)
    with np.errstate(divide="ignore", invalid="ignore"):
        ahead = depths.min(0) > 0
        along = np.hypot(a, c)
        determinant = a * d - b * c
        across = determinant / along
        return Parts(
            shift_x=landed[:, 0] - x,
            shift_y=landed[:, 1] - y,
            rotation=np.degrees(np.arctan2(c, a)),
            scale=np.sign(determinant) * np.sqrt(np.abs(determinant)),
            stretch=along / np.abs(across),
            skew=np.degrees(np.arctan((a * b + c * d) / np.abs(determinant))),
            corners=np.hypot(*np.moveaxis(map_points(m, outer) - outer, -1, 0)).mean(1),
            perspective=np.where(ahead, depths.max(0) / depths.min(0), np.nan),
        )
