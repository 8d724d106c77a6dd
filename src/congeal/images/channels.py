"""Which channels of a source a user means: by name, by number from 0, several of them, or "grey"."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from congeal.errors import CongealError
from congeal.images.intensity import AlignOn
from congeal.images.source import ImageSource, UnreadableImage

Channel = int | str | Sequence[int | str] | None
_LOOKED_AT = 16  # images that are asked for their channels where the source does not know


def find_channels(source: ImageSource, channel: Channel) -> AlignOn:
    """Numbers of the channels of a source, or "grey"; one that does not exist is an error that lists those there are.

    A name is taken as it is, then without regard to case. Text that is no name may be a number, or several with commas
    between.
    """
    if channel is None or (isinstance(channel, str) and channel in ("grey", "gray")):
        return None if channel is None else "grey"
    count = _channel_count(source)
    if isinstance(channel, str):
        one = _number(channel, source.channel_names, count)
        if one is not None:
            return one
    parts: list[int | str]
    if isinstance(channel, str):
        parts = [part.strip() for part in channel.split(",")]
    else:
        parts = [channel] if isinstance(channel, int | np.integer) else list(channel)
    found = [_number(part, source.channel_names, count) for part in parts]
    if not found or None in found:
        wrong = parts[found.index(None)] if found else channel
        there = _listed(source.channel_names, count)
        raise CongealError(f"{source.name} has no channel {wrong!r} to align on: it has {there}")
    numbers = [int(n) for n in found if n is not None]
    return numbers[0] if len(numbers) == 1 else numbers  # a list, as it comes back from JSON


def _number(wanted: int | str, names: tuple[str, ...], count: int) -> int | None:
    if isinstance(wanted, str):
        folded = [name.casefold() for name in names]
        if wanted in names:
            return names.index(wanted)
        if wanted.casefold() in folded:
            return folded.index(wanted.casefold())
        if not (wanted.isascii() and wanted.isdecimal()):
            return None
    elif isinstance(wanted, bool) or not isinstance(wanted, int | np.integer):
        return None
    return int(wanted) if 0 <= int(wanted) < count else None


def _channel_count(source: ImageSource) -> int:
    """The most channels that a few of the images have."""
    if source.shape is not None:
        return source.shape[2]
    counts = [1]
    for i in np.unique(np.linspace(0, len(source) - 1, min(len(source), _LOOKED_AT)).astype(int)):
        try:
            counts.append(source.probe(int(i)).channels)
        except UnreadableImage:
            continue
    return max(counts)


def _listed(names: tuple[str, ...], count: int) -> str:
    if names:
        return ", ".join(f"{k} {name!r}" for k, name in enumerate(names))
    return "one channel, 0" if count == 1 else f"channels 0 to {count - 1}, without names"
