"""Files that hold one array of images: idx (MNIST, plain or gzipped) and MATLAB files of version 5 to 7.2 (affNIST).

A MATLAB file is a header of 128 bytes and then elements: kind and length, content, padding to 8 bytes. An element may
be compressed, and an array is an element of elements. SciPy reads more, but some damaged files end it with a
segmentation fault; here every length is checked before it is used.

An affNIST batch holds one structure `affNISTdata` with the fields `image`, (1600, N) uint8, a 40×40 image per column,
and `label_int`. The order of the 1,600 pixels is not documented and programs that read the files disagree, so it is
determined from the images: handwritten digits are taller than they are wide.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from congeal.errors import CongealError
from congeal.images.formats.decode import MOST_BYTES, read_regular
from congeal.images.sources.arrays import MOST_UNPACKED, ArraySource
from congeal.images.sources.base import UnreadableImage
from congeal.rows import evenly_spaced_rows

# Axes of an array in a file, which bounds what is read of a damaged header: the limit of NumPy 1.
MAX_AXES = 32
# Third byte of an idx file → big-endian numpy type.
_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}

_HEADER_BYTES = 128
_MATRIX, _COMPRESSED, _STRUCTURE = 14, 15, 2
# What numbers are stored as, and what they are: 255 of a double array may be stored in a byte.
_STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
CLASSES = dict(zip(range(6, 16), ("f8", "f4", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"), strict=True))
_COMPLEX = 0x0800
_SIDE = 40  # pixels of an affNIST image along either axis


def is_idx(path: Path) -> bool:
    """Whether the file starts like idx, looking through gzip."""
    try:
        with gzip.open(path) if _is_gzip(path) else path.open("rb") as file:
            start = file.read(4)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        return False
    except OSError as error:
        raise CongealError(f"{path} cannot be read: {error.strerror}") from error
    return len(start) == 4 and start[:2] == b"\0\0" and start[2] in _IDX_TYPES and start[3] > 0


def read_idx(path: Path) -> np.ndarray:
    """The array of any rank in an idx or idx.gz file."""
    try:
        if path.stat().st_size == 0:
            raise CongealError(f"{path} is an empty file (0 bytes): copy or download it again")
        data = np.frombuffer(_unpack(path), np.uint8) if _is_gzip(path) else np.memmap(path, np.uint8, "r")
    except (OSError, EOFError, zlib.error) as error:
        raise CongealError(f"{path} cannot be read: {error}") from error
    head = data[: 4 + 4 * MAX_AXES].tobytes()
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _IDX_TYPES:
        raise CongealError(f"{path} is not an idx file")
    rank, dtype = head[3], np.dtype(_IDX_TYPES[head[2]])
    if rank > MAX_AXES:
        raise CongealError(f"{path} claims {rank} dimensions: it is not a set of images")
    offset = 4 + 4 * rank
    shape = tuple(int.from_bytes(head[at : at + 4], "big") for at in range(4, offset, 4))
    if 0 in shape:
        raise CongealError(f"{path} claims an array of shape {shape}: there is nothing in it")
    expected = offset + math.prod(shape) * dtype.itemsize
    if len(data) < expected:
        raise CongealError(f"{path} is cut short: {expected} bytes announced, {len(data)} found")
    return data[offset:expected].view(dtype).reshape(shape)


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _unpack(path: Path) -> bytearray:
    data = bytearray()
    with gzip.open(path) as packed:
        while part := packed.read(1 << 24):  # one read of the largest size would reserve that much memory first
            data += part
            if len(data) > MOST_UNPACKED:
                raise CongealError(f"{path} holds more than {MOST_UNPACKED / 1e9:.1f} GB: unpack it with gunzip")
    return data


def open_idx(path: Path) -> ArraySource:
    """Images (N, H, W) or (N, H, W, C) in an idx file."""
    array = read_idx(path)
    if array.ndim not in (3, 4):
        raise CongealError(f"{path} holds an array of shape {array.shape}, not images (N, H, W): is it the label file?")
    return ArraySource(array, name=path.name)


def read_variable(path: Path, name: str) -> np.ndarray | dict[str, np.ndarray]:
    """One variable of a MATLAB file: an array, or the fields of a structure that are arrays of real numbers.

    KeyError if there is none, UnreadableImage if the file is damaged or of another version.
    """
    data = memoryview(read_regular(path))
    order = {b"IM": "<", b"MI": ">"}.get(bytes(data[126:128]))
    if order is None:
        raise UnreadableImage("its header is not one of a MATLAB file of version 5 to 7.2")
    if struct.unpack(f"{order}H", data[124:126])[0] != 0x0100:
        raise UnreadableImage("it is of version 7.3: save it again with '-v7'")
    for kind, content in _elements(data[_HEADER_BYTES:], order):
        if kind == _COMPRESSED:
            kind, content = next(_elements(_inflate(content), order), (0, content))
        found = _matrix(content, order, name) if kind == _MATRIX else None
        if found is not None:
            return found
    raise KeyError(name)


def _elements(data: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Kind and content of the elements that follow one another."""
    at = 0
    while at < len(data):
        if at + 8 > len(data):
            raise UnreadableImage("it ends too early")
        kind, length = struct.unpack(f"{order}II", data[at : at + 8])
        start, step = at + 8, 8 + (length if kind == _COMPRESSED else -(-length // 8) * 8)
        if kind >> 16:  # up to four bytes are in the second half of the tag itself
            kind, length, start, step = kind & 0xFFFF, kind >> 16, at + 4, 8
            if length > 4:
                raise UnreadableImage("an element is damaged")
        if start + length > len(data):
            raise UnreadableImage("it ends too early")
        yield kind, data[start : start + length]
        at += step


def _inflate(data: memoryview) -> memoryview:
    unpack = zlib.decompressobj()
    try:
        whole = unpack.decompress(data, MOST_BYTES)
    except zlib.error as error:
        raise UnreadableImage(f"what is compressed in it is damaged ({error})") from error
    if unpack.unconsumed_tail:
        raise UnreadableImage(f"it is too large unpacked ({MOST_BYTES / 1e9:.1f} GB at most)")
    return memoryview(whole)


def _matrix(data: memoryview, order: str, wanted: str | None) -> np.ndarray | dict[str, np.ndarray] | None:
    """A variable, or None if it has another name or holds no real numbers. wanted: None for a field of a structure."""
    parts = _elements(data, order)
    flags, shape = _numbers(next(parts, None), order), _numbers(next(parts, None), order)
    _, name = next(parts, (0, memoryview(b"")))
    damaged = not len(flags) or flags.dtype.kind != "u" or shape.dtype.kind != "i" or len(shape) > MAX_AXES
    if damaged or (shape < 0).any():
        raise UnreadableImage("an array in it is damaged")
    if wanted is not None and bytes(name).decode("latin-1") != wanted:
        return None
    kind, sides = int(flags[0]) & 0xFF, shape.tolist()
    if kind == _STRUCTURE and wanted is not None:
        return _fields(parts, order) if set(sides) <= {1} else {}
    if kind not in CLASSES or int(flags[0]) & _COMPLEX:
        return None
    values, count = _numbers(next(parts, None), order), math.prod(sides)
    if count != len(values):
        raise UnreadableImage(f"an array in it claims {count} numbers and has {len(values)}")
    with np.errstate(invalid="ignore"):  # what a damaged file stores may not fit what it says it is
        return values.astype(CLASSES[kind]).reshape(sides, order="F")


def _fields(parts: Iterator[tuple[int, memoryview]], order: str) -> dict[str, np.ndarray]:
    """The fields of one structure that are arrays of real numbers."""
    lengths = _numbers(next(parts, None), order)
    _, names = next(parts, (0, memoryview(b"")))
    if len(lengths) != 1 or int(lengths[0]) < 1:
        return {}
    step = int(lengths[0])
    own = [bytes(names[at : at + step]).split(b"\0")[0].decode("latin-1") for at in range(0, len(names), step)]
    found = {}
    for name, (kind, content) in zip(own, parts, strict=False):
        value = _matrix(content, order, None) if kind == _MATRIX and len(content) else None
        if isinstance(value, np.ndarray):
            found[name] = value
    return found


def _numbers(element: tuple[int, memoryview] | None, order: str) -> np.ndarray:
    if element is None or element[0] not in _STORED:
        raise UnreadableImage("an array in it is damaged")
    dtype = np.dtype(order + _STORED[element[0]])
    return np.frombuffer(element[1][: len(element[1]) // dtype.itemsize * dtype.itemsize], dtype)


def read_affnist(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (N,40,40), upright, and their labels (N,)."""
    try:
        found = read_variable(path, "affNISTdata")
    except KeyError as error:
        raise CongealError(f"{path} has no affNISTdata: of MATLAB files only affNIST's batches can be read") from error
    except UnreadableImage as error:
        raise CongealError(f"{path} is not a readable MATLAB file: {error}") from error
    if not isinstance(found, dict) or not {"image", "label_int"} <= set(found):
        raise CongealError(f"{path} lacks 'image' or 'label_int' in its affNISTdata: is it an affNIST batch?")
    flat, labels = found["image"], found["label_int"].ravel()
    if flat.ndim != 2 or len(flat) != _SIDE * _SIDE or flat.dtype != np.uint8 or flat.shape[1] != len(labels):
        raise CongealError(
            f"{path} holds images {flat.shape} of {flat.dtype} and {len(labels)} labels; an affNIST batch has "
            f"({_SIDE * _SIDE}, N) of uint8 and N labels"
        )
    images = flat.T.reshape(-1, _SIDE, _SIDE)
    return (images if _are_taller(images) else images.transpose(0, 2, 1)), labels.astype(np.int64)


def open_mat(path: Path) -> ArraySource:
    """All images of one affNIST batch, of every digit."""
    source = ArraySource(read_affnist(path)[0], name=path.name)
    source.kind = "object"
    return source


def _are_taller(images: NDArray[np.uint8]) -> bool:
    """Whether ink spreads further down than across, over a sample: as ratios, so that no image outweighs the others."""
    sample, place = images[evenly_spaced_rows(len(images), 500)].astype(np.float64), np.arange(_SIDE)
    ink = np.stack([sample.sum(2), sample.sum(1)])  # per row, and per column
    ink /= np.maximum(ink.sum(2, keepdims=True), 1e-9)
    down, across = (ink @ place**2) - (ink @ place) ** 2
    seen = (down > 0) & (across > 0)
    return bool(np.log(down[seen] / across[seen]).sum() >= 0)
