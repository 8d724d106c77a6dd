"""LFW: four people, each image started at its Viola-Jones box, as found and grown by 15 and 30 %.

Landmarks are read when an alignment is finished and written, to measure it; nothing that is fitted sees them. The
deep-funneled images, which Deep Congealing aligned, are measured as they are, in one box for all.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

from congeal.datasets.photographs import LANDMARKS, landmarks
from congeal.evaluation import landmark_error
from congeal.experiments import figures, printed
from congeal.experiments import tables as table
from congeal.experiments.experiment import Cell, Experiment, Options
from congeal.experiments.measures import align_cell, start_of, wrapped_numbers
from congeal.experiments.tables import Column, Row, Rows, Table, before
from congeal.geometry import map_points
from congeal.images import ImageSource
from congeal.report.page import number
from congeal.runs.folder import RunFolder
from congeal.runs.originals import transforms_of

METHODS = ("joint", "rasl", "pssv", "ecc", "sift", "deepfeatures")
FUNNELED = "deep-funneled"
GROWN = {0.0: "box", 0.15: "+15 %", 0.3: "+30 %"}
QUICK_SUBJECTS, QUICK_GROWN, QUICK_LIMIT = ("Jennifer_Capriati", "Serena_Williams"), (0.0, 0.3), 16
FIGURE_TILE_PX = 112


def plan(options: Options) -> list[Cell]:
    """A cell for each method, start and subject, and one per subject for the deep-funneled images."""
    subjects = QUICK_SUBJECTS if options.quick else printed.LFW_SUBJECTS
    grown = QUICK_GROWN if options.quick else tuple(GROWN)
    limit = options.limit or (QUICK_LIMIT if options.quick else None)
    numbers, cells = (landmark_numbers, wrapped_numbers), []
    for method, grow, subject in product(options.methods or METHODS, grown, subjects):
        name, facts, source = f"{method}-{grow}-{subject}", {"subject": subject, "grow": grow}, f"lfw:{subject}@{grow}"
        cells.append(align_cell(name, facts, options, *numbers, source=source, method=method, limit=limit))
    for subject in subjects:  # a fit without iterations leaves the images where Deep Congealing put them
        facts = {"subject": subject, "grow": 0.0, "method": FUNNELED}
        asked: dict[str, Any] = {"source": f"lfw-deepfunneled:{subject}", "method": "lsc", "limit": limit}
        asked["params"] = {"blurs": (0.0,), "iterations": (0,)}
        cells.append(align_cell(f"{FUNNELED}-{subject}", facts, options, *numbers, without_start, **asked))
    return cells


def landmark_numbers(images: ImageSource, folder: Path) -> Row:
    """Error in % of the aligned eye distance, before and after: mean, median, and the mean of each landmark."""
    found, start = transforms_of(folder), start_of(folder)
    points = landmarks(images)
    after, before = (landmark_error(map_points(one.matrices, points)) for one in (found, start))
    row: Row = {"landmark": after["mean"], "landmark_median": after["median"], "landmark_before": before["mean"]}
    row |= {f"landmark_{name}": float(v) for name, v in zip(LANDMARKS, after["per_landmark"], strict=True)}
    row["n_landmarks"] = int((after["per_image"] == after["per_image"]).sum())
    boxes = RunFolder.existing(folder).read_rows("boxes.csv")
    return row | {"n_faceless": sum(bool(box["remark"]) for box in boxes)}


def without_start(images: ImageSource, folder: Path) -> Row:
    """Empties the numbers "before" of images that were moved elsewhere: their start is one box for all."""
    unknown = ("likeness_before", "improved_share", "apsnr_before", "apsnr_uint8_wrap_before", "landmark_before")
    return dict.fromkeys((*unknown, "n_faceless"))


# ---- tables


def tables(rows: Rows) -> list[Table]:
    """Landmark errors, likeness, APSNR and cost."""
    rows = [{**row, "start": GROWN[row["grow"]]} for row in rows]
    keys = [*(f"landmark_{name}" for name in LANDMARKS), "landmark", "landmark_median"]
    headings = ["left eye", "right eye", "nose", "mean", "median"]
    columns = [table.number_column(heading, key) for heading, key in zip(headings, keys, strict=True)]
    each_landmark = Table(
        "The same for each landmark, means over subjects", [START, table.METHOD, *columns], by_start(rows)
    )
    return [error_table(rows), each_landmark, likeness_table(rows)]


START = table.words("start", "start")


def by_start(rows: Rows) -> list[Rows]:
    """One line per start and method, the box first and methods in their order."""
    return sorted(table.by(rows, "grow", "method"), key=lambda group: float(group[0]["grow"]))


def short_name(subject: str) -> str:
    """The family name."""
    return subject.rpartition("_")[2]


def complete_mean(group: Rows) -> float | None:
    """The mean over subjects if none is missing."""
    return None if any(row.get("landmark") is None for row in group) else table.mean_of(group, "landmark")


def error_table(rows: Rows) -> Table:
    """One column per subject, each start beginning with the boxes themselves."""
    columns = [
        START,
        table.METHOD,
        *(
            table.number_column(short_name(name), "landmark").where("subject", name)
            for name in table.distinct(rows, "subject")
        ),
        Column("mean", lambda group: number(complete_mean(group), 2)),
        table.from_paper(
            lambda row: printed.LFW_LANDMARKS[row["grow"]].get(row["method"]),
            "paper prints (Bush / Capriati / Williams / Blair)",
        ),
        table.tally("subjects aligned"),
    ]
    lines = by_start([*before(rows, "grow", "start", "subject", landmark="landmark_before"), *rows])
    return Table("Landmark error: % of the aligned distance between the eyes, mean over three points", columns, lines)


def likeness_table(rows: Rows) -> Table:
    """Likeness, APSNR, scale and cost: within a start the most alike first; what collapsed or has no likeness last."""

    def rank(group: Rows) -> tuple[float, bool, float]:
        likeness = table.mean_of(group, "likeness_after")
        last = likeness is None or any(row.get("collapsed") for row in group)
        return group[0]["grow"], last, -(likeness or 0.0)

    one = table.judged("")
    columns = [
        START,
        table.METHOD,
        table.used("motion", "motion"),
        *table.LIKENESS,
        table.number_column("APSNR before", "apsnr_before"),
        table.number_column("after", "apsnr_after"),
        Column("each subject", lambda group: " / ".join(one.show([row]) for row in group)),
        table.number_column("uint8 wrap", "apsnr_uint8_wrap_after"),
        table.from_paper(lambda row: printed.LFW[row["grow"]].get(row["method"])),
        table.SCALE,
        table.number_column("energy ratio", "energy_ratio"),
        table.OUT_OF_FRAME,
        table.number_column("seconds to fit a subject", "fit_seconds", 1),
    ]
    title = "Likeness (methods ranked by it), APSNR in dB, scale and cost, means over subjects"
    return Table(title, columns, sorted(by_start(rows), key=rank))


def draw(folder: Path, rows: Rows) -> None:
    """The means, one picture per start: a line per subject, before alignment first, then a column per method."""
    for (grow,), group in table.grouped(rows, "grow").items():
        named = [{**row, "subject": short_name(row["subject"])} for row in group]
        path = folder / "figures" / f"means_{100 * grow:.0f}.png"
        figures.means_and_variances(path, folder, named, down="subject", names=("mean",), side=FIGURE_TILE_PX)


LFW = Experiment(
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
