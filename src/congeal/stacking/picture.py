"""The stacked picture as a file: 32-bit TIFF or FITS in the units of the originals, or 16-bit PNG."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from congeal.errors import CongealError, require
from congeal.files import write_bytes, writing
from congeal.images.formats.output_files import encode, png_bytes

TIFF, FITS, PNG = (".tif", ".tiff"), (".fits", ".fit", ".fts"), (".png",)
ENDINGS = (*TIFF, *FITS, *PNG)


def check_ending(path: Path) -> None:
    """Refuse a file of an unknown kind, and one whose package is missing, before any work."""
    suffix = path.suffix.lower()
    if suffix not in ENDINGS:
        raise CongealError(f"'{path}' cannot be written: the file ends in .tif (32 bits), .fits (32 bits) or .png (16)")
    if suffix in FITS:
        require("astropy.io.fits", "fits")
    if path.is_dir():
        raise CongealError(f"'{path}' is a folder; give a file")


def write_picture(path: Path, picture: np.ndarray, span: tuple[float, float], about: Mapping[str, str | int]) -> None:
    """(h, w, C) float32, NaN where nothing is. span: the values that are black and white in a PNG."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    suffix = path.suffix.lower()
    if suffix in PNG:
        write_bytes(path, png_bytes(as_16_bits(picture, span)))
    elif suffix in TIFF:
        write_bytes(path, encode(picture, tiff=True)[0])
    else:
        write_bytes(path, _fits(picture, about))


def as_16_bits(picture: np.ndarray, span: tuple[float, float]) -> np.ndarray:
    """0 for black and for nothing, 65535 for white."""
    black, white = span
    if picture.shape[-1] not in (1, 3):
        raise CongealError(f"a PNG holds 1 or 3 channels, the stack has {picture.shape[-1]}: write a .tif")
    levels = (np.nan_to_num(picture.astype(np.float64), nan=black) - black) * (65535 / (white - black))
    return np.rint(np.clip(levels, 0, 65535)).astype(np.uint16)


def _fits(picture: np.ndarray, about: Mapping[str, str | int]) -> bytes:
    """Rows in the order of the picture; several channels are planes."""
    from astropy.io import fits

    planes = picture[..., 0] if picture.shape[-1] == 1 else np.moveaxis(picture, -1, 0)
    image = fits.PrimaryHDU(np.ascontiguousarray(planes))
    for name, value in about.items():
        image.header[name] = value
    buffer = io.BytesIO()
    image.writeto(buffer)
    return buffer.getvalue()
