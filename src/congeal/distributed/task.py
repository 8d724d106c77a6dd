"""One task, as a worker does it: the work of a stage, called with one shard; its answer becomes a file.

A task may be done twice, by two workers even: both write the same bytes under the same name.
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

from congeal.distributed.broadcast import Order, host, receive, versions
from congeal.distributed.exchange import Exchange, open_exchange, pack
from congeal.errors import CongealError, RunFailed

log = logging.getLogger("congeal")

TRIES = 3
"""How often a shard is tried before what went wrong is taken for granted."""
_KEPT = 2  # works of stages that a worker remembers
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_WORKS: OrderedDict[str, Any] = OrderedDict()
_OPENING = Lock()


def in_worker() -> bool:
    """Whether this process has worked for a driver: it then leaves the other cores to other workers."""
    return bool(_WORKS)


class TryAgain(Exception):
    """A shard could not be read; perhaps another time.

    Parameters
    ----------
    reason : str
    instead : dict of arrays, optional
        The result if it stays so; the last try takes it.
    """

    def __init__(self, reason: str, instead: dict[str, np.ndarray] | None = None) -> None:
        super().__init__(reason)
        self.instead = instead


def result_name(number: int) -> str:
    """The file of a shard's result."""
    return f"{number:08d}.npz"


def load(modules: Sequence[str]) -> None:
    """Import modules, which takes seconds where one of them is torch; what is missing is told by the first task."""
    try:
        for name in modules:
            import_module(name)
    except Exception as error:
        log.debug("a worker cannot import %s: %s", modules, error)


def perform(order: Order, number: int, item: Any, attempt: int) -> None:
    """Do shard `number` of a stage, if its result is not there yet."""
    _check_versions(order)
    exchange = open_exchange(order.exchange)
    name = f"{order.folder}/{result_name(number)}"
    work = _work(exchange, order)
    if exchange.has(name):
        return
    began, busy = time.monotonic(), time.process_time()
    try:
        result = work(item)
    except TryAgain as problem:
        if attempt < TRIES or problem.instead is None:
            raise TryAgain(str(problem)) from None
        result = problem.instead
    except RunFailed as error:
        raise RunFailed(f"{error} (on worker {host()})") from error
    spent = {"seconds": time.monotonic() - began, "cpu_seconds": time.process_time() - busy}
    about: dict[str, Any] = {name: round(value, 3) for name, value in spent.items()}
    about |= {"bytes": sum(array.nbytes for array in result.values()), "worker": host(), "attempt": attempt}
    try:
        for key in getattr(work, "large", ()):
            if key in result:
                exchange.write_array(f"{order.folder}/{number:08d}.{key}.npy", result.pop(key))
        exchange.write(name, pack({**result, "about": np.array(json.dumps(about))}))
    except RunFailed as error:
        raise RunFailed(f"{error} (on worker {host()})") from error


def _work(exchange: Exchange, order: Order) -> Any:
    known = f"{order.exchange} {order.folder} {order.digest}"
    with _OPENING:  # a worker may have several threads
        if known not in _WORKS:
            _begin()
            try:
                made = receive(exchange, order)
            except (FileNotFoundError, PermissionError) as error:
                raise CongealError(
                    f"worker {host()} cannot read {order.exchange}/{order.folder}, which the driver wrote ({error}): "
                    "choose an output with -o on a disk that all workers see, or in object storage"
                ) from error
            _WORKS[known] = made
            while len(_WORKS) > _KEPT:
                _WORKS.popitem(last=False)
        _WORKS.move_to_end(known)
        return _WORKS[known]


def _check_versions(order: Order) -> None:
    here = dict(versions())
    for name, wanted in order.versions:
        if here.get(name) != wanted:
            raise CongealError(
                f"worker {host()} has {name} {here.get(name)}, the driver {wanted}: "
                "install the same versions everywhere"
            )


def _begin() -> None:
    """A worker is one core's worth of work; whoever wants more starts more workers."""
    import torch

    torch.set_num_threads(1)
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Undo what Dask asks of the C library: to give back memory at once. Pictures come and go thousands of times a
    second, and each time their pages would be made anew; tasks took 2.5 times as long."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    mallopt(_M_TRIM_THRESHOLD, 256 << 20)
    mallopt(_M_MMAP_THRESHOLD, 32 << 20)
