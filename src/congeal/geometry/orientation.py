"""The eight ways to lay a picture on a table: mirrored or not, and turned by quarters.

An *orientation* is a number from 0 to 7. It says what makes a picture upright: first, from 4 on, it is mirrored left to
right; then it is turned clockwise by `orientation % 4` quarters. Sizes are (height, width).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from congeal.geometry.matrix import Size
from congeal.rows import row_slices

MIRROR = 4
"""From this orientation on a picture is mirrored."""


def orientations(*, mirror: bool, turns: bool) -> tuple[int, ...]:
    """Those that are possible, the plain one first."""
    turned = (0, 1, 2, 3) if turns else (0,)
    return turned + (tuple(MIRROR + turn for turn in turned) if mirror else ())


def upright_sizes(orientation: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """(N, 2) sizes of pictures (N, 2) once they are upright; the other way round it is the same."""
    return np.where((np.asarray(orientation) % 2 == 1)[:, None], sizes[:, ::-1], sizes)


def upright_from_source(orientation: int, size: Size) -> np.ndarray:
    """(3, 3) float64: pixels of a picture of `size` → pixels of the same picture upright."""
    height, width = size
    matrix = np.eye(3)
    if orientation >= MIRROR:
        matrix = np.array([[-1.0, 0, width - 1], [0, 1, 0], [0, 0, 1]])
    for _ in range(orientation % 4):
        matrix = np.array([[0.0, -1, height - 1], [1, 0, 0], [0, 0, 1]]) @ matrix
        height, width = width, height
    return matrix


def all_upright_from_source(orientation: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """(N, 3, 3) of pictures of sizes (N, 2)."""
    pairs = zip(orientation.tolist(), sizes.tolist(), strict=True)
    return np.array([upright_from_source(one, (height, width)) for one, (height, width) in pairs]).reshape(-1, 3, 3)


def make_upright(pixels: Any, orientation: int) -> np.ndarray:
    """(H, W, …) pixels upright: a view of the same values."""
    shown = pixels[:, ::-1] if orientation >= MIRROR else pixels
    return np.asarray(np.rot90(shown, -(orientation % 4)))


def mirrored(matrices: np.ndarray) -> np.ndarray:
    """(N,) bool: whether matrices (N, 3, 3) show the mirror image. NaN is no mirror image."""
    found = np.empty(len(matrices), dtype=bool)
    for part in row_slices(len(matrices)):
        known = np.asarray(matrices[part], dtype=np.float64)
        with np.errstate(invalid="ignore"):
            found[part] = np.linalg.det(known) * np.sign(known[:, 2, 2]) < 0
    return found


def quarter_turns(matrices: np.ndarray) -> np.ndarray:
    """(N,) 0 to 3: the quarters by which aligned_from_source matrices turn an image clockwise, to the nearest.

    Of a mirrored image, after it was mirrored left to right. NaN does not turn.
    """
    known = np.nan_to_num(np.asarray(matrices, dtype=np.float64))
    x = np.where(mirrored(matrices), -1.0, 1.0)
    cosine, sine = x * known[:, 0, 0] + known[:, 1, 1], x * known[:, 1, 0] - known[:, 0, 1]
    return np.asarray(np.rint(np.arctan2(sine, cosine) / (np.pi / 2)).astype(int) % 4)


def orientation_of(matrices: np.ndarray, *, turns: bool = True) -> np.ndarray:
    """(N,) the orientation nearest to aligned_from_source matrices (N, 3, 3); without `turns` only mirrored or not."""
    mirror = np.where(mirrored(matrices), MIRROR, 0)
    return mirror + quarter_turns(matrices) if turns else mirror
