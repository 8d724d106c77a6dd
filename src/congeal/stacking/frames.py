"""Originals as they lie in the aligned picture, in their own units, a few rows of it at a time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from congeal.errors import RunFailed
from congeal.execution.threads import map_ordered, usable_cores
from congeal.geometry.frame_coverage import covered
from congeal.geometry.matrix import invert
from congeal.images import ImageSource, UnreadableImage, warp_pixels
from congeal.images.resample import Sampling, warp_masks
from congeal.progress import Progress
from congeal.transforms import Transforms

log = logging.getLogger("congeal")

MAX_THREAD_VALUES = 64_000_000
"""Pixel values that all threads hold together, four copies of an image each: 256 MB of float32."""


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
        channels, dtypes = {kind[0] for kind in kinds}, {kind[1] for kind in kinds}
        if not kinds:
            raise RunFailed("none of the images can be read any more")
        if len(dtypes) > 1 or (not channels <= {1, 3} and len(channels) > 1):
            told = ", ".join(f"{name} in {count} channels" for count, name in sorted(kinds))
            raise RunFailed(f"the images are of different kinds ({told}): leave some out with --exclude")
        # The edge goes on under pixels that are partly outside; how much of them counts is the weight.
        kernel = replace(sampling, fill="edge")
        return cls(source, found, rows, kernel, (height, width), max(channels), np.dtype(dtypes.pop()))

    def sample(self, top: int = 0, bottom: int | None = None, *, what: str, quiet: bool) -> Iterator[FrameSample]:
        """Every image in these rows of the picture, in order; those that cannot be read any more are left out."""
        bottom = self.size[0] if bottom is None else bottom
        values = (bottom - top) * self.size[1] * self.channels
        threads = min(usable_cores(), max(1, MAX_THREAD_VALUES // (4 * values)))
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
