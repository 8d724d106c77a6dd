"""Work mapped over images: by the executor of the enclosing `use_executor`, else in this process.

As with `joblib.parallel_config`, the caller that opens an executor names it once, and numeric code does not know it.
Both ways give the same results in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from congeal.execution.shard_executor import ShardExecutor
from congeal.execution.shards import MIN_SHARDS, group_batches
from congeal.execution.task import Result
from congeal.execution.threads import map_ordered
from congeal.progress import Progress

_EXECUTOR: ContextVar[ShardExecutor | None] = ContextVar("executor that maps work over images", default=None)
_ROWS = ":rows"  # suffix of the arrays that say how many rows of a shard's result belong to each batch


@contextmanager
def use_executor(executor: ShardExecutor | None) -> Iterator[None]:
    """Let an executor do the work that is mapped inside this context; None: this process does it."""
    token = _EXECUTOR.set(executor)
    try:
        yield
    finally:
        _EXECUTOR.reset(token)


def in_this_process() -> AbstractContextManager[None]:
    """Work that is mapped inside this context stays in this process."""
    return use_executor(None)


def has_executor() -> bool:
    """Whether an executor does the work that is mapped now."""
    return _EXECUTOR.get() is not None


def map_shards(
    work: Callable[[Any], Result],
    shards: Sequence[Any],
    counts: Sequence[int],
    *,
    stage: str,
    key: Callable[[], str],
    keep: bool = True,
    show: bool = True,
) -> Iterator[Result]:
    """Yield work(shard) for every shard, in order. With an executor the first tasks run when this returns.

    Parameters
    ----------
    work : callable
        Can be pickled; returns arrays by name. With an executor, those named in its attribute `large` come back as
        `StoredArray`.
    shards : sequence
        Small descriptions of shards.
    counts : sequence of int
        Number of images of each shard, for the progress bar.
    stage : str
        What is done, for the progress bar and shards.csv.
    key : callable
        Returns a digest of everything the results depend on, see `key_of`. An executor takes over results of an
        interrupted call with the same key.
    keep : bool
        Keep the results of an executor until the run is finished.
    show : bool
        Show progress.
    """
    executor = _EXECUTOR.get()
    if executor is not None:
        return executor.map(stage, key(), work, shards, counts, keep=keep, show=show)
    return _map_here(work, shards, counts, stage, show=show)


def _map_here(
    work: Callable[[Any], Result], shards: Sequence[Any], counts: Sequence[int], stage: str, *, show: bool
) -> Iterator[Result]:
    with Progress(sum(counts), stage, quiet=not show) as progress:
        for shard, count in zip(shards, counts, strict=True):
            yield work(shard)
            progress.update(count)


def map_images(
    work: Callable[[np.ndarray], Result],
    batches: Sequence[np.ndarray],
    *,
    stage: str,
    key: Callable[[], str] | None,
    values: int,
    threads: int = 1,
    least_shards: int = MIN_SHARDS,
    keep: bool = True,
    show: bool = True,
) -> Iterator[Result]:
    """Yield work(batch) for every batch of positions, in order.

    An executor gets shards of successive batches; this process works on `threads` batches at a time and shows no
    progress. key: as for `map_shards`; None: the work stays in this process. values: pixel values of one image, by
    which batches are grouped into at least `least_shards` shards. A single shard is not worth a task.
    """
    executor = _EXECUTOR.get()
    shards = group_batches(batches, values, least_shards) if executor is not None and key is not None else []
    if executor is None or key is None or len(shards) < 2:
        yield from map_ordered(work, batches, threads) if threads > 1 else map(work, batches)
        return
    items = [[(int(batch[0]), int(batch[-1]) + 1) for batch in shard] for shard in shards]
    counts = [sum(map(len, shard)) for shard in shards]
    for result in executor.map(stage, key(), _ShardOfBatches(work), items, counts, keep=keep, show=show):
        yield from _split(result)


def has_results(stage: str, key: str) -> bool:
    """Whether an interrupted call left results with this key."""
    executor = _EXECUTOR.get()
    return executor is not None and executor.has_results(stage, key)


def remove_results(stage: str, key: str) -> None:
    """Remove the results of an interrupted call."""
    executor = _EXECUTOR.get()
    if executor is not None:
        executor.remove_results(stage, key)


@dataclass
class _ShardOfBatches:
    """The work of a task: the batches of a shard one after the other."""

    work: Callable[[np.ndarray], Result]

    def __call__(self, batches: Sequence[tuple[int, int]]) -> Result:
        results = [self.work(np.arange(first, stop)) for first, stop in batches]
        joined: Result = {}
        for name in results[0]:
            arrays = [np.asarray(result[name]) for result in results]
            joined[name] = np.concatenate([np.atleast_1d(array) for array in arrays])
            joined[name + _ROWS] = np.array([len(array) if array.ndim else -1 for array in arrays])
        return joined


def _split(result: Result) -> Iterator[Result]:
    """The results of the batches of a shard."""
    rows = {name.removesuffix(_ROWS): counts for name, counts in result.items() if name.endswith(_ROWS)}
    edges = {name: np.cumsum([0, *np.abs(counts)]) for name, counts in rows.items()}
    for k in range(len(next(iter(rows.values())))):
        parts = {name: result[name][edges[name][k] : edges[name][k + 1]] for name in rows}
        yield {name: part if rows[name][k] >= 0 else part[0] for name, part in parts.items()}
