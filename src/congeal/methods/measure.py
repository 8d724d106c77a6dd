"""The numbers of an alignment, streamed: quality of the set, score and status of each image."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from congeal.geometry import coverage, invert, warp
from congeal.images import Stack
from congeal.methods.guards import chunks, pixel_area, set_kind
from congeal.metrics import Quality, QualityMeter, mean_scale, score_against_mean


@dataclass
class Measurement:
    quality: Quality
    score: np.ndarray  # (n,) correlation with the mean
    status: np.ndarray  # (n,) "ok", "blank", "failed", "outlier"
    out_of_frame: np.ndarray  # (n,) share of the frame that has no image under it


def measure(stack: Stack, stack_from_frame: np.ndarray) -> Measurement:
    """Quality before and after, in the frame the method worked in. Two passes; memory stays flat."""
    kind = set_kind(stack)
    found = torch.as_tensor(stack_from_frame).float()
    start = torch.as_tensor(stack.start.copy()).float()
    meter = QualityMeter(kind, aligned_area=1 / pixel_area(stack))
    n = len(stack)
    ink, source_ink, outside, outside_before = (np.zeros(n) for _ in range(4))
    with torch.no_grad():
        for part in chunks(stack):
            images, masks = stack.images(part), stack.masks(part)
            before, before_weight = _seen(images, masks, start[part], stack, kind)
            after, after_weight = _seen(images, masks, found[part], stack, kind)
            meter.update_before(before, before_weight)
            meter.update_after(after, images, after_weight, masks)
            ink[part], source_ink[part] = after.flatten(1).sum(1), images.flatten(1).sum(1)
            outside[part] = 1 - coverage(found[part], stack.size, stack.frame).mean((1, 2, 3))
            outside_before[part] = 1 - coverage(start[part], stack.size, stack.frame).mean((1, 2, 3))
        score = np.zeros(n)
        mean = meter.after.mean
        for part in chunks(stack):
            after, weight = _seen(stack.images(part), stack.masks(part), found[part], stack, kind)
            score[part] = score_against_mean(after, mean, weight)
    status = _status(kind, score, ink * pixel_area(stack), source_ink, outside)
    counted = status != "failed" if (status != "failed").any() else np.ones(n, dtype=bool)
    scale = mean_scale(invert(stack_from_frame[counted]), stack.frame, invert(stack.start[counted]))
    quality = meter.finish(mean_scale=scale, out_of_frame=outside, out_of_frame_before=outside_before)
    return Measurement(quality, score, status, outside)


def _seen(
    images: torch.Tensor, masks: torch.Tensor | None, matrices: torch.Tensor, stack: Stack, kind: str
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Images as the frame shows them, and their weights: real photographs do not end in black."""
    shown = warp(images, matrices, stack.frame)
    weight = None
    if masks is not None:
        weight = warp(masks, matrices, stack.frame)
    elif kind == "photo":
        weight = coverage(matrices, stack.size, stack.frame)
    return shown, weight


def _status(kind: str, score: np.ndarray, ink: np.ndarray, source_ink: np.ndarray, outside: np.ndarray) -> np.ndarray:
    status = np.full(len(score), "ok", dtype=object)
    spread = 1.4826 * np.median(np.abs(score - np.median(score)))
    status[score < np.median(score) - 5 * max(spread, 0.02)] = "outlier"
    if kind == "object":
        status[ink < 0.5 * source_ink] = "failed"
        status[source_ink < 0.02 * np.median(source_ink)] = "blank"
    else:
        status[outside > 0.9] = "failed"
    return status
