"""`infimnist:7@1000000`: infiMNIST-*style* images, as many as wanted, made when they are read.

The public scheme: number i ≥ 70,000 deforms training image a = (i − 10000) mod 60000,

    x − F[k1]·T0[a] + F[k2]·T1[a],    k1 = ((i·131071) mod 2³²) mod 1521,    k2 = (k1 + 1 + 2i) mod 1522,

clamped to 0–255 and shifted by one pixel in one of eight directions or not at all (k1 mod 9). T0 and T1 are the image's
derivatives down and across in grey levels per pixel, F are 1522 smooth random fields. The original files of both are
not part of it: here F is smoothed noise of 1 px RMS from a fixed seed, and T are derivatives of a Gaussian. Images of
one digit are numbered in order of i. There is no thickening and, the deformation being local, no `truth`.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from congeal.datasets.generated import GeneratedSource
from congeal.datasets.mnist import TRAIN_IMAGES, load
from congeal.errors import CongealError
from congeal.rows import row_slices
from congeal.transforms.ids import Ids

SIDE, SEED, FIELDS, DEFAULT_COUNT = 28, 70000, 1522, 1_000_000
_CHUNK = 64  # images at a time: what is worked on stays in the second-level cache
_SHIFTS = [(0, 0), (-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1)]  # down, right


class InfimnistStyle(GeneratedSource):
    """`count` deformed images of one digit."""

    def __init__(self, images: NDArray[np.uint8], rows: NDArray[np.int64], count: int, name: str) -> None:
        self.name, self._rows, self._count = name, rows, count
        self._images = images[rows].astype(np.float32).reshape(len(rows), -1)
        self._down, self._across = self._tangents()

    def _tangents(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return tangents(self._images)

    def __len__(self) -> int:
        return self._count

    def number(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """The scheme's i of image `index` of this digit."""
        turn, place = np.divmod(index, len(self._rows))
        return 10000 + self._rows[place] + TRAIN_IMAGES * (turn + 1)

    def id(self, i: int) -> str:
        """ "infi-" and the number i of the scheme."""
        return f"infi-{int(self.number(np.array(range(self._count)[i]))):08d}"

    def ids(self) -> Ids:
        """All names at once: one by one, those of 100,000 images take a second."""
        if self._all_ids is None:
            parts = (self.number(np.arange(part.start, part.stop)).tolist() for part in row_slices(self._count))
            self._all_ids = Ids(f"infi-{number:08d}" for part in parts for number in part)
        return self._all_ids

    def make(self, indices: np.ndarray) -> np.ndarray:
        """(B,) positions → (B,28,28) uint8."""
        i = self.number(indices)
        k1 = (i * 131071) % 2**32 % (FIELDS - 1)
        k2 = (k1 + 1 + 2 * i) % FIELDS
        a = indices % len(self._rows)
        f = self._fields()
        out = np.zeros((len(indices), SIDE, SIDE), dtype=np.uint8)
        for start in range(0, len(indices), _CHUNK):
            part = slice(start, start + _CHUNK)
            value = self._images[a[part]]
            value -= f[k1[part]] * self._down[a[part]]
            value += f[k2[part]] * self._across[a[part]]
            np.clip(value, 0, 255, out=value)
            out[part] = self._whole(value).reshape(-1, SIDE, SIDE)
        return self._shift(out, k1 % 9)

    def _fields(self) -> NDArray[np.float32]:
        return fields()

    def _whole(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Whole grey levels, in place."""
        return np.rint(values, out=values)

    def _shift(self, images: NDArray[np.uint8], direction: NDArray[np.int64]) -> NDArray[np.uint8]:
        return _shift(images, direction)


def _shift(images: NDArray[np.uint8], direction: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Each image one pixel in its direction, black moving in."""
    moved = np.zeros_like(images)
    order = np.argsort(direction, kind="stable")
    ends = np.searchsorted(direction[order], np.arange(len(_SHIFTS) + 1))
    for (down, right), start, stop in zip(_SHIFTS, ends[:-1], ends[1:], strict=True):
        rows = order[start:stop]
        (to_y, from_y), (to_x, from_x) = _overlap(down), _overlap(right)
        shifted = np.zeros((len(rows), SIDE, SIDE), dtype=np.uint8)
        shifted[:, to_y, to_x] = images[rows][:, from_y, from_x]
        moved[rows] = shifted
    return moved


def _overlap(step: int) -> tuple[slice, slice]:
    return slice(max(step, 0), SIDE + min(step, 0)), slice(max(-step, 0), SIDE + min(-step, 0))


@lru_cache(maxsize=1)
def fields() -> NDArray[np.float32]:
    """(1522, 784) smooth random scalar fields in pixels, RMS 1 each."""
    noise = np.random.Generator(np.random.Philox(SEED)).standard_normal((FIELDS, SIDE + 24, SIDE + 24))
    smooth = _gaussian(SIDE + 24, 4.0)[12:-12]
    result = (smooth @ noise @ smooth.T).reshape(FIELDS, -1)
    result = (result / np.sqrt((result**2).mean(1, keepdims=True))).astype(np.float32)
    result.flags.writeable = False  # all who ask get this one
    return result


def tangents(images: NDArray[np.float32], width: float = 1.0) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Derivatives of (N,784) images down and across, grey levels per pixel, by a Gaussian of `width` pixels."""
    smooth = _gaussian(SIDE, width).astype(np.float32)
    distance = np.subtract.outer(np.arange(SIDE), np.arange(SIDE))
    slope = (-distance / width**2 * smooth).astype(np.float32)
    pictures = images.reshape(-1, SIDE, SIDE)
    down = np.asarray(slope @ pictures @ smooth.T, dtype=np.float32)
    across = np.asarray(smooth @ pictures @ slope.T, dtype=np.float32)
    return down.reshape(len(images), -1), across.reshape(len(images), -1)


def _gaussian(n: int, width: float) -> NDArray[np.float64]:
    """(n,n) matrix that smooths along one axis, black outside."""
    distance = np.subtract.outer(np.arange(n), np.arange(n))
    return np.exp(-0.5 * (distance / width) ** 2) / (width * np.sqrt(2 * np.pi))


def open_infimnist(which: str) -> InfimnistStyle:
    """`7` or `7@N`."""
    digit, _, amount = which.partition("@")
    count = DEFAULT_COUNT if not amount else int(amount) if amount.isdecimal() else 0
    if digit not in tuple("0123456789") or count < 1:
        raise CongealError(f"'infimnist:{which}' is not a data set: write infimnist:7 or infimnist:7@1000000")
    images, labels = load("train")
    return InfimnistStyle(images, np.flatnonzero(labels == int(digit)), count, f"infimnist:{which}")
