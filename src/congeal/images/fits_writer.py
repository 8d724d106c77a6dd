"""Aligned images as FITS, with the headers they came with; coordinates on the sky follow the alignment or are dropped.

A world coordinate system (WCS) says where each pixel lies on the sky. Where an image was moved by an affine matrix its
WCS is moved alike. Where one header belongs to images that moved differently (a cube), where the motion is a homography
or the WCS has a distortion, it is left out. A HISTORY line says which.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import IO, Any

import numpy as np

from congeal.errors import CongealError, require
from congeal.files import is_plain, replacing
from congeal.images.fits_stacks import FitsOrigin
from congeal.images.hyperstack import Hyperstack
from congeal.images.source import ImageSource
from congeal.images.writers import NpyWriter

Size = tuple[int, int]
BLOCK = 2880
MOVED = "congeal: aligned; the WCS was moved with the image"
DROPPED = "congeal: aligned; the WCS no longer holds and was removed"
ALIGNED = "congeal: aligned"
_OFFSETS = {"int8": -128, "uint16": 1 << 15, "uint32": 1 << 31, "uint64": 1 << 63}
_OWN = re.compile(r"SIMPLE|XTENSION|BITPIX|NAXIS\d*|EXTEND|PCOUNT|GCOUNT|GROUPS|BZERO|BSCALE|BLANK|DATAMIN|DATAMAX|END")
_OWN_SUMS = ("CHECKSUM", "DATASUM")
_WCS = re.compile(
    r"(CRPIX|CRVAL|CDELT|CTYPE|CUNIT|CROTA)[12][A-Z]?|(CD|PC)([12]_\d|\d_[12])[A-Z]?|PV[12]_\d+[A-Z]?|"
    r"(A|B|AP|BP)_(ORDER|DMAX|\d_\d)|(LONPOLE|LATPOLE|WCSAXES)[A-Z]?|(CPDIS|CQDIS|DP|DQ)[12]|D2IM.*"
)
_DISTORTED = re.compile(r"(A|B)_ORDER|PV[12]_\d+|(CPDIS|CQDIS)[12]|D2IM.*|(CTYPE|CRPIX)[12][A-Z]")
_AFFINE = 1e-9  # of the last row of a matrix, per pixel


class FitsWriter(NpyWriter):
    """`aligned.fits`: one cube, or one extension per image where the images came from extensions."""

    def __init__(self, folder: Path, source: ImageSource, size: Size) -> None:
        self._fits = folder / "aligned.fits"
        super().__init__(folder, source, size)

    def _final_exists(self) -> bool:
        return is_whole_fits(self._fits, len(self.source), self.size)

    def _finish(self, array: np.ndarray) -> None:
        stack = self.source.hyperstack
        origin = stack.origin if stack is not None and isinstance(stack.origin, FitsOrigin) else None
        with replacing(self._fits) as file:
            if origin is not None and stack is not None and origin.extensions and stack.axes == "TYX":
                positions = stack.chosen.get("T", tuple(range(len(array))))
                file.write(_header_bytes(_primary(origin.primary), 8, (), {}, primary=True))
                for i, position in enumerate(positions):
                    pose = None if self.poses is None else self.poses[i]
                    _write_hdu(
                        file, array[i][None], array[i].shape[:2], origin.extensions[position], pose, primary=False
                    )
                return
            shape, planes = _cube(array, stack)
            text = "" if origin is None else origin.primary
            _write_hdu(file, planes, shape, text, _common(self.poses), primary=True)


def fits_bytes(pixels: np.ndarray, text: str, pose: np.ndarray | None) -> bytes:
    """One image (H, W, C) as a FITS file with the cards of a header."""
    import io

    buffer = io.BytesIO()
    planes = np.moveaxis(pixels, -1, 0)
    shape = planes.shape if len(planes) > 1 else planes.shape[1:]
    _write_hdu(buffer, planes, shape, text, pose, primary=True)
    return buffer.getvalue()


def is_whole_fits(path: Path, images: int = 1, size: Size | None = None) -> bool:
    """Whether a FITS file is there to its last byte, with so many images of that size if one is given."""
    fits = require("astropy.io.fits", "fits")
    if not is_plain(path) or path.stat().st_size % BLOCK or path.stat().st_size == 0:
        return False
    try:
        with fits.open(path, memmap=True) as hdus:
            pictures = [hdu for hdu in hdus if hdu.header["NAXIS"] >= 2]
            end = max(hdu.fileinfo()["datLoc"] + hdu.fileinfo()["datSpan"] for hdu in hdus)
            fitting = size is None or all(hdu.shape[-2:] == size for hdu in pictures)
            planes = sum(int(np.prod(hdu.shape[:-2])) for hdu in pictures)
            return bool(pictures and fitting and planes % images == 0 and end <= path.stat().st_size)
    except Exception:  # damaged files raise nearly anything
        return False


def _cube(array: np.ndarray, stack: Hyperstack | None) -> tuple[tuple[int, ...], Any]:
    """The shape of the data of one HDU, slowest axis first, and its planes in that order."""
    if stack is None:
        channels = array.shape[3:] if array.ndim == 4 and array.shape[3] > 1 else ()
        shape = (len(array), *channels, *array.shape[1:3])
        return shape, (
            plane for image in array for plane in (np.moveaxis(image, -1, 0) if image.ndim == 3 else [image])
        )
    letters = "".join(letter for letter in stack.axes if letter not in "YX")
    shape = (*map(stack.length, letters), *array.shape[1:3])

    def planes() -> Any:
        for at in stack.places(letters):
            image = array[stack.number(at)]
            yield image if image.ndim == 2 else image[..., stack.channel(at)]

    return shape, planes()


def _common(poses: np.ndarray | None) -> np.ndarray | None:
    """The matrix that all images share; None if they do not."""
    if poses is None or not np.allclose(poses, poses[:1], rtol=0, atol=1e-12):
        return None
    return np.asarray(poses[0])


def _write_hdu(
    file: IO[bytes], planes: Any, shape: tuple[int, ...], text: str, pose: np.ndarray | None, *, primary: bool
) -> None:
    """A header and its data, plane by plane, in FITS's byte order."""
    header, count, first = None, 0, True
    for plane in planes:
        values = plane[..., 0] if plane.ndim == 3 else plane
        if first:
            dtype, offset = values.dtype, _OFFSETS.get(values.dtype.name, 0)
            if dtype.kind not in "buif":
                raise CongealError(f"FITS holds no images of type {dtype}")
            bits = -8 * max(dtype.itemsize, 4) if dtype.kind == "f" else 8 * dtype.itemsize
            header = _header_bytes(
                _moved(text, pose), bits, shape, {"BZERO": offset} if offset else {}, primary=primary
            )
            file.write(header)
            first = False
        data = _stored(values)
        file.write(data)
        count += len(data)
    file.write(bytes(-count % BLOCK))


def _stored(values: np.ndarray) -> bytes:
    """Numbers as FITS has them: big-endian, integers of the other sign moved by half their range."""
    name = values.dtype.name
    if name in _OFFSETS:
        top = values.dtype.type(1 << (8 * values.dtype.itemsize - 1)) if values.dtype.kind == "u" else np.int8(-128)
        signed = (values ^ top).view(np.dtype(name.removeprefix("u") if values.dtype.kind == "u" else np.uint8))
        return signed.astype(signed.dtype.newbyteorder(">")).tobytes()
    if name in ("bool", "float16"):
        values = values.astype(np.uint8 if name == "bool" else np.float32)
    return values.astype(values.dtype.newbyteorder(">")).tobytes()


def _primary(text: str) -> Any:
    return require("astropy.io.fits", "fits").Header.fromstring(text, sep="\n")


def _header_bytes(cards: Any, bits: int, shape: tuple[int, ...], more: dict[str, Any], *, primary: bool) -> bytes:
    """The cards that describe the data anew, then all others as they were."""
    fits = require("astropy.io.fits", "fits")
    header = fits.Header()
    header["SIMPLE" if primary else "XTENSION"] = True if primary else "IMAGE"
    header["BITPIX"], header["NAXIS"] = bits, len(shape)
    for k, length in enumerate(reversed(shape), start=1):
        header[f"NAXIS{k}"] = int(length)
    if primary:
        header["EXTEND"] = True
    else:
        header["PCOUNT"], header["GCOUNT"] = 0, 1
    if "BZERO" in more:
        header["BSCALE"] = 1
    for name, value in more.items():
        header[name] = value
    for card in cards.cards:
        if not _OWN.fullmatch(card.keyword) and card.keyword not in _OWN_SUMS:
            header.append(card, end=True)
    return bytes(header.tostring(padding=True).encode("ascii"))


def _moved(text: str, pose: np.ndarray | None) -> Any:
    """The header of an image that was moved by a matrix; None for one that is unknown, or that images do not share."""
    header = _primary(text)
    if not any(_WCS.fullmatch(key) for key in header):
        header.add_history(ALIGNED)
        return header
    matrix = None if pose is None else np.asarray(pose, dtype=np.float64) / pose[2, 2]
    affine = matrix is not None and np.abs(matrix[2, :2]).max() < _AFFINE
    if matrix is not None and affine and "CRPIX1" in header and not any(_DISTORTED.fullmatch(key) for key in header):
        _move_wcs(header, matrix)
        header.add_history(MOVED)
        return header
    for key in [key for key in header if _WCS.fullmatch(key)]:
        del header[key]
    header.add_history(DROPPED)
    return header


def _move_wcs(header: Any, aligned_from_source: np.ndarray) -> None:
    """Change reference pixel and linear part so that every point keeps its place on the sky."""
    linear, shift = aligned_from_source[:2, :2], aligned_from_source[:2, 2]
    reference = np.array([header["CRPIX1"], header["CRPIX2"]], dtype=float) - 1  # FITS counts pixels from 1
    header["CRPIX1"], header["CRPIX2"] = (linear @ reference + shift + 1).tolist()
    if np.array_equal(linear, np.eye(2)):
        return
    if any(f"CD{i}_{j}" in header for i in (1, 2) for j in (1, 2)):
        before = np.array([[header.get(f"CD{i}_{j}", 0.0) for j in (1, 2)] for i in (1, 2)])
        name, scale = "CD", np.ones(2)
    else:
        name, scale = "PC", np.array([header.get("CDELT1", 1.0), header.get("CDELT2", 1.0)])
        before = np.array([[header.get(f"PC{i}_{j}", float(i == j)) for j in (1, 2)] for i in (1, 2)])
        if "CROTA2" in header:
            turn = np.radians(header["CROTA2"])
            ratio = scale[1] / scale[0]
            before = np.array([[np.cos(turn), -np.sin(turn) * ratio], [np.sin(turn) / ratio, np.cos(turn)]])
        for key in ("CROTA1", "CROTA2"):
            if key in header:
                del header[key]
    after = (scale[:, None] * before) @ np.linalg.inv(linear) / scale[:, None]
    for i in (1, 2):
        for j in (1, 2):
            header[f"{name}{i}_{j}"] = float(after[i - 1, j - 1])
