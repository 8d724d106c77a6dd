"""What a scientific stack says about itself: its axes, the size of a pixel, the time step, the names of its channels.

Axes are letters, slowest first, as tifffile writes them: T time, Z depth, C channel, Y, X, S colour sample; any other
letter, such as I (pages) or R (positions), numbers images as T does. An image of the set is one position along the
*image axes*; its channels are all positions along C and S.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from congeal.errors import CongealError

PLANE = "YX"
CHANNEL = "CS"
Z_MODES = ("auto", "project", "mean", "planes")
"""What a stack with depth is: one image per time point, aligned on its maximum or mean, or one image per plane."""


class Step(NamedTuple):
    """How far apart two neighbours along an axis are; the unit may be unknown."""

    size: float
    unit: str = ""


@dataclass(frozen=True)
class Hyperstack:
    """Axes and shape of a stack as it is in its file, and what is known of it.

    steps: pixel size (X, Y), distance of planes (Z) and time step (T), by letter. channel_names: one for each position
    along C and S together, or empty. chosen: of an image axis that lost some of its positions, those that are left.
    ragged: what is left is no grid any more but one sequence, and nobody knows what was where. origin: what only a
    writer of the same format understands, see `congeal.images.formats.tiff` and its like.
    """

    axes: str
    shape: tuple[int, ...]
    steps: Mapping[str, Step] = field(default_factory=dict)
    channel_names: tuple[str, ...] = ()
    chosen: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ragged: bool = False
    origin: Any = None

    def __post_init__(self) -> None:
        if len(self.axes) != len(self.shape) or len(set(self.axes)) != len(self.axes):
            raise CongealError(f"axes {self.axes!r} do not fit an array of shape {self.shape}")
        if not set(PLANE) <= set(self.axes):
            raise CongealError(f"a stack of images needs axes Y and X, and has {self.axes or 'none'}")

    def length(self, letter: str) -> int:
        """How many positions an axis has; 1 for one there is not."""
        return self.shape[self.axes.index(letter)] if letter in self.axes else 1

    @property
    def image_axes(self) -> str:
        """The axes along which images follow each other, slowest first; planes of one time point are neighbours."""
        others = [letter for letter in self.axes if letter not in PLANE + CHANNEL + "Z"]
        return "".join(others) + ("Z" if "Z" in self.axes else "")

    @property
    def channel_axes(self) -> str:
        """C, S, both, or none."""
        return "".join(letter for letter in CHANNEL if letter in self.axes)

    @property
    def n_images(self) -> int:
        """How many images there are, plane by plane."""
        return math.prod(map(self.length, self.image_axes))

    @property
    def n_channels(self) -> int:
        """How many channels an image has."""
        return math.prod(map(self.length, self.channel_axes))

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of an image."""
        return self.length("Y"), self.length("X")

    def place(self, i: int) -> dict[str, int]:
        """Where image i lies along the image axes, by letter."""
        return _unravel(i, self.image_axes, self)

    def number(self, at: Mapping[str, int]) -> int:
        """Which image lies there; letters of other axes are ignored."""
        return _ravel(at, self.image_axes, self)

    def channel(self, at: Mapping[str, int]) -> int:
        """Which channel of its image lies there; letters of other axes are ignored."""
        return _ravel(at, self.channel_axes, self)

    def places(self, letters: str) -> Iterator[dict[str, int]]:
        """Every position along these axes, the last one fastest."""
        for index in np.ndindex(*map(self.length, letters)):
            yield dict(zip(letters, map(int, index), strict=True))

    def ids(self, letters: str | None = None) -> list[str]:
        """Names of the images, or of the positions along these axes: numbered pages, or letters with numbers."""
        letters = self.image_axes if letters is None else letters
        if len(letters) < 2:
            return [f"page-{i:05d}" for i in range(math.prod(map(self.length, letters)))]
        return ["-".join(f"{key.lower()}{n:05d}" for key, n in at.items()) for at in self.places(letters)]

    def as_pixels(self, block: np.ndarray, axes: str) -> np.ndarray:
        """A block with Y, X and channel axes in any order → (H, W, C)."""
        order = [axes.index(letter) for letter in PLANE + self.channel_axes]
        return block.transpose(order).reshape(*self.size, self.n_channels)

    def resized(self, size: tuple[int, int]) -> Hyperstack:
        """The same stack with pictures of another (height, width)."""
        lengths = {"Y": size[0], "X": size[1]}
        return replace(self, shape=tuple(lengths.get(a, n) for a, n in zip(self.axes, self.shape, strict=True)))

    def taken(self, rows: np.ndarray) -> Hyperstack:
        """The stack of some of its images.

        Whole positions of the slowest image axis leave a shorter axis; anything else is one sequence along it. The time
        step stays while what is left is evenly spaced.
        """
        rows = np.asarray(rows, dtype=np.int64)
        if np.array_equal(rows, np.arange(self.n_images)):
            return self
        if not self.image_axes:
            letter, whole = "I", replace(self, axes="I" + self.axes, shape=(1, *self.shape))
            return whole._shortened(letter, rows)
        slowest, inner = self.image_axes[0], self.image_axes[1:]
        block = math.prod(map(self.length, inner))
        first = rows[::block] // block
        if len(rows) == len(first) * block and np.array_equal(
            rows, (first[:, None] * block + np.arange(block)).reshape(-1)
        ):
            return self._shortened(slowest, first)
        flat = self._without(inner)
        lost = {key: step for key, step in flat.steps.items() if key != slowest}
        flat = replace(flat, steps=lost, ragged=True)
        return flat._shortened(slowest, rows)

    def _without(self, letters: str) -> Hyperstack:
        kept = [(a, n) for a, n in zip(self.axes, self.shape, strict=True) if a not in letters]
        steps = {key: step for key, step in self.steps.items() if key not in letters}
        return replace(self, axes="".join(a for a, _ in kept), shape=tuple(n for _, n in kept), steps=steps)

    def _shortened(self, letter: str, positions: np.ndarray) -> Hyperstack:
        shape = tuple(len(positions) if a == letter else n for a, n in zip(self.axes, self.shape, strict=True))
        before = self.chosen.get(letter)
        chosen = tuple(int(p) if before is None else before[int(p)] for p in positions)
        steps, gaps = dict(self.steps), set(np.diff(positions).tolist())
        if letter in steps and len(gaps) == 1 and min(gaps) > 0:
            steps[letter] = Step(steps[letter].size * gaps.pop(), steps[letter].unit)
        elif letter in steps and len(positions) > 1:
            del steps[letter]
        return replace(self, shape=shape, steps=steps, chosen={**self.chosen, letter: chosen})


def projects(stack: Hyperstack, z: str | None, name: str) -> str | None:
    """How the planes of an image are put together for aligning, "max" or "mean"; None if every plane is an image.

    z: one of `Z_MODES`. "auto" projects where there is something to align besides the planes.
    """
    if z is not None and z not in Z_MODES:
        raise CongealError(f"z is {', '.join(Z_MODES[:-1])} or {Z_MODES[-1]}, not {z!r}")
    if z in ("project", "mean") and stack.length("Z") < 2:
        raise CongealError(f"{name} has no Z axis to project (its axes are {stack.axes}): leave out --z {z}")
    if stack.length("Z") < 2 or z == "planes":
        return None
    others = math.prod(stack.length(letter) for letter in stack.image_axes if letter != "Z")
    if z in (None, "auto"):
        return "max" if others > 1 else None
    if others < 2:
        raise CongealError(f"{name} is one Z stack: projected it is a single image; use --z planes to align its planes")
    return "max" if z == "project" else "mean"


def _unravel(i: int, letters: str, stack: Hyperstack) -> dict[str, int]:
    if not letters:
        return {}
    index = np.unravel_index(range(stack.n_images)[i], tuple(map(stack.length, letters)))
    return dict(zip(letters, map(int, index), strict=True))


def _ravel(at: Mapping[str, int], letters: str, stack: Hyperstack) -> int:
    number = 0
    for letter in letters:
        number = number * stack.length(letter) + at.get(letter, 0)
    return number
