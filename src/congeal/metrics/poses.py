"""What the transforms alone tell: how much they enlarge the object, and how much of the frame they leave empty.

Sizes are (height, width); matrices are (N,3,3), and each function names the direction it wants. Skipped images have
matrices of NaN and are left out of means.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from congeal.errors import CongealError
from congeal.geometry import matrix
from congeal.mapped import runs
from congeal.metrics.arrays import Array, Size, as_numpy

_GRID = 32  # points along each side at which a frame is looked at
_ROWS = 1024  # images at a time


def mean_scale(matrices: Any, size: Size | None = None, start: Any = None) -> float:
    """Geometric mean of the `scales` of `aligned_from_source` matrices (N,3,3): above 1, the object was enlarged.

    Scales multiply, so their mean is geometric; and one image gone wild must not hide what all the others do.
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
    for part in runs(len(rows)):
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
