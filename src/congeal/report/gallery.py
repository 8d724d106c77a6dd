"""The images that the page shows: their thumbnails, numbers, error bars, and place in the charts."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from congeal.errors import CongealError
from congeal.files import read_json
from congeal.report.charts import bin_of, histogram
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
from congeal.report.pictures import Contrast, picture
from congeal.runs.folder import RunFolder
from congeal.transforms import Transforms
from congeal.transforms.files import load_ids, load_numbers, load_some

MAX_THUMBNAIL_PNG_BYTES = 8_000
"""A larger thumbnail is written as JPEG."""
MAX_THUMBNAIL_BYTES = 18_000
"""Upper bound of a thumbnail: a page has up to two hundred of them."""
MAX_HISTOGRAM_ROWS = 100_000
"""Number of evenly spaced images whose transforms are read for the histograms: their shape needs no more."""
UNSURE_RATIO = 3.0
"""A pose is unsure if its standard error is more than this many times the median of the set …"""
MIN_UNSURE_PX = 0.25
"""… and more than this many pixels: if all poses are exact, none is in doubt."""
MAX_LISTED_UNSURE = 8

ImageNumbers = dict[str, NDArray[np.float64]]
"""What charts show of N images, each (N,) by the key of its `Quantity`; NaN for images without a pose."""


class SetNumbers(NamedTuple):
    """Numbers of every step-th image of the source, in its order."""

    step: int
    numbers: ImageNumbers


def image_numbers(after: Any, before: Any, size: tuple[int, int], score: Any, out_of_frame: Any) -> ImageNumbers:
    """What was done to images, from `aligned_from_source` (N,3,3) after and before, and how they lie now."""
    moved = moves(np.asarray(after), np.asarray(before), size)
    known = np.isfinite(moved["corners"])
    shown = {SCORE.key: score, EMPTY_SHARE.key: 100 * np.asarray(out_of_frame)}
    return moved | {key: np.where(known, values, np.nan) for key, values in shown.items()}


def set_numbers(run: RunFolder, n_images: int) -> SetNumbers | None:
    """The numbers of the images of a run; None where it does not say where they started."""
    found, start = (run.work / f"{name}.npz" for name in ("found", "start"))
    if not found.exists() or not start.exists():
        return None
    step = -(-n_images // MAX_HISTOGRAM_ROWS) or 1
    after, before = Transforms.load(found, step), Transforms.load(start, step)
    if after.aligned_size is None:
        return None
    facts = (after.aligned_size, after.score, after.out_of_frame)
    return SetNumbers(step, image_numbers(after.matrices, before.matrices, *facts))


def sample_numbers(run: RunFolder, rows: list[int]) -> list[dict[str, float]]:
    """The known numbers of a few images by their position in the source; empty where the run does not say."""
    found, start = (run.work / f"{name}.npz" for name in ("found", "start"))
    size = run.read_json("metrics.json").get("aligned_size")
    if not rows or not size or not found.exists() or not start.exists():
        return [{} for _ in rows]
    try:
        after, before = (load_some(path, "matrices", rows) for path in (found, start))
        facts = (load_some(found, name, rows) for name in ("score", "out_of_frame"))
        numbers = image_numbers(np.stack(after), np.stack(before), (size[0], size[1]), *facts)
    except KeyError as error:  # more rows in one file than in the other
        raise CongealError(f"{run.work / 'samples.json'} is damaged; run 'congeal align' into a new folder") from error
    return [{key: float(array[k]) for key, array in numbers.items() if array[k] == array[k]} for k in range(len(rows))]


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
    values = load_numbers(path, "uncertainty_px") if path.exists() else None
    if values is None or not np.isfinite(values).any():
        return None
    return Confidence(values, max(UNSURE_RATIO * float(np.nanmedian(values)), MIN_UNSURE_PX))


def shown_confidence(run: RunFolder, confidence: Confidence | None) -> dict[str, Any] | None:
    """What a page shows of it: a histogram, how many images are unsure, and the names of the least certain ones."""
    if confidence is None:
        return None
    values, limit = confidence
    order = np.argsort(-np.nan_to_num(values, nan=-1.0), kind="stable")[:MAX_LISTED_UNSURE]
    least = [int(i) for i in order if values[i] > limit]
    names = load_ids(run.work / "found.npz", least)
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
    rows, cards = [sample["index"] for sample in samples], []
    for sample, known, laid in zip(samples, sample_numbers(run, rows), sample_orientations(run, rows), strict=True):
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
    return sorted(cards, key=gallery_order)


def sample_orientations(run: RunFolder, rows: list[int]) -> list[str]:
    """The orientation of a few images in words; empty if all images of the set are upright."""
    found, metrics = run.work / "found.npz", run.read_json("metrics.json")
    if not rows or not found.exists() or not orientation_sentence(metrics):
        return [""] * len(rows)
    return orientation_words(np.stack(load_some(found, "matrices", rows)))


def gallery_order(card: dict[str, Any]) -> tuple[bool, float]:
    """Sort key of a card: flagged and unsure images first, then those least like the mean."""
    return card["status"] == "ok" and not card["unsure"], -2.0 if card["score"] is None else card["score"]
