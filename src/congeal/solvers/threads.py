"""Threads for small pictures: one inside an operation, several side by side.

Operations on pictures of this size take milliseconds; threads that share one spend more time waiting for each other
than working, threads with a part of the set each do not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

from congeal.geometry.matrix import Size

Item = TypeVar("Item")
Result = TypeVar("Result")

_ONE_THREAD_FRAME = 64  # pixels a side, up to which one thread was measured to be faster than two


@contextmanager
def few_threads(frame: Size) -> Iterator[int]:
    """One thread for each operation on small pictures; gives how many may then work side by side."""
    before = torch.get_num_threads()
    small = max(frame) <= _ONE_THREAD_FRAME
    torch.set_num_threads(1 if small else before)
    try:
        yield before if small else 1
    finally:
        torch.set_num_threads(before)


def in_order(work: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """work(item) of every item, in their order. Items are read here, a few ahead of what is yielded."""
    if threads < 2:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Result]] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
