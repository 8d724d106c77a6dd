"""The aligned originals of a run, sampled and combined: means, medians, and means without what does not belong; and how
much of the detail of the whole set each image shows, by which the best are chosen and weighed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from congeal.errors import RunFailed
from congeal.execution.threads import map_ordered, usable_cores
from congeal.geometry.frame_coverage import covered
from congeal.geometry.matrix import invert
from congeal.images import ImageSource, UnreadableImage, warp_pixels
from congeal.images.resample import Sampling, warp_masks
from congeal.progress import Progress
from congeal.rows import row_slices
from congeal.transforms import Transforms

log = logging.getLogger("congeal")

MAX_STACKED_BYTES = 512 << 20
"""Memory for some rows of the picture in all images: they are read as often as the picture needs such parts. Chosen by
judgement: 16 rows of a thousand colour photographs of 2,000 pixels."""
VALUES_PER_PART = 1 << 22
"""Values whose quantiles are computed together: 16 MB, below the largest tensor that torch takes for it."""
QUARTILES_PER_SIGMA = 1.349
"""Distance of the quartiles of a normal distribution, in standard deviations."""
COARSE_SIDE_PX = 8
"""Squares of pixels that are averaged to see an image without its detail. Chosen by judgement: beyond any blur that
makes one image of a set worse than the others."""
MIN_COARSE_GAIN = 0.1
"""An image that shows less of the coarse structure of the mean shows something else. Chosen by judgement: haze and
short exposures stay well above it."""


class FrameSample(NamedTuple):
    """One image in some rows of the aligned picture: values (h, w, C) and what each pixel weighs (h, w)."""

    row: int
    values: np.ndarray
    weight: np.ndarray


@dataclass(frozen=True)
class Frames:
    """The images `rows` of a source, sampled through `found`. channels and dtype are those of all of them."""

    source: ImageSource
    found: Transforms
    rows: np.ndarray
    sampling: Sampling
    size: tuple[int, int]
    channels: int
    dtype: np.dtype

    @classmethod
    def of(cls, source: ImageSource, found: Transforms, rows: np.ndarray, sampling: Sampling) -> Frames:
        """Look at the images once to see what they are."""
        height, width = found.aligned_size or (1, 1)
        kinds = set()
        for i in rows.tolist():
            try:
                header = source.probe(i)
            except UnreadableImage:
                continue
            kinds.add((header.channels, header.dtype.name))
            if source.shape is not None:
                break
        if not kinds:
            raise RunFailed("none of the images can be read any more")
        channels, dtypes = map(set, zip(*kinds, strict=True))
        if len(dtypes) > 1 or (not channels <= {1, 3} and len(channels) > 1):
            told = ", ".join(f"{name} in {count} channels" for count, name in sorted(kinds))
            raise RunFailed(f"the images are of different kinds ({told}): leave some out with --exclude")
        # The edge goes on under pixels that are partly outside; how much of them counts is the weight.
        kernel = replace(sampling, fill="edge")
        return cls(source, found, rows, kernel, (height, width), max(channels), np.dtype(dtypes.pop()))

    def sample(self, top: int = 0, bottom: int | None = None, *, what: str, quiet: bool) -> Iterator[FrameSample]:
        """Every image in these rows of the picture, in order, without images that cannot be read any more."""
        bottom = self.size[0] if bottom is None else bottom
        values = (bottom - top) * self.size[1] * self.channels
        threads = min(usable_cores(), max(1, MAX_STACKED_BYTES // (32 * values)))  # eight copies in float32
        with Progress(len(self.rows), what, quiet=quiet) as progress:
            for one in map_ordered(partial(self._one, top, bottom), self.rows.tolist(), threads):
                progress.update()
                if one is not None:
                    yield one

    def _one(self, top: int, bottom: int, row: int) -> FrameSample | None:
        try:
            image = self.source.read(row)
        except UnreadableImage as error:
            log.warning("%s is left out: %s", self.source.id(row), error)
            return None
        source_from_rows = invert(self.found.matrices[row]) @ [[1, 0, 0], [0, 1, top], [0, 0, 1]]
        size = bottom - top, self.size[1]
        values = warp_pixels(image.pixels.astype(np.float32), source_from_rows, size, self.sampling)
        weight = covered(source_from_rows[None], (image.pixels.shape[0], image.pixels.shape[1]), size)[0]
        if image.mask is not None:
            weight = weight * warp_masks(image.mask[None], source_from_rows[None], size, "bilinear")[0]
        return FrameSample(row, np.broadcast_to(values, (*size, self.channels)), weight)


# ---- one picture


def mean(frames: Frames, weights: dict[int, float] | None, *, what: str, quiet: bool) -> np.ndarray:
    """(h, w, C) float32: the mean of all images, weighted by what covers a pixel and by image; NaN where none does."""
    total = np.zeros((*frames.size, frames.channels))
    weight = np.zeros((*frames.size, 1))
    for one in frames.sample(what=what, quiet=quiet):
        own = one.weight[..., None] * (1.0 if weights is None else weights[one.row])
        total += one.values * own
        weight += own
    return _ratio(total, weight)


def combine_by_rows(frames: Frames, clip: float | None, *, quiet: bool) -> np.ndarray:
    """(h, w, C) float32: the median of each pixel, or the mean of those values that are less than `clip` standard
    deviations from it; NaN where no image is."""
    height, width = frames.size
    bytes_of_row = len(frames.rows) * width * (frames.channels + 1) * 4
    step = min(height, max(1, MAX_STACKED_BYTES // bytes_of_row))
    rounding = 0.5 if frames.dtype.kind in "uib" else 0.0
    out = np.full((height, width, frames.channels), np.nan, np.float32)
    for top in range(0, height, step):
        bottom = min(height, top + step)
        what = "stacking" if step == height else f"stacking, rows {top} to {bottom} of {height}"
        values = np.zeros((bottom - top, width, frames.channels, len(frames.rows)), np.float32)
        weight = np.zeros((bottom - top, width, len(frames.rows)), np.float32)  # 0: an image that cannot be read
        for k, one in enumerate(frames.sample(top, bottom, what=what, quiet=quiet)):
            values[..., k], weight[..., k] = one.values, one.weight
        out[top:bottom] = combine(values, weight, clip, rounding)
    return out


def combine(values: np.ndarray, weight: np.ndarray, clip: float | None, min_sigma: float) -> np.ndarray:
    """(h, w, C, n) values with weights (h, w, n) → (h, w, C): pixels that are mostly outside do not count."""
    height, width, channels, count = values.shape
    flat, weights = values.reshape(-1, channels, count), weight.reshape(-1, 1, count)
    out = np.full((len(flat), channels), np.nan, np.float32)
    for part in row_slices(len(flat), max(1, VALUES_PER_PART // (channels * count))):
        counts = weights[part] >= 0.5
        known = torch.from_numpy(np.where(counts, flat[part], np.float32(np.nan)))
        low, middle, high = torch.nanquantile(known, torch.tensor([0.25, 0.5, 0.75]), dim=-1).numpy()
        if clip is None:
            out[part] = middle
            continue
        reach = clip * np.maximum((high - low) / QUARTILES_PER_SIGMA, min_sigma)
        near = np.abs(flat[part] - middle[..., None]) <= reach[..., None]
        own = np.where(near & counts, weights[part], 0)
        total = (np.where(own > 0, flat[part], 0) * own).sum(-1, dtype=np.float64)
        out[part] = _ratio(total, own.sum(-1, dtype=np.float64))
    return out.reshape(height, width, channels)


def _ratio(total: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """total / weight as float32, NaN where nothing weighs."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(weight > 1e-6, total / weight, np.nan).astype(np.float32)


# ---- detail


def sharpness(frames: Frames, average: np.ndarray, *, quiet: bool) -> dict[int, float]:
    """For each image, by its row: its gradients as a multiple of those of the mean, 0 and more.

    That is a regression on the mean of the others, so noise counts as little as what these do not show: neither a
    grainy image nor another subject passes for a sharp one. Divided by the same of the coarse structure, so that a
    brighter image is not a sharper one.
    """
    template = np.nan_to_num(average.mean(-1))
    own, n = gradients(template), len(frames.rows)
    side = max(1, min(COARSE_SIDE_PX, min(template.shape) // 8))
    found = {}
    for one in frames.sample(what="comparing", quiet=quiet):
        grey = one.values.mean(-1)
        weight = np.where(np.isfinite(average[..., 0]), one.weight, 0)
        least = np.minimum(np.minimum(weight[:-1, :-1], weight[:-1, 1:]), weight[1:, :-1])
        edges = gradients(grey)
        others = (n * own - edges) / (n - 1) if n > 1 else own
        fine = _slope(edges, others, least[None])
        small, target, covered = (_coarse(values, side) for values in (grey * weight, template * weight, weight))
        inside = covered > 0.5
        levels, aim = small[inside] / covered[inside], target[inside] / covered[inside]
        gain = _slope(levels - levels.mean(), aim - aim.mean(), np.ones_like(aim)) if inside.any() else 0.0
        found[one.row] = max(0.0, fine / gain) if gain > MIN_COARSE_GAIN else 0.0
    return found


def gradients(grey: np.ndarray) -> np.ndarray:
    """(2, h - 1, w - 1): steps to the right and down."""
    return np.stack([grey[:-1, 1:] - grey[:-1, :-1], grey[1:, :-1] - grey[:-1, :-1]])


def _coarse(values: np.ndarray, side: int) -> np.ndarray:
    """Means of whole squares of pixels."""
    height, width = (length // side for length in values.shape)
    return values[: height * side, : width * side].reshape(height, side, width, side).mean((1, 3))


def _slope(values: np.ndarray, target: np.ndarray, weight: np.ndarray) -> float:
    """Coefficient of the regression of the values on the target, without a constant."""
    power = float((weight * target * target).sum())
    return float((weight * values * target).sum()) / power if power > 0 else 0.0
