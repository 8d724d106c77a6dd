"""One task: what the driver sends for it, and how a worker runs it.

All tasks of a stage have the same payload: a pickle that is sent with each task, and a file of the arrays in it, which
workers map into memory so that each reads only the rows of its shards. The pickle is never written to the disk:
addresses of images may hold passwords, and a worker loads no pickle that others could have replaced. The result of a
task becomes a file. A task may run twice, even on two workers at once: both write the same values under the same name.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from importlib.metadata import version
from threading import Lock
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from congeal.errors import CongealError, RunFailed
from congeal.execution.shared_storage import SharedStorage, pack_arrays

Result = dict[str, Any]
"""Arrays by name; workers store large ones as `StoredArray`."""
# Attempts at a shard before its failure is final, chosen by judgement: storage of a cluster recovers within seconds.
MAX_ATTEMPTS = 3
_OPENING = Lock()


def in_worker() -> bool:
    """Whether this process has run tasks: it then leaves the other cores to other workers."""
    return _open_work.cache_info().currsize > 0


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


def run_task(payload: TaskPayload, number: int, shard: Any, attempt: int) -> None:
    """Compute and store the result of shard `number`."""
    with _OPENING:  # a worker may have several threads
        work = _open_work(payload)
    storage, start, cpu_start = SharedStorage(payload.storage), time.monotonic(), time.process_time()
    try:
        try:
            result = work(shard)
        except RetryShard as problem:
            if attempt < MAX_ATTEMPTS or problem.fallback is None:
                raise RetryShard(str(problem)) from None
            result = problem.fallback
        large = [key for key in getattr(work, "large", ()) if key in result]
        about = {
            "seconds": round(time.monotonic() - start, 3),
            "cpu_seconds": round(time.process_time() - cpu_start, 3),
            "bytes": sum(array.nbytes for array in result.values()),
            "worker": worker_name(),
            "attempt": attempt,
            "stored": {key: f"{payload.folder}/{number:08d}.{key}.npy" for key in large},
        }
        for key, name in about["stored"].items():
            storage.write_array(name, result.pop(key))
        storage.write(
            f"{payload.folder}/{result_name(number)}", pack_arrays({**result, "about": np.array(json.dumps(about))})
        )
    except RunFailed as error:
        raise RunFailed(f"{error} (on worker {worker_name()})") from error


@lru_cache(maxsize=1)
def _open_work(payload: TaskPayload) -> Any:
    here = dict(library_versions())
    for package, wanted in payload.versions:
        if here.get(package) != wanted:
            raise CongealError(
                f"worker {worker_name()} has {package} {here.get(package)}, the driver {wanted}: "
                "install the same versions everywhere"
            )
    _use_one_core()
    try:
        return read_payload(payload)
    except (FileNotFoundError, PermissionError) as error:
        raise CongealError(
            f"worker {worker_name()} cannot read {payload.storage}/{payload.folder}, which the driver wrote "
            f"({error}): choose an output with -o on a disk that all workers see, or in object storage"
        ) from error


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


def worker_name() -> str:
    """The names of this machine and this process, for messages."""
    return f"{platform.node()}, process {os.getpid()}"


# ---- the payload of a stage


@dataclass(frozen=True)
class TaskPayload:
    """The work of a stage, sent with every task.

    Attributes
    ----------
    storage, folder : str
        The shared storage, and the folder of the stage there, with the file of arrays.
    work : bytes
        The pickle, without the arrays.
    arrays : tuple of (int, int)
        First byte and size of each array in the file.
    versions : tuple of (str, str)
        Packages of the driver and their versions.
    """

    storage: str
    folder: str
    work: bytes
    arrays: tuple[tuple[int, int], ...]
    versions: tuple[tuple[str, str], ...]


def write_payload(storage: SharedStorage, folder: str, work: Any) -> TaskPayload:
    """Pickle the work of a stage, and write its arrays."""
    pickled, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    _Pickler(pickled, protocol=5, buffer_callback=buffers.append).dump(work)
    parts: list[bytes | memoryview] = [bytes(64)]  # an empty file could not be mapped
    arrays, stop = list[tuple[int, int]](), 64
    for buffer in buffers:
        gap, raw = bytes(-stop % 64), buffer.raw()  # aligned to a cache line, as numpy aligns its own
        arrays.append((stop + len(gap), raw.nbytes))
        parts += [gap, raw]
        stop = sum(arrays[-1])
    storage.write(f"{folder}/arrays.bin", *parts)
    return TaskPayload(str(storage), folder, pickled.getvalue(), tuple(arrays), library_versions())


def read_payload(payload: TaskPayload) -> Any:
    """The work of a stage; `FileNotFoundError` if the driver's files are not visible here."""
    with open(SharedStorage(payload.storage).local(f"{payload.folder}/arrays.bin"), "rb") as file:
        whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    return pickle.loads(payload.work, buffers=[whole[start : start + size] for start, size in payload.arrays])


class _Pickler(pickle.Pickler):
    """Leaves out arrays and tensors, writes an array of equal rows as one row, and images by their address."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is np.ndarray and value.ndim > 1 and len(value) > 1 and value.strides[0] == 0:
            row = np.array(value[0])
            return as_strided, (row, value.shape, (0, *row.strides))
        if type(value).__name__ == "Tensor" and value.device.type == "cpu" and not value.requires_grad:
            import torch

            return torch.from_numpy, (value.numpy(),)
        open_images = getattr(getattr(value, "address", None), "open", None)
        return NotImplemented if open_images is None or isinstance(value, type) else (open_images, ())


def library_versions() -> tuple[tuple[str, str], ...]:
    """Versions that driver and workers must have in common to compute the same results."""
    from congeal import __version__

    python = ".".join(platform.python_version_tuple()[:2])
    return (("congeal", __version__), ("Python", python), *((name, version(name)) for name in ("numpy", "torch")))


# ---- keys of results


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
        yield np.ascontiguousarray(one).reshape(-1).view(np.uint8).data
    elif isinstance(value, Mapping):
        for pair in value.items():
            yield from _hashed_bytes(pair)
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
