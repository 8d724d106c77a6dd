"""Images side by side: in order, few at a time, and over at the first error."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from congeal.images.threads import in_order, usable_cores
from congeal.images.writers import NpyWriter, RowWriter
from congeal.opening import open_images


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
    for result in in_order(work, items(), 3):
        results.append(result)
        with lock:
            held -= 1
    assert results == [10 * k for k in range(40)]
    assert most <= 2 * 3 + 3
    assert set(drawn) == {threading.current_thread()}


def test_each_thread_begins_once() -> None:
    begun, meet = [], threading.Barrier(3, timeout=60)

    def work(k: int) -> None:
        if k < 3:
            meet.wait()

    assert list(in_order(work, range(9), 3, begin=lambda: begun.append(threading.get_ident()))) == [None] * 9
    assert len(begun) == len(set(begun)) == 3


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_comes_in_its_turn_and_ends_it(error: type[BaseException]) -> None:
    done, seen = [], []

    def work(k: int) -> int:
        if k == 4:
            raise error
        done.append(k)
        return k

    with pytest.raises(error):
        seen.extend(in_order(work, range(1000), 2))
    assert seen == [0, 1, 2, 3]
    assert max(done) < 16


def test_closing_leaves_the_rest_undone() -> None:
    done: list[int] = []
    with closing(in_order(done.append, range(1000), 2)) as results:
        next(results)
    assert len(done) < 16
    assert usable_cores() >= 1


def test_rows_that_threads_write_at_once_go_to_their_places(tmp_path: Path) -> None:
    source = open_images(np.zeros((4000, 3, 5), np.uint8))
    writer = NpyWriter(tmp_path, source, (3, 5))
    room = writer.make_room(np.zeros((1, 3, 5, 1), np.uint8))
    assert room is not None
    pixels = np.random.default_rng(0).integers(0, 256, (4000, 3, 5, 1), dtype=np.uint8)
    rows = RowWriter(room, source)
    runs = np.array_split(np.arange(4000), 400)
    runs[7] = runs[7][[3, 1, 2, 0, *range(4, len(runs[7]))]]  # rows need not follow one another
    list(in_order(lambda part: rows.begin_new(part, pixels[part])(), runs, 8))
    rows.close()
    writer.all_written(np.arange(4000))
    writer.close()
    assert np.array_equal(np.load(tmp_path / "aligned.npy"), pixels[..., 0])
