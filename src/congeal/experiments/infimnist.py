"""infiMNIST, 1,000,000 images per digit for three digits: local deformations and small shifts, at size."""

from __future__ import annotations

from collections.abc import Sequence

from congeal.experiments import printed
from congeal.experiments.affnist import COST, draw, large_cells, large_table
from congeal.experiments.plan import Cell, Experiment, Options, Row
from congeal.experiments.tables import Table

DIGITS = "037"  # as many as the paper shows; it does not name them


def plan(options: Options) -> list[Cell]:
    """A cell for each method and digit."""
    chosen = options.choose(digits=DIGITS, limit=1_000_000)
    return large_cells("infimnist", chosen.digits, chosen.limit, chosen.methods, options)


def tables(rows: Sequence[Row]) -> list[Table]:
    """As for affNIST, with the paper's values for this set."""
    return [large_table(rows, printed.INFIMNIST)]


EXPERIMENT = Experiment(
    name="infimnist",
    title="infiMNIST",
    plan=plan,
    tables=tables,
    draw=draw,
    notes=(
        "infimnist:… are images made in infiMNIST's style while they are read, infimnist-original:… are made from the "
        "original files (--originals).",
        COST,
        printed.CAVEAT,
        printed.HONEST,
    ),
)
