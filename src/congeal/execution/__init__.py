"""Mapping work over images: in threads of this process, in worker processes of this machine, or on a Dask cluster.

The unit of work is a shard, a range of successive images. The result of a shard is a file that either exists
completely or not at all. Results are combined in the order of the shards, so the outcome depends neither on the number
of workers nor on workers that were lost, and an interrupted run takes over the results that are already there.

mapping.py         `map_images` and `map_shards`: the functions that all stages call; division into shards
threads.py         the ordered thread pool and the number of torch threads
executor.py        the driver: sends tasks, repeats lost ones, yields results in order
backends.py        where tasks run: worker processes, Dask, or an executor of the caller; `--on`
task.py            one task: the data that all tasks of a stage need, keys of results, the work
shared_storage.py  the files that driver and workers share, on a disk or in object storage
"""

from congeal.execution.executor import ShardExecutor, open_executor
from congeal.execution.mapping import (
    divide_images,
    group_batches,
    has_results,
    has_workers,
    in_this_process,
    map_images,
    map_shards,
    remove_results,
    use_executor,
)
from congeal.execution.shared_storage import StoredArray
from congeal.execution.task import Result, RetryShard, key_of

__all__ = [
    "Result",
    "RetryShard",
    "ShardExecutor",
    "StoredArray",
    "divide_images",
    "group_batches",
    "has_results",
    "has_workers",
    "in_this_process",
    "key_of",
    "map_images",
    "map_shards",
    "open_executor",
    "remove_results",
    "use_executor",
]
