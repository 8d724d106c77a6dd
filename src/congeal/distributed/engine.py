"""The seam: an engine runs functions elsewhere. It is little more than `concurrent.futures.Executor`.

Another engine is one more file with a class like `Processes`, and one line in `open_engine`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol

from congeal.distributed.nursery import ONE_THREAD, begin_nursery
from congeal.errors import CongealError, require

FORMS = "processes:N, dask:local:N, dask:tcp://HOST:PORT or dask:FILE.json"
MOST_WORKERS = 4096


class Engine(Protocol):
    """Who runs tasks."""

    @property
    def workers(self) -> int:
        """How many tasks can run at once, as far as is known now."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run function(*arguments) somewhere."""

    def lost(self, error: BaseException) -> bool:
        """Whether this error says that a worker is gone, and nothing about the task."""

    def sound(self) -> bool:
        """Whether tasks that were submitted may still come back; if not, `recover` is called."""

    def recover(self) -> None:
        """Be ready for tasks again after losses."""

    def close(self) -> None:
        """End what this engine started; leave alone what it was given."""


class Given:
    """An executor of the caller's own, which stays open."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    @property
    def workers(self) -> int:
        """What executors of the standard library know of themselves, else 1."""
        return int(getattr(self._executor, "_max_workers", None) or 1)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """As the executor does."""
        return self._executor.submit(function, *arguments)

    def lost(self, error: BaseException) -> bool:
        """Cancelled by somebody else; an executor that is broken stays so."""
        return isinstance(error, CancelledError)

    def sound(self) -> bool:
        """An executor says itself what became of a task."""
        return True

    def recover(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """It is not ours."""


class Starting:
    """An engine on its way, while this process has something else to do: `open_engine` waits for it."""

    def __init__(self, on: str) -> None:
        self._on, self._taken, self._usual = on, False, dict(os.environ)
        self._thread = ThreadPoolExecutor(1)
        self._engine: Future[Engine] = self._thread.submit(open_engine, on)

    def __str__(self) -> str:
        return self._on

    def take(self) -> Engine:
        """The engine; whoever takes it closes it."""
        self._taken = True
        engine = self._engine.result()
        self._threads_as_before()
        return engine

    def _threads_as_before(self) -> None:
        """Dask tells its workers to use one thread by way of this process's own environment, and there torch, which
        was loaded meanwhile, has read it too."""
        for name in ONE_THREAD:
            os.environ.pop(name, None)
            os.environ |= {name: self._usual[name]} if name in self._usual else {}
        torch = sys.modules.get("torch")
        if torch is not None:
            asked = self._usual.get("OMP_NUM_THREADS", "")
            torch.set_num_threads(int(asked) if asked.isdecimal() and int(asked) else _cores())

    def close(self) -> None:
        """End an engine that nobody took."""
        if not self._taken and self._engine.exception() is None:
            self._engine.result().close()
        self._thread.shutdown()


@contextmanager
def starting(on: str | None) -> Iterator[Any]:
    """What to give as executor: workers of this machine are started meanwhile, anything else when it is needed."""
    local = on is not None and on.startswith("dask:local")
    if local or (on is not None and on.startswith("processes:")):
        check_engine(on)
        begin_nursery(*["distributed"] * local)  # before anything is imported here, which takes seconds
    if not local or on is None:
        yield on
        return
    require("distributed", "cluster")  # here: two threads that import at once may get in each other's way
    begun = Starting(on)
    try:
        yield begun
    finally:
        begun.close()


def open_engine(on: Any) -> Engine:
    """The engine of `--on`, of an executor, or of a Dask client."""
    if isinstance(on, Starting):
        return on.take()
    if isinstance(on, Executor):
        return Given(on)
    if type(on).__module__.split(".")[0] == "distributed":
        from congeal.distributed.dask import Dask

        return Dask.of_client(on)
    if not isinstance(on, str):
        raise CongealError(f"an executor is {FORMS}, a concurrent.futures.Executor or a Dask client, not {on!r}")
    kind, _, rest = on.partition(":")
    if kind == "processes":
        from congeal.distributed.processes import Processes

        return Processes(worker_count(rest, on))
    if kind == "dask" and rest.startswith("local"):
        from congeal.distributed.dask import Dask

        return Dask.local(worker_count(rest.removeprefix("local").removeprefix(":"), on))
    if kind == "dask" and rest:
        from congeal.distributed.dask import Dask

        return Dask.at(rest)
    raise CongealError(f"there is nothing to work on called {on!r}: give {FORMS}")


def check_engine(on: Any) -> None:
    """Refuse what `open_engine` would refuse for its words alone."""
    if not isinstance(on, str):
        return
    kind, _, rest = on.partition(":")
    if kind == "processes":
        worker_count(rest, on)
    elif kind == "dask" and rest.startswith("local"):
        worker_count(rest.removeprefix("local").removeprefix(":"), on)
    elif kind != "dask" or not rest:
        raise CongealError(f"there is nothing to work on called {on!r}: give {FORMS}")


def worker_count(text: str, whole: str) -> int:
    """The N of processes:N."""
    if not text.isdecimal() or not 1 <= int(text) <= MOST_WORKERS:
        raise CongealError(f"{whole!r} does not say how many workers: give {FORMS}, with N from 1 to {MOST_WORKERS}")
    return int(text)


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_broken(error: BaseException) -> bool:
    """A pool of processes says this of all its tasks when one process is gone."""
    return isinstance(error, BrokenExecutor | CancelledError)
