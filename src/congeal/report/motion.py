"""What the alignment did to each image: its transform relative to its initial pose, in quantities with names and units.

Lengths are in pixels of the aligned frame. `QUANTITIES` is the one list of them: histograms, the choice of thumbnails
and the reasons why an image needs a look all use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from congeal.geometry.matrix import decompose_motion, invert
from congeal.geometry.orientation import MIRROR, mirrored, quarter_turns, upright_from_source
from congeal.report.charts import lines

Size = tuple[int, int]
MAX_NEIGHBOUR_RATIO = 0.5
"""The order matters if von Neumann's ratio, the mean squared step over twice the variance, is below this …"""
MIN_STANDARD_ERRORS = 4.0
"""… if it is at least this many standard errors below 1, the value of a shuffled set: by chance once in 30,000."""
UNCHANGED_TOLERANCE = 1e-6
"""A quantity that differs from "no change" by less than this is one that the motion does not have."""


@dataclass(frozen=True)
class Quantity:
    """One of the numbers: key, heading of its chart, unit, and the value that means "no change"."""

    key: str
    name: str
    unit: str
    neutral: float | None


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


SCORE = Quantity("score", "Likeness to the mean", "", None)
EMPTY_SHARE = Quantity("outside", "Part of the picture not covered by the image", "%", None)
UNCERTAINTY = Quantity("uncertainty", "Uncertainty of the pose", "px", None)


def moves(after: np.ndarray, before: np.ndarray, size: Size) -> dict[str, np.ndarray]:
    """`QUANTITIES` of images by key, each (N,), from their `aligned_from_source` (N,3,3) after and before; NaN where
    either is not known. size: (height, width) of the aligned picture.

    Of a mirrored image it is what was done to its mirror image: that it is one is said elsewhere, and a scale of −1 or
    half a turn would be read as something else.
    """
    with np.errstate(all="ignore"):
        moved = after @ invert(before)
        flip = np.where(mirrored(moved)[:, None, None], upright_from_source(MIRROR, size), np.eye(3))
        parts = decompose_motion(moved @ flip, size)
        values = {quantity.key: getattr(parts, quantity.key) for quantity in QUANTITIES}
    return {key: np.where(np.isfinite(array), array, np.nan) for key, array in values.items()}


def changed(quantity: Quantity, values: np.ndarray) -> bool:
    """Whether any image was changed in this respect: rigid motion, for instance, never scales."""
    known = values[np.isfinite(values)]
    return bool(len(known) and np.abs(known - (quantity.neutral or 0.0)).max() > UNCHANGED_TOLERANCE)


def drift(moved: Mapping[str, np.ndarray], step: int) -> dict[str, Any] | None:
    """Charts of shift, rotation and scale over the number of the image; None for a set too small to have an order.

    moved: what `moves` gives for every step-th image of the source. `ordered` says whether neighbours move alike.
    """
    numbers = np.arange(len(moved["shift_x"]), dtype=np.float64) * step
    if len(numbers) < 3:  # two points are no course
        return None
    charts = [lines("Shift", "px", numbers, {"to the right": moved["shift_x"], "down": moved["shift_y"]})]
    for one in QUANTITIES:
        if one.key in ("rotation", "scale") and changed(one, moved[one.key]):
            charts.append(lines(one.name, one.unit, numbers, {"": moved[one.key]}))
    shown = [chart for chart in charts if chart is not None]
    return {"charts": shown, "ordered": is_ordered(*moved.values())} if shown else None


def is_ordered(*quantities: np.ndarray) -> bool:
    """Whether in any of these (N,) neighbours are more alike than images far apart (von Neumann's ratio)."""
    for values in quantities:
        known = values[np.isfinite(values)]
        if len(known) >= 8 and (variance := float(np.var(known))) >= 1e-12:
            ratio = float(np.square(np.diff(known)).mean()) / (2 * variance)
            if ratio < MAX_NEIGHBOUR_RATIO and 1 - ratio > MIN_STANDARD_ERRORS / np.sqrt(len(known)):
                return True
    return False


def orientation_words(matrices: np.ndarray) -> list[str]:
    """(N,) the orientation of each image in words; empty for an upright one."""
    orientations = zip(mirrored(matrices).tolist(), quarter_turns(matrices).tolist(), strict=True)
    words = [["mirrored"] * flip + [f"turned {90 * quarters}°"] * bool(quarters) for flip, quarters in orientations]
    return [", ".join(said) for said in words]


def orientation_sentence(metrics: Mapping[str, Any]) -> str:
    """How many images were mirrored and turned, where they could be; empty where they could not."""
    of, said = metrics["n_images"], []
    for key, what in (("n_mirrored", "mirrored"), ("n_turned", "turned by quarters")):
        if metrics.get(key) is not None:
            number = metrics[key]
            said.append(f"{number:,} {'is' if number == 1 else 'are'} {what}" if number else f"none is {what}")
    return f"Of the {of:,} images, {' and '.join(said)}." if said else ""
