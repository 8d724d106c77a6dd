"""The ordered thread pool keeps the order, holds few results at a time and stops at the first error."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from congeal.execution.threads import map_ordered, usable_cores


def test_results_come_in_order_and_few_are_held() -> None:
    lock, drawn, held, most = threading.Lock(), [], 0, 0

    def items() -> object:
        for k in range(40):
            drawn.append(threading.current_thread())
            yield k

    def work(k: int) -> int:
        nonlocal held, most
        with lock:
            held += 1
            most = max(most, held)
        return 10 * k

    results = []
    for result in map_ordered(work, items(), 3):
        results.append(result)
        with lock:
            held -= 1
    assert results == [10 * k for k in range(40)]
    assert most <= 2 * 3 + 3
    assert set(drawn) == {threading.current_thread()}


def test_the_initializer_runs_once_in_each_thread() -> None:
    initialized, meet = [], threading.Barrier(3, timeout=60)

    def work(k: int) -> None:
        if k < 3:
            meet.wait()

    assert (
        list(map_ordered(work, range(9), 3, initializer=lambda: initialized.append(threading.get_ident())))
        == [None] * 9
    )
    assert len(initialized) == len(set(initialized)) == 3


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_comes_in_its_turn_and_ends_it(error: type[BaseException]) -> None:
    done, seen = [], []

    def work(k: int) -> int:
        if k == 4:
            raise error
        done.append(k)
        return k

    with pytest.raises(error):
        seen.extend(map_ordered(work, range(1000), 2))
    assert seen == [0, 1, 2, 3]
    assert max(done) < 16


def test_closing_leaves_the_rest_undone() -> None:
    done: list[int] = []
    with closing(map_ordered(done.append, range(1000), 2)) as results:
        next(results)
    assert len(done) < 16
    assert usable_cores() >= 1
