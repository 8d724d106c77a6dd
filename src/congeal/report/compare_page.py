"""The page of a comparison: one table, and the pictures of every method beside those of the start they share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from congeal.errors import CongealError
from congeal.files import read_json, refuse_links, write_text
from congeal.report.page import fill_template
from congeal.report.pictures import brightened, contrast_of, picture
from congeal.report.run_page import shown_config
from congeal.report.tables import best, motion_words, ranked_by, verdict_words
from congeal.runs.folder import RunFolder

LABEL = re.compile(r"[a-z0-9]+(@[A-Za-z0-9_+-]+)?")  # a method, or method@variant
LONGEST = 360  # pixels of one of many pictures on a page
MOST_SKIPPED = 100


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
    work = run / done[0]["method"] / ".work" if done else None
    folders = [run / row["method"] for row in done]
    means = [*([work / "mean_before.png"] if work else []), *(folder / "mean.png" for folder in folders)]
    spreads = [*([work / "variance_before.png"] if work else []), *(folder / "variance.png" for folder in folders)]
    dark_ground = any(row.get("kind") == "object" for row in done)
    contrast, gain = contrast_of(means, dark_ground=dark_ground), brightened(spreads)
    methods = [
        {
            "row": row,
            "error": row.get("error"),
            "best": row is winner,
            "motion": motion_words(row),
            "verdict": verdict_words(row),
            "flagged": flagged_words(row),
            "mean": picture(run / row["method"] / "mean.png", LONGEST, contrast=contrast),
            "spread": picture(run / row["method"] / "variance.png", LONGEST, contrast=gain),
            "page": "report.html" if (run / row["method"] / "report.html").exists() else None,
        }
        for row in rows
    ]
    skipped = run.read_rows("skipped.csv")
    idle = [row["idle_memory_mb"] for row in done if row["idle_memory_mb"]]
    return {
        "name": run.path.resolve().name,
        "config": shown_config(run),
        "n_images": next((row["n_images"] for row in rows if row["n_images"]), 0),
        "methods": methods,
        "ranked_by": ranked_by([winner] if winner else []),
        "before": done[0] if done else None,
        "mean_before": picture(work / "mean_before.png", LONGEST, contrast=contrast) if work else None,
        "spread_before": picture(work / "variance_before.png", LONGEST, contrast=gain) if work else None,
        "stretched": contrast.stretched,
        "brightened": gain.gain,
        "corner_error": any("corner_error" in row for row in rows),
        "collapsed": any(row["collapsed"] for row in rows),
        "idle_memory_mb": min(idle, default=None),
        "skipped": skipped[:MOST_SKIPPED],
        "n_skipped": len(skipped),
    }


def flagged_words(row: Mapping[str, Any]) -> str:
    """How many images of a row need a look, in words."""
    status = row.get("status") or {}
    words = {"outlier": "unlike the others", "failed": "misplaced", "blank": "blank"}
    return ", ".join(f"{status[name]:,} {word}" for name, word in words.items() if status.get(name)) or "none"
