"""A few images at a time: read, sampled through their transforms, written, and made ready for the pictures of the set.

Threads do this for several of them side by side; what they made is handed out in the order of the source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from congeal.execution import divide_images
from congeal.execution.threads import map_ordered, usable_cores
from congeal.files import write_bytes
from congeal.geometry.frame_coverage import covered
from congeal.geometry.matrix import invert, rescale
from congeal.images import ImageSource, SkippedImage, UnreadableImage, Writer, warp_pixel_batch, warp_pixels
from congeal.images.formats.shards import ShardWriter
from congeal.images.formats.writers import takes_parts
from congeal.images.resample import SOFT, Sampling, is_plain_resize, needs_filter, shrink, warp_masks
from congeal.pipeline.display import DisplayRange, fit_within, png
from congeal.pipeline.render_state import DrawnBatch, RenderState, View
from congeal.progress import Progress
from congeal.runs.folder import RunFolder
from congeal.transforms import Transforms

Size = tuple[int, int]

CHUNK_VALUES = 1_000_000
"""Pixel values of an array that are read at a time; no result depends on it."""
FILE_CHUNK_VALUES = 150_000
"""Pixel values of files that are read at a time: fewer spend their time on overhead, more leave threads idle."""
THREAD_VALUES = 128_000_000
"""Pixel values of the images that all threads work on, chosen by judgement: it bounds the memory, larger images are
drawn by fewer threads."""
THUMBNAIL_SIDE_PX = 256
"""Longer side of the pictures that the report enlarges, chosen by judgement."""
SAMPLES = ".work/samples"
"""Folder of the thumbnails of a run."""
MAX_REPORT_SIDE_PX = 720
"""Longer side of the pictures that only the report shows, chosen by judgement."""
MAX_BATCH_BYTES, MAX_BATCH_IMAGES = 16_000_000, 256
"""Bounds of the pictures that enter the statistics together, chosen by judgement: one by one costs time, and no
image is read meanwhile."""


@dataclass(frozen=True)
class Batch:
    """Images of one size: pixels (B,H,W,C), masks (B,H,W) or None; n_rotated: how many of them EXIF had turned.

    shrinks: whether each goes through the filter for shrinking, if it needs that; a batch of an array does not.
    """

    pixels: np.ndarray
    masks: np.ndarray | None
    n_rotated: int = 0
    shrinks: bool = True

    @property
    def size(self) -> Size:
        """(height, width) of the images."""
        return self.pixels.shape[1], self.pixels.shape[2]

    def some(self, rows: np.ndarray) -> Batch:
        """These rows of the batch; all of them are the batch itself."""
        if len(rows) == len(self.pixels):
            return self
        return replace(self, pixels=self.pixels[rows], masks=None if self.masks is None else self.masks[rows])

    def sample(self, source_from_output: np.ndarray, size: Size, sampling: Sampling) -> Batch:
        """The same images through (B,3,3), at `size`."""
        masks = None
        if self.masks is not None:
            masks = warp_masks(self.masks, source_from_output, size, sampling.interpolation)
        if len(self.pixels) == 1:
            return Batch(warp_pixels(self.pixels[0], source_from_output[0], size, sampling)[None], masks)
        filtered = needs_filter(source_from_output, size, sampling) & self.shrinks
        if not filtered.any():
            return Batch(warp_pixel_batch(self.pixels, source_from_output, size, sampling), masks)
        pixels = np.empty((len(self.pixels), *size, self.pixels.shape[-1]), self.pixels.dtype)
        pixels[~filtered] = warp_pixel_batch(self.pixels[~filtered], source_from_output[~filtered], size, sampling)
        for k in np.flatnonzero(filtered):
            pixels[k] = warp_pixels(self.pixels[k], source_from_output[k], size, sampling)
        return Batch(pixels, masks)


@dataclass(frozen=True)
class Drawing:
    """How images are drawn: where from, through which transforms, in which frames, and what is kept of them.

    run: the folder for small pictures of the images that the report shows.
    found and start (N,3,3) are `aligned_from_source`. samples: the images that the report shows. weigh: whether what
    lies outside an image does not count (photographs); else it counts as black (objects on dark ground). draws_start:
    whether the picture of the start is wanted. sampling: how pixels are interpolated.
    """

    run: RunFolder | Path
    source: ImageSource
    found: Transforms
    start: np.ndarray
    display: DisplayRange
    samples: np.ndarray
    weigh: bool
    draws_start: bool
    writer: Writer | None
    sampling: Sampling

    @property
    def size(self) -> Size:
        """(height, width) of the aligned pictures."""
        if self.found.aligned_size is None:
            raise ValueError("rendering needs the aligned size")
        return self.found.aligned_size

    @property
    def shown_size(self) -> Size:
        """(height, width) of the picture of the start."""
        return fit_within(self.size, MAX_REPORT_SIDE_PX)

    def draw(self, rows: np.ndarray) -> list[DrawnBatch]:
        """Read, sample, write and view these images; in any thread."""
        return [self._drawn(some, images) for some, images in read_batches(self.source, rows)]

    def _drawn(self, rows: np.ndarray, images: Batch | UnreadableImage) -> DrawnBatch:
        if isinstance(images, UnreadableImage):
            reason = f"it was read once, but not again for writing: {images}"
            return DrawnBatch(len(rows), lost=SkippedImage(self.source.id(int(rows[0])), reason))
        source_from_aligned = invert(self.found.matrices[rows])
        aligned = images.sample(source_from_aligned, self.size, self.sampling)
        after = self._view(aligned, source_from_aligned, images.size)
        write = None
        if self.writer is not None:
            write = begin_writing(self.writer, self.source, rows, aligned, source_from_aligned, self.sampling)
        shown = np.flatnonzero(np.isin(rows, self.samples))
        self._write_thumbnails("after", rows[shown], aligned.pixels[shown])
        before = self._draw_start(rows, images, shown)
        group = None if self.found.group is None else self.found.group[rows]
        return DrawnBatch(len(rows), after, before, None, images.n_rotated, write, group)

    def _draw_start(self, rows: np.ndarray, images: Batch, shown: np.ndarray) -> View | None:
        """The images where they started, all of them or those that the report shows."""
        chosen = np.arange(len(rows)) if self.draws_start else shown
        if not len(chosen):
            return None
        source_from_shown = invert(rescale(self.size, self.shown_size) @ self.start[rows[chosen]])
        before = self._sample_start(images.some(chosen), source_from_shown)
        self._write_thumbnails("before", rows[shown], before.pixels[np.searchsorted(chosen, shown)])
        return self._view(before, source_from_shown, images.size) if self.draws_start else None

    def _sample_start(self, images: Batch, source_from_shown: np.ndarray) -> Batch:
        """Only the report shows it: in a smaller picture nobody sees how sharp the kernel was."""
        if self.shown_size == self.size:
            return images.sample(source_from_shown, self.size, self.sampling)
        shrinks = images.size[0] > self.shown_size[0] and images.size[1] > self.shown_size[1]
        plain = shrinks and images.masks is None and images.pixels.dtype == np.uint8
        if plain and all(is_plain_resize(one, images.size, self.shown_size) for one in source_from_shown):
            return Batch(shrink(images.pixels, self.shown_size), None)
        return images.sample(source_from_shown, self.shown_size, SOFT)

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


def read_batch(source: ImageSource, rows: np.ndarray) -> Batch:
    """Images of one size; of files, one image."""
    if source.shape is not None:
        return Batch(source.batch(rows), source.masks(rows) if source.has_masks else None, shrinks=False)
    image = source.read(int(rows[0]))
    return Batch(image.pixels[None], None if image.mask is None else image.mask[None], int(image.orientation != 1))


def read_batches(source: ImageSource, rows: np.ndarray) -> Iterator[tuple[np.ndarray, Batch | UnreadableImage]]:
    """Rows that are drawn together, and their images; a row that cannot be read, and why.

    Images in files that are alike and follow one another go together: small ones drawn alone spend their time on
    overhead.
    """
    if source.shape is not None:
        yield rows, read_batch(source, rows)
        return
    read: list[tuple[Any, np.int64, Any]] = []
    for row in rows:
        image: Any
        try:
            image = read_batch(source, np.array([row]))
            kind = (image.pixels.shape, image.pixels.dtype) if image.masks is None else int(row)
        except UnreadableImage as error:
            image, kind = error, int(row)
        read.append((kind, row, image))
    for _, alike in groupby(read, key=lambda one: one[0]):
        _, where, images = zip(*alike, strict=True)
        together = images[0]
        if len(images) > 1:
            rotated = sum(one.n_rotated for one in images)
            together = Batch(np.concatenate([one.pixels for one in images]), None, rotated)
        yield np.array(where), together


def chunk_size(source: ImageSource) -> int:
    """How many images of an array are drawn at a time; one, if it is not one."""
    return 1 if source.shape is None else max(1, CHUNK_VALUES // int(np.prod(source.shape)))


def split_rows(source: ImageSource, found: Transforms, rows: np.ndarray, together: int) -> Iterator[np.ndarray]:
    """Rows that are read at a time: many of an array; of files a few small ones of one size.

    together: images that are taken in at a time; no piece has some of one such group and some of the next.
    """
    if source.shape is not None:
        step = chunk_size(source)
        yield from (rows[at : at + step] for at in range(0, len(rows), step))
        return
    framed = math.prod(found.aligned_size or (1, 1))
    for at in range(0, len(rows), together):
        group = rows[at : at + together]
        sizes = found.source_sizes[group].astype(np.int64)
        edges = [0, *(np.flatnonzero((sizes[1:] != sizes[:-1]).any(1)) + 1).tolist(), len(group)]
        for first, stop in pairwise(edges):
            few = max(1, FILE_CHUNK_VALUES // (3 * max(framed, int(sizes[first].prod()), 1)))
            yield from (group[k : min(k + few, stop)] for k in range(first, stop, few))


@contextmanager
def draw_in_threads(
    draw: Callable[[np.ndarray], list[DrawnBatch]],
    source: ImageSource,
    found: Transforms,
    rows: np.ndarray,
    runs: Iterable[tuple[int, int]] | None = None,
    together: int = CHUNK_VALUES,
) -> Iterator[Iterable[DrawnBatch]]:
    """draw(some rows), in order, of all of them: several at a time, each with one thread inside its operations.

    runs: (first, stop) of parts of the rows that are not mixed. together: see `split_rows`.
    """
    runs = [(0, len(rows))] if runs is None else list(runs)
    if not len(rows) or not runs:
        yield ()
        return
    chunks = (piece for first, stop in runs for piece in split_rows(source, found, rows[first:stop], together))
    largest = 3 * int(found.source_sizes[rows[runs[0][0] :]].astype(np.int64).prod(1).max())
    threads = min(usable_cores(), max(1, THREAD_VALUES // max(1, largest)))
    with closing(map_ordered(draw, chunks, threads)) as results:
        yield chain.from_iterable(results)


def draw_shards(
    drawing: Drawing, rows: np.ndarray, shards: Sequence[tuple[int, int]], result: RenderState, progress: Progress
) -> Iterator[None]:
    """Draw the rows that are not behind `result` yet, and take them in; pauses after every group."""
    source, found, waiting = drawing.source, drawing.found, list[DrawnBatch]()
    together = group_size(source, drawing.size, drawing.display)
    left = [(max(first, result.position), stop) for first, stop in shards if stop > result.position]
    ends = {stop for _, stop in left}
    at = result.position
    with draw_in_threads(drawing.draw, source, found, rows, left, together) as all_drawn:
        for drawn in all_drawn:
            if drawn.write is not None:
                drawn.write()
            progress.update(drawn.n_rows)
            waiting.append(drawn)
            at += drawn.n_rows
            if sum(one.n_rows for one in waiting) >= together or at in ends:
                result.take(waiting)
                waiting = []
                if at in ends:
                    result.end_shard()
                yield


def cut_rows(
    rows: np.ndarray, found: Transforms, source: ImageSource, display: DisplayRange, writer: Writer | None
) -> list[tuple[int, int]]:
    """(first, stop) of shards of the rows: by the size of the originals, and whole shards of what is written."""
    if not len(rows):
        return []
    values = float(np.median(found.source_sizes[rows].astype(np.int64).prod(1))) * display.channels
    edges = [0, *(stop for _, stop in divide_images(len(rows), values))]
    if isinstance(writer, ShardWriter):
        edges = [0, *(writer.next_shard(rows, edge) for edge in edges[1:])]
    return [(first, stop) for first, stop in pairwise(sorted(set(edges)))]


def group_size(source: ImageSource, size: Size, display: DisplayRange) -> int:
    """How many images go into the statistics together; 1 where they come in chunks, each of which is a group.

    It depends on nothing but sizes and types: sums of other groups would differ in their last digits, and a resumed
    pass has to come to the same bytes.
    """
    if chunk_size(source) > 1:
        return 1
    one = size[0] * size[1] * (display.channels if display.eight_bit else 4 * display.channels + 4)
    return max(1, min(MAX_BATCH_IMAGES, MAX_BATCH_BYTES // one))


def rewrite_images(
    writer: Writer, source: ImageSource, found: Transforms, rows: np.ndarray, sampling: Sampling
) -> None:
    """Write images that were seen by an interrupted pass but did not reach the disk: those of an unfinished shard."""

    def draw(some: np.ndarray) -> list[DrawnBatch]:
        written = []
        for same, images in read_batches(source, some):
            if not isinstance(images, UnreadableImage):
                source_from_aligned = invert(found.matrices[same])
                aligned = images.sample(source_from_aligned, writer.size, sampling)
                write = begin_writing(writer, source, same, aligned, source_from_aligned, sampling)
                written.append(DrawnBatch(len(same), write=write))
        return written

    with draw_in_threads(draw, source, found, find_missing_rows(writer, source, rows)) as all_drawn:
        for drawn in all_drawn:
            if drawn.write is not None:
                drawn.write()


def find_missing_rows(writer: Writer, source: ImageSource, rows: np.ndarray) -> np.ndarray:
    """Those of these images that are not written, or of which a part is not."""
    if not takes_parts(writer, source):
        return writer.missing(rows)
    return np.unique(writer.missing(source.part_rows(rows)) // source.n_parts)
