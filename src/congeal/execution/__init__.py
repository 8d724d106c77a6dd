"""Mapping work over images: in threads of this process, in worker processes of this machine, or on a Dask cluster.

The unit of work is a shard, a range of successive images. The result of a shard is a file that either exists
completely or not at all. Results are combined in the order of the shards, so the outcome depends neither on the number
of workers nor on workers that were lost, and an interrupted run takes over the results that are already there.

| module             | content                                                                       |
|--------------------|-------------------------------------------------------------------------------|
| mapping.py         | `map_images` and `map_shards`: the functions that all stages call             |
| shards.py          | division of images into shards                                                |
| threads.py         | the ordered thread pool and the number of torch threads                       |
| shard_executor.py  | the driver: sends tasks, repeats lost ones, yields results in order           |
| backends.py        | where tasks run: worker processes, or an executor of the caller; `--on`       |
| dask_backend.py    | where tasks run: Dask                                                         |
| forkserver.py      | the process that workers of this machine are forked from                      |
| shared_storage.py  | the files that driver and workers share, on a disk or in object storage       |
| task_payload.py    | the data that all tasks of a stage need, and keys of results                  |
| task.py            | one task, as a worker runs it                                                 |
"""

from congeal.execution.mapping import (
    has_executor,
    has_results,
    in_this_process,
    map_images,
    map_shards,
    remove_results,
    use_executor,
)
from congeal.execution.shard_executor import ShardExecutor, open_executor
from congeal.execution.task import RetryShard
from congeal.execution.task_payload import key_of

__all__ = [
    "RetryShard",
    "ShardExecutor",
    "has_executor",
    "has_results",
    "in_this_process",
    "key_of",
    "map_images",
    "map_shards",
    "open_executor",
    "remove_results",
    "use_executor",
]
