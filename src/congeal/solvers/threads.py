"""Threads: one inside an operation, several side by side.

Operations on small pictures take milliseconds; threads that share one spend more time waiting for each other than
working, threads with a part of the set each do not. And sums that threads share differ in their last bits with the
number of threads: what workers of a cluster may do, too, has one thread everywhere, so that the answer is the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock, local
from typing import TypeVar

import torch

from congeal.geometry.matrix import Size

Item = TypeVar("Item")
Result = TypeVar("Result")

_ONE_THREAD_FRAME = 64  # pixels a side, up to which one thread was measured to be faster than two


class _Usual:
    """How many threads an operation had before anybody asked for few.

    Torch has a number for every thread that runs and one for those to come, so who comes second would take the first
    one's "few" for what is usual, and leave it behind.
    """

    def __init__(self) -> None:
        self.lock, self.asking, self.number = Lock(), 0, 1
        self.own = local()

    def enter(self) -> int:
        with self.lock:
            if not self.asking:
                self.number = torch.get_num_threads()
            self.asking += 1
            self.own.depth = getattr(self.own, "depth", 0) + 1
            torch.set_num_threads(1)
            return self.number

    def here(self) -> int:
        with self.lock:
            return self.number if getattr(self.own, "depth", 0) else torch.get_num_threads()

    def leave(self) -> None:
        with self.lock:
            self.asking -= 1
            self.own.depth -= 1
            if not self.own.depth:  # inside another one of this thread it stays one: sums depend on it
                torch.set_num_threads(self.number)


_USUAL = _Usual()


@contextmanager
def one_thread() -> Iterator[int]:
    """One thread for each operation; gives how many may then work side by side."""
    side_by_side = _USUAL.enter()
    try:
        yield side_by_side
    finally:
        _USUAL.leave()


@contextmanager
def few_threads(frame: Size) -> Iterator[int]:
    """`one_thread` where pictures are small: for work, such as training, that is not cut into parts."""
    if max(frame) > _ONE_THREAD_FRAME:
        yield 1
        return
    with one_thread() as side_by_side:
        yield side_by_side


def side_by_side() -> int:
    """How many threads may work side by side, be it inside `one_thread`."""
    return _USUAL.here()


def in_order(work: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """work(item) of every item, in their order. Items are read here, a few ahead of what is yielded."""
    if threads < 2 or (isinstance(items, Sized) and len(items) < 2):
        yield from map(work, items)
        return
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        waiting: deque[Future[Result]] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
