"""What matches say beyond an affine pose: the homographies under which they meet, and how sure every pose is.

Places are complex numbers x + iy about the centre of a view, in pixels; poses are common_from_view about the centres.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from congeal.geometry import map_points, matrix_from_parameters, n_parameters, parameters_from_matrix
from congeal.solvers.gaussnewton import point_motion

STEPS = 8
"""Of Gauss-Newton: four are enough for poses that are nearly affine."""
_STEEPEST = 0.5  # what perspective may do to depth from the centre of a view to its edge
_BLOCKS = 5  # along a view: the cells of one block see the same part, and err alike
_LEAST_BLOCKS = 4  # with fewer, nothing is known about the error
_COUNTS = 0.01  # of all weight that a block must have to be one of them

Solve = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def fields(places: np.ndarray, unit: float, motion: str) -> np.ndarray:
    """(M, 2, k) how places (M, 2) move, in units, per unit of each parameter of a motion; unit is half a view."""
    size = round(2 * unit)
    middle = (size - 1) / 2
    moves = point_motion(torch.from_numpy(places + middle), (size, size), motion)
    return np.asarray(moves.permute(1, 2, 0).numpy() / (size / 2))


def flat(places: np.ndarray) -> np.ndarray:
    """(M, 2) of complex places."""
    return np.stack([places.real, places.imag], -1)


def shown_at(poses: np.ndarray, places: np.ndarray) -> np.ndarray:
    """(M, 2) places (M,) complex under one pose each, (M, 3, 3)."""
    return np.asarray(map_points(poses, flat(places)[:, None])[:, 0])


def bent(poses: np.ndarray, moves: np.ndarray, unit: float) -> np.ndarray:
    """Poses (n, 3, 3) after moves (n, 8) of the common view; one that would fold it is made less steep."""
    steep = np.abs(moves[:, 6:]).sum(1, keepdims=True)
    moves = np.concatenate([moves[:, :6], moves[:, 6:] * np.minimum(1, _STEEPEST / np.maximum(steep, 1e-9))], 1)
    found = _in_pixels(matrix_from_parameters(torch.from_numpy(moves)).numpy(), unit) @ poses
    return np.asarray(found / found[:, 2:, 2:])


def moves_between(poses: np.ndarray, begin: np.ndarray, unit: float) -> np.ndarray:
    """(n, 8) the moves of the common view that lead from poses to others."""
    change = _in_pixels(poses @ np.linalg.inv(begin), 1 / unit)
    return parameters_from_matrix(torch.from_numpy(change)).numpy()


def _in_pixels(matrices: np.ndarray, unit: float) -> np.ndarray:
    scale = np.array([unit, unit, 1.0])
    return np.asarray(scale[:, None] * matrices / scale)


def pose_error(
    own: np.ndarray,
    residual: np.ndarray,
    weight: np.ndarray,
    pose: np.ndarray,
    where: np.ndarray,
    motion: str,
    unit: float,
    grain: float,
) -> float:
    """How sure one pose is: the standard error, along an axis and in pixels of the common view, of places `where`.

    Matches are not alone: all that begin at the same part of the image err alike, with whomever they match. So what
    counts as one observation is a block of the view; errors follow from how much blocks disagree about the step that
    the image should make. Matches lead from cell to cell: that poses are off by part of a cell shows in none of them,
    so that every block may also err by the grain, together. NaN if there are too few blocks.

    own (M,) complex: places of the image's matches in its view. residual (M, 2): how far each lies from its partner in
    the common view. where (P, 2) in the common view. grain: the standard error of a match's place, in pixels.
    """
    freedom = n_parameters(motion)
    moves = fields(shown_at(np.broadcast_to(pose, (len(own), 3, 3)), own), unit, motion)
    steepness = np.einsum("m,mci,mcj->ij", weight, moves, moves)
    column, row = (
        np.clip(((axis / unit + 1) / 2 * _BLOCKS).astype(int), 0, _BLOCKS - 1) for axis in (own.real, own.imag)
    )
    block = row * _BLOCKS + column
    votes, all_alike = np.zeros((_BLOCKS**2, freedom)), np.zeros((_BLOCKS**2, 2, freedom))
    np.add.at(votes, block, np.einsum("m,mci,mc->mi", weight, moves, residual / unit))
    np.add.at(all_alike, block, weight[:, None, None] * moves * (grain / unit))
    used = int((np.bincount(block, weight, _BLOCKS**2) > _COUNTS * weight.sum()).sum())
    if used < max(_LEAST_BLOCKS, freedom / 2 + 1):
        return float("nan")
    several = votes.T @ votes * used / (used - freedom / 2) + np.einsum("bci,bcj->ij", all_alike, all_alike)
    inverse = np.linalg.pinv(steepness + 1e-6 * np.trace(steepness) / freedom * np.eye(freedom))
    there = fields(where, unit, motion)
    return float(np.sqrt(np.einsum("pci,ij,pcj->pc", there, inverse @ several @ inverse, there).mean()) * unit)
