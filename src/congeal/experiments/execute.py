"""Run an experiment: every cell that is not done yet, then tables and figures from all of them.

DIR/config.json      what was asked; other digits, methods and time limits are welcome, another size or seed is not
DIR/cells/NAME.json  the row of one cell, written as soon as it is known; NAME.error.log beside one that hit a bug
DIR/runs/NAME/       where that cell works, mostly a run folder like any other
DIR/table.md .csv .json, DIR/figures/
"""

from __future__ import annotations

import dataclasses
import logging
import os
import shutil
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from congeal import __version__
from congeal.comparison.compare import begin
from congeal.comparison.worker import in_words
from congeal.errors import CongealError, MissingExtra, RunFailed, raise_as_run_failure
from congeal.experiments.plan import Cell, Experiment, Options, Row, load_experiment
from congeal.experiments.tables import thousandths, write_tables
from congeal.files import read_json, write_json
from congeal.runs.folder import RunFolder

log = logging.getLogger("congeal")

# May change from one call to the next: they decide which cells there are, not what is in them.
FREE = ("digits", "methods", "time_limit", "quiet")


def reproduce(
    name: str, output: str | os.PathLike[str], options: Options | None = None, *, command: str | None = None
) -> list[Row]:
    """Run the experiment into `output`; gives the rows of table.json. The same call again runs what is not done."""
    experiment, options = load_experiment(name), options or Options()
    options.check()
    asked = dataclasses.asdict(options)
    shared = {"task": "reproduce", "experiment": name, "version": __version__}
    shared |= {key: value for key, value in asked.items() if key not in FREE}
    cells = experiment.plan(options)
    with (
        begin(output, shared, {**{key: asked[key] for key in FREE}, "command": command}) as run,
        raise_as_run_failure(),
    ):
        (run / "cells").mkdir(exist_ok=True)
        rows: list[Row] = []
        for number, cell in enumerate(cells, 1):
            row = finished(run, cell, options)
            if row is None:
                log.info("%s, %d of %d: %s", name, number, len(cells), cell.name)
                row = perform(run, cell)
                log_row(row)
                write_tables(run, experiment, [*rows, row])
            rows.append(row)
        write_tables(run, experiment, rows)
        draw(run, experiment, rows)
    return rows


def finished(run: RunFolder, cell: Cell, options: Options) -> Row | None:
    """The row of a cell that needs no work: done, or out of time before and no more time given now."""
    path = cell_file(run, cell)
    if not path.is_file():
        return None
    row: Row = read_json(path)
    if not same_question(run, cell):
        return None
    before = row.get("out_of_time")
    if before is not None:
        return row if options.time_limit is not None and options.time_limit <= before else None
    return None if "error" in row else row


def perform(run: RunFolder, cell: Cell) -> Row:
    """Measure one cell and keep its row; a failure is a row too."""
    folder = run / "runs" / cell.name
    folder.parent.mkdir(exist_ok=True)
    if folder.exists() and not same_question(run, cell):
        shutil.rmtree(folder)
    row: Row = {"cell": cell.name, **plain(cell.facts)}
    try:
        row |= cell.measure(folder)
    except Exception as error:  # whatever is wrong with one cell is no reason not to run the others
        row["error"] = in_words(error)
        if not isinstance(error, CongealError):
            run.write_text(f"cells/{cell.name}.error.log", traceback.format_exc())
    write_json(cell_file(run, cell), row)
    return plain(row)


def same_question(run: RunFolder, cell: Cell) -> bool:
    """Whether the row that is there, if any, is about the same: a newer version may ask differently."""
    if not cell_file(run, cell).is_file():
        return True
    row = read_json(cell_file(run, cell))
    return all(key in row and row[key] == value for key, value in plain(cell.facts).items())


def cell_file(run: RunFolder, cell: Cell) -> Path:
    """Where the row of a cell is kept."""
    return run / "cells" / f"{cell.name}.json"


def plain(values: Any) -> Any:
    """As JSON gives it back: tuples are lists."""
    if isinstance(values, dict):
        return {str(key): plain(value) for key, value in values.items()}
    return [plain(value) for value in values] if isinstance(values, list | tuple) else values


def log_row(row: Row) -> None:
    """Say how a cell went, in one line."""
    if "error" in row:
        log.warning("%s failed: %s", row["cell"], row["error"])
    elif row.get("apsnr_after") is not None and row.get("apsnr_before") is not None:
        likeness = " → ".join(thousandths(row.get(f"likeness_{when}")) for when in ("before", "after"))
        log.info("%s: likeness %s, %.2f → %.2f dB", row["cell"], likeness, row["apsnr_before"], row["apsnr_after"])


def draw(run: RunFolder, experiment: Experiment, rows: Sequence[Row]) -> None:
    """The figures of what succeeded; without matplotlib there are none, which is said and is no failure."""
    sound = [row for row in rows if "error" not in row]
    if not sound:
        return
    (run / "figures").mkdir(exist_ok=True)
    try:
        experiment.draw(run.path, sound)
    except MissingExtra as missing:
        log.warning("the tables are written, the figures are not: %s", missing)


def check_any(rows: Sequence[Row], folder: str | os.PathLike[str]) -> None:
    """Raise if not one cell could be measured."""
    if rows and all("error" in row for row in rows):
        raise RunFailed(f"nothing could be measured; {Path(folder) / 'table.md'} says why")
