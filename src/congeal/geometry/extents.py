"""What a set of images covers together, and where they reach: boxes in the pixels of the frame they are aligned in."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from congeal.geometry.matrix import Size, corners, invert, map_points

_NEARLY = 1e-3  # of a pixel: what rounding may do to an edge
_DEPTH = 0.1  # of its value in the middle: beyond that a homography is at its horizon
_ROWS_AT_ONCE = 20_000


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
    for first in range(0, len(sizes), _ROWS_AT_ONCE):
        matrices, some = frame_from_source[first : first + _ROWS_AT_ONCE], sizes[first : first + _ROWS_AT_ONCE]
        outer = corners((1, 1)) + 0.5
        points = outer * some[:, None, ::-1] - 0.5
        depth = points @ matrices[:, 2, :2, None] + matrices[:, 2, 2, None, None]
        ahead = (depth > _DEPTH * np.abs(depth.mean(1, keepdims=True))).all((1, 2))
        if ahead.any():
            found = map_points(matrices[ahead], points[ahead]).reshape(-1, 2)
            low, high = np.minimum(low, found.min(0)), np.maximum(high, found.max(0))
    if not np.isfinite([low, high]).all():
        return None
    left, top = np.floor(low + 0.5 + _NEARLY).astype(int).tolist()
    right, bottom = np.ceil(high + 0.5 - _NEARLY).astype(int).tolist()
    return Box(left, top, (bottom - top, right - left))


def shared(frame_from_source: np.ndarray, sizes: np.ndarray, frame: Size) -> Box | None:
    """The largest box of a frame in which every pixel lies inside every image; None if there is no such pixel.

    A pixel of the frame is inside an image if its centre is inside the outermost pixel centres: five linear conditions,
    so what all images cover is convex, and a box between two rows is as wide as the narrower of them allows.
    """
    rows = np.arange(frame[0], dtype=float)
    left, right = np.zeros(frame[0]), np.full(frame[0], frame[1] - 1.0)
    for first in range(0, len(sizes), max(1, _ROWS_AT_ONCE * 100 // frame[0])):
        part = slice(first, first + max(1, _ROWS_AT_ONCE * 100 // frame[0]))
        conditions = _inside(invert(frame_from_source[part]), sizes[part], frame)
        least, most = _between(conditions, rows)
        left, right = np.maximum(left, least), np.minimum(right, most)
    first_column, last_column = np.ceil(left - _NEARLY), np.floor(right + _NEARLY)
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
    return np.concatenate([x, width * ahead - x, y, height * ahead - y, ahead - [0, 0, _DEPTH]])


def _between(conditions: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each row, the least and the most x that meet all conditions (K, 3)."""
    slope = conditions[:, 0]
    rest = conditions[:, 1, None] * rows + conditions[:, 2, None]
    flat = np.abs(slope) < 1e-12
    with np.errstate(divide="ignore", invalid="ignore"):
        bound = -rest / slope[:, None]
    least = np.where((slope > 0)[:, None] & ~flat[:, None], bound, -np.inf).max(0)
    most = np.where((slope < 0)[:, None] & ~flat[:, None], bound, np.inf).min(0)
    never = (flat[:, None] & (rest < -_NEARLY)).any(0)
    return np.where(never, np.inf, least), np.where(never, -np.inf, most)
