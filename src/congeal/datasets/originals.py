"""affNIST and infiMNIST from their original files in `$CONGEAL_DATA`; docs/formats.md says where they belong.

The scheme of infiMNIST is that of `synthetic`, with grey levels cut rather than rounded and the shifts in the program's
own order.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from congeal.datasets import find_data, parse_count
from congeal.datasets.mnist import TRAIN_IMAGES, load
from congeal.datasets.synthetic import AFFNIST_COUNT, AFFNIST_SIDE, FIELDS, INFIMNIST_COUNT, SIDE, Infimnist
from congeal.errors import CongealError
from congeal.images.formats.array_files import read_affnist
from congeal.images.sources.arrays import ArraySource
from congeal.images.sources.files import natural_key

FIELD_FILE, TANGENT_FILE = "fields_float_1522x28x28.bin", "tangVec_float_60000x28x28.bin"
_PIXELS = SIDE * SIDE
# u(p), d(own), l(eft), r(ight), by k1 mod 9; two letters are two moves
_MOVES = ("u", "d", "l", "r", "ul", "ur", "dl", "dr", "")


def open_affnist_original(which: str) -> ArraySource:
    """`2` or `2@N`."""
    digit, given = parse_count("affnist-original", which, "affnist-original:2 or …:2@5000")
    count = given or AFFNIST_COUNT
    parts, ids = [np.zeros((0, AFFNIST_SIDE, AFFNIST_SIDE), np.uint8)], list[str]()
    for path in batches():
        images, labels = read_affnist(path)
        rows = np.flatnonzero(labels == int(digit))[: count - len(ids)]
        parts.append(images[rows])
        ids += [f"{path.stem}-{row:05d}" for row in rows]
        if len(ids) == count:
            break
    if given and len(ids) < given:
        raise CongealError(f"the affNIST batches at hand have {len(ids)} images of the digit {digit}, not {given:,}")
    source = ArraySource(np.concatenate(parts), name=f"affnist-original:{which}", ids=ids)
    source.kind = "object"
    return source


def batches() -> list[Path]:
    """The batch files, in the order of their numbers."""
    for name in ("affnist", "affnist/training_and_validation_batches", "affnist/training_batches"):
        folder = find_data(name)
        found = sorted(folder.glob("*.mat"), key=lambda path: natural_key(path.name)) if folder else []
        if found:
            return found
    raise CongealError(
        "there are no affNIST batches (1.mat, 2.mat, …) in the folder affnist: put them there and set CONGEAL_DATA to "
        "the folder above, or use affnist:2, which is made in their style"
    )


def open_infimnist_original(which: str) -> Infimnist:
    """`7` or `7@N`."""
    digit, given = parse_count("infimnist-original", which, "infimnist-original:7 or …:7@1000000")
    rows = np.flatnonzero(load("train")[1] == int(digit))
    fields = np.array(read_floats(FIELD_FILE, (FIELDS, _PIXELS)))
    both = read_floats(TANGENT_FILE, (TRAIN_IMAGES, 2, _PIXELS))[rows]
    tangents = np.ascontiguousarray(both[:, 0]), np.ascontiguousarray(both[:, 1])
    name, count = f"infimnist-original:{which}", given or INFIMNIST_COUNT
    return Infimnist(name, rows, count, fields, tangents, np.floor, _shifted)


def read_floats(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The file as a memory map of that shape."""
    path, expected = find_data(name, f"infimnist/{name}", f"infimnist/data/{name}"), 4 * int(np.prod(shape))
    if path is None:
        raise CongealError(
            f"infiMNIST's {name} is not in the folder infimnist: put it there and set CONGEAL_DATA to the folder "
            "above, or use infimnist:7, which is made in its style"
        )
    if path.stat().st_size != expected:
        raise CongealError(f"{path} has {path.stat().st_size:,} bytes, not {expected:,}: fetch it again")
    return np.memmap(path, np.dtype("<f4"), "r", shape=shape)


def _shifted(images: NDArray[np.uint8], direction: NDArray[np.int64]) -> NDArray[np.uint8]:
    moved = images.reshape(-1, _PIXELS).copy()
    for number, moves in enumerate(_MOVES):
        rows = np.flatnonzero(direction == number)
        for move in moves:
            moved[rows] = moved_by_one(moved[rows], move)
    return moved.reshape(images.shape)


def moved_by_one(flat: NDArray[np.uint8], move: str) -> NDArray[np.uint8]:
    """(B,784) by one pixel, black moving in. Sideways the program moves the picture as one long line and then clears
    one column, the first (left) or the second (right); done likewise, so that its images come out the same."""
    result = np.zeros_like(flat)
    step = SIDE if move in "ud" else 1
    if move in "ul":
        result[:, :-step] = flat[:, step:]
    else:
        result[:, step:] = flat[:, :-step]
    if move in "lr":
        result[:, (0 if move == "l" else 1) :: SIDE] = 0
    return result
