"""One method in a process of its own: only so are its peak memory and a hard time limit honest.

A plain subprocess rather than `multiprocessing`, which would run the caller's script once more in every child.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import congeal
from congeal.files import read_json
from congeal.runs.folder import RunFolder

POLL = 0.02  # seconds


def fit_in_child(run: RunFolder, time_limit: float | None) -> dict[str, Any]:
    """Run the job in `run`; gives outcome.json, with "error" (and "out_of_time") if there is no answer.

    The limit is on fitting alone; importing and saving are not counted. Whatever ends this function ends the child.
    """
    for name in ("phase.json", "outcome.json"):
        (run.work / name).unlink(missing_ok=True)
    # stdin is what the child listens at to learn that we are gone.
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "congeal.comparison.worker", str(run.path)],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": _search_path()},
    )
    try:
        in_time = _wait(child, run.work / "phase.json", time_limit)
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()
        if child.stdin is not None:
            child.stdin.close()
    if not in_time and time_limit is not None:
        return _out_of_time(time_limit)
    if not (run.work / "outcome.json").exists():
        return {"error": _died(child.returncode)}
    outcome: dict[str, Any] = read_json(run.work / "outcome.json")
    if time_limit is not None and outcome.get("fit_seconds", 0) > time_limit:
        return _out_of_time(time_limit)
    return outcome


def _wait(child: subprocess.Popen[bytes], phase_file: Path, time_limit: float | None) -> bool:
    """Wait for the end of the child; False as soon as its fitting has taken longer than the limit."""
    if time_limit is None:
        child.wait()
        return True
    deadline: float | None = None
    while True:
        try:
            child.wait(POLL)
            return True
        except subprocess.TimeoutExpired:
            pass
        if not phase_file.exists():
            continue
        phase = read_json(phase_file)
        if phase["phase"] != "fitting":
            child.wait()
            return True
        if deadline is None:
            deadline = time.monotonic() + time_limit - phase["seconds"]
        if time.monotonic() > deadline:
            return False


def _search_path() -> str:
    """The child imports this very package, installed or not."""
    package = str(Path(congeal.__file__).parents[1])
    return os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))


def _out_of_time(time_limit: float) -> dict[str, Any]:
    return {"error": f"not finished within the time limit of {time_limit:g} s", "out_of_time": time_limit}


def _died(code: int) -> str:
    if code == -9:
        return "the system ended it, most likely for want of memory; try a smaller --size or fewer images with --limit"
    if code < 0:
        return f"it crashed with {signal.Signals(-code).name}; this is a bug, please report it"
    return f"its process ended with code {code} and no result; the reason is on standard error"
