"""The page of one run: text, numbers, charts and data URIs gathered from the run folder, and put into the template."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from congeal.files import write_text
from congeal.images.sources.files import without_credentials
from congeal.report.advice import images_to_check, next_steps, typical
from congeal.report.charts import curves, histogram
from congeal.report.gallery import Confidence, confidence_of, gallery, shown_confidence
from congeal.report.groups import gather_groups
from congeal.report.match_figure import gather_matches
from congeal.report.motion import QUANTITIES, changed, drift, moves, orientation_sentence
from congeal.report.page import fill_template
from congeal.report.pictures import Contrast, brightened, contrast_of, picture
from congeal.runs.folder import RunFolder
from congeal.transforms import Transforms

MAX_LISTED_SKIPPED = 200
MAX_HISTOGRAM_ROWS = 100_000
"""Number of evenly spaced images whose transforms are read for the histograms."""
COLUMN_TITLES = {
    "cost": "cost: how much the images differ",
    "motion": "mean motion of this step (px)",
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
    whole = gather_moves(run, metrics["n_images"] + metrics["n_skipped"])
    charts = [] if whole is None else histograms(whole)
    contrast = page_contrast(run)
    sure = shown_confidence(run, confidence)
    cards = gallery(run, confidence, contrast, charts if sure is None else [*charts, sure["chart"]])
    usual = usual_values(whole, confidence)
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
        "unmoved": [] if whole is None else [q.name for q in QUANTITIES if not changed(q, whole.moved[q.key])],
        "drift": None if whole is None else drift(whole.moved, whole.step),
        "gallery": cards,
        "groups": gather_groups(run, metrics, cards, contrast),
        "worst": images_to_check(cards, usual),
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


def shown_config(run: RunFolder) -> dict[str, Any]:
    """config.json as a page may show it: without passwords, whoever wrote the file."""
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


@dataclass(frozen=True)
class SetMotion:
    """What the alignment did to the images of a set: every step-th of them, in the order of the source; NaN for images
    without a pose. moved: `congeal.report.motion.moves`, by key."""

    step: int
    moved: dict[str, np.ndarray]
    score: np.ndarray
    out_of_frame: np.ndarray


def gather_moves(run: RunFolder, n_images: int) -> SetMotion | None:
    """The transforms of a run relative to where they started; None where it does not say."""
    found, start = (run.work / f"{name}.npz" for name in ("found", "start"))
    if not found.exists() or not start.exists():
        return None
    step = -(-n_images // MAX_HISTOGRAM_ROWS) or 1  # the shape of a histogram needs no more
    after, before = Transforms.load(found, step), Transforms.load(start, step)
    if after.aligned_size is None:
        return None
    known = np.isfinite(after.matrices).all(axis=(1, 2)) & np.isfinite(before.matrices).all(axis=(1, 2))
    score, out_of_frame = (np.where(known, values, np.nan) for values in (after.score, after.out_of_frame))
    return SetMotion(step, moves(after.matrices, before.matrices, after.aligned_size), score, out_of_frame)


def histograms(whole: SetMotion) -> list[dict[str, Any]]:
    """One chart per quantity that changed, and those of likeness and of what lies outside."""
    charts = [
        (quantity.key, histogram(quantity.name, whole.moved[quantity.key], quantity.unit, quantity.neutral))
        for quantity in QUANTITIES
        if changed(quantity, whole.moved[quantity.key])
    ]
    charts += [
        ("score", histogram("Likeness to the mean", whole.score)),
        ("outside", histogram("Frame without image under it", 100 * whole.out_of_frame, "%")),
    ]
    return [{**chart, "key": key} for key, chart in charts if chart is not None]


def usual_values(whole: SetMotion | None, confidence: Confidence | None) -> dict[str, tuple[float, float]]:
    """What is usual in a set, for saying what is not."""
    nothing = np.zeros(0)
    return {
        "score": typical(nothing if whole is None else whole.score),
        "corners": typical(nothing if whole is None else whole.moved["corners"]),
        "out_of_frame": typical(nothing if whole is None else whole.out_of_frame),
        "uncertainty": typical(nothing if confidence is None else confidence.uncertainty),
    }
