"""`compare`: one prepared stack, every method in a process of its own, one table, one report.

DIR/<label>/ is a run folder like any other, so `congeal export`, `apply` and `report` work on it. What a method has
finished is not done again; other settings of a finished method are refused, more methods are welcome.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from congeal import __version__
from congeal.comparison.child import fit_in_child
from congeal.comparison.entries import Entry, make_entries, plain_label, read_labels
from congeal.comparison.frozen import freeze
from congeal.comparison.worker import in_words
from congeal.errors import CongealError, RunFailed, raise_as_run_failure
from congeal.evaluation import corner_error
from congeal.files import plain, write_json
from congeal.images import Stack
from congeal.images.intensity import Channel, find_channels
from congeal.images.sources.base import ImageSource
from congeal.images.sources.views import cache_decoded
from congeal.pipeline.initial_poses import init_name, read_initial_poses, start_at_faces
from congeal.pipeline.model import check_limit, use_stack_position
from congeal.pipeline.run_setup import (
    attach_executor,
    check_unchanged,
    command_name,
    executor_for_run,
    open_source,
    source_name,
)
from congeal.pipeline.stages import RESULTS, finish, prepare_stack, verify_stages
from congeal.report.compare import write_comparison
from congeal.report.tables import KEYS, Row, fixed, verdict_words, write_tables
from congeal.runs.folder import CONFIG, RunFolder
from congeal.transforms import Transforms

log = logging.getLogger("congeal")


def compare(
    source: Any,
    methods: str | Sequence[str],
    output: str | os.PathLike[str],
    *,
    motion: str | None = None,
    params: Mapping[str, Mapping[str, Any]] | None = None,
    channel: Channel = None,
    z: str | None = None,
    init: str | os.PathLike[str] | None = None,
    size: int = 64,
    limit: int | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    device: str | None = None,
    executor: Any = None,
    quiet: bool = False,
    command: str | None = None,
) -> list[Row]:
    """Align a set with several methods under the same conditions. The same call again runs only what is not finished.

    Every method gets the same prepared images, start and frame, and a process of its own. A method that fails is a row
    with an `error`. The originals are decoded once in all if they fit into memory
    (`congeal.images.sources.views`),
    else once to prepare them and once per method for its pictures.

    Parameters
    ----------
    source
        Anything `congeal.open_images` takes.
    methods : str or sequence of str
        "all", or names of `congeal.list_methods()`, as a list or with commas between; name@variant compares settings of
        one method.
    output : str or path
        The folder to write, or to resume: table.json, .csv, .md, report.html, and a run folder per method.
    motion : str, optional
        For every method that has it, else the largest one it has within it; each method's own unless given.
    params : mapping, optional
        Hyper-parameters by label: {"lsc": {"damping": 0.1}}.
    channel, z, init, size, limit, quiet, command
        As for `congeal.align`.
    time_limit : float, optional
        Seconds of fitting per method.
    seed : int
        Seed of everything random: the parameter `random_state` of every method.
    device : str, optional
        As for `congeal.align`, for those methods that can use another than the CPU.
    executor : str, concurrent.futures.Executor or distributed.Client, optional
        As for `congeal.align`. Methods fit in processes of their own, which only an executor given as text reaches.

    Returns
    -------
    list of dict
        The rows of table.json, in the order of `methods`.
    """
    images = start_at_faces(cache_decoded(open_source(executor, source, limit, z)), init, quiet=quiet)
    check_limit(limit)
    labels = read_labels(methods)
    if time_limit is not None and not time_limit > 0:
        raise CongealError(f"the time limit is a number of seconds above 0, not {time_limit}")
    params = {plain_label(str(label)): settings for label, settings in (params or {}).items()}
    entries = make_entries(labels, motion, params, size, seed, device)
    align_on = find_channels(images, channel)
    start = read_initial_poses(init, images)
    shared = {
        "task": "compare",
        "source": source_name(source, images),
        "init": init_name(init),
        "size": size,
        "limit": limit,
        "seed": seed,
        "channel": channel,
        "z": None if z == "auto" else z,
        "version": __version__,
    }
    free = {
        "methods": labels,
        "motion": motion,
        "params": params,
        "time_limit": time_limit,
        "command": command_name(command),
    }
    with executor_for_run(executor, output, quiet=quiet) as shard_executor, begin(output, shared, free) as run:
        fingerprint = check_unchanged(run, images)
        parts = [open_part(run, entry, shared) for entry in entries]
        for part in parts:
            verify_stages(part)
        try:
            with raise_as_run_failure(), attach_executor(run, shard_executor):
                todo = [not has_nothing_left(part, time_limit) for part in parts]
                caps = [entry.finest for entry in entries if entry.finest is not None]
                options = {"size": size, "align_on": align_on, "quiet": quiet}
                stack = prepare_shared(run, images, fingerprint, start, options, caps) if any(todo) else None
                rows: list[Row] = []
                for entry, part, wanted in zip(entries, parts, todo, strict=True):
                    if stack is not None and wanted:
                        on = executor if isinstance(executor, str) else None
                        run_method(entry, part, parts, stack, run.work / "frozen", time_limit, on, quiet)
                    rows.append(make_row(entry, part, images))
                    if wanted:
                        log_row(rows[-1])
                    write_tables(run, rows)
                write_comparison(run)
        finally:
            for part in parts:
                part.close()
        for name in ("frozen", "stack", RESULTS):
            run.discard(name)
    return rows


def begin(output: str | os.PathLike[str], shared: Mapping[str, Any], free: Mapping[str, Any]) -> RunFolder:
    """The comparison's folder. `shared` must be what it began with; `free` may change, and the latest is kept."""
    run = RunFolder(output)
    before = run.config if (run / CONFIG).is_file() else {}
    run.begin({**shared, **{key: before.get(key) if before else value for key, value in free.items()}})
    latest = {**run.config, **plain(free)}
    if latest != run.config:
        write_json(run / CONFIG, latest)
    return run


def open_part(run: RunFolder, entry: Entry, shared: Mapping[str, Any]) -> RunFolder:
    """The run folder of one method; one that failed under other settings makes room for the new ones."""
    config = {
        **{key: value for key, value in shared.items() if key != "size"},
        "task": "align",
        "method": entry.method,
        "params": entry.settings(),
        "write_aligned": False,
        "output_format": "auto",
    }
    part = RunFolder(run / entry.label)
    if (part / CONFIG).is_file() and RunFolder.existing(part).state.get("error"):
        try:
            return part.begin(config)
        except CongealError:
            shutil.rmtree(part)
    return part.begin(config)


def has_nothing_left(part: RunFolder, time_limit: float | None) -> bool:
    """Whether a method needs no more work: done, or out of time before and no more time given now."""
    before = part.state.get("out_of_time")
    return part.reached("reported") or (before is not None and time_limit is not None and time_limit <= before)


def prepare_shared(
    run: RunFolder,
    images: ImageSource,
    fingerprint: str,
    start: tuple[Transforms | np.ndarray | None, tuple[int, int] | None],
    options: Mapping[str, Any],
    caps: Sequence[int],
) -> Stack:
    """The one stack that all methods get, here and in their processes.

    options: of `prepare`. caps: how fine pictures some of them want.
    """
    stack = prepare_stack(run, images, fingerprint, start, **options)
    if len(stack) < 2:
        raise RunFailed(f"{images.name} has {len(stack)} usable image: aligning a set needs at least two")
    freeze(stack, run.work / "frozen", caps)
    return stack


def drawn_start(part: RunFolder, parts: Sequence[RunFolder]) -> Path | None:
    """A folder with the pictures of the start, which all methods share, once one that sees the same kind drew them."""
    kind = part.state["quality"]["kind"]
    drawn = [other for other in parts if other.reached("rendered") and other.state["quality"]["kind"] == kind]
    return drawn[0].work if drawn else None


def run_method(
    entry: Entry,
    part: RunFolder,
    parts: Sequence[RunFolder],
    stack: Stack,
    frozen: Path,
    time_limit: float | None,
    on: str | None,
    quiet: bool,
) -> None:
    """Bring one method's folder to its end; a failure of the method is noted there and nowhere else."""
    part.remember(n_images=len(stack), n_skipped=len(stack.skipped), error=None, out_of_time=None)
    if entry.model is None:
        part.remember(error=entry.problem)
        return
    try:
        if not part.reached("fitted"):
            log.info("aligning %d images with %s", len(stack), entry.label)
            outcome = fit_entry(entry, part, stack, frozen, time_limit, on, quiet)
            if "error" in outcome:
                part.remember(error=outcome["error"], out_of_time=outcome.get("out_of_time"))
                return
        finish(part, stack.source.original, quiet=True, start_pictures=drawn_start(part, parts))
    except RunFailed:
        raise  # a full disk is nobody's row
    except Exception as error:
        part.remember(error=in_words(error))


def fit_entry(
    entry: Entry, part: RunFolder, stack: Stack, frozen: Path, time_limit: float | None, on: str | None, quiet: bool
) -> dict[str, Any]:
    """Let a child process fit the method and leave its answer in the folder; gives the child's outcome."""
    model = entry.model
    if model is None:
        raise ValueError("an entry with a problem has nothing to fit")
    use_stack_position(model, stack)
    job = {"method": entry.method, "params": model.get_params(), "stack": str(frozen.resolve()), "quiet": quiet}
    if on is not None:
        job["on"] = on
    write_json(part.work / "job.json", job)
    part.write_rows("skipped.csv", [one._asdict() for one in stack.skipped], columns=["id", "reason"])
    outcome = fit_in_child(part, time_limit)
    part.refresh()
    return outcome


def make_row(entry: Entry, part: RunFolder, images: ImageSource) -> Row:
    """The row of one method from its folder."""
    row: Row = dict.fromkeys(KEYS)
    state = part.state
    row.update(n_images=state.get("n_images"), n_skipped=state.get("n_skipped"), version=__version__)
    row.update(seed=part.config["seed"], motion=entry.motion)
    if state.get("error"):
        row["error"] = state["error"]
    else:
        row.update(part.read_json("metrics.json"))
        row.update({key: state.get(key) for key in ("peak_memory_mb", "idle_memory_mb")})
        if images.truth is not None:
            row["corner_error"] = true_error(part, images)
    row["method"] = entry.label
    if entry.motion_asked not in (None, "auto"):  # not what became of it for a method that has no such motion
        row["motion_asked"] = entry.motion_asked
    return row


def true_error(part: RunFolder, images: ImageSource) -> float | None:
    """Median corner error in source pixels, where the data set knows the answer; one common gauge is removed."""
    size = images.initial_size or (images.shape[:2] if images.shape is not None else None)
    if size is None:
        return None
    found = Transforms.load(part.work / "found.npz")
    return float(np.nanmedian(corner_error(found.matrices, images.truth, size)))


def log_row(row: Row) -> None:
    """A row in a line, for those who watch."""
    if "error" in row:
        log.warning("%s failed: %s", row["method"], row["error"])
        return
    log.info(
        "%s: likeness %s → %s, %s → %s dB, energy %s, %s s, %s",
        row["method"],
        *(fixed(row[key], 3) for key in ("likeness_before", "likeness_after")),
        *(fixed(row[key]) for key in ("apsnr_before", "apsnr_after", "energy_ratio")),
        fixed(row["fit_seconds"], 1),
        verdict_words(row),
    )


def failed(rows: Sequence[Row]) -> bool:
    """Whether not one method finished."""
    return all("error" in row for row in rows)
