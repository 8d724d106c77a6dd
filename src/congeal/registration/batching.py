"""Going through a set in runs of images, so that memory does not grow with it, and sums that only need one pass."""

from __future__ import annotations

import reprlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from congeal.errors import CongealError
from congeal.filters import gaussian_blur
from congeal.geometry import warp
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


# ---- one image that stands for the set: sharp, typical in shape and in amount of ink

MAX_CANDIDATES = 400
"""Images among which a typical one is looked for, all pairs of them. Chosen by judgement: a table of 400² is small."""
TYPICAL_SHARE = 0.3
"""Share of the candidates that may be chosen: those whose ink is nearest to the median."""
REFERENCE_BLUR_SHARE = 0.07
"""Blur under which they are compared, as a share of the longer side: two pixels of an MNIST digit."""


def frames(stack: Stack, indices: np.ndarray, stack_from_frame: torch.Tensor | None = None) -> torch.Tensor:
    """Images of the stack as the frame shows them: (B, C, h, w), through the start unless matrices are given."""
    matrices = torch.as_tensor(stack.start[indices]) if stack_from_frame is None else stack_from_frame[indices]
    return warp(stack.images(indices), matrices.float(), stack.frame)


def medoid(stack: Stack, random_state: int = 0) -> int:
    """Position of the image nearest to all the others once blurred, among those with about the median ink.

    A fat or a thin reference costs or flatters every later number, hence the ink; near-blank ones, which a strong
    initial warp can leave behind, fall out the same way.
    """
    rng = np.random.default_rng(random_state)
    sample = np.sort(rng.permutation(len(stack))[:MAX_CANDIDATES])
    images = frames(stack, sample)
    ink = images.flatten(1).sum(1)
    deviation = (ink - ink.median()).abs()
    typical = torch.nonzero(deviation <= deviation.quantile(TYPICAL_SHARE))[:, 0]
    soft = gaussian_blur(images, REFERENCE_BLUR_SHARE * max(stack.frame)).flatten(1)
    soft = soft / soft.norm(dim=1, keepdim=True).clamp(min=1e-9)
    likeness = (soft[typical] @ soft.T).mean(1)
    return int(sample[typical[likeness.argmax()]])


def reference_image(reference: Any, stack: Stack, random_state: int = 0) -> torch.Tensor:
    """A (C, h, w) reference in the frame from what the user gave: "medoid", a position, an array, or a file."""
    if isinstance(reference, str) and reference == "medoid":
        return frames(stack, np.array([medoid(stack, random_state)]))[0]
    if isinstance(reference, str) and reference.isdecimal():
        reference = int(reference)
    if isinstance(reference, int | np.integer):
        if not 0 <= reference < len(stack):
            raise CongealError(f"reference {reference} is not one of the {len(stack)} images (0 … {len(stack) - 1})")
        return frames(stack, np.array([int(reference)]))[0]
    if isinstance(reference, str | Path):
        from congeal.images import prepare
        from congeal.opening import open_images

        if not Path(reference).exists():
            raise CongealError(f"reference '{reference}' is neither 'medoid', a position in the set, nor a file")
        picture = prepare(open_images([Path(reference)]), size=max(stack.frame), align_on=stack.align_on)
        return _fit_in(picture.images([0])[0], stack)
    try:
        array = np.asarray(reference, dtype=np.float32)
    except (TypeError, ValueError) as error:
        words = "'medoid', a position in the set, a file or an array"
        raise CongealError(f"the reference is {words}, not {reprlib.repr(reference)}") from error
    return _fit_in(torch.from_numpy(array.copy()), stack)


def _fit_in(image: torch.Tensor, stack: Stack) -> torch.Tensor:
    if image.ndim == 2:
        image = image[None]
    elif image.ndim == 3 and image.shape[0] != stack.channels and image.shape[-1] == stack.channels:
        image = image.movedim(-1, 0)
    if image.shape != (stack.channels, *stack.frame):
        raise CongealError(
            f"the reference has shape {tuple(image.shape)} (channels, height, width), the frame is "
            f"{(stack.channels, *stack.frame)}: give it at that size"
        )
    if not image.isfinite().all():
        raise CongealError("the reference has NaN or infinite values")
    return image / image.max().clamp(min=1.0)


def check_one_image(reference: Any, name: str) -> None:
    """Raise `CongealError` where a method that starts from one image is given the whole set as its reference."""
    if isinstance(reference, str) and reference in ("mean", "stack"):
        raise CongealError(
            f"{name} starts from one image, not from the {reference} of the set: "
            "its reference is 'auto', 'medoid', a position, a file or an array"
        )
