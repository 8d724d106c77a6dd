"""FITS: single images, cubes and files with several extensions, with their headers (extra `fits`)."""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from congeal.errors import CongealError, first_line, require
from congeal.images.decode import check_size, make_image
from congeal.images.hyperstack import Hyperstack
from congeal.images.hyperstack_source import open_stack
from congeal.images.intensity import NOT_FINITE, finite
from congeal.images.source import Image, ImageSource, UnreadableImage

log = logging.getLogger("congeal")

_EXTRA = "PRQI"  # letters of the axes beyond Y and X, the last one for a cube


@dataclass(frozen=True)
class FitsOrigin:
    """Headers of a FITS file as text, for a writer of FITS: of the file, and of each extension with an image."""

    primary: str
    extensions: tuple[str, ...] = ()


def open_fits(path: Path, z: str | None = None) -> ImageSource:
    """Every plane of a cube, or every extension with an image, is one image."""
    fits = require("astropy.io.fits", "fits")
    try:
        hdus = fits.open(path, memmap=False)  # a section is read by itself, and scaled
        images = [hdu for hdu in hdus if _is_image(hdu)]
        if not images:
            raise CongealError(f"{path} has no image data: its {len(hdus)} parts are empty or tables")
        chosen = _alike(path, images)
        lock = Lock()
        readers = [_Section(hdu, lock) for hdu in chosen]
        extra = chosen[0].header["NAXIS"] - 2
        if extra > 3:
            raise CongealError(f"{path} has {extra + 2} dimensions; a stack has 2 to 5")
        letters = _EXTRA[len(_EXTRA) - extra :] + "YX"
        shape = tuple(map(int, chosen[0].shape))
        primary = _text(hdus[0].header)
        if len(chosen) == 1:
            origin = FitsOrigin(_text(chosen[0].header))
            stack = Hyperstack(letters, shape, origin=origin)
            return open_stack(stack, readers[0], name=path.name, layout="fits", z=z)
        origin = FitsOrigin(primary, tuple(_text(hdu.header) for hdu in chosen))
        stack = Hyperstack("T" + letters, (len(chosen), *shape), origin=origin)
        return open_stack(stack, _Extensions(readers), name=path.name, layout="fits", z=z)
    except CongealError:
        raise
    except Exception as error:  # damaged files raise nearly anything
        raise CongealError(f"{path} is not a readable FITS file ({first_line(error)})") from error


def decode_fits(data: bytes, id: str) -> Image:
    """One FITS file that is one image, such as a member of a folder; the planes of a small cube are its channels."""
    fits = require("astropy.io.fits", "fits")
    with fits.open(io.BytesIO(data), memmap=False) as hdus:
        images = [hdu for hdu in hdus if _is_image(hdu)]
        if not images:
            raise UnreadableImage("the FITS file has no image data")
        shape = tuple(n for n in images[0].shape if n > 1) if images[0].header["NAXIS"] > 2 else images[0].shape
        if len(shape) not in (2, 3) or (len(shape) == 3 and shape[0] > 4):
            raise UnreadableImage(f"a FITS image of shape {images[0].shape} is a stack: open it by itself")
        check_size(shape[-2], shape[-1])
        pixels = _native(np.asarray(images[0].data)).reshape(shape)
    if not finite(pixels):
        raise UnreadableImage(NOT_FINITE)
    return make_image(id, pixels if len(shape) == 2 else np.moveaxis(pixels, 0, -1), has_alpha=False)


def header_text(path: Path) -> str:
    """The header of the first image of a file."""
    fits = require("astropy.io.fits", "fits")
    with fits.open(path, memmap=True) as hdus:
        return next((_text(hdu.header) for hdu in hdus if _is_image(hdu)), "")


def _is_image(hdu: Any) -> bool:
    return bool(hdu.is_image and hdu.header.get("NAXIS", 0) >= 2 and hdu.shape and all(hdu.shape))


def _alike(path: Path, images: Sequence[Any]) -> list[Any]:
    """The extensions called SCI if there are any, and of those the ones like the first in size and type."""
    science = [hdu for hdu in images if hdu.name == "SCI"] or list(images)
    first = science[0]
    same = [hdu for hdu in science if hdu.shape == first.shape and hdu.header["BITPIX"] == first.header["BITPIX"]]
    if len(same) < len(images):
        log.warning("%s: %d of its %d images are used, those like '%s'", path, len(same), len(images), first.name)
    return same


def _text(header: Any) -> str:
    return str(header.tostring(sep="\n", endcard=False, padding=False))


def _native(values: np.ndarray) -> np.ndarray:
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))


class _Section:
    """The numbers of one HDU, a plane at a time, scaled as its header says."""

    def __init__(self, hdu: Any, lock: Lock) -> None:
        self._hdu, self._lock = hdu, lock  # all HDUs of a file share its position
        self._axes = _EXTRA[len(_EXTRA) - (len(hdu.shape) - 2) :] + "YX"
        self.dtype = _native(np.asarray(hdu.section[tuple(slice(0, 1) for _ in hdu.shape)])).dtype

    def take(self, at: Mapping[str, int]) -> np.ndarray:
        index = tuple(at.get(letter, slice(None)) for letter in self._axes)
        with self._lock:
            return _native(np.asarray(self._hdu.section[index]))


class _Extensions:
    """HDUs of one shape, one after the other."""

    def __init__(self, readers: Sequence[_Section]) -> None:
        self.readers, self.dtype = readers, readers[0].dtype

    def take(self, at: Mapping[str, int]) -> np.ndarray:
        return self.readers[at["T"]].take(at)
