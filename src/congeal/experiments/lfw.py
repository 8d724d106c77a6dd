"""LFW: four people, each image started at its Viola-Jones box, as found and grown by 15 and 30 %.

Landmarks are read when an alignment is finished and written, to measure it; nothing that is fitted sees them. The
deep-funneled images, which Deep Congealing aligned, are measured as they are, in one box for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch

from congeal import __version__
from congeal.datasets.photographs import LANDMARKS, landmarks
from congeal.evaluation import landmark_error
from congeal.experiments import figures, printed
from congeal.experiments import tables as table
from congeal.experiments.experiment import Cell, Experiment, Options
from congeal.experiments.measures import AlignTask, run_facts, start_of, wrapped_numbers
from congeal.experiments.tables import Column, Row, Rows, Table, before
from congeal.geometry import map_points
from congeal.images import ImageSource, Stack, prepare
from congeal.methods.base import Method
from congeal.methods.fit_context import FitContext
from congeal.opening import open_images
from congeal.pipeline.stages import finish, record_prepared, save_fit
from congeal.registration.features import ImageFeatures
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
    cells = [
        AlignTask(source=f"lfw:{subject}@{grow}", method=method, limit=limit, options=options).cell(
            f"{method}-{grow}-{subject}", landmark_numbers, wrapped_numbers, subject=subject, grow=grow
        )
        for method in options.methods or METHODS
        for grow in grown
        for subject in subjects
    ]
    return cells + [funneled_cell(subject, limit, options) for subject in subjects]


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
    facts = {"subject": subject, "grow": 0.0, "source": source, "method": FUNNELED, "limit": limit}
    return Cell(
        name=f"{FUNNELED}-{subject}",
        facts=facts,
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
    # Its start is one box for all: what moved the images happened elsewhere, so there is no "before".
    row = run_facts(folder, metrics) | landmark_numbers(images, folder) | wrapped_numbers(images, folder)
    unknown = ("likeness_before", "improved_share", "apsnr_before", "apsnr_uint8_wrap_before", "landmark_before")
    return row | dict.fromkeys((*unknown, "n_faceless"))


# ---- tables


def tables(rows: Rows) -> list[Table]:
    """Landmark errors, likeness, APSNR and cost, and what has to hold."""
    rows = [{**row, "start": GROWN[row["grow"]]} for row in rows]
    keys = [*(f"landmark_{name}" for name in LANDMARKS), "landmark", "landmark_median"]
    headings = ["left eye", "right eye", "nose", "mean", "median"]
    columns = [table.number(heading, key) for heading, key in zip(headings, keys, strict=True)]
    each_landmark = Table(
        "The same for each landmark, means over subjects", [START, table.METHOD, *columns], by_start(rows)
    )
    return [error_table(rows), each_landmark, likeness_table(rows), ratio_table(rows)]


START = table.words("start", "start")


def by_start(rows: Rows) -> list[Rows]:
    """One line per start and method, the box first and methods in their order."""
    return sorted(table.by(rows, "grow", "method"), key=lambda group: float(group[0]["grow"]))


def short(subject: str) -> str:
    """The family name."""
    return subject.rpartition("_")[2]


def error_table(rows: Rows) -> Table:
    """One column per subject, each start beginning with the boxes themselves."""
    columns = [
        START,
        table.METHOD,
        *(table.number(short(name), "landmark").where("subject", name) for name in table.distinct(rows, "subject")),
        Column("mean", complete_mean),
        table.from_paper(
            lambda row: printed.LFW_LANDMARKS[row["grow"]].get(row["method"]),
            "paper prints (Bush / Capriati / Williams / Blair)",
        ),
        table.tally("subjects aligned"),
    ]
    lines = by_start([*before(rows, "grow", "start", "subject", landmark="landmark_before"), *rows])
    return Table("Landmark error: % of the aligned distance between the eyes, mean over three points", columns, lines)


def complete_mean(group: Rows) -> str:
    """The mean over subjects if none is missing."""
    return (
        table.decimal(table.mean(group, "landmark"), 2)
        if len(table.values(group, "landmark")) == len(group)
        else table.NONE
    )


def likeness_table(rows: Rows) -> Table:
    """Likeness, APSNR, scale and cost: within a start the most alike first; what collapsed or has no likeness last."""

    def rank(group: Rows) -> tuple[float, bool, float]:
        likeness = table.mean(group, "likeness_after")
        last = likeness is None or any(row.get("collapsed") for row in group)
        return group[0]["grow"], last, -(likeness or 0.0)

    one = table.judged("")
    columns = [
        START,
        table.METHOD,
        table.used("motion", "motion"),
        *table.LIKENESS,
        table.number("APSNR before", "apsnr_before"),
        table.number("after", "apsnr_after"),
        Column("each subject", lambda group: " / ".join(one.show([row]) for row in group)),
        table.number("uint8 wrap", "apsnr_uint8_wrap_after"),
        table.from_paper(lambda row: printed.LFW[row["grow"]].get(row["method"])),
        table.SCALE,
        table.number("energy ratio", "energy_ratio"),
        table.OUT_OF_FRAME,
        table.number("seconds to fit a subject", "fit_seconds", 1),
    ]
    title = "Likeness (methods ranked by it), APSNR in dB, scale and cost, means over subjects"
    return Table(title, columns, sorted(by_start(rows), key=rank))


# ---- ratios of landmark errors: `joint` against its peers, and from coarse boxes against good ones


class Ratio(NamedTuple):
    """A quotient of landmark errors of (method, start), of the means over subjects or the worst subject's; the bound
    that has to hold, and the one that is aimed at."""

    what: str
    above: tuple[str, float]
    below: tuple[str, float]
    of_worst: bool
    relation: str
    least: float
    aim: float

    def holds(self, value: float) -> str:
        """ "aim", "yes" or "NO"."""
        if self.relation == "≥":
            return "aim" if value >= self.aim else "yes" if value >= self.least else "NO"
        enough = value < self.least if self.relation == "<" else value <= self.least
        return "aim" if value <= self.aim else "yes" if enough else "NO"


RATIOS = (
    Ratio("joint / deep-funneled, box", ("joint", 0.0), (FUNNELED, 0.0), False, "≤", 0.85, 0.64),
    Ratio("joint / rasl, box, each subject", ("joint", 0.0), ("rasl", 0.0), True, "<", 1.0, 0.75),
    Ratio("joint at +30 % / joint at box", ("joint", 0.3), ("joint", 0.0), False, "≤", 1.15, 1.05),
    Ratio("rasl / joint, both at +30 %", ("rasl", 0.3), ("joint", 0.3), False, "≥", 1.3, 2.0),
)
MAX_SCALE_CHANGE = 0.05  # of the scale of every set that `joint` aligned, from that of its boxes


def ratio_table(rows: Rows) -> Table:
    """What has to hold, and whether it does; "–" where a row it needs is missing."""
    columns = [
        table.words("ratio of landmark errors", "what"),
        table.number("value", "value"),
        table.words("each subject", "each"),
        table.words("at least", "least"),
        table.words("aim", "aim"),
        table.words("holds", "holds"),
    ]
    return Table(
        "What has to hold", columns, table.each([*(ratio_line(rows, ratio) for ratio in RATIOS), scale_line(rows)])
    )


def ratio_line(rows: Rows, ratio: Ratio) -> Row:
    """A ratio over the subjects that have both errors."""
    errors = {(row["method"], row["grow"], row["subject"]): row.get("landmark") for row in rows}
    subjects = table.distinct(rows, "subject")
    pairs = [(errors.get((*ratio.above, name)), errors.get((*ratio.below, name))) for name in subjects]
    known = [(above, below) for above, below in pairs if above is not None and below is not None]
    aim = f"{'≥' if ratio.relation == '≥' else '≤'} {ratio.aim}"
    row: Row = {"what": ratio.what, "least": f"{ratio.relation} {ratio.least}", "aim": aim}
    if not known:
        return row
    quotients = [above / below for above, below in known]
    value = max(quotients) if ratio.of_worst else sum(a for a, _ in known) / sum(b for _, b in known)
    words_of_each = " / ".join(table.decimal(quotient, 2) for quotient in quotients)
    return row | {"value": value, "each": words_of_each, "holds": ratio.holds(value)}


def scale_line(rows: Rows) -> Row:
    """No zooming: the scale of every set that `joint` aligned is that of its boxes."""
    scales = table.values([row for row in rows if row["method"] == "joint"], "mean_scale")
    bounds = f"{1 - MAX_SCALE_CHANGE}–{1 + MAX_SCALE_CHANGE}"
    row: Row = {"what": "joint: mean scale furthest from 1", "least": bounds, "aim": bounds}
    if not scales:
        return row
    furthest = max(scales, key=lambda scale: abs(scale - 1))
    return row | {"value": furthest, "holds": "aim" if abs(furthest - 1) <= MAX_SCALE_CHANGE else "NO"}


def draw(folder: Path, rows: Rows) -> None:
    """The means, one picture per start: a line per subject, before alignment first, then a column per method."""
    for (grow,), group in table.grouped(rows, "grow").items():
        named = [{**row, "subject": short(row["subject"])} for row in group]
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
