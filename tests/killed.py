"""A process that dies in the middle of a command, without a new interpreter: a fork that ends itself at a given moment.

What the fork leaves on the disk is what a SIGKILL leaves there: nothing is closed, flushed or removed.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

DONE, FAILED = 0, 70
# Different in every run, and allowed to be; files that tell of them are only looked at for being there.
TIMES = {"fit_seconds", "align_seconds", "images_per_second", "peak_memory_mb", "created", "command", "seconds"}
TIMES |= {"source", "run", "run_created", "idle_memory_mb", "fit_memory_mb"}
TELL_TIMES = ("report.html", "table.md", "table.csv")


def fork() -> int:
    """os.fork, with nothing left in the child to clear away: what other tests left, as the decoder of a film with
    threads of its own, would wait there for ever for threads that are not."""
    gc.freeze()
    process = os.fork()
    if process:
        gc.unfreeze()
    return process


def run_killed(work: Callable[[], Any], moment: int) -> bool:
    """Do the work in a fork that gets a SIGKILL at its n-th moment; gives whether it finished before that.

    A moment is a call that changes the disk: a file gets its name, its bytes are brought to the disk, a folder appears,
    a map is flushed.
    """
    process = fork()
    if process == 0:
        try:
            _quiet()
            _die_at(moment)
            work()
        except BaseException as error:
            sys.__stderr__.write(f"{error!r}\n")
            os._exit(FAILED)
        os._exit(DONE)
    _, status = os.waitpid(process, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL, f"it died of signal {os.WTERMSIG(status)}"
        return False
    assert os.WEXITSTATUS(status) == DONE, "the work failed instead of being killed"
    return True


def _quiet() -> None:
    """A fork has none of its parent's threads: torch must not wait for them. Nor does it speak."""
    import torch

    torch.set_num_threads(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)


def _die_at(moment: int) -> Callable[[], int]:
    """End this process at its n-th moment; gives a function that tells how many there were so far."""
    import numpy as np

    left = moment

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return call(*arguments, **options)

        return counting

    for name in ("replace", "fsync", "mkdir", "unlink"):
        setattr(os, name, counted(getattr(os, name)))
    np.memmap.flush = counted(np.memmap.flush)  # type: ignore[method-assign]
    return lambda: moment - left


def count_moments(work: Callable[[], Any]) -> int:
    """How many moments the work has, done to its end in a fork."""
    there, here = os.pipe()
    process = fork()
    if process == 0:
        try:
            _quiet()
            counter = _die_at(1 << 30)
            work()
            os.write(here, str(counter()).encode())
        finally:
            os._exit(DONE)
    os.close(here)
    with os.fdopen(there) as answer:
        text = answer.read()
    os.waitpid(process, 0)
    return int(text)


def outputs(folder: Path) -> dict[str, object]:
    """Every visible file below a folder, by its name, without the times that differ from run to run."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if not path.is_file() or any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        data = path.read_bytes()
        if path.suffix == ".json":
            found[name] = without_times(json.loads(data))
        else:
            found[name] = len(data) > 0 if path.name in TELL_TIMES else data
    return found


def without_times(value: Any) -> Any:
    """JSON without the values that differ from run to run."""
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key not in TIMES}
    return [without_times(item) for item in value] if isinstance(value, list) else value
