"""One image → bytes of a file that keeps its dtype, depth and channels."""

from __future__ import annotations

import io
import struct
from typing import Any

import deflate
import numpy as np

from congeal.errors import CongealError

_PNG_COLOUR = {1: 0, 2: 4, 3: 2, 4: 6}  # channels → PNG's number for grey, grey and alpha, colour, colour and alpha
_BYTES_AT_ONCE = 1 << 18  # filtered at a time: a quarter of a megabyte stays in the second-level cache


def join_alpha(pixels: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """(H, W, C) and a mask in [0, 1] → (H, W, C+1) with the mask as alpha in the pixels' own range."""
    if mask is None:
        return pixels
    if pixels.dtype.kind in "ui":
        alpha = np.rint(mask * np.float64(np.iinfo(pixels.dtype).max)).astype(pixels.dtype)
    else:
        alpha = mask.astype(pixels.dtype)
    return np.concatenate([pixels, alpha[..., None]], axis=-1)


def suits_png(pixels: np.ndarray) -> bool:
    """Whether a PNG that Pillow reads holds (H, W, C) without loss: 8 bits in 1–4 channels, 16 bits in one."""
    if pixels.dtype in (np.uint8, bool):
        return pixels.shape[-1] <= 4
    return pixels.dtype == np.uint16 and pixels.shape[-1] == 1


def encode(pixels: np.ndarray, mask: np.ndarray | None = None, *, tiff: bool = False) -> tuple[bytes, str]:
    """(H, W, C) → (file bytes, extension): PNG where it is lossless, else or on request TIFF."""
    if pixels.dtype == bool:
        pixels = pixels.astype(np.uint8) * np.uint8(255)
    whole = join_alpha(pixels, mask)
    if not tiff and suits_png(whole):
        return png_bytes(whole), ".png"
    return _tiff(whole, alpha=mask is not None), ".tif"


def png_bytes(pixels: np.ndarray) -> bytes:
    """(H, W, C) of 8 or 16 bits in 1–4 channels → a PNG file; two channels are grey and alpha, four colour and alpha.

    Every row is stored as its difference to the average of the pixels to the left and above, which vectorises and is
    the best of PNG's filters for photographs: 4 to 7 times as fast as trying all of them, and no larger.
    """
    height, width, channels = pixels.shape
    depth = 8 * pixels.dtype.itemsize
    rows = np.ascontiguousarray(pixels, dtype=pixels.dtype.newbyteorder(">")).view(np.uint8).reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, depth, _PNG_COLOUR[channels], 0, 0, 0)
    # libdeflate takes half of zlib's time; isal took less, but files of the same pixels once had other bytes.
    data = bytes(deflate.zlib_compress(_filtered(rows, channels * pixels.dtype.itemsize), 1))
    return b"\x89PNG\r\n\x1a\n" + b"".join(map(_chunk, (b"IHDR", b"IDAT", b"IEND"), (header, data, b"")))


def _filtered(rows: np.ndarray, step: int) -> np.ndarray:
    """Rows as PNG stores them, each behind the number of its filter; a pixel is `step` bytes."""
    out = np.empty((len(rows), rows.shape[1] + 1), np.uint8)
    out[:, 0] = 3  # the average of left and above, rounded down
    at_once = max(1, _BYTES_AT_ONCE // rows.shape[1])
    for first in range(0, len(rows), at_once):
        here = rows[first : first + at_once]
        above, left = out[first : first + at_once, 1:], np.empty_like(here)
        above[0] = rows[first - 1] if first else 0
        above[1:] = here[:-1]
        left[:, :step], left[:, step:] = 0, here[:, :-step]
        # (a + b) // 2 without leaving 8 bits: what both share, and half of what they do not.
        shared = above & left
        np.bitwise_xor(above, left, out=left)
        left >>= 1
        left += shared
        np.subtract(here, left, out=above)
    return out


def _chunk(kind: bytes, data: bytes) -> bytes:
    """A part of a PNG file: length, kind, data, checksum."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", deflate.crc32(data, deflate.crc32(kind)))


def _tiff(pixels: np.ndarray, *, alpha: bool) -> bytes:
    import tifffile

    if pixels.dtype.kind not in "uif":
        raise CongealError(f"TIFF holds no images of type {pixels.dtype}")
    channels = pixels.shape[-1]
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, pixels[..., 0] if channels == 1 else pixels, **tiff_options(channels, alpha=alpha))
    return buffer.getvalue()


def tiff_options(channels: int, *, alpha: bool) -> dict[str, Any]:
    """How tifffile stores (…, H, W, C) so that it reads back as the same channels."""
    colour = channels - alpha
    photometric = "rgb" if colour == 3 else "minisblack"
    options: dict[str, Any] = {"photometric": photometric}
    if channels > 1:
        options["planarconfig"] = "contig"
        spare = channels - (3 if photometric == "rgb" else 1)
        if spare:
            options["extrasamples"] = ["unspecified"] * (spare - alpha) + ["unassalpha"] * alpha
    return options
