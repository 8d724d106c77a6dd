"""What the alignment did to each image: its transform relative to where it started, in quantities with names and units.

Lengths are in pixels of the aligned picture. `QUANTITIES` is the one list of them: histograms, the choice of pictures
and the reasons why an image is among the worst all go by it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from congeal.geometry.decompose import decompose
from congeal.geometry.matrix import invert
from congeal.geometry.orientation import MIRROR, mirrored, upright_from_source

Size = tuple[int, int]
STILL = 1e-6  # how far from "no change" a quantity is that the motion does not have


@dataclass(frozen=True)
class Quantity:
    """One of the numbers: key, heading of its chart, unit, and the value that means "no change"."""

    key: str
    name: str
    unit: str
    neutral: float


QUANTITIES = (
    Quantity("corners", "How far the corners moved", "px", 0.0),
    Quantity("shift_x", "Shift to the right", "px", 0.0),
    Quantity("shift_y", "Shift down", "px", 0.0),
    Quantity("rotation", "Rotation, clockwise", "°", 0.0),
    Quantity("scale", "Scale", "×", 1.0),
    Quantity("stretch", "Stretch, width over height", "×", 1.0),
    Quantity("skew", "Skew", "°", 0.0),
    Quantity("perspective", "Perspective, near corner over far corner", "×", 1.0),
)


def moves(after: np.ndarray, before: np.ndarray, size: Size) -> dict[str, np.ndarray]:
    """`QUANTITIES` of images by key, each (N,), from their `aligned_from_source` (N,3,3) after and before; NaN where
    either is not known. size: (height, width) of the aligned picture.

    Of a mirrored image it is what was done to its mirror image: that it is one is said elsewhere, and a scale of −1 or
    half a turn would be read as something else.
    """
    with np.errstate(all="ignore"):
        moved = after @ invert(before)
        flip = np.where(mirrored(moved)[:, None, None], upright_from_source(MIRROR, size), np.eye(3))
        parts = decompose(moved @ flip, size)
        values = {quantity.key: getattr(parts, quantity.key) for quantity in QUANTITIES}
    return {key: np.where(np.isfinite(array), array, np.nan) for key, array in values.items()}


def changed(quantity: Quantity, values: np.ndarray) -> bool:
    """Whether any image was changed in this respect: rigid motion, for instance, never scales."""
    known = values[np.isfinite(values)]
    return bool(len(known) and np.abs(known - quantity.neutral).max() > STILL)
