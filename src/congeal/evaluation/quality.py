"""`Quality`, the numbers of an alignment and what they mean, and `PixelMeter`, which takes the plain ones in one pass.

APSNR alone rewards cheating: shrinking the object or pushing it out of the frame raises it without bound; and on
photographs crisp detail lowers it. The verdict rests on likeness, on the energy ratio and on the scale.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from congeal.evaluation.apsnr import PEAK, decibels
from congeal.evaluation.arrays import Array, as_numpy
from congeal.evaluation.preview import Preview, describe_metrics, notebook_page
from congeal.evaluation.statistics import RunningStats
from congeal.evaluation.total_intensity import blank, energy_ratio, ink
from congeal.evaluation.verdict import COLLAPSED, Evidence, advise, judge


@dataclasses.dataclass(frozen=True)
class Quality(Evidence):
    """How well a set is aligned, and whether the object is still there: the part of `metrics.json` that judges.

    Attributes
    ----------
    n_images, kind, likeness_before, likeness_after, …
        What was measured, see `congeal.evaluation.verdict.Evidence`.
    collapsed : bool
        The object was shrunk, enlarged or lost.
    verdict : str
        One word, one of `congeal.evaluation.verdict.VERDICTS`.
    advice : str
        What the verdict rests on and what to do, in one or two sentences.
    preview : Preview or None
        Small pictures of the set, for notebooks; not a number, and in no file.
    """

    collapsed: bool = True
    verdict: str = "failed"
    advice: str = ""
    preview: Preview | None = dataclasses.field(default=None, repr=False, compare=False)

    @classmethod
    def judged(cls, seen: Evidence) -> Quality:
        """The evidence, and what it means."""
        verdict = judge(seen)
        numbers = {field.name: getattr(seen, field.name) for field in dataclasses.fields(Evidence)}
        return cls(**numbers, collapsed=verdict in COLLAPSED, verdict=verdict, advice=advise(seen, verdict))

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, which knows neither NaN nor infinity: both become None."""
        values = dataclasses.asdict(dataclasses.replace(self, preview=None))
        del values["preview"]
        return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in values.items()}

    def _repr_html_(self) -> str:
        """Notebook view: before and after, the numbers in words, the worst images."""
        return notebook_page(f"{self.verdict.capitalize()}. {self.advice}", describe_metrics(self), self.preview)


class PixelMeter:
    """APSNR, energy ratio and blank share in one pass over batches, arrays or tensors with values in [0, 1].

    Parameters
    ----------
    aligned_area : float
        Aligned pixels per source pixel at the start (1 when both have one resolution), so that ink is compared at one
        resolution.

    Attributes
    ----------
    before, after : RunningStats
        Mean and variance of the images so far, on the 0–255 scale.
    """

    def __init__(self, aligned_area: float = 1.0) -> None:
        self.before, self.after = RunningStats(), RunningStats()
        # Of each image in single precision, which is enough for a median; sums are exact.
        self._aligned_ink: list[NDArray[np.float32]] = []
        self._source_ink: list[NDArray[np.float32]] = []
        self._aligned_total = self._source_total = 0.0
        self._area = aligned_area

    def update_before(self, images: Any, masks: Any = None) -> None:
        """Images (B,C,h,w) as the start shows them in the frame; masks weight mean and variance."""
        self.before.update(_scaled(images), masks)

    def update_after(self, images: Any, source_images: Any, masks: Any = None) -> None:
        """Aligned images (B,C,h,w), and the same images before any warp, the initial one included."""
        values = _scaled(images)
        self.after.update(values, masks)
        aligned, source = ink(values) / self._area, ink(source_images) * PEAK
        self._aligned_ink.append(aligned.astype(np.float32))
        self._source_ink.append(source.astype(np.float32))
        self._aligned_total += float(aligned.sum())
        self._source_total += float(source.sum())

    def merge(self, other: PixelMeter) -> None:
        """Take in all that `other` has seen."""
        self.before.merge(other.before)
        self.after.merge(other.after)
        self._aligned_ink += other._aligned_ink
        self._source_ink += other._source_ink
        self._aligned_total += other._aligned_total
        self._source_total += other._source_total

    def state(self) -> dict[str, Array]:
        """All that was seen, as arrays by name."""
        both = {"before": self.before, "after": self.after}
        arrays = {f"{name}.{key}": array for name, one in both.items() for key, array in one.state().items()}
        arrays["aligned_ink"] = np.concatenate([*self._aligned_ink, np.empty(0, np.float32)])
        arrays["source_ink"] = np.concatenate([*self._source_ink, np.empty(0, np.float32)])
        return {**arrays, "totals": np.array([self._aligned_total, self._source_total])}

    def restore(self, state: Mapping[str, Array]) -> PixelMeter:
        """The inverse of `state`."""
        parts = {name: [key for key in state if key.startswith(f"{name}.")] for name in ("before", "after")}
        self.before, self.after = (
            RunningStats.restore({key.partition(".")[2]: state[key] for key in keys}) for keys in parts.values()
        )
        self._aligned_ink, self._source_ink = [state["aligned_ink"]], [state["source_ink"]]
        self._aligned_total, self._source_total = (float(total) for total in state["totals"])
        return self

    def numbers(self) -> dict[str, float]:
        """apsnr_before, apsnr_after, energy_ratio and blank_share of `Evidence`."""
        n = self.after.count
        median = float(np.median(np.concatenate(self._source_ink))) if n else 0.0
        return {
            "apsnr_before": decibels(self.before.mse) if self.before.count else float("nan"),
            "apsnr_after": decibels(self.after.mse) if n else float("nan"),
            "energy_ratio": energy_ratio(self._aligned_total, self._source_total),
            "blank_share": sum(int(blank(part, median).sum()) for part in self._aligned_ink) / n if n else 1.0,
        }


def _scaled(images: Any) -> Array:
    return np.multiply(as_numpy(images), PEAK)
