"""The page of one run: text, numbers, charts and data URIs gathered from the run folder, and put into the template."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from congeal.files import write_text
from congeal.report.charts import curves, short, two_figures
from congeal.report.motion import QUANTITIES, changed, drift, orientation_sentence
from congeal.report.page import (
    MAX_LISTED_NAMES,
    MAX_NAME_LENGTH,
    Contrast,
    contrast_of,
    fill_template,
    listed_skipped,
    picture,
    shown_config,
)
from congeal.report.sections import (
    MAX_HISTOGRAM_ROWS,
    confidence_of,
    gallery,
    gather_groups,
    gather_matches,
    histograms,
    image_numbers,
    shown_confidence,
)
from congeal.runs.folder import RunFolder
from congeal.transforms.files import load_array

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


def write_report(run: RunFolder) -> Path:
    """Write RUN/report.html from the files in the folder; gives its path."""
    path = run / "report.html"
    write_text(path, fill_template("report.html.j2", **gather_run(run)))
    return path


def gather_run(run: RunFolder) -> dict[str, Any]:
    """Everything a report shows; parts that the run does not have are None or empty."""
    metrics, config = run.read_json("metrics.json"), shown_config(run)
    confidence = confidence_of(run)
    faceless = [row["id"] for row in run.read_rows("boxes.csv") if row["remark"]]
    found = run.work / "found.npz"
    n_rows = len(load_array(found, "score")) if found.exists() else 0
    step = -(-n_rows // MAX_HISTOGRAM_ROWS) or 1
    numbers = image_numbers(run, range(0, n_rows, step))
    charts = [] if numbers is None else histograms(numbers)
    contrast = page_contrast(run)
    sure = shown_confidence(run, confidence)
    nothing = np.zeros(0)
    usual = {key: typical((numbers or {}).get(key, nothing)) for key in ("score", "corners")}
    usual["out_of_frame"] = typical((numbers or {}).get("outside", nothing) / 100)
    usual["uncertainty"] = typical(nothing if confidence is None else confidence.uncertainty)
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
        "unmoved": [] if numbers is None else [q.name for q in QUANTITIES if not changed(q, numbers[q.key])],
        "drift": None if numbers is None else drift({q.key: numbers[q.key] for q in QUANTITIES}, step),
        "gallery": cards,
        "groups": gather_groups(run, metrics, cards, contrast),
        "worst": [{**card, "reasons": reasons(card, usual)} for card in cards[:5]],
        **listed_skipped(run),
        "faceless": [name[:MAX_NAME_LENGTH] for name in faceless[:MAX_LISTED_NAMES]],
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
    gain = contrast_of(spreads.values(), dark_ground=True)
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


# ---- sentences: what to try next, and which images need a look and why

UsualValues = Mapping[str, tuple[float, float]]
"""By quantity: the median of the set, and the distance from it to the 84th percentile, see `typical`."""
SIMPLER = {"homography": "affine", "affine": "similarity", "similarity": "rigid", "rigid": "translation"}
RICHER = {simpler: motion for motion, simpler in SIMPLER.items()}
DISTORTED = ("shrunk", "zoomed")


def next_steps(metrics: dict[str, Any], config: dict[str, Any], run: str) -> list[str]:
    """At most four sentences that name the flag or command to use."""
    verdict, motion = metrics["verdict"], metrics.get("motion")
    steps = []
    if verdict in (*DISTORTED, "worse") and motion in SIMPLER:
        steps.append(f"Try --motion {SIMPLER[motion]} (this run: {motion}), which has fewer ways to go wrong.")
    if verdict == "unchanged" and motion in RICHER and metrics.get("motion_asked") != "auto":
        steps.append(f"If the images are not aligned yet, try --motion {RICHER[motion]} (this run: {motion}).")
    if verdict in (*DISTORTED, "worse"):
        steps.append("Try a clear, typical image as --reference PATH, or compare methods with 'congeal compare'.")
    if verdict == "failed" and not config.get("init"):
        steps.append("Give a rough start with --init boxes.csv if the object lies at very different places.")
    if verdict == "mixed":
        steps.append(
            f"Leave out the images that do not belong to the set: 'congeal studio {run}' shows the images, worst first."
        )
    status = metrics.get("status") or {}
    flagged = sum(status.get(name, 0) for name in ("outlier", "failed", "blank"))
    if flagged:
        steps.append(
            f"Flagged: {counted(flagged)} of {metrics['n_images']:,}, first in the gallery below. "
            f"'congeal studio {run}' marks images as excluded."
        )
    if metrics.get("n_skipped"):
        steps.append(f"Not used: {counted(metrics['n_skipped'])}; the reasons are in the list of skipped images.")
    if not metrics["collapsed"] and verdict == "good":
        commands = f"'congeal studio {run}' or 'congeal propagate {run}'"
        steps.append(f"To carry marks to every image, draw them once on the mean: {commands}.")
    return steps[:4]


def counted(n: int) -> str:
    """A number of images in words."""
    return f"{n:,} image" if n == 1 else f"{n:,} images"


MIN_EMPTY_SHARE = 0.2
"""Share of the frame without image above which an image is said to leave it empty, if that is unusual in its set.
Chosen by judgement: less is a margin that any shift leaves."""
MIN_UNUSUAL_PX = 2.0
"""Pixels beyond the median below which no shift is called unusual. Chosen by judgement: less is hardly seen."""
UNUSUAL_DISTANCE = 4.0
"""A value is unusual if it is farther above the median than this many times the 84th percentile is: four standard
deviations, which one image in 30,000 reaches by chance."""
STATUS_REASONS = {
    "blank": "There is nothing to see in it (it is blank, or nearly), so it could not be aligned.",
    "failed": "It left the picture, or was distorted or scaled far more than the others: its pose makes no sense.",
    "outlier": "It does not look like the others ({score}): another thing, or a wrong pose.",
}


def typical(values: np.ndarray) -> tuple[float, float]:
    """The median, and the distance from it to the 84th percentile; NaN without a finite value."""
    known = values[np.isfinite(values)]
    if not len(known):
        return float("nan"), float("nan")
    middle, above = np.quantile(known, [0.5, 0.84])
    return float(middle), float(above - middle)


def reasons(card: Mapping[str, Any], usual: UsualValues) -> list[str]:
    """Why this image needs a look; what counts most comes first."""
    score, (middle, _) = "its likeness is not known", usual["score"]
    if card.get("score") is not None:
        score = f"likeness {card['score']:.2f}" + (f", where {middle:.2f} is usual" if np.isfinite(middle) else "")
    found = [STATUS_REASONS[card["status"]].format(score=score)] if card["status"] in STATUS_REASONS else []
    if card.get("unsure") and card.get("uncertainty") is not None:
        error, typical_error = two_figures(card["uncertainty"]), two_figures(usual["uncertainty"][0])
        found.append(f"Its pose is uncertain: ± {error} px, where ± {typical_error} px is usual.")
    empty, (middle, _) = card.get("out_of_frame"), usual["out_of_frame"]
    if is_unusual(empty, usual["out_of_frame"], MIN_EMPTY_SHARE):
        found.append(f"{100 * empty:.0f} % of the frame is not covered by it, where {100 * middle:.0f} % is usual.")
    moved, (middle, _) = (card.get("moved") or {}).get("corners"), usual["corners"]
    if is_unusual(moved, usual["corners"], middle + MIN_UNUSUAL_PX):
        found.append(
            f"It was moved unusually far: its corners by {short(moved)} px, where {short(middle)} px is usual."
        )
    return found or [f"Among the least like the mean: {score}."]


def is_unusual(value: Any, usual: tuple[float, float], least: float) -> TypeGuard[float]:
    """Whether a value is known, above `least`, and far above what is usual."""
    middle, spread = usual
    if value is None or not np.isfinite([value, middle, spread]).all():
        return False
    return bool(value > max(least, middle + UNUSUAL_DISTANCE * spread))
