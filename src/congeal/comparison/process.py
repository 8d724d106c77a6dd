"""A piece of work in a process of its own: only so are its peak memory and a hard time limit honest.

The process is forked from the fork server of `congeal.execution.backends`, which has imported torch already, and gets
its work and gives its outcome through a pipe. It ends with its parent, however that ends.
"""

from __future__ import annotations

import logging
import multiprocessing
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
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import torch

from congeal.errors import CongealError
from congeal.execution.backends import start_forkserver
from congeal.methods.base import Method
from congeal.pipeline.align import align
from congeal.pipeline.run_setup import attach_executor, executor_for_run
from congeal.pipeline.stages import fit_model, save_fit
from congeal.runs.checkpoint import peak_memory_mb
from congeal.runs.folder import RunFolder

Outcome = dict[str, Any]
log = logging.getLogger("congeal")


class FitClock:
    """Tells the parent process when fitting begins and ends: a time limit counts nothing else."""

    def __init__(self, parent: Connection | None = None) -> None:
        self._parent = parent

    @contextmanager
    def fitting(self, seconds: float = 0.0) -> Iterator[None]:
        """While the method fits; seconds: what it spent before an interruption."""
        if self._parent is not None:
            self._parent.send(seconds)
        yield
        if self._parent is not None:
            self._parent.send(None)


# ---- what runs in the process


def fit_stack(clock: FitClock, folder: str, stack: Any, model: Method, on: str | None, quiet: bool) -> Outcome:
    """Fit a method to a stack and leave its answer in the folder, as `congeal align` would."""
    run = RunFolder(folder)
    run.refresh()
    idle, spent = peak_memory_mb(), run.checkpoint
    spent.load()  # an interrupted fit goes on, and so does its clock
    with (
        clock.fitting(spent.seconds),
        executor_for_run(on, run.path, quiet=quiet) as executor,
        attach_executor(run, executor),
    ):
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


class _Settings(NamedTuple):
    """What a forked process does not inherit from its parent."""

    environment: dict[str, str]
    threads: int
    log_level: int


def _run(parent: Connection, settings: _Settings, work: Callable[..., Outcome], args: tuple[Any, ...]) -> None:
    """The process itself: work(clock, *args), whose outcome or failure goes to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the parent decides and ends us
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    os.environ.clear()
    os.environ.update(settings.environment)
    torch.set_num_threads(settings.threads)
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    log.setLevel(settings.log_level)
    try:
        outcome = work(FitClock(parent), *args)
    except Exception as error:
        outcome = failure(error)
    parent.send(outcome)


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


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

    The limit is on fitting alone; importing and saving are not counted. Whatever ends this function ends the process.
    """
    messages, process = _start(work, args)
    deadline = None
    try:
        while messages.poll(None if deadline is None else max(0.0, deadline - time.monotonic())):
            message = messages.recv()
            if isinstance(message, dict):
                process.join()
                return message
            unlimited = message is None or time_limit is None
            deadline = None if unlimited else time.monotonic() + (time_limit or 0.0) - message
    except EOFError:
        process.join()
        return {"error": _death(process.exitcode or 0)}
    finally:
        process.kill()
        process.join()
        messages.close()
    return {"error": f"not finished within the time limit of {time_limit:g} s", "out_of_time": time_limit}


def _start(work: Callable[..., Outcome], args: Any) -> tuple[Connection, BaseProcess]:
    """The end of the pipe that the process writes to, and the process."""
    context = start_forkserver()
    messages, parent = context.Pipe(duplex=False)
    settings = _Settings(dict(os.environ), torch.get_num_threads(), log.getEffectiveLevel())
    process = context.Process(target=_run, args=(parent, settings, work, args))
    # With a main module that has no file, the process does not run the script of the caller once more.
    main, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
    try:
        with parent:
            process.start()
    finally:
        sys.modules["__main__"] = main
    return messages, process


def _death(code: int) -> str:
    if code == -9:
        return "the system ended it, most likely for want of memory; try a smaller --size or fewer images with --limit"
    if code < 0:
        return f"it crashed with {signal.Signals(-code).name}; this is a bug, please report it"
    return f"its process ended with code {code} and no result; the reason is on standard error"
