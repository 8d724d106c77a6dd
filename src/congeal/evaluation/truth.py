"""Errors against a known answer: true transforms, or landmarks that somebody marked."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from congeal.errors import CongealError
from congeal.evaluation.arrays import Size, as_numpy
from congeal.geometry import matrix

# The common transform of `corner_error` is found by re-weighted least squares:
_ROUNDS = 20  # at most; five to ten are usual
_STILL = 1e-9  # it has settled when its corners move by less than this, in pixels
_OUTLYING = 2.0  # images further off than this many medians count less, in proportion


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
    for _ in range(_ROUNDS):
        seen = matrix.map_points(matrix.invert(gauge)[None], landed)
        distance = np.linalg.norm(seen - frame, axis=-1).mean(-1)
        limit = _OUTLYING * float(np.median(distance)) + 1e-12
        weight = 1 / np.maximum(distance / limit, 1)
        centre = (weight[:, None, None] * seen).sum(0) / weight.sum()
        gauge = matrix.normalise(gauge @ matrix.homography_from_points(frame, centre))
        if np.abs(centre - frame).max() < _STILL:
            break
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
