"""A process that dies in the middle of a command, without a new interpreter: a fork that ends itself at a given moment.

What the fork leaves on the disk is what a SIGKILL leaves there: nothing is closed, flushed or removed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

DONE, FAILED = 0, 70


def run_killed(work: Callable[[], Any], moment: int) -> bool:
    """Do the work in a fork that gets a SIGKILL at its n-th moment; gives whether it finished before that.

    A moment is a call that changes the disk: a file gets its name, its bytes are brought to the disk, a folder appears,
    a map is flushed.
    """
    process = os.fork()
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


def _die_at(moment: int) -> None:
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
