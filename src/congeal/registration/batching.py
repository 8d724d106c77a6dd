"""Going through a set in runs of images, so that memory does not grow with it, and sums that only need one pass."""

from __future__ import annotations

import numpy as np
import torch

from congeal.images import Stack
from congeal.memmap import allocate
from congeal.rows import row_slices

CHUNK_VALUES = 400_000
"""Pixel values a method holds at once, so that memory stays flat and batches stay in cache."""


def chunks(stack: Stack, times: int = 1, multiple: int = 1) -> list[np.ndarray]:
    """Positions in the stack, in runs of a size that suits its images, or `times` as long.

    multiple: if there is more than one run there are so many, or twice as many, …, so that threads finish together.
    """
    pixels = stack_values(stack)
    parts = -(-len(stack) * pixels // (times * CHUNK_VALUES))
    parts = -(-parts // multiple) * multiple if parts > 1 else parts
    parts = min(len(stack), parts)  # large images go one by one
    return list(np.array_split(np.arange(len(stack)), max(1, parts)))


def stack_values(stack: Stack) -> int:
    """Pixel values of one image of a stack, or of its frame if that is larger."""
    return int(stack.channels * max(stack.size[0] * stack.size[1], stack.frame[0] * stack.frame[1]))


def start_poses(stack: Stack) -> torch.Tensor:
    """stack_from_frame (n, 3, 3) float32 that every image starts at, as a copy that may be changed."""
    poses = allocate(stack.start.shape, np.float32)
    for part in row_slices(len(poses)):
        poses[part] = stack.start[part]
    return torch.from_numpy(poses)


def pixel_area(stack: Stack) -> float:
    """Stack pixels per frame pixel in the initial gauge: 1 unless the start zooms."""
    return 1.0 if stack.size == stack.frame else float(np.median(np.abs(np.linalg.det(stack.start[:, :2, :2]))))


def total_intensity(stack: Stack, rows: np.ndarray | None = None) -> float:
    """The ink of the source images (of all, or of some `rows`), in units of the frame's pixels."""
    runs = chunks(stack) if rows is None else np.array_split(rows, len(chunks(stack)))
    return sum(float(stack.images(part).sum()) for part in runs if len(part)) / pixel_area(stack)
