"""Backends: where tasks run. The interface is little more than that of `concurrent.futures.Executor`.

A further backend is a subclass of `Backend` and one line in `open_backend`.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from congeal.errors import CongealError, RunFailed, first_line, require

log = logging.getLogger("congeal")

FORMS = "processes:N, dask:local:N, dask:tcp://HOST:PORT or dask:FILE.json"
# Seconds to wait for a scheduler at the start of a run, chosen by judgement: a wrong address is reported soon …
CONNECT_SECONDS = 10.0
# … and during a run, chosen by judgement: a cluster manager restarts a scheduler within minutes.
RECONNECT_SECONDS = 600.0
WORKER_LOSSES = ("KilledWorker", "CommClosedError", "FutureCancelledError", "FuturesCancelledError", "CancelledError")
# Numerical libraries read their number of threads when they are loaded; a worker uses one core. Without the last
# variable, a helper process would import modules from the current folder instead of its own.
HELPER_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONSAFEPATH")
# Modules with the work of most tasks, by name only. Importing torch takes two seconds of a core: the fork server does
# it once for all workers.
PRELOADED_MODULES = ("congeal.methods.joint.alignment", "congeal.pipeline.render")


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
        options = {"initializer": initialise_process, "initargs": (worker_environment(),)}
        self._new_pool = partial(ProcessPoolExecutor, count, start_forkserver(), **options)
        super().__init__(self._new_pool())

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


class DaskBackend(Backend):
    """A client of a Dask scheduler.

    cluster: a LocalCluster that is stopped with the run. address: arguments to connect again after a restart of the
    scheduler. A client with neither belongs to the caller and stays open.
    """

    def __init__(self, client: Any, cluster: Any = None, address: dict[str, Any] | None = None) -> None:
        self._client, self._cluster, self._address = client, cluster, address
        self._executor = client.get_executor(pure=False)
        if "dashboard" in client.scheduler_info(n_workers=0).get("services", {}):
            log.info("Dask dashboard: %s", client.dashboard_link)

    @classmethod
    def local(cls, count: int) -> DaskBackend:
        """A scheduler in this process and `count` worker processes, reachable from this machine only."""
        distributed = require("distributed", "cluster")
        from dask import config

        method = start_forkserver("distributed").get_start_method()
        with config.set({"distributed.worker.multiprocessing-method": method}), helper_environment():
            cluster = distributed.LocalCluster(
                n_workers=count,
                threads_per_worker=1,
                processes=True,
                host="127.0.0.1",
                dashboard_address="127.0.0.1:0",
                silence_logs=logging.ERROR,
                env=worker_environment(),
            )
        return cls(distributed.Client(cluster, set_as_default=False), cluster)

    @classmethod
    def at(cls, where: str) -> DaskBackend:
        """tcp://HOST:PORT, or the file that `dask scheduler --scheduler-file` wrote."""
        require("distributed", "cluster")
        if "://" in where:
            address = {"address": where}
        elif os.path.isfile(where):
            address = {"scheduler_file": os.path.abspath(where)}
        elif where.endswith(".json"):
            raise CongealError(f"no such scheduler file: {where}; 'dask scheduler --scheduler-file {where}' writes one")
        else:
            raise CongealError(f"'dask:{where}' is no scheduler: give dask:tcp://HOST:PORT or dask:FILE.json")
        return cls(_connect(address, CONNECT_SECONDS), address=address)

    @property
    def workers(self) -> int:
        """Number of threads of all workers of the scheduler."""
        try:
            return int(sum(self._client.nthreads().values()))
        except Exception:  # the scheduler is restarting
            return 0

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        try:
            future: Future[Any] = self._executor.submit(function, *arguments)
        except Exception as error:
            if self.is_alive():
                raise
            future = Future()
            future.set_exception(CancelledError(first_line(error)))
        return future

    def is_worker_loss(self, error: BaseException) -> bool:
        return isinstance(error, CancelledError) or type(error).__name__ in WORKER_LOSSES

    def is_alive(self) -> bool:
        return bool(self._client.status == "running")

    def recover(self) -> None:
        """Wait for the scheduler, or for its replacement."""
        if self.is_alive():
            return
        if self._address is None:
            raise RunFailed("the Dask scheduler is gone; run the same command again to go on")
        log.warning("the Dask scheduler is gone; waiting for it to come back")
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # its tracebacks repeat this at length
        with suppress(Exception):  # the connection is lost already
            self._client.close(timeout=5)
        self._client = _connect(self._address, RECONNECT_SECONDS, reconnect=True)
        self._executor = self._client.get_executor(pure=False)

    def close(self) -> None:
        """Disconnect, and stop the cluster that was started for this run."""
        if self._cluster is not None or self._address is not None:
            with suppress(Exception):  # a connection that is lost already
                self._client.close(timeout=5)
        if self._cluster is not None:
            self._cluster.close(timeout=10)


def _connect(address: dict[str, Any], timeout: float, *, reconnect: bool = False) -> Any:
    """A client, or an error in one sentence; reconnect: try again until the time is over."""
    distributed = require("distributed", "cluster")
    deadline, where = time.monotonic() + timeout, next(iter(address.values()))
    while True:
        try:
            return distributed.Client(**address, set_as_default=False, timeout=min(timeout, CONNECT_SECONDS))
        except (OSError, TimeoutError, ValueError) as error:
            if not reconnect:
                problem = f"there is no Dask scheduler at {where} ({first_line(error)})"
                raise CongealError(f"{problem}; start one with 'dask scheduler'") from error
            if isinstance(error, ValueError) or time.monotonic() > deadline:
                problem = f"the Dask scheduler at {where} did not come back"
                raise RunFailed(f"{problem}; run the same command again to go on") from error
            time.sleep(1.0)


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
    return {**os.environ, **dict.fromkeys(HELPER_VARIABLES, "1")}


@contextmanager
def helper_environment() -> Iterator[None]:
    """Processes that start inside this context have the environment of a worker."""
    usual = {name: os.environ.get(name) for name in HELPER_VARIABLES}
    os.environ.update(worker_environment())
    try:
        yield
    finally:
        for name, value in usual.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def initialise_process(environment: dict[str, str]) -> None:
    """In a new process: take over the environment, and exit when the parent exits, even if it is killed."""
    os.environ.clear()
    os.environ.update(environment)

    def exit_with_parent() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()


# ---- choosing one


def open_backend(on: Any) -> Backend:
    """The backend of `--on`, of a `concurrent.futures.Executor`, or of a Dask client."""
    if isinstance(on, Executor):
        return Backend(on)
    if type(on).__module__.split(".")[0] == "distributed":
        return DaskBackend(on)
    if not isinstance(on, str):
        raise CongealError(f"an executor is {FORMS}, a concurrent.futures.Executor or a Dask client, not {on!r}")
    kind, _, rest = on.partition(":")
    if kind == "dask" and rest.startswith("local"):
        kind, rest = "dask:local", rest.removeprefix("local").removeprefix(":")
    if kind in ("processes", "dask:local"):
        if not rest.isdecimal() or not 1 <= int(rest) <= 4096:  # a larger number is a typing error
            raise CongealError(f"{on!r} does not say how many workers: give {FORMS}, with N from 1 to 4096")
        return ProcessBackend(int(rest)) if kind == "processes" else DaskBackend.local(int(rest))
    if kind != "dask" or not rest:
        raise CongealError(f"there is nothing to work on called {on!r}: give {FORMS}")
    return DaskBackend.at(rest)
