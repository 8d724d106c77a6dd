"""How the images move from one to the next: charts over their order, for sets that are sequences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from congeal.report.charts import lines
from congeal.report.moves import QUANTITIES, changed

FEWEST = 3  # images that have an order worth a chart
SMOOTH = 0.5
"""Steps between neighbours, squared, over those between any two images: below this the order matters …"""
SURE = 4.0
"""… if that is more than so many standard errors below 1, which is what a shuffled set has."""


def drift(moved: Mapping[str, np.ndarray], step: int) -> dict[str, Any] | None:
    """Charts of shift, rotation and scale over the number of the image; None for a set too small to have an order.

    moved: what `moves` gives for every step-th image of the source. `ordered` says whether neighbours move alike.
    """
    n = len(moved["shift_x"])
    if n < FEWEST:
        return None
    numbers = np.arange(n, dtype=np.float64) * step
    named = {quantity.key: quantity for quantity in QUANTITIES}
    shift = {"to the right": moved["shift_x"], "down": moved["shift_y"]}
    charts = [lines("Shift", "px", numbers, shift)]
    charts += [
        lines(named[key].name, named[key].unit, numbers, {"": moved[key]})
        for key in ("rotation", "scale")
        if changed(named[key], moved[key])
    ]
    shown = [chart for chart in charts if chart is not None]
    return {"charts": shown, "ordered": follows(*moved.values())} if shown else None


def follows(*quantities: np.ndarray) -> bool:
    """Whether in any of these (N,) neighbours are more alike than images far apart (von Neumann's ratio)."""
    return any(_smooth(values[np.isfinite(values)]) for values in quantities)


def _smooth(values: np.ndarray) -> bool:
    n, variance = len(values), float(np.var(values)) if len(values) else 0.0
    if n < 8 or variance < 1e-12:
        return False
    ratio = float(np.square(np.diff(values)).mean()) / (2 * variance)
    return ratio < SMOOTH and 1 - ratio > SURE / np.sqrt(n)
