"""The numbers of an alignment, streamed: quality of the set, score and status of each image."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from congeal.geometry import coverage, invert, warp
from congeal.images import Stack
from congeal.metrics import Quality, QualityMeter, blank, geometric_mean, scales, score_against_mean
from congeal.metrics.limits import LEAST_DEVIATION, LOST_INK, LOST_OUTSIDE, OUTLIER_DEVIATIONS
from congeal.metrics.statistics import NORMAL_MAD
from congeal.progress import Progress
from congeal.solvers.appearance import Appearance, plain_appearance
from congeal.solvers.gauge import can_scale
from congeal.solvers.streaming import chunks, pixel_area
from congeal.transforms import STATUSES

OK, BLANK, OUTLIER, FAILED = (STATUSES.index(word) for word in ("ok", "blank", "outlier", "failed"))


@dataclass
class Measurement:
    """Numbers of a set, and of each of its n images."""

    quality: Quality
    score: np.ndarray  # (n,) correlation with the mean
    status: np.ndarray  # (n,) uint8, positions in `STATUSES`
    out_of_frame: np.ndarray  # (n,) share of the frame that has no image under it


def measure(
    stack: Stack, stack_from_frame: np.ndarray, kind: str, *, motion: str = "homography", quiet: bool = True
) -> Measurement:
    """Quality before and after, in the frame the method worked in. Two passes; some 40 bytes an image stay.

    kind: "object" or "photo", which decides what counts as a collapse. motion: what the method was allowed; one that
    cannot scale is not to blame for the size that a start gives to an object.
    """
    appearance = plain_appearance(kind)
    meter = QualityMeter(kind, aligned_area=1 / pixel_area(stack))
    n = len(stack)
    ink, source_ink, outside, outside_before = (np.zeros(n, dtype=np.float32) for _ in range(4))
    score, scale = np.zeros(n), np.zeros(n)
    with torch.no_grad(), Progress(2 * n, "measuring", quiet=quiet) as progress:
        for part in chunks(stack):
            found, start = _matrices(stack_from_frame[part]), _matrices(stack.start[part])
            images, masks = stack.images(part), stack.masks(part)
            before, before_weight = _seen(images, masks, start, stack, appearance)
            after, after_weight = _seen(images, masks, found, stack, appearance)
            meter.update_before(before, before_weight)
            meter.update_after(after, images, after_weight)
            ink[part], source_ink[part] = after.flatten(1).sum(1), images.flatten(1).sum(1)
            outside[part] = 1 - coverage(found, stack.size, stack.frame).mean((1, 2, 3))
            outside_before[part] = 1 - coverage(start, stack.size, stack.frame).mean((1, 2, 3))
            frame_from_stack = invert(stack_from_frame[part].astype(np.float64))
            scale[part] = scales(frame_from_stack, stack.frame, invert(stack.start[part]))
            progress.update(len(part))
        mean = meter.after.mean
        for part in chunks(stack):
            matrices = _matrices(stack_from_frame[part])
            after, weight = _seen(stack.images(part), stack.masks(part), matrices, stack, appearance)
            score[part] = score_against_mean(after, mean, weight)
            progress.update(len(part))
    status = _status(appearance, score, ink * np.float32(pixel_area(stack)), source_ink, outside)
    counted = status != FAILED if (status != FAILED).any() else np.ones(n, dtype=bool)
    mean_scale = geometric_mean(scale[counted])
    expected = 1.0 if can_scale(motion) else _start_energy(stack)
    quality = meter.finish(
        mean_scale=mean_scale, out_of_frame=outside, out_of_frame_before=outside_before, expected_energy=expected
    )
    return Measurement(quality, score, status, outside)


def _start_energy(stack: Stack) -> float:
    """The energy ratio that the scale of the start gives to an object that lies inside the frame."""
    return geometric_mean(scales(invert(stack.start), stack.frame)) ** 2 * pixel_area(stack)


def _matrices(rows: np.ndarray) -> torch.Tensor:
    return torch.as_tensor(rows).float()


def _seen(
    images: torch.Tensor, masks: torch.Tensor | None, matrices: torch.Tensor, stack: Stack, appearance: Appearance
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Images as the frame shows them, and their weights: real photographs do not end in black."""
    return warp(images, matrices, stack.frame), appearance.covered(matrices, stack.size, stack.frame, masks)


def _status(
    appearance: Appearance, score: np.ndarray, ink: np.ndarray, source_ink: np.ndarray, outside: np.ndarray
) -> np.ndarray:
    status = np.full(len(score), OK, dtype=np.uint8)
    deviation = NORMAL_MAD * np.median(np.abs(score - np.median(score)))
    status[score < np.median(score) - OUTLIER_DEVIATIONS * max(deviation, LEAST_DEVIATION)] = OUTLIER
    if appearance.holds_ink:
        status[ink < LOST_INK * source_ink] = FAILED
        status[blank(source_ink)] = BLANK
    else:
        status[outside > LOST_OUTSIDE] = FAILED
    return status
