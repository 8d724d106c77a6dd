"""Work on many processes and machines: the same command, the same answer.

The unit is a shard, a run of images. What is done with a shard is a task whose result is a file: it is there, whole, or
it is not. Results are merged in the order of the shards, so that neither the number of workers nor what became of some
of them shows in the answer.

| file          | what it holds                                                                    |
|---------------|----------------------------------------------------------------------------------|
| engine.py     | the seam: who runs tasks, and what `--on` may say                                  |
| processes.py  | an engine: processes of this machine                                               |
| dask.py       | an engine: Dask, here or on a cluster                                              |
| nursery.py    | the process that workers of this machine are forked from                           |
| exchange.py   | the files that driver and workers share, on a disk or in object storage            |
| broadcast.py  | what all tasks of a stage need, by file                                            |
| task.py       | one task, as a worker does it                                                      |
| crew.py       | the driver's side: who does what, what was lost, and the results in order          |
"""

from congeal.distributed.crew import Crew, open_crew
from congeal.distributed.task import TryAgain

__all__ = ["Crew", "TryAgain", "open_crew"]
