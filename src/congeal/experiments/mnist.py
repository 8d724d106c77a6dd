"""MNIST, 6,000 images per digit: APSNR per digit and mean, and what it cost."""

from __future__ import annotations

from pathlib import Path

from congeal.experiments import figures, printed
from congeal.experiments import tables as table
from congeal.experiments.experiment import Cell, Experiment, Options
from congeal.experiments.measures import align_cell, wrapped_numbers
from congeal.experiments.tables import Rows, Table

METHODS = ("joint", "dprc", "rasl", "tgrasta", "pssv", "lsc", "ecc")


def plan(options: Options) -> list[Cell]:
    """A cell for each method and digit."""
    chosen = options.select(limit=6000, methods=METHODS)
    return [
        align_cell(
            *(f"{method}-{digit}", {"digit": digit}, options, wrapped_numbers),
            source=f"mnist:{digit}",
            method=method,
            limit=chosen.limit,
        )
        for method in chosen.methods
        for digit in chosen.digits
    ]


def tables(rows: Rows) -> list[Table]:
    """APSNR of each digit, the first line before any alignment; and likeness, energy, scale and cost."""
    values = {"apsnr_after": "apsnr_before", "apsnr_uint8_wrap_after": "apsnr_uint8_wrap_before"}
    columns = [
        table.METHOD,
        *(table.judged(digit).where("digit", digit) for digit in table.distinct(rows, "digit")),
        table.judged("mean"),
        table.judged("uint8 wrap, mean", "apsnr_uint8_wrap_after"),
        table.from_paper(lambda row: printed.MNIST.get(row["method"])),
        table.tally("digits aligned"),
    ]
    cost = [
        table.METHOD,
        table.used("motion", "motion"),
        *table.LIKENESS,
        table.ENERGY,
        table.SCALE,
        table.OUT_OF_FRAME,
    ]
    cost += [table.number_column("seconds to fit a digit", "fit_seconds", 1), table.PEAK_MEMORY]
    return [
        Table("APSNR in dB, per digit", columns, table.by([*table.before(rows, "digit", **values), *rows], "method")),
        Table("Likeness, energy, scale and cost, over digits", cost, table.by(rows, "method")),
    ]


def draw(folder: Path, rows: Rows) -> None:
    """Means and variances of all methods, and some images before and after the first."""
    figures.means_and_variances(folder / "figures" / "means_and_variances.png", folder, rows)
    first = table.by(rows, "method")[0]
    figures.samples(folder / "figures" / f"samples_{first[0]['method']}.png", folder, first)


MNIST = Experiment(
    title="MNIST",
    plan=plan,
    tables=tables,
    draw=draw,
    notes=(
        printed.CAVEAT,
        printed.HONEST,
        "Each method ran in a process of its own, with its own motion and defaults.",
    ),
)
