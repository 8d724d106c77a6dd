"""Aligned pixels from original ones: the images themselves, and pictures of the whole set before and after.

One pass over the source, a few images at a time, so memory does not grow with the number of images. Everything is
sampled from the source at output resolution, in its own dtype; statistics are kept on the 0–255 scale of the pictures.
Threads draw images side by side (see `draw`); what they made is put together in the order of the source, so that
results do not depend on how many there are. How far the pass got is noted now and then, and the next one goes on
there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np

from congeal.evaluation import RunningStats
from congeal.execution.shards import divide_images
from congeal.execution.threads import map_ordered, usable_cores
from congeal.files import DAMAGED, make_folders, replacing, sweep, write_bytes, write_json
from congeal.images import ImageSource, Skipped, Writer, open_writer
from congeal.images.formats.shards import ShardWriter
from congeal.images.formats.writers import GroupedWriter, group_folder, is_whole, set_transforms, takes_parts
from congeal.images.resample import Sampling
from congeal.pipeline.display import DisplayRange, fit_within, png
from congeal.pipeline.draw import SAMPLES, Drawing, DrawnBatch, View, chunk_size, draw_in_threads, write_some
from congeal.progress import Progress
from congeal.report.motion import QUANTITIES, moves
from congeal.rows import finite_rows, row_slices
from congeal.runs.folder import RunFolder
from congeal.transforms import Transforms

Size = tuple[int, int]

START_PICTURES = ("mean_before.png", "variance_before.png")
"""Under .work: pictures of the set at its initial poses."""
MAX_BATCH_BYTES = 64_000_000
"""Pictures of this many bytes wait to enter the statistics together …"""
ENOUGH_BATCH_BYTES, ENOUGH_BATCH_IMAGES = 8_000_000, 8
"""… fewer if both of these are reached, because no image is read meanwhile …"""
MAX_BATCH_IMAGES = 256
"""… and never more images than this."""
BAND_ROWS = 16
"""Rows of a picture that are converted to grey levels at a time, so that they stay in the cache."""
STATE_FILE, STATE_VERSION = "rendering.npz", 5
STATE_PICTURES = ("after", "before", "own_after", "own_before")
SAVE_INTERVAL_S = 20.0
MAX_REPORT_SIDE_PX = 720
"""Longer side of the pictures that only the report shows."""
# Numbers of images that the report shows, so that its size does not grow with the set.
MAX_FLAGGED, MAX_WORST, MAX_BEST, MAX_RANDOM = 24, 24, 12, 36
MAX_PER_GROUP, MAX_UNCERTAIN, MAX_IN_GROUPS = 12, 24, 120
MAX_MOVED = 2 * len(QUANTITIES)
GROUPS = "groups"  # folder of the pictures of groups
MOTION_ROWS = 20_000
"""Images whose motion is computed together."""


@dataclass
class Picture:
    """Mean and spread of the set in one frame, gathered while images pass by, in the layout of `View`."""

    stats: RunningStats = field(default_factory=RunningStats)

    def add(self, views: Sequence[View]) -> None:
        """Take in some images; those of one kind that follow one another together."""
        for (_, kind), alike in groupby(views, key=lambda view: (view.levels.dtype, type(view.weights))):
            levels, weights = zip(*alike, strict=True)
            self.stats.update(np.concatenate(levels), np.concatenate(weights) if kind is np.ndarray else None)

    def mean_png(self) -> bytes:
        """The mean."""
        return self._png(lambda part: part.mean)

    def spread_png(self) -> bytes:
        """The standard deviation on a fixed scale: white is the largest possible one, half the range."""
        return self._png(lambda part: 2 * np.sqrt(part.variance))

    def _png(self, values: Callable[[RunningStats], np.ndarray]) -> bytes:
        levels = np.empty(self.stats.shape, np.uint8)
        for first in range(0, len(levels), BAND_ROWS):  # a few rows at a time stay in the cache
            band = slice(first, first + BAND_ROWS)
            # What lies half-way between two grey levels must not go one way or the other by its sixteenth digit.
            own = values(self.stats.rows(band)) + 1e-6
            levels[band] = np.rint(np.clip(own, 0, 255, out=own), out=own)
        return png(levels)


@dataclass
class RenderState:
    """What a pass has gathered: images that could be read at first but not again, how many were turned upright by their
    EXIF orientation, the two pictures (those of the shard at hand apart), those of the groups of a pile, the seconds it
    took, and how many of the rows are behind it."""

    after: Picture = field(default_factory=Picture)
    before: Picture = field(default_factory=Picture)
    own_after: Picture = field(default_factory=Picture)
    own_before: Picture = field(default_factory=Picture)
    groups: dict[int, Picture] = field(default_factory=dict)
    lost: list[Skipped] = field(default_factory=list)
    n_rotated: int = 0
    seconds: float = 0.0
    position: int = 0

    def take(self, group: Sequence[DrawnBatch]) -> None:
        """Take in the images that come next."""
        after = [drawn.after for drawn in group if drawn.after is not None]
        before = [drawn.before for drawn in group if drawn.before is not None]
        # Side by side: nobody else is at work when the last images are taken in.
        both = [partial(self.own_after.add, after), partial(self.own_before.add, before)]
        list(map_ordered(lambda add: add(), both, usable_cores()))
        self._add_to_groups(group)
        self.lost += [drawn.lost for drawn in group if drawn.lost is not None]
        self.n_rotated += sum(drawn.n_rotated for drawn in group)
        self.position += sum(drawn.n_rows for drawn in group)

    def end_shard(self) -> None:
        """Put the sums of a shard to those of all before it. Shards are cut by sizes alone, so sums are the same
        wherever they are made."""
        if self.after.stats.count or self.before.stats.count:
            self.after.stats.merge(self.own_after.stats)
            self.before.stats.merge(self.own_before.stats)
        else:  # the same numbers in the memory of one
            self.after, self.before = self.own_after, self.own_before
        self.own_after, self.own_before = Picture(), Picture()

    def merge(self, other: RenderState) -> None:
        """Take in a shard that was drawn elsewhere."""
        self.after.stats.merge(other.after.stats)
        self.before.stats.merge(other.before.stats)
        self.lost += other.lost
        self.n_rotated += other.n_rotated
        self.position += other.position

    def _add_to_groups(self, some: Sequence[DrawnBatch]) -> None:
        """The same images to the pictures of their groups, where there are any."""
        for drawn in some:
            if drawn.after is None or drawn.group is None:
                continue
            for number in np.unique(drawn.group[drawn.group >= 0]).tolist():
                own, (levels, weights) = drawn.group == number, drawn.after
                picture = self.groups.setdefault(number, Picture())
                picture.add([View(levels[own], weights[own] if isinstance(weights, np.ndarray) else weights)])

    def save(self, path: Path) -> None:
        """All of it in one file, replaced whole."""
        with replacing(path) as file:
            np.savez(file, **self.state())  # type: ignore[arg-type]

    def state(self) -> dict[str, np.ndarray]:
        """All of it as arrays by name."""
        known = {"lost": self.lost, "n_rotated": self.n_rotated, "seconds": self.seconds, "position": self.position}
        facts = {"version": STATE_VERSION, **known}
        pictures = dict(zip(STATE_PICTURES, self.pictures(), strict=True))
        pictures |= {f"group{number}": picture for number, picture in self.groups.items()}
        arrays = {
            f"{name}_{key}": array for name, picture in pictures.items() for key, array in picture.stats.state().items()
        }
        return {"facts": np.array(json.dumps(facts)), **arrays}

    def pictures(self) -> tuple[Picture, ...]:
        """Those of all, and of the shard at hand, in the order of `STATE_PICTURES`."""
        return self.after, self.before, self.own_after, self.own_before

    def load(self, path: Path, *, needs_before: bool) -> None:
        """Go on where an earlier, interrupted pass stopped; at the beginning if there is none.

        needs_before: a pass that left out the pictures of the start is of no use.
        """
        try:
            with np.load(path, allow_pickle=False) as saved:
                if json.loads(str(saved["facts"])).get("version") != STATE_VERSION:
                    return
                found = RenderState.restored({name: saved[name] for name in saved.files})
        except DAMAGED:
            return  # damaged: from the beginning
        seen = [picture.stats.count for picture in found.pictures()]
        if needs_before and (seen[0] != seen[1] or seen[2] != seen[3]):
            return
        self.__dict__.update(found.__dict__)

    @classmethod
    def restored(cls, arrays: Mapping[str, np.ndarray]) -> RenderState:
        """The inverse of `state`."""
        facts, found = json.loads(str(arrays["facts"])), cls()
        for name, picture in zip(STATE_PICTURES, found.pictures(), strict=True):
            keys = [key for key in arrays if key.startswith(f"{name}_")]
            picture.stats = RunningStats.restore({key.removeprefix(f"{name}_"): arrays[key] for key in keys})
        for number in {int(key[5:].split("_")[0]) for key in arrays if key.startswith("group")}:
            own = f"group{number}_"
            state = {key.removeprefix(own): arrays[key] for key in arrays if key.startswith(own)}
            found.groups[number] = Picture(RunningStats.restore(state))
        found.lost = [Skipped(*one) for one in facts["lost"]]
        found.n_rotated, found.seconds, found.position = facts["n_rotated"], facts["seconds"], facts["position"]
        return found


class CheckpointTimer:
    """When to save the state of a pass: every 20 seconds, or less often if saving takes long (large pictures)."""

    def __init__(self) -> None:
        self._due = time.monotonic() + SAVE_INTERVAL_S

    def if_due(self, rendered: RenderState, path: Path, writer: Writer | None) -> None:
        """Save what was gathered, after what was written has reached the disk, if it is time."""
        began = time.monotonic()
        if began < self._due:
            return
        if writer is not None:
            writer.flush()
        rendered.save(path)
        self._due = time.monotonic() + max(SAVE_INTERVAL_S, 20 * (time.monotonic() - began))


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
    by_others: Callable[[Drawing, np.ndarray, RenderState], None] | None = None,
) -> RenderState:
    """Write aligned/, mean.png, variance.png, and under .work the pictures of the start that the report shows.

    found and start (N,3,3) are `aligned_from_source`, one row per image of the source. weigh: the outside of an image
    does not count in the mean (photographs); else it counts as black (objects on dark ground). start_pictures: a folder
    with the two pictures of the start, if another run has drawn them from the same images. After an interruption images
    already drawn are not read again, unless the writer lost them with an unfinished shard. by_others: draws the rows
    elsewhere and adds the result, see `congeal.pipeline.shard_rendering`.
    """
    size = found.aligned_size
    if size is None:
        raise ValueError("rendering needs the aligned size")
    samples = np.array(sorted(choose_samples(run, found, start)))
    rows = np.flatnonzero(finite_rows(found.matrices))
    sweep(make_folders(run.path, SAMPLES))
    result = RenderState()
    if by_others is None:
        result = resume_rendering(run, samples, rows, needs_before=start_pictures is None)
    writer = open_run_writer(run, source, found, output_format) if write_aligned else None
    if writer is not None and by_others is None:
        rewrite_images(writer, source, found, rows[: result.position], sampling)
    drawing = Drawing(
        run=run,
        source=source,
        found=found,
        start=start,
        display=display,
        size=size,
        shown_size=fit_within(size, MAX_REPORT_SIDE_PX),
        samples=samples,
        weigh=weigh,
        draws_start=start_pictures is None,
        writer=writer,
        sampling=sampling,
    )
    began = time.monotonic() - result.seconds
    if by_others is not None:
        by_others(drawing, rows, result)
    else:
        draw_rows(drawing, rows, result, run.work / STATE_FILE, began, quiet=quiet)
    if writer is not None:
        writer.close()
    write_pictures(run, result, start_pictures)
    result.seconds = time.monotonic() - began
    return result


def resume_rendering(run: RunFolder, samples: np.ndarray, rows: np.ndarray, *, needs_before: bool) -> RenderState:
    """The state of an interrupted pass; a new one if there is none, or if thumbnails of it are missing."""
    state = RenderState()
    state.load(run.work / STATE_FILE, needs_before=needs_before)
    drawn = np.intersect1d(samples, rows[: state.position])
    return state if all(has_thumbnails(run, int(i)) for i in drawn) else RenderState()


def draw_rows(
    drawing: Drawing, rows: np.ndarray, result: RenderState, state_file: Path, began: float, *, quiet: bool
) -> None:
    """Draw all rows that are not in `result` yet in this process, and save the state now and then."""
    writer, timer = drawing.writer, CheckpointTimer()
    shards = cut_rows(rows, drawing.found, drawing.source, drawing.display, writer)
    what = "averaging" if writer is None else "writing"
    with Progress(len(rows), what, quiet=quiet, done=result.position) as progress:
        for _ in draw_shards(drawing, rows, shards, result, progress):
            result.seconds = time.monotonic() - began
            timer.if_due(result, state_file, writer)


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
    return max(1, min(MAX_BATCH_IMAGES, MAX_BATCH_BYTES // one, max(ENOUGH_BATCH_IMAGES, ENOUGH_BATCH_BYTES // one)))


def rewrite_images(
    writer: Writer, source: ImageSource, found: Transforms, rows: np.ndarray, sampling: Sampling
) -> None:
    """Write images that were seen by an interrupted pass but did not reach the disk: those of an unfinished shard."""
    draw = partial(write_some, source, found, writer.size, writer, sampling)
    with draw_in_threads(draw, source, found, find_missing_rows(writer, source, rows)) as all_drawn:
        for drawn in all_drawn:
            if drawn.write is not None:
                drawn.write()


def find_missing_rows(writer: Writer, source: ImageSource, rows: np.ndarray) -> np.ndarray:
    """Those of these images that are not written, or of which a part is not."""
    if not takes_parts(writer, source):
        return writer.missing(rows)
    return np.unique(writer.missing(source.part_rows(rows)) // source.n_parts)


def write_pictures(run: RunFolder, rendered: RenderState, start_pictures: Path | None) -> None:
    """mean.png and variance.png, and the same of the start under .work, drawn here or copied."""
    made: dict[Path, Callable[[], bytes]] = {}
    if rendered.after.stats.count:
        made |= {run / "mean.png": rendered.after.mean_png, run / "variance.png": rendered.after.spread_png}
    for name, draw in zip(START_PICTURES, (rendered.before.mean_png, rendered.before.spread_png), strict=True):
        if start_pictures is not None:
            made[run.work / name] = (start_pictures / name).read_bytes
        elif rendered.before.stats.count:
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


def has_thumbnails(run: RunFolder, index: int) -> bool:
    """Whether the small pictures of an image are there."""
    return all(is_whole(run / SAMPLES / f"{index}_{side}.png") for side in ("before", "after"))
