"""The process that workers of this machine are forked from: it imports once what all of them need.

Importing torch takes two seconds of a core. Workers that import it themselves do so all at once on the same cores,
while the driver wants to fit the sample.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Numerical libraries read these variables when they are loaded. A worker uses one core.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# Modules with the work of most tasks, by name only: other processes import them.
PRELOADED_MODULES = ("congeal.methods.joint.estimator", "congeal.pipeline.shard_rendering")

_owners: set[int] = set()  # processes that started a fork server: this one, or one that this one was forked from


def start_method() -> str:
    """How processes start: by the fork server on Linux. Other systems have no fork, or libraries that do not survive
    it, and a forked process cannot use the fork server of its parent."""
    return "forkserver" if sys.platform == "linux" and _owners.issubset({os.getpid()}) else "spawn"


def start_forkserver(*modules: str) -> None:
    """Start the fork server unless it runs; it imports while the caller goes on.

    It has no threads when it forks: a forked copy of a process with threads, such as those of torch, may deadlock.
    """
    if start_method() != "forkserver":
        return
    from multiprocessing import forkserver

    _owners.add(os.getpid())
    multiprocessing.get_context("forkserver").set_forkserver_preload([*modules, *PRELOADED_MODULES])
    with single_threaded_children():
        forkserver.ensure_running()


def worker_environment() -> dict[str, str]:
    """The environment of a worker, with variables that were set after the fork server started."""
    return {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1")}


@contextmanager
def single_threaded_children() -> Iterator[None]:
    """Processes that start inside this context have one thread per operation."""
    usual = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    try:
        yield
    finally:
        for name, value in usual.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
