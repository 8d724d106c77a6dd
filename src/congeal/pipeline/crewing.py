"""Who works on a run besides this process: `--on` on the command line, `executor=` in Python."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from congeal.distributed import Crew, open_crew
from congeal.distributed.crew import TABLE
from congeal.distributed.nursery import WORK
from congeal.images import ImageSource
from congeal.opening import open_images, shared_images
from congeal.runs.folder import RunFolder

RESULTS = "shards"  # under .work: what workers leave
TIMINGS = "shards.csv"


def open_for(executor: Any, source: Any, limit: int | None, z: str | None = None) -> ImageSource:
    """The images; where others work as well, so that they can open them too."""
    return open_images(source, limit=limit, z=z) if executor is None else shared_images(source, limit, z=z)


@contextmanager
def crew_for(
    executor: Any, output: str | os.PathLike[str], *, url: str | None = None, quiet: bool
) -> Iterator[Crew | None]:
    """The crew of a run into a folder, or to an address; None without an executor."""
    below = f".work/{RESULTS}"
    folder = Path(output).expanduser().absolute() / below if url is None else f"{url}/{below}"
    with open_crew(executor, folder, quiet=quiet) as crew:
        if crew is not None:
            crew.warm(*WORK)
        yield crew


@contextmanager
def hired(run: RunFolder, crew: Crew | None, aligned: str | None = None) -> Iterator[None]:
    """Let a crew work on a run; what each shard took is kept in shards.csv, however it ends.

    aligned: the address that aligned images go to, if not into the run folder.
    """
    run.crew, run.aligned_address = crew, aligned if crew is not None else None
    try:
        yield
    finally:
        run.crew = None
        if crew is not None and crew.timings:
            rows = {(row["stage"], row["pass"], str(row["shard"])): row for row in run.read_rows(TIMINGS)}
            rows |= {(row["stage"], row["pass"], str(row["shard"])): row for row in crew.timings}
            run.write_rows(TIMINGS, list(rows.values()), columns=TABLE)
