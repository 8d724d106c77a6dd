"""The driver of a stage: sends tasks to workers, repeats lost ones, yields the results in the order of the shards."""

from __future__ import annotations

import json
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from congeal.errors import CongealError, RunFailed, first_line
from congeal.execution.backends import Backend, open_backend
from congeal.execution.shared_storage import SharedStorage, StoredArray, unpack
from congeal.execution.task import MAX_ATTEMPTS, Result, RetryShard, TaskPayload, result_name, run_task, write_payload
from congeal.files import DAMAGED
from congeal.memmap import release_pages
from congeal.progress import Progress

log = logging.getLogger("congeal")

# Workers that may die on one shard before the run stops, chosen by judgement: a cluster takes a few of them away, but a
# shard that ends this many probably needs more memory than a worker has.
MAX_LOST_WORKERS = 20
# Seconds between checks whether the backend is alive. Chosen by judgement: each asks the scheduler, and nobody notices
# a second.
POLL_SECONDS = 1.0
TIMING_COLUMNS = ("stage", "pass", "shard", "images", "seconds", "cpu_seconds", "bytes", "worker", "attempt")


class ShardExecutor:
    """Runs the tasks of stages on a backend; driver and workers exchange files through shared storage.

    Attributes
    ----------
    workers : int
        Number of tasks that can run at the same time, when it was last asked for.
    retries : int
        Number of tasks that were sent again.
    timings : list of dict
        One row per stage and shard.
    """

    def __init__(self, backend: Backend, storage: SharedStorage, *, quiet: bool = True) -> None:
        self.backend, self.storage, self.quiet = backend, storage, quiet
        self.workers, self.retries = backend.workers, 0
        self.timings: list[dict[str, Any]] = []

    def map(
        self,
        stage: str,
        key: str,
        work: Callable[[Any], Result],
        shards: Sequence[Any],
        counts: Sequence[int],
        *,
        keep: bool = True,
        show: bool = True,
    ) -> Iterator[Result]:
        """Yield work(shard) for every shard; parameters as for `congeal.execution.map_shards`."""
        tasks = _Stage(self, write_payload(self.storage, _folder(stage, key), work), shards)
        try:
            with Progress(sum(counts), stage, quiet=self.quiet or not show) as progress:
                for number, count in enumerate(counts):
                    result = tasks.result(
                        number, lambda: progress.update(0, workers=self.workers, retries=self.retries)
                    )
                    about = json.loads(str(result.pop("about")))
                    row = {"stage": stage, "pass": key[:8], "shard": number, "images": count, **about}
                    self.timings.append({name: row[name] for name in TIMING_COLUMNS})
                    progress.update(count, workers=self.workers, retries=self.retries)
                    yield result | {name: StoredArray(self.storage, file) for name, file in about["stored"].items()}
                    release_pages()
        finally:  # however the stage ends, tasks that have not started are cancelled
            for future in tasks.pending:
                future.cancel()
        if not keep:
            self.remove_results(stage, key)

    def has_results(self, stage: str, key: str) -> bool:
        """Whether an earlier call left results."""
        return any(name.endswith(".npz") for name in self.storage.names(_folder(stage, key)))

    def remove_results(self, stage: str, key: str) -> None:
        """Remove the results of an earlier call."""
        self.storage.remove(_folder(stage, key))


class _Stage:
    """The tasks of one stage: finished, pending, and not yet submitted."""

    def __init__(self, executor: ShardExecutor, payload: TaskPayload, shards: Sequence[Any]) -> None:
        self.executor, self.payload, self.shards = executor, payload, shards
        self.done: set[int] = set()
        self.waiting = deque(range(len(shards)))
        self.pending: dict[Future[None], int] = {}
        self.failures: Counter[int] = Counter()
        self.losses: Counter[int] = Counter()
        self.find_results()

    def find_results(self) -> None:
        """Take over the results that exist already."""
        names = self.executor.storage.names(self.payload.folder)
        self.done |= {number for number in self.waiting if result_name(number) in names}
        self.waiting = deque(number for number in self.waiting if number not in self.done)

    def submit(self) -> None:
        """Submit tasks, so many that no worker waits for the driver."""
        while self.waiting and len(self.pending) < 2 * max(1, self.executor.workers) + 2:
            number = self.waiting.popleft()
            arguments = (self.payload, number, self.shards[number], self.failures[number] + 1)
            self.pending[self.executor.backend.submit(run_task, *arguments)] = number

    def result(self, number: int, on_wait: Callable[[], None]) -> Result:
        """Wait for the result of a shard while the others go on."""
        name = f"{self.payload.folder}/{result_name(number)}"
        while True:
            self.submit()
            if number not in self.done:
                self._wait()
                on_wait()
                continue
            try:
                return unpack(self.executor.storage.read(name))
            except DAMAGED:
                self.done.discard(number)
                self._repeat(number, self.failures)
                if self.failures[number] > MAX_ATTEMPTS:
                    raise RunFailed(f"{self.executor.storage}/{name} is damaged again and again") from None

    def _wait(self) -> None:
        backend = self.executor.backend
        finished, _ = wait(self.pending, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
        for future in finished:
            self._collect(future, self.pending.pop(future))
        if not backend.is_alive():  # all pending tasks are lost, and perhaps some of their results are there
            for future, number in self.pending.items():
                future.cancel()
                self._repeat(number, self.losses)
            self.pending.clear()
            backend.recover()
            self.find_results()
        self.executor.workers = backend.workers

    def _collect(self, future: Future[None], number: int) -> None:
        error = CancelledError() if future.cancelled() else future.exception()
        backend = self.executor.backend
        if error is None:
            self.done.add(number)
        elif backend.is_worker_loss(error):
            if backend.is_alive():
                backend.recover()
            self._repeat(number, self.losses)
            if self.losses[number] > MAX_LOST_WORKERS:
                raise RunFailed(
                    f"{MAX_LOST_WORKERS} workers died on shard {number}, probably out of memory; give workers more, or "
                    "use a smaller --size; finished shards are kept"
                )
        elif any("No module named 'congeal" in str(one) for one in (error, error.__cause__, error.__context__)):
            raise RunFailed("a worker has no package 'congeal': install the same version of it on all workers")
        elif isinstance(error, CongealError):
            raise RunFailed(str(error)) from error
        else:
            self._repeat(number, self.failures)
            if self.failures[number] >= MAX_ATTEMPTS and not isinstance(error, RetryShard):
                raise RunFailed(
                    f"shard {number} failed {MAX_ATTEMPTS} times ({type(error).__name__}: {first_line(error)}); "
                    "finished shards are kept"
                ) from error

    def _repeat(self, number: int, counter: Counter[int]) -> None:
        counter[number] += 1
        self.executor.retries += 1
        self.waiting.appendleft(number)


def _folder(stage: str, key: str) -> str:
    """The folder of a stage in the shared storage."""
    return f"{stage.replace(' ', '-')}-{key}"


@contextmanager
def open_executor(on: Any, folder: Path | str, *, quiet: bool = True) -> Iterator[ShardExecutor | None]:
    """The executor of `--on`, with its shared storage in `folder`; None if `on` is None."""
    if on is None:
        yield None
        return
    backend = open_backend(on)
    with closing(backend):
        if not quiet:
            log.info("working on %s: %d workers", on if isinstance(on, str) else type(on).__name__, backend.workers)
        yield ShardExecutor(backend, SharedStorage(str(folder)), quiet=quiet)
