"""Motions as one nested family: translation ⊂ rigid ⊂ similarity ⊂ affine ⊂ homography.

A motion with k parameters uses the first k of eight generators of the projective group; the matrix is the exponential
of their weighted sum, in normalised coordinates (see `congeal.geometry`). Zero parameters are the identity, negated
parameters the inverse, and the parameters of a smaller motion are a prefix of those of a larger one.

    0, 1  shift along x, y (in half frames)      2  rotation (radians, x towards y)     3  log scale
    4, 5  stretch of x against y, diagonal shear                                        6, 7  perspective along x, y
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from congeal.errors import CongealError

MOTIONS = ("translation", "rigid", "similarity", "affine", "homography")
N_PARAMETERS = dict(zip(MOTIONS, (2, 3, 4, 6, 8), strict=True))
"""Parameters of each motion."""

GENERATORS = torch.tensor(
    [
        [[0, 0, 1], [0, 0, 0], [0, 0, 0]],
        [[0, 0, 0], [0, 0, 1], [0, 0, 0]],
        [[0, -1, 0], [1, 0, 0], [0, 0, 0]],
        [[1, 0, 0], [0, 1, 0], [0, 0, 0]],
        [[1, 0, 0], [0, -1, 0], [0, 0, 0]],
        [[0, 1, 0], [1, 0, 0], [0, 0, 0]],
        [[0, 0, 0], [0, 0, 0], [1, 0, 0]],
        [[0, 0, 0], [0, 0, 0], [0, 1, 0]],
    ],
    dtype=torch.float64,
)
"""(8, 3, 3), in the order above."""
IDENTITY = torch.eye(3, dtype=torch.float64)
"""A constant, because `torch.eye` becomes operations on bytes in ONNX, which old runtimes lack."""
SQUARINGS = 4
"""Squarings of the exponential: with eight terms exact to float32 rounding for parameters up to about 4."""


def n_parameters(motion: str) -> int:
    """How many parameters a motion has: 2, 3, 4, 6 or 8."""
    try:
        return N_PARAMETERS[motion]
    except KeyError:
        raise CongealError(f"unknown motion '{motion}': choose one of {', '.join(MOTIONS)}") from None


def matrix_from_parameters(parameters: torch.Tensor) -> torch.Tensor:
    """(..., k) parameters of any motion → (..., 3, 3) matrix in normalised coordinates; differentiable.

    The exponential is written as scaling and squaring in plain products: `torch.linalg.matrix_exp` has no ONNX form.
    """
    count = parameters.shape[-1]
    generators = GENERATORS[:count].to(parameters).reshape(count, 9)
    step = (parameters @ generators).reshape(*parameters.shape[:-1], 3, 3) / 2**SQUARINGS
    eye = IDENTITY.to(parameters)
    # The Taylor series to the eighth power, in two blocks of four: four products instead of seven.
    square = step @ step
    cube, fourth = square @ step, square @ square
    low, high = (eye + step + square / 2 + cube / 6), (eye / 24 + step / 120 + square / 720 + cube / 5040)
    result = low + fourth @ (high + fourth / 40320)
    for _ in range(SQUARINGS):
        result = result @ result
    return result


def parameters_from_matrix(matrix: torch.Tensor, motion: str = "homography") -> torch.Tensor:
    """(..., 3, 3) normalised-coordinate matrix → (..., k) parameters: the logarithm, projected on the motion.

    Works for matrices without reflection and with rotation below 180°, by inverse scaling and squaring in float64.
    """
    count = n_parameters(motion)
    m = matrix.to(torch.float64)
    determinant = torch.linalg.det(m)
    if not bool((determinant / m[..., 2, 2] ** 3 > 0).all()):
        raise CongealError("a mirrored or singular matrix has no motion parameters")
    m = m / (determinant.sign() * determinant.abs() ** (1 / 3))[..., None, None]
    eye = IDENTITY.to(m.device)
    roots = 8
    for _ in range(roots):
        root, inverse = m, eye.expand_as(m)  # Denman-Beavers iteration
        for _ in range(12):
            root, inverse = (root + torch.linalg.inv(inverse)) / 2, (inverse + torch.linalg.inv(root)) / 2
        m = root
    x = m - eye
    log = torch.zeros_like(x)
    for order in range(8, 0, -1):  # log(I + x) = x - x²/2 + x³/3 - …
        log = x @ (eye / order - log)
    log = log * 2**roots
    # A homography has no scale of its own: choose the multiple of I that clears the last entry, as the generators do.
    log = log - log[..., 2:, 2:] * eye
    basis = GENERATORS.to(m.device).reshape(8, 9)
    weights = (log.reshape(*log.shape[:-2], 9) @ basis.T) / (basis**2).sum(1)
    return weights[..., :count].to(matrix.dtype)


def transform_from_points(
    points: NDArray[np.float64], targets: NDArray[np.float64], motion: str
) -> NDArray[np.float64]:
    """(3, 3) that maps points (P, 2) to targets (P, 2) best in the least-squares sense, inside the motion.

    As free as the points allow: one point shifts, two also turn and scale, three or more also stretch and skew. Never
    with perspective: clicked points are too inexact for that.
    """
    rank = min(MOTIONS.index(motion), {1: 0, 2: 2}.get(len(points), 3))
    middle, goal = points.mean(0), targets.mean(0)
    p, q = points - middle, targets - goal
    spread = float((p**2).sum())
    linear = np.eye(2)
    if rank == MOTIONS.index("affine") and np.linalg.matrix_rank(p, tol=1e-6 * max(1.0, spread**0.5)) == 2:
        linear = np.linalg.lstsq(p, q, rcond=None)[0].T
    elif rank >= MOTIONS.index("rigid") and spread > 1e-12:
        along, across = float((p * q).sum()), float((p[:, 0] * q[:, 1] - p[:, 1] * q[:, 0]).sum())
        length = np.hypot(along, across)
        if length > 1e-12:
            scale = length / spread if rank >= MOTIONS.index("similarity") else 1.0
            linear = scale / length * np.array([[along, -across], [across, along]])
    matrix = np.eye(3)
    matrix[:2, :2], matrix[:2, 2] = linear, goal - linear @ middle
    return matrix
