"""The table of transforms; an executor formats the lines of a long one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from congeal.execution import has_executor, in_this_process, key_of, map_shards
from congeal.runs.folder import RunFolder
from congeal.transforms import Transforms
from congeal.transforms.files import csv_lines, save_lines

# Rows beyond which "auto" writes an .npz file, which is read and written in a fraction of the time.
MAX_CSV_ROWS = 200_000
# Rows of a shard: a tenth of a second of formatting.
ROWS_PER_SHARD = 5_000
STAGE = "writing the table"


def write_transforms(run: RunFolder, found: Transforms) -> Path:
    """Write transforms.csv, .npz or .parquet, and .work/found.npz, which later stages read; returns its path."""
    kind = run.config.get("transforms_format", "auto")
    if kind == "auto":
        kind = "npz" if len(found) > MAX_CSV_ROWS else "csv"
    table, own = run / f"transforms.{kind}", run.work / "found.npz"
    if kind == "csv":
        lines = format_lines(found)
        found.save(own)  # while workers format the lines
        save_lines(found, lines, table)
        return table
    found.save(table)
    own.unlink(missing_ok=True)
    try:
        if kind != "npz":
            raise OSError("formats differ")
        os.link(table, own)  # the same file under two names
    except OSError:  # another format, or a file system without links
        found.save(own)
    return table


@dataclass
class TableLines:
    """The work of a task: the lines of a range of rows."""

    found: Transforms

    def __call__(self, rows: tuple[int, int]) -> dict[str, np.ndarray]:
        return {"lines": np.frombuffer(csv_lines(self.found[slice(*rows)]), np.uint8)}


def format_lines(found: Transforms) -> Iterator[bytes]:
    """The lines of all rows, in order; workers begin when this returns."""
    n, step = len(found), ROWS_PER_SHARD
    shards = [(first, min(n, first + step)) for first in range(0, n, step)]
    inputs = ("table", found.matrices, found.score, found.uncertainty_px, found.status)
    how: dict[str, Any] = {"stage": STAGE, "key": lambda: key_of(*inputs), "keep": False, "show": has_executor()}
    with nullcontext() if len(shards) > 2 else in_this_process():
        done = map_shards(TableLines(found), shards, [stop - first for first, stop in shards], **how)
    return (one["lines"].tobytes() for one in done)
