"""The transform that brings a few points to where they belong."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from congeal.geometry.motion import MOTIONS


def transform_from_points(
    points: NDArray[np.float64], targets: NDArray[np.float64], motion: str
) -> NDArray[np.float64]:
    """(3, 3) that maps points (P, 2) to targets (P, 2) best in the least-squares sense, inside the motion.

    As free as the points allow: one point shifts, two also turn and scale, three or more also stretch and skew. Never
    with perspective: clicked points are too inexact for that.
    """
    rank = min(MOTIONS.index(motion), {1: 0, 2: 2}.get(len(points), 3))
    middle, goal = points.mean(0), targets.mean(0)
    p, q = points - middle, targets - goal
    spread = float((p**2).sum())
    linear = np.eye(2)
    if rank == MOTIONS.index("affine") and np.linalg.matrix_rank(p, tol=1e-6 * max(1.0, spread**0.5)) == 2:
        linear = np.linalg.lstsq(p, q, rcond=None)[0].T
    elif rank >= MOTIONS.index("rigid") and spread > 1e-12:
        along, across = float((p * q).sum()), float((p[:, 0] * q[:, 1] - p[:, 1] * q[:, 0]).sum())
        length = np.hypot(along, across)
        if length > 1e-12:
            scale = length / spread if rank >= MOTIONS.index("similarity") else 1.0
            linear = scale / length * np.array([[along, -across], [across, along]])
    matrix = np.eye(3)
    matrix[:2, :2], matrix[:2, 2] = linear, goal - linear @ middle
    return matrix
