"""What two runs of the same question must have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# Times, the machine and what was typed may differ; nothing else.
OWN = {"config.json", "metrics.json", "report.html", "shards.csv", ".lock", "checkpoint.pt"}
OWN_NUMBERS = {"fit_seconds", "align_seconds", "images_per_second", "peak_memory_mb"}


def files(run: Path) -> dict[str, bytes]:
    """Everything a run leaves that is an answer."""
    found = (path for path in run.rglob("*") if path.is_file())
    named = ((path.relative_to(run).as_posix(), path) for path in found)
    return {
        name: path.read_bytes()
        for name, path in named
        if name not in OWN and not name.startswith((".work/state", ".work/shards", ".work/stack"))
    }


def numbers(metrics: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in metrics.items() if name not in OWN_NUMBERS}


def assert_same(one: Any, other: Any) -> None:
    assert one.transforms == other.transforms
    assert numbers(one.metrics) == numbers(other.metrics)
    mine, theirs = files(one.folder), files(other.folder)
    assert mine.keys() == theirs.keys()
    assert [name for name in mine if mine[name] != theirs[name]] == []
