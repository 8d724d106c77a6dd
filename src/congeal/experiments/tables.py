"""Rows of cells as tables that people read: each line is a group of rows, each column says what it shows of a group.

A table can be pasted into a page as it is.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from congeal.pipeline.stages import versions
from congeal.report import page
from congeal.report.comparison import table_line

Row = dict[str, Any]
Rows = Sequence[Row]
NONE = "–"
QUICK = "**--quick**: few images and little training. This shows that everything runs, not what it reaches."


@dataclass(frozen=True)
class Column:
    """A heading, the text of a group of rows under it, and whether that text is a number (then it is right-aligned)."""

    heading: str
    show: Callable[[Rows], str]
    is_number: bool = True

    def where(self, key: str, value: Any) -> Column:
        """The same of the rows of a group that have this value; a dash where there is none."""

        def show(group: Rows) -> str:
            own = [row for row in group if row.get(key) == value]
            return self.show(own) if own else NONE

        return replace(self, show=show)


def words(heading: str, key: str) -> Column:
    """The value of the first row, as it is."""
    return Column(heading, lambda group: NONE if group[0].get(key) is None else str(group[0][key]), is_number=False)


def number_column(heading: str, key: str, digits: int = 2) -> Column:
    """The mean over the rows that have a value."""
    return Column(heading, lambda group: page.number(mean_of(group, key), digits))


def percent_column(heading: str, key: str) -> Column:
    """The mean, which is a share of 1."""
    return Column(heading, lambda group: page.percent(mean_of(group, key)))


def largest(heading: str, key: str, digits: int = 0) -> Column:
    """The largest value."""
    return Column(heading, lambda group: page.number(max(values(group, key), default=None), digits))


def spread(heading: str, key: str) -> Column:
    """ "0.95 (0.93–0.97)": mean and range."""

    def show(group: Rows) -> str:
        known = values(group, key)
        return f"{mean_of(group, key):.2f} ({min(known):.2f}–{max(known):.2f})" if known else NONE

    return Column(heading, show)


def judged(heading: str, key: str = "apsnr_after", digits: int = 2) -> Column:
    """The mean, struck out if one of the alignments in it collapsed and flatters it; "failed" where all failed."""

    def show(group: Rows) -> str:
        value = mean_of(group, key)
        if value is None:
            return "failed" if group and all("error" in row for row in group) else NONE
        collapsed = any(row.get("collapsed") for row in group)
        return f"~~{page.number(value, digits)}~~" if collapsed else page.number(value, digits)

    return Column(heading, show)


def used(heading: str, key: str) -> Column:
    """The different words of a group, in order of appearance: "rigid / affine"."""
    return Column(heading, lambda group: " / ".join(distinct(group, key)) or NONE, is_number=False)


def tally(heading: str) -> Column:
    """How many are fine, and what became of the others: "10 of 10", "8 of 10, 1 collapsed, 1 failed"."""

    def show(group: Rows) -> str:
        if group[0].get("method") == BEFORE:
            return NONE
        failed = sum("error" in row for row in group)
        collapsed = sum(bool(row.get("collapsed")) for row in group)
        said = [f"{len(group) - failed - collapsed} of {len(group)}"]
        said += [f"{n} {what}" for n, what in ((collapsed, "collapsed"), (failed, "failed")) if n]
        return ", ".join(said)

    return Column(heading, show, is_number=False)


def from_paper(published: Callable[[Row], Any], heading: str = "paper prints") -> Column:
    """What the paper prints for the rows of a line: a number, several, or None."""

    def show(group: Rows) -> str:
        found = published(group[0])
        return " / ".join(map(page.number, found)) if isinstance(found, tuple) else page.number(found)

    return Column(heading, show)


# Columns that many tables have.
METHOD = words("method", "method")
LIKENESS = (number_column("likeness before", "likeness_before", 3), judged("after", "likeness_after", 3))
ENERGY, SCALE = spread("energy ratio, mean (range)", "energy_ratio"), spread("scale, mean (range)", "mean_scale")
OUT_OF_FRAME = percent_column("out of frame", "out_of_frame_share")
CORNER_ERROR = number_column("corner error, px", "corner_error")
PEAK_MEMORY = largest("peak MB", "peak_memory_mb")
FIT_SECONDS = number_column("seconds to fit", "fit_seconds", 1)
ALL_SECONDS = number_column("from start to report", "total_seconds", 1)


@dataclass(frozen=True)
class Table:
    """A title, columns, and a group of rows for each line."""

    title: str
    columns: Sequence[Column]
    lines: Sequence[Rows]

    def texts(self) -> list[list[str]]:
        """The text of every line and column."""
        return [[column.show(group) for column in self.columns] for group in self.lines]

    def markdown(self) -> str:
        """The table in Markdown; columns of numbers are right-aligned."""
        rule = "|" + "|".join("--:" if column.is_number else "---" for column in self.columns) + "|"
        heading = table_line([column.heading for column in self.columns])
        return "\n".join([f"**{self.title}**", "", heading, rule, *map(table_line, self.texts())])


def experiment_page(
    title: str, tables: Sequence[Table], rows: Rows, notes: Sequence[str], quick: bool, command: str | None
) -> str:
    """Everything a reader needs: tables, failures, what the numbers mean, the machine and the command."""
    parts = [table.markdown() for table in tables]
    failed = [row for row in rows if "error" in row]
    if failed:
        columns = [words("cell", "cell"), words("why", "error")]
        parts.append(Table("Not measured", columns, each(failed)).markdown())
    parts.append("\n".join(f"* {note}" for note in [*([QUICK] if quick else []), *notes, machine()]))
    return "\n\n".join([f"### {title}", *parts, *([f"`{command}`"] if command else [])]) + "\n"


def machine() -> str:
    """One sentence on what it ran on."""
    name = platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"Measured on {os.cpu_count() or 1} cores ({name}), {', '.join(f'{k} {v}' for k, v in versions().items())}."


# ---- rows and groups of rows

BEFORE = "before"


def before(rows: Rows, *by: str, **numbers: str) -> list[Row]:
    """Rows of a method "before": what each set was at its start, by the first row that knows it.

    numbers: key of what is shown: key of its value before.
    """
    first = next(iter(numbers.values()))
    known = grouped([row for row in rows if row.get(first) is not None], *by).values()
    shown = [{key: group[0].get(start) for key, start in numbers.items()} for group in known]
    return [
        {**{key: group[0][key] for key in by}, "method": BEFORE, **own} for group, own in zip(known, shown, strict=True)
    ]


def each(rows: Rows) -> list[Rows]:
    """A line for each row."""
    return [[row] for row in rows]


def grouped(rows: Rows, *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    """Rows that agree in these keys, in order of first appearance."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    return groups


def by(rows: Rows, *keys: str) -> list[Rows]:
    """A line for all rows that agree in these keys."""
    return list(grouped(rows, *keys).values())


def distinct(rows: Rows, key: str) -> list[Any]:
    """The different values of a key, in order of first appearance."""
    return list(dict.fromkeys(row[key] for row in rows if row.get(key) is not None))


def values(rows: Rows, key: str) -> list[float]:
    """The values of a key in the rows that have it."""
    return [row[key] for row in rows if row.get(key) is not None]


def mean_of(rows: Rows, key: str) -> float | None:
    """Of the rows that have it; None if there is none."""
    known = values(rows, key)
    return sum(known) / len(known) if known else None
