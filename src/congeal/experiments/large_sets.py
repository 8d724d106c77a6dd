"""affNIST, 100,000 images per digit on a larger ground under affine warps; and infiMNIST, 1,000,000 images per digit
under local deformations and small shifts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from congeal.experiments import figures, printed
from congeal.experiments import tables as table
from congeal.experiments.experiment import Cell, Experiment, Options
from congeal.experiments.measures import align_cell, true_error_numbers, wrapped_numbers
from congeal.experiments.tables import Rows, Table

COST = (
    "Seconds to fit are for training, aligning and refining all images; to write, for the pass that makes mean and "
    "variance; from start to report, for everything, unless it was interrupted. Each digit ran in a process of its own."
)
OF_ONE_SET = ("n_images", "images_per_second", "peak_memory_mb", "out_of_frame_share", "method")


def plan(family: str, digits: str, n: int, options: Options) -> list[Cell]:
    """One process and one run folder per method and digit, so that an interrupted one goes on where it was."""
    chosen = options.select(digits=digits, limit=n)
    family = f"{family}-original" if options.originals else family
    return [
        align_cell(
            *(f"{method}-{digit}", {"digit": digit}, options, true_error_numbers, wrapped_numbers),
            source=f"{family}:{digit}@{chosen.limit}",
            method=method,
        )
        for method in chosen.methods
        for digit in chosen.digits
    ]


def tables(published: Sequence[float], rows: Rows) -> list[Table]:
    """One row per digit, the mean, and what the paper prints."""
    means = [{**{key: value for key, value in row.items() if key not in OF_ONE_SET}, "source": "mean"} for row in rows]
    paper = {
        "source": f"paper, {len(published)} digits, not named",
        "paper": ", ".join(f"{value:.2f}" for value in published),
    }
    columns = [
        table.words("set", "source"),
        table.METHOD,
        table.number_column("images", "n_images", 0),
        *table.LIKENESS,
        table.number_column("APSNR before", "apsnr_before"),
        table.judged("after"),
        table.number_column("uint8 wrap before", "apsnr_uint8_wrap_before"),
        table.number_column("after", "apsnr_uint8_wrap_after"),
        table.words("paper prints", "paper"),
        table.number_column("energy ratio", "energy_ratio"),
        table.number_column("scale", "mean_scale"),
        table.OUT_OF_FRAME,
        table.CORNER_ERROR,
        table.FIT_SECONDS,
        table.number_column("to write", "align_seconds", 1),
        table.ALL_SECONDS,
        table.number_column("images/s", "images_per_second", 0),
        table.PEAK_MEMORY,
    ]
    return [Table("One set per digit", columns, [*table.each(rows), means, [paper]])]


def draw(folder: Path, rows: Rows) -> None:
    """Means and variances, and some images before and after."""
    figures.means_and_variances(folder / "figures" / "means_and_variances.png", folder, rows)
    figures.samples(folder / "figures" / "samples.png", folder, rows)


# As many digits as the paper shows; it does not name them.
AFFNIST = Experiment(
    title="affNIST",
    plan=partial(plan, "affnist", "2348", 100_000),
    tables=partial(tables, printed.AFFNIST),
    draw=draw,
    notes=(
        "affnist:… are images generated in affNIST's style, affnist-original:… the original files (--originals).",
        COST,
        printed.CAVEAT,
        printed.HONEST,
    ),
)
INFIMNIST = Experiment(
    title="infiMNIST",
    plan=partial(plan, "infimnist", "037", 1_000_000),
    tables=partial(tables, printed.INFIMNIST),
    draw=draw,
    notes=(
        "infimnist:… are images made in infiMNIST's style while they are read, infimnist-original:… are made from the "
        "original files (--originals).",
        COST,
        printed.CAVEAT,
        printed.HONEST,
    ),
)
