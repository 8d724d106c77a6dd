"""Aligned pixels from original ones: the images themselves, and pictures of the whole set before and after.

One pass over the source, a few images at a time, so memory does not grow with the number of images. Everything is
sampled from the source at output resolution, in its own dtype; statistics are kept on the 0–255 scale of the pictures.
Threads draw images side by side (see `draw`); what they made is put together in the order of the source, so that
results do not depend on how many there are. How far the pass got is noted now and then, and the next one goes on
there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from congeal.execution.threads import map_ordered, usable_cores
from congeal.files import make_folders, sweep, write_bytes, write_json
from congeal.images import ImageSource, Writer, open_writer
from congeal.images.formats.writers import GroupedWriter, group_folder, is_whole, set_transforms
from congeal.images.resample import Sampling
from congeal.pipeline.display import DisplayRange
from congeal.pipeline.draw import SAMPLES, Drawing, cut_rows, draw_shards, rewrite_images
from congeal.pipeline.render_state import RenderState
from congeal.pipeline.shard_rendering import render_by_shards
from congeal.progress import Progress
from congeal.report.motion import QUANTITIES, moves
from congeal.rows import finite_rows, row_slices
from congeal.runs.folder import RunFolder
from congeal.transforms import Transforms

START_PICTURES = ("mean_before.png", "variance_before.png")
"""Under .work: pictures of the set at its initial poses."""
STATE_FILE = "rendering.npz"
"""Under .work: the state of an interrupted pass."""
SAVE_INTERVAL_S = 20.0
"""Seconds between saves of that state, chosen by judgement: what is drawn again after a kill. Saving takes at most a
twentieth of the time."""
# Numbers of images that the report shows, so that its size does not grow with the set.
MAX_FLAGGED, MAX_WORST, MAX_BEST, MAX_RANDOM = 24, 24, 12, 36
MAX_PER_GROUP, MAX_UNCERTAIN, MAX_IN_GROUPS = 12, 24, 120
MAX_MOVED = 2 * len(QUANTITIES)
GROUPS = "groups"  # folder of the pictures of groups
MOTION_ROWS = 20_000
"""Images whose motion is computed together."""


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
    by_workers: the executor of the run draws. After an interruption images already drawn are not read again, unless the
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
    return state if all(map(is_whole, thumbnails)) else RenderState()


def draw_rows(
    drawing: Drawing, rows: np.ndarray, result: RenderState, state_file: Path, began: float, *, quiet: bool
) -> None:
    """Draw all rows that are not in `result` yet in this process, and save the state now and then."""
    writer, due = drawing.writer, time.monotonic() + SAVE_INTERVAL_S
    shards = cut_rows(rows, drawing.found, drawing.source, drawing.display, writer)
    what = "averaging" if writer is None else "writing"
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
