"""What the numbers of an alignment mean, in one word and one sentence of advice."""

from __future__ import annotations

import numpy as np

from congeal.metrics.limits import COLLAPSE_ENERGY, COLLAPSE_SCALE, EMPTIED_ENERGY, EMPTIED_RISE, UNCHANGED_DECIBELS

ADVICE = {
    "good": "The images line up better than before and the object kept its size.",
    "unchanged": "The alignment changed next to nothing: try a richer motion, another reference or another method.",
    "worse": "The images line up worse than before: try a simpler motion, another reference or another method.",
    "shrunk": "The object was shrunk, which flatters APSNR: try a simpler motion or another reference.",
    "grown": "The object was enlarged beyond its source: try a simpler motion or another reference.",
    "emptied": "The object was pushed out of the frame, which flatters APSNR: try a simpler motion or a better start.",
    "failed": "There is nothing to measure: no image has finite, visible content.",
}
"""Verdict → one sentence that says what it means and what to do."""


def judge(
    kind: str,
    *,
    apsnr_before: float,
    apsnr_after: float,
    energy_ratio: float,
    mean_scale: float,
    out_of_frame_rise: float,
) -> tuple[str, bool]:
    """The verdict in one word (a key of `ADVICE`) and whether it is a collapse.

    Objects collapse when the energy ratio leaves `COLLAPSE_ENERGY` (0.9–1.1); below `EMPTIED_ENERGY` (0.5) they are
    "emptied". Photographs, where ink means nothing, collapse when the mean scale, relative to the start, leaves
    `COLLAPSE_SCALE` (0.85–1.15) or the mean out-of-frame share rises by more than `EMPTIED_RISE` (0.25). A number that
    is not finite is a collapse too. APSNR is in dB.
    """
    amount, (low, high) = (energy_ratio, COLLAPSE_ENERGY) if kind == "object" else (mean_scale, COLLAPSE_SCALE)
    if not np.isfinite(amount) or np.isnan(apsnr_after):
        return "failed", True
    if kind == "object" and amount < EMPTIED_ENERGY:
        return "emptied", True
    if amount < low:
        return "shrunk", True
    if amount > high:
        return "grown", True
    if kind != "object" and out_of_frame_rise > EMPTIED_RISE:
        return "emptied", True
    if apsnr_after == apsnr_before or abs(apsnr_after - apsnr_before) < UNCHANGED_DECIBELS:
        return "unchanged", False
    return ("good" if apsnr_after > apsnr_before else "worse"), False
