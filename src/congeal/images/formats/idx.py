"""The idx format of MNIST and its relatives, plain (memory-mapped) or gzipped (unpacked in memory)."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from congeal.errors import CongealError
from congeal.images.sources.arrays import MOST_UNPACKED, ArraySource

# Third byte of the file → big-endian numpy type.
_AT_ONCE = 16 << 20  # bytes that are unpacked in one go
_MOST_RANK = 32  # what NumPy has
_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def is_idx(path: Path) -> bool:
    """Whether the file starts like idx, looking through gzip."""
    try:
        with path.open("rb") as file:
            start = file.read(4)
        if start[:2] == b"\x1f\x8b":
            with gzip.open(path) as packed:
                start = packed.read(4)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        return False
    except OSError as error:
        raise CongealError(f"{path} cannot be read: {error.strerror}") from error
    return len(start) == 4 and start[:2] == b"\0\0" and start[2] in _TYPES and start[3] > 0


def read_idx(path: Path) -> np.ndarray:
    """The array of any rank in an idx or idx.gz file."""
    try:
        if path.stat().st_size == 0:
            raise CongealError(f"{path} is an empty file (0 bytes): copy or download it again")
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        data = _unpacked(path) if packed else np.memmap(path, np.uint8, "r")
    except (OSError, EOFError, zlib.error) as error:
        raise CongealError(f"{path} cannot be read: {error}") from error
    head = bytes(data[: 4 + 4 * 255])
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _TYPES:
        raise CongealError(f"{path} is not an idx file")
    rank = head[3]
    if rank > _MOST_RANK:
        raise CongealError(f"{path} claims {rank} dimensions: it is not a set of images")
    shape = tuple(int.from_bytes(head[4 + 4 * k : 8 + 4 * k], "big") for k in range(rank))
    if 0 in shape:
        raise CongealError(f"{path} claims an array of shape {shape}: there is nothing in it")
    dtype, offset = np.dtype(_TYPES[head[2]]), 4 + 4 * rank
    expected = offset + math.prod(shape) * dtype.itemsize
    if len(data) < expected:
        raise CongealError(f"{path} is cut short: {expected} bytes announced, {len(data)} found")
    values = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
    return values[offset:expected].view(dtype).reshape(shape)


def _unpacked(path: Path) -> bytes:
    parts, total = [], 0
    with gzip.open(path) as packed:
        while part := packed.read(_AT_ONCE):  # one read of the largest size would reserve that much memory first
            parts.append(part)
            total += len(part)
            if total > MOST_UNPACKED:
                raise CongealError(f"{path} holds more than {MOST_UNPACKED / 1e9:.1f} GB: unpack it with gunzip")
    return b"".join(parts)


def open_idx(path: Path) -> ArraySource:
    """Images (N, H, W) or (N, H, W, C) in an idx file."""
    array = read_idx(path)
    if array.ndim not in (3, 4):
        raise CongealError(f"{path} holds an array of shape {array.shape}, not images (N, H, W): is it the label file?")
    return ArraySource(array, name=path.name)
