"""What keeps a congealing method from zooming out until the frame is empty, shared by all of them.

Aligning a set has one freedom that no cost can pin down: moving, turning and scaling everything together. Left alone,
most costs use it to shrink the object, because a smaller object has less to disagree about.
"""

from __future__ import annotations

import numpy as np
import torch

from congeal.geometry import mean_matrix, normalise
from congeal.geometry.matrix import Size, corners, map_points
from congeal.images import Stack
from congeal.metrics import looks_like_objects

ENERGY_BAND = (0.95, 1.0)
"""Ink of the aligned images against ink of the sources, for objects on empty ground: outside it the common scale is
put back. Well inside the 0.9–1.1 that counts as a collapse, and never a larger object than the one that came in."""

CHUNK_VALUES = 400_000
"""Pixel values a method holds at once, so that memory stays flat and batches stay in cache."""


def chunks(stack: Stack, times: int = 1, multiple: int = 1) -> list[np.ndarray]:
    """Positions in the stack, in runs of a size that suits its images, or `times` as long.

    multiple: if there is more than one run there are so many, or twice as many, …, so that threads finish together.
    """
    pixels = stack.channels * max(stack.size[0] * stack.size[1], stack.frame[0] * stack.frame[1])
    parts = -(-len(stack) * pixels // (times * CHUNK_VALUES))
    parts = -(-parts // multiple) * multiple if parts > 1 else parts
    parts = min(len(stack), parts)  # large images go one by one
    return list(np.array_split(np.arange(len(stack)), max(1, parts)))


def set_kind(stack: Stack) -> str:
    """ "object" on empty ground or "photo", from up to 500 images spread over the set."""
    if stack.source.kind is not None:
        return stack.source.kind
    sample = np.unique(np.linspace(0, len(stack) - 1, min(len(stack), 500)).astype(int))
    return looks_like_objects(stack.images(sample), stack.masks(sample))


def can_scale(motion: str) -> bool:
    """Whether a motion makes objects larger or smaller: only then may their ink be held by zooming."""
    return motion not in ("translation", "rigid")


def pixel_area(stack: Stack) -> float:
    """Stack pixels per frame pixel in the initial gauge: 1 unless the start zooms."""
    return 1.0 if stack.size == stack.frame else float(np.median(np.abs(np.linalg.det(stack.start[:, :2, :2]))))


def total_ink(stack: Stack) -> float:
    """The ink of all source images, in units of the frame's pixels."""
    return sum(float(stack.images(part).sum()) for part in chunks(stack)) / pixel_area(stack)


class Gauge:
    """Fixes the freedom to move everything together: the mean transform stays that of the start.

    For objects on empty ground the common scale has a better witness than the mean matrix, the ink itself. Where the
    energy ratio leaves the band, the scale of the whole set is corrected, by 2% a step at most; `zoom` remembers it.
    """

    def __init__(
        self,
        start: torch.Tensor,
        size: Size,
        source_ink: float | None = None,
        zoom: float = 1.0,
        band: tuple[float, float] = ENERGY_BAND,
    ) -> None:
        self.size, self.source_ink, self.zoom, self.band = size, source_ink, zoom, band
        self._wanted = mean_matrix(start.double(), size)

    def fix(
        self, stack_from_frame: torch.Tensor, ink: float | None = None, keep: torch.Tensor | None = None
    ) -> torch.Tensor:
        """H_i · mean(H)⁻¹ · mean(start) · zoom, given the ink (in frame pixels) the set shows now.

        keep (N,) bool: whose mean counts, where some transforms are known to be wrong.
        """
        if ink is not None and self.source_ink:
            ratio, (low, high) = ink / self.source_ink, self.band
            if not low <= ratio <= high:
                # Ink grows with area: a frame that looks at a smaller region shows the object larger.
                self.zoom *= float(np.clip(np.sqrt(ratio / np.clip(ratio, low, high)), 0.98, 1.02))
        x, y = (self.size[1] - 1) / 2, (self.size[0] - 1) / 2
        z = self.zoom
        zoom = self._wanted.new_tensor([[z, 0, x - z * x], [0, z, y - z * y], [0, 0, 1]])
        counted = stack_from_frame if keep is None else stack_from_frame[keep]
        found = mean_matrix(counted.double(), self.size)
        gauge = torch.linalg.inv(found) @ self._wanted @ zoom
        return normalise(stack_from_frame.double() @ gauge).to(stack_from_frame.dtype)


def corner_motion(before: torch.Tensor, after: torch.Tensor, size: Size) -> torch.Tensor:
    """(N,) how far the farthest frame corner moved between two sets of stack_from_frame, in stack pixels."""
    frame = torch.as_tensor(corners(size), dtype=before.dtype)
    return (map_points(after, frame) - map_points(before, frame)).norm(dim=-1).amax(-1)
