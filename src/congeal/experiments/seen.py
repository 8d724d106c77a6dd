"""Sets of 8-bit images of one size as an alignment shows them: numbers that metrics.json does not have.

Images are (B,C,H,W) in [0, 1]; `found` is `aligned_from_source`, one row per image of the source.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from congeal.evaluation import RunningStats, apsnr_from_variance
from congeal.experiments.plan import Row
from congeal.geometry import invert, warp
from congeal.images import ImageSource
from congeal.runs.folder import RunFolder
from congeal.transforms import Transforms

CHUNK_VALUES = 1 << 20  # pixel values at a time: a thousand digits, a few photographs
TRIES = 20  # halvings of the zoom's range: to a millionth


def known_rows(found: Transforms) -> NDArray[np.int64]:
    """Positions of the images that have a matrix: those that were not skipped."""
    return np.flatnonzero(np.isfinite(found.matrices).all(axis=(1, 2)))


def starts_of(folder: Path) -> Transforms:
    """Where a finished run began."""
    return Transforms.load(RunFolder.existing(folder).work / "start.npz")


def batches(
    source: ImageSource, found: Transforms, rows: NDArray[np.int64], zoom: float = 1.0
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """These images and the same aligned; a zoom above 1 shows the aligned frame from further away."""
    size = found.aligned_size
    if size is None:
        raise ValueError("transforms of a run know the size of the aligned picture")
    x, y = (size[1] - 1) / 2, (size[0] - 1) / 2
    wider = np.array([[zoom, 0, x - zoom * x], [0, zoom, y - zoom * y], [0, 0, 1]])
    first = source.probe(int(rows[0]))
    chunk = max(1, CHUNK_VALUES // (first.height * first.width * first.channels))
    for part in np.array_split(rows, -(-len(rows) // chunk)):
        images = torch.from_numpy(np.moveaxis(source.batch(part), -1, 1).astype(np.float32) / 255)
        source_from_shown = torch.as_tensor(np.asarray(invert(found.matrices[part])) @ wider).float()
        yield images, warp(images, source_from_shown, size)


def quality(source: ImageSource, found: Transforms, rows: NDArray[np.int64], zoom: float = 1.0) -> tuple[float, float]:
    """APSNR and energy ratio of some images of a set."""
    stats, after, before = RunningStats(), 0.0, 0.0
    for images, aligned in batches(source, found, rows, zoom):
        stats.update(aligned * 255)
        after, before = after + float(aligned.sum()), before + float(images.sum())
    return apsnr_from_variance(stats.variance), after / before


def kept_numbers(source: ImageSource, found: Transforms, lost: NDArray[np.bool_]) -> Row:
    """Numbers of the images that kept at least half of their ink, and the share of those that did not."""
    row: Row = {"lost_share": float(lost.mean()), "apsnr_kept": None, "energy_kept": None}
    rows = np.flatnonzero(~lost & np.isfinite(found.matrices).all(axis=(1, 2)))
    if len(rows):
        row["apsnr_kept"], row["energy_kept"] = quality(source, found, rows)
    return row


def apsnr_at_energy(source: ImageSource, found: Transforms, energy: float) -> float | None:
    """APSNR of the same alignment, zoomed as a whole until its energy ratio is the one asked for.

    A smaller object scores more decibels, so variants can only be compared at one energy. None where no zoom between
    a half and two gives that energy: the object is gone.
    """
    rows = known_rows(found)
    low, high = 0.5, 2.0  # a wider view shows a smaller object: energy falls from low to high
    for _ in range(TRIES):
        middle = (low * high) ** 0.5
        if quality(source, found, rows, middle)[1] > energy:
            low = middle
        else:
            high = middle
    decibel, reached = quality(source, found, rows, (low * high) ** 0.5)
    return decibel if abs(reached - energy) < 0.005 else None
