"""Time and memory against the number of images: 1,000 … 6,000 for the peers, then our method alone up to a million."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from congeal.experiments import printed
from congeal.experiments.mnist import alignment
from congeal.experiments.plan import Cell, Experiment, Options, Row
from congeal.experiments.tables import Column, Table, count, grouped, judged, sound, tenths
from congeal.report.tables import fixed

METHODS = ("rasl", "tgrasta", "joint")
DIGITS = "3"  # the one the paper shows
STEPS, LARGE = (1, 2, 3, 4, 5, 6), (10, 100, 1000)  # thousands of images
SMALL_STEPS, SMALL_LARGE = (1, 3, 6), (10,)
LARGE_METHOD = "joint"


def plan(options: Options) -> list[Cell]:
    """--limit is the largest number for the peers, in place of 6,000; with it, or --quick, there are fewer points."""
    chosen = options.choose(limit=6000, methods=METHODS)
    digits = options.digits or DIGITS
    small = options.quick or options.limit is not None
    unit = max(2, chosen.limit // 6)
    steps, large = (SMALL_STEPS, SMALL_LARGE) if small else (STEPS, LARGE)
    cells = [
        scale_cell("mnist", digit, method, step * unit, options)
        for digit in digits
        for method in chosen.methods
        for step in steps
    ]
    if LARGE_METHOD in chosen.methods:
        cells += [
            scale_cell("infimnist", digit, LARGE_METHOD, step * unit, options) for digit in digits for step in large
        ]
    return cells


def scale_cell(family: str, digit: str, method: str, n: int, options: Options) -> Cell:
    """All in processes of their own, so that no method pays for another's memory."""
    many = family == "infimnist"
    source = f"infimnist:{digit}@{n}" if many else f"mnist:{digit}"
    what = alignment(source, method, None if many else n, options)
    facts = {"digit": digit, "n": n, "family": family, **what.facts}
    return Cell(name=f"{family}-{method}-{digit}-{n}", facts=facts, measure=what.run)


def tables(rows: Sequence[Row]) -> list[Table]:
    """Time and memory of every cell, and how they grow."""
    lines = []
    for (digit, method, family), group in grouped(rows, "digit", "method", "family").items():
        first = unit_row(rows, digit, method)
        for row in group:
            known = "error" not in row
            lines.append(
                {
                    **row,
                    "set": f"{family}:{digit}",
                    "relative": relative(row, first) if known else None,
                    "ideal": row["n"] / first["n"] if first is not None else None,
                    "shown": judged(row),
                    "energy": row.get("energy_ratio"),
                }
            )
    columns = [
        Column("set", "set"),
        Column("method", "method"),
        Column("images", "n", count),
        Column("seconds to fit", "fit_seconds", tenths),
        Column("time(N) / time(first)", "relative", fixed),
        Column("N / first", "ideal", fixed),
        Column("seconds in all", "total_seconds", tenths),
        Column("peak MB", "peak_memory_mb", count),
        Column("of which at rest", "idle_memory_mb", count),
        Column("APSNR", "shown"),
        Column("energy ratio", "energy", fixed),
    ]
    return [Table("Time and memory against the number of images", columns, lines), *growth_tables(rows)]


def growth_tables(rows: Sequence[Row]) -> list[Table]:
    """From each large set to the next: how much more time and memory so many more images take."""
    large = [row for row in sound(rows) if row["family"] == "infimnist"]
    lines = []
    for group in grouped(large, "digit", "method").values():
        for small, big in pairwise(sorted(group, key=lambda row: row["n"])):
            line: Row = {
                "set": f"infimnist:{big['digit']}",
                "method": big["method"],
                "small": small["n"],
                "n": big["n"],
            }
            for key in ("n_images", "fit_seconds", "total_seconds", "peak_memory_mb"):
                known = small.get(key) and big.get(key)
                line[key] = big[key] / small[key] if known else None
            lines.append(line)
    columns = [
        Column("set", "set"),
        Column("method", "method"),
        Column("from", "small", count),
        Column("to", "n", count),
        Column("× images", "n_images", fixed),
        Column("× seconds to fit", "fit_seconds", fixed),
        Column("× seconds in all", "total_seconds", fixed),
        Column("× peak MB", "peak_memory_mb", fixed),
    ]
    return [Table("Growth of large sets", columns, lines)] if lines else []


def unit_row(rows: Sequence[Row], digit: str, method: str) -> Row | None:
    """The smallest MNIST set that method was measured on."""
    own = [r for r in sound(rows) if (r["digit"], r["method"], r["family"]) == (digit, method, "mnist")]
    return min(own, key=lambda row: row["n"], default=None)


def relative(row: Row, first: Row | None) -> float | None:
    """Time to fit as a multiple of that of the smallest set."""
    return None if first is None or not first["fit_seconds"] else row["fit_seconds"] / first["fit_seconds"]


def draw(folder: Path, rows: Sequence[Row]) -> None:
    """Time and memory against the number of images."""
    from congeal.experiments import figures

    times, memory = {}, {}
    for (digit, method), group in grouped(rows, "digit", "method").items():
        ordered = sorted(group, key=lambda row: row["n"])
        first = unit_row(rows, digit, method)
        label = method if len(grouped(rows, "digit")) == 1 else f"{method}, {digit}"
        times[label] = [(row["n"], value) for row in ordered if (value := relative(row, first)) is not None]
        memory[label] = [(row["n"], row["peak_memory_mb"]) for row in ordered if row.get("peak_memory_mb")]
    figures.curves(folder / "figures" / "time.png", times, "images", "time(N) / time(first)")
    figures.curves(folder / "figures" / "memory.png", memory, "images", "peak memory, MB")


EXPERIMENT = Experiment(
    name="scaling",
    title="Scaling",
    plan=plan,
    tables=tables,
    draw=draw,
    notes=(
        "Every measurement ran in a process of its own; “first” is the smallest set of the same method. “At rest” is "
        "what Python and torch hold before there is an image; “in all” is from opening the set to the report.",
        "Beyond MNIST's 6,000 the images are infiMNIST-style, made while they are read.",
        "The paper prints no numbers for this experiment, only curves.",
        printed.HONEST,
    ),
)
