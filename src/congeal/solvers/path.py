"""The path that a camera took, without its jitter: a local line through the poses around each moment."""

from __future__ import annotations

import math

import torch

from congeal.geometry import from_normalised, invert, matrix_from_parameters
from congeal.geometry.matrix import Size, to_normalised
from congeal.geometry.motion import n_parameters, parameters_from_matrix

_REACH = 3.0  # standard deviations of the weights
# A Gaussian of this deviation, in units of N, lets half of what has a period of N through, and less of what is faster.
_DEVIATION = math.sqrt(math.log(2) / 2) / math.pi


@torch.no_grad()
def smoothed(views: torch.Tensor, period: float, motion: str, frame: Size) -> torch.Tensor:
    """Poses (n, 3, 3) view_from_output of a steady film, from view_from_frame of a shaky one.

    What changes within `period` views is taken out, slower motion is kept: the output moves along. A line is fitted
    around each view, not a mean, so that a steady drift stays one up to the ends.
    """
    n, deviation = len(views), _DEVIATION * period
    reach = min(n - 1, max(1, math.ceil(_REACH * deviation)))
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
