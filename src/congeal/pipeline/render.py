"""Aligned pixels from original ones: the images themselves, and pictures of the whole set before and after.

One pass over the source, a few images at a time, so memory does not grow with the number of images. Everything is
sampled from the source at output resolution, in its own dtype; statistics are kept on the 0–255 scale of the pictures.
Threads or workers draw images in parallel; results are combined in the order of the source, so that they do not depend
on how many there are. An interrupted pass is resumed.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from congeal.execution import has_results, key_of, map_shards, remove_results
from congeal.execution.shared_storage import open_filesystem, storage_errors
from congeal.execution.threads import map_ordered, usable_cores
from congeal.files import make_folders, sweep, write_bytes, write_json
from congeal.geometry.matrix import invert
from congeal.images import ImageSource, Writer, open_writer
from congeal.images.formats.shards import ShardWriter
from congeal.images.formats.writers import (
    GroupedWriter,
    NpyWriter,
    RowWriter,
    group_folder,
    is_complete,
    set_transforms,
)
from congeal.images.resample import SOFT, Sampling
from congeal.pipeline.display import DisplayRange
from congeal.pipeline.draw import SAMPLES, Drawing, cut_rows, draw_shards, read_batch, rewrite_images
from congeal.pipeline.render_state import RenderState
from congeal.progress import Progress
from congeal.report.motion import QUANTITIES, moves
from congeal.rows import finite_rows, row_slices
from congeal.runs.folder import RunFolder
from congeal.transforms import Transforms

STAGE = "writing"
THUMBNAIL = "thumbnail:"
START_PICTURES = ("mean_before.png", "variance_before.png")
"""Under .work: pictures of the set at its initial poses."""
STATE_FILE = "rendering.npz"
"""Under .work: the state of an interrupted pass."""
SAVE_INTERVAL_S = 20.0
"""Seconds between saves of that state, chosen by judgement: what is drawn again after a kill. Saving takes at most a
twentieth of the time."""
# Numbers of images that the report shows, chosen by judgement: its size must not grow with the set.
MAX_FLAGGED, MAX_WORST, MAX_BEST, MAX_RANDOM = 24, 24, 12, 36
MAX_PER_GROUP, MAX_UNCERTAIN, MAX_IN_GROUPS = 12, 24, 120
MAX_MOVED = 2 * len(QUANTITIES)
GROUPS = "groups"  # folder of the pictures of groups
MOTION_ROWS = 20_000
"""Images whose motion is computed together; no result depends on it."""


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
    sampling: Sampling,
    start_pictures: Path | None,
    quiet: bool,
    by_workers: bool = False,
) -> RenderState:
    """Write aligned/, mean.png, variance.png, and under .work the pictures of the start that the report shows.

    found and start (N,3,3) are `aligned_from_source`, one row per image of the source. weigh, sampling: see `Drawing`.
    start_pictures: a folder with the two pictures of the start, if another run has drawn them from the same images.
    by_workers: the workers of the run draw. After an interruption images already drawn are not read again, unless the
    writer lost them with an unfinished shard.
    """
    samples = np.array(sorted(choose_samples(run, found, start)))
    rows = np.flatnonzero(finite_rows(found.matrices))
    sweep(make_folders(run.path, SAMPLES))
    writer = open_run_writer(run, source, found, output_format) if write_aligned else None
    drawing = Drawing(
        run=run,
        source=source,
        found=found,
        start=start,
        display=display,
        samples=samples,
        weigh=weigh,
        draws_start=start_pictures is None,
        writer=writer,
        sampling=sampling,
    )
    result, began = RenderState(), time.monotonic()
    if by_workers:
        render_by_shards(drawing, rows, result, output_format, run.aligned_address)
    else:
        result = resume_rendering(run, drawing, rows)
        began -= result.seconds
        if writer is not None:
            rewrite_images(writer, source, found, rows[: result.position], sampling)
        draw_rows(drawing, rows, result, run.work / STATE_FILE, began, quiet=quiet)
    if writer is not None:
        writer.close()
    write_pictures(run, result, start_pictures)
    result.seconds = time.monotonic() - began
    return result


def resume_rendering(run: RunFolder, drawing: Drawing, rows: np.ndarray) -> RenderState:
    """The state of an interrupted pass; a new one if there is none, or if thumbnails of it are missing."""
    state = RenderState.load(run.work / STATE_FILE, needs_before=drawing.draws_start)
    drawn = np.intersect1d(drawing.samples, rows[: state.position])
    thumbnails = (run / SAMPLES / f"{i}_{side}.png" for i in drawn.tolist() for side in ("before", "after"))
    return state if all(map(is_complete, thumbnails)) else RenderState()


def draw_rows(
    drawing: Drawing, rows: np.ndarray, result: RenderState, state_file: Path, began: float, *, quiet: bool
) -> None:
    """Draw all rows that are not in `result` yet in this process, and save the state now and then."""
    writer, due = drawing.writer, time.monotonic() + SAVE_INTERVAL_S
    shards = cut_rows(rows, drawing.found, drawing.source, drawing.display, writer)
    what = "averaging" if writer is None else STAGE
    with Progress(len(rows), what, quiet=quiet, done=result.position) as progress:
        for _ in draw_shards(drawing, rows, shards, result, progress):
            now = time.monotonic()
            if now < due:
                continue
            result.seconds = now - began
            if writer is not None:
                writer.flush()  # what is noted as written has to be on the disk
            result.save(state_file)
            due = time.monotonic() + max(SAVE_INTERVAL_S, 20 * (time.monotonic() - now))


# ---- by workers, who read, resample and write the images of a shard, while the driver adds up their sums


@dataclass
class ShardDrawing:
    """The work of a task: render a shard, write its aligned images, and return the sums.

    Attributes
    ----------
    drawing : Drawing
        The settings, without a writer and a run folder.
    rows : (n,) array
        Positions in the source.
    aligned : str or None
        Where aligned images go: a folder of a shared disk, a URL, an .npy file with a row per image, or None.
    output_format : str
    """

    drawing: Drawing
    rows: np.ndarray
    aligned: str | None
    output_format: str

    def __call__(self, shard: tuple[int, int]) -> dict[str, np.ndarray]:
        first, stop = shard
        with tempfile.TemporaryDirectory(prefix="congeal-") as folder, Progress(0, STAGE, quiet=True) as progress:
            home = Path(folder)
            (home / SAMPLES).mkdir(parents=True)
            writer = self._writer(home)
            drawing, result = replace(self.drawing, run=home, writer=writer), RenderState()
            for _ in draw_shards(drawing, self.rows[first:stop], [(0, stop - first)], result, progress):
                pass
            self._finish(writer, home)
            small = {path.name: path.read_bytes() for path in sorted((home / SAMPLES).iterdir())}
        thumbnails = {THUMBNAIL + name: np.frombuffer(data, np.uint8) for name, data in small.items()}
        return {**result.state(), **thumbnails}

    @property
    def _remote(self) -> bool:
        return self.aligned is not None and "://" in self.aligned

    @cached_property
    def _cache(self) -> threading.local:
        return threading.local()

    @property
    def _cached_writer(self) -> Writer:
        """The writer of this thread, kept between shards because it has to know all names."""
        if not hasattr(self._cache, "writer"):
            self._cache.writer = self._open(Path(str(self.aligned)))
        writer: Writer = self._cache.writer
        return writer

    def _open(self, folder: Path) -> Writer:
        drawing = self.drawing
        writer = open_writer(folder, drawing.source, drawing.size, self.output_format, alone=False)
        set_transforms(writer, drawing.source, drawing.found.matrices)
        return writer

    def _writer(self, home: Path) -> Any:
        if self.aligned is None:
            return None
        if self.aligned.endswith(".npy"):
            return RowWriter(Path(self.aligned), self.drawing.source)
        return self._open(home / "aligned") if self._remote else self._cached_writer

    def _finish(self, writer: Any, home: Path) -> None:
        if isinstance(writer, ShardWriter):
            writer.end_shard()
        if isinstance(writer, RowWriter):
            writer.close()
        if self._remote and (home / "aligned").is_dir():
            system, root = open_filesystem(str(self.aligned))
            for path in sorted((home / "aligned").rglob("*")):
                if path.is_file():
                    with storage_errors(str(self.aligned), "written"):
                        system.put_file(str(path), f"{root}/{path.relative_to(home / 'aligned').as_posix()}")

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("drawing", "rows", "aligned", "output_format")}


def render_by_shards(
    drawing: Drawing, rows: np.ndarray, result: RenderState, output_format: str, remote: str | None
) -> None:
    """Draw the rows by the workers of the run, and add their sums to `result`; thumbnails come back with them.

    remote: the URL of the aligned images, if they are not written into the run folder.
    """
    writer, found, start = drawing.writer, drawing.found, drawing.start
    shards = cut_rows(rows, found, drawing.source, drawing.display, writer)
    how = (drawing.size, drawing.display, drawing.weigh, drawing.sampling)
    key = key_of(found.matrices, start, *how, output_format, writer is None)
    stage = STAGE if writer is not None else "averaging"
    aligned: str | None = None
    if isinstance(writer, NpyWriter):
        array, fresh = allocate_rows(writer, drawing.source, found, rows, drawing.size)
        aligned = None if array is None else str(array.resolve())
        if fresh:  # rows of an interrupted run were lost with the array
            remove_results(stage, key)
    elif writer is not None:
        aligned = remote or str(writer.folder.resolve())
    resumed = has_results(stage, key)
    light = replace(drawing, run=Path(), writer=None)
    work = ShardDrawing(light, rows, aligned, output_format)
    counts = [stop - first for first, stop in shards]
    for one in map_shards(work, shards, counts, stage=stage, key=lambda: key):
        for name in [name for name in one if name.startswith(THUMBNAIL)]:
            write_bytes(drawing.run / SAMPLES / name.removeprefix(THUMBNAIL), one.pop(name).tobytes())
        result.merge(RenderState.restored(one))
    if isinstance(writer, NpyWriter):
        lost = {one.id for one in result.lost}
        written = [i for i in rows.tolist() if not lost or drawing.source.id(i) not in lost]
        writer.all_written(np.array(written, dtype=np.int64))
    elif writer is not None and resumed and remote is None:  # files may have been removed in between
        rewrite_images(writer, drawing.source, found, rows, drawing.sampling)


def allocate_rows(
    writer: NpyWriter, source: ImageSource, found: Transforms, rows: np.ndarray, size: tuple[int, int]
) -> tuple[Path | None, bool]:
    """The .npy file that workers write rows into, and whether it is new."""
    there = writer.has_room
    for i in rows:
        try:
            images = read_batch(source, np.array([i]))
        except Exception:  # any readable image will do
            continue
        return writer.make_room(images.sample(invert(found.matrices[[i]]), size, SOFT).pixels), not there
    return None, False


# ---- what is written


def open_run_writer(run: RunFolder, source: ImageSource, found: Transforms, output_format: str) -> Writer:
    """A writer into aligned/, or, for a pile that was sorted, into a folder for each group below it."""
    folder, size = make_folders(run.path, "aligned"), found.aligned_size
    if size is None:
        raise ValueError("writing needs the aligned size")
    if found.group is None:
        writer = open_writer(folder, source, size, output_format)
        set_transforms(writer, source, found.matrices)
        return writer
    return GroupedWriter(folder, source, size, output_format, found.group, found.group_names)


def write_pictures(run: RunFolder, rendered: RenderState, start_pictures: Path | None) -> None:
    """mean.png and variance.png, and the same of the start under .work, drawn here or copied."""
    made: dict[Path, Callable[[], bytes]] = {}
    after, before = rendered.pictures["after"], rendered.pictures["before"]
    if after.stats.count:
        made |= {run / "mean.png": after.mean_png, run / "variance.png": after.spread_png}
    for name, draw in zip(START_PICTURES, (before.mean_png, before.spread_png), strict=True):
        if start_pictures is not None:
            made[run.work / name] = (start_pictures / name).read_bytes
        elif before.stats.count:
            made[run.work / name] = draw
    names = [str(row["name"]) for row in run.state.get("groups") or []] or None
    for number, picture in sorted(rendered.groups.items()):
        folder = make_folders(run.path, f"{GROUPS}/{group_folder(number, names)}")
        made |= {folder / "mean.png": picture.mean_png, folder / "variance.png": picture.spread_png}
    for path, data in zip(made, map_ordered(lambda draw: draw(), made.values(), usable_cores()), strict=True):
        write_bytes(path, data)


def choose_samples(run: RunFolder, found: Transforms, start: np.ndarray | None = None) -> set[int]:
    """The images the report shows: flagged ones, those least and most like the mean, those that moved most from their
    start in any respect, and some drawn with the run's seed. Their list goes to .work/samples.json."""
    known = np.flatnonzero(finite_rows(found.matrices))
    order = known[np.argsort(found.score[known], kind="stable")]  # NaN, a score nobody knows, comes last
    flagged = order[~found.ok[order]][:MAX_FLAGGED]
    generator = np.random.default_rng(run.config.get("seed") or 0)
    drawn = known[generator.choice(len(known), min(MAX_RANDOM, len(known)), replace=False)]
    far = known[:0] if start is None else most_moved_images(found, start, known)
    chosen = np.unique(np.concatenate([flagged, order[:MAX_WORST], order[::-1][:MAX_BEST], far, drawn]))
    chosen = np.union1d(chosen, group_samples(found, known, generator))
    if len(known) <= MAX_FLAGGED + MAX_WORST + MAX_BEST + MAX_RANDOM + MAX_MOVED:
        chosen = known
    some = found[chosen]
    columns = zip(chosen.tolist(), some.ids, some.score.tolist(), some.status.tolist(), strict=True)
    listing = [{"index": i, "id": id, "score": score, "status": status} for i, id, score, status in columns]
    if some.group is not None and some.margin is not None:
        for sample, group, margin in zip(listing, some.group.tolist(), some.margin.tolist(), strict=True):
            sample |= {"group": group, "margin": margin if margin == margin else None}
    write_json(run.work / "samples.json", listing)
    return set(chosen.tolist())


def group_samples(found: Transforms, known: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Of a pile that was sorted: some images of each group, and those that are most nearly in another one."""
    if found.group is None or found.margin is None:
        return known[:0]
    inside = known[found.group[known] >= 0]
    unsure = inside[np.argsort(found.margin[inside], kind="stable")][:MAX_UNCERTAIN]
    numbers = np.unique(found.group[inside])
    each = max(1, min(MAX_PER_GROUP, MAX_IN_GROUPS // max(1, len(numbers))))
    members = (inside[found.group[inside] == number] for number in numbers)
    return np.unique(np.concatenate([unsure, *(generator.permutation(rows)[:each] for rows in members)]))


def most_moved_images(found: Transforms, start: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Of images with a pose, the two at the ends of each quantity of `congeal.report.motion`: what is in the outermost
    bars of its histograms."""
    extremes: dict[tuple[str, int], tuple[float, int]] = {}
    for part in row_slices(len(known), MOTION_ROWS):
        rows = known[part]
        for key, values in moves(found.matrices[rows], start[rows], found.aligned_size or (1, 1)).items():
            for sign in (-1, 1):
                reach = np.where(np.isfinite(values), sign * values, -np.inf)
                best = int(reach.argmax())
                if np.isfinite(reach[best]) and reach[best] > extremes.get((key, sign), (-np.inf, 0))[0]:
                    extremes[key, sign] = (float(reach[best]), int(rows[best]))
    return np.unique(np.array([row for _, row in extremes.values()], dtype=known.dtype))
