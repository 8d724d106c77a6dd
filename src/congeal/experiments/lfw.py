"""LFW: four people, each image started at its Viola-Jones box, as found and grown by 15 and 30 %.

Landmarks are read when an alignment is finished and written, to measure it; nothing that is fitted sees them. The
deep-funneled images, which Deep Congealing aligned, are measured as they are, in one box for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from PIL import Image as Pillow

from congeal import __version__
from congeal.datasets.lfw import LANDMARKS, landmarks
from congeal.evaluation import landmark_error
from congeal.experiments import printed
from congeal.experiments.aligning import AlignTask, kept
from congeal.experiments.plan import Cell, Experiment, Options, Row
from congeal.experiments.ratios import ratio_table
from congeal.experiments.seen import starts_of
from congeal.experiments.tables import (
    Column,
    Table,
    grouped,
    judged,
    judged_mean,
    mean,
    spread,
    tally,
    tenths,
    thousandths,
    used,
)
from congeal.experiments.wrapped import wrapped_numbers
from congeal.geometry import map_points
from congeal.images import ImageSource, Stack, prepare
from congeal.methods.base import Method
from congeal.methods.fit_context import FitContext
from congeal.opening import open_images
from congeal.pipeline.stages import finish, record_prepared, save_fit
from congeal.registration.features import ImageFeatures
from congeal.report.tables import fixed, share
from congeal.runs.folder import RunFolder
from congeal.runs.originals import transforms_of

METHODS = ("joint", "rasl", "pssv", "ecc", "sift", "deepfeatures")
FUNNELED = "deep-funneled"
GROWN = {0.0: "box", 0.15: "+15 %", 0.3: "+30 %"}
QUICK_SUBJECTS, QUICK_GROWN, QUICK_LIMIT = ("Jennifer_Capriati", "Serena_Williams"), (0.0, 0.3), 16
TILE = 112  # side of a mean in the figure, in pixels


def plan(options: Options) -> list[Cell]:
    """A cell for each method, start and subject, and one per subject for the deep-funneled images."""
    subjects = QUICK_SUBJECTS if options.quick else printed.LFW_SUBJECTS
    grown = QUICK_GROWN if options.quick else tuple(GROWN)
    limit = options.limit or (QUICK_LIMIT if options.quick else None)
    cells = [
        face_cell(method, subject, grow, limit, options)
        for method in options.methods or METHODS
        for grow in grown
        for subject in subjects
    ]
    return cells + [funneled_cell(subject, limit, options) for subject in subjects]


def face_cell(method: str, subject: str, grow: float, limit: int | None, options: Options) -> Cell:
    """The cell of one method on one subject, started at boxes grown by the share `grow`."""
    what = AlignTask(
        source=f"lfw:{subject}@{grow}",
        method=method,
        params=options.params(method),
        limit=limit,
        seed=options.seed,
        time_limit=options.time_limit,
        quiet=options.quiet,
    )
    return Cell(
        name=f"{method}-{grow}-{subject}",
        facts={"subject": subject, "grow": grow, **what.facts},
        measure=lambda folder: measure(what, folder),
    )


def measure(what: AlignTask, folder: Path) -> Row:
    """The alignment, and then where its landmarks are."""
    row = what.run(folder)
    if "error" in row:
        return row
    images = open_images(what.source, limit=what.limit)
    return row | landmark_numbers(images, folder) | wrapped_numbers(images, folder)


def landmark_numbers(images: ImageSource, folder: Path) -> Row:
    """Error in % of the aligned eye distance, before and after: mean, median, and the mean of each landmark."""
    found, start = transforms_of(folder), starts_of(folder)
    points = landmarks(images)
    after, before = (landmark_error(map_points(one.matrices, points)) for one in (found, start))
    row: Row = {"landmark": after["mean"], "landmark_median": after["median"], "landmark_before": before["mean"]}
    row |= {f"landmark_{name}": float(v) for name, v in zip(LANDMARKS, after["per_landmark"], strict=True)}
    row["n_landmarks"] = int((after["per_image"] == after["per_image"]).sum())
    boxes = RunFolder.existing(folder).read_rows("boxes.csv")
    return row | {"n_faceless": sum(bool(box["remark"]) for box in boxes)}


# ---- the row of Deep Congealing


@dataclass(kw_only=True, eq=False)
class AsTheyAre(Method):
    """Images that somebody else aligned: nothing is moved."""

    name: ClassVar[str] = FUNNELED

    def _align(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> torch.Tensor:
        return torch.from_numpy(stack.start)


def funneled_cell(subject: str, limit: int | None, options: Options) -> Cell:
    """The cell of one subject's deep-funneled images."""
    source = f"lfw-deepfunneled:{subject}"
    return Cell(
        name=f"{FUNNELED}-{subject}",
        facts={"subject": subject, "grow": 0.0, "source": source, "method": FUNNELED, "limit": limit},
        measure=lambda folder: measure_funneled(folder, source, limit, options.seed),
    )


def measure_funneled(folder: Path, source: str, limit: int | None, seed: int) -> Row:
    """A run folder like the others, without a fit."""
    images, model = open_images(source, limit=limit), AsTheyAre()
    config = {"task": "align", "source": source, "method": FUNNELED, "params": model.get_params(), "limit": limit}
    config |= {"seed": seed, "write_aligned": False, "output_format": "auto", "version": __version__, "command": None}
    with RunFolder(folder).begin(config) as run:
        if not run.reached("fitted"):
            stack = prepare(images, size=model.size)
            record_prepared(run, stack)
            save_fit(run, stack, model.fit(stack), 0.0)
        metrics = finish(run, images, quiet=True).metrics
    where = {"run": f"{folder.parent.name}/{folder.name}"}
    # Its start is one box for all: what moved the images happened elsewhere, so there is no "before".
    row = {**where, **kept(metrics), **landmark_numbers(images, folder)}
    row |= wrapped_numbers(images, folder)
    unknown = ("likeness_before", "improved_share", "apsnr_before", "apsnr_uint8_wrap_before", "landmark_before")
    return row | dict.fromkeys((*unknown, "n_faceless"))


# ---- tables


def tables(rows: Sequence[Row]) -> list[Table]:
    """Landmark errors, likeness, APSNR and cost, and what has to hold."""
    return [error_table(rows), each_landmark_table(rows), likeness_table(rows), ratio_table(rows, FUNNELED)]


def by_start(rows: Sequence[Row]) -> list[tuple[float, str, list[Row]]]:
    """(grow, method, one row per subject), the box first and methods in their order."""
    groups = grouped(rows, "grow", "method").items()
    return sorted(((grow, method, group) for (grow, method), group in groups), key=lambda one: one[0])


def short(subject: str) -> str:
    """The family name."""
    return subject.rpartition("_")[2]


def error_table(rows: Sequence[Row]) -> Table:
    """One column per subject, each start beginning with the boxes themselves."""
    subjects = list(dict.fromkeys(row["subject"] for row in rows))
    lines: list[Row] = []
    seen: set[float] = set()
    for grow, method, group in by_start(rows):
        if grow not in seen:
            seen.add(grow)
            start = {r["subject"]: r for r in rows if r["grow"] == grow and r.get("landmark_before") is not None}
            lines.append(error_line(grow, "before", list(start.values()), "landmark_before"))
        from_paper = printed.LFW_LANDMARKS[grow].get(method)
        line = error_line(grow, method, group, "landmark")
        lines.append(line | {"paper": None if from_paper is None else " / ".join(fixed(value) for value in from_paper)})
    columns = [
        Column("start", "start"),
        Column("method", "method"),
        *(Column(short(subject), subject, fixed) for subject in subjects),
        Column("mean", "mean", fixed),
        Column("paper prints (Bush / Capriati / Williams / Blair)", "paper"),
        Column("subjects aligned", "tally"),
    ]
    return Table("Landmark error: % of the aligned distance between the eyes, mean over three points", columns, lines)


def error_line(grow: float, method: str, group: Sequence[Row], key: str) -> Row:
    """One line of the error table: the value of each subject, and their mean if none is missing."""
    line: Row = {row["subject"]: row[key] for row in group if row.get(key) is not None}
    complete = len(line) == len({row["subject"] for row in group})
    line |= {"start": GROWN[grow], "method": method, "mean": mean(group, key) if complete else None}
    return line | ({} if method == "before" else {"tally": tally(group)})


def each_landmark_table(rows: Sequence[Row]) -> Table:
    """Errors of the three landmarks apart."""
    keys = [*(f"landmark_{name}" for name in LANDMARKS), "landmark", "landmark_median"]
    lines = [
        {"start": GROWN[grow], "method": method, **{key: mean(group, key) for key in keys}}
        for grow, method, group in by_start(rows)
    ]
    headings = ["left eye", "right eye", "nose", "mean", "median"]
    columns = [Column(heading, key, fixed) for heading, key in zip(headings, keys, strict=True)]
    first = [Column("start", "start"), Column("method", "method")]
    return Table("The same for each landmark, means over subjects", [*first, *columns], lines)


def by_likeness(rows: Sequence[Row]) -> list[tuple[float, str, list[Row]]]:
    """As `by_start`, but within a start the most alike first; what collapsed and what has no likeness comes last."""

    def rank(one: tuple[float, str, list[Row]]) -> tuple[float, bool, float]:
        grow, _, group = one
        likeness = mean(group, "likeness_after")
        last = likeness is None or any(row.get("collapsed") for row in group)
        return grow, last, -(likeness or 0.0)

    return sorted(by_start(rows), key=rank)


def likeness_table(rows: Sequence[Row]) -> Table:
    """Likeness, APSNR, scale and cost, one line per start and method, ranked by likeness."""
    lines = []
    for grow, method, group in by_likeness(rows):
        line: Row = {"start": GROWN[grow], "method": method, "scale": spread(group, "mean_scale")}
        line["each"] = " / ".join(judged(row) or "–" for row in group)
        line["motion"] = used(group, "motion")
        line["likeness"] = judged_mean(group, "likeness_after", 3)
        decibels = ("apsnr_before", "apsnr_after", "apsnr_uint8_wrap_after")
        for key in ("likeness_before", *decibels, "energy_ratio", "out_of_frame_share"):
            line[key] = mean(group, key)
        lines.append(line | {"paper": printed.LFW[grow].get(method), "seconds": mean(group, "fit_seconds")})
    columns = [
        Column("start", "start"),
        Column("method", "method"),
        Column("motion", "motion"),
        Column("likeness before", "likeness_before", thousandths),
        Column("after", "likeness"),
        Column("APSNR before", "apsnr_before", fixed),
        Column("after", "apsnr_after", fixed),
        Column("each subject", "each"),
        Column("uint8 wrap", "apsnr_uint8_wrap_after", fixed),
        Column("paper prints", "paper", fixed),
        Column("scale, mean (range)", "scale"),
        Column("energy ratio", "energy_ratio", fixed),
        Column("out of frame", "out_of_frame_share", share),
        Column("seconds to fit a subject", "seconds", tenths),
    ]
    return Table("Likeness (methods ranked by it), APSNR in dB, scale and cost, means over subjects", columns, lines)


# ---- figures


def draw(folder: Path, rows: Sequence[Row]) -> None:
    """The means, one picture per start: a line per subject, before alignment first, then a column per method."""
    from congeal.experiments import figures

    for (grow,), group in grouped(rows, "grow").items():
        methods = list(dict.fromkeys(row["method"] for row in group))
        lines, names = [], []
        for (subject,), own in grouped(group, "subject").items():
            runs = {row["method"]: folder / row["run"] for row in own}
            aligned = [run for method, run in runs.items() if method != FUNNELED]
            before = RunFolder.existing(aligned[0]).work / "mean_before.png" if aligned else None
            pictures = [before, *(runs[m] / "mean.png" if m in runs else None for m in methods)]
            lines.append([tile(path) for path in pictures])
            names.append(short(subject))
        figures.montage(folder / "figures" / f"means_{100 * grow:.0f}.png", lines, names, ["before", *methods])


def tile(path: Path | None) -> np.ndarray:
    """A picture of a run at the size of the figure; grey where there is none."""
    from congeal.experiments.figures import EMPTY

    picture = Pillow.new("RGB", (TILE, TILE), (EMPTY,) * 3) if path is None else Pillow.open(path).convert("RGB")
    return np.asarray(picture.resize((TILE, TILE), Pillow.Resampling.BICUBIC))


EXPERIMENT = Experiment(
    name="lfw",
    title="Faces of LFW",
    plan=plan,
    tables=tables,
    draw=draw,
    notes=(
        printed.CAVEAT,
        "Landmark error: outer eye corners and nose tip of every image mapped into the aligned picture; distance to "
        "their centroid over images, in % of the distance between the two mean eye corners. The landmarks are found by "
        "a 68-point predictor; unreliable ones are left out. They are read after an alignment is done, never before.",
        "“deep-funneled” are the images as aligned by Deep Congealing, in one box, the median of those found in them.",
        "Ink means nothing in photographs: whether a set was zoomed shows in the scale, 1 being that of the start.",
    ),
)
