"""Bytes of one image file → Image: Pillow for most formats, tifffile for TIFF, imagecodecs for 16-bit colour PNG."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as Pillow
from PIL import UnidentifiedImageError

from congeal.errors import CongealError, MissingExtra, first_line, require
from congeal.images.intensity import NOT_FINITE, finite
from congeal.images.sources.base import Header, Image, UnreadableImage

FITS = frozenset((".fits", ".fit", ".fts"))
EXTENSIONS = FITS.union(
    (".png", ".jpg", ".jpeg", ".jpe", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".jp2", ".avif", ".tga"),
    (".ppm", ".pgm", ".pbm", ".pnm"),
)
MOST_BYTES = 1 << 30
"""Bytes of one image file; larger ones are skipped unread. Chosen by judgement: the largest scans are smaller."""
MOST_PIXELS = 178_956_970
"""Pixels of one image: where Pillow suspects an attack, and as much as a large poster scanned at 300 dpi."""
MOST_DECODED = 16 * MOST_PIXELS
"""Bytes of the pixels of one image: the largest one with four channels of 32 bits."""
TIFF_MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
FITS_MAGIC = b"SIMPLE  ="
ORIENTATION_TAG = 0x0112
# Pillow modes that need no conversion, and what others become; the rest becomes RGB.
_PLAIN = {"L", "LA", "RGB", "RGBA", "F", "I", "I;16", "I;16L", "I;16B", "I;16N"}
_CONVERT = {"1": "L", "La": "LA", "RGBa": "RGBA", "PA": "RGBA"}


@contextmanager
def as_unreadable(what: str, id: str) -> Iterator[None]:
    """Decoders raise nearly anything on damaged data: every case is a reason for `skipped.csv`, none a crash."""
    try:
        yield
    except UnreadableImage:
        raise
    except MemoryError as error:  # the image is not too large for others: the run ends, and can be resumed
        raise MemoryError(f"{id} needs more than there is") from error
    except Exception as error:
        text = first_line(error)
        reason = f"damaged {what} ({text})"
        if isinstance(error, UnidentifiedImageError):
            reason = "not an image, or a format that cannot be read"
        elif isinstance(error, Pillow.DecompressionBombError):
            reason = f"the image is too large ({text})"
        elif isinstance(error, MissingExtra):
            reason = text
        elif "imagecodecs" in text:
            reason = f"{text}: pip install 'congeal[formats]'"
        raise UnreadableImage(reason) from error


@contextmanager
def as_unopenable(path: Path, kind: str) -> Iterator[None]:
    """Say in one sentence that a file that holds a whole set is damaged, whatever its reader raises."""
    try:
        yield
    except CongealError:
        raise
    except Exception as error:
        raise CongealError(f"{path} is not a readable {kind} ({first_line(error)})") from error


def decode(data: bytes, id: str) -> Image:
    """The whole image, upright, or UnreadableImage with the reason."""
    if not data:
        raise UnreadableImage("the file is empty (0 bytes)")
    with as_unreadable("image", id):
        if data[:4] in TIFF_MAGIC:
            from congeal.images.formats.tiff import decode_tiff

            return decode_tiff(data, id)
        if data[:9] == FITS_MAGIC:
            from congeal.images.formats.fits import decode_fits

            return decode_fits(data, id)
        if deep_colour_png(data):
            return _decode_deep_png(data, id)
        with Pillow.open(io.BytesIO(data)) as picture:
            return from_pillow(picture, id)


def probe(data: bytes, id: str) -> Header | None:
    """Size and type from the first bytes of a file, or None if only decoding can tell."""
    if not data or data[:4] in TIFF_MAGIC or data[:9] == FITS_MAGIC or deep_colour_png(data):
        return None
    try:
        with Pillow.open(io.BytesIO(data)) as picture:
            width, height = picture.size
            if exif_orientation(picture) >= 5:
                width, height = height, width
            mode = _target_mode(picture)
    except Exception:  # a header that does not parse here is decoded, and judged, in `decode`
        return None
    if mode.startswith("I;16"):
        return Header(height, width, 1, np.dtype(np.uint16))
    channels = {"L": 1, "LA": 1, "RGB": 3, "RGBA": 3}.get(mode)
    return None if channels is None else Header(height, width, channels, np.dtype(np.uint8))


def from_pillow(picture: Pillow.Image, id: str) -> Image:
    """A Pillow image with alpha split off and the EXIF orientation applied."""
    orientation = exif_orientation(picture)
    mode = _target_mode(picture)
    pixels = np.array(picture if picture.mode == mode else picture.convert(mode))
    if pixels.dtype == np.int32 and picture.format in ("PNG", "PPM"):
        pixels = pixels.astype(np.uint16)  # Pillow widens 16-bit grey to 32 bits
    pixels = pixels.astype(pixels.dtype.newbyteorder("="), copy=False)
    return make_image(id, pixels, has_alpha=mode in ("LA", "RGBA"), orientation=orientation)


def make_image(id: str, pixels: np.ndarray, *, has_alpha: bool = False, orientation: int = 1) -> Image:
    """An Image from (H, W) or (H, W, C) file pixels whose last channel may be alpha."""
    if not finite(pixels):
        raise UnreadableImage(NOT_FINITE)
    pixels = orient(pixels if pixels.ndim == 3 else pixels[..., None], orientation)
    if not has_alpha:
        return Image(id, np.ascontiguousarray(pixels), None, orientation)
    alpha = pixels[..., -1].astype(np.float32)
    if pixels.dtype.kind in "ui":
        alpha /= np.float32(np.iinfo(pixels.dtype).max)
    return Image(id, np.ascontiguousarray(pixels[..., :-1]), np.clip(alpha, 0, 1), orientation)


def exif_orientation(picture: Pillow.Image) -> int:
    """The EXIF orientation, 1 if there is none or it makes no sense."""
    value: Any = picture.getexif().get(ORIENTATION_TAG, 1)
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def orient(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """(H, W, …) as stored → upright, for EXIF orientation 1–8."""
    if orientation >= 5:
        pixels = np.swapaxes(pixels, 0, 1)
    return pixels[:: -1 if orientation in (3, 4, 7, 8) else 1, :: -1 if orientation in (2, 3, 6, 7) else 1]


def read_regular(path: str | os.PathLike[str], count: int = -1) -> bytes:
    """The bytes of a file, or its first `count`; UnreadableImage if it is something else or too large.

    Reading a pipe or a device could block, or never end.
    """
    try:
        known = os.stat(path)
        if not stat.S_ISREG(known.st_mode):
            kinds = {stat.S_IFIFO: "a named pipe", stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket"}
            raise UnreadableImage(f"is {kinds.get(stat.S_IFMT(known.st_mode), 'a device')}, not a file")
        check_bytes(known.st_size)
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as file:
            data = file.read(MOST_BYTES + 1 if count < 0 else count)
    except (OSError, ValueError) as error:  # a name with a NUL in it is a ValueError
        raise UnreadableImage(f"cannot be opened ({getattr(error, 'strerror', None) or error})") from error
    if count < 0:
        check_bytes(len(data))
    return data


def check_bytes(size: int) -> None:
    """Raise UnreadableImage for a file of more bytes than are read."""
    if size > MOST_BYTES:
        raise UnreadableImage(f"the file is too large ({size / 1e9:.1f} GB; {MOST_BYTES / 1e9:.1f} GB at most)")


def check_size(height: int, width: int, nbytes: int = 0) -> None:
    """Raise UnreadableImage for a size, as the header claims it, that is not worth trying."""
    if height * width > MOST_PIXELS:
        raise UnreadableImage(f"the image is too large ({height} × {width} pixels; {MOST_PIXELS:,} at most)")
    if nbytes > MOST_DECODED:
        raise UnreadableImage(f"the image is too large ({nbytes / 1e9:.1f} GB; {MOST_DECODED / 1e9:.1f} GB at most)")


def deep_colour_png(data: bytes) -> bool:
    """A PNG with 16 bits and more than one channel, which Pillow would reduce to 8 bits without a word."""
    return (
        data[:8] == b"\x89PNG\r\n\x1a\n" and data[12:16] == b"IHDR" and data[24:25] == b"\x10" and data[25:26] != b"\0"
    )


def _decode_deep_png(data: bytes, id: str) -> Image:
    codecs = require("imagecodecs", "formats")
    check_size(*(int.from_bytes(data[k : k + 4], "big") for k in (20, 16)))
    pixels = codecs.png_decode(data)
    with Pillow.open(io.BytesIO(data)) as picture:
        orientation = exif_orientation(picture)
    return make_image(id, pixels, has_alpha=pixels.shape[-1] in (2, 4), orientation=orientation)


def _target_mode(picture: Pillow.Image) -> str:
    """The mode in which the picture is taken over: most stay as they are, and transparency becomes alpha."""
    if "transparency" in picture.info and picture.mode in ("1", "L", "P", "RGB"):
        return "LA" if picture.mode in ("1", "L") else "RGBA"
    return picture.mode if picture.mode in _PLAIN else _CONVERT.get(picture.mode, "RGB")
