"""Video files as sources: frames are decoded one after another, never held together.

The packets are listed once without decoding them, which gives the number of frames, their times and the keyframes.
`read(i)` goes on from the frame before it, or from the last keyframe before i where that is nearer. Where the times
are no use (some AVI files have none), frames are counted from the beginning instead.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from congeal.errors import CongealError, first_line, require
from congeal.images.source import Header, Image, ImageSource, UnreadableImage
from congeal.images.threads import usable_cores

log = logging.getLogger("congeal")

VIDEO = frozenset([".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm"])
_NEAR = 8  # frames that are decoded on the way rather than jumped over
_LOOKED_AT = 24  # frames by which times are checked
_MOST_LOST = 100_000  # frames that a header may claim beyond those that are there; a larger claim is no header's
_GREY = {"gray": "gray", "gray16le": "gray16le", "gray16be": "gray16le"}
CUT_SHORT = "the video ends before this frame: the file was cut short"


def frame_name(name: str, i: int) -> str:
    """The id of a frame, which is also how to choose it: clip.mp4[00005]."""
    return f"{name}[{i:05d}]"


@dataclass(frozen=True)
class _Index:
    """What there is in a video, in the order of showing."""

    times: list[int]  # in the stream's own unit; empty where they are no use
    keys: list[int]  # positions of keyframes
    frames: int  # that are there
    lost: int  # that the header claims beyond them
    header: Header
    rate: float | None  # frames a second


class VideoFrames(ImageSource):
    """The frames of one video file."""

    def __init__(self, path: Path) -> None:
        self.name, self.path = path.name, path
        self._index = _list_packets(path)
        self.frame_rate = self._index.rate
        self.layout = "video" if self._index.header.dtype == np.uint8 else "files"  # no film holds 16 bits
        self._reader, self._lock, self._warned = _Reader(path, self._index), Lock(), False

    def __len__(self) -> int:
        return self._index.frames + self._index.lost

    def id(self, i: int) -> str:
        """Name of frame i."""
        return frame_name(self.name, range(len(self))[i])

    def probe(self, i: int) -> Header:
        """Size and type, as the stream says them."""
        if i >= self._index.frames:
            raise UnreadableImage(CUT_SHORT)
        return self._index.header

    def read(self, i: int) -> Image:
        """Frame i as pixels (H, W, C), upright."""
        if i >= self._index.frames:
            raise UnreadableImage(CUT_SHORT)
        try:
            with self._lock:
                frame = self._reader.frame(i)
            pixels = _pixels(frame)  # in the caller's thread: colours take longer than decoding
        except UnreadableImage:
            raise
        except Exception as error:  # damaged streams raise nearly anything
            raise UnreadableImage(f"damaged frame ({first_line(error)})") from error
        size = pixels.shape[:2]
        if size != (self._index.header.height, self._index.header.width) and not self._warned:
            self._warned = True
            log.warning(
                "%s changes size: %s is %d×%d, not %d×%d (width × height); all frames are used, brought to one size",
                *(self.name, self.id(i), size[1], size[0], self._index.header.width, self._index.header.height),
            )
        return Image(self.id(i), pixels)

    def _some_pixels(self, count: int) -> Iterator[bytes]:
        """None: the file says it all, and looking at frames all over it takes as long as decoding it."""
        return iter(())


class _Reader:
    """Decodes the frames of a video in order and remembers the last few: threads ask for them nearly in order."""

    def __init__(self, path: Path, index: _Index) -> None:
        self.path, self.index, self._can_seek = path, index, bool(index.times)
        self._row = {time: row for row, time in enumerate(index.times)}
        self._kept: OrderedDict[int, Any] = OrderedDict()
        self._room = 2 * usable_cores() + 4
        self._next, self._container, self._frames = 0, None, iter(())  # type: int, Any, Iterator[Any]

    def frame(self, i: int) -> Any:
        """Frame i, decoded now or just before."""
        if i in self._kept:
            return self._kept[i]
        nearest = self._keyframe(i)
        if self._container is None or i < self._next or nearest - self._next > _NEAR:
            self._go_to(nearest)
        found = self._forward(i)
        if found is None and self._can_seek:  # not every file can be entered where it says
            self._can_seek = False
            self._go_to(0)
            found = self._forward(i)
        if found is None:
            raise UnreadableImage("the frame cannot be decoded: the video is damaged there")
        if found.is_corrupt:
            raise UnreadableImage("the frame is damaged")
        return found

    def _keyframe(self, i: int) -> int:
        if not self._can_seek:
            return 0
        place = bisect_right(self.index.keys, i)
        return self.index.keys[place - 1] if place else 0

    def _go_to(self, row: int) -> None:
        """Begin at a keyframe."""
        if self._container is not None:
            self._container.close()
        self._container = container = _open(self.path)
        stream = container.streams.video[0]
        if row:
            container.seek(self.index.times[row], stream=stream)
        self._frames, self._next = _decoded(container, stream), row

    def _forward(self, i: int) -> Any:
        """Decode up to frame i; None if it does not come."""
        begun = self._next
        for frame in self._frames:
            row = self._row.get(frame.pts, -1) if self.index.times else self._next
            if row < begun:
                continue  # of before the keyframe: what it refers to is not there
            self._kept[row] = frame
            if len(self._kept) > self._room:
                self._kept.popitem(last=False)
            self._next = row + 1
            if row >= i:
                return frame if row == i else None
        return None


def open_video(path: Path) -> ImageSource:
    """A video given by itself: every frame is one image."""
    require("av", "video")
    source = VideoFrames(path)
    if not len(source):
        raise CongealError(f"{path} holds no frames")
    return source


def _open(path: Path) -> Any:
    av = require("av", "video")
    try:
        return av.open(str(path))
    except Exception as error:  # what is no video, or a part of one, fails in many ways
        raise CongealError(
            f"{path} cannot be opened as a video ({_plainly(error)}): it is damaged, cut short before its index was "
            "written, or of a kind that is not read"
        ) from error


def _plainly(error: Exception) -> str:
    """What FFmpeg says, without where in it that happened."""
    return str(getattr(error, "strerror", None) or first_line(error))


def _decoded(container: Any, stream: Any) -> Iterator[Any]:
    """Frames in the order of showing, without those that cannot be decoded."""
    av = require("av", "video")
    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets)
        except (StopIteration, av.error.FFmpegError):  # the end, or where the file was cut
            return
        try:
            frames = packet.decode()
        except av.error.FFmpegError:
            continue
        yield from frames


def _list_packets(path: Path) -> _Index:
    """What the packets of a video say, without decoding more than its first frame."""
    with _open(path) as container:
        if not container.streams.video:
            raise CongealError(f"{path} has no video in it, only sound or data")
        stream = container.streams.video[0]
        if stream.codec_context is None:
            raise CongealError(
                f"there is no decoder for the video in {path} here: convert it first, for example with "
                f"'ffmpeg -i {path.name} -c:v libx264 {path.stem}-h264.mp4'"
            )
        times, keys, seen = _packet_times(container, stream)
        claimed, rate = int(stream.frames or 0), stream.average_rate or stream.base_rate
        long = (container.duration or 0) / 1e6 * float(rate or 0)  # in frames; some kinds of file know only this
    first = _first_frames(path)
    if not first:
        return _Index([], [], 0, 0, Header(0, 0, 3, np.dtype(np.uint8)), None)
    known = None not in times and len(set(times)) == len(times)
    # Some files note times that are not those of showing: the first frames tell.
    usable = known and (ordered := sorted(times))[: len(first)] == [frame.pts for frame in first]
    frames = len(times) if usable else _count(path)
    lost = claimed - seen if usable else claimed - frames
    if not 0 <= lost <= _MOST_LOST:
        lost = 0
    if not claimed and long > 1.1 * frames + 2:
        log.warning("%s was cut short: %d of about %d frames are there", path, frames, long)
    row = {time: k for k, time in enumerate(ordered)} if usable else {}
    pixels = _pixels(first[0])
    header = Header(pixels.shape[0], pixels.shape[1], pixels.shape[2], pixels.dtype)
    rows = sorted(row[key] for key in keys if key in row)
    return _Index([*row], rows, frames, lost, header, float(rate) if rate else None)


def _packet_times(container: Any, stream: Any) -> tuple[list[Any], list[Any], int]:
    """Times of the packets that are shown, those of keyframes, and how many packets there are in all."""
    av = require("av", "video")
    times, keys, seen = list[Any](), list[Any](), 0
    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets)
        except (StopIteration, av.error.FFmpegError):
            return times, keys, seen
        if not packet.size:
            continue
        seen += 1
        if getattr(packet, "is_discard", False):
            continue
        times.append(packet.pts)
        if packet.is_keyframe:
            keys.append(packet.pts)


def _first_frames(path: Path) -> list[Any]:
    with _open(path) as container:
        return [*islice(_decoded(container, container.streams.video[0]), _LOOKED_AT)]


def _count(path: Path) -> int:
    with _open(path) as container:
        return sum(1 for _ in _decoded(container, container.streams.video[0]))


def _pixels(frame: Any) -> np.ndarray:
    """(H, W, C) of a frame as it is to be shown: grey stays grey, everything else is 8-bit RGB."""
    grey = _GREY.get(frame.format.name)
    pixels = frame.to_ndarray(format=grey or "rgb24")
    pixels = pixels if pixels.ndim == 3 else pixels[..., None]
    turns = round(getattr(frame, "rotation", 0) / 90) % 4  # a phone notes how it was held
    return np.ascontiguousarray(np.rot90(pixels, turns))
