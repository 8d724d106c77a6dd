"""Videos (extra `video`) and animated GIF and WebP files, read frame by frame and written as MP4 or GIF.

Reading: the packets are listed once without decoding them, which gives the number of frames, their times and the
keyframes. If the times are unusable (some AVI files have none), frames are counted from the beginning.

Writing: frames are added in the order of the source, and the file appears when it is complete. A run that was
interrupted makes the frames again from the originals, which gives the same file.
"""

from __future__ import annotations

import io
import logging
from abc import abstractmethod
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from fractions import Fraction
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import IO, Any

import numpy as np
from PIL import Image as Pillow
from PIL.GifImagePlugin import getdata

from congeal.errors import CongealError, first_line, require
from congeal.execution.threads import usable_cores
from congeal.files import replacing, writing
from congeal.images.formats.decode import as_unopenable, as_unreadable, check_size, make_image
from congeal.images.formats.writers import FILE_ENDS, VIDEO_FORMATS, Size, Writer, is_complete
from congeal.images.sources.base import Header, Image, ImageSource, UnreadableImage

log = logging.getLogger("congeal")

VIDEO = frozenset([".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm"])
ANIMATION = frozenset([".gif", ".webp"])
CUT_SHORT = "the video ends before this frame: the file was cut short"
# Frames whose decoded times are compared with those of the packets. Chosen by judgement: about one second.
CHECKED_FRAMES = 24
# A header that claims more missing frames than this is damaged. Chosen by judgement: about an hour of video.
MAX_MISSING_FRAMES = 100_000
# Frame rate of a video whose images have none of their own. Chosen by judgement: a common rate.
DEFAULT_FRAMES_PER_SECOND = 25.0
# Threads of the encoder, on any machine: another number would give other bytes.
ENCODER_THREADS = 4
# Shortest duration of a GIF frame, in hundredths of a second: browsers slow down faster changes.
MIN_GIF_HUNDREDTHS = 2
_GREY = {"gray": "gray", "gray16le": "gray16le", "gray16be": "gray16le"}
# Without cpu-independent, x264 writes other bytes on other processors.
_X264_OPTIONS = {"crf": "18", "preset": "veryfast", "x264-params": "cpu-independent=1"}
_GIF_LOOP = b"!\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00"


class VideoFrames(ImageSource):
    """The frames of one video file, decoded in order; threads ask for them nearly so: the last few are kept."""

    def __init__(self, path: Path) -> None:
        self.name, self.path, self._lock, self._warned = path.name, path, Lock(), False
        self._kept: OrderedDict[int, Any] = OrderedDict()
        self._next, self._container, self._decoded = 0, None, iter(())  # type: int, Any, Iterator[Any]
        with _open(path) as container:
            stream = _video_stream(path, container)
            packets = [
                (packet.pts, packet.is_keyframe, bool(getattr(packet, "is_discard", False)))
                for packet in _packets(container, stream)
                if packet.size
            ]
            claimed, rate = int(stream.frames or 0), stream.average_rate or stream.base_rate
            long = (container.duration or 0) / 1e6 * float(rate or 0)  # in frames; some files state only the duration
        first = [*islice(_frames_of(path), CHECKED_FRAMES)]
        if not first:
            raise CongealError(f"{path} holds no frames")
        times = [time for time, _, hidden in packets if not hidden]
        usable = None not in times and len(set(times)) == len(times)
        # In some files these are not presentation times, which the first frames show.
        usable = usable and sorted(times)[: len(first)] == [frame.pts for frame in first]
        self._times = sorted(times) if usable else []  # in the time base of the stream, in presentation order
        self._row = {time: row for row, time in enumerate(self._times)}
        self._keyframes = sorted(self._row[time] for time, is_key, _ in packets if is_key and time in self._row)
        self._n_present = len(times) if usable else sum(1 for _ in _frames_of(path))
        missing = claimed - (len(packets) if usable else self._n_present)
        self._n_frames = self._n_present + (missing if 0 <= missing <= MAX_MISSING_FRAMES else 0)
        if not claimed and long > 1.1 * self._n_present + 2:
            log.warning("%s was cut short: %d of about %d frames are there", path, self._n_present, long)
        pixels = _pixels(first[0])
        height, width, channels = pixels.shape
        self._header = Header(height, width, channels, pixels.dtype)
        self.frame_rate = float(rate) if rate else None
        self.layout = "video" if pixels.dtype == np.uint8 else "files"  # MP4 and GIF hold 8 bits

    def __len__(self) -> int:
        return self._n_frames

    def id(self, i: int) -> str:
        return f"{self.name}[{range(len(self))[i]:05d}]"  # which also selects it

    def probe(self, i: int) -> Header:
        if i >= self._n_present:
            raise UnreadableImage(CUT_SHORT)
        return self._header

    def read(self, i: int) -> Image:
        header = self.probe(i)
        with as_unreadable("frame", self.id(i)):
            with self._lock:
                frame = self._frame(i)
            pixels = _pixels(frame)  # outside the lock: colour conversion takes longer than decoding
        size = pixels.shape[:2]
        if size != (header.height, header.width) and not self._warned:
            self._warned = True
            log.warning(
                "%s changes size: %s is %d×%d, not %d×%d (width × height); all frames are used, brought to one size",
                *(self.name, self.id(i), size[1], size[0], header.width, header.height),
            )
        return Image(self.id(i), pixels)

    def _frame(self, i: int) -> Any:
        """Frame i, decoded now or recently: from the frame before it or from a keyframe, whichever is nearer."""
        if i in self._kept:
            return self._kept[i]
        place = bisect_right(self._keyframes, i)
        nearest = self._keyframes[place - 1] if place else 0
        if self._container is None or i < self._next or nearest > self._next:
            self._seek(nearest)
        found = self._decode_until(i)
        if found is None and self._keyframes:  # some files cannot be decoded from their keyframes
            self._keyframes = []
            self._seek(0)
            found = self._decode_until(i)
        if found is None:
            raise UnreadableImage("the frame cannot be decoded: the video is damaged there")
        if found.is_corrupt:
            raise UnreadableImage("the frame is damaged")
        return found

    def _seek(self, row: int) -> None:
        if self._container is not None:
            self._container.close()
        self._container = container = _open(self.path)
        if row:
            container.seek(self._times[row], stream=container.streams.video[0])
        self._decoded, self._next = _decode_frames(container), row

    def _decode_until(self, i: int) -> Any:
        """Decode up to frame i; None if there is none."""
        begun = self._next
        for frame in self._decoded:
            row = self._row.get(frame.pts, -1) if self._times else self._next
            if row < begun:
                continue  # before the keyframe: its reference frames were not decoded
            self._kept[row] = frame
            if len(self._kept) > 2 * usable_cores() + 4:
                self._kept.popitem(last=False)
            self._next = row + 1
            if row >= i:
                return frame if row == i else None
        return None


def _open(path: Path) -> Any:
    av = require("av", "video")
    try:
        return av.open(str(path))
    except Exception as error:  # what is no video, or a part of one, fails in many ways
        reason = getattr(error, "strerror", None) or first_line(error)  # without the place in FFmpeg's source
        raise CongealError(
            f"{path} cannot be opened as a video ({reason}): it is damaged, cut short before its "
            "index was written, or of a kind that is not read"
        ) from error


def _video_stream(path: Path, container: Any) -> Any:
    if not container.streams.video:
        raise CongealError(f"{path} has no video in it, only sound or data")
    stream = container.streams.video[0]
    if stream.codec_context is None:
        raise CongealError(
            f"there is no decoder for the video in {path} here: convert it first, for example with "
            f"'ffmpeg -i {path.name} -c:v libx264 {path.stem}-h264.mp4'"
        )
    return stream


def _packets(container: Any, stream: Any) -> Iterator[Any]:
    """The packets of a stream up to its end, or to where the file was cut."""
    with suppress(require("av", "video").error.FFmpegError):
        yield from container.demux(stream)


def _decode_frames(container: Any) -> Iterator[Any]:
    """Frames in presentation order, without those that cannot be decoded."""
    damaged = require("av", "video").error.FFmpegError
    for packet in _packets(container, container.streams.video[0]):
        with suppress(damaged):
            yield from packet.decode()


def _frames_of(path: Path) -> Iterator[Any]:
    with _open(path) as container:
        yield from _decode_frames(container)


def _pixels(frame: Any) -> np.ndarray:
    """(H, W, C) of a frame as displayed: grey stays grey, everything else is 8-bit RGB."""
    grey = _GREY.get(frame.format.name)
    pixels = frame.to_ndarray(format=grey or "rgb24")
    pixels = pixels if pixels.ndim == 3 else pixels[..., None]
    turns = round(getattr(frame, "rotation", 0) / 90) % 4  # phones store the rotation
    return np.ascontiguousarray(np.rot90(pixels, turns))


class Animation(ImageSource):
    """The frames of one animated GIF or WebP, which is written as a GIF."""

    layout = "gif"

    def __init__(self, path: Path, picture: Pillow.Image, frames: int) -> None:
        self.name, self.path, self._picture, self._n_frames, self._lock = path.name, path, picture, frames, Lock()
        picture.seek(0)
        picture.load()
        milliseconds = picture.info.get("duration") or 0
        self.frame_rate = 1000 / milliseconds if milliseconds else None

    def __len__(self) -> int:
        return self._n_frames

    def id(self, i: int) -> str:
        return f"{self.name}[{range(len(self))[i]:05d}]"  # which also selects it

    def probe(self, i: int) -> Header:
        width, height = self._picture.size
        return Header(height, width, 3, np.dtype(np.uint8))

    def read(self, i: int) -> Image:
        width, height = self._picture.size
        check_size(height, width, 4 * height * width)
        with as_unreadable("frame", self.id(i)), self._lock:
            self._picture.seek(i)
            pixels = np.array(self._picture.convert("RGBA"))
        opaque = bool((pixels[..., 3] == 255).all())
        return make_image(self.id(i), pixels[..., :3] if opaque else pixels, has_alpha=not opaque)


def open_animation(path: Path) -> ImageSource | None:
    """The frames of an animation; None for a still or unreadable image, which is opened as one image."""
    try:
        picture = Pillow.open(path)
        frames = int(getattr(picture, "n_frames", 1))
    except Exception:  # reading it as one image reports the reason
        return None
    if frames < 2:
        picture.close()
        return None
    with as_unopenable(path, "animation"):
        return Animation(path, picture, frames)


def check_video_output(format: str, source: ImageSource) -> None:
    """Raise an error, before any work, for images that a video cannot hold."""
    if format not in VIDEO_FORMATS:
        return
    if format == "mp4":
        require("av", "video")
    for i in range(min(len(source), 8)):
        try:
            header = source.probe(i)
        except UnreadableImage:
            continue
        _check_kind(source.id(i), header.channels, header.dtype, format)
        return


def _check_kind(id: str, channels: int, dtype: np.dtype, format: str) -> None:
    if dtype not in (np.uint8, bool) or channels not in (1, 3):
        raise CongealError(
            f"{format} holds 8-bit grey or colour, and {id} has {channels} channel(s) of {dtype}: write tiff or files"
        )


class VideoWriter(Writer):
    """Base of the MP4 and GIF writers: frames are encoded in any thread and added in order to one file."""

    format: str
    end: Any  # what is added after the last frame

    def __init__(self, folder: Path, source: ImageSource, size: Size, *, alone: bool = True) -> None:
        super().__init__(folder, source, size, alone=alone)
        self.path = folder / f"aligned.{self.format}"
        self.rate = Fraction(source.frame_rate or DEFAULT_FRAMES_PER_SECOND).limit_denominator(1001)
        self._complete, self._open = is_complete(self.path), ExitStack()
        self._add: Callable[[Any], Any] | None = None  # a frame to the open file

    def done(self, index: int) -> bool:
        return self._complete

    def _encode(self, index: int, pixels: np.ndarray, mask: np.ndarray | None) -> Any:
        _check_kind(self.source.id(index), pixels.shape[-1], pixels.dtype, self.format)
        return self._frame(index, pixels.astype(np.uint8) * np.uint8(255) if pixels.dtype == bool else pixels)

    def _put(self, index: int, encoded: Any) -> None:
        with writing(self.path):
            if self._add is None:
                self._add = self._begin(self._open.enter_context(replacing(self.path)))
            self._add(encoded)

    def close(self) -> None:
        if self._add is not None:
            with writing(self.path):
                self._add(self.end)
                self._open.close()
            self._add, self._complete = None, True

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()
        else:
            self._open.__exit__(kind, error, trace)  # an incomplete video is useless

    @abstractmethod
    def _frame(self, index: int, pixels: np.ndarray) -> Any:
        """8-bit pixels (h, w, 1 or 3) → a frame of the file."""

    @abstractmethod
    def _begin(self, file: IO[bytes]) -> Callable[[Any], Any]:
        """Begin the file; returns what adds a frame to it."""


class Mp4Writer(VideoWriter):
    """`aligned.mp4`: H.264, each frame at its time in the source, so that a skipped frame prolongs the one before."""

    format, end = "mp4", None

    def _frame(self, index: int, pixels: np.ndarray) -> Any:
        av = require("av", "video")
        height, width = pixels.shape[:2]
        if height % 2 or width % 2:  # colour is subsampled by two, so sides are even
            pixels = np.pad(pixels, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        colour = np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))
        frame = av.VideoFrame.from_ndarray(colour, format="rgb24").reformat(format="yuv420p")
        frame.pts, frame.time_base = index, 1 / self.rate
        return frame

    def _begin(self, file: IO[bytes]) -> Callable[[Any], Any]:
        av = require("av", "video")

        def mark_end() -> None:  # behind the index, which is written when the container is closed
            file.seek(0, io.SEEK_END)
            file.write(FILE_ENDS[".mp4"])

        self._open.callback(mark_end)
        container = self._open.enter_context(av.open(file, "w", format="mp4"))
        try:
            stream = container.add_stream("libx264", rate=self.rate)
        except Exception as error:  # PyAV versions raise different errors for a missing codec
            raise CongealError("the installed PyAV cannot write H.264: use --output-format gif or files") from error
        stream.height, stream.width = (side + side % 2 for side in self.size)
        stream.pix_fmt, stream.options = "yuv420p", dict(_X264_OPTIONS)
        stream.codec_context.thread_count = ENCODER_THREADS
        return lambda frame: container.mux(stream.encode(frame))


class GifWriter(VideoWriter):
    """`aligned.gif`: complete frames, each with its own palette; grey is kept exactly."""

    format, end = "gif", b";"

    def _frame(self, index: int, pixels: np.ndarray) -> bytes:
        begin, end = (round(100 * k / self.rate) for k in (index, index + 1))
        duration = 10 * max(MIN_GIF_HUNDREDTHS, end - begin)
        grey = pixels.shape[-1] == 1
        picture = Pillow.fromarray(pixels[..., 0] if grey else np.ascontiguousarray(pixels))
        picture = picture.convert("P") if grey else picture.quantize(256)  # only these have a palette to be written
        return b"".join(getdata(picture, duration=duration, disposal=1, include_color_table=True))

    def _begin(self, file: IO[bytes]) -> Callable[[Any], Any]:
        height, width = self.size
        file.write(b"GIF89a" + width.to_bytes(2, "little") + height.to_bytes(2, "little") + bytes(3) + _GIF_LOOP)
        return file.write
