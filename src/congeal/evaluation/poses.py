"""Numbers of the transforms alone: scale, plausibility of the scale, and the share of the frame outside the source.

Sizes are (height, width); matrices are (N,3,3), and each function names the direction it wants. Skipped images have
matrices of NaN and are left out of means.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from congeal.errors import CongealError
from congeal.evaluation.arrays import Array, Size, as_numpy
from congeal.evaluation.thresholds import MAX_SCALE_RATIO
from congeal.geometry import matrix
from congeal.rows import row_slices

_GRID = 32  # points along each side at which the coverage of a frame is counted
_ROWS = 1024  # images at a time
_MIN_DEPTH = 0.05  # of a corner, as a share of the depth at the centre: one that is nearer lies almost on the horizon


def mean_scale(matrices: Any, size: Size | None = None, start: Any = None) -> float:
    """Geometric mean of the `scales` of `aligned_from_source` matrices (N,3,3): above 1, the object was enlarged.

    Scales multiply, so their mean is geometric; and one failed image must not hide the scale of all others.
    """
    return geometric_mean(scales(matrices, size, start))


def scales(matrices: Any, size: Size | None = None, start: Any = None) -> NDArray[np.float64]:
    """(N,) the scale |det J|^½ of each image under its `aligned_from_source` matrix.

    J is the 2×2 Jacobian at the centre of the aligned frame of `size`; affine matrices have the same one everywhere and
    need no size. With `start`, the matrices (3,3) or (N,3,3) the alignment began with, each scale is relative to the
    initial gauge.
    """
    scale = _scales(as_numpy(matrices), size)
    return scale if start is None else scale / _scales(as_numpy(start), size)


def geometric_mean(values: NDArray[np.float64]) -> float:
    """Geometric mean of the values that are finite and positive; NaN if there are none."""
    known = values[np.isfinite(values) & (values > 0)]
    return float(np.exp(np.log(known).mean())) if known.size else float("nan")


def _scales(matrices: Array, size: Size | None) -> NDArray[np.float64]:
    rows = matrices.reshape(-1, 3, 3)
    scale = np.empty(len(rows))
    for part in row_slices(len(rows)):
        scale[part] = _scale(rows[part], size)
    return scale


def _scale(matrices: Array, size: Size | None) -> NDArray[np.float64]:
    m = matrices.astype(np.float64).reshape(-1, 3, 3)
    known = m[np.isfinite(m).all(axis=(1, 2))]
    if size is None and known[:, 2, :2].any():
        raise CongealError("the scale of a homography differs from place to place: give the size of the aligned frame")
    height, width = size or (1, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        back = matrix.invert(m)
        depth = back[:, 2] @ np.array([(width - 1) / 2, (height - 1) / 2, 1.0])
        return np.sqrt(np.abs(depth**3 / _determinant(back)))


def _determinant(m: Array) -> Array:
    return np.einsum("ni,ni->n", m[:, 0], np.cross(m[:, 1], m[:, 2]))


def out_of_frame(source_from_aligned: Any, source_sizes: Any, size: Size) -> NDArray[np.float64]:
    """(N,) share of each aligned frame of `size` that lies outside its source image.

    Direction: `source_from_aligned` (N,3,3), the one images are sampled with. source_sizes is (2,) or (N,2). Counted at
    up to 32×32 evenly spaced points; points behind the horizon of a homography count as outside.
    """
    m = as_numpy(source_from_aligned).astype(np.float64).reshape(-1, 3, 3)
    extent = np.broadcast_to(as_numpy(source_sizes).astype(np.float64), (len(m), 2))
    ys, xs = (((np.arange(k) + 0.5) * side / k - 0.5) for side, k in ((s, min(s, _GRID)) for s in size))
    grid = np.stack([*(axis.ravel() for axis in np.meshgrid(xs, ys)), np.ones(len(xs) * len(ys))])
    centre = np.array([(size[1] - 1) / 2, (size[0] - 1) / 2, 1.0])
    share = np.empty(len(m))
    for start in range(0, len(m), _ROWS):
        part = m[start : start + _ROWS]
        limit = extent[start : start + _ROWS, :, None]
        x, y, depth = np.moveaxis(part @ grid, 1, 0)
        ahead = np.sign(part[:, 2] @ centre)[:, None]
        x, y, depth = x * ahead, y * ahead, depth * ahead
        # multiplied out, so that nothing is divided by a depth of 0
        inside = (depth > 0) & (x >= -0.5 * depth) & (x <= (limit[:, 1] - 0.5) * depth)
        inside &= (y >= -0.5 * depth) & (y <= (limit[:, 0] - 0.5) * depth)
        share[start : start + _ROWS] = 1 - inside.mean(1)
    return np.where(np.isfinite(m).all(axis=(1, 2)), share, np.nan)


def frame_scales(stack_from_frame: Array, start: Array, frame: Size) -> NDArray[np.float64]:
    """(N,) scale of the whole frame of each image, relative to the start: 2 is twice as long and wide.

    Both matrices are stack_from_frame (N,3,3). The scale is that of the area that the frame covers in the image; NaN
    for frames that are folded or reach the horizon.
    """
    found, first = (np.asarray(m, dtype=np.float64) for m in (stack_from_frame, start))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt(np.abs(_area(first, frame) / _area(found, frame)))


def _area(stack_from_frame: Array, frame: Size) -> NDArray[np.float64]:
    """(N,) signed area of the frame in the image, NaN where it is not a convex quadrilateral in front of the viewer."""
    corners = matrix.corners(frame)
    centre = np.append(corners.mean(0), 1.0)
    depth = stack_from_frame[:, 2, :2] @ corners.T + stack_from_frame[:, 2, 2:]
    ahead = (depth / (stack_from_frame[:, 2] @ centre)[:, None] > _MIN_DEPTH).all(1)
    quad = matrix.map_points(stack_from_frame, corners)
    side = np.roll(quad, -1, axis=1) - quad
    following = np.roll(side, -1, axis=1)
    turns = side[..., 0] * following[..., 1] - side[..., 1] * following[..., 0]
    convex = (turns > 0).all(1) | (turns < 0).all(1)
    ahead_of = np.roll(quad, -1, axis=1)
    area = 0.5 * (quad[..., 0] * ahead_of[..., 1] - ahead_of[..., 0] * quad[..., 1]).sum(1)
    return np.where(ahead & convex, area, np.nan)


def implausible_scales(scales: NDArray[np.float64]) -> NDArray[np.bool_]:
    """(N,) True for images whose scale is not known, or more than `MAX_SCALE_RATIO` (3) times off the median."""
    known = np.isfinite(scales)
    if not known.any():
        return np.ones(len(scales), dtype=bool)
    with np.errstate(invalid="ignore"):
        off = np.abs(np.log(scales / np.median(scales[known])))
    return ~(off <= np.log(MAX_SCALE_RATIO))
