"""Reads a run folder into a plain dict of text, numbers, charts and data URIs; knows nothing of HTML."""

from __future__ import annotations

from typing import Any

import numpy as np

from congeal.errors import CongealError
from congeal.files import read_json
from congeal.geometry.decompose import decompose
from congeal.geometry.matrix import invert
from congeal.images.remote import without_credentials
from congeal.report.advice import next_steps
from congeal.report.charts import curves, histogram
from congeal.report.confidence import Confidence, confidence_of, shown_confidence
from congeal.report.pictures import picture
from congeal.runs.folder import RunFolder
from congeal.transforms import Transforms

MOST_SKIPPED = 200
MOST_ROWS = 100_000  # of the transforms, evenly spread, in a histogram
LARGEST_THUMBNAIL = 8_000  # bytes as PNG; there are up to two hundred of them
# Of metrics.json, what runs of earlier versions do not have.
NEWER = ("motion_asked", "likeness_before", "likeness_after", "improved_share", "uncertainty_px", "trained", "levels")
LONGEST_ID = 300  # characters of a name or reason that are shown


def gather_run(run: RunFolder) -> dict[str, Any]:
    """Everything a report shows; parts that the run does not have are None or empty."""
    metrics, config = run.read_json("metrics.json"), shown_config(run)
    skipped = run.read_rows("skipped.csv")
    confidence = confidence_of(run)
    faceless = [row["id"] for row in run.read_rows("boxes.csv") if row["remark"]]
    return {
        "name": run.path.resolve().name,
        "config": {key: value for key, value in config.items() if key not in ("params", "command", "version")},
        "command": config.get("command"),
        "params": config.get("params") or {},
        "metrics": {**dict.fromkeys(NEWER), **metrics},
        "decided": decided(metrics),
        "confidence": shown_confidence(run, confidence),
        "steps": next_steps(metrics, config, run.path.name),
        "pictures": {
            "mean": {"before": picture(run.work / "mean_before.png"), "after": picture(run / "mean.png")},
            "variance": {"before": picture(run.work / "variance_before.png"), "after": picture(run / "variance.png")},
        },
        "curves": curves(run.read_rows("metrics.csv")),
        "histograms": histograms(run, metrics["n_images"] + metrics["n_skipped"]),
        "gallery": gallery(run, confidence),
        "skipped": [{key: row[key][:LONGEST_ID] for key in ("id", "reason")} for row in skipped[:MOST_SKIPPED]],
        "n_skipped": len(skipped),
        "faceless": [name[:LONGEST_ID] for name in faceless[:MOST_SKIPPED]],
        "n_faceless": len(faceless),
        "versions": {"congeal": metrics.get("version", ""), **run.state.get("versions", {})},
    }


def shown_config(run: RunFolder) -> dict[str, Any]:
    """config.json as a page may show it: folders of earlier versions have addresses with passwords."""
    return {k: without_credentials(v) if isinstance(v, str) else v for k, v in run.config.items()}


def decided(metrics: dict[str, Any]) -> list[dict[str, str]]:
    """What the method decided and why: name, outcome and reason of each decision, in words."""
    reasons = {name: str(facts.get("sentence", "")) for name, facts in (metrics.get("decisions") or {}).items()}
    outcomes = {}
    if "motion" in reasons:
        outcomes["motion"] = str(metrics.get("motion"))
    if metrics.get("levels"):
        outcomes["resolution"] = " → ".join(f"{size:,}" for size in metrics["levels"]) + " px"
    if metrics.get("trained") or "training" in reasons:
        outcomes["training"] = "a network was trained" if metrics.get("trained") else "no network was trained"
    names = dict.fromkeys([*outcomes, *reasons])
    return [{"name": name, "outcome": outcomes.get(name, ""), "reason": reasons.get(name, "")} for name in names]


def gallery(run: RunFolder, confidence: Confidence | None) -> list[dict[str, Any]]:
    """The images kept while rendering, with both pictures: flagged and unsure ones first, then the least like the
    mean."""
    listing = run.work / "samples.json"
    cards = []
    for sample in read_json(listing) if listing.exists() else []:
        if not isinstance(sample, dict) or not isinstance(sample.get("index"), int):
            raise CongealError(f"{listing} is damaged; run 'congeal align' into a new folder")
        files = {side: run.work / "samples" / f"{sample['index']}_{side}.png" for side in ("before", "after")}
        pair = {side: picture(path, largest_png=LARGEST_THUMBNAIL) for side, path in files.items()}
        if not all(pair.values()):
            continue
        sure: dict[str, Any] = {"uncertainty": None, "unsure": False}
        if confidence is not None and 0 <= sample["index"] < len(confidence.uncertainty):
            error = float(confidence.uncertainty[sample["index"]])
            sure = {"uncertainty": error if error == error else None, "unsure": confidence.unsure(sample["index"])}
        cards.append({**sample, **pair, **sure})
    return sorted(cards, key=attention)


def attention(card: dict[str, Any]) -> tuple[bool, float]:
    """Where a card comes in the gallery."""
    return card["status"] == "ok" and not card["unsure"], -2.0 if card["score"] is None else card["score"]


def histograms(run: RunFolder, n_images: int) -> list[dict[str, Any]]:
    """What the alignment did to the images of the set: its transforms relative to where they started."""
    found, start = (run.work / f"{name}.npz" for name in ("found", "start"))
    if not found.exists() or not start.exists():
        return []
    step = -(-n_images // MOST_ROWS) or 1  # the shape of a histogram needs no more
    after, before = Transforms.load(found, step), Transforms.load(start, step)
    if after.aligned_size is None:
        return []
    known = np.isfinite(after.matrices).all(axis=(1, 2)) & np.isfinite(before.matrices).all(axis=(1, 2))
    parts = decompose(after.matrices[known] @ invert(before.matrices[known]), after.aligned_size)
    charts = [
        histogram("Shift to the right", parts.shift_x, "px", 0.0),
        histogram("Shift down", parts.shift_y, "px", 0.0),
        histogram("Rotation, clockwise", parts.rotation, "°", 0.0),
        histogram("Scale", parts.scale, "×", 1.0),
        histogram("Stretch, width over height", parts.stretch, "×", 1.0),
        histogram("Skew", parts.skew, "°", 0.0),
        histogram("Score: likeness to the mean", after.score[known]),
        histogram("Outside the source", 100 * after.out_of_frame[known], "%"),
    ]
    return [chart for chart in charts if chart is not None]
