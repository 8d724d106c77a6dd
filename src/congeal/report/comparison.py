"""A comparison of methods: its rows, the table as JSON, CSV and Markdown, and the page.

A row is what metrics.json says, under the label of the method, and `error` where a method failed; the numbers of a
failed row are None.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from congeal.errors import CongealError
from congeal.files import read_json, refuse_links, write_text
from congeal.report.page import contrast_of, fill_template, listed_skipped, number, percent, picture, shown_config
from congeal.runs.folder import RunFolder

Row = dict[str, Any]

LABEL = re.compile(r"[a-z0-9]+(@[A-Za-z0-9_+-]+)?")  # a method, or method@variant
MAX_METHOD_PICTURE_PX = 360
"""Longer side of one of the many pictures on the page: several lie beside each other. Chosen by judgement."""
# Of every row, also of one without an answer.
KEYS = (
    *("method", "motion", "motion_asked", "n_images", "n_skipped", "likeness_before", "likeness_after"),
    *("improved_share", "apsnr_before", "apsnr_after", "uncertainty_px", "trained", "levels"),
    *("energy_ratio", "mean_scale", "blank_share"),
    *("out_of_frame_share", "kind", "collapsed", "verdict", "advice", "fit_seconds", "align_seconds"),
    *("images_per_second", "peak_memory_mb", "idle_memory_mb", "seed", "version", "status"),
)
# One column per status of single images in table.csv.
STATUS = tuple(f"n_{status}" for status in ("ok", "outlier", "failed", "blank"))


def write_tables(run: RunFolder, rows: Sequence[Row]) -> None:
    """table.json, table.csv and table.md."""
    run.write_json("table.json", list(rows))
    run.write_rows("table.csv", [flat(row) for row in rows], columns=[*KEYS[:-1], *STATUS, "error"])
    run.write_text("table.md", markdown(rows))


def flat(row: Mapping[str, Any]) -> Row:
    """A row for CSV: `status` becomes one column per status, lists become JSON, None an empty cell."""
    cells: Row = {}
    for key, value in row.items():
        if key == "status":
            cells.update({f"n_{name}": count for name, count in (value or {}).items()})
        else:
            cells[key] = json.dumps(value) if isinstance(value, list | tuple | Mapping) else value
    return cells


def best(rows: Sequence[Row]) -> Row | None:
    """The row that is most alike among those that count: finished and not collapsed."""
    sound = [row for row in rows if "error" not in row and not row["collapsed"]]
    known = [row for row in sound if row.get("likeness_after") is not None]
    return max(known, key=lambda row: float(row["likeness_after"]), default=None)


def motion_words(row: Row) -> str:
    """The motion used, and the one asked for where the method chose it or does not have it."""
    motion, asked = row["motion"], row["motion_asked"]
    if motion is None:
        return "–"
    if asked == "auto":
        return f"{motion} (chosen)"
    return motion if asked in (None, motion) else f"{motion} (has no {asked})"


def verdict_words(row: Row) -> str:
    """The verdict of a row, loud where it failed or collapsed."""
    if "error" in row:
        return f"FAILED: {row['error']}"
    return f"COLLAPSED ({row['verdict']})" if row["collapsed"] else str(row["verdict"])


def markdown(rows: Sequence[Row]) -> str:
    """A table for people. Likeness and APSNR of a collapsed row are struck out, the best likeness is bold."""
    winner = best(rows)
    headings, rules, texts = zip(*COLUMNS, strict=True)
    lines = [table_line(headings), f"|{'|'.join(rules)}|"]
    for row in rows:
        cells = [text(row) for text in texts]
        if row is winner:
            cells[BEST_COLUMN] = f"**{cells[BEST_COLUMN]}**"
        lines.append(table_line(cells))
    notes = [
        "Likeness of each image to the mean of the others: 1 is perfect, and the highest is best. APSNR in dB. "
        "Energy and scale: 1 is right. Seconds are for fitting alone."
    ]
    idle = idle_memory_mb(rows)
    if idle is not None:
        notes.append(f"MB is the peak of the method's own process, of which Python and its libraries are {idle:.0f}.")
    if any(row["collapsed"] for row in rows):
        notes.append(
            "A struck-out APSNR is worth nothing: that method shrank, zoomed or lost the object instead of aligning it."
        )
    return "\n".join([*lines, "", *notes]) + "\n"


def idle_memory_mb(rows: Sequence[Row]) -> float | None:
    """What a process needs before it fits anything; None where no row says."""
    return min((row["idle_memory_mb"] for row in rows if row.get("idle_memory_mb")), default=None)


def _struck(row: Row, text: str) -> str:
    return f"~~{text}~~" if row["collapsed"] and text != "–" else text


COLUMNS: Sequence[tuple[str, str, Callable[[Row], str]]] = (
    ("method", "---", lambda row: row["method"]),
    ("motion", "---", motion_words),
    ("likeness before", "--:", lambda row: number(row.get("likeness_before"), 3)),
    ("after", "--:", lambda row: _struck(row, number(row.get("likeness_after"), 3))),
    ("APSNR before", "--:", lambda row: number(row["apsnr_before"])),
    ("after", "--:", lambda row: _struck(row, number(row["apsnr_after"])) + " collapsed" * bool(row["collapsed"])),
    ("energy", "--:", lambda row: number(row["energy_ratio"])),
    ("scale", "--:", lambda row: number(row["mean_scale"])),
    ("out of frame", "--:", lambda row: percent(row["out_of_frame_share"])),
    ("blank", "--:", lambda row: percent(row["blank_share"])),
    ("seconds", "--:", lambda row: number(row["fit_seconds"], 1)),
    ("MB", "--:", lambda row: number(row["peak_memory_mb"], 0)),
    ("verdict", "---", verdict_words),
)
"""Of the table for people: heading, alignment and text."""
BEST_COLUMN = 3


def table_line(texts: Sequence[str]) -> str:
    """One line of a Markdown table."""
    return "| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in texts) + " |"


# ---- the page


def write_comparison(run: RunFolder) -> Path:
    """Write DIR/report.html from what is in the folder; gives its path."""
    path = run / "report.html"
    write_text(path, fill_template("compare.html.j2", **gather_comparison(run)))
    return path


def gather_comparison(run: RunFolder) -> dict[str, Any]:
    """Everything the page shows, as text, numbers and data URIs."""
    rows = read_json(run / "table.json")
    for row in rows:  # a label is the name of a folder, and this one's folders are all that is shown
        if not LABEL.fullmatch(str(row["method"])):
            raise CongealError(f"{run / 'table.json'} is damaged: {row['method']!r} is no method")
        refuse_links(run / row["method"], run / row["method"] / ".work")
    winner = best(rows)
    done = [row for row in rows if "error" not in row]
    folders = {row["method"]: run / row["method"] for row in done}
    start = run / done[0]["method"] / ".work" if done else None
    files = {
        kind: [*([start / f"{kind}_before.png"] if start else []), *(one / f"{kind}.png" for one in folders.values())]
        for kind in ("mean", "variance")
    }
    contrast = {
        "mean": contrast_of(files["mean"], dark_ground=any(row.get("kind") == "object" for row in done)),
        "variance": contrast_of(files["variance"], dark_ground=True),
    }

    def shown(kind: str, path: Path | None) -> dict[str, Any] | None:
        return None if path is None else picture(path, MAX_METHOD_PICTURE_PX, contrast=contrast[kind])

    words = {"outlier": "unlike the others", "failed": "misplaced", "blank": "blank"}
    status = [row.get("status") or {} for row in rows]
    methods = [
        {
            "row": row,
            "error": row.get("error"),
            "best": row is winner,
            "motion": motion_words(row),
            "verdict": verdict_words(row),
            "flagged": ", ".join(f"{found[name]:,} {word}" for name, word in words.items() if found.get(name))
            or "none",
            "mean": shown("mean", run / row["method"] / "mean.png"),
            "spread": shown("variance", run / row["method"] / "variance.png"),
            "page": "report.html" if (run / row["method"] / "report.html").exists() else None,
        }
        for row, found in zip(rows, status, strict=True)
    ]
    return {
        "name": run.path.resolve().name,
        "config": shown_config(run),
        "n_images": next((row["n_images"] for row in rows if row["n_images"]), 0),
        "methods": methods,
        "before": done[0] if done else None,
        "mean_before": shown("mean", start and start / "mean_before.png"),
        "spread_before": shown("variance", start and start / "variance_before.png"),
        "stretched": contrast["mean"].stretched,
        "brightened": contrast["variance"].gain,
        "corner_error": any("corner_error" in row for row in rows),
        "collapsed": any(row["collapsed"] for row in rows),
        "idle_memory_mb": idle_memory_mb(rows),
        **listed_skipped(run),
    }
