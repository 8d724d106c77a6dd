"""Images made from MNIST when they are read. Image i depends on i and the seed alone, so it is the same in any set.

`perspective:3@0.2`: the corners (±1, ±1) of the frame each move by N(0, (2σ)²) per axis, and all four together by one
more N(0, (2σ)²) per axis; σ is a fraction of the side, which is two units long. The homography through them is
`source_from_frame`. Draws that mirror the frame or fold over inside it are drawn again. *perspective* gives the
untouched image and the warp as `initial`, so nothing is lost; *perspective-baked* gives the warped pixels only.

`affnist:2@5000`: affNIST-*style* images, because the original files are rarely at hand. MNIST on 40×40, turned by up
to ±20°, sheared by up to ±0.2, scaled by 0.8–1.2 along each axis, and put anywhere that keeps the ink inside. Image i
shows MNIST image i modulo the number of images of its digit. `affnist:all` shows the test set.

`infimnist:7@1000000`: infiMNIST-*style* images. Number i ≥ 70,000 deforms training image a = (i − 10000) mod 60000,

    x − F[k1]·T0[a] + F[k2]·T1[a],    k1 = ((i·131071) mod 2³²) mod 1521,    k2 = (k1 + 1 + 2i) mod 1522,

clamped to 0–255 and shifted by one pixel in one of eight directions or not at all (k1 mod 9). T0 and T1 are the image's
derivatives down and across, F are 1522 smooth random fields. There is no `truth`, the deformation being local.

`affnist-original` and `infimnist-original` are read from their own files in `$CONGEAL_DATA`; docs/formats.md says where
they belong. The scheme of infiMNIST is then that of its program: grey levels are cut rather than rounded.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from congeal.datasets import find_data, not_a_data_set, parse_count
from congeal.datasets.mnist import TRAIN_IMAGES, Digits, load_digits, load_mnist
from congeal.errors import CongealError
from congeal.geometry import matrix
from congeal.images.formats.array_files import read_affnist
from congeal.images.sources.arrays import ArraySource
from congeal.images.sources.base import Image, ImageSource, Indices
from congeal.images.sources.files import natural_key
from congeal.transforms.ids import Ids

# Sides of the images in pixels: of MNIST and infiMNIST, and of affNIST, as in the original sets.
SIDE, AFFNIST_SIDE = 28, 40
PERSPECTIVE_SEED, AFFNIST_SEED, INFIMNIST_SEED = 20190, 40040, 70000
# Numbers of images where none is given: those of one digit that the paper uses.
AFFNIST_COUNT, INFIMNIST_COUNT = 100_000, 1_000_000
# Random fields of the infiMNIST scheme.
FIELDS = 1522
_SHIFTS = [(0, 0), (-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1)]  # down, right


# ---- random numbers by counter: the draw of image i does not depend on how many images there are

_STEP, _MIX_1, _MIX_2 = (np.uint64(v) for v in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def uniform(seed: int, index: ArrayLike, count: int) -> NDArray[np.float64]:
    """(N,) image numbers → (N, count) numbers, uniform in [0, 1)."""
    start = _mix(np.full(1, seed, dtype=np.uint64))
    image = _mix(start + np.asarray(index, dtype=np.uint64))
    lane: NDArray[np.uint64] = np.arange(count, dtype=np.uint64)
    return (_mix(image[:, None] + lane) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def normal(seed: int, index: ArrayLike, count: int) -> NDArray[np.float64]:
    """(N,) image numbers → (N, count) standard normal numbers (Box and Muller)."""
    u = uniform(seed, index, 2 * count)
    return np.sqrt(-2 * np.log1p(-u[:, :count])) * np.cos(2 * np.pi * u[:, count:])


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The output function of SplitMix64: neighbouring counters give unrelated bits."""
    x = (x + np.uint64(1)) * _STEP
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


# ---- sources


class SyntheticSource(ImageSource):
    """Grey uint8 images of one size, computed batch by batch."""

    layout = "array"
    kind = "object"
    grey = True
    side = SIDE

    @abstractmethod
    def make(self, indices: np.ndarray) -> np.ndarray:
        """(B,) positions → (B, side, side) uint8."""

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.side, self.side, 1

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.uint8)

    def batch(self, indices: Indices) -> np.ndarray:
        rows = np.asarray(indices)
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows.astype(np.int64)
        return self.make(np.where(rows < 0, rows + len(self), rows))[..., None]

    def read(self, i: int) -> Image:
        return Image(self.id(i), self.batch([range(len(self))[i]])[0])


class WarpedDigits(SyntheticSource):
    """Digits through one matrix each, bilinear on black. The truth puts each into the middle of the frame.

    Image i shows digit i modulo their number; digit_from_image (N,3,3) leads from its pixels to those of the digit.
    """

    def __init__(
        self, name: str, digits: Digits, digit_from_image: NDArray[np.float64], ids: list[str], side: int = SIDE
    ) -> None:
        self.name, self.digits, self.digit_from_image, self.side = name, digits, digit_from_image, side
        self._ids, self._rows = Ids(ids), np.arange(len(ids)) % len(digits.images)
        self.labels = digits.labels[self._rows]
        middle = (side - SIDE) / 2
        self.truth = np.array([[1, 0, middle], [0, 1, middle], [0, 0, 1.0]]) @ digit_from_image

    def __len__(self) -> int:
        return len(self.ids())

    def make(self, indices: np.ndarray) -> np.ndarray:
        return warp_uint8(self.digits.images[self._rows[indices]], self.digit_from_image[indices], self.side)


def warp_uint8(images: np.ndarray, source_from_output: np.ndarray, side: int) -> np.ndarray:
    """(B,H,W) uint8 sampled through (B,3,3) pixel matrices, bilinear on black, rounded → (B, side, side) uint8."""
    import torch

    from congeal.geometry.warping import warp

    with torch.no_grad():
        pixels = torch.from_numpy(images.astype(np.float32))[:, None]
        warped = warp(pixels, torch.from_numpy(source_from_output).float(), (side, side))
        return warped[:, 0].round_().clamp_(0, 255).to(torch.uint8).numpy()


# ---- perspective


def perturbations(numbers: NDArray[np.int64], sigma: float, seed: int = PERSPECTIVE_SEED) -> NDArray[np.float64]:
    """(N,) image numbers → (N,3,3) `source_from_frame` in pixels; a larger σ stretches the same draw."""
    square = np.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
    result = np.empty((len(numbers), 3, 3))
    pending = np.arange(len(numbers))
    for attempt in range(1000):
        noise = 2 * sigma * normal(seed + attempt, numbers[pending], 10).reshape(-1, 5, 2)
        moved = square + noise[:, :4] + noise[:, 4:]
        drawn = matrix.homography_from_points(square, moved)
        depth = square @ drawn[:, 2, :2, None] + 1
        good = (depth[:, :, 0].min(1) > 0.1) & (np.linalg.det(drawn) > 0)
        result[pending[good]] = drawn[good]
        pending = pending[~good]
        if not len(pending):
            return np.asarray(matrix.from_normalised(result, (SIDE, SIDE)))
    raise CongealError(f"σ = {sigma} folds nearly every frame over: use a smaller one")


def perspective_warps(family: str, which: str) -> tuple[Digits, NDArray[np.float64]]:
    """`3@0.2`, digit 3 and σ = 20% of the side, or `all@0.2`, the test images of all digits: images and warps."""
    digit, _, amount = which.partition("@")
    try:
        sigma = float(amount)
    except ValueError:
        sigma = -1.0
    if digit not in (*"0123456789", "all") or not 0 <= sigma <= 1:
        raise not_a_data_set(f"{family}:{which}", f"{family}:3@0.2, a digit (or all) and σ from 0 to 1")
    digits = load_digits(digit, "test" if digit == "all" else "")
    return digits, perturbations(digits.numbers, sigma)


def open_perspective(which: str) -> ImageSource:
    """Untouched images, started at a random warp (`initial`); the truth is the identity."""
    digits, source_from_frame = perspective_warps("perspective", which)
    source = digits.source(f"perspective:{which}")
    source.initial, source.initial_size = np.asarray(matrix.invert(source_from_frame)), (SIDE, SIDE)
    source.truth = matrix.identity(len(source))
    return source


def open_perspective_baked(which: str) -> WarpedDigits:
    """The warped pixels alone; the truth leads back to the untouched image."""
    digits, source_from_frame = perspective_warps("perspective-baked", which)
    return WarpedDigits(f"perspective-baked:{which}", digits, source_from_frame, digits.ids())


def loses_half_its_ink(which: str) -> NDArray[np.bool_]:
    """(N,) True for images of a perspective set that keep less than half of their ink in the perturbed frame."""
    digits, source_from_frame = perspective_warps("perspective", which)
    warped = warp_uint8(digits.images, source_from_frame, SIDE)
    return 2 * warped.sum((1, 2), dtype=np.int64) < digits.images.sum((1, 2), dtype=np.int64)


# ---- affNIST


def open_affnist(which: str) -> WarpedDigits:
    """`2`, `2@N`, `all` or `all@N`."""
    digit, given = parse_count("affnist", which, "affnist:2, affnist:2@5000 or affnist:all@10000", mixed=True)
    count = given or AFFNIST_COUNT
    digits = load_digits(digit, "test" if digit == "all" else "")
    names, digit_from_image = digits.ids(), np.asarray(matrix.invert(affnist_poses(digits, count)))
    ids = [f"{names[i % len(names)]}-{i // len(names):05d}" for i in range(count)]
    return WarpedDigits(f"affnist:{which}", digits, digit_from_image, ids, AFFNIST_SIDE)


def affnist_poses(digits: Digits, count: int) -> NDArray[np.float64]:
    """(N,3,3): pixels of the 28×28 digit → pixels of the 40×40 image."""
    u = uniform(AFFNIST_SEED, np.arange(count), 6)
    angle, shear = np.deg2rad(40 * u[:, 0] - 20), 0.4 * u[:, 1] - 0.2
    sx, sy = 0.8 + 0.4 * u[:, 2], 0.8 + 0.4 * u[:, 3]
    cos, sin = np.cos(angle), np.sin(angle)
    # rotation @ shear along x @ scale
    linear = np.stack([cos * sx, (cos * shear - sin) * sy, sin * sx, (sin * shear + cos) * sy], -1).reshape(-1, 2, 2)
    landed = _ink_boxes(digits.images)[np.arange(count) % len(digits.images)] @ linear.transpose(0, 2, 1)
    low, high = -0.5 - landed.min(1), AFFNIST_SIDE - 0.5 - landed.max(1)
    space = high - low
    poses = matrix.identity(count)
    poses[:, :2, :2] = linear
    poses[:, :2, 2] = np.where(space > 0, low + space * u[:, 4:], (low + high) / 2)
    return poses


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


# ---- infiMNIST


class Infimnist(SyntheticSource):
    """Deformed images of one digit.

    rows: where the digit is in the training set. fields (1522, 784). tangents: derivatives of its images (n, 784) down
    and across. whole: a NumPy function that makes whole grey levels. shift: shifts images (B,28,28) by a pixel each, in
    the directions (B,) 0 to 8.
    """

    def __init__(
        self,
        name: str,
        rows: NDArray[np.int64],
        count: int,
        fields: NDArray[np.float32],
        tangents: tuple[NDArray[np.float32], NDArray[np.float32]],
        whole: Callable[..., NDArray[np.float32]],
        shift: Callable[[NDArray[np.uint8], NDArray[np.int64]], NDArray[np.uint8]],
    ) -> None:
        self.name, self._rows, self._count, self._fields = name, rows, count, fields
        self._images = load_mnist("train")[0][rows].astype(np.float32).reshape(len(rows), -1)
        self._down, self._across = tangents
        self._whole, self._shift = whole, shift

    def __len__(self) -> int:
        return self._count

    def id(self, i: int) -> str:
        """ "infi-" and the number i of the scheme."""
        turn, place = divmod(range(self._count)[i], len(self._rows))
        return f"infi-{10000 + int(self._rows[place]) + TRAIN_IMAGES * (turn + 1):08d}"

    def make(self, indices: np.ndarray) -> np.ndarray:
        turn, place = np.divmod(indices, len(self._rows))
        i = 10000 + self._rows[place] + TRAIN_IMAGES * (turn + 1)
        k1 = (i * 131071) % 2**32 % (FIELDS - 1)
        k2 = (k1 + 1 + 2 * i) % FIELDS
        out = np.zeros((len(indices), SIDE, SIDE), dtype=np.uint8)
        for start in range(0, len(indices), 64):  # so many images stay in the second-level cache
            part = slice(start, start + 64)
            value = self._images[place[part]]
            value -= self._fields[k1[part]] * self._down[place[part]]
            value += self._fields[k2[part]] * self._across[place[part]]
            np.clip(value, 0, 255, out=value)
            out[part] = self._whole(value, out=value).reshape(-1, SIDE, SIDE)
        return self._shift(out, k1 % 9)


def open_infimnist(which: str) -> Infimnist:
    """`7` or `7@N`."""
    digit, given = parse_count("infimnist", which, "infimnist:7 or infimnist:7@1000000")
    images, labels = load_mnist("train")
    rows = np.flatnonzero(labels == int(digit))
    slopes = tangents(images[rows].astype(np.float32).reshape(len(rows), -1))
    count = given or INFIMNIST_COUNT
    return Infimnist(f"infimnist:{which}", rows, count, fields(), slopes, np.rint, _shifted)


def _shifted(images: NDArray[np.uint8], direction: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Each image one pixel in its direction, black moving in."""
    padded, moved = np.pad(images, ((0, 0), (1, 1), (1, 1))), np.empty_like(images)
    for number, (down, right) in enumerate(_SHIFTS):
        rows = direction == number
        moved[rows] = padded[rows, 1 - down : 1 - down + SIDE, 1 - right : 1 - right + SIDE]
    return moved


def fields() -> NDArray[np.float32]:
    """(1522, 784) smooth random scalar fields in pixels, RMS 1 each."""
    noise = np.random.Generator(np.random.Philox(INFIMNIST_SEED)).standard_normal((FIELDS, SIDE + 24, SIDE + 24))
    smooth = _gaussian(SIDE + 24, 4.0)[12:-12]
    result = (smooth @ noise @ smooth.T).reshape(FIELDS, -1)
    return (result / np.sqrt((result**2).mean(1, keepdims=True))).astype(np.float32)


def tangents(images: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Derivatives of (N,784) images down and across, grey levels per pixel, by a Gaussian of one pixel."""
    smooth = _gaussian(SIDE, 1.0).astype(np.float32)
    distance = np.subtract.outer(np.arange(SIDE), np.arange(SIDE))
    slope = (-distance * smooth).astype(np.float32)
    pictures = images.reshape(-1, SIDE, SIDE)
    down = np.asarray(slope @ pictures @ smooth.T, dtype=np.float32)
    across = np.asarray(smooth @ pictures @ slope.T, dtype=np.float32)
    return down.reshape(len(images), -1), across.reshape(len(images), -1)


def _gaussian(n: int, width: float) -> NDArray[np.float64]:
    """(n,n) matrix that smooths along one axis, black outside."""
    distance = np.subtract.outer(np.arange(n), np.arange(n))
    return np.exp(-0.5 * (distance / width) ** 2) / (width * np.sqrt(2 * np.pi))


FIELD_FILE, TANGENT_FILE = "fields_float_1522x28x28.bin", "tangVec_float_60000x28x28.bin"
_PIXELS = SIDE * SIDE
# u(p), d(own), l(eft), r(ight), by k1 mod 9; two letters are two moves
_MOVES = ("u", "d", "l", "r", "ul", "ur", "dl", "dr", "")


# ---- the original files


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
    rows = np.flatnonzero(load_mnist("train")[1] == int(digit))
    fields = np.array(read_floats(FIELD_FILE, (FIELDS, _PIXELS)))
    both = read_floats(TANGENT_FILE, (TRAIN_IMAGES, 2, _PIXELS))[rows]
    tangents = np.ascontiguousarray(both[:, 0]), np.ascontiguousarray(both[:, 1])
    name, count = f"infimnist-original:{which}", given or INFIMNIST_COUNT
    return Infimnist(name, rows, count, fields, tangents, np.floor, _shifted_in_line)


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


def _shifted_in_line(images: NDArray[np.uint8], direction: NDArray[np.int64]) -> NDArray[np.uint8]:
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
