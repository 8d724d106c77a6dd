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

from congeal.execution.executor import ShardExecutor
from congeal.execution.task import Result
from congeal.execution.threads import map_ordered
from congeal.progress import Progress
from congeal.rows import row_slices

# Upper bounds of a shard: pixel values of original images, pixel values at working resolution, and images. Chosen by
# judgement: each is about ten seconds of one core, in which a task's overhead of milliseconds does not count.
MAX_ORIGINAL_VALUES_PER_SHARD = 256_000_000
MAX_WORKING_VALUES_PER_SHARD = 4_000_000
MAX_IMAGES_PER_SHARD = 20_000
# A small set makes this many shards, so that several workers have something to do (chosen by judgement) …
MIN_SHARDS = 8
# … unless they would have fewer images than this, where the overhead of a task dominates (chosen by judgement).
MIN_IMAGES_PER_SHARD = 25

_EXECUTOR: ContextVar[ShardExecutor | None] = ContextVar("executor that maps work over images", default=None)


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


def has_workers() -> bool:
    """Whether other processes do the work that is mapped now."""
    return _EXECUTOR.get() is not None


def has_results(stage: str, key: str) -> bool:
    """Whether an interrupted call left results with this key."""
    executor = _EXECUTOR.get()
    return executor is not None and executor.has_results(stage, key)


def remove_results(stage: str, key: str) -> None:
    """Remove the results of an interrupted call."""
    executor = _EXECUTOR.get()
    if executor is not None:
        executor.remove_results(stage, key)


# ---- shards: they depend on sizes only, so that sums are the same wherever they are computed


def divide_images(n: int, values: float) -> list[tuple[int, int]]:
    """(first, stop) of the shards of n images whose originals have `values` pixel values each."""
    by_values = int(MAX_ORIGINAL_VALUES_PER_SHARD // max(1.0, values))
    step = max(1, min(MAX_IMAGES_PER_SHARD, by_values, max(MIN_IMAGES_PER_SHARD, -(-n // MIN_SHARDS))))
    return [(part.start, part.stop) for part in row_slices(n, step)]


def group_batches(batches: Sequence[np.ndarray], values: int, least: int = MIN_SHARDS) -> list[list[np.ndarray]]:
    """Successive batches of positions grouped into shards.

    values: pixel values of one image at working resolution. least: number of shards if there are as many batches.
    """
    if not batches:
        return []
    images = max(1, MAX_WORKING_VALUES_PER_SHARD // max(1, values))
    together = max(1, min(images // max(1, len(batches[0])), len(batches) // least))
    return [list(batches[part]) for part in row_slices(len(batches), together)]


# ---- mapping


def map_shards(
    work: Callable[[Any], Result],
    shards: Sequence[Any],
    counts: Sequence[int],
    *,
    stage: str,
    key: Callable[[], str],
    show: bool = True,
) -> Iterator[Result]:
    """Yield work(shard) for every shard, in order.

    work: can be pickled; returns arrays by name. With an executor, those named in its attribute `large` come back as
    `StoredArray`. shards: small descriptions. counts: images of each shard. stage: what is done, for the progress bar
    and shards.csv. key: returns a digest of everything the results depend on, see `key_of`; an executor takes over
    results of an interrupted call with the same key, and keeps them until the run is finished.
    """
    executor = _EXECUTOR.get()
    if executor is not None:
        yield from executor.map(stage, key(), work, shards, counts, show=show)
        return
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
    is_round: bool = False,
) -> Iterator[Result]:
    """Yield work(batch) for every batch of positions, in order.

    An executor gets shards of successive batches; this process works on `threads` batches at a time and shows no
    progress. key: as for `map_shards`; None: the work stays in this process. values: pixel values of one image, by
    which batches are grouped into shards. A single shard is not worth a task. is_round: this is one of many short
    passes over the set, which are not worth as many shards, are not shown, and leave nothing behind.
    """
    executor = _EXECUTOR.get()
    least = 1 if is_round else MIN_SHARDS
    shards = group_batches(batches, values, least) if executor is not None and key is not None else []
    if executor is None or key is None or len(shards) < 2:
        yield from map_ordered(work, batches, threads) if threads > 1 else map(work, batches)
        return
    items = [[(int(batch[0]), int(batch[-1]) + 1) for batch in shard] for shard in shards]
    counts = [sum(map(len, shard)) for shard in shards]
    results = executor.map(stage, key(), _BatchesOfShard(work), items, counts, keep=not is_round, show=not is_round)
    for item, result in zip(items, results, strict=True):
        for k in range(len(item)):
            own = f"{k}:"
            yield {name.removeprefix(own): array for name, array in result.items() if name.startswith(own)}


@dataclass
class _BatchesOfShard:
    """The work of a task: the batches of a shard one after the other; results are named BATCH:NAME."""

    work: Callable[[np.ndarray], Result]

    def __call__(self, batches: Sequence[tuple[int, int]]) -> Result:
        results = [self.work(np.arange(first, stop)) for first, stop in batches]
        return {f"{k}:{name}": np.asarray(array) for k, one in enumerate(results) for name, array in one.items()}
