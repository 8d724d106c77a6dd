"""The executor of a run: `--on` on the command line, `executor=` in Python."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from congeal.execution import ShardExecutor, open_executor, use_executor
from congeal.execution.forkserver import PRELOADED_MODULES
from congeal.execution.shard_executor import TIMING_COLUMNS
from congeal.images import ImageSource
from congeal.opening import open_images, shared_images
from congeal.runs.folder import RunFolder

RESULTS = "shards"  # folder of the shared storage under .work
TIMINGS = "shards.csv"


def open_source(executor: Any, source: Any, limit: int | None, z: str | None = None) -> ImageSource:
    """The images, opened so that the workers of an executor can open them too."""
    return open_images(source, limit=limit, z=z) if executor is None else shared_images(source, limit, z=z)


@contextmanager
def executor_for_run(
    executor: Any, output: str | os.PathLike[str], *, url: str | None = None, quiet: bool
) -> Iterator[ShardExecutor | None]:
    """The executor of a run into a folder, or to a URL; None without one."""
    below = f".work/{RESULTS}"
    folder = Path(output).expanduser().absolute() / below if url is None else f"{url}/{below}"
    with open_executor(executor, folder, quiet=quiet) as opened:
        if opened is not None:
            opened.preload(*PRELOADED_MODULES)
        yield opened


@contextmanager
def attach_executor(run: RunFolder, executor: ShardExecutor | None, aligned: str | None = None) -> Iterator[None]:
    """Let an executor do the work of a run; the timings of its shards go to shards.csv, however the run ends.

    aligned: the URL of the aligned images, if they are not written into the run folder.
    """
    run.aligned_address = aligned if executor is not None else None
    try:
        with use_executor(executor):
            yield
    finally:
        if executor is not None and executor.timings:
            rows = {(row["stage"], row["pass"], str(row["shard"])): row for row in run.read_rows(TIMINGS)}
            rows |= {(row["stage"], row["pass"], str(row["shard"])): row for row in executor.timings}
            run.write_rows(TIMINGS, list(rows.values()), columns=TIMING_COLUMNS)
