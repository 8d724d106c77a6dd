"""The usual cell: one set, one method, one run folder, as `congeal align` would write it.

In a process of its own where time limit, time or peak memory matter; else here, which saves loading torch every time.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from congeal.comparison.child import fit_in_child
from congeal.experiments.plan import Row
from congeal.files import write_json
from congeal.pipeline.align import align
from congeal.runs.folder import RunFolder

log = logging.getLogger("congeal")

# Of metrics.json, what tables may want.
KEPT = (
    *("n_images", "n_skipped", "motion", "likeness_before", "likeness_after", "improved_share", "apsnr_before"),
    *("apsnr_after", "uncertainty_px", "trained", "energy_ratio", "mean_scale", "blank_share", "out_of_frame_share"),
    *("collapsed", "verdict", "fit_seconds", "align_seconds", "images_per_second", "seed", "version"),
)


def kept(metrics: Mapping[str, Any]) -> Row:
    """`KEPT` of a run's metrics; None for what a version before could not tell."""
    return {key: metrics.get(key) for key in KEPT}


@dataclass(frozen=True, kw_only=True)
class AlignTask:
    """What is aligned with what. `more` are further arguments of `congeal.align`."""

    source: str
    method: str
    params: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None
    seed: int = 0
    isolated: bool = True
    time_limit: float | None = None
    quiet: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def facts(self) -> Row:
        """The row's part that is known beforehand."""
        return {"source": self.source, "method": self.method, "params": dict(self.params), "limit": self.limit}

    def run(self, folder: Path) -> Row:
        """Align into `folder`, or finish what is there; gives the numbers, `run` (relative to the experiment), or an
        `error` of a process that failed. Only a process of its own tells its peak memory and, if it was never
        interrupted, `total_seconds` from opening the source to the report."""
        options = {
            "method": self.method,
            "params": dict(self.params),
            "limit": self.limit,
            "seed": self.seed,
            "write_aligned": False,
            "quiet": self.quiet,
            **self.more,
        }
        where = {"run": f"{folder.parent.name}/{folder.name}"}
        if not self.isolated and self.time_limit is None:
            with fewer_messages():
                metrics = align(self.source, folder, **options).metrics
            return {**where, **kept(metrics)}
        job = RunFolder(folder.parent / ".jobs" / folder.name)
        job.work.mkdir(parents=True, exist_ok=True)
        write_json(
            job.work / "job.json",
            {"task": "align", "source": self.source, "output": str(folder), "options": options, "quiet": self.quiet},
        )
        resumed = folder.exists()
        outcome = fit_in_child(job, self.time_limit)
        if "error" in outcome:
            return outcome
        shutil.rmtree(job.path)
        metrics = outcome["metrics"]
        # As the process that did the work noted it, which after an interruption is not the one that just ended.
        memory = {"peak_memory_mb": metrics["peak_memory_mb"], "idle_memory_mb": outcome["idle_memory_mb"]}
        total = {"total_seconds": None if resumed else round(outcome["seconds"], 3)}
        return {**where, **kept(metrics), **memory, **total}


@contextmanager
def fewer_messages() -> Iterator[None]:
    """An experiment says which cell it is at; what `align` says about each of many is too much."""
    before = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(before)
