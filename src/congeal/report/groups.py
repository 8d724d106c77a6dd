"""What a report shows of a pile that was sorted: templates, members, who is least certain, the tree, the labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from congeal.report.charts import curve
from congeal.report.pictures import Contrast, picture
from congeal.runs.folder import RunFolder

OF_A_GROUP, LEAST_CERTAIN = 12, 24
LEAF, STEP, MARGIN = 64.0, 26.0, 16.0  # of the drawing of the tree, in its units


def gather_groups(
    run: RunFolder, metrics: dict[str, Any], cards: Sequence[dict[str, Any]], contrast: Contrast
) -> dict[str, Any] | None:
    """Everything about groups, or None where the images were of one kind."""
    rows = metrics.get("groups")
    if not rows:
        return None
    decision = (metrics.get("decisions") or {}).get("groups") or {}
    groups = []
    for row in rows:
        folder = Path(str(row["name"])).name  # never a way out of the run folder
        mean, spread = (
            picture(run / "groups" / folder / name, 160, contrast=contrast) for name in ("mean.png", "variance.png")
        )
        members = [card for card in cards if card.get("group") == row["group"]][:OF_A_GROUP]
        groups.append(
            {"verdict": None, "energy_ratio": None, "conductance": None, **row, "mean": mean, "members": members}
        )
        groups[-1]["spread"] = spread
    unsure = [card for card in cards if card.get("group", -1) >= 0 and card.get("margin") is not None]
    points = np.array(decision.get("curve") or np.zeros((0, 2)), dtype=float)
    name = decision.get("curve_name", "share of neighbours in another group")
    chart = curve(name, points[:, 0], points[:, 1]) if len(points) else None
    return {
        "sentence": " ".join(filter(None, [decision.get("sentence", ""), _sentence(decision.get("advice"))])),
        "groups": groups,
        "outside": metrics["n_images"] - sum(row["n_images"] for row in rows),
        "unsure": sorted(unsure, key=lambda card: card["margin"])[:LEAST_CERTAIN],
        "curve": chart,
        "tree": tree(decision.get("tree") or [], groups),
        "labels": labels(metrics.get("group_labels")),
    }


def _sentence(words: str | None) -> str:
    return f"{words[0].upper()}{words[1:]}." if words else ""


def labels(known: dict[str, Any] | None) -> dict[str, Any] | None:
    """The table of groups against labels, each cell with its share of the row."""
    if not known:
        return None
    rows = [[{"n": n, "share": n / max(1, sum(row))} for n in row] for row in known["confusion"]]
    return {**known, "rows": rows}


def tree(merges: Sequence[Sequence[float]], groups: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The tree of groups as lines to draw: those that join first are side by side. Numbers as in `CongealGroups`."""
    count = len(groups)
    if not merges or len(merges) != count - 1:
        return None
    below: dict[int, list[int]] = {number: [number] for number in range(count)}
    for i, (one, other, _) in enumerate(merges):
        below[count + i] = [*below[int(one)], *below[int(other)]]
    order = below[2 * count - 2]
    place = {leaf: (MARGIN + LEAF * (k + 0.5), 0.0) for k, leaf in enumerate(order)}
    foot = MARGIN + STEP * len(merges)
    at = {leaf: (x, foot) for leaf, (x, _) in place.items()}
    lines, joints = [], []
    for i, (one, other, share) in enumerate(merges):
        (x1, y1), (x2, y2) = at[int(one)], at[int(other)]
        y = foot - STEP * (i + 1)
        lines.append(f"M{x1:.0f},{y1:.0f} V{y:.0f} H{x2:.0f} V{y2:.0f}")
        joints.append({"x": max(x1, x2) + 3, "y": y - 3, "share": share})
        at[count + i] = ((x1 + x2) / 2, y)
    width = 2 * MARGIN + LEAF * count
    leaves = [{"x": place[leaf][0] - 24, "y": foot + 4, **groups[leaf]} for leaf in order]
    return {"lines": lines, "joints": joints, "leaves": leaves, "width": width, "height": foot + 76}
