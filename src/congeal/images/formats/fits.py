"""FITS: single images, cubes and extensions, read and written with their headers (extra `fits`).

A world coordinate system (WCS) maps pixels to the sky. If an image is moved by an affine matrix, its WCS is moved in
the same way. If one header belongs to images that moved differently (a cube), if the motion is a homography, or if the
WCS has a distortion, it is removed. A HISTORY line records which of the two happened.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import IO, Any

import numpy as np

from congeal.errors import CongealError, require
from congeal.files import replacing
from congeal.images.formats.decode import as_unopenable, check_size, make_image
from congeal.images.formats.hyperstack import Hyperstack, ReaderChain
from congeal.images.formats.writers import NpyWriter
from congeal.images.sources.arrays import open_stack
from congeal.images.sources.base import Image, ImageSource, UnreadableImage
from congeal.memmap import touch_pages

log = logging.getLogger("congeal")

# Letters of the axes beyond Y and X; a cube has the last one.
_EXTRA_AXES = "PRQI"
# Cards that describe the data and are written anew; astropy does so itself for the size and type.
_DATA_CARDS = ("BLANK", "DATAMIN", "DATAMAX", "CHECKSUM", "DATASUM")
_WCS = re.compile(
    r"(CRPIX|CRVAL|CDELT|CTYPE|CUNIT|CROTA)[12][A-Z]?|(CD|PC)([12]_\d|\d_[12])[A-Z]?|PV[12]_\d+[A-Z]?|"
    r"(A|B|AP|BP)_(ORDER|DMAX|\d_\d)|(LONPOLE|LATPOLE|WCSAXES)[A-Z]?|(CPDIS|CQDIS|DP|DQ)[12]|D2IM.*"
)
_DISTORTED = re.compile(r"(A|B)_ORDER|PV[12]_\d+|(CPDIS|CQDIS)[12]|D2IM.*|(CTYPE|CRPIX)[12][A-Z]")


@dataclass(frozen=True)
class FitsOrigin:
    """Headers of a FITS file as text: of the file, and of each extension with an image."""

    primary: str
    extensions: tuple[str, ...] = ()


def open_fits(path: Path, z: str | None = None) -> ImageSource:
    """Every plane of a cube, or every extension with an image, is one image."""
    fits = require("astropy.io.fits", "fits")
    with as_unopenable(path, "FITS file"):
        hdus = fits.open(path, memmap=False)  # a section is read by itself, and scaled
        images = [hdu for hdu in hdus if _is_image(hdu)]
        if not images:
            raise CongealError(f"{path} has no image data: its {len(hdus)} parts are empty or tables")
        chosen = _matching_extensions(path, images)
        extra = chosen[0].header["NAXIS"] - 2
        if extra > 3:
            raise CongealError(f"{path} has {extra + 2} dimensions; a stack has 2 to 5")
        axes, shape, lock = _EXTRA_AXES[len(_EXTRA_AXES) - extra :] + "YX", tuple(map(int, chosen[0].shape)), Lock()
        readers = [_HduReader(hdu, axes, lock) for hdu in chosen]
        headers = tuple(_header_text(hdu.header) for hdu in chosen)
        reader: Any = readers[0]
        stack = Hyperstack(axes, shape, origin=FitsOrigin(headers[0]))
        if len(chosen) > 1:
            origin = FitsOrigin(_header_text(hdus[0].header), headers)
            reader, stack = ReaderChain(readers, "T"), Hyperstack("T" + axes, (len(chosen), *shape), origin=origin)
        return open_stack(stack, reader, name=path.name, layout="fits", z=z)


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
    return make_image(id, pixels if len(shape) == 2 else np.moveaxis(pixels, 0, -1))


def header_text(path: Path) -> str:
    """The header of the first image of a file."""
    fits = require("astropy.io.fits", "fits")
    with fits.open(path, memmap=True) as hdus:
        return next((_header_text(hdu.header) for hdu in hdus if _is_image(hdu)), "")


def _is_image(hdu: Any) -> bool:
    return bool(hdu.is_image and hdu.header.get("NAXIS", 0) >= 2 and hdu.shape and all(hdu.shape))


def _matching_extensions(path: Path, images: Sequence[Any]) -> list[Any]:
    """The extensions called SCI, if any, that have the size and type of the first."""
    science = [hdu for hdu in images if hdu.name == "SCI"] or list(images)
    first = science[0]
    same = [hdu for hdu in science if hdu.shape == first.shape and hdu.header["BITPIX"] == first.header["BITPIX"]]
    if len(same) < len(images):
        log.warning("%s: %d of its %d images are used, those like '%s'", path, len(same), len(images), first.name)
    return same


def _header_text(header: Any) -> str:
    return str(header.tostring(sep="\n", endcard=False, padding=False))


def _native(values: np.ndarray) -> np.ndarray:
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))


class _HduReader:
    """The data of one HDU, one plane at a time, scaled as stated in its header."""

    def __init__(self, hdu: Any, axes: str, lock: Lock) -> None:
        self._hdu, self._axes, self._lock = hdu, axes, lock  # all HDUs of a file share its position
        self.dtype = _native(np.asarray(hdu.section[tuple(slice(0, 1) for _ in hdu.shape)])).dtype

    def take(self, at: Mapping[str, int]) -> np.ndarray:
        index = tuple(at.get(letter, slice(None)) for letter in self._axes)
        with self._lock:
            return _native(np.asarray(self._hdu.section[index]))


class FitsWriter(NpyWriter):
    """`aligned.fits`: one cube, or one extension per image where the images came from extensions."""

    file_name = "aligned.fits"

    def _finish(self, array: np.ndarray) -> None:
        grey = array.ndim == 3 or array.shape[3] == 1
        stack = self.stack or Hyperstack("IYX" if grey else "IYXC", array.shape[:3] if grey else array.shape)
        origin = stack.origin if isinstance(stack.origin, FitsOrigin) else FitsOrigin("")
        with replacing(self.path) as file:
            if origin.extensions and stack.axes == "TYX":
                file.write(_header_bytes(_parse_header(origin.primary), (), np.dtype(np.uint8), primary=True))
                for i, position in enumerate(stack.chosen.get("T", range(len(array)))):
                    pose = None if self.poses is None else self.poses[i]
                    _write_hdu(file, [array[i]], array[i].shape, origin.extensions[position], pose, primary=False)
                return
            letters = "".join(letter for letter in stack.axes if letter not in "YX")
            shape = (*map(stack.length, letters), *array.shape[1:3])
            common = self.poses is not None and np.allclose(self.poses, self.poses[:1], rtol=0, atol=1e-12)
            pose = self.poses[0] if common and self.poses is not None else None
            _write_hdu(file, self._planes(array, stack, letters), shape, origin.primary, pose, primary=True)

    def _planes(self, array: np.ndarray, stack: Hyperstack, letters: str) -> Iterator[np.ndarray]:
        """The planes of a cube, slowest axis first."""
        for at in stack.places(letters):
            plane = stack.plane(array, at)
            touch_pages(plane.nbytes)
            yield plane


def fits_bytes(pixels: np.ndarray, text: str, pose: np.ndarray | None) -> bytes:
    """One image (H, W, C) as a FITS file with the cards of a header."""
    buffer = io.BytesIO()
    planes = np.moveaxis(pixels, -1, 0)
    shape = planes.shape if len(planes) > 1 else planes.shape[1:]
    _write_hdu(buffer, planes, shape, text, pose, primary=True)
    return buffer.getvalue()


def _write_hdu(
    file: IO[bytes],
    planes: Iterable[np.ndarray],
    shape: tuple[int, ...],
    text: str,
    pose: np.ndarray | None,
    *,
    primary: bool,
) -> None:
    """A header and its data, plane by plane, in the byte order of FITS: no copy of a cube is made."""
    count = 0
    for values in planes:
        if values.dtype.kind not in "buif":
            raise CongealError(f"FITS holds no images of type {values.dtype}")
        if values.dtype.name in ("bool", "float16"):
            values = values.astype(np.uint8 if values.dtype.kind == "b" else np.float32)
        if not count:
            file.write(_header_bytes(_move_header(text, pose), shape, values.dtype, primary=primary))
        file.write(_stored_bytes(values))
        count += values.nbytes
    file.write(bytes(-count % 2880))  # everything in a file is a multiple of such blocks


def _stored_bytes(values: np.ndarray) -> bytes:
    """Big-endian; FITS has no int8 and no unsigned integers but uint8, whose stand-ins differ in the highest bit."""
    size = values.dtype.itemsize
    if values.dtype.name == "int8" or (values.dtype.kind == "u" and size > 1):
        values = values.view(f"u{size}") ^ np.dtype(f"u{size}").type(1 << (8 * size - 1))
    return values.astype(values.dtype.newbyteorder(">")).tobytes()


def _parse_header(text: str) -> Any:
    return require("astropy.io.fits", "fits").Header.fromstring(text, sep="\n")


def _header_bytes(header: Any, shape: tuple[int, ...], dtype: np.dtype, *, primary: bool) -> bytes:
    """The header with cards for data of this shape and type, by astropy."""
    fits = require("astropy.io.fits", "fits")
    for key in _DATA_CARDS:
        header.remove(key, ignore_missing=True, remove_all=True)
    data = np.broadcast_to(np.zeros((), dtype), shape) if shape else None
    hdu = fits.PrimaryHDU(data, header) if primary else fits.ImageHDU(data, header)
    if primary:
        hdu.header["EXTEND"] = True
    return bytes(hdu.header.tostring(padding=True).encode("ascii"))


def _move_header(text: str, pose: np.ndarray | None) -> Any:
    """The header of an image that was moved by a matrix; None if that is unknown or differs between planes."""
    header = _parse_header(text)
    if not any(_WCS.fullmatch(key) for key in header):
        header.add_history("congeal: aligned")
        return header
    matrix = np.full((3, 3), np.nan) if pose is None else np.asarray(pose, dtype=np.float64) / pose[2, 2]
    affine = np.allclose(matrix[2, :2], 0, rtol=0, atol=1e-9)  # but for rounding
    if affine and "CRPIX1" in header and not any(_DISTORTED.fullmatch(key) for key in header):
        _move_wcs(header, matrix)
        header.add_history("congeal: aligned; the WCS was moved with the image")
        return header
    for key in [key for key in header if _WCS.fullmatch(key)]:
        del header[key]
    header.add_history("congeal: aligned; the WCS no longer holds and was removed")
    return header


def _move_wcs(header: Any, aligned_from_source: np.ndarray) -> None:
    """Change the reference pixel and the linear part so that every point keeps its place on the sky."""
    linear, shift = aligned_from_source[:2, :2], aligned_from_source[:2, 2]
    reference = np.array([header["CRPIX1"], header["CRPIX2"]], dtype=float) - 1  # FITS counts pixels from 1
    header["CRPIX1"], header["CRPIX2"] = (linear @ reference + shift + 1).tolist()
    if np.array_equal(linear, np.eye(2)):
        return
    name, scale, missing = "PC", np.array([header.get("CDELT1", 1.0), header.get("CDELT2", 1.0)]), np.eye(2)
    if "CROTA2" in header:
        turn, ratio = np.radians(header["CROTA2"]), scale[1] / scale[0]
        missing = np.array([[np.cos(turn), -np.sin(turn) * ratio], [np.sin(turn) / ratio, np.cos(turn)]])
    if any(f"CD{i + 1}_{j + 1}" in header for i, j in np.ndindex(2, 2)):
        name, scale, missing = "CD", np.ones(2), np.zeros((2, 2))
    before = np.array([[header.get(f"{name}{i}_{j}", missing[i - 1, j - 1]) for j in (1, 2)] for i in (1, 2)])
    after = (scale[:, None] * before) @ np.linalg.inv(linear) / scale[:, None]
    for key in ("CROTA1", "CROTA2"):
        header.remove(key, ignore_missing=True)
    for (i, j), value in np.ndenumerate(after):
        header[f"{name}{i + 1}_{j + 1}"] = float(value)
