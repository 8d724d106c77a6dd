"""Threads of one process: an ordered thread pool, and the number of threads torch uses inside one operation.

Decoders, filters and torch operations release the interpreter's lock, so threads that work on different images run in
parallel. Operations on small images take milliseconds; several threads inside one of them spend more time on
synchronisation than on work. Sums that several threads share also differ in their last bits with the number of threads:
work whose result must not depend on the machine runs with one thread per operation.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock, local
from typing import TypeVar

from congeal.execution.task import in_worker

Item = TypeVar("Item")
Result = TypeVar("Result")

# Threads that decode or draw images. A single thread collects their results and is the bottleneck beyond 8.
MAX_THREADS = 8


def usable_cores() -> int:
    """Number of processors this process may use, at most MAX_THREADS; 1 in a worker process."""
    if in_worker():
        return 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MAX_THREADS, allowed)


def map_ordered(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    threads: int,
    *,
    initializer: Callable[[], object] | None = None,
) -> Generator[Result, None, None]:
    """Yield work(item) for every item, in order; at most two items per thread are pending or waiting to be collected.

    Items are drawn in the caller's thread. Torch operations inside `work` use one thread. `initializer` runs once in
    each thread. The first error ends the iteration, and so does closing the generator: pending items are cancelled.
    """
    if threads < 2 or (isinstance(items, Sized) and len(items) < 2):
        if initializer is not None:
            initializer()
        for item in items:
            with single_torch_thread():
                result = work(item)
            yield result
        return
    import torch  # here, because opening images does not need it

    def initialize() -> None:
        torch.set_num_threads(1)
        if initializer is not None:
            initializer()

    usual = torch.get_num_threads()
    with ThreadPoolExecutor(threads, initializer=initialize) as pool:
        pending: deque[Future[Result]] = deque()
        try:
            for item in items:
                pending.append(pool.submit(work, item))
                if len(pending) > 2 * threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            torch.set_num_threads(usual)  # threads started later would inherit the setting of the pool


# Torch keeps one number of threads for each running thread and one that new threads inherit. A second caller of
# `single_torch_thread` would read the reduced number of the first as the usual one, so that is kept here.
_LOCK, _CALLERS, _OWN = Lock(), {"count": 0, "usual": 1}, local()


@contextmanager
def single_torch_thread() -> Iterator[int]:
    """Run each torch operation in one thread; yields the number of threads that may then work in parallel."""
    import torch

    with _LOCK:
        if not _CALLERS["count"]:
            _CALLERS["usual"] = torch.get_num_threads()
        _CALLERS["count"] += 1
        _OWN.depth = getattr(_OWN, "depth", 0) + 1
        torch.set_num_threads(1)
        usual = _CALLERS["usual"]
    try:
        yield usual
    finally:
        with _LOCK:
            _CALLERS["count"] -= 1
            _OWN.depth -= 1
            if not _OWN.depth:  # a nested call leaves it at one: sums depend on the number
                torch.set_num_threads(_CALLERS["usual"])


def available_threads() -> int:
    """Number of threads that may work in parallel, also inside `single_torch_thread`."""
    import torch

    with _LOCK:
        return _CALLERS["usual"] if getattr(_OWN, "depth", 0) else torch.get_num_threads()
