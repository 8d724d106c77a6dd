"""Sections of a run's page: images with their numbers and error bars; groups, and pairs of images that match."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import dendrogram

from congeal.errors import CongealError
from congeal.files import read_json
from congeal.report.charts import bin_of, curve, histogram
from congeal.report.motion import (
    EMPTY_SHARE,
    QUANTITIES,
    SCORE,
    UNCERTAINTY,
    Quantity,
    changed,
    moves,
    orientation_sentence,
    orientation_words,
)
from congeal.report.page import Contrast, picture
from congeal.runs.folder import RunFolder
from congeal.transforms.files import load_array, load_some

MAX_THUMBNAIL_PNG_BYTES = 8_000
"""A larger thumbnail is written as JPEG."""
MAX_THUMBNAIL_BYTES = 18_000
"""Upper bound of a thumbnail: a page has up to two hundred of them."""
MAX_HISTOGRAM_ROWS = 100_000
"""Number of evenly spaced images whose transforms are read for the histograms: their shape needs no more."""
UNSURE_RATIO = 3.0
"""A pose is unsure if its standard error is more than this many times the median of the set (chosen by judgement: few
images are listed where errors are alike) …"""
MIN_UNSURE_PX = 0.25
"""… and more than this many pixels: if all poses are exact, none is in doubt."""

ImageNumbers = dict[str, NDArray[np.float64]]
"""What charts show of N images, each (N,) by the key of its `Quantity`; NaN for images without a pose."""
MAX_LISTED = 12
"""Number of images listed as unsure or shown of each group: one or two rows of the page. Chosen by judgement."""
LEAF_WIDTH, MERGE_HEIGHT, MARGIN = 64.0, 26.0, 16.0  # of the drawing of the dendrogram, in its units
PAIR_HEIGHT, PAIR_GAP = 300.0, 24.0
"""Height of a picture in the drawing of a pair, and the room between two."""
COLOURS = ("#e6550d", "#3182bd", "#31a354", "#d6219c", "#c8a400", "#756bb1", "#17a2a8", "#a63603", "#6b8e23", "#636363")


def image_numbers(run: RunFolder, rows: Sequence[int]) -> ImageNumbers | None:
    """What was done to images, by their position in the source, and how they lie now; None where the run does not say
    where they started."""
    found, start = (run.work / f"{name}.npz" for name in ("found", "start"))
    size = run.read_json("metrics.json").get("aligned_size")
    if not rows or not size or not found.exists() or not start.exists():
        return None
    try:
        after, before = (np.stack(load_some(path, "matrices", rows)) for path in (found, start))
        score, out_of_frame = (np.array(load_some(found, name, rows)) for name in ("score", "out_of_frame"))
    except IndexError as error:  # more rows in one file than in the other
        raise CongealError(f"{run.work} is damaged; run 'congeal align' into a new folder") from error
    moved = moves(after, before, (size[0], size[1]))
    known = np.isfinite(moved["corners"])
    shown = {SCORE.key: score, EMPTY_SHARE.key: 100 * out_of_frame}
    return moved | {key: np.where(known, values, np.nan) for key, values in shown.items()}


def chart(quantity: Quantity, values: NDArray[np.float64]) -> dict[str, Any] | None:
    """The histogram of a quantity; None without a value."""
    drawn = histogram(quantity.name, values, quantity.unit, quantity.neutral)
    return None if drawn is None else {**drawn, "key": quantity.key}


def histograms(numbers: ImageNumbers) -> list[dict[str, Any]]:
    """One chart per quantity that changed, and those of likeness and of what lies outside."""
    shown = [one for one in QUANTITIES if changed(one, numbers[one.key])]
    charts = [chart(one, numbers[one.key]) for one in (*shown, SCORE, EMPTY_SHARE)]
    return [one for one in charts if one is not None]


# ---- error bars


class Confidence(NamedTuple):
    """Standard error of each of N poses in source pixels, NaN where it is not known; images beyond `limit` are
    unsure."""

    uncertainty: NDArray[np.float64]
    limit: float


def confidence_of(run: RunFolder) -> Confidence | None:
    """The error bars of a run; None if its method has none."""
    path = run.work / "found.npz"
    values = load_array(path, "uncertainty_px") if path.exists() else None
    if values is None or not np.isfinite(values).any():
        return None
    return Confidence(values, max(UNSURE_RATIO * float(np.nanmedian(values)), MIN_UNSURE_PX))


def shown_confidence(run: RunFolder, confidence: Confidence | None) -> dict[str, Any] | None:
    """What a page shows of it: a histogram, how many images are unsure, and the names of the least certain ones."""
    if confidence is None:
        return None
    values, limit = confidence
    order = np.argsort(-np.nan_to_num(values, nan=-1.0), kind="stable")[:MAX_LISTED]
    least = [int(i) for i in order if values[i] > limit]
    names = load_some(run.work / "found.npz", "ids", least)
    return {
        "chart": chart(UNCERTAINTY, values),
        "limit": limit,
        "n_unsure": int((values > limit).sum()),
        "least": [{"id": name, "px": float(values[i])} for name, i in zip(names, least, strict=True)],
    }


# ---- cards


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
    rows, cards, oriented = [sample["index"] for sample in samples], [], [""] * len(samples)
    numbers = image_numbers(run, rows)
    if numbers is not None and orientation_sentence(run.read_json("metrics.json")):
        oriented = orientation_words(np.stack(load_some(run.work / "found.npz", "matrices", rows)))
    for k, (sample, laid) in enumerate(zip(samples, oriented, strict=True)):
        values = {} if numbers is None else {key: float(array[k]) for key, array in numbers.items()}
        known = {key: value for key, value in values.items() if value == value}
        files = {side: run.work / "samples" / f"{sample['index']}_{side}.png" for side in ("before", "after")}
        pair = {
            side: picture(path, largest_png=MAX_THUMBNAIL_PNG_BYTES, contrast=contrast, largest=MAX_THUMBNAIL_BYTES)
            for side, path in files.items()
        }
        if not all(pair.values()):
            continue
        unsure = False
        if confidence is not None and 0 <= sample["index"] < len(confidence.uncertainty):
            error = float(confidence.uncertainty[sample["index"]])
            known |= {UNCERTAINTY.key: error} if error == error else {}
            unsure = error > confidence.limit
        empty = known.get(EMPTY_SHARE.key)
        cards.append(
            {
                **sample,
                **pair,
                "uncertainty": known.get(UNCERTAINTY.key),
                "unsure": unsure,
                "bins": [bin_of(one, known.get(one["key"], float("nan"))) for one in charts],
                "moved": known,
                "out_of_frame": None if empty is None else empty / 100,
                "laid": laid,
            }
        )

    def order(card: dict[str, Any]) -> tuple[bool, float]:
        return card["status"] == "ok" and not card["unsure"], -2.0 if card["score"] is None else card["score"]

    return sorted(cards, key=order)


# ---- groups, and pairs of images that match


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
        members = [card for card in cards if card.get("group") == row["group"]][:MAX_LISTED]
        groups.append({"verdict": None, **row, "mean": mean, "members": members})
    unsure = [card for card in cards if card.get("group", -1) >= 0 and card.get("margin") is not None]
    points = np.array(decision.get("curve") or np.zeros((0, 2)), dtype=float)
    name = decision.get("curve_name", "share of neighbours in another group")
    labels = metrics.get("group_labels")  # each cell of their table with its share of the row
    shares = [[{"n": n, "share": n / max(1, sum(row))} for n in row] for row in labels["confusion"]] if labels else []
    advice = str(decision.get("advice") or "")
    sentences = [decision.get("sentence", ""), f"{advice[0].upper()}{advice[1:]}." if advice else ""]
    return {
        "sentence": " ".join(filter(None, sentences)),
        "groups": groups,
        "outside": metrics["n_images"] - sum(row["n_images"] for row in rows),
        "unsure": sorted(unsure, key=lambda card: card["margin"])[: 2 * MAX_LISTED],
        "curve": curve(name, points[:, 0], points[:, 1]),
        "tree": draw_dendrogram(decision.get("tree") or [], groups),
        "labels": labels and {**labels, "rows": shares},
    }


def draw_dendrogram(merges: Sequence[Sequence[float]], groups: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The dendrogram of groups as lines to draw: groups that merge first are side by side. Numbers as in
    `CongealGroups`; each merge is drawn one step higher than the one before."""
    count = len(groups)
    if not merges or len(merges) != count - 1:
        return None
    linkage = np.array([(one, other, i + 1, 0) for i, (one, other, _) in enumerate(merges)], dtype=np.float64)
    tree = dendrogram(linkage, no_plot=True, count_sort=False)
    foot, lines, joints = MARGIN + MERGE_HEIGHT * len(merges), [], []
    for across, up in zip(tree["icoord"], tree["dcoord"], strict=True):  # scipy has a leaf every 10 units
        x1, x2 = (MARGIN + LEAF_WIDTH * x / 10 for x in (across[0], across[3]))
        y1, y, y2 = (foot - MERGE_HEIGHT * height for height in up[:2] + up[3:])
        lines.append(f"M{x1:.0f},{y1:.0f} V{y:.0f} H{x2:.0f} V{y2:.0f}")
        joints.append({"x": max(x1, x2) + 3, "y": y - 3, "share": merges[round(up[1]) - 1][2]})
    leaves = [
        {"x": MARGIN + LEAF_WIDTH * (k + 0.5) - 24, "y": foot + 4, **groups[leaf]}
        for k, leaf in enumerate(tree["leaves"])
    ]
    width = 2 * MARGIN + LEAF_WIDTH * count
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
