"""Pixel values of any type as grey levels that can be looked at."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from PIL import Image as Pillow

from congeal.images.encode import png_bytes
from congeal.images.intensity import range_name
from congeal.runs.folder import RunFolder

Size = tuple[int, int]


@dataclass(frozen=True)
class DisplayRange:
    """How pixel values become grey levels: `black` and `white` for what is not 8-bit, in 1 or 3 `channels`.

    In a set of several dtypes `ranges` holds black and white of each, by `range_name`.
    """

    black: float
    white: float
    channels: int
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def span(self, dtype: np.dtype) -> tuple[float, float]:
        """The values of this dtype that are shown black and white."""
        if dtype == np.uint8:
            return 0.0, 255.0
        if dtype.kind == "b":
            return 0.0, 1.0
        black, white = self.ranges.get(range_name(dtype), (self.black, self.white))
        return black, white

    def levels(self, pixels: np.ndarray) -> np.ndarray:
        """(..., C) native pixels → (..., channels) on the 0–255 scale."""
        if pixels.dtype == np.uint8:
            values = pixels
        else:
            black, white = self.span(pixels.dtype)
            values = (pixels.astype(np.float32) - black) * (255 / (white - black))
        if values.shape[-1] == self.channels:
            return values
        return np.repeat(values.mean(-1, keepdims=True, dtype=np.float32), self.channels, axis=-1)


def display_range_of(run: RunFolder) -> DisplayRange:
    """How the images of a run are shown; floats from 0 to 1 where the run does not say."""
    return DisplayRange(**(run.state.get("look") or {"black": 0.0, "white": 1.0, "channels": 1}))


def smaller(size: Size, longest: int) -> Size:
    """The same (height, width) shape, its longer side at most `longest`."""
    scale = min(1.0, longest / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def png(values: np.ndarray, longest: int | None = None) -> bytes:
    """(h, w, 1 or 3) on the 0–255 scale → an 8-bit PNG, its longer side at most `longest`."""
    grey_levels = values if values.dtype == np.uint8 else np.rint(np.clip(values, 0, 255)).astype(np.uint8)
    shrink = 1 if longest is None else max(values.shape[:2]) / longest
    if longest is not None and shrink > 1:
        picture = Pillow.fromarray(grey_levels[..., 0] if grey_levels.shape[-1] == 1 else grey_levels)
        if shrink > 3:
            picture = picture.reduce(math.ceil(shrink))  # plain averages, in half the time
        else:
            picture.thumbnail((longest, longest))
        small = np.asarray(picture)
        grey_levels = small.reshape(*small.shape[:2], -1)
    return png_bytes(grey_levels)
