"""Where shards begin and end."""

from __future__ import annotations

import numpy as np
import pytest

from congeal.execution.mapping import MAX_WORKING_VALUES_PER_SHARD, group_batches


@pytest.mark.parametrize("count", [1, 4, 8, 52, 196, 2000])
def test_shards_hold_every_run_once_and_are_enough_for_several_workers(count: int) -> None:
    runs = list(np.array_split(np.arange(510 * count), count))
    found = group_batches(runs, MAX_WORKING_VALUES_PER_SHARD // (40 * 510), least=8)
    assert [run[0] for shard in found for run in shard] == [run[0] for run in runs]
    sizes = [len(shard) for shard in found]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) <= 40
    assert len(found) >= min(count, 8)
    assert len(set(sizes[:-1])) <= 1


def test_rounds_over_a_set_have_shards_of_one_size() -> None:
    runs = list(np.array_split(np.arange(100), 10))
    assert [len(shard) for shard in group_batches(runs, MAX_WORKING_VALUES_PER_SHARD // 30, least=1)] == [3, 3, 3, 1]
