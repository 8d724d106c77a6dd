"""Time and memory against the number of images: 1,000 … 6,000 for the peers, then our method alone up to a million."""

from __future__ import annotations

from pathlib import Path

from congeal.experiments import figures, printed
from congeal.experiments import tables as table
from congeal.experiments.experiment import Cell, Experiment, Options
from congeal.experiments.measures import align_cell
from congeal.experiments.tables import Row, Rows, Table

METHODS = ("rasl", "tgrasta", "joint")
DIGITS = "3"  # the one the paper shows
STEPS, LARGE = (1, 2, 3, 4, 5, 6), (10, 100, 1000)  # thousands of images
SMALL_STEPS, SMALL_LARGE = (1, 3, 6), (10,)  # with --quick or --limit
LARGE_METHOD = "joint"


def plan(options: Options) -> list[Cell]:
    """--limit is the largest number for the peers, in place of 6,000; with it, or --quick, there are fewer points.

    All in processes of their own, so that no method pays for another's memory."""
    chosen = options.select(limit=6000, methods=METHODS)
    small = options.quick or options.limit is not None
    unit = max(2, chosen.limit // 6)
    steps, large = (SMALL_STEPS, SMALL_LARGE) if small else (STEPS, LARGE)
    digits = options.digits or DIGITS
    points = [("mnist", digit, method, step * unit) for digit in digits for method in chosen.methods for step in steps]
    if LARGE_METHOD in chosen.methods:
        points += [("infimnist", digit, LARGE_METHOD, step * unit) for digit in digits for step in large]
    cells = []
    for family, digit, method, n in points:
        source, limit = (f"mnist:{digit}", n) if family == "mnist" else (f"infimnist:{digit}@{n}", None)
        name, facts = f"{family}-{method}-{digit}-{n}", {"digit": digit, "n": n, "family": family}
        cells.append(align_cell(name, facts, options, source=source, method=method, limit=limit))
    return cells


def tables(rows: Rows) -> list[Table]:
    """Time and memory of every cell."""
    columns = [
        table.words("set", "set"),
        table.METHOD,
        table.number_column("images", "n", 0),
        table.FIT_SECONDS,
        table.number_column("time(N) / time(first)", "relative"),
        table.number_column("N / first", "ideal"),
        table.number_column("seconds in all", "total_seconds", 1),
        table.PEAK_MEMORY,
        table.number_column("of which at rest", "idle_memory_mb", 0),
        table.judged("APSNR"),
        table.number_column("energy ratio", "energy_ratio"),
    ]
    in_order = [row for group in table.by(rows, "digit", "method", "family") for row in group]
    lines = table.each([{**row, **relative(row, rows)} for row in in_order])
    return [Table("Time and memory against the number of images", columns, lines)]


def relative(row: Row, rows: Rows) -> Row:
    """Name of the set; time and number of images as multiples of those of the method's smallest MNIST set."""
    same = [other for other in rows if all(other[key] == row[key] for key in ("digit", "method"))]
    measured = [other for other in same if other["family"] == "mnist" and other.get("fit_seconds")]
    shown: Row = {"set": f"{row['family']}:{row['digit']}"}
    if measured:
        first = min(measured, key=lambda other: other["n"])
        shown["ideal"] = row["n"] / first["n"]
        shown["relative"] = row["fit_seconds"] / first["fit_seconds"] if "fit_seconds" in row else None
    return shown


def draw(folder: Path, rows: Rows) -> None:
    """Time and memory against the number of images."""
    times, memory = {}, {}
    for (digit, method), group in table.grouped(rows, "digit", "method").items():
        ordered = sorted(group, key=lambda row: row["n"])
        label = method if len(table.distinct(rows, "digit")) == 1 else f"{method}, {digit}"
        ratios = [(row["n"], relative(row, rows).get("relative")) for row in ordered]
        times[label] = [(n, ratio) for n, ratio in ratios if ratio is not None]
        memory[label] = [(row["n"], row["peak_memory_mb"]) for row in ordered if row.get("peak_memory_mb")]
    figures.draw_curves(folder / "figures" / "time.png", {"time(N) / time(first)": times}, "images", log=True)
    figures.draw_curves(folder / "figures" / "memory.png", {"peak memory, MB": memory}, "images", log=True)


SCALING = Experiment(
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
