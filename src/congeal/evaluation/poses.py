"""Numbers of the transforms alone: scale, its plausibility, the share of the frame outside the source, and errors
against a known answer (true transforms, or landmarks that somebody marked).

Sizes are (height, width); matrices are (N,3,3), and each function names the direction it wants. Skipped images have
matrices of NaN and are left out of means.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from congeal.errors import CongealError
from congeal.evaluation.statistics import Array, as_numpy
from congeal.evaluation.thresholds import MAX_SCALE_RATIO
from congeal.geometry import matrix
from congeal.geometry.matrix import Size
from congeal.rows import row_slices

GRID_POINTS = 32
"""Points along each side at which the coverage of a frame is counted: it is known to a thousandth."""
GAUGE_ROUNDS = 20
"""Largest number of re-weighted least-squares rounds for the common transform of `corner_error`; ten are usual."""
OUTLYING_MEDIANS = 2.0
"""Images further off than this many medians count less towards that transform, in proportion."""


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
    rows = as_numpy(matrices).reshape(-1, 3, 3)
    height, width = size or (1, 1)
    scale = np.empty(len(rows))
    for part in row_slices(len(rows)):
        m = rows[part].astype(np.float64)
        if size is None and m[np.isfinite(m).all(axis=(1, 2)), 2, :2].any():
            raise CongealError(
                "the scale of a homography differs from place to place: give the size of the aligned frame"
            )
        with np.errstate(divide="ignore", invalid="ignore"):
            back = matrix.invert(m)
            depth = back[:, 2] @ np.array([(width - 1) / 2, (height - 1) / 2, 1.0])
            scale[part] = np.sqrt(np.abs(depth**3 / np.linalg.det(back)))
    return scale if start is None else scale / scales(start, size)


def geometric_mean(values: NDArray[np.float64]) -> float:
    """Geometric mean of the values that are finite and positive; NaN if there are none."""
    known = values[np.isfinite(values) & (values > 0)]
    return float(np.exp(np.log(known).mean())) if known.size else float("nan")


def out_of_frame(source_from_aligned: Any, source_sizes: Any, size: Size) -> NDArray[np.float64]:
    """(N,) share of each aligned frame of `size` that lies outside its source image.

    Direction: `source_from_aligned` (N,3,3), the one images are sampled with. source_sizes is (2,) or (N,2). Counted at
    up to 32×32 evenly spaced points; points behind the horizon of a homography count as outside.
    """
    m = as_numpy(source_from_aligned).astype(np.float64).reshape(-1, 3, 3)
    extent = np.broadcast_to(as_numpy(source_sizes).astype(np.float64), (len(m), 2))
    ys, xs = (((np.arange(k) + 0.5) * side / k - 0.5) for side, k in ((s, min(s, GRID_POINTS)) for s in size))
    grid = np.stack([*(axis.ravel() for axis in np.meshgrid(xs, ys)), np.ones(len(xs) * len(ys))])
    centre = np.array([(size[1] - 1) / 2, (size[0] - 1) / 2, 1.0])
    share = np.empty(len(m))
    for rows in row_slices(len(m), 1024):  # 1024 × 1024 points at a time, so that memory stays flat
        part, limit = m[rows], extent[rows, :, None]
        x, y, depth = np.moveaxis(part @ grid, 1, 0)
        ahead = np.sign(part[:, 2] @ centre)[:, None]
        x, y, depth = x * ahead, y * ahead, depth * ahead
        # multiplied out, so that nothing is divided by a depth of 0
        inside = (depth > 0) & (x >= -0.5 * depth) & (x <= (limit[:, 1] - 0.5) * depth)
        inside &= (y >= -0.5 * depth) & (y <= (limit[:, 0] - 0.5) * depth)
        share[rows] = 1 - inside.mean(1)
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
    ahead = (depth / (stack_from_frame[:, 2] @ centre)[:, None] > matrix.MIN_DENOMINATOR).all(1)
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


def corner_error(found: Any, truth: Any, size: Size) -> NDArray[np.float64]:
    """(N,) mean distance, in pixels of the true frame, between where four corners are and where they should be.

    found and truth are both `aligned_from_source` (N,3,3); `size` is the size of the true frame. Alignment has no
    preferred pose, so ONE homography G = found_from_true is removed first, the same for all images: least squares over
    all corners, re-weighted (Huber) so that a few lost images do not bend it, starting at the median corners. Errors
    are measured after mapping back through G, so shrinking everything does not make them smaller.
    """
    a, t = (as_numpy(m).astype(np.float64).reshape(-1, 3, 3) for m in (found, truth))
    if len(a) != len(t):
        raise CongealError(f"corner error compares as many matrices as there are true ones: {len(a)} against {len(t)}")
    errors = np.full(len(a), np.nan)
    known = np.isfinite(a).all(axis=(1, 2)) & np.isfinite(t).all(axis=(1, 2))
    if not known.any():
        return errors
    frame = matrix.corners(size)
    found_from_true = matrix.compose(a[known], matrix.invert(t[known]))
    landed = matrix.map_points(found_from_true, frame)
    gauge = matrix.homography_from_points(frame, np.median(landed, axis=0))
    for _ in range(GAUGE_ROUNDS):
        seen = matrix.map_points(matrix.invert(gauge)[None], landed)
        distance = np.linalg.norm(seen - frame, axis=-1).mean(-1)
        limit = OUTLYING_MEDIANS * float(np.median(distance)) + 1e-12
        weight = 1 / np.maximum(distance / limit, 1)
        centre = (weight[:, None, None] * seen).sum(0) / weight.sum()
        gauge = matrix.normalise(gauge @ matrix.homography_from_points(frame, centre))
    seen = matrix.map_points(matrix.invert(gauge)[None], landed)
    errors[known] = np.linalg.norm(seen - frame, axis=-1).mean(-1)
    return errors


def landmark_error(points: Any, left_eye: int = 0, right_eye: int = 1) -> dict[str, Any]:
    """Spread of landmarks in the aligned frame, in % of the distance between the two mean outer eye corners.

    points (N,P,2) are every image's landmarks mapped into the aligned frame; left_eye and right_eye are indices into P.
    Per landmark: mean over images of the distance to the landmark's centroid. Gives "mean" over images and landmarks,
    "median", "per_landmark" (P,), "per_image" (N,) and "eye_distance" in pixels. Images with NaN points are left out.
    """
    xy = as_numpy(points).astype(np.float64)
    if xy.ndim != 3 or xy.shape[-1] != 2:
        raise CongealError(f"landmarks must be (images, landmarks, 2), not {xy.shape}")
    known = np.isfinite(xy).all(axis=(1, 2))
    if not known.any():
        raise CongealError("no image has landmarks")
    centroid = xy[known].mean(0)
    eyes = float(np.linalg.norm(centroid[left_eye] - centroid[right_eye]))
    if eyes == 0:
        raise CongealError("the mean eye corners fall on one point, so there is no distance to measure by")
    percent = 100 * np.linalg.norm(xy - centroid, axis=-1) / eyes
    return {
        "mean": float(percent[known].mean()),
        "median": float(np.median(percent[known])),
        "per_landmark": percent[known].mean(0),
        "per_image": percent.mean(1),
        "eye_distance": eyes,
    }
