"""A piece of work in a process of its own: only so are its peak memory and a hard time limit honest.

The process is forked from the fork server of `congeal.execution.backends`, which has imported torch already. It gets
its work and gives its outcome through a pipe, and ends with its parent, however that ends.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import torch

from congeal.errors import CongealError
from congeal.execution.backends import initialise_process, start_forkserver
from congeal.execution.task import TaskPayload, read_payload
from congeal.methods.base import Method
from congeal.pipeline.align import align
from congeal.pipeline.run_setup import open_workers
from congeal.pipeline.stages import fit_model, save_fit
from congeal.runs.checkpoint import peak_memory_mb
from congeal.runs.folder import RunFolder

Outcome = dict[str, Any]
log = logging.getLogger("congeal")
# Exit code of a process that reached its time limit, that of the command `timeout`.
OUT_OF_TIME = 124


class FitClock:
    """Ends this process when fitting takes longer than `limit` seconds; opening and saving are not counted."""

    def __init__(self, limit: float | None = None) -> None:
        self.limit = limit

    @contextmanager
    def fitting(self, seconds: float = 0.0) -> Iterator[None]:
        """While the method fits; seconds: what it spent before an interruption."""
        if self.limit is None:
            yield
            return
        timer = threading.Timer(max(0.0, self.limit - seconds), os._exit, [OUT_OF_TIME])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


# ---- what runs in the process


def fit_stack(
    clock: FitClock, folder: str, payload: TaskPayload, model: Method, on: str | None, quiet: bool
) -> Outcome:
    """Fit a method to the stack in a payload and leave its answer in the folder, as `congeal align` would."""
    run, stack = RunFolder(folder), read_payload(payload)
    run.refresh()
    idle, spent = peak_memory_mb(), run.checkpoint
    spent.load()  # an interrupted fit goes on, and so does its clock
    with clock.fitting(spent.seconds), open_workers(on, run, quiet=quiet):
        seconds, peak = fit_model(run, stack, model, quiet=quiet), peak_memory_mb()
    run.remember(peak_memory_mb=peak, idle_memory_mb=idle)
    save_fit(run, stack, model, seconds)
    return {"fit_seconds": seconds}


def align_source(clock: FitClock, source: str, folder: str, options: dict[str, Any]) -> Outcome:
    """Everything from the source to the report; the limit counts all of it."""
    idle, began = peak_memory_mb(), time.monotonic()
    with clock.fitting():
        metrics = align(source, folder, **options).metrics
    return {"metrics": metrics, "idle_memory_mb": idle, "seconds": time.monotonic() - began}


def _run(
    parent: Connection,
    environment: dict[str, str],
    threads: int,
    log_level: int,
    clock: FitClock,
    work: Callable[..., Outcome],
    args: tuple[Any, ...],
) -> None:
    """The process itself: work(clock, *args), whose outcome or failure goes to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the parent decides and ends us
    initialise_process(environment)
    torch.set_num_threads(threads)
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    log.setLevel(log_level)
    try:
        outcome = work(clock, *args)
    except Exception as error:
        outcome = failure(error)
    parent.send(outcome)


def failure(error: BaseException) -> Outcome:
    """The outcome of work that failed; with its traceback if that is a bug."""
    bug = not isinstance(error, CongealError | MemoryError)
    return {"error": in_words(error)} | ({"traceback": "".join(traceback.format_exception(error))} if bug else {})


def in_words(error: BaseException) -> str:
    """One sentence for the row of a method that failed."""
    text = (str(error).splitlines() or [""])[0]
    if isinstance(error, MemoryError) or "can't allocate memory" in text:
        return "not enough memory; try a smaller --size or fewer images with --limit"
    if isinstance(error, CongealError):
        return str(error)
    return f"unexpected {type(error).__name__}: {text or 'no message'}"


# ---- what the parent does


def check_time_limit(seconds: float | None) -> None:
    """Refuse a time limit that is no time."""
    if seconds is not None and not seconds > 0:
        raise CongealError(f"the time limit is a number of seconds above 0, not {seconds}")


def is_hopeless(outcome: Mapping[str, Any], time_limit: float | None) -> bool:
    """Whether work that ran out of time before has no more time now."""
    before = outcome.get("out_of_time")
    return before is not None and time_limit is not None and time_limit <= before


def run_in_process(work: Callable[..., Outcome], *args: Any, time_limit: float | None = None) -> Outcome:
    """The outcome of work(clock, *args) in a new process, with "error" (and "out_of_time") if there is no answer.

    Whatever ends this function ends the process.
    """
    context = start_forkserver()
    outcomes, sender = context.Pipe(duplex=False)
    settings = dict(os.environ), torch.get_num_threads(), log.getEffectiveLevel(), FitClock(time_limit)
    process = context.Process(target=_run, args=(sender, *settings, work, args))
    # With a main module that has no file, the process does not run the script of the caller once more.
    main, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
    try:
        with sender:
            process.start()
    finally:
        sys.modules["__main__"] = main
    try:
        outcome: Outcome = outcomes.recv()
        process.join()
        return outcome
    except EOFError:
        process.join()
        return _death(process.exitcode or 0, time_limit)
    finally:
        process.kill()
        process.join()
        outcomes.close()


def _death(code: int, time_limit: float | None) -> Outcome:
    if code == OUT_OF_TIME and time_limit is not None:
        return {"error": f"not finished within the time limit of {time_limit:g} s", "out_of_time": time_limit}
    if code == -signal.SIGKILL:
        reason = "the system ended it, most likely for want of memory"
        return {"error": f"{reason}; try a smaller --size or fewer images with --limit"}
    if code < 0:
        return {"error": f"it crashed with {signal.Signals(-code).name}; this is a bug, please report it"}
    return {"error": f"its process ended with code {code} and no result; the reason is on standard error"}
