"""Matrices, motions and warps: the only place where geometry is computed.

The pixel convention, written once:

* A point is (x, y), x to the right, y down, in pixels. (0, 0) is the *centre* of the top-left pixel, so an image of
  width w spans x from -0.5 to w - 0.5.
* A size is (height, width).
* A transform is a 3×3 matrix that acts on column vectors (x, y, 1). `b_from_a` maps points of a to points of b, and
  `c_from_a = c_from_b @ b_from_a`. The image b is *sampled* through `a_from_b`.
* Normalised coordinates put the origin at the centre of the frame and one unit at half its longer side, the same
  along both axes, so that a rotation stays a rotation in a frame that is not square.

Names that need torch (motions, warps) are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from congeal.geometry.matrix import (
    compose,
    corners,
    from_normalised,
    homography_from_points,
    identity,
    invert,
    map_points,
    mean_matrix,
    mean_of_parts,
    normalise,
    rescale,
    to_normalised,
)

if TYPE_CHECKING:
    from congeal.geometry.motion import MOTIONS, matrix_from_parameters, n_parameters, parameters_from_matrix
    from congeal.geometry.warping import coverage, sampling_grid, warp

__all__ = [
    "MOTIONS",
    "compose",
    "corners",
    "coverage",
    "from_normalised",
    "homography_from_points",
    "identity",
    "invert",
    "map_points",
    "matrix_from_parameters",
    "mean_matrix",
    "mean_of_parts",
    "n_parameters",
    "normalise",
    "parameters_from_matrix",
    "rescale",
    "sampling_grid",
    "to_normalised",
    "warp",
]

_HOME = dict.fromkeys(("MOTIONS", "matrix_from_parameters", "n_parameters", "parameters_from_matrix"), "motion")
_HOME |= dict.fromkeys(("coverage", "sampling_grid", "warp"), "warping")


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'congeal.geometry' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"congeal.geometry.{_HOME[name]}"), name)
    globals()[name] = value
    return value
