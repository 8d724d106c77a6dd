"""Aligned pixels from original ones: the images themselves, and pictures of the whole set before and after.

One pass over the source in chunks, so memory does not grow with the number of images. Everything is sampled from the
source at output resolution, in its own dtype; statistics are kept on the 0–255 scale of the pictures. How far the pass
got is noted now and then, and the next one goes on there.
"""

from __future__ import annotations

import json
import time
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from congeal.files import make_folders, replacing, write_bytes, write_json
from congeal.geometry.matrix import invert, rescale
from congeal.geometry.sampling import coverage
from congeal.images import ImageSource, Skipped, UnreadableImage, Writer, open_writer, warp_pixel_batch, warp_pixels
from congeal.images.writers import is_whole
from congeal.metrics import RunningStats
from congeal.pipeline.display import DisplayRange, png, smaller
from congeal.progress import Progress
from congeal.runs.folder import RunFolder
from congeal.transforms import Transforms

Size = tuple[int, int]

START_PICTURES = ("mean_before.png", "variance_before.png")  # under .work
CHUNK_VALUES = 1_000_000  # pixel values read at a time
SAVE_EVERY = 20.0  # seconds
SHOWN = 720  # longer side of the pictures that only the report shows
THUMBNAIL = 160
# How many images of each kind the report shows at most, so that its size does not grow with the set.
FLAGGED, WORST, BEST, DRAWN = 24, 24, 12, 36


@dataclass(frozen=True)
class Batch:
    """Images of one size: pixels (B,H,W,C), masks (B,H,W) or None."""

    pixels: np.ndarray
    masks: np.ndarray | None

    @property
    def size(self) -> Size:
        """(height, width) of the images."""
        return self.pixels.shape[1], self.pixels.shape[2]

    def some(self, rows: np.ndarray) -> Batch:
        """These rows of the batch; all of them are the batch itself."""
        if len(rows) == len(self.pixels):
            return self
        return Batch(self.pixels[rows], None if self.masks is None else self.masks[rows])

    def sample(self, source_from_output: np.ndarray, size: Size) -> Batch:
        """The same images through (B,3,3), at `size`. One image goes through the filter for shrinking as well."""
        if len(self.pixels) == 1:
            matrix = source_from_output[0]
            mask = None if self.masks is None else warp_pixels(self.masks[0], matrix, size)[None]
            return Batch(warp_pixels(self.pixels[0], matrix, size)[None], mask)
        masks = (
            None if self.masks is None else warp_pixel_batch(self.masks[..., None], source_from_output, size)[..., 0]
        )
        return Batch(warp_pixel_batch(self.pixels, source_from_output, size), masks)


@dataclass
class Picture:
    """Mean and spread of the set in one frame, gathered while images pass by."""

    size: Size
    weigh: bool
    stats: RunningStats = field(default_factory=RunningStats)

    def add(self, shown: np.ndarray, source_from_frame: np.ndarray, source: Size, masks: np.ndarray | None) -> None:
        """Take in images (B,h,w,c) as they lie in the frame; masks (B,h,w) are theirs, there too."""
        if not self.weigh and masks is None:
            self.stats.update(shown)
            return
        cover = coverage(torch.from_numpy(source_from_frame), source, self.size).numpy()[:, 0]
        self.stats.update(shown, (cover if masks is None else cover * masks)[..., None])

    def png(self) -> tuple[bytes, bytes]:
        """The mean, and the standard deviation on a fixed scale: white is the largest possible one, half the range."""
        return png(self.stats.mean), png(2 * np.sqrt(self.stats.variance))


@dataclass
class Rendered:
    """What a pass has gathered: images that could be read at first but not again, how many were turned upright by their
    EXIF orientation, the two pictures, the seconds it took, and how many of the rows are behind it."""

    after: Picture
    before: Picture
    lost: list[Skipped] = field(default_factory=list)
    n_rotated: int = 0
    seconds: float = 0.0
    position: int = 0

    def save(self, path: Path) -> None:
        """All of it in one file, replaced whole."""
        facts = {"lost": self.lost, "n_rotated": self.n_rotated, "seconds": self.seconds, "position": self.position}
        arrays = {
            f"{name}_{key}": array
            for name, picture in (("after", self.after), ("before", self.before))
            for key, array in picture.stats.state().items()
        }
        with replacing(path) as file:
            np.savez(file, facts=json.dumps(facts), **arrays)  # type: ignore[arg-type]

    def load(self, path: Path, *, needs_before: bool) -> None:
        """Go on where an earlier, interrupted pass stopped; at the beginning if there is none.

        needs_before: a pass that left out the pictures of the start is of no use.
        """
        try:
            with np.load(path, allow_pickle=False) as saved:
                facts = json.loads(str(saved["facts"]))
                seen = [int(saved[key]) if key in saved.files else 0 for key in ("after_count", "before_count")]
                if needs_before and seen[0] != seen[1]:
                    return
                parts = {name: [key for key in saved.files if key.startswith(name)] for name in ("after_", "before_")}
                after, before = (
                    RunningStats.restore({key.removeprefix(name): saved[key] for key in keys})
                    for name, keys in parts.items()
                )
            lost = [Skipped(*one) for one in facts["lost"]]
            n_rotated, seconds, position = facts["n_rotated"], facts["seconds"], facts["position"]
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error):
            return  # damaged: from the beginning
        self.after.stats, self.before.stats, self.lost = after, before, lost
        self.n_rotated, self.seconds, self.position = n_rotated, seconds, position


class Saving:
    """When to note how far a pass got: every 20 seconds, or less often where noting takes long (large pictures)."""

    def __init__(self) -> None:
        self._due = time.monotonic() + SAVE_EVERY

    def if_due(self, rendered: Rendered, path: Path, writer: Writer | None) -> None:
        """Save what was gathered, after what was written has reached the disk, if it is time."""
        began = time.monotonic()
        if began < self._due:
            return
        if writer is not None:
            writer.flush()
        rendered.save(path)
        self._due = time.monotonic() + max(SAVE_EVERY, 20 * (time.monotonic() - began))


def render_originals(
    run: RunFolder,
    source: ImageSource,
    found: Transforms,
    start: np.ndarray,
    display: DisplayRange,
    *,
    weigh: bool,
    write_aligned: bool,
    output_format: str,
    start_pictures: Path | None,
    quiet: bool,
) -> Rendered:
    """Write aligned/, mean.png, variance.png, and under .work what the report shows of the start.

    found and start (N,3,3) are `aligned_from_source`, one row per image of the source; with `weigh`, what lies outside
    an image does not count in the mean (photographs), without, it counts as black (objects on dark ground).
    start_pictures: a folder with the two pictures of the start, where another run has drawn them from the same images.
    After an interruption images already seen are not looked at again, unless the writer lost them with an unfinished
    shard.
    """
    size = found.aligned_size
    if size is None:
        raise ValueError("rendering needs the aligned size")
    shown_size = smaller(size, SHOWN)
    shown_from_aligned = rescale(size, shown_size)
    result, notes = Rendered(Picture(size, weigh), Picture(shown_size, weigh)), run.work / "rendering.npz"
    samples = np.array(sorted(choose_samples(run, found)))
    rows = np.flatnonzero(np.isfinite(found.matrices).all(axis=(1, 2)))
    result.load(notes, needs_before=start_pictures is None)
    if not all(has_thumbnails(run, int(i)) for i in np.intersect1d(samples, rows[: result.position])):
        result = Rendered(Picture(size, weigh), Picture(shown_size, weigh))
    writer = open_writer(make_folders(run.path, "aligned"), source, size, output_format) if write_aligned else None
    if writer is not None:
        write_again(writer, source, found, rows[: result.position], size)
    began, saving = time.monotonic() - result.seconds, Saving()
    what = "writing" if write_aligned else "averaging"
    with Progress(len(rows), what, quiet=quiet, done=result.position) as progress:
        for indices, images in read_in_chunks(source, rows[result.position :], result):
            source_from_aligned = invert(found.matrices[indices])
            aligned = images.sample(source_from_aligned, size)
            result.after.add(display.levels(aligned.pixels), source_from_aligned, images.size, aligned.masks)
            if writer is not None:
                writer.write_new(indices, aligned.pixels, aligned.masks)
            own = replace(display, channels=3 if images.pixels.shape[-1] == 3 else 1)
            shown = np.flatnonzero(np.isin(indices, samples))
            for k in shown.tolist():
                write_thumbnail(run, f"{indices[k]}_after", own.levels(aligned.pixels[k]))
            at_start = np.arange(len(indices)) if start_pictures is None else shown
            if len(at_start):
                source_from_shown = invert(shown_from_aligned @ start[indices[at_start]])
                before = images.some(at_start).sample(source_from_shown, shown_size)
                if start_pictures is None:
                    result.before.add(display.levels(before.pixels), source_from_shown, images.size, before.masks)
                for k in shown.tolist():
                    pixels = before.pixels[int(np.searchsorted(at_start, k))]
                    write_thumbnail(run, f"{indices[k]}_before", own.levels(pixels))
            progress.update(len(indices))
            result.position, result.seconds = int(np.searchsorted(rows, indices[-1])) + 1, time.monotonic() - began
            saving.if_due(result, notes, writer)
    if writer is not None:
        writer.close()
    write_pictures(run, result, start_pictures)
    result.seconds = time.monotonic() - began
    return result


def write_again(writer: Writer, source: ImageSource, found: Transforms, rows: np.ndarray, size: Size) -> None:
    """Write images that were seen by an interrupted pass but did not reach the disk: those of an unfinished shard."""
    missing = writer.missing(rows)
    forgotten = Rendered(Picture(size, False), Picture(size, False))
    for indices, images in read_in_chunks(source, missing, forgotten):
        aligned = images.sample(invert(found.matrices[indices]), size)
        writer.write_new(indices, aligned.pixels, aligned.masks)


def write_pictures(run: RunFolder, rendered: Rendered, start_pictures: Path | None) -> None:
    """mean.png and variance.png, and the same of the start under .work, drawn here or copied."""
    if rendered.after.stats.count:
        for name, data in zip(("mean.png", "variance.png"), rendered.after.png(), strict=True):
            write_bytes(run / name, data)
    if start_pictures is not None:
        before = [(start_pictures / name).read_bytes() for name in START_PICTURES]
    elif rendered.before.stats.count:
        before = [*rendered.before.png()]
    else:
        return
    for name, data in zip(START_PICTURES, before, strict=True):
        write_bytes(run.work / name, data)


def read_in_chunks(source: ImageSource, rows: np.ndarray, result: Rendered) -> Iterator[tuple[np.ndarray, Batch]]:
    """Positions in the source and their images, many small ones of one size at a time, large ones one by one."""
    if source.shape is not None:
        step = max(1, CHUNK_VALUES // int(np.prod(source.shape)))
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            yield part, Batch(source.batch(part), source.masks(part) if source.has_masks else None)
        return
    for index in rows:
        try:
            image = source.read(int(index))
        except UnreadableImage as error:
            result.lost.append(Skipped(source.id(int(index)), f"it was read once, but not again for writing: {error}"))
            continue
        result.n_rotated += image.orientation != 1
        yield np.array([index]), Batch(image.pixels[None], None if image.mask is None else image.mask[None])


def choose_samples(run: RunFolder, found: Transforms) -> set[int]:
    """The images the report shows: flagged ones, those least and most like the mean, and some drawn with the run's
    seed. Their list goes to .work/samples.json."""
    known = np.flatnonzero(np.isfinite(found.matrices).all(axis=(1, 2)))
    order = known[np.argsort(found.score[known], kind="stable")]  # NaN, a score nobody knows, comes last
    flagged = order[~found.ok[order]][:FLAGGED]
    generator = np.random.default_rng(run.config.get("seed") or 0)
    drawn = known[generator.choice(len(known), min(DRAWN, len(known)), replace=False)]
    chosen = np.unique(np.concatenate([flagged, order[:WORST], order[::-1][:BEST], drawn]))
    if len(known) <= FLAGGED + WORST + BEST + DRAWN:
        chosen = known
    some = found[chosen]
    columns = zip(chosen.tolist(), some.ids, some.score.tolist(), some.status.tolist(), strict=True)
    listing = [{"index": i, "id": id, "score": score, "status": status} for i, id, score, status in columns]
    write_json(run.work / "samples.json", listing)
    return set(chosen.tolist())


def has_thumbnails(run: RunFolder, index: int) -> bool:
    """Whether the small pictures of an image are there."""
    return all(is_whole(run.work / "samples" / f"{index}_{side}.png") for side in ("before", "after"))


def write_thumbnail(run: RunFolder, name: str, shown: np.ndarray) -> None:
    """A small picture of one image (h, w, c) for the report."""
    folder = make_folders(run.path, ".work/samples")
    write_bytes(folder / f"{name}.png", png(shown, longest=THUMBNAIL))
