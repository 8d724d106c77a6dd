"""The usual cell: one set aligned by one method in a run folder, and numbers that metrics.json does not have.

An alignment runs in a process of its own, for the time limit and its peak memory. Numbers are of
8-bit images of one size; `found` is `aligned_from_source`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq

from congeal.comparison.compare import true_error
from congeal.comparison.process import align_source, run_in_process
from congeal.evaluation import RunningStats, apsnr_from_variance, as_numpy
from congeal.evaluation.pixels import decibels
from congeal.experiments.experiment import QUICK_PARAMS, Cell, Options
from congeal.experiments.tables import Row
from congeal.geometry import invert, warp
from congeal.images import ImageSource
from congeal.opening import open_images
from congeal.rows import finite_rows
from congeal.runs.folder import RunFolder
from congeal.runs.originals import transforms_of
from congeal.transforms import Transforms

# Of metrics.json, what tables may want.
KEPT_METRICS = (
    *("n_images", "n_skipped", "motion", "likeness_before", "likeness_after", "improved_share", "apsnr_before"),
    *("apsnr_after", "uncertainty_px", "trained", "energy_ratio", "mean_scale", "blank_share", "out_of_frame_share"),
    *("collapsed", "verdict", "fit_seconds", "align_seconds", "images_per_second", "seed", "version"),
    "peak_memory_mb",  # as the process that did the work noted it, also after an interruption
)
CHUNK_VALUES = 1 << 20  # pixel values at a time: a thousand digits, a few photographs

Numbers = Callable[[ImageSource, Path], Row]
"""What is measured of a finished run: from the images and the run folder."""


def align_cell(
    name: str,
    facts: Mapping[str, Any],
    options: Options,
    *numbers: Numbers,
    source: str,
    method: str,
    params: Mapping[str, Any] | None = None,
    limit: int | None = None,
    **more: Any,
) -> Cell:
    """The cell that aligns in a process of its own, and then measures `numbers`.

    facts: further columns of its row; more: further arguments of `congeal.align`. The row also has `run`, relative to
    the experiment, and `total_seconds` from opening the source to the report if it was never interrupted.
    """
    quick = QUICK_PARAMS.get(method, {}) if options.quick else {}
    known = {"source": source, "method": method, "params": {**quick, **(params or {})}, "limit": limit}
    asked = {"method": method, "params": known["params"], "limit": limit, "seed": options.seed, "quiet": options.quiet}

    def measure(folder: Path) -> Row:
        resumed = folder.exists()
        work = (align_source, source, str(folder), {**asked, "write_aligned": False, **more})
        outcome = run_in_process(*work, time_limit=options.time_limit)
        if "error" in outcome:
            return outcome
        row: Row = {"run": f"{folder.parent.name}/{folder.name}", "idle_memory_mb": outcome["idle_memory_mb"]}
        row |= {key: outcome["metrics"].get(key) for key in KEPT_METRICS}
        row["total_seconds"] = None if resumed else round(outcome["seconds"], 3)
        images = open_images(source, limit=limit)
        for measured in numbers:
            row |= measured(images, folder)
        return row

    return Cell(name=name, facts=known | dict(facts), measure=measure)


def start_of(folder: Path) -> Transforms:
    """Where a finished run began."""
    return Transforms.load(RunFolder.existing(folder).work / "start.npz")


def true_error_numbers(images: ImageSource, folder: Path) -> Row:
    """`corner_error`, where the truth is known."""
    return {"corner_error": None if images.truth is None else true_error(RunFolder.existing(folder), images)}


# ---- images as an alignment shows them


def aligned_batches(
    source: ImageSource, found: Transforms, rows: NDArray[np.int64], zoom: float = 1.0
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """These images (B,C,H,W) in [0, 1] and the same aligned; a zoom above 1 shows the frame from further away."""
    size = found.aligned_size
    assert size is not None
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
    for images, aligned in aligned_batches(source, found, rows, zoom):
        stats.update(aligned * 255)
        after, before = after + float(aligned.sum()), before + float(images.sum())
    return apsnr_from_variance(stats.variance), after / before


def kept_numbers(source: ImageSource, found: Transforms, lost: NDArray[np.bool_]) -> Row:
    """Numbers of the images that kept at least half of their ink, and the share of the others."""
    row: Row = {"lost_share": float(lost.mean()), "apsnr_kept": None, "energy_kept": None}
    rows = np.flatnonzero(~lost & finite_rows(found.matrices))
    if len(rows):
        row["apsnr_kept"], row["energy_kept"] = quality(source, found, rows)
    return row


def apsnr_at_energy(source: ImageSource, found: Transforms, energy: float) -> float | None:
    """APSNR of the same alignment, zoomed as a whole until its energy ratio is the one asked for.

    A smaller object scores more decibels, so variants can only be compared at one energy. None where no zoom between
    a half and two gives that energy: the object is gone.
    """
    rows = np.flatnonzero(finite_rows(found.matrices))
    try:  # a wider view shows a smaller object
        zoom = brentq(lambda zoom: quality(source, found, rows, zoom)[1] - energy, 0.5, 2.0, xtol=1e-6)
    except ValueError:
        return None
    return quality(source, found, rows, zoom)[0]


# ---- APSNR in wrapping uint8 arithmetic, which may be how the values that the paper prints came about
#
# A guess, and no measure of quality: raw MNIST has about 31.4 dB by it and 12.8 dB by the formula. So it stands in the
# tables of `reproduce`, beside what the paper prints, and nowhere else.


def apsnr_uint8_wrap(images: Any) -> float:
    """APSNR in dB of images (N, …) on the 0–255 scale, differences and squares taken modulo 256."""
    values = as_numpy(images)
    return decibels(wrapped_squares(values, RunningStats().update(values).mean) / values.size)


def wrapped_squares(images: Any, mean: Any) -> float:
    """Sum over a batch of squared differences to the rounded mean image, in uint8 arithmetic modulo 256."""
    whole = [np.clip(np.rint(as_numpy(values)), 0, 255).astype(np.uint8) for values in (images, mean)]
    difference = whole[0] - whole[1]
    return float((difference * difference).sum(dtype=np.int64))


def wrapped_numbers(images: ImageSource, folder: Path) -> Row:
    """`apsnr_uint8_wrap_before` and `…_after` of a finished run, whose images are shown as at the start and the end."""
    row: Row = {}
    for when, found in (("before", start_of(folder)), ("after", transforms_of(folder))):
        rows, stats = np.flatnonzero(finite_rows(found.matrices)), RunningStats()
        for _, aligned in aligned_batches(images, found, rows):  # the mean has to be known before the squares
            stats.update(aligned * 255)
        total = sum(wrapped_squares(aligned * 255, stats.mean) for _, aligned in aligned_batches(images, found, rows))
        row[f"apsnr_uint8_wrap_{when}"] = decibels(total / (stats.count * stats.mean.size))
    return row
