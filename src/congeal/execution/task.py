"""One task: what the driver writes for it, and how a worker runs it.

The payload of a stage, which all its tasks need, is a file that every worker reads once. Large arrays are in a file of
their own that workers map into memory, so that each reads only the rows of its shards. Addresses of images, which may
hold passwords, are not written to the disk: they are sent with each task. The result of a task becomes a file. A task
may run twice, even on two workers at once: both write the same bytes under the same name.
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import json
import mmap
import os
import pickle
import platform
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from importlib.metadata import version
from threading import Lock
from typing import Any

import numpy as np

from congeal.errors import CongealError, RunFailed
from congeal.execution.shared_storage import BLOCK_BYTES, SharedStorage, open_storage, pack
from congeal.rows import row_slices

Result = dict[str, Any]
"""Arrays by name; workers store large ones as `StoredArray`."""
# Attempts at a shard before its failure is final, chosen by judgement: storage of a cluster recovers within seconds.
MAX_ATTEMPTS = 3
# Payloads that a worker keeps: two stages may run at the same time.
MAX_CACHED_PAYLOADS = 2
# Bytes of an array up to which it is pickled with the rest: below a page there is nothing to map.
MAX_PICKLED_ARRAY_BYTES = 4096
# Bytes to whose multiples mapped arrays are aligned: a cache line, as numpy and torch align theirs.
ARRAY_ALIGNMENT_BYTES = 64
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


def run_task(payload: TaskPayload, number: int, shard: Any, attempt: int) -> None:
    """Compute and store the result of shard `number` unless it exists."""
    here = dict(versions())
    for package, wanted in payload.versions:
        if here.get(package) != wanted:
            raise CongealError(
                f"worker {worker_name()} has {package} {here.get(package)}, the driver {wanted}: "
                "install the same versions everywhere"
            )
    storage = open_storage(payload.storage)
    name = f"{payload.folder}/{result_name(number)}"
    work = _cached_work(storage, payload)
    if storage.has(name):
        return
    start, cpu_start = time.monotonic(), time.process_time()
    try:
        try:
            result = work(shard)
        except RetryShard as problem:
            if attempt < MAX_ATTEMPTS or problem.fallback is None:
                raise RetryShard(str(problem)) from None
            result = problem.fallback
        stored = [key for key in getattr(work, "large", ()) if key in result]
        about = {
            "seconds": round(time.monotonic() - start, 3),
            "cpu_seconds": round(time.process_time() - cpu_start, 3),
            "bytes": sum(array.nbytes for array in result.values()),
            "worker": worker_name(),
            "attempt": attempt,
            "stored": stored,
        }
        for key in stored:
            storage.write_array(array_name(payload.folder, number, key), result.pop(key))
        storage.write(name, (pack({**result, "about": np.array(json.dumps(about))}),))
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


def _use_one_core() -> None:
    """A worker uses one core; more cores are used by more workers.

    Workers of a Dask cluster are told to return freed memory at once, which is undone: images are allocated thousands
    of times a second, and tasks took 2.5 times as long with new pages each time.
    """
    import torch

    torch.set_num_threads(1)
    with suppress(OSError, AttributeError):  # not glibc
        mallopt, trim_threshold, mmap_threshold = ctypes.CDLL(None).mallopt, -1, -3
        mallopt(trim_threshold, 256 << 20)
        mallopt(mmap_threshold, 32 << 20)


# ---- the payload of a stage


@dataclass(frozen=True)
class TaskPayload:
    """Where the payload of a stage is, small enough to be sent with every task.

    Attributes
    ----------
    storage, folder : str
        The shared storage, and the folder of the stage there.
    digest : str
        SHA-256 of the pickle: no other file is loaded.
    buffers : tuple of int
        Sizes in bytes of the arrays in the other file.
    addresses : tuple
        What a worker opens itself, by the method `open` of each.
    versions : tuple of (str, str)
        Packages of the driver and their versions.
    """

    storage: str
    folder: str
    digest: str
    buffers: tuple[int, ...]
    addresses: tuple[Any, ...]
    versions: tuple[tuple[str, str], ...]


def write_payload(storage: SharedStorage, folder: str, work: Any) -> TaskPayload:
    """Write the work of a stage; workers open anything with an attribute `address` themselves."""
    buffers: list[pickle.PickleBuffer] = []
    addresses: list[Any] = []
    text = io.BytesIO()
    _Pickler(text, buffers, addresses).dump(work)
    sizes = tuple(buffer.raw().nbytes for buffer in buffers)
    data = text.getvalue()
    if buffers:
        storage.write(f"{folder}/work.bin", _aligned(buffers))
    storage.write(f"{folder}/work.pickle", (data,))
    digest = hashlib.sha256(data).hexdigest()
    return TaskPayload(str(storage), folder, digest, sizes, tuple(addresses), versions())


def _aligned(buffers: Sequence[pickle.PickleBuffer]) -> Iterator[bytes | memoryview]:
    """The bytes of all buffers, each at an aligned offset, in chunks: mapped arrays need not fit into memory."""
    at = 0
    for buffer in buffers:
        gap, raw = bytes(-at % ARRAY_ALIGNMENT_BYTES), buffer.raw()
        yield gap
        yield from _chunks(raw)
        at += len(gap) + raw.nbytes


def _chunks(raw: memoryview) -> Iterator[memoryview]:
    for part in row_slices(raw.nbytes, BLOCK_BYTES):
        yield raw[part]


def read_payload(storage: SharedStorage, payload: TaskPayload) -> Any:
    """The work of a stage, on a worker; `FileNotFoundError` if the driver's files are not visible there."""
    data = storage.read(f"{payload.folder}/work.pickle")
    if hashlib.sha256(data).hexdigest() != payload.digest:
        raise FileNotFoundError("another driver has overwritten it")
    views: list[memoryview] = []
    if payload.buffers:
        with open(storage.local(f"{payload.folder}/work.bin"), "rb") as file:
            whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        start = 0
        for size in payload.buffers:
            start += -start % ARRAY_ALIGNMENT_BYTES
            views.append(whole[start : start + size])
            start += size
    return _Unpickler(io.BytesIO(data), views, payload.addresses).load()


def versions() -> tuple[tuple[str, str], ...]:
    """Versions that driver and workers must have in common to compute the same results."""
    from congeal import __version__

    return (
        ("congeal", __version__),
        ("Python", ".".join(platform.python_version_tuple()[:2])),
        *((name, version(name)) for name in ("numpy", "torch")),
    )


def key_of(*parts: Any) -> str:
    """Digest of the inputs of a result: arrays, dataclasses, mappings, sequences and plain values."""
    digest = hashlib.sha256()
    for piece in _hashed_bytes(parts):
        digest.update(piece)
    return digest.hexdigest()[:24]


def _hashed_bytes(value: Any) -> Iterator[bytes | memoryview]:
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        yield f"{value.dtype.str} {value.shape} {value.strides[:1] == (0,)}\n".encode()
        one = value[:1] if value.ndim and value.strides[0] == 0 else value  # one row, repeated
        yield from _chunks(np.ascontiguousarray(one).reshape(-1).view(np.uint8).data)
    elif isinstance(value, Mapping):
        for key in value:
            yield from _hashed_bytes(key)
            yield from _hashed_bytes(value[key])
    elif is_dataclass(value) and not isinstance(value, type):
        yield type(value).__name__.encode()
        for field in fields(value):
            yield from _hashed_bytes(getattr(value, field.name))
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        yield b"["
        for item in value:
            yield from _hashed_bytes(item)
        yield b"]"
    else:
        yield f"{value!r}\n".encode("utf-8", "surrogatepass")


def repeat_row(row: np.ndarray, times: int) -> np.ndarray:
    """An array of `times` equal rows in the memory of one."""
    return np.lib.stride_tricks.as_strided(row, (times, *row.shape), (0, *row.strides))


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, buffers: list[pickle.PickleBuffer], addresses: list[Any]) -> None:
        super().__init__(file, protocol=5, buffer_callback=self._keep_in_pickle)
        self._buffers, self._addresses = buffers, addresses

    def _keep_in_pickle(self, buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes < MAX_PICKLED_ARRAY_BYTES:
            return True
        self._buffers.append(buffer)
        return False

    def reducer_override(self, value: Any) -> Any:
        """Write one row of an array that repeats it."""
        if type(value) is np.ndarray and len(value.shape) > 1 and len(value) > 1 and value.strides[0] == 0:
            return repeat_row, (np.array(value[0]), len(value))
        return NotImplemented

    def persistent_id(self, value: Any) -> Any:
        address = getattr(value, "address", None) if not isinstance(value, type) else None
        if address is None or not hasattr(address, "open"):
            return None
        if address not in self._addresses:
            self._addresses.append(address)
        return self._addresses.index(address)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, views: list[memoryview], addresses: tuple[Any, ...]) -> None:
        super().__init__(file, buffers=views)
        self._addresses = addresses

    def persistent_load(self, number: Any) -> Any:
        return self._addresses[number].open()


def worker_name() -> str:
    """The names of this machine and this process, for messages."""
    return f"{platform.node()}, process {os.getpid()}"
