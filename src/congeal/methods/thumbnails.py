"""Small pictures of an alignment, for notebooks."""

from __future__ import annotations

import numpy as np
import torch

from congeal.evaluation.quality import Preview, Thumbnail
from congeal.geometry import warp
from congeal.images import Stack
from congeal.images.formats.encode import png_bytes
from congeal.rows import row_slices
from congeal.transforms import STATUSES

MAX_THUMBNAILS = 5  # of the images that match least
LOW_CONTRAST_SHARE = 0.43  # of the range; means that use less of it are shown with their contrast stretched


def make_preview(
    stack: Stack,
    stack_from_frame: np.ndarray,
    means: tuple[np.ndarray, np.ndarray],
    score: np.ndarray,
    status: np.ndarray,
) -> Preview:
    """Means (C,h,w) on the 0–255 scale, and the images that match least, as the frame shows them."""
    black, white = _range(means)
    order = _worst(score, status)

    def shown(values: np.ndarray) -> bytes:
        channels = values if len(values) in (1, 3) else values.mean(0, keepdims=True)
        levels = np.clip((channels - black) * (255 / (white - black)), 0, 255).round().astype(np.uint8)
        return png_bytes(np.ascontiguousarray(levels.transpose(1, 2, 0)))

    def thumbnail(i: int) -> Thumbnail:
        image = stack.images([i])
        before, after = (
            255 * warp(image, torch.as_tensor(np.nan_to_num(poses[[i]])).float(), stack.frame)[0].numpy()
            for poses in (stack.start, stack_from_frame)
        )
        name, word = stack.source.id(int(stack.kept[i])), STATUSES[int(status[i])]
        return Thumbnail(name, word, float(score[i]), shown(before), shown(after))

    before, after = means
    return Preview(shown(before), shown(after), stack.frame[1], tuple(thumbnail(int(i)) for i in order))


def _worst(score: np.ndarray, status: np.ndarray) -> np.ndarray:
    """Positions of the few that match least, flagged ones first."""
    found = np.zeros(0, dtype=np.int64)
    for part in row_slices(len(score)):
        rows = np.concatenate([found, np.arange(part.start, part.stop)])
        order = np.lexsort((np.nan_to_num(score[rows], nan=2.0), status[rows] == STATUSES.index("ok")))
        found = rows[order[:MAX_THUMBNAILS]]
    return found


def _range(means: tuple[np.ndarray, np.ndarray]) -> tuple[float, float]:
    """Values that are shown black and white: the whole range, unless the means use little of it."""
    low, high = (float(value) for value in np.nanquantile(means[1], [0.005, 0.995]))
    return (low, high) if 1 <= high - low < LOW_CONTRAST_SHARE * 255 else (0.0, 255.0)
