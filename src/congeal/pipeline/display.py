"""Pixel values of any data type as grey levels for display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congeal.images import Stack
from congeal.images.formats.output_files import png_bytes
from congeal.images.intensity import range_name
from congeal.images.resample import shrink_pixels
from congeal.rows import evenly_spaced_rows
from congeal.runs.folder import RunFolder

Size = tuple[int, int]
SAMPLED_IMAGES = 32
"""Number of images from which the display range of a set is chosen, by judgement: it is their median."""
TAIL_SHARE = 0.002
"""Share of an image's pixels that may be darker than black, and as many brighter than white; chosen by judgement."""
NARROW_RANGE = 0.6
"""If the remaining pixels span less than this part of the range, that part is shown from black to white; chosen by
judgement."""
# Of channels on one another; the first two differ for the colour-blind as well.
COLOURS = ((0, 1, 0), (1, 0, 1), (0, 0, 1), (1, 0, 0), (0, 1, 1), (1, 1, 0), (1, 1, 1))


@dataclass(frozen=True)
class DisplayRange:
    """How pixel values become grey levels: `black` and `white` for what is not 8-bit, in 1 or 3 `channels`.

    In a set of several dtypes `ranges` holds black and white of each, by `range_name`. `shown` are the channels of a
    stack that are looked at, each with its own black and white in `by_channel`, and drawn in colours on one another.
    """

    black: float
    white: float
    channels: int
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    shown: Sequence[int] = ()
    by_channel: Sequence[tuple[float, float]] = ()

    @property
    def eight_bit(self) -> bool:
        """Whether all images of the set are 8-bit, whose levels are their pixels."""
        return not self.shown and set(self.ranges) == {"uint8"}

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
        if self.shown and pixels.shape[-1] > max(self.shown):
            return self._composite(pixels)
        if pixels.dtype == np.uint8:
            values = pixels
        else:
            black, white = self.span(pixels.dtype)
            values = (pixels.astype(np.float32) - black) * (255 / (white - black))
        if values.shape[-1] == self.channels:
            return values
        return np.repeat(values.mean(-1, keepdims=True, dtype=np.float32), self.channels, axis=-1)

    def _composite(self, pixels: np.ndarray) -> np.ndarray:
        """The shown channels, each stretched by itself: one in grey, several in colours that add up."""
        out = np.zeros((*pixels.shape[:-1], self.channels), np.float32)
        for k, (channel, (black, white)) in enumerate(zip(self.shown, self.by_channel, strict=True)):
            level = np.clip((pixels[..., channel].astype(np.float32) - black) * (255 / (white - black)), 0, 255)
            colour = COLOURS[k % len(COLOURS)] if self.channels == 3 else (1,)
            out += level[..., None] * np.array(colour, np.float32)
        return np.minimum(out, 255, out=out)


def choose_display_range(stack: Stack) -> dict[str, Any]:
    """How the images of a stack are shown: `DisplayRange` as a dict.

    What is not 8-bit is shown from black to white of the stack, or closer where nearly all of its values lie in a small
    part of that range: one hot pixel must not leave everything else black. 8-bit images stay as they are.
    """
    black, white = stack.intensity
    low, high = _central_range(stack) if set(stack.layout.ranges or {"uint8"}) - {"uint8", "bool"} else (0.0, 1.0)

    def closer(ends: tuple[float, float]) -> tuple[float, float]:
        span = ends[1] - ends[0]
        return (ends[0] + low * span, ends[0] + high * span)

    black, white = closer((black, white))
    colours = 3 if 3 in stack.source_channels else 1
    ranges = {name: ends if name in ("uint8", "bool") else closer(ends) for name, ends in stack.layout.ranges.items()}
    return {"black": black, "white": white, "channels": colours, "ranges": ranges, **_own_channels(stack)}


def _own_channels(stack: Stack) -> dict[str, Any]:
    """How channels that are no colours are shown: those of an axis of their own, or as many as are neither 1 nor 3.

    Each is stretched by itself, because one may be a hundred times as bright as another; those that were aligned on
    are shown. Empty for all other images.
    """
    count, planes = max(stack.source_channels), (stack.source.parts or stack.source).hyperstack
    named = bool(stack.source.channel_names) or (planes is not None and planes.length("C") > 1)
    if len(stack.source_channels) > 1 or count < 2 or (count == 3 and not named):
        return {}
    shown = list(range(count))
    if stack.align_on is not None and stack.align_on != "grey":
        shown = [stack.align_on] if isinstance(stack.align_on, int) else list(stack.align_on)
    if stack.channels != len(shown):  # aligned in grey: their sum is all that is known
        return {}
    some = evenly_spaced_rows(len(stack), SAMPLED_IMAGES)
    values = (stack.unscaled([int(i)])[0].reshape(len(shown), -1) for i in some)
    low, high = np.median([np.quantile(one, [TAIL_SHARE, 1 - TAIL_SHARE], axis=1) for one in values], axis=0)
    spans = [(float(a), float(b) if b > a else float(a) + 1) for a, b in zip(low, high, strict=True)]
    return {"channels": 1 if len(shown) == 1 else 3, "shown": shown, "by_channel": spans}


def _central_range(stack: Stack) -> tuple[float, float]:
    """The part of [0, 1] that nearly all values of a few images lie in; all of it where that is most of it."""
    some = evenly_spaced_rows(len(stack), SAMPLED_IMAGES)
    ends = np.array([np.quantile(stack.images([int(i)]).numpy(), [TAIL_SHARE, 1 - TAIL_SHARE]) for i in some])
    low, high = (float(value) for value in np.median(ends, axis=0))
    low = 0.0 if stack.kind == "object" else low
    if not 1e-6 < high - low < NARROW_RANGE:
        return 0.0, 1.0
    margin = 0.1 * (high - low)
    return max(0.0, low - margin), min(1.0, high + margin)


def display_range_of(run: RunFolder) -> DisplayRange:
    """How the images of a run are shown; floats from 0 to 1 where the run does not say."""
    return DisplayRange(**(run.state.get("look") or {"black": 0.0, "white": 1.0, "channels": 1}))


def fit_within(size: Size, longest: int) -> Size:
    """The same (height, width) shape, its longer side at most `longest`."""
    scale = min(1.0, longest / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def png(values: np.ndarray, longest: int | None = None) -> bytes:
    """(h, w, 1 or 3) on the 0–255 scale → an 8-bit PNG, its longer side at most `longest`."""
    grey_levels = values
    if values.dtype != np.uint8:
        grey_levels = np.rint(np.clip(np.nan_to_num(values), 0, 255)).astype(np.uint8)
    height, width = values.shape[:2]
    if longest is not None and max(height, width) > longest:
        grey_levels = shrink_pixels(grey_levels[None], fit_within((height, width), longest))[0]
    return png_bytes(grey_levels)
