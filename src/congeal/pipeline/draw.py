"""Some images at a time: read, sampled through their transforms, written, and made ready for the pictures of the set.

Threads do this for several of them side by side; results are handed out in the order of the source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np

from congeal.execution import divide_images
from congeal.execution.threads import map_ordered, usable_cores
from congeal.files import write_bytes
from congeal.geometry.frame_coverage import covered
from congeal.geometry.matrix import invert, rescale
from congeal.images import ImageSource, SkippedImage, UnreadableImage, Writer, warp_pixel_batch, warp_pixels
from congeal.images.formats.shards import ShardWriter
from congeal.images.formats.writers import takes_parts
from congeal.images.resample import SOFT, Sampling, warp_masks
from congeal.pipeline.display import DisplayRange, fit_within, png
from congeal.pipeline.render_state import DrawnBatch, RenderState, View
from congeal.progress import Progress
from congeal.runs.folder import RunFolder
from congeal.transforms import Transforms

Size = tuple[int, int]
Drawn = TypeVar("Drawn")

CHUNK_VALUES = 1_000_000
"""Pixel values of an array that are read at a time, chosen by judgement; no result depends on it."""
THREAD_VALUES = 128_000_000
"""Pixel values of the images that all threads work on, chosen by judgement: it bounds the memory, larger images are
drawn by fewer threads."""
THUMBNAIL_SIDE_PX, MAX_REPORT_SIDE_PX = 256, 720
"""Longer sides of the thumbnails of images, and of the pictures of the start, chosen by judgement: both are seen in the
report only."""
SAMPLES = ".work/samples"
"""Folder of the thumbnails of a run."""


@dataclass(frozen=True)
class Batch:
    """Images of one size: pixels (B,H,W,C), masks (B,H,W) or None; n_rotated: how many of them EXIF had turned."""

    pixels: np.ndarray
    masks: np.ndarray | None
    n_rotated: int = 0

    @property
    def size(self) -> Size:
        """(height, width) of the images."""
        return self.pixels.shape[1], self.pixels.shape[2]

    def sample(self, source_from_output: np.ndarray, size: Size, sampling: Sampling) -> Batch:
        """The same images through (B,3,3), at `size`; of an array they are small, and not filtered for shrinking."""
        masks = None
        if self.masks is not None:
            masks = warp_masks(self.masks, source_from_output, size, sampling.interpolation)
        if len(self.pixels) == 1:
            return Batch(warp_pixels(self.pixels[0], source_from_output[0], size, sampling)[None], masks)
        return Batch(warp_pixel_batch(self.pixels, source_from_output, size, sampling), masks)


def read_batch(source: ImageSource, rows: np.ndarray) -> Batch:
    """Images of an array; of files, the one image."""
    if source.shape is not None:
        return Batch(source.batch(rows), source.masks(rows) if source.has_masks else None)
    image = source.read(int(rows[0]))
    return Batch(image.pixels[None], None if image.mask is None else image.mask[None], int(image.orientation != 1))


@dataclass(frozen=True)
class Drawing:
    """How images are drawn: where from, through which transforms, in which frames, and what is kept of them.

    run: the folder for thumbnails. found and start (N,3,3) are `aligned_from_source`. samples: the images that the
    report shows. weigh: whether what lies outside an image does not count (photographs); else it counts as black
    (objects on dark ground). sampling: how pixels are interpolated.
    """

    run: RunFolder | Path
    source: ImageSource
    found: Transforms
    start: np.ndarray
    display: DisplayRange
    samples: np.ndarray
    weigh: bool
    writer: Writer | None
    sampling: Sampling

    @property
    def size(self) -> Size:
        """(height, width) of the aligned pictures."""
        if self.found.aligned_size is None:
            raise ValueError("rendering needs the aligned size")
        return self.found.aligned_size

    def draw(self, rows: np.ndarray) -> DrawnBatch:
        """Read, sample, write and view these images; in any thread."""
        try:
            images = read_batch(self.source, rows)
        except UnreadableImage as error:
            reason = f"it was read once, but not again for writing: {error}"
            return DrawnBatch(len(rows), lost=SkippedImage(self.source.id(int(rows[0])), reason))
        source_from_aligned = invert(self.found.matrices[rows])
        aligned = images.sample(source_from_aligned, self.size, self.sampling)
        write = None
        if self.writer is not None:
            write = begin_writing(self.writer, self.source, rows, aligned, source_from_aligned, self.sampling)
        shown_size = fit_within(self.size, MAX_REPORT_SIDE_PX)
        source_from_shown = invert(rescale(self.size, shown_size) @ self.start[rows])
        # Only the report shows the start: in a smaller picture nobody sees how sharp the kernel was.
        before = images.sample(source_from_shown, shown_size, self.sampling if shown_size == self.size else SOFT)
        shown = np.flatnonzero(np.isin(rows, self.samples))
        self._write_thumbnails("after", rows[shown], aligned.pixels[shown])
        self._write_thumbnails("before", rows[shown], before.pixels[shown])
        return DrawnBatch(
            len(rows),
            after=self._view(aligned, source_from_aligned, images.size),
            before=self._view(before, source_from_shown, images.size),
            n_rotated=images.n_rotated,
            write=write,
            group=None if self.found.group is None else self.found.group[rows],
        )

    def _view(self, drawn: Batch, source_from_frame: np.ndarray, source: Size) -> View:
        levels = self.display.levels(drawn.pixels)
        empty = self.sampling.fill != "edge" and math.isnan(self.sampling.fill)
        if not self.weigh and not empty and drawn.masks is None:
            return View(levels, None)
        cover = covered(source_from_frame, source, drawn.size)
        if empty and levels.dtype.kind == "f":  # nothing is no brightness, however little it weighs
            cover, levels = np.where(cover < 0.5, 0, cover), np.nan_to_num(levels)
        return View(levels, (cover if drawn.masks is None else cover * drawn.masks)[..., None])

    def _write_thumbnails(self, side: str, rows: np.ndarray, pixels: np.ndarray) -> None:
        """Small pictures of images (B,h,w,C) for the report."""
        own = self.display if self.display.shown else replace(self.display, channels=3 if pixels.shape[-1] == 3 else 1)
        for index, image in zip(rows.tolist(), pixels, strict=True):
            data = png(own.levels(image), longest=THUMBNAIL_SIDE_PX)
            # Whether it is whole is looked at before it is used: it is not worth waiting for the disk.
            write_bytes(self.run / SAMPLES / f"{index}_{side}.png", data)


def begin_writing(
    writer: Writer,
    source: ImageSource,
    rows: np.ndarray,
    aligned: Batch,
    source_from_aligned: np.ndarray,
    sampling: Sampling,
) -> Callable[[], None]:
    """Write these images, or the parts they stand for; returns the work that has to be done in order."""
    if not takes_parts(writer, source):
        return writer.begin_new(rows, aligned.pixels, aligned.masks)

    def write_parts() -> None:  # each is read, sampled as its image was, and written, before the next one is read
        for row, matrix in zip(rows, source_from_aligned, strict=True):
            for part in source.part_rows([row]):
                if source.parts is not None and not writer.done(int(part)):
                    drawn = read_batch(source.parts, np.array([part])).sample(matrix[None], aligned.size, sampling)
                    writer.begin_new(np.array([part]), drawn.pixels, drawn.masks)()

    if not writer.any_order:
        return write_parts
    write_parts()
    return lambda: None


def draw_in_threads(
    draw: Callable[[np.ndarray], Drawn],
    source: ImageSource,
    found: Transforms,
    rows: np.ndarray,
    shards: Sequence[tuple[int, int]],
) -> Generator[Drawn, None, None]:
    """draw(some rows), in order, for the rows of all shards (first, stop): several images of an array, or one file.

    Several are drawn at a time, each with one thread inside its operations.
    """
    step = 1 if source.shape is None else max(1, CHUNK_VALUES // math.prod(source.shape))
    pieces = (rows[at : min(at + step, stop)] for first, stop in shards for at in range(first, stop, step))
    largest = 3 * int(found.source_sizes[rows].astype(np.int64).prod(1).max(initial=1))
    return map_ordered(draw, pieces, min(usable_cores(), max(1, THREAD_VALUES // max(1, largest))))


def draw_shards(
    drawing: Drawing, rows: np.ndarray, shards: Sequence[tuple[int, int]], progress: Progress
) -> Iterator[RenderState]:
    """Draw the rows of every shard (first, stop), and yield its sums when it is done."""
    with closing(draw_in_threads(drawing.draw, drawing.source, drawing.found, rows, shards)) as batches:
        for first, stop in shards:
            shard = RenderState()
            while shard.position < stop - first:
                drawn = next(batches)
                if drawn.write is not None:
                    drawn.write()
                shard.add(drawn)
                progress.update(drawn.n_rows)
            yield shard


def cut_rows(drawing: Drawing, rows: np.ndarray) -> list[tuple[int, int]]:
    """(first, stop) of shards of the rows: by the size of the originals, and whole shards of what is written."""
    if not len(rows):
        return []
    values = float(np.median(drawing.found.source_sizes[rows].astype(np.int64).prod(1))) * drawing.display.channels
    edges = [0, *(stop for _, stop in divide_images(len(rows), values))]
    if isinstance(drawing.writer, ShardWriter):
        edges = [0, *(drawing.writer.next_shard(rows, edge) for edge in edges[1:])]
    return list(pairwise(sorted(set(edges))))


def rewrite_images(writer: Writer, source: ImageSource, found: Transforms, rows: np.ndarray, sampling: Sampling) -> int:
    """Write those of these images again that are not on the disk, such as those of an unfinished shard; how many."""

    def draw(some: np.ndarray) -> Callable[[], None]:
        try:
            images = read_batch(source, some)
        except UnreadableImage:
            return lambda: None
        source_from_aligned = invert(found.matrices[some])
        aligned = images.sample(source_from_aligned, writer.size, sampling)
        return begin_writing(writer, source, some, aligned, source_from_aligned, sampling)

    if takes_parts(writer, source):  # an image of which a part is missing is missing
        missing = np.unique(writer.missing(source.part_rows(rows)) // source.n_parts)
    else:
        missing = writer.missing(rows)
    with closing(draw_in_threads(draw, source, found, missing, [(0, len(missing))])) as writes:
        for write in writes:
            write()
    return len(missing)
