"""Ratios of landmark errors on faces: `joint` against its peers, and from coarse boxes against good ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from congeal.experiments.plan import Row
from congeal.experiments.tables import Column, Table, sound
from congeal.report.tables import fixed

Errors = Mapping[str, float]  # by subject


def ratio_table(rows: Sequence[Row], funneled: str) -> Table:
    """What has to hold, and whether it does; "–" where a row it needs is missing."""
    box, wide = 0.0, 0.3
    joint, wide_joint = errors(rows, "joint", box), errors(rows, "joint", wide)
    rasl, wide_rasl = errors(rows, "rasl", box), errors(rows, "rasl", wide)
    lines = [
        line("joint / deep-funneled, box", quotients(joint, errors(rows, funneled, box)), "mean", "≤", 0.85, 0.64),
        line("joint / rasl, box, each subject", quotients(joint, rasl), "worst", "<", 1.0, 0.75),
        line("joint at +30 % / joint at box", quotients(wide_joint, joint), "mean", "≤", 1.15, 1.05),
        line("rasl / joint, both at +30 %", quotients(wide_rasl, wide_joint), "mean", "≥", 1.3, 2.0),
        scale_line(rows),
    ]
    columns = [
        Column("ratio of landmark errors", "what"),
        Column("value", "value", fixed),
        Column("each subject", "each"),
        Column("at least", "least"),
        Column("aim", "aim"),
        Column("holds", "holds"),
    ]
    return Table("What has to hold", columns, lines)


def errors(rows: Sequence[Row], method: str, grow: float) -> Errors:
    """Landmark error of each subject, for one method and start."""
    own = [row for row in sound(rows) if (row["method"], row["grow"]) == (method, grow)]
    return {row["subject"]: row["landmark"] for row in own if row.get("landmark") is not None}


def quotients(above: Errors, below: Errors) -> dict[str, tuple[float, float]]:
    """Numerator and denominator of each subject that has both."""
    return {subject: (above[subject], below[subject]) for subject in above if subject in below}


def line(
    what: str, pairs: Mapping[str, tuple[float, float]], kind: str, relation: str, least: float, aim: float
) -> Row:
    """A ratio as a line: of the means over subjects, or the worst subject's."""
    row: Row = {"what": what, "least": f"{relation} {least}", "aim": f"{'≥' if relation == '≥' else '≤'} {aim}"}
    if not pairs:
        return row
    each = [above / below for above, below in pairs.values()]
    value = max(each) if kind == "worst" else sum(a for a, _ in pairs.values()) / sum(b for _, b in pairs.values())
    return row | {"value": value, "each": " / ".join(map(fixed, each)), "holds": verdict(value, relation, least, aim)}


def verdict(value: float, relation: str, least: float, aim: float) -> str:
    """ "aim", "yes" or "NO"."""
    if relation == "≥":
        return "aim" if value >= aim else "yes" if value >= least else "NO"
    enough = value < least if relation == "<" else value <= least
    return "aim" if value <= aim else "yes" if enough else "NO"


def scale_line(rows: Sequence[Row]) -> Row:
    """No zooming: the scale of every set that `joint` aligned is that of its boxes to within 5 %."""
    scales = [row["mean_scale"] for row in sound(rows) if row["method"] == "joint" and row["mean_scale"] is not None]
    row: Row = {"what": "joint: mean scale furthest from 1", "least": "0.95–1.05", "aim": "0.95–1.05"}
    if not scales:
        return row
    furthest = max(scales, key=lambda scale: abs(scale - 1))
    return row | {"value": furthest, "holds": "aim" if abs(furthest - 1) <= 0.05 else "NO"}
