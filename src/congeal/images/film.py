"""Aligned images as one moving picture, MP4 or GIF.

A film has no place for what comes late: frames are added in the order of the source, and the file appears when it is
whole. A run that was stopped in between makes the frames again from the originals, which gives the same file.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import ExitStack
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image as Pillow

from congeal.errors import CongealError, require
from congeal.files import is_plain, replacing, writing
from congeal.images.source import ImageSource, UnreadableImage
from congeal.images.writers import Size, Writer

FILMS = ("mp4", "gif")
USUAL_RATE = 25.0  # frames a second where the images do not say
# The first that is there. With shortcuts of its own for each processor, x264 gives other bytes from film to film.
_CODECS = {
    "libx264": {"crf": "18", "preset": "veryfast", "x264-params": "cpu-independent=1"},
    "mpeg4": {"q": "2"},
}
_THREADS = 4  # of the encoder, on any machine: another number would give other bytes
_SHORTEST = 2  # hundredths of a second: browsers slow down what changes faster
_LOOP = b"!\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00"


def check_film(format: str, source: ImageSource) -> None:
    """Refuse, before any work, what a film cannot hold."""
    if format not in FILMS:
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


class FilmWriter(Writer):
    """What both kinds share: order, and one file that is there or not. Frames are made ready in any thread."""

    format: str

    def __init__(self, folder: Path, source: ImageSource, size: Size) -> None:
        super().__init__(folder, source, size)
        self.path = folder / f"aligned.{self.format}"
        self.rate = Fraction(source.frame_rate or USUAL_RATE).limit_denominator(1001)
        self._complete = is_plain(self.path) and self._is_whole()
        self._open = ExitStack()
        self._begun = False

    def write(self, index: int, pixels: np.ndarray, mask: np.ndarray | None = None) -> None:
        """Add frame `index`."""
        self._add(index, self._ready(index, pixels))

    def begin_new(self, indices: np.ndarray, pixels: np.ndarray, masks: np.ndarray | None = None) -> Callable[[], None]:
        """Make the frames ready; they are added in the second step."""
        ready = [] if self._complete else [(i, self._ready(i, pixels[k])) for k, i in enumerate(indices.tolist())]
        return partial(self._add_all, ready)

    def done(self, index: int) -> bool:
        """Whether the film is complete."""
        return self._complete

    def _ready(self, index: int, pixels: np.ndarray) -> Any:
        _check_kind(self.source.id(index), pixels.shape[-1], pixels.dtype, self.format)
        return self._frame(pixels.astype(np.uint8) * np.uint8(255) if pixels.dtype == bool else pixels)

    def _add_all(self, ready: list[tuple[int, Any]]) -> None:
        for index, frame in ready:
            self._add(index, frame)

    def _add(self, index: int, frame: Any) -> None:
        with writing(self.path):
            if not self._begun:
                self._begin(self._open.enter_context(replacing(self.path)))
                self._begun = True
            self._put(index, frame)

    def close(self) -> None:
        """Give the film its name."""
        if not self._begun:
            return
        with writing(self.path):
            self._end()
        self._open.close()
        self._begun, self._complete = False, True

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()
        else:
            self._open.__exit__(kind, error, trace)  # half a film is no use

    def _is_whole(self) -> bool:
        raise NotImplementedError

    def _frame(self, pixels: np.ndarray) -> Any:
        """Pixels (h, w, 1 or 3) of 8 bits as the file takes them."""
        raise NotImplementedError

    def _begin(self, file: IO[bytes]) -> None:
        raise NotImplementedError

    def _put(self, index: int, frame: Any) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        raise NotImplementedError


class Mp4Writer(FilmWriter):
    """`aligned.mp4`: H.264, each frame at its time in the source, so that a frame that was skipped is a longer one."""

    format = "mp4"

    def _is_whole(self) -> bool:
        """Whether its boxes fill the file and one of them is the index."""
        names, place, size = set(), 0, self.path.stat().st_size
        with self.path.open("rb") as file:
            while place + 8 <= size:
                file.seek(place)
                head = file.read(16)
                length = int.from_bytes(head[:4], "big")
                length = int.from_bytes(head[8:16], "big") if length == 1 else length
                names.add(head[4:8])
                if length < 8:
                    return False
                place += length
        return place == size and b"moov" in names

    def _frame(self, pixels: np.ndarray) -> Any:
        av = require("av", "video")
        height, width = pixels.shape[:2]
        if height % 2 or width % 2:  # colours have half the resolution, so sides are even
            pixels = np.pad(pixels, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        colour = np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))
        return av.VideoFrame.from_ndarray(colour, format="rgb24").reformat(format="yuv420p")

    def _begin(self, file: IO[bytes]) -> None:
        av = require("av", "video")
        codec = next((name for name in _CODECS if _can_write(name)), None)
        if codec is None:
            raise CongealError("the installed PyAV cannot write H.264 or MPEG-4: use --output-format gif or files")
        self._file = self._open.enter_context(av.open(file, "w", format="mp4"))
        self._stream = self._file.add_stream(codec, rate=self.rate)
        self._stream.height, self._stream.width = (side + side % 2 for side in self.size)
        self._stream.pix_fmt, self._stream.options = "yuv420p", dict(_CODECS[codec])
        self._stream.codec_context.thread_count = _THREADS

    def _put(self, index: int, frame: Any) -> None:
        frame.pts, frame.time_base = index, 1 / self.rate
        self._file.mux(self._stream.encode(frame))

    def _end(self) -> None:
        self._file.mux(self._stream.encode())
        self._file.close()


class GifWriter(FilmWriter):
    """`aligned.gif`: every frame whole, with a palette of its own; grey is kept exactly."""

    format = "gif"

    def _is_whole(self) -> bool:
        with self.path.open("rb") as file:
            begins = file.read(3) == b"GIF"
            file.seek(-1, io.SEEK_END)
            return begins and file.read() == b";"

    def _frame(self, pixels: np.ndarray) -> bytes:
        grey = pixels.shape[-1] == 1
        picture = Pillow.fromarray(pixels[..., 0] if grey else np.ascontiguousarray(pixels))
        buffer = io.BytesIO()
        (picture if grey else picture.quantize(256)).save(buffer, "GIF", optimize=False, interlace=0)
        return _image_block(buffer.getvalue())

    def _begin(self, file: IO[bytes]) -> None:
        self._file = file
        height, width = self.size
        file.write(b"GIF89a" + width.to_bytes(2, "little") + height.to_bytes(2, "little") + bytes(3) + _LOOP)

    def _put(self, index: int, frame: bytes) -> None:
        begin, end = (round(100 * k / self.rate) for k in (index, index + 1))
        duration = max(_SHORTEST, end - begin)
        self._file.write(b"!\xf9\x04\x04" + duration.to_bytes(2, "little") + bytes(2) + frame)

    def _end(self) -> None:
        self._file.write(b";")


def _image_block(gif: bytes) -> bytes:
    """The picture in a GIF of one frame, with the palette of the file as its own."""
    entries = 2 << (gif[10] & 7) if gif[10] & 0x80 else 0
    palette, place = gif[13 : 13 + 3 * entries], 13 + 3 * entries
    while gif[place] == 0x21:  # notes, which are blocks that tell their length up to an empty one
        place += 2
        while gif[place]:
            place += gif[place] + 1
        place += 1
    descriptor, data = gif[place : place + 10], gif[place + 10 : -1]
    return descriptor[:9] + bytes([0x80 | descriptor[9] & 0x40 | gif[10] & 7]) + palette + data


def _can_write(codec: str) -> bool:
    av = require("av", "video")
    try:
        return bool(av.codec.Codec(codec, "w"))
    except Exception:  # PyAV has had several errors for a codec that is not there
        return False
