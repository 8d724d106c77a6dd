"""MNIST, 6,000 images per digit: APSNR per digit and mean, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from congeal.experiments import printed
from congeal.experiments.aligning import AlignTask
from congeal.experiments.plan import Cell, Experiment, Options, Row
from congeal.experiments.tables import (
    Column,
    Table,
    count,
    grouped,
    judged,
    judged_mean,
    largest,
    mean,
    spread,
    tally,
    tenths,
    thousandths,
    used,
)
from congeal.experiments.wrapped import wrapped_numbers
from congeal.opening import open_images
from congeal.report.tables import fixed, share

METHODS = ("joint", "dprc", "rasl", "tgrasta", "pssv", "lsc", "ecc")


def plan(options: Options) -> list[Cell]:
    """A cell for each method and digit."""
    chosen = options.choose(limit=6000, methods=METHODS)
    return [
        digit_cell(f"{method}-{digit}", digit, alignment(f"mnist:{digit}", method, chosen.limit, options))
        for method in chosen.methods
        for digit in chosen.digits
    ]


def alignment(source: str, method: str, limit: int | None, options: Options, isolated: bool = True) -> AlignTask:
    """The alignment of one set with one method, as the options want it."""
    return AlignTask(
        source=source,
        method=method,
        params=options.params(method),
        limit=limit,
        seed=options.seed,
        isolated=isolated,
        time_limit=options.time_limit,
        quiet=options.quiet,
    )


def digit_cell(name: str, digit: str, what: AlignTask) -> Cell:
    """The cell of one digit aligned with one method."""
    return Cell(name=name, facts={"digit": digit, **what.facts}, measure=lambda folder: measure(what, folder))


def measure(what: AlignTask, folder: Path) -> Row:
    """The alignment, and its APSNR in the paper's supposed arithmetic."""
    row = what.run(folder)
    return row if "error" in row else row | wrapped_numbers(open_images(what.source, limit=what.limit), folder)


def tables(rows: Sequence[Row]) -> list[Table]:
    """APSNR of each digit, and energy, scale and cost."""
    return [apsnr_table(rows), cost_table(rows)]


def apsnr_table(rows: Sequence[Row]) -> Table:
    """One row per method, one column per digit; the first row is before any alignment."""
    digits = list(dict.fromkeys(row["digit"] for row in rows))
    lines = [before_line(rows)]
    for (method,), group in grouped(rows, "method").items():
        line: Row = {row["digit"]: judged(row) for row in group}
        line |= {"method": method, "mean": judged_mean(group), "tally": tally(group)}
        line |= {"wrap": judged_mean(group, "apsnr_uint8_wrap_after"), "paper": printed.MNIST.get(method)}
        lines.append(line)
    columns = [
        Column("method", "method"),
        *(Column(digit, digit) for digit in digits),
        Column("mean", "mean"),
        Column("uint8 wrap, mean", "wrap"),
        Column("paper prints", "paper", fixed),
        Column("digits aligned", "tally"),
    ]
    return Table("APSNR in dB, per digit", columns, lines)


def before_line(rows: Sequence[Row]) -> Row:
    """What is there to begin with: the same for every method that finished."""
    first = [next((r for r in group if "error" not in r), None) for group in grouped(rows, "digit").values()]
    known = [row for row in first if row is not None]
    line: Row = {row["digit"]: fixed(row["apsnr_before"]) for row in known}
    return line | {
        "method": "before",
        "mean": fixed(mean(known, "apsnr_before")),
        "wrap": fixed(mean(known, "apsnr_uint8_wrap_before")),
    }


def cost_table(rows: Sequence[Row]) -> Table:
    """Likeness, whether the object survived, and at what price; means over digits."""
    lines = [
        {
            "method": method,
            "likeness_before": mean(group, "likeness_before"),
            "likeness": judged_mean(group, "likeness_after", 3),
            "energy": spread(group, "energy_ratio"),
            "scale": spread(group, "mean_scale"),
            "out": mean(group, "out_of_frame_share"),
            "seconds": mean(group, "fit_seconds"),
            "memory": largest(group, "peak_memory_mb"),
            "motion": used(group, "motion"),
        }
        for (method,), group in grouped(rows, "method").items()
    ]
    columns = [
        Column("method", "method"),
        Column("motion", "motion"),
        Column("likeness before", "likeness_before", thousandths),
        Column("after", "likeness"),
        Column("energy ratio, mean (range)", "energy"),
        Column("scale, mean (range)", "scale"),
        Column("out of frame", "out", share),
        Column("seconds to fit a digit", "seconds", tenths),
        Column("peak MB", "memory", count),
    ]
    return Table("Likeness, energy, scale and cost, over digits", columns, lines)


def draw(folder: Path, rows: Sequence[Row]) -> None:
    """Means and variances of all methods, and some images before and after the first."""
    from congeal.experiments import figures

    figures.means_and_variances(folder / "figures" / "means_and_variances.png", folder, rows)
    best = [row for row in rows if row["method"] == rows[0]["method"]]
    figures.samples(folder / "figures" / f"samples_{rows[0]['method']}.png", folder, best)


EXPERIMENT = Experiment(
    name="mnist",
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
