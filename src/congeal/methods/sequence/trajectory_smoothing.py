"""Trajectory smoothing: local linear regression of the poses around each view."""

from __future__ import annotations

import math

import torch

from congeal.geometry import from_normalised, invert, matrix_from_parameters
from congeal.geometry.matrix import Size, to_normalised
from congeal.geometry.motion import n_parameters, parameters_from_matrix

KERNEL_RADIUS = 3.0
"""Radius of the Gaussian kernel in standard deviations."""
KERNEL_DEVIATION = math.sqrt(math.log(2) / 2) / math.pi
"""Standard deviation in units of the period: a Gaussian of it damps an oscillation of that period by half."""


@torch.no_grad()
def smooth_trajectory(views: torch.Tensor, period: float, motion: str, frame: Size) -> torch.Tensor:
    """Poses (n, 3, 3) view_from_output of a stabilised sequence, from view_from_frame.

    Motion with periods below `period` views is removed, slower motion is kept. A line is fitted around each view, not a
    mean, so that a constant drift is preserved up to the ends.
    """
    n, deviation = len(views), KERNEL_DEVIATION * period
    reach = min(n - 1, max(1, math.ceil(KERNEL_RADIUS * deviation)))
    frame_from_view = invert(views.double())
    k = n_parameters(motion)
    total, first, second = (torch.zeros(n, dtype=torch.float64) for _ in range(3))
    sums, tilted = (torch.zeros(n, k, dtype=torch.float64) for _ in range(2))
    for distance in range(-reach, reach + 1):
        rows = torch.arange(max(0, -distance), min(n, n - distance))
        weight = math.exp(-0.5 * (distance / deviation) ** 2)
        step = to_normalised(views[rows].double() @ frame_from_view[rows + distance], frame)  # view_from_that_view
        where = parameters_from_matrix(step, motion) if distance else torch.zeros(n, k, dtype=torch.float64)
        total[rows] += weight
        first[rows] += weight * distance
        second[rows] += weight * distance**2
        sums[rows] += weight * where
        tilted[rows] += weight * distance * where
    flat = total * second - first.square()
    level = (second[:, None] * sums - first[:, None] * tilted) / flat[:, None]
    return from_normalised(matrix_from_parameters(level), frame)
