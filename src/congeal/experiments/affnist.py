"""affNIST, 100,000 images per digit: MNIST on a larger ground, under affine warps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from congeal.comparison.compare import true_error
from congeal.datasets import open_named
from congeal.experiments import printed
from congeal.experiments.aligning import AlignTask
from congeal.experiments.mnist import alignment
from congeal.experiments.plan import Cell, Experiment, Options, Row
from congeal.experiments.tables import Column, Table, count, judged, judged_mean, mean, tenths, thousandths
from congeal.experiments.wrapped import wrapped_numbers
from congeal.report.tables import fixed, share
from congeal.runs.folder import RunFolder

DIGITS = "2348"  # as many as the paper shows; it does not name them


COST = (
    "Seconds to fit are for training, aligning and refining all images; to write, for the pass that makes mean and "
    "variance; from start to report, for everything, unless it was interrupted. Each digit ran in a process of its own."
)


def plan(options: Options) -> list[Cell]:
    """A cell for each method and digit."""
    chosen = options.choose(digits=DIGITS, limit=100_000)
    return large_cells("affnist", chosen.digits, chosen.limit, chosen.methods, options)


def large_cells(family: str, digits: str, n: int, methods: Sequence[str], options: Options) -> list[Cell]:
    """One process and one run folder per digit, so that an interrupted one goes on where it was."""
    family = f"{family}-original" if options.originals else family
    cells = []
    for method in methods:
        for digit in digits:
            what = alignment(f"{family}:{digit}@{n}", method, None, options)
            facts = {"digit": digit, **what.facts}
            cells.append(Cell(name=f"{method}-{digit}", facts=facts, measure=measuring(what)))
    return cells


def measuring(what: AlignTask) -> Any:
    """What measures such a cell: the alignment, the corner error where the truth is known, the uint8 values."""

    def measure(folder: Path) -> Row:
        row = what.run(folder)
        if "error" not in row:
            source = open_named(what.source)
            row["corner_error"] = None if source.truth is None else true_error(RunFolder.existing(folder), source)
            row |= wrapped_numbers(source, folder)
        return row

    return measure


def large_table(rows: Sequence[Row], from_paper: Sequence[float]) -> Table:
    """One row per digit, the mean, and what the paper prints."""
    lines: list[Row] = [{**row, "set": row["source"], "after": judged(row)} for row in rows]
    keys = (
        "likeness_before",
        "likeness_after",
        "apsnr_before",
        "apsnr_uint8_wrap_before",
        "apsnr_uint8_wrap_after",
        "energy_ratio",
        "mean_scale",
    )
    means: Row = {
        key: mean(rows, key) for key in (*keys, "corner_error", "fit_seconds", "align_seconds", "total_seconds")
    }
    lines.append({"set": "mean", "after": judged_mean(rows), **means})
    values = ", ".join(f"{value:.2f}" for value in from_paper)
    lines.append({"set": f"paper, {len(from_paper)} digits, not named", "paper": values})
    columns = [
        Column("set", "set"),
        Column("method", "method"),
        Column("images", "n_images", count),
        Column("likeness before", "likeness_before", thousandths),
        Column("after", "likeness_after", thousandths),
        Column("APSNR before", "apsnr_before", fixed),
        Column("after", "after"),
        Column("uint8 wrap before", "apsnr_uint8_wrap_before", fixed),
        Column("after", "apsnr_uint8_wrap_after", fixed),
        Column("paper prints", "paper"),
        Column("energy ratio", "energy_ratio", fixed),
        Column("scale", "mean_scale", fixed),
        Column("out of frame", "out_of_frame_share", share),
        Column("corner error, px", "corner_error", fixed),
        Column("seconds to fit", "fit_seconds", tenths),
        Column("to write", "align_seconds", tenths),
        Column("from start to report", "total_seconds", tenths),
        Column("images/s", "images_per_second", count),
        Column("peak MB", "peak_memory_mb", count),
    ]
    return Table("One set per digit", columns, lines)


def tables(rows: Sequence[Row]) -> list[Table]:
    """The table of both large experiments with the paper's values."""
    return [large_table(rows, printed.AFFNIST)]


def draw(folder: Path, rows: Sequence[Row]) -> None:
    """Means and variances, and some images before and after."""
    from congeal.experiments import figures

    figures.means_and_variances(folder / "figures" / "means_and_variances.png", folder, rows)
    figures.samples(folder / "figures" / "samples.png", folder, rows)


EXPERIMENT = Experiment(
    name="affnist",
    title="affNIST",
    plan=plan,
    tables=tables,
    draw=draw,
    notes=(
        "affnist:… are images generated in affNIST's style, affnist-original:… the original files (--originals).",
        COST,
        printed.CAVEAT,
        printed.HONEST,
    ),
)
