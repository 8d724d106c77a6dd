"""Division of images into shards. It depends on sizes only, so that sums are the same wherever they are computed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Pixel values of original images in a shard: about ten seconds of decoding on one core.
MAX_ORIGINAL_VALUES_PER_SHARD = 256_000_000
# Images in a shard of small images: about ten seconds of writing files.
MAX_IMAGES_PER_SHARD = 20_000
# Pixel values at working resolution in a shard: about ten seconds of registration on one core.
MAX_WORKING_VALUES_PER_SHARD = 4_000_000
# Shards of a small set, so that several workers have something to do …
MIN_SHARDS = 8
# … unless shards would have fewer images than this, where the overhead of a task dominates.
MIN_IMAGES_PER_SHARD = 25


def divide_images(n: int, values: float) -> list[tuple[int, int]]:
    """(first, stop) of the shards of n images whose originals have `values` pixel values each."""
    by_values = int(MAX_ORIGINAL_VALUES_PER_SHARD // max(1.0, values))
    step = max(1, min(MAX_IMAGES_PER_SHARD, by_values, max(MIN_IMAGES_PER_SHARD, -(-n // MIN_SHARDS))))
    return [(first, min(n, first + step)) for first in range(0, n, step)]


def group_batches(batches: Sequence[np.ndarray], values: int, least: int = MIN_SHARDS) -> list[list[np.ndarray]]:
    """Successive batches of positions grouped into shards.

    values: pixel values of one image at working resolution. least: number of shards if there are as many batches.
    """
    if not batches:
        return []
    images = max(1, MAX_WORKING_VALUES_PER_SHARD // max(1, values))
    together = max(1, min(images // max(1, len(batches[0])), len(batches) // least))
    groups, first = [], 0
    while first < len(batches):  # the last ones are smaller, so that workers finish together
        few = max(-(-together // 4), min(together, -(-(len(batches) - first) // least)))
        groups.append(list(batches[first : first + few]))
        first += few
    return groups
