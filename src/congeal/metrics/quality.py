"""`Quality`, the numbers of an alignment, and `QualityMeter`, which measures them in one pass over the images.

APSNR alone rewards cheating: shrinking the object or pushing it out of the frame raises it without bound. `Quality`
therefore has the energy ratio, the scale, and the shares of blank and out-of-frame pixels beside it, and calls a
collapse a collapse.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from congeal.metrics.arrays import Array, as_numpy
from congeal.metrics.decibels import PEAK, decibels
from congeal.metrics.energy import blank, energy_ratio, ink
from congeal.metrics.statistics import RunningStats
from congeal.metrics.verdict import ADVICE, judge


@dataclasses.dataclass(frozen=True)
class Quality:
    """How well a set is aligned, and whether the object is still there: the part of `metrics.json` that judges.

    Shares and ratios are fractions of 1; a number that cannot be had is NaN.

    Attributes
    ----------
    n_images : int
        Images measured; skipped ones are not among them.
    apsnr_before, apsnr_after : float
        Alignment peak signal-to-noise ratio, in dB: likeness to the mean image, at the start and as aligned.
    energy_ratio : float
        Ink (sum of pixel values) of the aligned images divided by that of the sources; 1 is right.
    mean_scale : float
        Geometric mean of how much the images were enlarged, relative to the start; 1 is unchanged.
    blank_share : float
        Share of aligned images with next to no ink left.
    out_of_frame_share : float
        Mean share of the aligned frame that lies outside its source image.
    kind : str
        "object" (on empty dark ground) or "photo".
    collapsed : bool
        The object was shrunk, enlarged or lost, so that APSNR means nothing.
    verdict : str
        One word, a key of `congeal.metrics.verdict.ADVICE`.
    advice : str
        What the verdict means and what to do, in one sentence.
    """

    n_images: int
    apsnr_before: float
    apsnr_after: float
    energy_ratio: float
    mean_scale: float
    blank_share: float
    out_of_frame_share: float
    kind: str
    collapsed: bool
    verdict: str
    advice: str

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, which knows neither NaN nor infinity: both become None."""
        values = dataclasses.asdict(self)
        return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in values.items()}


class QualityMeter:
    """`Quality` in one pass over batches of images, arrays or tensors with values in [0, 1].

    Parameters
    ----------
    kind : str
        "object" or "photo".
    aligned_area : float
        Aligned pixels per source pixel at the start (1 when both have one resolution), so that ink is compared at one
        resolution.

    Attributes
    ----------
    before, after : RunningStats
        Mean and variance of the images so far, on the 0–255 scale.
    """

    def __init__(self, kind: str, aligned_area: float = 1.0) -> None:
        self.before, self.after = RunningStats(), RunningStats()
        # Of each image in single precision, which is enough for a median; sums are exact.
        self._aligned_ink: list[NDArray[np.float32]] = []
        self._source_ink: list[NDArray[np.float32]] = []
        self._aligned_total = self._source_total = 0.0
        self._area, self.kind = aligned_area, kind

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

    def finish(
        self,
        *,
        mean_scale: float,
        out_of_frame: Any,
        out_of_frame_before: Any = 0.0,
        expected_energy: float = 1.0,
    ) -> Quality:
        """The result. mean_scale is relative to the start; out-of-frame shares are per image or already averaged.

        expected_energy: the energy ratio that is right; not 1 only where the user's start zooms and the motion may not
        take that back.
        """
        n = self.after.count
        outside, outside_before = _known_mean(out_of_frame), _known_mean(out_of_frame_before)
        ratio = energy_ratio(self._aligned_total, self._source_total)
        median = float(np.median(np.concatenate(self._source_ink))) if n else 0.0
        empty = sum(int(blank(part, median).sum()) for part in self._aligned_ink) / n if n else 1.0
        before = decibels(self.before.mse) if self.before.count else float("nan")
        after = decibels(self.after.mse) if n else float("nan")
        verdict, collapsed = judge(
            self.kind,
            apsnr_before=before,
            apsnr_after=after,
            energy_ratio=ratio / expected_energy,
            mean_scale=mean_scale,
            out_of_frame_rise=outside - outside_before,
        )
        return Quality(
            n_images=n,
            apsnr_before=before,
            apsnr_after=after,
            energy_ratio=ratio,
            mean_scale=float(mean_scale),
            blank_share=empty,
            out_of_frame_share=outside,
            kind=self.kind,
            collapsed=collapsed,
            verdict=verdict,
            advice=ADVICE[verdict],
        )


def _scaled(images: Any) -> Array:
    return np.multiply(as_numpy(images), PEAK)


def _known_mean(values: Any) -> float:
    array = as_numpy(values)
    return float(np.nanmean(array)) if np.isfinite(array).any() else float("nan")
