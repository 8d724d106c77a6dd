"""Rows as tables: table.json and table.csv hold every cell as it was measured, table.md what people want to read.

table.md can be pasted into a page as it is: tables, failures, what the numbers mean, the machine and the command.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from congeal.experiments.plan import Experiment, Row
from congeal.pipeline.stages import versions
from congeal.report.tables import fixed, flat
from congeal.runs.folder import RunFolder

QUICK = "**--quick**: few images and little training. This shows that everything runs, not what it reaches."


def text(value: Any) -> str:
    """A value as it is; a dash for None."""
    return "–" if value is None else str(value)


def count(value: float | None) -> str:
    """A number without decimals; a dash for None."""
    return "–" if value is None else f"{value:,.0f}"


def tenths(value: float | None) -> str:
    """A number with one decimal; a dash for None."""
    return fixed(value, 1)


def thousandths(value: float | None) -> str:
    """A number with three decimals, as likeness has them; a dash for None."""
    return fixed(value, 3)


@dataclass(frozen=True)
class Column:
    """A value of each row, under a heading. `show` makes text of it, None included."""

    heading: str
    key: str
    show: Callable[[Any], str] = text


@dataclass(frozen=True)
class Table:
    """A title, columns, and the rows they take their values from."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]

    def markdown(self) -> str:
        """The table in Markdown; columns of numbers are right-aligned."""
        left = [column.show is text for column in self.columns]
        lines = [
            bar(column.heading for column in self.columns),
            "|" + "|".join("---" if one else "--:" for one in left) + "|",
            *(bar(column.show(row.get(column.key)) for column in self.columns) for row in self.rows),
        ]
        return "\n".join([f"**{self.title}**", "", *lines])


def bar(cells: Any) -> str:
    """One line of a Markdown table."""
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def write_tables(run: RunFolder, experiment: Experiment, rows: Sequence[Row]) -> None:
    """table.json, table.csv and table.md."""
    run.write_json("table.json", list(rows))
    columns = list(dict.fromkeys(key for row in rows for key in flat(row)))
    run.write_rows("table.csv", [flat(row) for row in rows], columns=columns)
    run.write_text("table.md", markdown(experiment, rows, run.config.get("command"), run.config["quick"]))


def markdown(experiment: Experiment, rows: Sequence[Row], command: str | None = None, quick: bool = False) -> str:
    """Everything a reader needs, from the title to the command."""
    parts = [table.markdown() for table in experiment.tables(rows)]
    if any("error" in row for row in rows):
        parts.append(failures(rows).markdown())
    notes = [*([QUICK] if quick else []), *experiment.notes, machine()]
    parts.append("\n".join(f"* {note}" for note in notes))
    if command:
        parts.append(f"`{command}`")
    return "\n\n".join([f"### {experiment.title}", *parts]) + "\n"


def failures(rows: Sequence[Row]) -> Table:
    """The cells that could not be measured, and why."""
    failed = [row for row in rows if "error" in row]
    return Table("Not measured", [Column("cell", "cell"), Column("why", "error")], failed)


def machine() -> str:
    """One sentence on what it ran on."""
    cores, name = os.cpu_count() or 1, platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"Measured on {cores} cores ({name}), {', '.join(f'{k} {v}' for k, v in versions().items())}."


# ---- making rows of rows


def sound(rows: Sequence[Row]) -> list[Row]:
    """The rows without an error."""
    return [row for row in rows if "error" not in row]


def grouped(rows: Sequence[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    """Rows that agree in these keys, in order of first appearance."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    return groups


def values(rows: Sequence[Row], key: str) -> list[float]:
    """The values of a key in the rows that have it and no error."""
    return [row[key] for row in sound(rows) if row.get(key) is not None]


def mean(rows: Sequence[Row], key: str) -> float | None:
    """Of the rows that have it; None if there is none."""
    known = values(rows, key)
    return sum(known) / len(known) if known else None


def largest(rows: Sequence[Row], key: str) -> float | None:
    """The largest of the rows that have it; None if there is none."""
    return max(values(rows, key), default=None)


def spread(rows: Sequence[Row], key: str) -> str | None:
    """ "0.95 (0.93–0.97)": mean and range."""
    known = values(rows, key)
    return f"{mean(rows, key):.2f} ({min(known):.2f}–{max(known):.2f})" if known else None


def judged(row: Row | None, key: str = "apsnr_after") -> str | None:
    """A value in dB, struck out where the alignment collapsed and it means nothing; "failed" where there is none."""
    if row is None:
        return None
    if "error" in row:
        return "failed"
    return f"~~{fixed(row[key])}~~" if row.get("collapsed") else fixed(row[key])


def judged_mean(rows: Sequence[Row], key: str = "apsnr_after", digits: int = 2) -> str:
    """The mean, struck out if one of the alignments in it collapsed and flatters it."""
    value = fixed(mean(rows, key), digits)
    return f"~~{value}~~" if value != "–" and any(row.get("collapsed") for row in sound(rows)) else value


def used(rows: Sequence[Row], key: str) -> str | None:
    """The different words of a group, in order of appearance: "rigid / affine"."""
    return " / ".join(dict.fromkeys(row[key] for row in rows if row.get(key))) or None


def tally(rows: Sequence[Row]) -> str:
    """How many of a group are fine, and what became of the others: "10 of 10", "8 of 10, 1 collapsed, 1 failed"."""
    failed = len(rows) - len(sound(rows))
    collapsed = sum(bool(row.get("collapsed")) for row in sound(rows))
    words = [f"{len(rows) - failed - collapsed} of {len(rows)}"]
    words += [f"{n} {what}" for n, what in ((collapsed, "collapsed"), (failed, "failed")) if n]
    return ", ".join(words)
