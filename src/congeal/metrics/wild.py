"""Poses gone wild: what an alignment did to the frame of each image, and where that makes no sense."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from congeal.geometry import matrix
from congeal.metrics.arrays import Array, Size
from congeal.metrics.limits import WILD_SCALE

_AHEAD = 0.05  # of the depth at the centre: a corner that is nearer lies all but behind the horizon


def frame_scales(stack_from_frame: Array, start: Array, frame: Size) -> NDArray[np.float64]:
    """(N,) how much more of the frame the content of each image fills than at the start: 1 is unchanged, 2 is twice as
    long and wide. Both matrices are stack_from_frame (N,3,3).

    Told from the area that the whole frame covers in the image; NaN for frames that are folded or reach the horizon.
    """
    found, first = (np.asarray(m, dtype=np.float64) for m in (stack_from_frame, start))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt(np.abs(_area(first, frame) / _area(found, frame)))


def _area(stack_from_frame: Array, frame: Size) -> NDArray[np.float64]:
    """(N,) signed area of the frame in the image, NaN where it is not a convex quadrilateral in front of the viewer."""
    corners = matrix.corners(frame)
    centre = np.append(corners.mean(0), 1.0)
    depth = stack_from_frame[:, 2, :2] @ corners.T + stack_from_frame[:, 2, 2:]
    ahead = (depth / (stack_from_frame[:, 2] @ centre)[:, None] > _AHEAD).all(1)
    quad = matrix.map_points(stack_from_frame, corners)
    side = np.roll(quad, -1, axis=1) - quad
    following = np.roll(side, -1, axis=1)
    turns = side[..., 0] * following[..., 1] - side[..., 1] * following[..., 0]
    convex = (turns > 0).all(1) | (turns < 0).all(1)
    ahead_of = np.roll(quad, -1, axis=1)
    area = 0.5 * (quad[..., 0] * ahead_of[..., 1] - ahead_of[..., 0] * quad[..., 1]).sum(1)
    return np.where(ahead & convex, area, np.nan)


def wild(scales: NDArray[np.float64]) -> NDArray[np.bool_]:
    """(N,) True for images whose `frame_scales` are not known, or more than `WILD_SCALE` (3) times off the median."""
    known = np.isfinite(scales)
    if not known.any():
        return np.ones(len(scales), dtype=bool)
    with np.errstate(invalid="ignore"):
        off = np.abs(np.log(scales / np.median(scales[known])))
    return ~(off <= np.log(WILD_SCALE))
