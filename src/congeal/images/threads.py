"""Images side by side: decoders, filters and encoders release the interpreter's lock, so threads share the work."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import TypeVar

from congeal.distributed.task import in_worker

Item = TypeVar("Item")
Result = TypeVar("Result")

MOST_THREADS = 8


def usable_cores() -> int:
    """How many processors this process may use, 8 at most: one thread takes what the others have done.

    A worker is one core's worth of work.
    """
    if in_worker():
        return 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST_THREADS, allowed)


def in_order(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    threads: int,
    *,
    begin: Callable[[], object] = nullcontext,
) -> Generator[Result, None, None]:
    """work(item) of every item, in their order, a few of them ahead of the one that is yielded.

    Items are drawn in the caller's thread; `begin` is called once in each of the others. The first error ends it, and
    so does closing the iterator: what was not begun by then is left undone.
    """
    with ThreadPoolExecutor(threads, initializer=begin) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > 2 * threads + 2:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
