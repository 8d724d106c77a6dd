"""MNIST, 6,000 images per digit: APSNR per digit and mean, and what it cost."""

from __future__ import annotations

from pathlib import Path

from congeal.experiments import printed
from congeal.experiments.experiment import Cell, Experiment, Options
from congeal.experiments.measures import AlignTask, wrapped_numbers
from congeal.experiments.tables import (
    ENERGY,
    LIKENESS,
    METHOD,
    OUT_OF_FRAME,
    PEAK_MEMORY,
    SCALE,
    Rows,
    Table,
    before,
    by,
    distinct,
    from_paper,
    judged,
    number,
    tally,
    used,
)

METHODS = ("joint", "dprc", "rasl", "tgrasta", "pssv", "lsc", "ecc")


def plan(options: Options) -> list[Cell]:
    """A cell for each method and digit."""
    chosen = options.select(limit=6000, methods=METHODS)
    return [
        AlignTask(source=f"mnist:{digit}", method=method, limit=chosen.limit, options=options).cell(
            f"{method}-{digit}", wrapped_numbers, digit=digit
        )
        for method in chosen.methods
        for digit in chosen.digits
    ]


def tables(rows: Rows) -> list[Table]:
    """APSNR of each digit, the first line before any alignment; and likeness, energy, scale and cost."""
    values = {"apsnr_after": "apsnr_before", "apsnr_uint8_wrap_after": "apsnr_uint8_wrap_before"}
    columns = [
        METHOD,
        *(judged(digit).where("digit", digit) for digit in distinct(rows, "digit")),
        judged("mean"),
        judged("uint8 wrap, mean", "apsnr_uint8_wrap_after"),
        from_paper(lambda row: printed.MNIST.get(row["method"])),
        tally("digits aligned"),
    ]
    cost = [METHOD, used("motion", "motion"), *LIKENESS, ENERGY, SCALE, OUT_OF_FRAME]
    cost += [number("seconds to fit a digit", "fit_seconds", 1), PEAK_MEMORY]
    return [
        Table("APSNR in dB, per digit", columns, by([*before(rows, "digit", **values), *rows], "method")),
        Table("Likeness, energy, scale and cost, over digits", cost, by(rows, "method")),
    ]


def draw(folder: Path, rows: Rows) -> None:
    """Means and variances of all methods, and some images before and after the first."""
    from congeal.experiments import figures

    figures.means_and_variances(folder / "figures" / "means_and_variances.png", folder, rows)
    first = by(rows, "method")[0]
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
