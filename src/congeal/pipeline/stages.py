"""The work of a run, stage by stage; each stage is skipped if an earlier run finished it.

prepared   the images at working resolution                    .work/stack
fitted     the method's answer                                 transforms.csv or .npz, model.safetensors, metrics.csv
rendered   original pixels sampled through it                  aligned/, mean.png, variance.png
reported   the numbers, and all of it on one page              metrics.json, report.html

The originals are read to prepare the stack, for the larger sizes that a method and its likeness work at, and to sample
their pixels. A set whose decoded images fit into a fixed budget is decoded once.
"""

from __future__ import annotations

import logging
import platform
import shutil
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import pairwise
from typing import Any

import numpy as np

from congeal import __version__
from congeal.evaluation import Quality
from congeal.geometry.orientation import mirrored, quarter_turns
from congeal.images import ImageSource, SkippedImage, Stack, prepare
from congeal.methods.base import Method
from congeal.pipeline.display import choose_display_range
from congeal.pipeline.draw import rewrite_images
from congeal.pipeline.groups import group_facts
from congeal.pipeline.initial_poses import write_face_boxes
from congeal.pipeline.match_figure import LINES, write_match_figure
from congeal.pipeline.output_options import choose_canvas, sampling_from_config, write_transforms
from congeal.pipeline.render import PICTURES, START_PICTURES, STATE_FILE, open_run_writer, render_originals
from congeal.pipeline.result import Result
from congeal.report import write_report
from congeal.rows import finite_rows
from congeal.runs.checkpoint import History, peak_memory_mb
from congeal.runs.folder import STAGES, RunFolder
from congeal.runs.originals import TABLES
from congeal.transforms import Transforms

log = logging.getLogger("congeal")

SKIPPED_COLUMNS = ("id", "reason")
RESULTS = "shards"  # folder under .work for results of workers
# What a fit leaves besides the table of transforms.
FITTED = (
    "model.safetensors",
    "metrics.csv",
    "skipped.csv",
    ".work/found.npz",
    ".work/start.npz",
    f".work/{LINES}/lines.json",
)
# What a method decided: the motion, the sizes worked at, whether it trained a network, each decision with its reason.
DECIDED = ("motion", "levels", "trained", "decisions")
NEEDED = ("quality", "fit_seconds", "motion", "n_skipped")  # facts of a fitted run
GROUP_FACTS = ("groups", "group_cost", "group_labels")  # of a pile that was sorted
LIKENESS = ("likeness_before", "likeness_after", "improved_share")  # first among the numbers of metrics.json


# ---- prepared


def prepare_stack(
    run: RunFolder,
    images: ImageSource,
    fingerprint: str,
    start: tuple[Transforms | np.ndarray | None, tuple[int, int] | None],
    **options: Any,
) -> Stack:
    """The stack of a run, decoded into its folder and noted there. start: as `read_initial_poses` gives it."""
    log.info("preparing %d images of %s", len(images), images.name)
    init, init_size = start
    known: dict[str, Any] = {"folder": run.work / "stack", "fingerprint": fingerprint}
    stack = prepare(images, init=init, init_size=init_size, **known, **options)
    record_prepared(run, stack)
    return stack


def record_prepared(run: RunFolder, stack: Stack) -> None:
    """skipped.csv and boxes.csv, and that the stage is done."""
    run.write_rows("skipped.csv", [], columns=SKIPPED_COLUMNS)
    add_skipped(run, stack.skipped)
    write_face_boxes(run, stack.source.original)
    run.finish("prepared", highest_memory_mb=highest_memory_mb(run))


def add_skipped(run: RunFolder, skipped: Sequence[SkippedImage]) -> None:
    """Put images that cannot be used into skipped.csv as well, and name the first few."""
    rows = run.read_rows("skipped.csv")
    listed = {row["id"] for row in rows}
    rows += [one._asdict() for one in skipped if one.id not in listed]
    run.state["n_skipped"] = len(rows)
    if not skipped:
        return
    run.write_rows("skipped.csv", rows, columns=SKIPPED_COLUMNS)
    if run.reached("fitted"):
        run.note_files("fitted", [run / "skipped.csv"])
    for one in skipped[:3]:
        log.warning("skipped %s: %s", *one)
    if len(skipped) > 3:
        log.warning("and %d more, see %s", len(skipped) - 3, run / "skipped.csv")


# ---- fitted


def fit_model(run: RunFolder, stack: Stack, model: Method, *, quiet: bool) -> float:
    """Fit the method, resuming from the run's checkpoint; gives the seconds it took, those before a stop included."""
    checkpoint, history = run.checkpoint, History(run)
    model.fit(stack, checkpoint=checkpoint, callbacks=[history], verbose=not quiet)
    seconds = checkpoint.seconds
    history.finish(model.history_)
    return seconds


def save_fit(run: RunFolder, stack: Stack, model: Method, seconds: float) -> None:
    """Everything a fitted method leaves: its model file, if new images can be aligned with it, and its answer."""
    if model.can_transform():
        model.save(run / "model.safetensors")
    write_match_figure(run, stack, model)
    decided = {name: getattr(model, f"{name}_") for name in DECIDED}
    save_result(run, stack, model, model.transforms_, model.quality_, decided, seconds, fitted=True)


def save_result(
    run: RunFolder,
    stack: Stack,
    model: Method,
    found: Transforms,
    quality: Quality,
    decided: Mapping[str, Any],
    seconds: float,
    *,
    fitted: bool,
) -> None:
    """Put everything later stages need on the disk, so that they work without stack and method.

    decided: the motion, the sizes worked at, …, see `DECIDED`. fitted: on these images, and not on others before.
    """
    start = stack.to_transforms(stack.start)
    box, why = choose_canvas(run, found)
    if box is not None:
        found, start = (one.placed(box.box_from_frame, box.size) for one in (found, start))
    table = write_transforms(run, found)
    start.save(run.work / "start.npz")
    run.discard(STATE_FILE)  # a state and aligned images of an earlier fit
    shutil.rmtree(run / "aligned", ignore_errors=True)
    run.state.pop("align_seconds", None)
    run.finish(
        "fitted",
        [table, *(run / name for name in FITTED)],
        highest_memory_mb=highest_memory_mb(run),
        quality=quality.as_dict(),
        fit_seconds=seconds,
        **{**decided, "decisions": {**decided["decisions"], **why}},
        motion_asked=model.motion,
        **group_facts(model, found, stack.source, fitted=fitted),
        canvas=None if box is None else {"left": box.left, "top": box.top, "size": box.size},
        look=choose_display_range(stack),
        versions=versions(),
    )


def versions() -> dict[str, str]:
    """What the answer was computed with, for the report."""
    packages = {name: version(name) for name in ("torch", "NumPy", "Pillow")}
    return {"Python": platform.python_version(), **packages}


# ---- rendered and reported


def finish(run: RunFolder, images: ImageSource, *, quiet: bool) -> Result:
    """From the answer in the folder to the report; images of a finished run that are gone are written again."""
    found = Transforms.load(run.work / "found.npz")
    if not run.reached("rendered"):
        render(run, images, found, quiet=quiet)
    elif run.aligned_address is None:
        rewrite_missing_images(run, images, found)
    if not run.reached("reported"):
        run.write_json("metrics.json", make_metrics(run, found))
        write_report(run)
        for name in ("stack", RESULTS):
            run.discard(name)
        run.finish("reported", [run / "metrics.json", run / "report.html"])
    run.checkpoint.delete()  # it can be ten times as large as the answer, which is on the disk
    return Result(run.read_json("metrics.json"), found, run.path)


def render(run: RunFolder, images: ImageSource, found: Transforms, *, quiet: bool) -> None:
    """Draw all images and the pictures of the set, here or by workers."""
    rendered = render_originals(run, images, found, quiet=quiet)
    add_skipped(run, rendered.lost)
    shown = [run.work / name for name in (*START_PICTURES, "samples.json")]
    run.finish(
        "rendered",
        [*(run / name for name in (*PICTURES, "aligned/names.csv")), *shown, *(run.work / "samples").glob("*.png")],
        align_seconds=run.state.get("align_seconds", rendered.seconds),  # the first time, not that of a repair
        n_exif_rotated=rendered.n_rotated,
        highest_memory_mb=highest_memory_mb(run),
    )
    run.discard(STATE_FILE)


# ---- what an earlier call finished and is gone or damaged by now is done again; the rest is left alone


def verify_stages(run: RunFolder) -> None:
    """Compare the files of finished stages with what was noted of them; a stage that lacks one is not finished."""
    if run.reached("fitted") and not all(fact in run.state for fact in NEEDED):
        run.fall_back("prepared")
    for left, stage in pairwise(STAGES):
        spoiled = run.spoiled(stage) if run.reached(stage) else []
        if spoiled and set(spoiled) <= set(TABLES):
            log.info("%s is gone or damaged and is written again", run / spoiled[0])
            table = write_transforms(run, Transforms.load(run.work / "found.npz"))
            run.note_files("fitted", [table, run.work / "found.npz"])
            run.remember()
        elif spoiled:
            log.info("%s is gone or damaged and is made again", run / spoiled[0])
            run.fall_back(left)


def rewrite_missing_images(run: RunFolder, images: ImageSource, found: Transforms) -> None:
    """Write those aligned images of a rendered run that are not there, or not whole."""
    if not run.config["write_aligned"] or found.aligned_size is None:
        return
    writer, rows = open_run_writer(run, images, found), np.flatnonzero(finite_rows(found.matrices))
    count = rewrite_images(writer, images, found, rows, sampling_from_config(run.config))
    if count:
        log.info("%d aligned images were gone or damaged and are written again", count)
        writer.close()


# ---- metrics.json


def make_metrics(run: RunFolder, found: Transforms) -> dict[str, Any]:
    """metrics.json. images_per_second counts fitting and writing together; sizes are (height, width).

    uncertainty_px is the median over the images that are to be trusted.
    """
    config, state, quality = run.config, run.state, run.state["quality"]
    seconds = state["fit_seconds"] + state["align_seconds"]
    uncertainty = found.uncertainty_px[found.ok & np.isfinite(found.uncertainty_px)]
    return {
        "n_images": quality["n_images"],
        "n_skipped": state["n_skipped"],
        "method": config["method"],
        **{name: state.get(name) for name in ("motion", "motion_asked", "levels", "trained")},
        "uncertainty_px": float(np.median(uncertainty)) if len(uncertainty) else None,
        **dict.fromkeys(LIKENESS),
        **{key: value for key, value in quality.items() if key != "n_images"},
        "fit_seconds": round(state["fit_seconds"], 3),
        "align_seconds": round(state["align_seconds"], 3),
        "images_per_second": round(quality["n_images"] / max(seconds, 1e-9), 1),
        "peak_memory_mb": highest_memory_mb(run),
        "seed": config["seed"],
        "version": __version__,
        "aligned_size": found.aligned_size,
        "status": found.counts(),
        "n_exif_rotated": state["n_exif_rotated"],
        **orientation_counts(config, found),
        "decisions": state.get("decisions", {}),
        **{name: state[name] for name in GROUP_FACTS if name in state},
    }


def orientation_counts(config: Mapping[str, Any], found: Transforms) -> dict[str, int]:
    """How many images were mirrored and turned by quarters, where they could be."""
    counts, params = {"n_mirrored": int(mirrored(found.matrices).sum())}, config.get("params", {})
    if not (counts["n_mirrored"] or config.get("mirror") or params.get("mirror")):
        counts = {}
    if config.get("turns") or params.get("turns"):
        counts["n_turned"] = int((quarter_turns(found.matrices) > 0).sum())
    return counts


def highest_memory_mb(run: RunFolder) -> float | None:
    """The most memory any process that worked on this run held, in MB; where the fit had a process of its own, its."""
    if run.state.get("peak_memory_mb") is not None:
        return float(run.state["peak_memory_mb"])
    known = [value for value in (run.state.get("highest_memory_mb"), peak_memory_mb()) if value is not None]
    return max(known, default=None)
