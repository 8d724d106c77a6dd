"""APSNR, the alignment peak signal-to-noise ratio: how near the images of a set are to their mean, in decibels (dB).

Pixel values are on the 0–255 scale, image index first. More is better, but shrinking or losing the object raises it
too: read it together with the energy ratio (energy.py) and the scale (poses.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from congeal.evaluation.arrays import as_numpy
from congeal.evaluation.statistics import RunningStats

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
    if mse == 0:
        return float("inf")
    return float(10 * np.log10(PEAK**2 / mse))
