"""TIFF through tifffile: one image in a folder of images, or a stack of pages given by itself."""

from __future__ import annotations

import io
import json
import math
import struct
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import tifffile
from PIL import Image as Pillow

from congeal.errors import CongealError, first_line
from congeal.images.decode import check_size, from_pillow, make_image
from congeal.images.intensity import NOT_FINITE, finite
from congeal.images.source import Header, Image, ImageSource, UnreadableImage
from congeal.images.tiff_stacks import open_series, page_reason

_BIG = 43  # number of BigTIFF, whose offsets have 8 bytes
_WHITE_IS_ZERO, _PALETTE, _CMYK, _YCBCR, _LAB = 0, 3, 5, 6, 8


class TiffPages(ImageSource):
    """A TIFF whose pages are images; pages are decoded one at a time and may differ in size."""

    layout = "tiff"

    def __init__(self, path: Path, file: tifffile.TiffFile, pages: list[Any]) -> None:
        self.name, self.path, self.pages, self._file, self._lock = path.name, path, pages, file, Lock()
        kinds = {(page.shape[2:], page.dtype, page.photometric) for page in pages}
        self.grey = all(len(page.shape) == 2 and page.photometric != _PALETTE for page in pages)
        if len(kinds) > 1 or _alpha(pages[0]):
            self.layout = "files"  # one TIFF stack cannot give back pages of several kinds

    def __len__(self) -> int:
        return len(self.pages)

    def id(self, i: int) -> str:
        """Name of page i."""
        return f"page-{range(len(self))[i]:05d}"

    def read(self, i: int) -> Image:
        """Page i as pixels (H, W, C)."""
        try:
            with self._lock:
                return _page_image(self.pages[i], self.id(i))
        except UnreadableImage:
            raise
        except Exception as error:  # damaged pages raise nearly anything; each is a reason in skipped.csv
            raise UnreadableImage(page_reason(error)) from error


def open_tiff(path: Path, z: str | None = None) -> ImageSource:
    """A TIFF given by itself: every page, or every position along T, Z, … of a hyperstack, is one image.

    z: what a stack with depth is, see `congeal.images.hyperstack.Z_MODES`.
    """
    try:
        return _open_stack(path, z)
    except CongealError:
        raise
    except Exception as error:  # damaged files raise nearly anything
        raise CongealError(f"{path} is not a readable TIFF file ({first_line(error)})") from error


def _open_stack(path: Path, z: str | None) -> ImageSource:
    file = tifffile.TiffFile(path)
    _check_chain(file)
    series = file.series
    _check_whole(path, file)
    if all(not _alpha(one.keyframe) and _plain(one.keyframe) for one in series):
        found = open_series(path, file, z)
        if found is not None:
            return found
    if z not in (None, "auto", "planes"):
        raise CongealError(f"{path} has no Z axis to project: leave out --z {z}")
    pages = [page.aspage() for page in file.pages if not _is_thumbnail(page.aspage())]
    if not pages:
        raise CongealError(f"{path} has no pages")
    return TiffPages(path, file, pages)


def _check_chain(file: tifffile.TiffFile) -> None:
    """Refuse a file in which a page names one before it as the next: its pages would never end."""
    handle, kind, seen = file.filehandle, file.tiff, set[int]()
    handle.seek(8 if kind.version == _BIG else 4)
    while len(data := handle.read(kind.offsetsize)) == kind.offsetsize:
        (offset,) = struct.unpack(kind.offsetformat, data)
        if offset in seen:
            raise CongealError("the TIFF file is damaged: its pages go round in a circle")
        seen.add(offset)
        handle.seek(offset)
        data = handle.read(kind.tagnosize)
        if offset == 0 or len(data) < kind.tagnosize:
            break
        handle.seek(offset + kind.tagnosize + struct.unpack(kind.tagnoformat, data)[0] * kind.tagsize)


def _check_whole(path: Path, file: tifffile.TiffFile) -> None:
    """Refuse a stack whose own description promises more than the file still holds: it was cut short."""
    there = sum(one.size for one in file.series)
    for one in file.series:
        described = one.keyframe.description
        if not described.startswith('{"shape":'):  # what tifffile writes
            continue
        promised = math.prod(json.loads(described)["shape"])
        if promised > there:
            raise CongealError(f"{path} is cut short: it holds {there} of the {promised} values it promises")


def decode_tiff(data: bytes, id: str) -> Image:
    """One TIFF file that is one image, such as a member of a folder."""
    with tifffile.TiffFile(io.BytesIO(data)) as file:
        _check_chain(file)
        pages = [page.aspage() for page in file.pages if not _is_thumbnail(page.aspage())]
        if len(pages) == 1 and file.series[0].ndim <= 3 and "C" not in file.series[0].axes:
            if _needs_pillow(pages[0]):
                with Pillow.open(io.BytesIO(data)) as picture:
                    return from_pillow(picture, id)
            return _page_image(pages[0], id)
        series = file.series[0]
        check_size(*_plane(series.shape, series.axes), series.nbytes)
        array = _stacked(series.asarray(), series.axes) if len(file.series) == 1 else None
        if array is None or len(array) != 1:
            count = len(pages) if array is None else len(array)
            raise UnreadableImage(f"the file has {count} pages: open it by itself as a stack, or split it")
        pixels = array[0]
    return _finite(make_image(id, pixels, has_alpha=False))


def probe_tiff(path: Path) -> Header | None:
    """Size and type of a TIFF that is one plain image, without its pixels; None if only decoding can tell."""
    try:
        with tifffile.TiffFile(path) as file:
            _check_chain(file)
            page = file.pages.first
            if len(file.pages) > 1 or "C" in file.series[0].axes or _alpha(page) or not _plain(page):
                return None
            height, width = page.shape[-2:] if page.axes.startswith("S") else page.shape[:2]
            return Header(height, width, int(page.samplesperpixel), np.dtype(page.dtype))
    except Exception:  # whatever is wrong with the file, reading it says so with a reason
        return None


def _page_image(page: Any, id: str) -> Image:
    """One page (Y, X), (Y, X, S) or (S, Y, X) as an Image."""
    if _needs_pillow(page):
        raise UnreadableImage(
            f"a page in {page.photometric.name} colours cannot be read from a stack: convert it to RGB"
        )
    check_size(*_plane(page.shape, page.axes), page.nbytes)
    pixels = np.asarray(page.asarray())
    if page.axes.startswith("S"):
        pixels = np.moveaxis(pixels, 0, -1)
    if pixels.ndim not in (2, 3):
        raise UnreadableImage(f"a page with axes {page.axes} is not an image")
    if page.photometric == _PALETTE and page.colormap is not None:
        pixels = (np.moveaxis(page.colormap, 0, -1) >> 8).astype(np.uint8)[pixels]
    if pixels.dtype == bool:
        pixels = pixels.astype(np.uint8) * np.uint8(255)
    if page.photometric == _WHITE_IS_ZERO and pixels.dtype.kind == "u":
        pixels = np.iinfo(pixels.dtype).max - pixels
    if pixels.dtype.kind not in "uif":
        raise UnreadableImage(f"pixels of type {pixels.dtype} are not an image")
    tag = page.tags.get(274)
    orientation = int(tag.value) if tag is not None and 1 <= int(tag.value) <= 8 else 1
    return _finite(make_image(id, pixels, has_alpha=_alpha(page), orientation=orientation))


def _plane(shape: tuple[int, ...], axes: str) -> tuple[int, int]:
    """(height, width) of a page or series; (1, 1) if it has no plane, which is for others to complain about."""
    height, width = (shape[axes.index(letter)] if letter in axes else 1 for letter in "YX")
    return height, width


def _stacked(array: np.ndarray, axes: str) -> np.ndarray | None:
    """Axes such as TZCYX → (T·Z, Y, X, C); without channels (N, Y, X)."""
    if "Y" not in axes or "X" not in axes or array.ndim != len(axes) or ("C" in axes and "S" in axes):
        return None
    channel = [axes.index(letter) for letter in "CS" if letter in axes]
    plane = [axes.index("Y"), axes.index("X")]
    others = [k for k in range(array.ndim) if k not in (*plane, *channel)]
    ordered = array.transpose(*others, *plane, *channel)
    return ordered.reshape(-1, *ordered.shape[len(others) :])


def _plain(page: Any) -> bool:
    """Stored values are the pixels: no palette, no inversion, no turning."""
    tag = page.tags.get(274)
    turned = tag is not None and int(tag.value) not in (0, 1)
    special = page.photometric in (_WHITE_IS_ZERO, _PALETTE) or _needs_pillow(page)
    return not turned and not special and page.dtype is not None and page.dtype.kind in "uif"


def _needs_pillow(page: Any) -> bool:
    """Colour spaces that tifffile leaves as stored. JPEG pages in YCbCr are decoded to RGB by its codec."""
    jpeg = page.compression in (6, 7)
    return page.photometric in (_CMYK, _LAB) or (page.photometric == _YCBCR and not jpeg)


def _alpha(page: Any) -> bool:
    # 1 and 2 are the two kinds of alpha; 0 is a channel that means something else.
    return bool(page.extrasamples) and int(page.extrasamples[-1]) in (1, 2)


def _is_thumbnail(page: Any) -> bool:
    return bool(page.is_reduced)


def _finite(image: Image) -> Image:
    if not finite(image.pixels):
        raise UnreadableImage(NOT_FINITE)
    return image
