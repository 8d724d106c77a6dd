"""Reads a run folder into a plain dict of text, numbers, charts and data URIs; knows nothing of HTML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from congeal.errors import CongealError
from congeal.files import read_json
from congeal.images.remote import without_credentials
from congeal.report.advice import next_steps
from congeal.report.charts import bin_of, curves, histogram
from congeal.report.confidence import Confidence, confidence_of, shown_confidence
from congeal.report.contrast import Contrast, brightened, contrast_of
from congeal.report.drift import drift
from congeal.report.groups import gather_groups
from congeal.report.lines import gather_lines, laid_sentence, laid_words
from congeal.report.moves import QUANTITIES, changed, moves
from congeal.report.pictures import picture
from congeal.report.worst import typical, worst
from congeal.runs.folder import RunFolder
from congeal.transforms import Transforms
from congeal.transforms.files import load_some

MOST_SKIPPED = 200
MOST_ROWS = 100_000  # of the transforms, evenly spread, in a histogram
LARGEST_THUMBNAIL = 8_000  # bytes as PNG, beyond that it is a JPEG …
MOST_OF_A_THUMBNAIL = 18_000  # … of at most so many bytes; there are up to two hundred of them
# Of metrics.json, what runs of earlier versions do not have.
NEWER = ("motion_asked", "likeness_before", "likeness_after", "improved_share", "uncertainty_px", "trained", "levels")
# Columns of metrics.csv, in words.
WATCHED = {
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
    "complexity": "complexity: what is left unexplained",
    "rate": "learning rate",
}
LONGEST_ID = 300  # characters of a name or reason that are shown


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
        "metrics": {**dict.fromkeys(NEWER), **metrics},
        "decided": decided(metrics),
        "laid": laid_sentence(metrics),
        "lines": gather_lines(run),
        "confidence": sure,
        "steps": next_steps(metrics, config, run.path.name),
        "pictures": pictures(run, contrast),
        "curves": [
            {**one, "name": WATCHED.get(one["name"], one["name"])} for one in curves(run.read_rows("metrics.csv"))
        ],
        "histograms": charts,
        "unmoved": [] if whole is None else [q.name for q in QUANTITIES if not changed(q, whole.moved[q.key])],
        "drift": None if whole is None else drift(whole.moved, whole.step),
        "gallery": cards,
        "groups": gather_groups(run, metrics, cards, contrast),
        "worst": worst(cards, usual),
        "skipped": [{key: row[key][:LONGEST_ID] for key in ("id", "reason")} for row in skipped[:MOST_SKIPPED]],
        "n_skipped": len(skipped),
        "faceless": [name[:LONGEST_ID] for name in faceless[:MOST_SKIPPED]],
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


def watched(run: RunFolder) -> list[dict[str, Any]]:
    """What the method watched step by step, with names that are words."""
    charts = curves(run.read_rows("metrics.csv"))
    return [{**chart, "name": WATCHED.get(chart["name"], chart["name"])} for chart in charts]


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


def gallery(
    run: RunFolder, confidence: Confidence | None, contrast: Contrast, charts: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The images kept while rendering, with both pictures: flagged and unsure ones first, then the least like the
    mean. `bins` of a card: the bar that it is in, of each of the charts."""
    listing = run.work / "samples.json"
    samples = read_json(listing) if listing.exists() else []
    for sample in samples:
        if not isinstance(sample, dict) or not isinstance(sample.get("index"), int):
            raise CongealError(f"{listing} is damaged; run 'congeal align' into a new folder")
    values = sample_values(run, [sample["index"] for sample in samples])
    cards = []
    for sample, own, laid in zip(samples, values, sample_words(run, samples), strict=True):
        files = {side: run.work / "samples" / f"{sample['index']}_{side}.png" for side in ("before", "after")}
        pair = {
            side: picture(path, largest_png=LARGEST_THUMBNAIL, contrast=contrast, largest=MOST_OF_A_THUMBNAIL)
            for side, path in files.items()
        }
        if not all(pair.values()):
            continue
        sure: dict[str, Any] = {"uncertainty": None, "unsure": False}
        if confidence is not None and 0 <= sample["index"] < len(confidence.uncertainty):
            error = float(confidence.uncertainty[sample["index"]])
            sure = {"uncertainty": error if error == error else None, "unsure": confidence.unsure(sample["index"])}
        own["uncertainty"] = float("nan") if sure["uncertainty"] is None else sure["uncertainty"]
        bins = [bin_of(chart, own.get(chart["key"], float("nan"))) for chart in charts]
        known = {key: value for key, value in own.items() if value == value}
        cards.append(
            {
                **sample,
                **pair,
                **sure,
                "bins": bins,
                "moved": known,
                "out_of_frame": known.get("out_of_frame"),
                "laid": laid,
            }
        )
    return sorted(cards, key=attention)


def sample_words(run: RunFolder, samples: list[dict[str, Any]]) -> list[str]:
    """How a few images were laid down, in words; empty where none of the set may lie otherwise."""
    found, metrics = run.work / "found.npz", run.read_json("metrics.json")
    if not samples or not found.exists() or not laid_sentence(metrics):
        return [""] * len(samples)
    return laid_words(np.stack(load_some(found, "matrices", [sample["index"] for sample in samples])))


def sample_values(run: RunFolder, rows: list[int]) -> list[dict[str, float]]:
    """What the charts show, of a few images by their position in the source; empty where the run does not say."""
    found, start = (run.work / f"{name}.npz" for name in ("found", "start"))
    size = run.read_json("metrics.json").get("aligned_size")
    if not rows or not size or not found.exists() or not start.exists():
        return [{} for _ in rows]
    try:
        after, before = (np.stack(load_some(path, "matrices", rows)) for path in (found, start))
        numbers = {name: load_some(found, name, rows) for name in ("score", "out_of_frame")}
    except KeyError as error:  # more rows in one file than in the other
        raise CongealError(f"{run.work / 'samples.json'} is damaged; run 'congeal align' into a new folder") from error
    numbers["outside"] = [100 * value for value in numbers["out_of_frame"]]
    columns: dict[str, Any] = {**moves(after, before, (size[0], size[1])), **numbers}
    return [{key: float(column[k]) for key, column in columns.items()} for k in range(len(rows))]


def attention(card: dict[str, Any]) -> tuple[bool, float]:
    """Where a card comes in the gallery."""
    return card["status"] == "ok" and not card["unsure"], -2.0 if card["score"] is None else card["score"]


@dataclass(frozen=True)
class Moved:
    """What the alignment did to the images of a set: every step-th of them, in the order of the source; NaN for images
    without a pose. moved: `congeal.report.moves`, by key."""

    step: int
    moved: dict[str, np.ndarray]
    score: np.ndarray
    out_of_frame: np.ndarray


def gather_moves(run: RunFolder, n_images: int) -> Moved | None:
    """The transforms of a run relative to where they started; None where it does not say."""
    found, start = (run.work / f"{name}.npz" for name in ("found", "start"))
    if not found.exists() or not start.exists():
        return None
    step = -(-n_images // MOST_ROWS) or 1  # the shape of a histogram needs no more
    after, before = Transforms.load(found, step), Transforms.load(start, step)
    if after.aligned_size is None:
        return None
    known = np.isfinite(after.matrices).all(axis=(1, 2)) & np.isfinite(before.matrices).all(axis=(1, 2))
    score, out_of_frame = (np.where(known, values, np.nan) for values in (after.score, after.out_of_frame))
    return Moved(step, moves(after.matrices, before.matrices, after.aligned_size), score, out_of_frame)


def histograms(whole: Moved) -> list[dict[str, Any]]:
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


def usual_values(whole: Moved | None, confidence: Confidence | None) -> dict[str, tuple[float, float]]:
    """What is usual in a set, for saying what is not."""
    nothing = np.zeros(0)
    return {
        "score": typical(nothing if whole is None else whole.score),
        "corners": typical(nothing if whole is None else whole.moved["corners"]),
        "out_of_frame": typical(nothing if whole is None else whole.out_of_frame),
        "uncertainty": typical(nothing if confidence is None else confidence.uncertainty),
    }
