"""The images that the page shows: their thumbnails, error bars, and place in the charts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from congeal.errors import CongealError
from congeal.files import read_json
from congeal.report.charts import bin_of, histogram
from congeal.report.motion import moves, orientation_sentence, orientation_words
from congeal.report.pictures import Contrast, picture
from congeal.runs.folder import RunFolder
from congeal.transforms.files import load_array, load_some

MAX_THUMBNAIL_PNG_BYTES = 8_000
"""A larger thumbnail is written as JPEG."""
MAX_THUMBNAIL_BYTES = 18_000
"""Upper bound of a thumbnail: a page has up to two hundred of them."""
UNSURE_RATIO = 3.0
"""A pose is unsure if its standard error is more than this many times the median of the set …"""
MIN_UNSURE_PX = 0.25
"""… and more than this many pixels: if all poses are exact, none is in doubt."""
MAX_LISTED_UNSURE = 8


@dataclass(frozen=True)
class Confidence:
    """Error bars of a run's N images, in source pixels.

    Attributes
    ----------
    uncertainty : ndarray, shape (N,)
        Standard error of each pose; NaN where it is not known.
    limit : float
        Images beyond it are unsure.
    """

    uncertainty: NDArray[np.float64]
    limit: float

    def unsure(self, index: int) -> bool:
        """Whether the pose of this image is much less certain than the others."""
        return bool(self.uncertainty[index] > self.limit)


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
    values = confidence.uncertainty
    order = np.argsort(-np.nan_to_num(values, nan=-1.0), kind="stable")[:MAX_LISTED_UNSURE]
    least = [int(i) for i in order if values[i] > confidence.limit]
    names = load_some(run.work / "found.npz", "ids", least)
    chart = histogram("Uncertainty of the pose", values, "px")
    assert chart is not None  # at least one is known
    return {
        "chart": {**chart, "key": "uncertainty"},
        "limit": confidence.limit,
        "n_unsure": int((values > confidence.limit).sum()),
        "least": [{"id": name, "px": float(values[i])} for name, i in zip(names, least, strict=True)],
    }


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
            side: picture(path, largest_png=MAX_THUMBNAIL_PNG_BYTES, contrast=contrast, largest=MAX_THUMBNAIL_BYTES)
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
    return sorted(cards, key=gallery_order)


def sample_words(run: RunFolder, samples: list[dict[str, Any]]) -> list[str]:
    """The orientation of a few images in words; empty if all images of the set are upright."""
    found, metrics = run.work / "found.npz", run.read_json("metrics.json")
    if not samples or not found.exists() or not orientation_sentence(metrics):
        return [""] * len(samples)
    return orientation_words(np.stack(load_some(found, "matrices", [sample["index"] for sample in samples])))


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


def gallery_order(card: dict[str, Any]) -> tuple[bool, float]:
    """Sort key of a card: flagged and unsure images first, then those least like the mean."""
    return card["status"] == "ok" and not card["unsure"], -2.0 if card["score"] is None else card["score"]
