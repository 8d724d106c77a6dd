"""`affnist:2`, `affnist:2@5000`, `affnist:all@10000`: affNIST-*style* images.

They are made here because the original files are rarely at hand.

MNIST on 40×40, turned by up to ±20°, sheared by up to ±0.2, scaled by 0.8–1.2 along each axis, and put anywhere that
keeps the ink inside. Image i shows MNIST image i modulo the number of images of its digit; 100,000 unless said.
`affnist:all` shows the test set, all digits, as often as there are images.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from congeal.datasets import draws
from congeal.datasets.generated import GeneratedSource, warp_uint8
from congeal.datasets.mnist import Digits, load_all, load_digit
from congeal.errors import CongealError
from congeal.geometry import matrix

SIDE, SEED, DEFAULT_COUNT = 40, 40040, 100_000


class AffnistStyle(GeneratedSource):
    """The truth puts each digit upright on the middle of the 40×40 frame."""

    side = SIDE

    def __init__(self, digits: Digits, count: int, name: str) -> None:
        self.name, self.digits, self._count = name, digits, count
        self._boxes = _ink_boxes(digits.images)
        self._names = digits.ids()
        everything = self.source_from_digit(np.arange(count))
        middle = (SIDE - digits.images.shape[1]) / 2
        frame_from_digit = np.array([[1, 0, middle], [0, 1, middle], [0, 0, 1.0]])
        self.truth = frame_from_digit @ np.asarray(matrix.invert(everything))

    def __len__(self) -> int:
        return self._count

    def id(self, i: int) -> str:
        """Id of the digit it shows, and which turn through the digits it is."""
        i = range(self._count)[i]
        return f"{self._names[i % len(self._names)]}-{i // len(self._names):05d}"

    def source_from_digit(self, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """(B,3,3): pixels of the 28×28 digit → pixels of the 40×40 image."""
        u = draws.uniform(SEED, indices, 6)
        angle, shear = np.deg2rad(40 * u[:, 0] - 20), 0.4 * u[:, 1] - 0.2
        sx, sy = 0.8 + 0.4 * u[:, 2], 0.8 + 0.4 * u[:, 3]
        cos, sin = np.cos(angle), np.sin(angle)
        # rotation @ shear along x @ scale
        linear = np.stack([cos * sx, (cos * shear - sin) * sy, sin * sx, (sin * shear + cos) * sy], -1).reshape(
            -1, 2, 2
        )
        landed = self._boxes[indices % len(self._boxes)] @ linear.transpose(0, 2, 1)
        low, high = -0.5 - landed.min(1), SIDE - 0.5 - landed.max(1)
        room = high - low
        shift = np.where(room > 0, low + room * u[:, 4:], (low + high) / 2)
        result = matrix.identity(len(indices))
        result[:, :2, :2], result[:, :2, 2] = linear, shift
        return result

    def make(self, indices: np.ndarray) -> np.ndarray:
        """(B,) positions → (B,40,40) uint8."""
        digit_from_source = np.asarray(matrix.invert(self.source_from_digit(indices)))
        return warp_uint8(self.digits.images[indices % len(self._names)], digit_from_source, SIDE)


def _ink_boxes(images: NDArray[np.uint8]) -> NDArray[np.float64]:
    """(N,4,2) corners (x, y) of the box around the ink, outer edges of its pixels plus the half pixel bilinear adds."""
    some = images > 0
    spans = []
    for axis in (1, 2):  # any over rows leaves columns (x), any over columns leaves rows (y)
        line = np.asarray(some.any(axis))
        spans.append((line.argmax(1) - 1.0, line.shape[1] - line[:, ::-1].argmax(1) * 1.0))
    (left, right), (top, bottom) = spans
    corners = [np.stack([x, y], -1) for x, y in ((left, top), (right, top), (right, bottom), (left, bottom))]
    return np.stack(corners, 1)


def open_affnist(which: str) -> AffnistStyle:
    """`2`, `2@N`, `all` or `all@N`."""
    digit, _, amount = which.partition("@")
    count = DEFAULT_COUNT if not amount else int(amount) if amount.isdecimal() else 0
    if digit not in (*"0123456789", "all") or count < 1:
        raise CongealError(f"'affnist:{which}' is not a data set: write affnist:2, affnist:2@5000 or affnist:all@10000")
    if digit == "all":
        digits, labels = load_all("test")
        source = AffnistStyle(digits, count, f"affnist:{which}")
        source.labels = labels[np.arange(count) % len(labels)]
        return source
    return AffnistStyle(load_digit(int(digit)), count, f"affnist:{which}")
