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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from congeal.execution import has_results, has_workers, key_of, map_shards
from congeal.execution.shared_storage import open_filesystem, storage_errors
from congeal.files import make_folders, sweep, write_bytes, write_json
from congeal.images import ImageSource, Writer, open_writer
from congeal.images.formats.shards import ShardWriter
from congeal.images.formats.writers import GroupedWriter, chosen_format, group_folder, is_complete, set_transforms
from congeal.images.sources.files import without_credentials
from congeal.pipeline.display import display_range_of
from congeal.pipeline.draw import SAMPLES, Drawing, cut_rows, draw_shards, rewrite_images
from congeal.pipeline.output_options import sampling_from_config
from congeal.pipeline.render_state import RenderState, mean_png, spread_png
from congeal.progress import Progress
from congeal.report.motion import QUANTITIES, moves
from congeal.rows import finite_rows, row_slices
from congeal.runs.folder import RunFolder
from congeal.transforms import Transforms
from congeal.transforms.files import load_array

STAGE = "writing"
SPREAD_FORMATS = ("files", "shards")  # which many can write at once
THUMBNAIL = "thumbnail:"
PICTURES, START_PICTURES = ("mean.png", "variance.png"), ("mean_before.png", "variance_before.png")
"""Pictures of the set; and, under .work, of the set at its initial poses."""
STATE_FILE = "rendering.npz"
"""Under .work: the state of an interrupted pass."""
SAVE_INTERVAL_S = 20.0
"""Seconds between saves of that state, chosen by judgement: a kill costs them and a shard. Saving takes at most a
twentieth of the time."""
# Numbers of images that the report shows, chosen by judgement: its size must not grow with the set.
MAX_FLAGGED, MAX_WORST, MAX_BEST, MAX_RANDOM = 24, 24, 12, 36
MAX_PER_GROUP, MAX_UNCERTAIN, MAX_IN_GROUPS = 12, 24, 120
MAX_MOVED = 2 * len(QUANTITIES)


def render_originals(run: RunFolder, source: ImageSource, found: Transforms, *, quiet: bool) -> RenderState:
    """Write aligned/, mean.png, variance.png, and under .work the pictures of the start that the report shows.

    After an interruption the images of finished shards are not read again, unless the writer lost them.
    """
    start = load_array(run.work / "start.npz", "matrices")
    samples = np.array(sorted(choose_samples(run, found, start)))
    rows = np.flatnonzero(finite_rows(found.matrices))
    sweep(make_folders(run.path, SAMPLES))
    writer = open_run_writer(run, source, found) if run.config["write_aligned"] else None
    weigh, sampling = run.state["quality"]["kind"] == "photo", sampling_from_config(run.config)
    drawing = Drawing(run, source, found, start, display_range_of(run), samples, weigh, writer, sampling)
    began = time.monotonic()
    if is_rendered_by_workers(run, source):
        result = render_by_workers(drawing, rows, run.config["output_format"], run.aligned_address)
    else:
        result = resume_rendering(run, drawing, rows)
        began -= result.seconds
        if writer is not None:
            rewrite_images(writer, source, found, rows[: result.position], sampling)
        render_here(drawing, rows, result, run.work / STATE_FILE, began, quiet=quiet)
    if writer is not None:
        writer.close()
    write_pictures(run, result)
    result.seconds = time.monotonic() - began
    return result


def is_rendered_by_workers(run: RunFolder, images: ImageSource) -> bool:
    """Whether workers render the images; not into one file, not images with several parts, and not groups."""
    if not has_workers() or run.state.get("groups"):
        return False
    spread = images.parts is None and chosen_format(images, run.config["output_format"]) in SPREAD_FORMATS
    return spread or not run.config["write_aligned"]


def resume_rendering(run: RunFolder, drawing: Drawing, rows: np.ndarray) -> RenderState:
    """The state of an interrupted pass; a new one if there is none, or if thumbnails of it are missing."""
    state = RenderState.load(run.work / STATE_FILE)
    drawn = np.intersect1d(drawing.samples, rows[: state.position])
    thumbnails = (run / SAMPLES / f"{i}_{side}.png" for i in drawn.tolist() for side in ("before", "after"))
    return state if all(map(is_complete, thumbnails)) else RenderState()


def render_here(
    drawing: Drawing, rows: np.ndarray, result: RenderState, state_file: Path, began: float, *, quiet: bool
) -> None:
    """Draw all rows that are not in `result` yet in this process, and save the state between shards now and then."""
    writer, due = drawing.writer, time.monotonic() + SAVE_INTERVAL_S
    left = [(max(first, result.position), stop) for first, stop in cut_rows(drawing, rows) if stop > result.position]
    what = "averaging" if writer is None else STAGE
    with Progress(len(rows), what, quiet=quiet, done=result.position) as progress:
        for shard in draw_shards(drawing, rows, left, progress):
            result.merge(shard)
            now = time.monotonic()
            if now >= due:
                result.seconds = now - began
                if writer is not None:
                    writer.flush()  # what is noted as written has to be on the disk
                result.save(state_file)
                due = time.monotonic() + max(SAVE_INTERVAL_S, 20 * (time.monotonic() - now))


# ---- by workers, who read, resample and write the images of a shard, while the driver adds up their sums


@dataclass
class ShardDrawing:
    """The work of a task: render a shard, write its aligned images, and return the sums.

    rows: positions in the source. aligned: where aligned images go: a folder of a shared disk, a URL, or None.
    """

    drawing: Drawing
    rows: np.ndarray
    aligned: str | None
    output_format: str

    def __call__(self, shard: tuple[int, int]) -> dict[str, np.ndarray]:
        with tempfile.TemporaryDirectory(prefix="congeal-") as folder, Progress(0, STAGE, quiet=True) as progress:
            home, remote = Path(folder), self.aligned is not None and "://" in self.aligned
            (home / SAMPLES).mkdir(parents=True)
            writer = self._open(home / "aligned") if remote else self._local_writer
            drawing = replace(self.drawing, run=home, writer=writer)
            (result,) = draw_shards(drawing, self.rows, [shard], progress)
            if isinstance(writer, ShardWriter):
                writer.end_shard()
            if remote:
                upload_files(home / "aligned", str(self.aligned))
            small = {path.name: path.read_bytes() for path in sorted((home / SAMPLES).iterdir())}
        thumbnails = {THUMBNAIL + name: np.frombuffer(data, np.uint8) for name, data in small.items()}
        return {**result.state(), **thumbnails}

    @cached_property
    def _of_thread(self) -> threading.local:
        return threading.local()

    @property
    def _local_writer(self) -> Writer | None:
        """The writer of this thread, kept between shards because it has to know all names."""
        if not hasattr(self._of_thread, "writer"):
            self._of_thread.writer = None if self.aligned is None else self._open(Path(self.aligned))
        writer: Writer | None = self._of_thread.writer
        return writer

    def _open(self, folder: Path) -> Writer:
        drawing = self.drawing
        writer = open_writer(folder, drawing.source, drawing.size, self.output_format, alone=False)
        set_transforms(writer, drawing.source, drawing.found.matrices)
        return writer

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("drawing", "rows", "aligned", "output_format")}


def upload_files(folder: Path, url: str, *, without: Sequence[str] = ()) -> None:
    """Copy the files below a folder to a URL, but not what lies in it under one of the names in `without`."""
    system, root = open_filesystem(url)
    with storage_errors(without_credentials(url), "written"):
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder)
            if path.is_file() and name.parts[0] not in without:
                system.put_file(str(path), f"{root}/{name.as_posix()}")


def render_by_workers(drawing: Drawing, rows: np.ndarray, output_format: str, remote: str | None) -> RenderState:
    """Let the workers of the run draw the rows, and add up their sums; thumbnails come back with them.

    remote: the URL of the aligned images, if they are not written into the run folder.
    """
    writer, found, result = drawing.writer, drawing.found, RenderState()
    shards = cut_rows(drawing, rows)
    how = (drawing.size, drawing.display, drawing.weigh, drawing.sampling)
    key = key_of(found.matrices, drawing.start, *how, output_format, writer is None)
    stage = STAGE if writer is not None else "averaging"
    aligned = None if writer is None else remote or str(writer.folder.resolve())
    resumed = has_results(stage, key)
    work = ShardDrawing(replace(drawing, run=Path(), writer=None), rows, aligned, output_format)
    counts = [stop - first for first, stop in shards]
    for one in map_shards(work, shards, counts, stage=stage, key=lambda: key):
        for name in [name for name in one if name.startswith(THUMBNAIL)]:
            write_bytes(drawing.run / SAMPLES / name.removeprefix(THUMBNAIL), one.pop(name).tobytes())
        result.merge(RenderState.restored(one))
    if writer is not None and resumed and remote is None:  # files may have been removed in between
        rewrite_images(writer, drawing.source, found, rows, drawing.sampling)
    return result


# ---- what is written


def open_run_writer(run: RunFolder, source: ImageSource, found: Transforms) -> Writer:
    """A writer into aligned/, or, for a pile that was sorted, into a folder for each group below it."""
    folder, size, output_format = make_folders(run.path, "aligned"), found.aligned_size, run.config["output_format"]
    if size is None:
        raise ValueError("writing needs the aligned size")
    if found.group is not None:
        return GroupedWriter(folder, source, size, output_format, found.group, found.group_names)
    writer = open_writer(folder, source, size, output_format)
    set_transforms(writer, source, found.matrices)
    return writer


def write_pictures(run: RunFolder, rendered: RenderState) -> None:
    """mean.png and variance.png of the set and of its groups, and the same of the start under .work."""
    names = [str(row["name"]) for row in run.state.get("groups") or []] or None
    frames = [(run.path, PICTURES, "after"), (run.work, START_PICTURES, "before")]
    for number in sorted(int(name) for name in rendered.pictures if name.isdecimal()):
        frames.append((make_folders(run.path, f"groups/{group_folder(number, names)}"), PICTURES, str(number)))
    for folder, files, name in frames:
        for file, draw in zip(files, (mean_png, spread_png), strict=True):
            if rendered.pictures[name].count:
                write_bytes(folder / file, draw(rendered.pictures[name]))


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
    for part in row_slices(len(known)):
        rows = known[part]
        for key, values in moves(found.matrices[rows], start[rows], found.aligned_size or (1, 1)).items():
            for sign in (-1, 1):
                reach = np.where(np.isfinite(values), sign * values, -np.inf)
                best = int(reach.argmax())
                if np.isfinite(reach[best]) and reach[best] > extremes.get((key, sign), (-np.inf, 0))[0]:
                    extremes[key, sign] = (float(reach[best]), int(rows[best]))
    return np.unique(np.array([row for _, row in extremes.values()], dtype=known.dtype))
