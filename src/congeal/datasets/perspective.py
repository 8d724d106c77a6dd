"""`perspective:3@0.2`, `perspective-baked:3@0.2`: MNIST under random perspective warps of known size.

The corners (±1, ±1) of the frame each move by N(0, (2σ)²) per axis, and all four together by one more N(0, (2σ)²) per
axis; σ is a fraction of the side, which is two units long. The homography through them is `source_from_frame`: the
frame shows the digit as seen through the moved corners. One fixed draw per image, seeded by its number in MNIST, so it
is the same whatever else is in the set, and a larger σ stretches the same draw.

Draws that fold over inside the frame (projective denominator at a corner at most a tenth of that at the centre) or that
mirror it are drawn again.

Two variants, to be reported apart: *initial* gives the untouched image and the warp as `initial`, so nothing is lost;
*baked* gives the warped pixels only, and what left the frame is gone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from congeal.datasets import draws
from congeal.datasets.generated import GeneratedSource, warp_uint8
from congeal.datasets.mnist import Digits, load_all, load_digit
from congeal.errors import CongealError
from congeal.geometry import matrix

SIDE = 28
SEED = 20190


def perturbations(numbers: NDArray[np.int64], sigma: float, seed: int = SEED) -> NDArray[np.float64]:
    """(N,) image numbers → (N,3,3) `source_from_frame` in pixels of the 28×28 image."""
    square = np.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
    result = np.empty((len(numbers), 3, 3))
    pending = np.arange(len(numbers))
    for attempt in range(1000):
        noise = 2 * sigma * draws.normal(seed + attempt, numbers[pending], 10).reshape(-1, 5, 2)
        moved = square + noise[:, :4] + noise[:, 4:]
        drawn = matrix.homography_from_points(square, moved)
        depth = square @ drawn[:, 2, :2, None] + 1
        good = (depth[:, :, 0].min(1) > 0.1) & (np.linalg.det(drawn) > 0)
        result[pending[good]] = drawn[good]
        pending = pending[~good]
        if not len(pending):
            return np.asarray(matrix.from_normalised(result, (SIDE, SIDE)))
    raise CongealError(f"σ = {sigma} folds nearly every frame over: use a smaller one")


class Perspective(GeneratedSource):
    """Untouched MNIST images with a random perspective warp as the start (`initial`); the truth is the identity."""

    def __init__(self, digits: Digits, sigma: float, name: str) -> None:
        self.name, self.digits, self.sigma = name, digits, sigma
        self.source_from_frame = perturbations(digits.numbers, sigma)
        self._ids = digits.ids()
        self._set_answers()

    def _set_answers(self) -> None:
        self.initial = np.asarray(matrix.invert(self.source_from_frame))
        self.initial_size = (SIDE, SIDE)
        self.truth = matrix.identity(len(self))

    def __len__(self) -> int:
        return len(self._ids)

    def id(self, i: int) -> str:
        """Id of the untouched MNIST image."""
        return self._ids[i]

    def make(self, indices: np.ndarray) -> np.ndarray:
        """(B,) positions → (B,28,28) uint8, untouched."""
        return self.digits.images[indices]

    def lost_half(self) -> NDArray[np.bool_]:
        """(N,) True for images that keep less than half of their ink in the perturbed frame."""
        lost = np.empty(len(self), dtype=bool)
        for start in range(0, len(self), 4096):
            rows = slice(start, start + 4096)
            images = self.digits.images[rows]
            warped = warp_uint8(images, self.source_from_frame[rows], SIDE)
            lost[rows] = 2 * warped.sum((1, 2), dtype=np.int64) < images.sum((1, 2), dtype=np.int64)
        return lost


class PerspectiveBaked(Perspective):
    """The warped pixels alone; the truth leads back to the untouched image."""

    def _set_answers(self) -> None:
        self.truth = self.source_from_frame

    def make(self, indices: np.ndarray) -> np.ndarray:
        """(B,) positions → (B,28,28) uint8, warped."""
        return warp_uint8(self.digits.images[indices], self.source_from_frame[indices], SIDE)


def open_perspective(which: str, baked: bool = False) -> Perspective:
    """`3@0.2`: digit 3, σ = 20% of the side; `all@0.2`: the test images of all digits."""
    family = "perspective-baked" if baked else "perspective"
    digit, _, amount = which.partition("@")
    try:
        sigma = float(amount)
    except ValueError:
        sigma = -1.0
    if digit not in (*"0123456789", "all") or not 0 <= sigma <= 1:
        raise CongealError(
            f"'{family}:{which}' is not a data set: write {family}:3@0.2, a digit (or all) and σ from 0 to 1"
        )
    kind = PerspectiveBaked if baked else Perspective
    if digit == "all":
        digits, labels = load_all("test")
        source = kind(digits, sigma, f"{family}:{which}")
        source.labels = labels
        return source
    return kind(load_digit(int(digit)), sigma, f"{family}:{which}")
