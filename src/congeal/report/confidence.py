"""How sure the poses of a run are: the error bar of the set, and the images whose pose is least certain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from congeal.report.charts import histogram
from congeal.runs.folder import RunFolder
from congeal.transforms.files import load_ids, load_numbers

UNSURE = 3.0
"""An image is unsure when its error bar is more than so many times the median of the set …"""
LEAST_UNSURE = 0.25
"""… and more than so many pixels: among poses that are all exact, the last one is not in doubt."""
MOST_LISTED = 8


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
    values = load_numbers(path, "uncertainty_px") if path.exists() else None
    if values is None or not np.isfinite(values).any():
        return None
    return Confidence(values, max(UNSURE * float(np.nanmedian(values)), LEAST_UNSURE))


def shown_confidence(run: RunFolder, confidence: Confidence | None) -> dict[str, Any] | None:
    """What a page shows of it: a histogram, how many images are unsure, and the names of the least certain ones."""
    if confidence is None:
        return None
    values = confidence.uncertainty
    order = np.argsort(-np.nan_to_num(values, nan=-1.0), kind="stable")[:MOST_LISTED]
    least = [int(i) for i in order if values[i] > confidence.limit]
    names = load_ids(run.work / "found.npz", least)
    chart = histogram("Uncertainty of the pose", values, "px")
    assert chart is not None  # at least one is known
    return {
        "chart": {**chart, "key": "uncertainty"},
        "limit": confidence.limit,
        "n_unsure": int((values > confidence.limit).sum()),
        "least": [{"id": name, "px": float(values[i])} for name, i in zip(names, least, strict=True)],
    }
