"""The images to look at first, and why, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from congeal.report.charts import short, two_figures

MOST = 5
EMPTY = 0.2
"""An image is said to leave much of the frame empty beyond this share, if that is unusual in its set."""
FAR = 4.0
"""Unusual is what is so many times farther above the median than most images of the set are."""


def typical(values: np.ndarray) -> tuple[float, float]:
    """The median, and how far above it most values stay (the 84th percentile); NaN where nothing is known."""
    known = values[np.isfinite(values)]
    if not len(known):
        return float("nan"), float("nan")
    middle, above = np.quantile(known, [0.5, 0.84])
    return float(middle), float(above - middle)


def worst(cards: Sequence[Mapping[str, Any]], usual: Mapping[str, tuple[float, float]]) -> list[dict[str, Any]]:
    """The first five of the gallery's cards, which come worst first, each with `reasons`: sentences.

    usual: `typical` of score, uncertainty, corners and out_of_frame over the whole set.
    """
    return [{**card, "reasons": reasons(card, usual)} for card in cards[:MOST]]


def reasons(card: Mapping[str, Any], usual: Mapping[str, tuple[float, float]]) -> list[str]:
    """Why this image needs a look; what counts most comes first."""
    found = [_status(card, usual), _unsure(card, usual), _empty(card, usual), _far(card, usual)]
    said = [one for one in found if one]
    return said or [f"Among the least like the mean: {_score(card, usual)}."]


def _status(card: Mapping[str, Any], usual: Mapping[str, tuple[float, float]]) -> str:
    if card["status"] == "blank":
        return "There is next to nothing to see in it, so it could not be aligned."
    if card["status"] == "failed":
        return "It left the frame, or was bent or scaled far more than the others: its pose makes no sense."
    if card["status"] == "outlier":
        return f"It does not look like the others ({_score(card, usual)}): another thing, or a wrong pose."
    return ""


def _score(card: Mapping[str, Any], usual: Mapping[str, tuple[float, float]]) -> str:
    if card.get("score") is None:
        return "its likeness is not known"
    middle = usual["score"][0]
    return f"likeness {card['score']:.2f}" + (f", where {middle:.2f} is usual" if np.isfinite(middle) else "")


def _unsure(card: Mapping[str, Any], usual: Mapping[str, tuple[float, float]]) -> str:
    if not card.get("unsure") or card.get("uncertainty") is None:
        return ""
    middle = usual["uncertainty"][0]
    return f"Its pose is uncertain: ± {two_figures(card['uncertainty'])} px, where ± {two_figures(middle)} px is usual."


def _empty(card: Mapping[str, Any], usual: Mapping[str, tuple[float, float]]) -> str:
    share, (middle, spread) = card.get("out_of_frame"), usual["out_of_frame"]
    if share is None or not np.isfinite(middle) or share <= max(EMPTY, middle + FAR * spread):
        return ""
    return f"{100 * share:.0f} % of the frame has no image under it, where {100 * middle:.0f} % is usual."


def _far(card: Mapping[str, Any], usual: Mapping[str, tuple[float, float]]) -> str:
    moved = (card.get("moved") or {}).get("corners")
    middle, spread = usual["corners"]
    if moved is None or not np.isfinite([moved, middle, spread]).all() or moved <= middle + FAR * max(spread, 0.5):
        return ""
    return f"It was moved unusually far: its corners by {short(moved)} px, where {short(middle)} px is usual."
