"""Numbers of the pixels: APSNR, the total intensity (*ink*) of objects on empty ground, and the kind of a set.

APSNR, the alignment peak signal-to-noise ratio, says how near the images of a set are to their mean, in decibels (dB),
for pixels on the 0–255 scale. More is better, but shrinking or losing the object raises it too, and crisp detail of
photographs lowers it: read it together with the energy ratio and the scale (poses.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from congeal.evaluation.statistics import Array, RunningStats, as_numpy
from congeal.evaluation.thresholds import BLANK_INK, MAX_DARK_SHARE, MIN_DARK_BORDER, MIN_DARK_PIXELS, WHITE_QUANTILE

PEAK = 255.0
"""The largest pixel value."""


def apsnr(images: Any) -> float:
    """APSNR in dB of images (N, …): 10 log₁₀(255² / MSE), where MSE is the mean squared distance to the mean image.

    Infinite for identical images.
    """
    return decibels(RunningStats().update(images).mse)


def apsnr_from_variance(variance: Any) -> float:
    """APSNR in dB from the population variance of each pixel (0–255 scale): its mean over pixels is the MSE."""
    return decibels(float(np.mean(as_numpy(variance), dtype=np.float64)))


def decibels(mse: float) -> float:
    """Peak signal-to-noise ratio in dB of a mean squared error on the 0–255 scale; infinite for 0."""
    return float(10 * np.log10(PEAK**2 / mse)) if mse else float("inf")


def ink(images: Any) -> NDArray[np.float64]:
    """Sum of pixel values of each image: (N, …) → (N,)."""
    values = as_numpy(images)
    return values.reshape(len(values), -1).sum(1, dtype=np.float64)


def energy_ratio(aligned_ink: Any, source_ink: Any) -> float:
    """Ink of all aligned images over ink of all source images; 1 is right. NaN when the source has none."""
    source = float(np.sum(as_numpy(source_ink), dtype=np.float64))
    return float(np.sum(as_numpy(aligned_ink), dtype=np.float64)) / source if source > 0 else float("nan")


def blank(image_ink: Any, median: float | None = None) -> NDArray[np.bool_]:
    """(N,) True for images with no more than `BLANK_INK` (2 %) of the median ink (their own median unless given)."""
    values = as_numpy(image_ink)
    if len(values) == 0:
        return np.zeros(0, dtype=bool)
    return values <= BLANK_INK * (float(np.median(values)) if median is None else median)


def looks_like_objects(images: Any, masks: Any = None) -> str:
    """Kind of set: "object" on empty dark ground, where ink is a quantity to keep, or "photo", everything else.

    images (N,H,W) or (N,C,H,W). Object: at least `MIN_DARK_BORDER` (75 %) of the border pixels and `MIN_DARK_PIXELS`
    (40 %) of all pixels are darker than a tenth of the brightest value. `masks`, same shape up to broadcasting, are 0
    where there is only padding, which does not count.
    """
    values = as_numpy(images)
    valid = np.ones(values.shape, dtype=bool) if masks is None else np.broadcast_to(as_numpy(masks) > 0.5, values.shape)
    if values.ndim < 3 or not valid.any():
        return "photo"
    dark = values <= MAX_DARK_SHARE * float(np.quantile(values[valid], WHITE_QUANTILE))
    border = np.zeros(values.shape[-2:], dtype=bool)
    border[[0, -1]], border[:, [0, -1]] = True, True
    edge = valid & border
    if not edge.any():
        return "photo"
    empty = dark[edge].mean() >= MIN_DARK_BORDER and dark[valid].mean() >= MIN_DARK_PIXELS
    return "object" if empty else "photo"


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
        self._totals = np.zeros(2)  # ink of the aligned images and of the sources
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
        self._totals = self._totals + np.array([aligned.sum(), source.sum()])

    def merge(self, other: PixelMeter) -> None:
        """Take in all that `other` has seen."""
        self.before.merge(other.before)
        self.after.merge(other.after)
        self._aligned_ink += other._aligned_ink
        self._source_ink += other._source_ink
        self._totals = self._totals + other._totals

    def state(self) -> dict[str, Array]:
        """All that was seen, as arrays by name."""
        both = {"before": self.before, "after": self.after}
        arrays = {f"{name}.{key}": array for name, one in both.items() for key, array in one.state().items()}
        arrays["aligned_ink"] = np.concatenate([*self._aligned_ink, np.empty(0, np.float32)])
        arrays["source_ink"] = np.concatenate([*self._source_ink, np.empty(0, np.float32)])
        return {**arrays, "totals": self._totals}

    def restore(self, state: Mapping[str, Array]) -> PixelMeter:
        """The inverse of `state`."""
        self.before, self.after = (
            RunningStats.restore({key.removeprefix(name): state[key] for key in state if key.startswith(name)})
            for name in ("before.", "after.")
        )
        self._aligned_ink, self._source_ink = [state["aligned_ink"]], [state["source_ink"]]
        self._totals = state["totals"]
        return self

    def numbers(self) -> dict[str, float]:
        """apsnr_before, apsnr_after, energy_ratio and blank_share of `Evidence`."""
        n = self.after.count
        median = float(np.median(np.concatenate(self._source_ink))) if n else 0.0
        return {
            "apsnr_before": decibels(self.before.mse) if self.before.count else float("nan"),
            "apsnr_after": decibels(self.after.mse) if n else float("nan"),
            "energy_ratio": energy_ratio(*self._totals),
            "blank_share": sum(int(blank(part, median).sum()) for part in self._aligned_ink) / n if n else 1.0,
        }


def _scaled(images: Any) -> Array:
    return np.multiply(as_numpy(images), PEAK)
