"""Aligned pixels from original ones: the images themselves, and pictures of the whole set before and after.

One pass over the source in chunks, so memory does not grow with the number of images. Everything is sampled from the
source at output resolution, in its own dtype; statistics are kept on the 0–255 scale of the pictures. How far the pass
got is noted now and then, and the next one goes on there.
"""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image as Pillow

from congeal.files import replacing, write_bytes, write_json
from congeal.geometry.matrix import invert, rescale
from congeal.geometry.sampling import coverage
from congeal.images import ImageSource, Skipped, UnreadableImage, Writer, open_writer, warp_pixel_batch, warp_pixels
from congeal.images.intensity import range_name
from congeal.metrics import RunningStats
from congeal.progress import Progress
from congeal.runs.folder import RunFolder
from congeal.transforms import Transforms

Size = tuple[int, int]

CHUNK_VALUES = 1_000_000  # pixel values read at a time
SAVE_EVERY = 20.0  # seconds
SHOWN = 720  # longer side of the pictures that only the report shows
THUMBNAIL = 160
# How many images of each kind the report shows at most, so that its size does not grow with the set.
FLAGGED, WORST, BEST, DRAWN = 24, 24, 12, 36


@dataclass(frozen=True)
class Look:
    """How pixel values become grey levels: `black` and `white` for what is not 8-bit, in 1 or 3 `channels`.

    In a set of several dtypes `ranges` holds black and white of each, by `range_name`.
    """

    black: float
    white: float
    channels: int
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def span(self, dtype: np.dtype) -> tuple[float, float]:
        """The values of this dtype that are shown black and white."""
        if dtype == np.uint8:
            return 0.0, 255.0
        if dtype.kind == "b":
            return 0.0, 1.0
        black, white = self.ranges.get(range_name(dtype), (self.black, self.white))
        return black, white

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        """(..., C) native pixels → (..., channels) on the 0–255 scale."""
        if pixels.dtype == np.uint8:
            values = pixels
        else:
            black, white = self.span(pixels.dtype)
            values = (pixels.astype(np.float32) - black) * (255 / (white - black))
        if values.shape[-1] == self.channels:
            return values
        return np.repeat(values.mean(-1, keepdims=True, dtype=np.float32), self.channels, axis=-1)


def run_look(run: RunFolder) -> Look:
    """How the images of a run are shown; floats from 0 to 1 where the run does not say."""
    return Look(**(run.state.get("look") or {"black": 0.0, "white": 1.0, "channels": 1}))


@dataclass(frozen=True)
class Batch:
    """Images of one size: pixels (B,H,W,C), masks (B,H,W) or None."""

    pixels: np.ndarray
    masks: np.ndarray | None

    @property
    def size(self) -> Size:
        return self.pixels.shape[1], self.pixels.shape[2]

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
        """The mean, and the standard deviation on a fixed scale: white is the largest there can be, half the range."""
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

    def load(self, path: Path) -> None:
        """Go on where an earlier, interrupted pass stopped; at the beginning if there is none."""
        try:
            with np.load(path, allow_pickle=False) as saved:
                facts = json.loads(str(saved["facts"]))
                for name, picture in (("after", self.after), ("before", self.before)):
                    keys = [key for key in saved.files if key.startswith(f"{name}_")]
                    picture.stats = RunningStats.restore({key.removeprefix(f"{name}_"): saved[key] for key in keys})
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return
        self.lost = [Skipped(*one) for one in facts["lost"]]
        self.n_rotated, self.seconds, self.position = facts["n_rotated"], facts["seconds"], facts["position"]


class Saving:
    """When to note how far a pass got: every 20 seconds, or less often where noting takes long (large pictures)."""

    def __init__(self) -> None:
        self._due = time.monotonic() + SAVE_EVERY

    def if_due(self, rendered: Rendered, path: Path, writer: Writer | None) -> None:
        began = time.monotonic()
        if began < self._due:
            return
        if writer is not None:
            writer.flush()
        rendered.save(path)
        self._due = time.monotonic() + max(SAVE_EVERY, 20 * (time.monotonic() - began))


def render(
    run: RunFolder,
    source: ImageSource,
    found: Transforms,
    start: np.ndarray,
    look: Look,
    *,
    weigh: bool,
    write_aligned: bool,
    output_format: str,
    quiet: bool,
) -> Rendered:
    """Write aligned/, mean.png, variance.png, and under .work what the report shows of the start.

    found and start (N,3,3) are `aligned_from_source`, one row per image of the source; with `weigh`, what lies outside
    an image does not count in the mean (photographs), without, it counts as black (objects on dark ground). After an
    interruption images already seen are not looked at again, unless the writer lost them with an unfinished shard.
    """
    size = found.aligned_size
    if size is None:
        raise ValueError("rendering needs the aligned size")
    shown_size = smaller(size, SHOWN)
    shown_from_aligned = rescale(size, shown_size)
    result, notes = Rendered(Picture(size, weigh), Picture(shown_size, weigh)), run.work / "rendering.npz"
    result.load(notes)
    samples = np.array(sorted(choose_samples(run, found)))
    writer = open_writer(run / "aligned", source, size, format=output_format) if write_aligned else None
    rows = np.flatnonzero(np.isfinite(found.matrices).all(axis=(1, 2)))
    if writer is not None:
        write_again(writer, source, found, rows[: result.position], size)
    began, saving = time.monotonic() - result.seconds, Saving()
    what = "writing" if write_aligned else "averaging"
    with Progress(len(rows), what, quiet=quiet, done=result.position) as progress:
        for indices, images in chunks(source, rows[result.position :], result):
            source_from_aligned = invert(found.matrices[indices])
            aligned = images.sample(source_from_aligned, size)
            result.after.add(look(aligned.pixels), source_from_aligned, images.size, aligned.masks)
            if writer is not None:
                writer.write_new(indices, aligned.pixels, aligned.masks)
            source_from_shown = invert(shown_from_aligned @ start[indices])
            at_start = images.sample(source_from_shown, shown_size)
            result.before.add(look(at_start.pixels), source_from_shown, images.size, at_start.masks)
            for k in np.flatnonzero(np.isin(indices, samples)).tolist():
                own = replace(look, channels=3 if images.pixels.shape[-1] == 3 else 1)
                write_thumbnail(run, f"{indices[k]}_before", own(at_start.pixels[k]))
                write_thumbnail(run, f"{indices[k]}_after", own(aligned.pixels[k]))
            progress.update(len(indices))
            result.position, result.seconds = int(np.searchsorted(rows, indices[-1])) + 1, time.monotonic() - began
            saving.if_due(result, notes, writer)
    if writer is not None:
        writer.close()
    write_pictures(run, result)
    result.seconds = time.monotonic() - began
    return result


def write_again(writer: Writer, source: ImageSource, found: Transforms, rows: np.ndarray, size: Size) -> None:
    """Write images that were seen by an interrupted pass but did not reach the disk: those of an unfinished shard."""
    missing = writer.missing(rows)
    forgotten = Rendered(Picture(size, False), Picture(size, False))
    for indices, images in chunks(source, missing, forgotten):
        aligned = images.sample(invert(found.matrices[indices]), size)
        writer.write_new(indices, aligned.pixels, aligned.masks)


def write_pictures(run: RunFolder, rendered: Rendered) -> None:
    for picture, mean, variance in (
        (rendered.after, run / "mean.png", run / "variance.png"),
        (rendered.before, run.work / "mean_before.png", run.work / "variance_before.png"),
    ):
        if picture.stats.count:
            for path, data in zip((mean, variance), picture.png(), strict=True):
                write_bytes(path, data)


def chunks(source: ImageSource, rows: np.ndarray, result: Rendered) -> Iterator[tuple[np.ndarray, Batch]]:
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


def write_thumbnail(run: RunFolder, name: str, shown: np.ndarray) -> None:
    folder = run.work / "samples"
    folder.mkdir(exist_ok=True)
    write_bytes(folder / f"{name}.png", png(shown, longest=THUMBNAIL))


def smaller(size: Size, longest: int) -> Size:
    """The same shape, its longer side at most `longest`."""
    scale = min(1.0, longest / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def png(values: np.ndarray, longest: int | None = None) -> bytes:
    """(h,w,1 or 3) on the 0–255 scale → an 8-bit PNG."""
    levels = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    picture = Pillow.fromarray(levels[..., 0] if levels.shape[-1] == 1 else levels)
    if longest is not None:
        picture.thumbnail((longest, longest))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()
