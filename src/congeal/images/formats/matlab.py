"""MATLAB files of version 5 to 7.2: arrays of numbers, alone or in structures, and the batches of affNIST.

A file is a header of 128 bytes and then elements: kind and length, content, padding to 8 bytes. An element may be
compressed, and an array is an element of elements. SciPy reads more, but some damaged files end it with a segmentation
fault; here every length is checked before it is used.

An affNIST batch holds one structure `affNISTdata` with the fields `image`, (1600, N) uint8, a 40×40 image per column,
and `label_int`. The order of the 1,600 pixels is not documented and programs that read the files disagree, so it is
determined from the images: handwritten digits are taller than they are wide.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from congeal.errors import CongealError
from congeal.images.formats.decode import MOST_BYTES, read_regular
from congeal.images.sources.arrays import ArraySource
from congeal.images.sources.base import UnreadableImage

HEADER = 128
MATRIX, COMPRESSED, STRUCTURE = 14, 15, 2
# What numbers are stored as, and what they are: 255 of a double array may be stored in a byte.
STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
CLASSES = dict(zip(range(6, 16), ("f8", "f4", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"), strict=True))
COMPLEX = 0x0800
MOST_AXES = 8


def read_variable(path: Path, name: str) -> np.ndarray | dict[str, np.ndarray]:
    """One variable of a file: an array, or the fields of a structure that are arrays of real numbers.

    KeyError if there is none, UnreadableImage if the file is damaged or of another version.
    """
    data = memoryview(read_regular(path))
    order = {b"IM": "<", b"MI": ">"}.get(bytes(data[126:128]))
    if order is None or len(data) < HEADER:
        raise UnreadableImage("its header is not one of a MATLAB file of version 5 to 7.2")
    if struct.unpack(f"{order}H", data[124:126])[0] != 0x0100:
        raise UnreadableImage("it is of version 7.3: save it again with '-v7'")
    for kind, content in _elements(data[HEADER:], order):
        if kind == COMPRESSED:
            kind, content = next(_elements(_inflated(content), order), (0, content))
        if kind != MATRIX:
            continue
        found = _matrix(content, order, name)
        if found is not None:
            return found
    raise KeyError(name)


def _elements(data: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Kind and content of the elements that follow one another."""
    at = 0
    while at < len(data):
        kind, length = struct.unpack(f"{order}II", _cut(data, at, 8))
        if kind >> 16:  # up to four bytes are in the second half of the tag itself
            if kind >> 16 > 4:
                raise UnreadableImage("an element is damaged")
            yield kind & 0xFFFF, data[at + 4 : at + 4 + (kind >> 16)]
            at += 8
            continue
        yield kind, _cut(data, at + 8, length)
        at += 8 + (length if kind == COMPRESSED else -(-length // 8) * 8)


def _cut(data: memoryview, at: int, length: int) -> memoryview:
    if at + length > len(data):
        raise UnreadableImage("it ends too early")
    return data[at : at + length]


def _inflated(data: memoryview) -> memoryview:
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
    if (
        len(flags) < 1
        or flags.dtype.kind != "u"
        or shape.dtype.kind != "i"
        or (shape < 0).any()
        or len(shape) > MOST_AXES
    ):
        raise UnreadableImage("an array in it is damaged")
    if wanted is not None and bytes(name).decode("latin-1") != wanted:
        return None
    kind = int(flags[0]) & 0xFF
    if kind == STRUCTURE and wanted is not None:
        return _fields(parts, order, shape.tolist())
    if kind not in CLASSES or int(flags[0]) & COMPLEX:
        return None
    values = _numbers(next(parts, None), order)
    sides = shape.tolist()
    count = math.prod(sides)
    if count != len(values):
        raise UnreadableImage(f"an array in it claims {count} numbers and has {len(values)}")
    with np.errstate(invalid="ignore"):  # what a damaged file stores may not fit what it says it is
        return values.astype(CLASSES[kind]).reshape(sides, order="F")


def _fields(parts: Iterator[tuple[int, memoryview]], order: str, shape: list[int]) -> dict[str, np.ndarray]:
    """The fields of one structure; of an array of structures none."""
    room = _numbers(next(parts, None), order)
    _, names = next(parts, (0, memoryview(b"")))
    if len(room) != 1 or int(room[0]) < 1 or any(side != 1 for side in shape):
        return {}
    step = int(room[0])
    own = [bytes(names[at : at + step]).split(b"\0")[0].decode("latin-1") for at in range(0, len(names), step)]
    found = {}
    for name, (kind, content) in zip(own, parts, strict=False):
        value = _matrix(content, order, None) if kind == MATRIX and len(content) else None
        if isinstance(value, np.ndarray):
            found[name] = value
    return found


def _numbers(element: tuple[int, memoryview] | None, order: str) -> np.ndarray:
    if element is None or element[0] not in STORED:
        raise UnreadableImage("an array in it is damaged")
    dtype = np.dtype(order + STORED[element[0]])
    return np.frombuffer(element[1][: len(element[1]) // dtype.itemsize * dtype.itemsize], dtype)


SIDE = 40
_ORDER_SAMPLE = 500  # images the pixel order is decided on


def read_affnist(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (N,40,40), upright, and their labels (N,)."""
    record = _record(path)
    try:
        flat, labels = np.asarray(record["image"]), np.asarray(record["label_int"]).ravel()
    except KeyError as error:
        raise CongealError(
            f"{path} lacks 'image' or 'label_int' in its affNISTdata: is it an affNIST batch?"
        ) from error
    if flat.ndim != 2 or len(flat) != SIDE * SIDE or flat.dtype != np.uint8 or flat.shape[1] != len(labels):
        raise CongealError(
            f"{path} holds images {flat.shape} of {flat.dtype} and {len(labels)} labels; an affNIST batch has "
            f"({SIDE * SIDE}, N) of uint8 and N labels"
        )
    images = flat.T.reshape(-1, SIDE, SIDE)
    return (images if _taller(images) else images.transpose(0, 2, 1)), labels.astype(np.int64)


def open_mat(path: Path) -> ArraySource:
    """All images of one affNIST batch, of every digit."""
    source = ArraySource(read_affnist(path)[0], name=path.name)
    source.kind = "object"
    return source


def _record(path: Path) -> dict[str, np.ndarray]:
    """The fields of affNISTdata that are arrays of numbers."""
    try:
        found = read_variable(path, "affNISTdata")
    except KeyError as error:
        raise CongealError(f"{path} has no affNISTdata: of MATLAB files only affNIST's batches can be read") from error
    except UnreadableImage as error:
        raise CongealError(f"{path} is not a readable MATLAB file: {error}") from error
    return found if isinstance(found, dict) else {}


def _taller(images: NDArray[np.uint8]) -> bool:
    """Whether ink spreads further down than across, over a sample: as ratios, so that no image outweighs the others."""
    chosen = np.unique(np.linspace(0, max(len(images) - 1, 0), _ORDER_SAMPLE).astype(int))[: len(images)]
    sample = images[chosen].astype(np.float64)
    spread = []
    for axis in (2, 1):  # ink per row, then per column
        ink = sample.sum(axis)
        total = np.maximum(ink.sum(1, keepdims=True), 1e-9)
        place = np.arange(SIDE)
        middle = (ink * place).sum(1, keepdims=True) / total
        spread.append((ink * (place - middle) ** 2).sum(1) / total[:, 0])
    down, across = spread
    seen = (down > 0) & (across > 0)
    return bool(np.log(down[seen] / across[seen]).sum() >= 0)
