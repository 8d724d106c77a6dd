"""`infimnist-original:7@1000000`: infiMNIST from its original files, which you have to have.

`fields_float_1522x28x28.bin` and `tangVec_float_60000x28x28.bin` are looked for in `$CONGEAL_DATA` and its folder
`infimnist`, there also in `data`. Both are bare little-endian float32: 1522 fields of 28×28, and two tangents of 28×28
for each of the 60,000 training images, one after the other. The scheme is that of infimnist.py, with grey levels cut
rather than rounded and the shifts in the program's own order.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from congeal.datasets.infimnist import DEFAULT_COUNT, FIELDS, SIDE, InfimnistStyle
from congeal.datasets.mnist import TRAIN_IMAGES, load
from congeal.errors import CongealError

FIELD_FILE, TANGENT_FILE = "fields_float_1522x28x28.bin", "tangVec_float_60000x28x28.bin"
_PIXELS = SIDE * SIDE
# u(p), d(own), l(eft), r(ight), by k1 mod 9; two letters are two moves
_MOVES = ("u", "d", "l", "r", "ul", "ur", "dl", "dr", "")


class InfimnistOriginal(InfimnistStyle):
    """`count` images of one digit as the original program makes them."""

    def _tangents(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        both = read_floats(TANGENT_FILE, (TRAIN_IMAGES, 2, _PIXELS))[self._rows]
        return np.ascontiguousarray(both[:, 0]), np.ascontiguousarray(both[:, 1])

    def _fields(self) -> NDArray[np.float32]:
        return _fields_of(find(FIELD_FILE))

    def _whole(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.floor(values, out=values)

    def _shift(self, images: NDArray[np.uint8], direction: NDArray[np.int64]) -> NDArray[np.uint8]:
        moved = images.reshape(-1, _PIXELS).copy()
        for number, moves in enumerate(_MOVES):
            rows = np.flatnonzero(direction == number)
            for move in moves:
                moved[rows] = _moved(moved[rows], move)
        return moved.reshape(images.shape)


def _moved(flat: NDArray[np.uint8], move: str) -> NDArray[np.uint8]:
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


def find(name: str) -> Path:
    """Where the file is."""
    root = Path(os.environ.get("CONGEAL_DATA") or ".")
    for folder in (root, root / "infimnist", root / "infimnist" / "data"):
        if (folder / name).is_file():
            return folder / name
    raise CongealError(
        f"infiMNIST's {name} is not in {root / 'infimnist'}: put it there and set CONGEAL_DATA to the folder above, or "
        "use infimnist:7, which is made in its style"
    )


def read_floats(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The file as a memory map of that shape."""
    path, expected = find(name), 4 * int(np.prod(shape))
    if path.stat().st_size != expected:
        raise CongealError(f"{path} has {path.stat().st_size:,} bytes, not {expected:,}: fetch it again")
    return np.memmap(path, np.dtype("<f4"), "r", shape=shape)


@lru_cache(maxsize=1)
def _fields_of(path: Path) -> NDArray[np.float32]:
    fields = np.array(read_floats(path.name, (FIELDS, _PIXELS)))
    fields.flags.writeable = False  # all who ask get this one
    return fields


def open_infimnist_original(which: str) -> InfimnistOriginal:
    """`7` or `7@N`."""
    digit, _, amount = which.partition("@")
    count = DEFAULT_COUNT if not amount else int(amount) if amount.isdecimal() else 0
    if digit not in tuple("0123456789") or count < 1:
        raise CongealError(f"'infimnist-original:{which}' is not a data set: write infimnist-original:7 or …:7@1000000")
    images, labels = load("train")
    find(FIELD_FILE)
    return InfimnistOriginal(images, np.flatnonzero(labels == int(digit)), count, f"infimnist-original:{which}")
