"""Backends: where tasks run. The interface is little more than that of `concurrent.futures.Executor`.

A further backend is a subclass of `Backend` and one line in `open_backend`.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import connection
from typing import Any

from congeal.errors import CongealError

FORMS = "processes:N, dask:local:N, dask:tcp://HOST:PORT or dask:FILE.json"
# Largest N of processes:N and dask:local:N, chosen by judgement: a larger number is a typing error.
MAX_WORKERS = 4096
# Numerical libraries read these variables when they are loaded. A worker uses one core.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# Without the last one, a helper process would import modules from the current folder instead of its own.
HELPER_ENVIRONMENT = {**dict.fromkeys(THREAD_VARIABLES, "1"), "PYTHONSAFEPATH": "1"}
# Modules with the work of most tasks, by name only. Importing torch takes two seconds of a core: the fork server does
# it once for all workers.
PRELOADED_MODULES = ("congeal.methods.joint.estimator", "congeal.pipeline.shard_rendering")


class Backend:
    """An executor of the caller, which stays open; and the base of the other backends."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    @property
    def workers(self) -> int:
        """Number of tasks that can run at the same time, as far as is known now."""
        return int(getattr(self._executor, "_max_workers", None) or 1)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run function(*arguments) on a worker."""
        return self._executor.submit(function, *arguments)

    def is_worker_loss(self, error: BaseException) -> bool:
        """Whether the error reports the loss of a worker rather than a failure of the task."""
        return isinstance(error, CancelledError)

    def is_alive(self) -> bool:
        """Whether submitted tasks may still return; if not, `recover` is called."""
        return True

    def recover(self) -> None:
        """Accept tasks again after a loss."""

    def close(self) -> None:
        """Stop what this backend started; what it was given stays open."""


class ProcessBackend(Backend):
    """A process pool of this machine with one thread per process, replaced when one of its processes is killed."""

    def __init__(self, count: int) -> None:
        self._count = count
        super().__init__(self._new_pool())

    def _new_pool(self) -> ProcessPoolExecutor:
        context = start_forkserver()
        return ProcessPoolExecutor(self._count, context, initializer=_initialise, initargs=(worker_environment(),))

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run it in one of the processes."""
        with helper_environment():  # the pool starts processes as tasks arrive
            try:
                return self._executor.submit(function, *arguments)
            except BrokenExecutor:
                self.recover()
                return self._executor.submit(function, *arguments)

    def is_worker_loss(self, error: BaseException) -> bool:
        """A killed process breaks the pool, and with it the tasks of all processes."""
        return isinstance(error, BrokenExecutor | CancelledError)

    def recover(self) -> None:
        """Replace a broken pool."""
        try:
            self._executor.submit(os.getpid).result()
        except BrokenExecutor:
            self.close()
            self._executor = self._new_pool()

    def close(self) -> None:
        """Stop the processes."""
        self._executor.shutdown(wait=True, cancel_futures=True)


def _initialise(environment: dict[str, str]) -> None:
    """In each worker process: set the environment, and exit when the driver exits, even if it is killed."""
    os.environ.update(environment)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_with, args=(parent.sentinel,), daemon=True).start()


def _exit_with(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)


# ---- how processes start


def start_forkserver(*modules: str) -> Any:
    """The way in which worker processes start: on Linux by a fork server, which is started unless it runs.

    It imports `modules` and the work of most tasks while the caller goes on. It has no threads when it forks: a forked
    copy of a process with threads, such as those of torch, may deadlock. Other systems have no fork, or libraries that
    do not survive it.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    from multiprocessing import forkserver

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*modules, *PRELOADED_MODULES])
    with helper_environment():
        forkserver.ensure_running()
    return context


def worker_environment() -> dict[str, str]:
    """The environment of a worker, with variables that were set after the fork server started."""
    return {**os.environ, **HELPER_ENVIRONMENT}


@contextmanager
def helper_environment() -> Iterator[None]:
    """Processes that start inside this context have the environment of a worker."""
    usual = {name: os.environ.get(name) for name in HELPER_ENVIRONMENT}
    os.environ.update(HELPER_ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in usual.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


# ---- choosing one


def open_backend(on: Any) -> Backend:
    """The backend of `--on`, of a `concurrent.futures.Executor`, or of a Dask client."""
    if isinstance(on, Executor):
        return Backend(on)
    is_client = type(on).__module__.split(".")[0] == "distributed"
    if not is_client and not isinstance(on, str):
        raise CongealError(f"an executor is {FORMS}, a concurrent.futures.Executor or a Dask client, not {on!r}")
    kind, where = ("client", "") if is_client else parse_on(on)
    if kind == "processes":
        return ProcessBackend(int(where))
    from congeal.execution.dask_backend import DaskBackend

    if is_client:
        return DaskBackend(on, owned=False)
    return DaskBackend.local(int(where)) if kind == "dask:local" else DaskBackend.at(where)


def parse_on(on: str) -> tuple[str, str]:
    """("processes", N), ("dask:local", N) or ("dask", address)."""
    kind, _, rest = on.partition(":")
    if kind == "dask" and rest.startswith("local"):
        kind, rest = "dask:local", rest.removeprefix("local").removeprefix(":")
    if kind in ("processes", "dask:local"):
        if not rest.isdecimal() or not 1 <= int(rest) <= MAX_WORKERS:
            raise CongealError(f"{on!r} does not say how many workers: give {FORMS}, with N from 1 to {MAX_WORKERS}")
    elif kind != "dask" or not rest:
        raise CongealError(f"there is nothing to work on called {on!r}: give {FORMS}")
    return kind, rest
