"""The payload of a stage: the data that all its tasks need, written to a file once and read by every worker.

Large arrays are in a file of their own that workers map into memory, so that each reads only the rows of its shards.
Addresses of images, which may hold passwords, are not written to the disk: they are sent with each task.
"""

from __future__ import annotations

import hashlib
import io
import mmap
import os
import pickle
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

import numpy as np

from congeal.execution.shared_storage import SharedStorage
from congeal.rows import row_slices

# Bytes of an array up to which it is pickled with the rest: below a page there is nothing to map.
MAX_PICKLED_ARRAY_BYTES = 4096
_ALIGNMENT_BYTES = 64
_CHUNK_BYTES = 4 << 20
COMPARED_PACKAGES = ("numpy", "torch")


class Address(Protocol):
    """An address from which a worker opens something itself."""

    def open(self) -> Any:
        """Open it on the worker."""


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
    addresses : tuple of Address
        What a worker opens itself.
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
        storage.write_parts(f"{folder}/work.bin", _aligned(buffers))
    storage.write(f"{folder}/work.pickle", data)
    digest = hashlib.sha256(data).hexdigest()
    return TaskPayload(str(storage), folder, digest, sizes, tuple(addresses), versions())


def _aligned(buffers: Sequence[pickle.PickleBuffer]) -> Iterator[bytes | memoryview]:
    """The bytes of all buffers, each at an aligned offset, in chunks: mapped arrays need not fit into memory."""
    at = 0
    for buffer in buffers:
        gap, raw = bytes(-at % _ALIGNMENT_BYTES), buffer.raw()
        yield gap
        yield from _chunks(raw)
        at += len(gap) + raw.nbytes


def _chunks(raw: memoryview) -> Iterator[memoryview]:
    for part in row_slices(raw.nbytes, _CHUNK_BYTES):
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
            start += -start % _ALIGNMENT_BYTES
            views.append(whole[start : start + size])
            start += size
    return _Unpickler(io.BytesIO(data), views, payload.addresses).load()


def versions() -> tuple[tuple[str, str], ...]:
    """Versions that driver and workers must have in common to compute the same results."""
    from congeal import __version__

    known = [("congeal", __version__), ("Python", ".".join(platform.python_version_tuple()[:2]))]
    for name in COMPARED_PACKAGES:
        try:
            known.append((name, version(name)))
        except PackageNotFoundError:
            known.append((name, "none"))
    return tuple(known)


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
