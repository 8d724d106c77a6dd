"""Sections that only some runs have: the groups of a sorted set, and matching points of pairs of images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from congeal.errors import CongealError
from congeal.files import read_json
from congeal.report.charts import curve
from congeal.report.pictures import Contrast, picture
from congeal.runs.folder import RunFolder

MAX_GROUP_MEMBERS, MAX_LEAST_CERTAIN = 12, 24
LEAF_WIDTH, MERGE_HEIGHT, MARGIN = 64.0, 26.0, 16.0  # of the drawing of the dendrogram, in its units
PAIR_HEIGHT, PAIR_GAP = 300.0, 24.0
"""Height of a picture in the drawing of a pair, and the room between two."""
COLOURS = ("#e6550d", "#3182bd", "#31a354", "#d6219c", "#c8a400", "#756bb1", "#17a2a8", "#a63603", "#6b8e23", "#636363")


def gather_groups(
    run: RunFolder, metrics: dict[str, Any], cards: Sequence[dict[str, Any]], contrast: Contrast
) -> dict[str, Any] | None:
    """Everything about groups; None for a set that was not sorted."""
    rows = metrics.get("groups")
    if not rows:
        return None
    decision = (metrics.get("decisions") or {}).get("groups") or {}
    groups = []
    for row in rows:
        folder = run / "groups" / Path(str(row["name"])).name  # never a way out of the run folder
        mean = picture(folder / "mean.png", 160, contrast=contrast)
        members = [card for card in cards if card.get("group") == row["group"]][:MAX_GROUP_MEMBERS]
        groups.append({"verdict": None, **row, "mean": mean, "members": members})
    unsure = [card for card in cards if card.get("group", -1) >= 0 and card.get("margin") is not None]
    points = np.array(decision.get("curve") or np.zeros((0, 2)), dtype=float)
    name = decision.get("curve_name", "share of neighbours in another group")
    advice = str(decision.get("advice") or "")
    sentences = [decision.get("sentence", ""), f"{advice[0].upper()}{advice[1:]}." if advice else ""]
    return {
        "sentence": " ".join(filter(None, sentences)),
        "groups": groups,
        "outside": metrics["n_images"] - sum(row["n_images"] for row in rows),
        "unsure": sorted(unsure, key=lambda card: card["margin"])[:MAX_LEAST_CERTAIN],
        "curve": curve(name, points[:, 0], points[:, 1]),
        "tree": dendrogram(decision.get("tree") or [], groups),
        "labels": labels(metrics.get("group_labels")),
    }


def labels(known: dict[str, Any] | None) -> dict[str, Any] | None:
    """The table of groups against labels, each cell with its share of the row."""
    if not known:
        return None
    rows = [[{"n": n, "share": n / max(1, sum(row))} for n in row] for row in known["confusion"]]
    return {**known, "rows": rows}


def dendrogram(merges: Sequence[Sequence[float]], groups: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The dendrogram of groups as lines to draw: groups that merge first are side by side. Numbers as in
    `CongealGroups`."""
    count = len(groups)
    if not merges or len(merges) != count - 1:
        return None
    below: dict[int, list[int]] = {number: [number] for number in range(count)}
    for i, (one, other, _) in enumerate(merges):
        below[count + i] = [*below[int(one)], *below[int(other)]]
    order = below[2 * count - 2]
    place = {leaf: (MARGIN + LEAF_WIDTH * (k + 0.5), 0.0) for k, leaf in enumerate(order)}
    foot = MARGIN + MERGE_HEIGHT * len(merges)
    at = {leaf: (x, foot) for leaf, (x, _) in place.items()}
    lines, joints = [], []
    for i, (one, other, share) in enumerate(merges):
        (x1, y1), (x2, y2) = at[int(one)], at[int(other)]
        y = foot - MERGE_HEIGHT * (i + 1)
        lines.append(f"M{x1:.0f},{y1:.0f} V{y:.0f} H{x2:.0f} V{y2:.0f}")
        joints.append({"x": max(x1, x2) + 3, "y": y - 3, "share": share})
        at[count + i] = ((x1 + x2) / 2, y)
    width = 2 * MARGIN + LEAF_WIDTH * count
    leaves = [{"x": place[leaf][0] - 24, "y": foot + 4, **groups[leaf]} for leaf in order]
    return {"lines": lines, "joints": joints, "leaves": leaves, "width": width, "height": foot + 76}


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
        width = PAIR_HEIGHT * image["width"] / image["height"]
        sides.append({**image, "x": left, "shown": width, "id": str(one["id"])[:80]})
        places.append(np.array(one["points"], dtype=float).reshape(-1, 2) * [width, PAIR_HEIGHT] + [left, 0])
        left += width + PAIR_GAP
    lines = [
        {"x1": a[0], "y1": a[1], "x2": b[0], "y2": b[1], "colour": COLOURS[k % len(COLOURS)]}
        for k, (a, b) in enumerate(zip(*places, strict=True))
    ]
    return {"width": left - PAIR_GAP, "height": PAIR_HEIGHT, "sides": sides, "lines": lines}
