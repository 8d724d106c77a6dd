"""3×3 matrices: build, compose, invert, change of coordinates, points, and what they do in words.

Every function takes NumPy arrays or torch tensors of shape (..., 3, 3) and gives back the same kind and dtype.
Conventions: see `congeal.geometry`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from congeal.errors import CongealError

Matrix = TypeVar("Matrix", bound=Any)  # np.ndarray or torch.Tensor
Size = tuple[int, int]  # (height, width)

MIN_DENOMINATOR = 0.1
"""Points whose projective denominator falls below this share of its value at the frame's centre are near or behind
the horizon; the denominator is held there, so that coordinates stay finite."""


def _like(value: np.ndarray, example: Matrix) -> Matrix:
    """`value` as the same kind of array (library, dtype, device) as `example`."""
    if isinstance(example, np.ndarray):
        return value.astype(example.dtype)  # type: ignore[return-value]
    return example.new_tensor(value)


def _stack(parts: list[Any], example: Any, axis: int = -1) -> Any:
    if isinstance(example, np.ndarray):
        return np.stack(parts, axis)
    import torch

    return torch.stack(parts, axis)


def identity(n: int | None = None) -> np.ndarray:
    """The identity as float64, or n of them: (3, 3) or (n, 3, 3)."""
    eye = np.eye(3)
    return eye if n is None else np.broadcast_to(eye, (n, 3, 3)).copy()


def compose(*matrices: Matrix) -> Matrix:
    """c_from_b, b_from_a, … → c_from_a: the matrix product, left to right."""
    result = matrices[0]
    for matrix in matrices[1:]:
        result = result @ matrix
    return result


def normalise(matrix: Matrix) -> Matrix:
    """The same homography, scaled so that its last entry is 1."""
    return matrix / matrix[..., 2:, 2:]


def invert(matrix: Matrix) -> Matrix:
    """a_from_b from b_from_a, by the adjugate: exact for the identity, differentiable, fast in a batch."""
    a, b, c = matrix[..., 0, 0], matrix[..., 0, 1], matrix[..., 0, 2]
    d, e, f = matrix[..., 1, 0], matrix[..., 1, 1], matrix[..., 1, 2]
    g, h, i = matrix[..., 2, 0], matrix[..., 2, 1], matrix[..., 2, 2]
    rows = [
        _stack([e * i - f * h, c * h - b * i, b * f - c * e], matrix),
        _stack([f * g - d * i, a * i - c * g, c * d - a * f], matrix),
        _stack([d * h - e * g, b * g - a * h, a * e - b * d], matrix),
    ]
    return normalise(_stack(rows, matrix, axis=-2))


def map_points(matrix: Matrix, points: Matrix) -> Matrix:
    """Points of a (..., P, 2) through b_from_a (..., 3, 3) → points of b (..., P, 2), batched by broadcasting."""
    moved = points @ _swap(matrix[..., :, :2]) + matrix[..., None, :, 2]
    return moved[..., :2] / moved[..., 2:]


def _swap(matrix: Any) -> Any:
    return np.swapaxes(matrix, -1, -2) if isinstance(matrix, np.ndarray) else matrix.transpose(-1, -2)


def corners(size: Size) -> np.ndarray:
    """The outer corners of a frame, clockwise from the top left: (4, 2) in pixels, half a pixel outside the centres."""
    height, width = size
    left, top, right, bottom = -0.5, -0.5, width - 0.5, height - 0.5
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]])


def rescale(from_reduced: Size, to_size: Size) -> np.ndarray:
    """to_from_from (3, 3) float64 between two resolutions of one picture: outer edges fall on outer edges."""
    y, x = to_size[0] / from_reduced[0], to_size[1] / from_reduced[1]
    return np.array([[x, 0, 0.5 * x - 0.5], [0, y, 0.5 * y - 0.5], [0, 0, 1.0]])


@lru_cache(maxsize=64)
def _pixel_from_normalised(height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """The matrix for a frame of this size, and its inverse."""
    unit = max(height, width) / 2
    pixel = np.array([[unit, 0, (width - 1) / 2], [0, unit, (height - 1) / 2], [0, 0, 1.0]])
    return pixel, np.linalg.inv(pixel)


def from_normalised(matrix: Matrix, size: Size) -> Matrix:
    """A transform of a frame given in normalised coordinates → the same in its pixels."""
    pixel, inverse = _pixel_from_normalised(size[0], size[1])
    return _like(pixel, matrix) @ matrix @ _like(inverse, matrix)


def to_normalised(matrix: Matrix, size: Size) -> Matrix:
    """A transform of a frame given in its pixels → the same in normalised coordinates."""
    pixel, inverse = _pixel_from_normalised(size[0], size[1])
    return _like(inverse, matrix) @ matrix @ _like(pixel, matrix)


def homography_from_points(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """target_from_source (..., 3, 3) through four point pairs (..., 4, 2) each; float64, last entry 1."""
    source, target = np.broadcast_arrays(np.asarray(source, np.float64), np.asarray(target, np.float64))
    if source.shape[-2:] != (4, 2):
        raise CongealError(f"a homography needs 4 point pairs, got shape {source.shape[-2:]}")
    x, y = source[..., 0], source[..., 1]
    u, v = target[..., 0], target[..., 1]
    one, zero = np.ones_like(x), np.zeros_like(x)
    rows_u = np.stack([x, y, one, zero, zero, zero, -u * x, -u * y], -1)
    rows_v = np.stack([zero, zero, zero, x, y, one, -v * x, -v * y], -1)
    system = np.concatenate([rows_u, rows_v], -2)
    try:
        solution = np.linalg.solve(system, np.concatenate([u, v], -1)[..., None])[..., 0]
    except np.linalg.LinAlgError as error:
        raise CongealError("three of the four points lie on one line, so no homography goes through them") from error
    return np.concatenate([solution, np.ones_like(solution[..., :1])], -1).reshape(*solution.shape[:-1], 3, 3)


def mean_matrix(matrices: Matrix, size: Size) -> Matrix:
    """The mean transform of (N, 3, 3) b_from_a, a frame of `size`: mean entries, each scaled to 1 at a's centre.

    Entries, not corners, are averaged: a few wild homographies throw corners to infinity, but their entries stay
    small, so they do not drag the mean of all the others along.
    """
    return mean_of_parts([matrices], size)


def mean_of_parts(parts: Iterable[Matrix], size: Size) -> Matrix:
    """`mean_matrix` of matrices that are given some at a time."""
    pixel, inverse = _pixel_from_normalised(size[0], size[1])
    total, count = None, 0
    for matrices in parts:
        own = normalise(matrices @ _like(pixel, matrices)).sum(0)
        total = own if total is None else total + own
        count += len(matrices)
    if total is None:
        raise ValueError("there are no matrices")
    return normalise(total / count @ _like(inverse, total))


@dataclass(frozen=True)
class Parts:
    """What (N,3,3) matrices do at one point; every field is (N,), NaN where a matrix has NaN.

    shift_x, shift_y  where the point goes, in pixels, to the right and down
    rotation          of the x axis, in degrees, positive from x towards y (clockwise on a screen)
    scale             of lengths: the square root of the scale of areas; negative for a mirror image
    stretch           scale along x over scale along y
    skew              degrees by which the angle between the axes is less than a right angle
    corners           how far the corners of the frame go, in pixels: the mean of the four
    perspective       how many times larger the nearest corner is drawn than the farthest; 1 for affine matrices, NaN
                      where the horizon runs through the frame
    """

    shift_x: np.ndarray
    shift_y: np.ndarray
    rotation: np.ndarray
    scale: np.ndarray
    stretch: np.ndarray
    skew: np.ndarray
    corners: np.ndarray
    perspective: np.ndarray


def decompose_motion(matrices: np.ndarray, size: Size) -> Parts:
    """(N,3,3) b_from_a in pixels, as seen at the centre of a frame of `size`.

    The 2×2 Jacobian J there is taken apart as J = rotation · [[sx, sx·tan(skew)], [0, sy]]. For affine matrices J is
    the same everywhere; a homography is described by its best affine approximation at the centre.
    """
    m = np.asarray(matrices, dtype=np.float64)
    x, y = (size[1] - 1) / 2, (size[0] - 1) / 2
    landed = map_points(m, np.array([[x, y]]))[:, 0]
    depth = m[:, 2] @ (x, y, 1.0)
    # d/dx of (row · p) / (row₂ · p), with the point itself put in for the quotient
    jacobian = (m[:, :2, :2] - landed[:, :, None] * m[:, 2:, :2]) / depth[:, None, None]
    (a, b), (c, d) = np.moveaxis(jacobian, 0, -1)
    outer = corners(size)
    depths = np.concatenate([outer, np.ones((4, 1))], axis=1) @ m[:, 2].T * np.sign(depth)  # (4, N)
    with np.errstate(divide="ignore", invalid="ignore"):
        ahead = depths.min(0) > 0
        along = np.hypot(a, c)
        determinant = a * d - b * c
        across = determinant / along
        return Parts(
            shift_x=landed[:, 0] - x,
            shift_y=landed[:, 1] - y,
            rotation=np.degrees(np.arctan2(c, a)),
            scale=np.sign(determinant) * np.sqrt(np.abs(determinant)),
            stretch=along / np.abs(across),
            skew=np.degrees(np.arctan((a * b + c * d) / np.abs(determinant))),
            corners=np.hypot(*np.moveaxis(map_points(m, outer) - outer, -1, 0)).mean(1),
            perspective=np.where(ahead, depths.max(0) / depths.min(0), np.nan),
        )
