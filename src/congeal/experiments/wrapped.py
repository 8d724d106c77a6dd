"""APSNR in wrapping uint8 arithmetic, which may be how the values that the paper prints came about.

A guess, and no measure of quality: raw MNIST has about 31.4 dB by it and 12.8 dB by the formula. So it stands in the
tables of `reproduce`, beside what the paper prints, and nowhere else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from congeal.evaluation import RunningStats, as_numpy
from congeal.evaluation.pixels import decibels
from congeal.experiments.plan import Row
from congeal.experiments.seen import batches, known_rows, starts_of
from congeal.images import ImageSource
from congeal.runs.originals import transforms_of
from congeal.transforms import Transforms


def apsnr_uint8_wrap(images: Any) -> float:
    """APSNR in dB of images (N, …) on the 0–255 scale, differences and squares taken modulo 256."""
    values = as_numpy(images)
    return decibels(wrapped_squares(values, RunningStats().update(values).mean) / values.size)


def wrapped_squares(images: Any, mean: Any) -> float:
    """Sum over a batch of squared differences to the rounded mean image, in uint8 arithmetic modulo 256."""
    difference = _whole(as_numpy(images)) - _whole(as_numpy(mean))
    return float((difference * difference).sum(dtype=np.int64))


def _whole(values: NDArray[Any]) -> NDArray[np.uint8]:
    return values if values.dtype == np.uint8 else np.clip(np.rint(values), 0, 255).astype(np.uint8)


def wrapped_numbers(source: ImageSource, folder: Path) -> Row:
    """`apsnr_uint8_wrap_before` and `…_after` of a finished run: its images as the start and as the result show them.

    Reads the images twice for each, because the mean has to be known before the squares.
    """
    both = {"before": starts_of(folder), "after": transforms_of(folder)}
    return {f"apsnr_uint8_wrap_{when}": _wrapped(source, transforms) for when, transforms in both.items()}


def _wrapped(source: ImageSource, shown: Transforms) -> float:
    rows, stats = known_rows(shown), RunningStats()
    for _, images in batches(source, shown, rows):
        stats.update(images * 255)
    total = sum(wrapped_squares(images * 255, stats.mean) for _, images in batches(source, shown, rows))
    return decibels(total / (stats.count * stats.mean.size))
