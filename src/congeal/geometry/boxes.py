"""Boxes: of things in images, and of what a set of images covers in the frame they are aligned in.

A box in an image is (x, y, width, height) in pixels by its outer edges: (0, 0, image width, image height) is all of it.
A `Box` of a frame is in whole pixels.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from congeal.geometry.matrix import MIN_DENOMINATOR, Size, corners, invert, map_points
from congeal.rows import row_slices

ROUNDING_PX = 1e-3
"""What rounding may do to an edge, in pixels."""


class Box(NamedTuple):
    """Whole pixels of a frame: the column and row of the first one, which may lie outside, and (height, width)."""

    left: int
    top: int
    size: Size

    @property
    def box_from_frame(self) -> np.ndarray:
        """(3, 3): the shift that makes the first pixel of the box pixel (0, 0)."""
        return np.array([[1.0, 0, -self.left], [0, 1, -self.top], [0, 0, 1]])


def centred(frame: Size, size: Size) -> Box:
    """A box of this size in the middle of a frame, or around it."""
    return Box((frame[1] - size[1]) // 2, (frame[0] - size[0]) // 2, size)


def reached(frame_from_source: np.ndarray, sizes: np.ndarray) -> Box | None:
    """The smallest box that holds all of these images (N, 3, 3), of sizes (N, 2); None if none of them lies anywhere.

    Images with a corner behind their horizon reach to infinity and are left out.
    """
    low, high = np.full(2, np.inf), np.full(2, -np.inf)
    for part in row_slices(len(sizes)):
        matrices, some = frame_from_source[part], sizes[part]
        outer = corners((1, 1)) + 0.5
        points = outer * some[:, None, ::-1] - 0.5
        depth = points @ matrices[:, 2, :2, None] + matrices[:, 2, 2, None, None]
        ahead = (depth > MIN_DENOMINATOR * np.abs(depth.mean(1, keepdims=True))).all((1, 2))
        if ahead.any():
            found = map_points(matrices[ahead], points[ahead]).reshape(-1, 2)
            low, high = np.minimum(low, found.min(0)), np.maximum(high, found.max(0))
    if not np.isfinite([low, high]).all():
        return None
    left, top = np.floor(low + 0.5 + ROUNDING_PX).astype(int).tolist()
    right, bottom = np.ceil(high + 0.5 - ROUNDING_PX).astype(int).tolist()
    return Box(left, top, (bottom - top, right - left))


def shared(frame_from_source: np.ndarray, sizes: np.ndarray, frame: Size) -> Box | None:
    """The largest box of a frame in which every pixel lies inside every image; None if there is no such pixel.

    A pixel of the frame is inside an image if its centre is inside the outermost pixel centres: five linear conditions,
    so what all images cover is convex, and a box between two rows is as wide as the narrower of them allows.
    """
    rows = np.arange(frame[0], dtype=float)
    left, right = np.zeros(frame[0]), np.full(frame[0], frame[1] - 1.0)
    for part in row_slices(len(sizes), max(1, 2_000_000 // frame[0])):  # so that memory stays flat
        conditions = _inside(invert(frame_from_source[part]), sizes[part], frame)
        least, most = _between(conditions, rows)
        left, right = np.maximum(left, least), np.minimum(right, most)
    first_column, last_column = np.ceil(left - ROUNDING_PX), np.floor(right + ROUNDING_PX)
    best, box = 0.0, None
    for top in np.flatnonzero(first_column <= last_column):
        start = np.maximum(first_column[top], first_column[top:])
        width = np.minimum(last_column[top], last_column[top:]) - start + 1
        area = np.maximum(width, 0) * np.arange(1, len(width) + 1)
        row = int(area.argmax())
        if area[row] > best:
            best, box = float(area[row]), Box(int(start[row]), int(top), (row + 1, int(width[row])))
    return box


def _inside(source_from_frame: np.ndarray, sizes: np.ndarray, frame: Size) -> np.ndarray:
    """(5 N, 3): a · (x, y, 1) ≥ 0 for pixels of the frame that are inside images (N, 2) of these sizes."""
    centre = np.array([(frame[1] - 1) / 2, (frame[0] - 1) / 2, 1])
    depth = source_from_frame[:, 2] @ centre
    matrices = source_from_frame / np.where(np.abs(depth) < 1e-12, 1e-12, depth)[:, None, None]
    x, y, ahead = matrices[:, 0], matrices[:, 1], matrices[:, 2]
    height, width = (sizes[:, axis, None] - 1.0 for axis in (0, 1))
    return np.concatenate([x, width * ahead - x, y, height * ahead - y, ahead - [0, 0, MIN_DENOMINATOR]])


def _between(conditions: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each row, the least and the most x that meet all conditions (K, 3)."""
    slope = conditions[:, 0]
    rest = conditions[:, 1, None] * rows + conditions[:, 2, None]
    flat = np.abs(slope) < 1e-12
    with np.errstate(divide="ignore", invalid="ignore"):
        bound = -rest / slope[:, None]
    least = np.where((slope > 0)[:, None] & ~flat[:, None], bound, -np.inf).max(0)
    most = np.where((slope < 0)[:, None] & ~flat[:, None], bound, np.inf).min(0)
    never = (flat[:, None] & (rest < -ROUNDING_PX)).any(0)
    return np.where(never, np.inf, least), np.where(never, -np.inf, most)


# ---- boxes in images


def grow_boxes(boxes: NDArray[np.float64], share: float) -> NDArray[np.float64]:
    """(N,4) boxes whose sides are 1 + share times as long, about the same centres; they may leave the image."""
    x, y, width, height = boxes.T
    wider, higher = share * width, share * height
    return np.stack([x - wider / 2, y - higher / 2, width + wider, height + higher], axis=1)


def fit_boxes(boxes: NDArray[np.float64]) -> tuple[NDArray[np.float64], Size]:
    """(N,3,3) `frame_from_image` that fit each box (N,4) into one frame, and that frame's (height, width).

    The frame has the median size of the boxes. Rows with NaN are images without a box; their matrices are NaN.
    """
    known = np.isfinite(boxes).all(1)
    x, y, width, height = boxes[known].T
    frame = (max(1, round(float(np.median(height)))), max(1, round(float(np.median(width)))))
    matrices = np.full((len(boxes), 3, 3), np.nan)
    scale_x, scale_y = frame[1] / width, frame[0] / height
    matrices[known] = np.eye(3)
    matrices[known, 0, 0], matrices[known, 1, 1] = scale_x, scale_y
    # The outer edge of a box lies half a pixel before the centre of its first pixel, here and in the frame.
    matrices[known, 0, 2] = -0.5 - scale_x * (x - 0.5)
    matrices[known, 1, 2] = -0.5 - scale_y * (y - 0.5)
    return matrices, frame
