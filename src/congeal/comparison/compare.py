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
from congeal.comparison.entries import Entry, make_entries, read_labels
from congeal.comparison.frozen import freeze
from congeal.comparison.worker import in_words
from congeal.errors import CongealError, RunFailed, failing_as_run
from congeal.files import write_json
from congeal.images import ImageSource, Stack, prepare
from congeal.metrics import Quality, corner_error
from congeal.opening import open_images
from congeal.pipeline.align import check_unchanged, finish, keep_answer, note_prepared, source_name, use_stack_position
from congeal.pipeline.starts import at_faces, init_name, read_start
from congeal.report import write_report
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
    init: str | os.PathLike[str] | None = None,
    size: int = 64,
    limit: int | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    quiet: bool = False,
    command: str | None = None,
) -> list[Row]:
    """Align `source` with several methods under the same conditions; gives the rows of table.json, in the order given.

    methods: "all", or names of `congeal.list_methods()`, as a list or with commas between; name@variant compares
    settings of one method. motion: for every method that has it, else the largest one it has within it; None for each
    method's own. params: settings by label, {"lsc": {"damping": 0.1}}. time_limit: seconds of fitting per method. A
    method that fails is a row with an `error`. The same call again runs only what is not finished.
    """
    images = at_faces(open_images(source, limit=limit), init, quiet=quiet)
    labels = read_labels(methods)
    if time_limit is not None and not time_limit > 0:
        raise CongealError(f"the time limit is a number of seconds above 0, not {time_limit}")
    entries = make_entries(labels, motion, params or {}, size, seed)
    start, start_size = read_start(init, images)
    shared = {
        "task": "compare",
        "source": source_name(source, images),
        "init": init_name(init),
        "size": size,
        "limit": limit,
        "seed": seed,
        "version": __version__,
    }
    free = {"methods": labels, "motion": motion, "params": params or {}, "time_limit": time_limit, "command": command}
    with begin(output, shared, free) as run:
        check_unchanged(run, images)
        parts = [open_part(run, entry, shared) for entry in entries]
        try:
            with failing_as_run():
                todo = not all(settled(part, time_limit) for part in parts)
                stack = prepare_shared(run, images, size, start, start_size, quiet) if todo else None
                rows: list[Row] = []
                for entry, part in zip(entries, parts, strict=True):
                    if stack is not None and not settled(part, time_limit):
                        run_method(entry, part, stack, run.work / "frozen", time_limit, quiet)
                        tell(make_row(entry, part, images))
                    rows.append(make_row(entry, part, images))
                    write_tables(run, rows)
                write_comparison(run)
        finally:
            for part in parts:
                part.close()
        for name in ("frozen", "stack"):
            run.discard(name)
    return rows


def begin(output: str | os.PathLike[str], shared: Mapping[str, Any], free: Mapping[str, Any]) -> RunFolder:
    """The comparison's folder. `shared` must be what it began with; `free` may change, and the latest is kept."""
    run = RunFolder(output)
    before = run.config if (run / CONFIG).is_file() else {}
    run.begin({**shared, **{key: before.get(key) if before else value for key, value in free.items()}})
    write_json(run / CONFIG, {**run.config, **free})
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


def settled(part: RunFolder, time_limit: float | None) -> bool:
    """Whether there is nothing left to do: done, or out of time before and no more time given now."""
    before = part.state.get("out_of_time")
    return part.reached("reported") or (before is not None and time_limit is not None and time_limit <= before)


def prepare_shared(
    run: RunFolder,
    images: ImageSource,
    size: int,
    start: Transforms | np.ndarray | None,
    start_size: tuple[int, int] | None,
    quiet: bool,
) -> Stack:
    """The one stack that all methods get, in memory here and as files for their processes."""
    log.info("preparing %d images of %s", len(images), images.name)
    stack = prepare(images, size=size, init=start, init_size=start_size, folder=run.work / "stack", quiet=quiet)
    if len(stack) < 2:
        raise RunFailed(f"{images.name} has {len(stack)} usable image: aligning a set needs at least two")
    note_prepared(run, stack)
    freeze(stack, run.work / "frozen")
    return stack


def run_method(
    entry: Entry, part: RunFolder, stack: Stack, frozen: Path, time_limit: float | None, quiet: bool
) -> None:
    """Bring one method's folder to its end; a failure of the method is noted there and nowhere else."""
    part.remember(n_images=len(stack), n_skipped=len(stack.skipped), error=None, out_of_time=None)
    if entry.model is None:
        part.remember(error=entry.problem)
        return
    try:
        if not part.reached("fitted"):
            log.info("aligning %d images with %s", len(stack), entry.label)
            outcome = fit(entry, part, stack, frozen, time_limit, quiet)
            if "error" in outcome:
                part.remember(error=outcome["error"], out_of_time=outcome.get("out_of_time"))
                return
        finish(part, stack.source, quiet=True)
        state_memory(part)
    except RunFailed:
        raise  # a full disk is nobody's row
    except Exception as error:
        part.remember(error=in_words(error))


def fit(
    entry: Entry, part: RunFolder, stack: Stack, frozen: Path, time_limit: float | None, quiet: bool
) -> dict[str, Any]:
    """Fit in a child process and keep its answer as `congeal align` would; gives the child's outcome."""
    model = entry.model
    if model is None:
        raise ValueError("an entry with a problem has nothing to fit")
    use_stack_position(model, stack)
    job = {"method": entry.method, "params": model.get_params(), "stack": str(frozen.resolve()), "quiet": quiet}
    write_json(part.work / "job.json", job)
    part.write_rows("skipped.csv", [one._asdict() for one in stack.skipped], columns=["id", "reason"])
    outcome = fit_in_child(part, time_limit)
    if "error" not in outcome:
        model.quality_ = Quality.from_dict(outcome["quality"])
        model.transforms_ = Transforms.load(part.work / "answer.npz")
        part.remember(**{key: outcome[key] for key in ("peak_memory_mb", "idle_memory_mb")})
        keep_answer(part, stack, model, outcome["fit_seconds"])
    return outcome


def state_memory(part: RunFolder) -> None:
    """metrics.json and report of a part were written by this process, which is not the one that fitted."""
    metrics = part.read_json("metrics.json")
    if metrics["peak_memory_mb"] != part.state["peak_memory_mb"]:
        part.write_json("metrics.json", {**metrics, "peak_memory_mb": part.state["peak_memory_mb"]})
        write_report(part)


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
    row.update(method=entry.label, motion_asked=entry.motion_asked)
    return row


def true_error(part: RunFolder, images: ImageSource) -> float | None:
    """Median corner error in source pixels, where the data set knows the answer; one common gauge is removed."""
    size = images.initial_size or (images.shape[:2] if images.shape is not None else None)
    if size is None:
        return None
    found = Transforms.load(part.work / "found.npz")
    return float(np.nanmedian(corner_error(found.matrices, images.truth, size)))


def tell(row: Row) -> None:
    """A row in a line, for those who watch."""
    if "error" in row:
        log.warning("%s failed: %s", row["method"], row["error"])
        return
    log.info(
        "%s: %s → %s dB, energy %s, %s s, %s",
        row["method"],
        *(fixed(row[key]) for key in ("apsnr_before", "apsnr_after", "energy_ratio")),
        fixed(row["fit_seconds"], 1),
        verdict_words(row),
    )


def failed(rows: Sequence[Row]) -> bool:
    """Whether not one method finished."""
    return all("error" in row for row in rows)
