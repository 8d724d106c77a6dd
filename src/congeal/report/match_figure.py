"""Pairs of images with lines between matching points, as drawings of the page."""

from __future__ import annotations

from typing import Any

import numpy as np

from congeal.errors import CongealError
from congeal.files import read_json
from congeal.report.pictures import picture
from congeal.runs.folder import RunFolder

SIDE, GAP = 300.0, 24.0
"""Height of a picture in the drawing, and the room between two."""
COLOURS = ("#e6550d", "#3182bd", "#31a354", "#d6219c", "#c8a400", "#756bb1", "#17a2a8", "#a63603", "#6b8e23", "#636363")


def gather_matches(run: RunFolder) -> list[dict[str, Any]]:
    """Each pair as a drawing: its size, two pictures and lines between them."""
    listing = run.work / "lines" / "lines.json"
    if not listing.exists():
        return []
    try:
        return [drawing for pair in read_json(listing) if (drawing := _drawing(run, pair)) is not None]
    except (ValueError, KeyError, TypeError) as error:
        raise CongealError(f"{listing} is damaged; run 'congeal align' into a new folder") from error


def _drawing(run: RunFolder, pair: list[dict[str, Any]]) -> dict[str, Any] | None:
    shown = [picture(run.work / "lines" / f"{int(one['index'])}.png", largest_png=30_000) for one in pair]
    if not all(shown):
        return None
    left, sides, places = 0.0, [], []
    for one, image in zip(pair, shown, strict=True):
        assert image is not None
        width = SIDE * image["width"] / image["height"]
        sides.append({**image, "x": left, "shown": width, "id": str(one["id"])[:80]})
        places.append(np.array(one["points"], dtype=float).reshape(-1, 2) * [width, SIDE] + [left, 0])
        left += width + GAP
    lines = [
        {"x1": a[0], "y1": a[1], "x2": b[0], "y2": b[1], "colour": COLOURS[k % len(COLOURS)]}
        for k, (a, b) in enumerate(zip(*places, strict=True))
    ]
    return {"width": left - GAP, "height": SIDE, "sides": sides, "lines": lines}
