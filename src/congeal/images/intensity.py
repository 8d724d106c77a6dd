"""Pixel values of any type → [0, 1]: black, white and the channels that are aligned on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Literal

import numpy as np

from congeal.errors import CongealError
from congeal.images.sources.base import PROBED_IMAGES, ImageSource, UnreadableImage
from congeal.rows import evenly_spaced_rows

Channel = int | str | Sequence[int | str] | None
AlignOn = int | Sequence[int] | Literal["grey"] | None
# `range_name` of a dtype → the (black, white) values of its images.
Ranges = Mapping[str, tuple[float, float]]
# Largest magnitude of a pixel value: computations use single precision, which ends at 3e38.
MAX_MAGNITUDE = 1e38
# Pixel values that are read together where a whole set is scanned or copied: 1 to 8 MB.
CHUNK_VALUES = 1 << 20
NOT_FINITE = "the image has NaN, infinite or huge values (beyond 1e38)"
_LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)


def intensity_range(dtype: np.dtype, low: float, high: float) -> tuple[float, float]:
    """(black, white) for a set of images of one dtype whose smallest and largest values are `low` and `high`.

    uint8 and bool have fixed ranges. Other integers rarely use their whole range (12 bits in 16), so white is the set's
    largest value. Floats up to 1 are taken as they are. Negative values move black down to the smallest.
    """
    if dtype == np.uint8:
        return 0.0, 255.0
    if dtype.kind == "b":
        return 0.0, 1.0
    black = min(low, 0.0)
    white = high if dtype.kind != "f" or high > 1 or black < 0 else 1.0
    if np.float32(white) <= np.float32(black):  # one value, or values that single precision cannot tell apart
        white = max(black + 1.0, float(np.nextafter(np.float32(black), np.float32(np.inf))))
    return black, white


def finite(pixels: np.ndarray, axis: int | None = None) -> np.ndarray:
    """Whether all values along an axis, or all there are, can be worked with: neither NaN nor too large."""
    if pixels.dtype.kind != "f":
        return np.ones((), bool) if axis is None else np.ones(np.delete(pixels.shape, axis), bool)
    most = np.float64(MAX_MAGNITUDE)
    return np.asarray((pixels.min(axis) >= -most) & (pixels.max(axis) <= most))  # a NaN is neither


def range_name(dtype: np.dtype) -> str:
    """Images of which dtypes share one range: every integer type has its own, floats of any width are one."""
    return "float" if dtype.kind == "f" else dtype.name


def select_channels(pixels: np.ndarray, align_on: AlignOn) -> np.ndarray:
    """The channels (last axis) a method looks at; "grey" is luma for three channels and the mean for other counts."""
    if align_on is None:
        return pixels
    channels = pixels.shape[-1]
    if isinstance(align_on, str):
        if align_on != "grey":
            raise CongealError(f"align_on is a channel number, a list of them or 'grey', not '{align_on}'")
        if channels == 1:
            return pixels
        weights = _LUMA if channels == 3 else np.full(channels, 1 / channels, dtype=np.float32)
        return (pixels.astype(np.float32) @ weights)[..., None]
    wanted = [align_on] if isinstance(align_on, int | np.integer) else list(align_on)
    if not wanted or not all(0 <= channel < channels for channel in wanted):
        raise CongealError(f"channel {align_on} is to be aligned on, but the image has channels 0 to {channels - 1}")
    return pixels[..., wanted]


def find_channels(source: ImageSource, channel: Channel) -> AlignOn:
    """Numbers of the channels of a source, or "grey"; one that does not exist is an error that lists the others.

    A name is taken as it is, then without regard to case. Text that is no name may be a number, or several names and
    numbers with commas between.
    """
    if channel is None or (isinstance(channel, str) and channel in ("grey", "gray")):
        return None if channel is None else "grey"
    names, count = source.channel_names, 1
    for i in evenly_spaced_rows(len(source), PROBED_IMAGES if source.shape is None else 1):
        with suppress(UnreadableImage):
            count = max(count, source.probe(int(i)).channels)
    parts = [channel] if isinstance(channel, str | int | np.integer) else list(channel)
    found = [_number(part, names, count) for part in parts]
    if isinstance(channel, str) and found == [None]:
        parts = [part.strip() for part in channel.split(",")]
        found = [_number(part, names, count) for part in parts]
    if not found or None in found:
        wrong = parts[found.index(None)] if found else channel
        known = ", ".join(f"{k} {name!r}" for k, name in enumerate(names))
        known = known or ("one channel, 0" if count == 1 else f"channels 0 to {count - 1}, without names")
        raise CongealError(f"{source.name} has no channel {wrong!r} to align on: it has {known}")
    numbers = [int(n) for n in found if n is not None]
    return numbers[0] if len(numbers) == 1 else numbers  # a list, as it comes back from JSON


def _number(wanted: int | str, names: tuple[str, ...], count: int) -> int | None:
    if isinstance(wanted, str):
        for known, word in ((list(names), wanted), ([name.casefold() for name in names], wanted.casefold())):
            if word in known:
                return known.index(word)
        if not (wanted.isascii() and wanted.isdecimal()):
            return None
    elif isinstance(wanted, bool) or not isinstance(wanted, int | np.integer):
        return None
    return int(wanted) if 0 <= int(wanted) < count else None
