"""Backends: where tasks run. The interface is little more than that of `concurrent.futures.Executor`.

A further backend is a class like `ProcessBackend` and one line in `open_backend`.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import connection
from typing import Any, Protocol

from congeal.errors import CongealError, require
from congeal.execution.forkserver import (
    THREAD_VARIABLES,
    single_threaded_children,
    start_forkserver,
    start_method,
    worker_environment,
)

FORMS = "processes:N, dask:local:N, dask:tcp://HOST:PORT or dask:FILE.json"
# Largest N of processes:N and dask:local:N: a larger number is a typing error.
MAX_WORKERS = 4096


class Backend(Protocol):
    """Runs tasks somewhere."""

    @property
    def workers(self) -> int:
        """Number of tasks that can run at the same time, as far as is known now."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run function(*arguments) on a worker."""

    def is_worker_loss(self, error: BaseException) -> bool:
        """Whether the error reports the loss of a worker rather than a failure of the task."""

    def is_alive(self) -> bool:
        """Whether submitted tasks may still return; if not, `recover` is called."""

    def recover(self) -> None:
        """Accept tasks again after a loss."""

    def close(self) -> None:
        """Stop what this backend started; what it was given stays open."""


class ExecutorBackend:
    """An executor of the caller, which stays open."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    @property
    def workers(self) -> int:
        """As the executors of the standard library report it, else 1."""
        return int(getattr(self._executor, "_max_workers", None) or 1)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """As the executor does."""
        return self._executor.submit(function, *arguments)

    def is_worker_loss(self, error: BaseException) -> bool:
        """Cancelled by the caller; a broken executor of the caller cannot be replaced."""
        return isinstance(error, CancelledError)

    def is_alive(self) -> bool:
        """An executor completes every future itself."""
        return True

    def recover(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """The executor belongs to the caller."""


class ProcessBackend:
    """A process pool of this machine with one thread per process, replaced when one of its processes is killed."""

    def __init__(self, count: int) -> None:
        self.workers = count
        self._pool = self._new_pool()

    def _new_pool(self) -> ProcessPoolExecutor:
        start_forkserver()
        context = multiprocessing.get_context(start_method())
        return ProcessPoolExecutor(self.workers, context, initializer=_initialise, initargs=(worker_environment(),))

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run it in one of the processes."""
        with single_threaded_children():  # the pool starts processes as tasks arrive
            try:
                return self._pool.submit(function, *arguments)
            except BrokenExecutor:
                self.recover()
                return self._pool.submit(function, *arguments)

    def is_worker_loss(self, error: BaseException) -> bool:
        """A killed process breaks the pool, and with it the tasks of all processes."""
        return isinstance(error, BrokenExecutor | CancelledError)

    def is_alive(self) -> bool:
        """A pool completes every future itself."""
        return True

    def recover(self) -> None:
        """Replace a broken pool."""
        try:
            self._pool.submit(os.getpid).result()
        except BrokenExecutor:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = self._new_pool()

    def close(self) -> None:
        """Stop the processes."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _initialise(environment: dict[str, str]) -> None:
    """In each worker process: set the environment, and exit when the driver exits, even if it is killed."""
    os.environ.update(environment)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_with, args=(parent.sentinel,), daemon=True).start()


def _exit_with(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)


class PendingBackend:
    """A backend that starts in a thread while this process imports and reads; `open_backend` waits for it."""

    def __init__(self, on: str) -> None:
        self._on, self._taken, self._environment = on, False, dict(os.environ)
        self._thread = ThreadPoolExecutor(1)
        self._backend: Future[Backend] = self._thread.submit(open_backend, on)

    def __str__(self) -> str:
        return self._on

    def take(self) -> Backend:
        """The backend; the caller closes it."""
        self._taken = True
        backend = self._backend.result()
        self._restore_thread_count()
        return backend

    def _restore_thread_count(self) -> None:
        """Dask sets the number of threads of its workers through the environment of this process, and torch, which was
        imported meanwhile, has read it too."""
        for name in THREAD_VARIABLES:
            os.environ.pop(name, None)
            os.environ |= {name: self._environment[name]} if name in self._environment else {}
        torch = sys.modules.get("torch")
        if torch is not None:
            count = self._environment.get("OMP_NUM_THREADS", "")
            torch.set_num_threads(int(count) if count.isdecimal() and int(count) else _cores())

    def close(self) -> None:
        """Stop a backend that was not taken."""
        if not self._taken and self._backend.exception() is None:
            self._backend.result().close()
        self._thread.shutdown()


@contextmanager
def start_early(on: str | None) -> Iterator[Any]:
    """The executor argument for `--on`: workers of this machine start while the caller imports torch."""
    local_dask = on is not None and on.startswith("dask:local")
    if on is not None and (local_dask or on.startswith("processes:")):
        _parse(on)
        start_forkserver(*["distributed"] * local_dask)  # before the imports of this process, which take seconds
    if not local_dask or on is None:
        yield on
        return
    require("distributed", "cluster")  # in this thread: two threads that import the same package may deadlock
    pending = PendingBackend(on)
    try:
        yield pending
    finally:
        pending.close()


def open_backend(on: Any) -> Backend:
    """The backend of `--on`, of a `concurrent.futures.Executor`, or of a Dask client."""
    if isinstance(on, PendingBackend):
        return on.take()
    if isinstance(on, Executor):
        return ExecutorBackend(on)
    if type(on).__module__.split(".")[0] == "distributed":
        from congeal.execution.dask_backend import DaskBackend

        return DaskBackend.of_client(on)
    if not isinstance(on, str):
        raise CongealError(f"an executor is {FORMS}, a concurrent.futures.Executor or a Dask client, not {on!r}")
    kind, where = _parse(on)
    if kind == "processes":
        return ProcessBackend(int(where))
    from congeal.execution.dask_backend import DaskBackend

    return DaskBackend.local(int(where)) if kind == "dask:local" else DaskBackend.at(where)


def _parse(on: str) -> tuple[str, str]:
    """("processes", N), ("dask:local", N) or ("dask", address)."""
    kind, _, rest = on.partition(":")
    if kind == "dask" and rest.startswith("local"):
        kind, rest = "dask:local", rest.removeprefix("local").removeprefix(":")
    if kind in ("processes", "dask:local"):
        if not rest.isdecimal() or not 1 <= int(rest) <= MAX_WORKERS:
            raise CongealError(f"{on!r} does not say how many workers: give {FORMS}, with N from 1 to {MAX_WORKERS}")
        return kind, rest
    if kind == "dask" and rest:
        return kind, rest
    raise CongealError(f"there is nothing to work on called {on!r}: give {FORMS}")


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
