"""`compare`: one prepared stack, every method in a process of its own, one table, one report.

DIR/<label>/ is a run folder like any other, so `congeal export`, `apply` and `report` work on it. What a method has
finished is not done again; other settings of a finished method are refused, more methods are welcome.
"""

from __future__ import annotations

import logging
import os
import pickle
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from congeal import __version__
from congeal.comparison.entries import Entry, make_entries
from congeal.comparison.process import check_time_limit, failure, fit_stack, is_hopeless, run_in_process
from congeal.errors import CongealError, RunFailed, first_line, raise_as_run_failure
from congeal.evaluation import corner_error
from congeal.evaluation.thresholds import MEASURED_SIDE_PX
from congeal.execution.shared_storage import SharedStorage
from congeal.execution.task import TaskPayload, write_payload
from congeal.files import plain, write_json
from congeal.images import Stack
from congeal.images.intensity import Channel, find_channels
from congeal.images.plan import pyramid_sizes
from congeal.images.sources.base import ImageSource
from congeal.images.sources.views import SourceView, cache_decoded
from congeal.methods.base import Method
from congeal.opening import shared_images
from congeal.pipeline.initial_poses import init_name, read_initial_poses, start_at_faces
from congeal.pipeline.model import check_limit, use_stack_position
from congeal.pipeline.run_setup import check_unchanged, command_name, open_workers, source_name
from congeal.pipeline.stages import RESULTS, finish, prepare_stack, verify_stages
from congeal.report.comparison import KEYS, Row, verdict_words, write_comparison, write_tables
from congeal.report.page import number
from congeal.runs.folder import CONFIG, RunFolder
from congeal.transforms import Transforms

log = logging.getLogger("congeal")

SHARED_STACK = "shared_stack"  # folder under .work of arrays that were in no file


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
    """Align a set with several methods under the same conditions; gives the rows of table.json.

    The same call again runs only what is not finished. A method that fails is a row with an `error`.

    Parameters
    ----------
    source, channel, z, init, size, limit, device, executor, quiet, command
        As for `congeal.align`. Methods fit in processes of their own, which only an executor given as text reaches.
    methods : str or sequence of str
        "all", or names of `congeal.list_methods()`; name@variant compares settings of one method.
    output : str or path
        The folder to write, or to resume: tables, report.html, and a run folder per method.
    motion : str, optional
        For every method that has it, else the largest one it has within it; each method's own unless given.
    params : mapping, optional
        Hyper-parameters by label: {"lsc": {"damping": 0.1}}.
    time_limit : float, optional
        Seconds of fitting per method.
    seed : int
        Seed of everything random: the parameter `random_state` of every method.
    """
    images = start_at_faces(cache_decoded(shared_images(source, limit, z=z)), init, quiet=quiet)
    check_limit(limit)
    check_time_limit(time_limit)
    check_importable(images)
    entries = make_entries(methods, params or {}, motion, {"size": size, "random_state": seed}, device)
    options = {"size": size, "align_on": find_channels(images, channel), "quiet": quiet}
    initial = read_initial_poses(init, images)
    shared: dict[str, Any] = {"task": "compare", "source": source_name(source, images), "init": init_name(init)}
    shared |= {"size": size, "limit": limit, "seed": seed, "channel": channel, "z": None if z == "auto" else z}
    changeable: dict[str, Any] = {"methods": [entry.label for entry in entries], "motion": motion}
    changeable |= {"params": params or {}, "time_limit": time_limit, "command": command_name(command)}
    on = executor if isinstance(executor, str) else None

    def fit(part: RunFolder, payload: TaskPayload, model: Method) -> dict[str, Any]:
        return run_in_process(fit_stack, str(part), payload, model, on, quiet, time_limit=time_limit)

    with closing(RunFolder(output)) as run, open_workers(executor, run, quiet=quiet):
        begin(run, shared, changeable)
        prepare = partial(prepare_stack, run, images, check_unchanged(run, images), initial, **options)
        return run_methods(run, images, entries, shared, prepare, fit, time_limit)


def check_importable(source: ImageSource) -> None:
    """Refuse images of a class that the processes of the methods cannot import."""
    while isinstance(source, SourceView):
        source = source.source
    if type(source).__module__ == "__main__":
        raise CongealError(
            f"the class {type(source).__name__} is defined in the script that runs: move it into a module, which the "
            "processes of the methods can import"
        )


def begin(run: RunFolder, shared: Mapping[str, Any], changeable: Mapping[str, Any]) -> RunFolder:
    """Begin a table that can be resumed. `shared` must be what it began with; of `changeable` the latest is kept."""
    before = run.config if (run / CONFIG).is_file() else changeable
    run.begin({**shared, "version": __version__, **{key: before.get(key) for key in changeable}})
    latest = {**run.config, **plain(changeable)}
    if latest != run.config:
        write_json(run / CONFIG, latest)
    return run


def open_part(run: RunFolder, entry: Entry, shared: Mapping[str, Any]) -> RunFolder:
    """The run folder of one method; one that failed under other settings makes room for the new ones."""
    config = {key: value for key, value in shared.items() if key != "size"}
    config |= {"task": "align", "method": entry.method, "params": dict(entry.params), "version": __version__}
    config |= {"write_aligned": False, "output_format": "auto"}
    part = RunFolder(run / entry.label)
    failed_before = (part / CONFIG).is_file() and RunFolder.existing(part).state.get("error")
    try:
        return part.begin(config)
    except CongealError:
        if not failed_before:
            raise
        shutil.rmtree(part)
        return part.begin(config)


def share_stack(stack: Stack, folder: Path) -> TaskPayload:
    """The stack as another process opens it, with the larger pictures that methods and measures ask for.

    They are decoded now, so that no method pays for others. Further sizes are decoded by the process that asks.
    """
    for size in sorted({MEASURED_SIDE_PX, *pyramid_sizes(max(stack.frame), stack.native_size)}):
        stack.at(size)
    try:
        return write_payload(SharedStorage(str(folder)), SHARED_STACK, stack)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise CongealError(
            f"{stack.source.name} cannot be sent to the processes of the methods ({first_line(error)}): "
            "give the images as files or as an array"
        ) from error


def run_methods(
    run: RunFolder,
    images: ImageSource,
    entries: Sequence[Entry],
    shared: Mapping[str, Any],
    prepare: Callable[[], Stack],
    fit: Callable[[RunFolder, TaskPayload, Method], dict[str, Any]],
    time_limit: float | None,
) -> list[Row]:
    """Finish the folder of each method, and write the table after each of them; then the report."""
    rows: list[Row] = []
    with ExitStack() as opened:
        parts = [opened.enter_context(open_part(run, entry, shared)) for entry in entries]
        opened.enter_context(raise_as_run_failure())
        for part in parts:
            verify_stages(part)
        done = [part.reached("reported") or is_hopeless(part.state, time_limit) for part in parts]
        if not all(done):
            stack = prepare()
            if len(stack) < 2:
                raise RunFailed(f"{images.name} has {len(stack)} usable image: aligning a set needs at least two")
            payload = share_stack(stack, run.work)
        for entry, part, finished in zip(entries, parts, done, strict=True):
            if not finished:
                part.remember(n_images=len(stack), n_skipped=len(stack.skipped), error=entry.problem, out_of_time=None)
                if entry.model is not None:
                    work = partial(fit, part, payload, entry.model)
                    run_method(entry, part, stack, work, images)
            rows.append(make_row(entry, part, images))
            if not finished:
                log_row(rows[-1])
            write_tables(run, rows)
        write_comparison(run)
    for name in (SHARED_STACK, "stack", RESULTS):
        run.discard(name)
    return rows


def run_method(
    entry: Entry,
    part: RunFolder,
    stack: Stack,
    fit: Callable[[], dict[str, Any]],
    images: ImageSource,
) -> None:
    """Bring one method's folder to its end; a failure of the method is noted there and nowhere else."""
    outcome: dict[str, Any] = {}
    try:
        if not part.reached("fitted"):
            log.info("aligning %d images with %s", len(stack), entry.label)
            if entry.model is not None:
                use_stack_position(entry.model, stack)
            part.write_rows("skipped.csv", [one._asdict() for one in stack.skipped], columns=["id", "reason"])
            outcome = fit()
            part.refresh()
        if "error" not in outcome:
            finish(part, images.original, quiet=True)
    except RunFailed:
        raise  # a full disk is nobody's row
    except Exception as error:
        outcome = failure(error)
    if "error" in outcome:
        part.remember(error=outcome["error"], out_of_time=outcome.get("out_of_time"))
    if "traceback" in outcome:
        part.write_text("error.log", outcome["traceback"])


def make_row(entry: Entry, part: RunFolder, images: ImageSource) -> Row:
    """The row of one method from its folder."""
    row: Row = dict.fromkeys(KEYS)
    state = part.state
    row.update(n_images=state.get("n_images"), n_skipped=state.get("n_skipped"), version=__version__)
    row.update(seed=part.config["seed"], motion=None if entry.model is None else entry.model.motion)
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
    """Median corner error in source pixels where the data set knows the answer, up to one transform common to all."""
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
        *(number(row[key], 3) for key in ("likeness_before", "likeness_after")),
        *(number(row[key]) for key in ("apsnr_before", "apsnr_after", "energy_ratio")),
        number(row["fit_seconds"], 1),
        verdict_words(row),
    )
