"""One task, as a worker runs it: the work of a stage is called with one shard, and its result becomes a file.

A task may run twice, even on two workers at once: both write the same bytes under the same name.
"""

from __future__ import annotations

import ctypes
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Sequence
from importlib import import_module
from threading import Lock
from typing import Any

import numpy as np

from congeal.errors import CongealError, RunFailed
from congeal.execution.shared_storage import SharedStorage, open_storage, pack
from congeal.execution.task_payload import TaskPayload, read_payload, versions, worker_name

log = logging.getLogger("congeal")

Result = dict[str, Any]
"""Arrays by name; an executor replaces large ones by `StoredArray`."""
# Attempts at a shard before its failure is final: storage of a cluster recovers within seconds.
MAX_ATTEMPTS = 3
# Payloads that a worker keeps: those of the stage that runs and of the one before.
MAX_CACHED_PAYLOADS = 2
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # parameters of mallopt(3)
_WORKS: OrderedDict[str, Any] = OrderedDict()
_OPENING = Lock()


def in_worker() -> bool:
    """Whether this process has run tasks: it then leaves the other cores to other workers."""
    return bool(_WORKS)


class RetryShard(Exception):
    """A shard could not be read, but may be readable later.

    fallback: the result that the last attempt takes.
    """

    def __init__(self, reason: str, fallback: Result | None = None) -> None:
        super().__init__(reason)
        self.fallback = fallback


def result_name(number: int) -> str:
    """The file of a shard's result."""
    return f"{number:08d}.npz"


def array_name(folder: str, number: int, name: str) -> str:
    """The file of a large array of a shard's result."""
    return f"{folder}/{number:08d}.{name}.npy"


def import_modules(modules: Sequence[str]) -> None:
    """Import modules ahead of the first task; that task reports what is missing."""
    try:
        for name in modules:
            import_module(name)
    except Exception as error:
        log.debug("a worker cannot import %s: %s", modules, error)


def run_task(payload: TaskPayload, number: int, shard: Any, attempt: int) -> None:
    """Compute and store the result of shard `number` unless it exists."""
    _check_versions(payload)
    storage = open_storage(payload.storage)
    name = f"{payload.folder}/{result_name(number)}"
    work = _cached_work(storage, payload)
    if storage.has(name):
        return
    start, cpu_start = time.monotonic(), time.process_time()
    try:
        result = work(shard)
    except RetryShard as problem:
        if attempt < MAX_ATTEMPTS or problem.fallback is None:
            raise RetryShard(str(problem)) from None
        result = problem.fallback
    except RunFailed as error:
        raise RunFailed(f"{error} (on worker {worker_name()})") from error
    seconds, cpu_seconds = time.monotonic() - start, time.process_time() - cpu_start
    about: dict[str, Any] = {"seconds": round(seconds, 3), "cpu_seconds": round(cpu_seconds, 3)}
    about |= {"bytes": sum(array.nbytes for array in result.values()), "worker": worker_name(), "attempt": attempt}
    about["stored"] = [key for key in getattr(work, "large", ()) if key in result]
    try:
        for key in about["stored"]:
            storage.write_array(array_name(payload.folder, number, key), result.pop(key))
        storage.write(name, pack({**result, "about": np.array(json.dumps(about))}))
    except RunFailed as error:
        raise RunFailed(f"{error} (on worker {worker_name()})") from error


def _cached_work(storage: SharedStorage, payload: TaskPayload) -> Any:
    key = f"{payload.storage} {payload.folder} {payload.digest}"
    with _OPENING:  # a worker may have several threads
        if key not in _WORKS:
            _use_one_core()
            try:
                work = read_payload(storage, payload)
            except (FileNotFoundError, PermissionError) as error:
                raise CongealError(
                    f"worker {worker_name()} cannot read {payload.storage}/{payload.folder}, which the driver wrote "
                    f"({error}): choose an output with -o on a disk that all workers see, or in object storage"
                ) from error
            _WORKS[key] = work
            while len(_WORKS) > MAX_CACHED_PAYLOADS:
                _WORKS.popitem(last=False)
        _WORKS.move_to_end(key)
        return _WORKS[key]


def _check_versions(payload: TaskPayload) -> None:
    here = dict(versions())
    for name, wanted in payload.versions:
        if here.get(name) != wanted:
            raise CongealError(
                f"worker {worker_name()} has {name} {here.get(name)}, the driver {wanted}: "
                "install the same versions everywhere"
            )


def _use_one_core() -> None:
    """A worker uses one core; more cores are used by more workers."""
    import torch

    torch.set_num_threads(1)
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Undo Dask's setting that makes the C library return freed memory at once: images are allocated thousands of
    times a second, and tasks took 2.5 times as long with new pages each time."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return
    mallopt(_M_TRIM_THRESHOLD, 256 << 20)
    mallopt(_M_MMAP_THRESHOLD, 32 << 20)
