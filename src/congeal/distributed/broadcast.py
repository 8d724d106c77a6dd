"""What all tasks of a stage need, by file: written once by the driver, read by every worker when it needs it.

Large arrays lie in a file of their own that workers map, so that each reads only the rows of its shards. Addresses,
which may hold passwords, do not go to the disk: they travel with the tasks.
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

from congeal.distributed.exchange import Exchange
from congeal.mapped import runs

_IN_BAND = 4096  # bytes of an array that stays in the small file
_ALIGN = 64
_BYTES_AT_ONCE = 4 << 20
COMPARED = ("numpy", "torch")


class Address(Protocol):
    """How a worker comes to something by itself."""

    def open(self) -> Any:
        """Open it, on the worker."""


@dataclass(frozen=True)
class Order:
    """Where a stage's work is, small enough to be sent with every task.

    Attributes
    ----------
    exchange, folder : str
        Where files are, and the folder of the stage there.
    digest : str
        Of the file that is loaded: nobody else's file is.
    buffers : tuple of int
        Sizes of the arrays in the other file.
    apart : tuple of Address
        What a worker opens itself.
    versions : tuple of (str, str)
        Of the driver.
    """

    exchange: str
    folder: str
    digest: str
    buffers: tuple[int, ...]
    apart: tuple[Any, ...]
    versions: tuple[tuple[str, str], ...]


def broadcast(exchange: Exchange, folder: str, work: Any) -> Order:
    """Write the work of a stage; anything with an attribute `address` is left to the workers to open."""
    buffers: list[pickle.PickleBuffer] = []
    apart: list[Any] = []
    text = io.BytesIO()
    _Pickler(text, buffers, apart).dump(work)
    sizes = tuple(buffer.raw().nbytes for buffer in buffers)
    data = text.getvalue()
    if buffers:
        exchange.write_parts(f"{folder}/work.bin", _aligned(buffers))
    exchange.write(f"{folder}/work.pickle", data)
    digest = hashlib.sha256(data).hexdigest()
    return Order(str(exchange), folder, digest, sizes, tuple(apart), versions())


def _aligned(buffers: Sequence[pickle.PickleBuffer]) -> Iterator[bytes | memoryview]:
    """One after the other, each at a multiple of 64 bytes; never all at once in memory."""
    at = 0
    for buffer in buffers:
        gap, raw = bytes(-at % _ALIGN), buffer.raw()
        yield gap
        yield from _slices(raw)
        at += len(gap) + raw.nbytes


def _slices(raw: memoryview) -> Iterator[memoryview]:
    """A few bytes at a time: of arrays that lie in files, all together would be in memory."""
    for part in runs(raw.nbytes, _BYTES_AT_ONCE):
        yield raw[part]


def receive(exchange: Exchange, order: Order) -> Any:
    """The work of a stage, on a worker; `FileNotFoundError` where the driver's files cannot be seen."""
    data = exchange.read(f"{order.folder}/work.pickle")
    if hashlib.sha256(data).hexdigest() != order.digest:
        raise FileNotFoundError("another driver has written there since")
    views: list[memoryview] = []
    if order.buffers:
        with open(exchange.local(f"{order.folder}/work.bin"), "rb") as file:
            whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        start = 0
        for size in order.buffers:
            start += -start % _ALIGN
            views.append(whole[start : start + size])
            start += size
    return _Unpickler(io.BytesIO(data), views, order.apart).load()


def versions() -> tuple[tuple[str, str], ...]:
    """What driver and workers must have in common for the same answer."""
    from congeal import __version__

    known = [("congeal", __version__), ("Python", ".".join(platform.python_version_tuple()[:2]))]
    for name in COMPARED:
        try:
            known.append((name, version(name)))
        except PackageNotFoundError:
            known.append((name, "none"))
    return tuple(known)


def key_of(*parts: Any) -> str:
    """A name for what a result depends on: other inputs, another name. Arrays, dataclasses, mappings, plain values."""
    digest = hashlib.sha256()
    for piece in _pieces(parts):
        digest.update(piece)
    return digest.hexdigest()[:24]


def _pieces(value: Any) -> Iterator[bytes | memoryview]:
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        yield f"{value.dtype.str} {value.shape} {value.strides[:1] == (0,)}\n".encode()
        one = value[:1] if value.ndim and value.strides[0] == 0 else value  # rows that are all the same
        yield from _slices(np.ascontiguousarray(one).reshape(-1).view(np.uint8).data)
    elif isinstance(value, Mapping):
        for key in value:
            yield from _pieces(key)
            yield from _pieces(value[key])
    elif is_dataclass(value) and not isinstance(value, type):
        yield type(value).__name__.encode()
        for field in fields(value):
            yield from _pieces(getattr(value, field.name))
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        yield b"["
        for item in value:
            yield from _pieces(item)
        yield b"]"
    else:
        yield f"{value!r}\n".encode("utf-8", "surrogatepass")


def same_rows(row: np.ndarray, times: int) -> np.ndarray:
    """One row so many times, in the memory of one."""
    return np.lib.stride_tricks.as_strided(row, (times, *row.shape), (0, *row.strides))


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, buffers: list[pickle.PickleBuffer], apart: list[Any]) -> None:
        super().__init__(file, protocol=5, buffer_callback=self._take)
        self._buffers, self._apart = buffers, apart

    def _take(self, buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes < _IN_BAND:
            return True
        self._buffers.append(buffer)
        return False

    def reducer_override(self, value: Any) -> Any:
        """Rows that are all one and the same go out once."""
        if type(value) is np.ndarray and len(value.shape) > 1 and len(value) > 1 and value.strides[0] == 0:
            return same_rows, (np.array(value[0]), len(value))
        return NotImplemented

    def persistent_id(self, value: Any) -> Any:
        address = getattr(value, "address", None) if not isinstance(value, type) else None
        if address is None or not hasattr(address, "open"):
            return None
        if address not in self._apart:
            self._apart.append(address)
        return self._apart.index(address)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, views: list[memoryview], apart: tuple[Any, ...]) -> None:
        super().__init__(file, buffers=views)
        self._apart = apart

    def persistent_load(self, number: Any) -> Any:
        return self._apart[number].open()


def host() -> str:
    """This machine's name and this process, for messages."""
    return f"{platform.node()}, process {os.getpid()}"
