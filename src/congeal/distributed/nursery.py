"""The process that workers of this machine come from: it imports what all of them need, once, and forks.

Importing torch takes two seconds of a core. Workers that each do it by themselves do it while the driver is about to
fit the sample, and all of them together on the same cores.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Numerical libraries read these when they are first loaded: a process has one core's worth of work.
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# Where the work of most tasks is written: names only, for other processes to import.
WORK = ("congeal.methods.deep.congealing", "congeal.pipeline.spread")


_owners: set[int] = set()  # processes that have begun one: this one, or what it was forked from


def start_method() -> str:
    """How processes are started. Elsewhere system libraries do not survive being forked, or there is no fork; and a
    process that was itself forked cannot use its parent's nursery."""
    return "forkserver" if sys.platform == "linux" and _owners.issubset({os.getpid()}) else "spawn"


def begin_nursery(*modules: str) -> None:
    """Start that process, if there is to be one and it is not there yet; it imports while this one goes on.

    It has no threads when it forks: a copy of a process with threads, as torch has them, may hang.
    """
    if start_method() != "forkserver":
        return
    from multiprocessing import forkserver

    _owners.add(os.getpid())
    multiprocessing.get_context("forkserver").set_forkserver_preload([*modules, *WORK])
    with one_thread_each():
        forkserver.ensure_running()


def environment() -> dict[str, str]:
    """What a process that is forked has to be told: variables that were set since the nursery began."""
    return {**os.environ, **dict.fromkeys(ONE_THREAD, "1")}


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Processes that are started meanwhile have one thread each."""
    usual = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in usual.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
