"""The table of transforms: written here, or its lines by workers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from congeal.distributed import Crew
from congeal.distributed.broadcast import key_of
from congeal.runs.folder import RunFolder
from congeal.transforms import Transforms
from congeal.transforms.files import csv_lines, save_lines

MOST_CSV_ROWS = 200_000  # beyond that "auto" writes an NPZ, which is read and written in a fraction of the time
STAGE = "writing the table"
ROWS = 5_000  # of a task: a tenth of a second


def write_transforms(run: RunFolder, found: Transforms) -> Path:
    """transforms.csv, .npz or .parquet, and the same as .work/found.npz, which later stages read; gives the table."""
    kind = run.config.get("transforms_format", "auto")
    if kind == "auto":
        kind = "npz" if len(found) > MOST_CSV_ROWS else "csv"
    table, own = run / f"transforms.{kind}", run.work / "found.npz"
    if kind == "csv" and run.crew is not None and len(found) > 2 * ROWS:
        lines = lines_by_crew(run.crew, found)
        found.save(own)  # while others are at the lines
        save_lines(found, lines, table)
        return table
    found.save(table)
    own.unlink(missing_ok=True)
    try:
        if kind != "npz":
            raise OSError
        os.link(table, own)  # one file under two names
    except OSError:  # another format, or a file system without links
        found.save(own)
    return table


@dataclass
class TableLines:
    """The work of a task: the lines of some rows."""

    found: Transforms

    def __call__(self, rows: tuple[int, int]) -> dict[str, np.ndarray]:
        return {"lines": np.frombuffer(csv_lines(self.found[slice(*rows)]), np.uint8)}


def lines_by_crew(crew: Crew, found: Transforms) -> Iterator[bytes]:
    """The lines of all rows in order, which workers are at already."""
    items = [(first, min(len(found), first + ROWS)) for first in range(0, len(found), ROWS)]
    key = key_of("table", found.matrices, found.score, found.uncertainty_px, found.status)
    done = crew.map(STAGE, key, TableLines(found), items, [stop - first for first, stop in items], keep=False)
    return (one["lines"].tobytes() for one in done)
