"""The page of one run: text, numbers, charts and data URIs gathered from the run folder, and put into the template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from congeal.files import write_text
from congeal.report.advice import images_to_check, next_steps, typical
from congeal.report.charts import curves
from congeal.report.gallery import (
    Confidence,
    SetNumbers,
    confidence_of,
    gallery,
    histograms,
    set_numbers,
    shown_confidence,
)
from congeal.report.motion import QUANTITIES, changed, drift, orientation_sentence
from congeal.report.page import fill_template, shown_config
from congeal.report.pictures import Contrast, brightened, contrast_of, picture
from congeal.report.sections import gather_groups, gather_matches
from congeal.runs.folder import RunFolder

MAX_LISTED_SKIPPED = 200
COLUMN_TITLES = {
    "cost": "cost: how much the images differ",
    "motion": "mean motion of this step (px)",
    "moved": "median motion of this step (px)",
    "images": "images that were matched",
    "links": "pairs of images that were registered",
    "error": "error of the poses (px)",
    "blur": "blur of the images (px)",
    "level": "level, coarse to fine",
    "size": "size of the pictures (px)",
    "likeness": "likeness to the mean",
    "objective": "cost: rank plus errors",
    "inner": "inner steps",
    "correlation": "correlation with the mean",
    "failures": "images that could not be fitted",
    "loss": "loss: what training lowers",
    "distortion": "distortion: distance from the mean",
    "complexity": "complexity: residual of the auto-encoder",
    "rate": "learning rate",
}
MAX_NAME_LENGTH = 300
"""Characters of a name or reason on the page."""


def write_report(run: RunFolder) -> Path:
    """Write RUN/report.html from the files in the folder; gives its path."""
    path = run / "report.html"
    write_text(path, fill_template("report.html.j2", **gather_run(run)))
    return path


def gather_run(run: RunFolder) -> dict[str, Any]:
    """Everything a report shows; parts that the run does not have are None or empty."""
    metrics, config = run.read_json("metrics.json"), shown_config(run)
    skipped = run.read_rows("skipped.csv")
    confidence = confidence_of(run)
    faceless = [row["id"] for row in run.read_rows("boxes.csv") if row["remark"]]
    whole = set_numbers(run, metrics["n_images"] + metrics["n_skipped"])
    charts = [] if whole is None else histograms(whole.numbers)
    contrast = page_contrast(run)
    sure = shown_confidence(run, confidence)
    cards = gallery(run, confidence, contrast, charts if sure is None else [*charts, sure["chart"]])
    return {
        "name": run.path.resolve().name,
        "config": {key: value for key, value in config.items() if key not in ("params", "command", "version")},
        "command": config.get("command"),
        "params": config.get("params") or {},
        "metrics": metrics,
        "decided": decided(metrics),
        "laid": orientation_sentence(metrics),
        "lines": gather_matches(run),
        "confidence": sure,
        "steps": next_steps(metrics, config, run.path.name),
        "pictures": pictures(run, contrast),
        "curves": [
            {**one, "name": COLUMN_TITLES.get(one["name"], one["name"])} for one in curves(run.read_rows("metrics.csv"))
        ],
        "histograms": charts,
        "unmoved": [] if whole is None else [q.name for q in QUANTITIES if not changed(q, whole.numbers[q.key])],
        "drift": None if whole is None else drift({q.key: whole.numbers[q.key] for q in QUANTITIES}, whole.step),
        "gallery": cards,
        "groups": gather_groups(run, metrics, cards, contrast),
        "worst": images_to_check(cards, usual_values(whole, confidence)),
        "skipped": [
            {key: row[key][:MAX_NAME_LENGTH] for key in ("id", "reason")} for row in skipped[:MAX_LISTED_SKIPPED]
        ],
        "n_skipped": len(skipped),
        "faceless": [name[:MAX_NAME_LENGTH] for name in faceless[:MAX_LISTED_SKIPPED]],
        "n_faceless": len(faceless),
        "versions": {"congeal": metrics.get("version", ""), **run.state.get("versions", {})},
    }


def page_contrast(run: RunFolder) -> Contrast:
    """How pictures of a run's images are shown on its pages: as they are, or stretched where they have little
    contrast."""
    quality = run.state.get("quality")
    dark_ground = isinstance(quality, dict) and quality.get("kind") == "object"
    before = sorted((run.work / "samples").glob("*_before.png"))
    return contrast_of([*before, run / "mean.png"], dark_ground=dark_ground)


def pictures(run: RunFolder, contrast: Contrast) -> dict[str, Any]:
    """Mean and spread of the set before and after, and what was done to show them."""
    means = {"before": run.work / "mean_before.png", "after": run / "mean.png"}
    spreads = {"before": run.work / "variance_before.png", "after": run / "variance.png"}
    gain = brightened(spreads.values())
    return {
        "mean": {side: picture(path, contrast=contrast) for side, path in means.items()},
        "variance": {side: picture(path, contrast=gain) for side, path in spreads.items()},
        "stretched": contrast.stretched,
        "brightened": gain.gain,
    }


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


def usual_values(whole: SetNumbers | None, confidence: Confidence | None) -> dict[str, tuple[float, float]]:
    """What is usual in a set, for saying what is not."""
    nothing = np.zeros(0)
    numbers = {} if whole is None else whole.numbers
    usual = {key: typical(numbers.get(key, nothing)) for key in ("score", "corners")}
    usual["out_of_frame"] = typical(numbers.get("outside", nothing) / 100)
    return usual | {"uncertainty": typical(nothing if confidence is None else confidence.uncertainty)}
