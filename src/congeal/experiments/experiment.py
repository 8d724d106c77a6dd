"""What an experiment is, and how it runs: every cell that is not done yet, then tables and figures from all of them.

DIR/config.json      what was asked; other digits, methods and time limits are welcome, another size or seed is not
DIR/cells/NAME.json  the row of one cell, written as soon as it is known; NAME.error.log beside one that hit a bug
DIR/runs/NAME/       where that cell works, mostly a run folder like any other
DIR/table.md .csv .json, DIR/figures/
"""

from __future__ import annotations

import dataclasses
import importlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from congeal.comparison.compare import begin
from congeal.comparison.entries import read_labels
from congeal.comparison.process import check_time_limit, failure, is_hopeless
from congeal.errors import CongealError, MissingExtra, RunFailed, did_you_mean, raise_as_run_failure
from congeal.experiments import EXPERIMENTS
from congeal.experiments.tables import Row, Table, experiment_page
from congeal.files import plain, read_json, write_json
from congeal.methods.checks import Seed, accepts, describe
from congeal.report.comparison import flat
from congeal.report.page import number
from congeal.runs.folder import RunFolder

log = logging.getLogger("congeal")

QUICK_DIGITS, QUICK_LIMIT = "37", 200
QUICK_PARAMS: Mapping[str, Mapping[str, Any]] = {"dprc": {"steps": 60, "batch_size": 64}}
# May change from one call to the next: they decide which cells there are, not what is in them.
CHANGEABLE = ("digits", "methods", "time_limit", "quiet")
CELL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9@.+_-]*")


class ExperimentScope(NamedTuple):
    """What an experiment runs on, after its own defaults, --quick and the user's wishes."""

    digits: str
    limit: int
    methods: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user asked for; None leaves it to the experiment. limit: images per digit (or per set). time_limit:
    seconds a cell may take. originals: the original affNIST and infiMNIST files in place of images in their style."""

    digits: str | None = None
    limit: int | None = None
    methods: tuple[str, ...] | None = None
    seed: int = 0
    time_limit: float | None = None
    originals: bool = False
    quick: bool = False
    quiet: bool = False

    def select(self, *, digits: str = "0123456789", limit: int, methods: Sequence[str] = ("joint",)) -> ExperimentScope:
        """The experiment's own choice where the user made none."""
        if self.quick:
            digits, limit = QUICK_DIGITS, min(limit, QUICK_LIMIT)
        return ExperimentScope(self.digits or digits, self.limit or limit, tuple(self.methods or methods))

    def check(self) -> None:
        """Raise `CongealError` for what cannot work."""
        if self.digits is not None and (not self.digits.isdecimal() or len(set(self.digits)) < len(self.digits)):
            raise CongealError(
                f"--digits takes digits without anything between, each once, such as 037, not {self.digits!r}"
            )
        if self.limit is not None and self.limit < 2:
            raise CongealError(f"--limit is a number of images per set, at least 2, not {self.limit}")
        if not accepts(Seed, self.seed):
            raise CongealError(f"--seed must be {describe(Seed)}, not {self.seed}")
        check_time_limit(self.time_limit)
        if self.methods is not None:
            read_methods(self.methods)


def read_methods(given: str | Sequence[str]) -> tuple[str, ...]:
    """ "all", "lsc,rasl" or a list of names; variants of a method are for `congeal compare`."""
    names = tuple(read_labels(given))
    for name in names:
        if "@" in name:
            raise CongealError(f"'{name}' is a variant, and experiments run methods as they are: write its name alone")
    return names


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One measurement. Its row is `facts`, known beforehand, and what `measure` finds.

    `measure` gets a folder of its own to work in, which it may find half full after an interruption. What it raises
    becomes the row's `error`; a row may also bring its `error` along, with `out_of_time` if that was the reason.
    """

    name: str
    facts: Mapping[str, Any]
    measure: Callable[[Path], Row]

    def __post_init__(self) -> None:
        if not CELL_NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} cannot be the name of a cell: it is one of a file too")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Cells from options; tables from the rows of all cells, failed ones included; figures; sentences for the reader.

    `draw(folder, rows)` gets the experiment's folder, in which rows with a `run` have their run folder.
    """

    title: str
    plan: Callable[[Options], list[Cell]]
    tables: Callable[[Sequence[Row]], list[Table]]
    draw: Callable[[Path, Sequence[Row]], None] | None = None
    notes: Sequence[str] = ()


def load_experiment(name: str) -> Experiment:
    """The experiment of that name: the constant of that name in its module."""
    if name not in EXPERIMENTS:
        raise CongealError(
            f"there is no experiment '{name}'{did_you_mean(name, EXPERIMENTS)}: choose one of {', '.join(EXPERIMENTS)}"
        )
    experiment: Experiment = getattr(importlib.import_module(EXPERIMENTS[name][0]), name.upper())
    return experiment


# ---- running one


def reproduce(
    name: str, output: str | os.PathLike[str], options: Options | None = None, *, command: str | None = None
) -> list[Row]:
    """Run the experiment into `output`; gives the rows of table.json. The same call again runs what is not done."""
    experiment, options = load_experiment(name), options or Options()
    options.check()
    asked = dataclasses.asdict(options)
    changeable = {key: asked.pop(key) for key in CHANGEABLE}
    cells = experiment.plan(options)
    shared = {"task": "reproduce", "experiment": name, **asked}
    with begin(RunFolder(output), shared, {**changeable, "command": command}) as run, raise_as_run_failure():
        (run / "cells").mkdir(exist_ok=True)
        rows: list[Row] = []
        for number, cell in enumerate(cells, 1):
            row = known_row(run, cell)
            if row is None or ("error" in row and not is_hopeless(row, options.time_limit)):
                log.info("%s, %d of %d: %s", name, number, len(cells), cell.name)
                row = measure(run, cell)
                log_cell(row)
                write_experiment_tables(run, experiment, [*rows, row])
            rows.append(row)
        write_experiment_tables(run, experiment, rows)
        draw(run, experiment, rows)
    return rows


def known_row(run: RunFolder, cell: Cell) -> Row | None:
    """The row that was measured before; None if there is none, or if a newer version asks for something else."""
    path = run / "cells" / f"{cell.name}.json"
    if not path.is_file():
        return None
    row: Row = read_json(path)
    if all(key in row and row[key] == value for key, value in plain(cell.facts).items()):
        return row
    shutil.rmtree(run / "runs" / cell.name, ignore_errors=True)
    return None


def measure(run: RunFolder, cell: Cell) -> Row:
    """Measure one cell and keep its row; a failure is a row too."""
    folder = run / "runs" / cell.name
    folder.parent.mkdir(exist_ok=True)
    try:
        found = cell.measure(folder)
    except Exception as error:  # whatever is wrong with one cell is no reason not to run the others
        found = failure(error)
    if "traceback" in found:
        run.write_text(f"cells/{cell.name}.error.log", found.pop("traceback"))
    row: Row = plain({"cell": cell.name, **cell.facts, **found})
    write_json(run / "cells" / f"{cell.name}.json", row)
    return row


def log_cell(row: Row) -> None:
    """Say how a cell went, in one line."""
    if "error" in row:
        log.warning("%s failed: %s", row["cell"], row["error"])
    elif row.get("apsnr_after") is not None and row.get("apsnr_before") is not None:
        likeness = " → ".join(number(row.get(f"likeness_{when}"), 3) for when in ("before", "after"))
        log.info("%s: likeness %s, %.2f → %.2f dB", row["cell"], likeness, row["apsnr_before"], row["apsnr_after"])


def write_experiment_tables(run: RunFolder, experiment: Experiment, rows: Sequence[Row]) -> None:
    """table.json and table.csv hold every cell as it was measured, table.md what people want to read."""
    run.write_json("table.json", list(rows))
    columns = list(dict.fromkeys(key for row in rows for key in flat(row)))
    run.write_rows("table.csv", [flat(row) for row in rows], columns=columns)
    asked = run.config
    text = experiment_page(
        experiment.title, experiment.tables(rows), rows, experiment.notes, asked["quick"], asked["command"]
    )
    run.write_text("table.md", text)


def draw(run: RunFolder, experiment: Experiment, rows: Sequence[Row]) -> None:
    """The figures of what succeeded; without matplotlib there are none, which is said and is no failure."""
    measured = [row for row in rows if "error" not in row]
    if not measured or experiment.draw is None:
        return
    (run / "figures").mkdir(exist_ok=True)
    try:
        experiment.draw(run.path, measured)
    except MissingExtra as missing:
        log.warning("the tables are written, the figures are not: %s", missing)


def check_any(rows: Sequence[Row], folder: str | os.PathLike[str]) -> None:
    """Raise if not one cell could be measured."""
    if rows and all("error" in row for row in rows):
        raise RunFailed(f"nothing could be measured; {Path(folder) / 'table.md'} says why")
