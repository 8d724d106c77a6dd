"""TIFF through tifffile: single images, page stacks, ImageJ hyperstacks and OME-TIFF, read and written."""

from __future__ import annotations

import importlib.util
import io
import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import tifffile
from PIL import Image as Pillow

from congeal.errors import CongealError
from congeal.files import replacing
from congeal.images.formats import hyperstack
from congeal.images.formats.decode import (
    ORIENTATION_TAG,
    as_unopenable,
    as_unreadable,
    check_size,
    from_pillow,
    make_image,
)
from congeal.images.formats.hyperstack import Hyperstack, ReaderChain, Step
from congeal.images.formats.output_files import tiff_options
from congeal.images.formats.writers import NpyWriter, Size
from congeal.images.sources.arrays import MOST_UNPACKED, HyperstackSource, IndexedReader, Reader, open_stack
from congeal.images.sources.base import Header, Image, ImageSource, UnreadableImage
from congeal.memmap import touch_pages

log = logging.getLogger("congeal")
# tifffile would write to stderr; problems of a file that matter are reported by this module.
logging.getLogger("tifffile").addHandler(logging.NullHandler())

_PER_UNIT = {2: "inch", 3: "cm"}
_COUNTS = frozenset(("ImageJ", "images", "channels", "slices", "frames", "hyperstack", "axes"))
_DRAWN = frozenset(("ROI", "Overlays"))
# Bytes of pixels in a TIFF with offsets of 32 bits; beyond, offsets have 64. Chosen by judgement: a gigabyte less than
# 32 bits reach leaves room for everything else.
MOST_CLASSIC = 3 << 30
_LOSSLESS = {5: "lzw", 8: "zlib", 32946: "zlib", 50000: "zstd", 34925: "lzma"}
_NEEDS_CODECS = ("lzw", "zstd")
_OME_AXES = "TZCYXSR"  # R numbers the images of one file
_OME_TYPES = ("int8", "int16", "int32", "uint8", "uint16", "uint32", "float32", "float64")
_IMAGEJ_TYPES = ("uint8", "uint16", "float32")
_WHITE_IS_ZERO, _PALETTE, _CMYK, _YCBCR, _LAB = 0, 3, 5, 6, 8


class TiffPages(ImageSource):
    """A TIFF whose pages are images; pages are decoded one at a time and may differ in size."""

    layout = "tiff"

    def __init__(self, path: Path, file: tifffile.TiffFile, pages: list[Any]) -> None:
        self.name, self.path, self.pages, self._file, self._lock = path.name, path, pages, file, Lock()
        kinds = {(page.shape[2:], page.dtype, page.photometric) for page in pages}
        self.grey = all(len(page.shape) == 2 and page.photometric != _PALETTE for page in pages)
        if len(kinds) > 1 or _has_alpha(pages[0]):
            self.layout = "files"  # one TIFF stack cannot give back pages of several kinds

    def __len__(self) -> int:
        return len(self.pages)

    def id(self, i: int) -> str:
        return f"page-{range(len(self))[i]:05d}"

    def read(self, i: int) -> Image:
        with as_unreadable("page", self.id(i)), self._lock:
            return _page_image(self.pages[i], self.id(i))


def open_tiff(path: Path, z: str | None = None) -> ImageSource:
    """A TIFF given by itself: every page, or every position along T, Z, … of a hyperstack, is one image.

    z: what a stack with depth is, see `congeal.images.formats.hyperstack.Z_MODES`.
    """
    with as_unopenable(path, "TIFF file"):
        file = tifffile.TiffFile(path)
        _check_chain(file)
        series = file.series
        _check_whole(path, file)
        plain = all(_is_plain_page(one.keyframe) for one in series)
        if plain and (found := _open_series(path, file, z)) is not None:
            return found
        if z not in (None, "auto", "planes"):
            raise CongealError(f"{path} has no Z axis to project: leave out --z {z}")
        pages = _pages(file)
        if not pages:
            raise CongealError(f"{path} has no pages")
        return TiffPages(path, file, pages)


def _pages(file: tifffile.TiffFile) -> list[Any]:
    """All pages but thumbnails."""
    return [page for one in file.pages if not (page := one.aspage()).is_reduced]


def _check_chain(file: tifffile.TiffFile) -> None:
    """Refuse a file in which a page names one before it as the next: its pages would never end."""
    seen, file.pages.useframes = set[int](), True  # which are found without reading all their tags
    for page in file.pages:
        if page.offset in seen:
            raise CongealError("the TIFF file is damaged: its pages go round in a circle")
        seen.add(page.offset)
    file.pages.useframes = False


def _check_whole(path: Path, file: tifffile.TiffFile) -> None:
    """Refuse a stack whose own description promises more than the file still holds: it was cut short."""
    there = sum(one.size for one in file.series)
    described = [one.keyframe.description for one in file.series]
    promised = max([math.prod(json.loads(text)["shape"]) for text in described if text.startswith('{"shape":')] or [0])
    if promised > there:
        raise CongealError(f"{path} is cut short: it holds {there} of the {promised} values it promises")


def decode_tiff(data: bytes, id: str) -> Image:
    """One TIFF file that is one image, such as a member of a folder."""
    with tifffile.TiffFile(io.BytesIO(data)) as file:
        _check_chain(file)
        pages = _pages(file)
        if len(pages) == 1 and file.series[0].ndim <= 3 and "C" not in file.series[0].axes:
            if _needs_pillow(pages[0]):
                with Pillow.open(io.BytesIO(data)) as picture:
                    return from_pillow(picture, id)
            return _page_image(pages[0], id)
        series = file.series[0]
        check_size(series.keyframe.imagelength, series.keyframe.imagewidth, series.nbytes)
        stack = Hyperstack(series.axes, series.shape)
        count = stack.n_images if len(file.series) == 1 else len(pages)
        if count != 1:
            raise UnreadableImage(f"the file has {count} pages: open it by itself as a stack, or split it")
        reader = IndexedReader(series.asarray(), series.axes)
        return HyperstackSource(stack, reader, name=id, layout="tiff", ids=[id]).read(0)


def probe_tiff(path: Path) -> Header | None:
    """Size and type of a TIFF that is one plain image, without its pixels; None if only decoding can tell."""
    try:
        with tifffile.TiffFile(path) as file:
            _check_chain(file)
            page = file.pages.first
            if len(file.pages) > 1 or "C" in file.series[0].axes or not _is_plain_page(page):
                return None
            return Header(page.imagelength, page.imagewidth, int(page.samplesperpixel), np.dtype(page.dtype))
    except Exception:  # whatever is wrong with the file, reading it says so with a reason
        return None


def _page_image(page: Any, id: str) -> Image:
    """One page (Y, X), (Y, X, S) or (S, Y, X) as an Image."""
    if _needs_pillow(page):
        raise UnreadableImage(
            f"a page in {page.photometric.name} colours cannot be read from a stack: convert it to RGB"
        )
    check_size(page.imagelength, page.imagewidth, page.nbytes)
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
    return make_image(id, pixels, has_alpha=_has_alpha(page), orientation=_orientation(page))


def _orientation(page: Any) -> int:
    value = page.tags.valueof(ORIENTATION_TAG)
    return int(value) if value is not None and 1 <= int(value) <= 8 else 1


def _is_plain_page(page: Any) -> bool:
    """Stored values are the pixels: no palette, no inversion, no turning, no alpha."""
    special = page.photometric in (_WHITE_IS_ZERO, _PALETTE) or _needs_pillow(page) or _orientation(page) > 1
    return not special and not _has_alpha(page) and page.dtype is not None and page.dtype.kind in "uif"


def _needs_pillow(page: Any) -> bool:
    """Colour spaces that tifffile leaves as stored. JPEG pages in YCbCr are decoded to RGB by its codec."""
    jpeg = page.compression in (6, 7)
    return page.photometric in (_CMYK, _LAB) or (page.photometric == _YCBCR and not jpeg)


def _has_alpha(page: Any) -> bool:
    # 1 and 2 are the two kinds of alpha; 0 is a channel that means something else.
    return bool(page.extrasamples) and int(page.extrasamples[-1]) in (1, 2)


@dataclass(frozen=True)
class TiffOrigin:
    """What a TIFF has besides pixels: "imagej", "ome", "shaped" (tifffile's own) or "plain"; for a TIFF writer.

    text: the OME-XML. imagej: ImageJ's own metadata. options: how its pages are stored, in the words of tifffile.
    """

    kind: str
    text: str = ""
    imagej: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


def _open_series(path: Path, file: tifffile.TiffFile, z: str | None) -> ImageSource | None:
    """The stack of a TIFF whose pages belong together; None if they are single images."""
    series = file.series
    ome_text = _ome_text(path, file)
    alike = len({(one.shape, one.axes, one.dtype, one.kind) for one in series}) == 1
    if not alike or (len(series) > 1 and (series[0].kind != "ome" or not ome_text)):
        return None
    first = series[0]
    if len(set(first.axes)) != len(first.axes) or "Y" not in first.axes or "X" not in first.axes:
        return None
    mapped = tifffile.memmap(path, series=0, mode="r") if len(series) == 1 and first.dataoffset is not None else None
    reader = _reader(series) if mapped is None else IndexedReader(mapped, first.axes)
    if reader is None:
        return None
    axes, shape = first.axes, first.shape
    if len(series) > 1:
        axes, shape = f"R{axes}", (len(series), *shape)
    stack = _describe(file, first, axes, shape, ome_text)
    source = open_stack(stack, reader, name=path.name, layout="tiff", z=z, mapped=mapped)
    if mapped is not None:
        file.close()
    return source


def _ome_text(path: Path, file: tifffile.TiffFile) -> str:
    """The OME-XML of a file; empty if there is none, or a broken one."""
    text = file.pages.first.description or ""
    if hyperstack.OME_MARK not in text:
        return ""
    try:
        hyperstack.parse_ome(text)
        if file.series[0].kind == "ome":
            return text
        reason = "it does not fit the pages"
    except CongealError as error:
        reason = str(error)
    log.warning(
        "the OME-XML of %s is broken (%s): its pages are taken as they are, without names and sizes", path, reason
    )
    return ""


def _reader(series: Sequence[Any]) -> Reader | None:
    """Page by page where pages are made of whole planes; all at once where only tifffile can put them together."""
    readers: list[Reader] = []
    for one in series:
        inner = tuple(one.keyframe.shape)
        if one.shape[len(one.shape) - len(inner) :] == inner and len(one.pages) * one.keyframe.size == one.size:
            readers.append(PagedReader(one))
        elif "C" in one.axes and one.nbytes <= MOST_UNPACKED:
            readers.append(IndexedReader(one.asarray(), one.axes))
        else:
            return None
    return readers[0] if len(readers) == 1 else ReaderChain(readers, "R")


class PagedReader:
    """Planes of a TIFF series, each decoded when it is asked for."""

    def __init__(self, series: Any) -> None:
        self.dtype, self._pages, self._lock = np.dtype(series.dtype).newbyteorder("="), series.pages, Lock()
        split = len(series.axes) - len(series.keyframe.shape)
        self._outer, self._inner = series.axes[:split], series.axes[split:]
        self._numbers = np.arange(len(series.pages)).reshape(series.shape[:split])

    def take(self, at: Mapping[str, int]) -> np.ndarray:
        """The plane at these positions of named axes."""
        numbers = np.asarray(self._numbers[tuple(at.get(letter, slice(None)) for letter in self._outer)])
        index = tuple(at.get(letter, slice(None)) for letter in self._inner)
        planes = [self._page(number)[index] for number in numbers.reshape(-1).tolist()]
        return np.stack(planes).reshape(*numbers.shape, *planes[0].shape)

    def _page(self, number: int) -> np.ndarray:
        with self._lock, as_unreadable("page", str(number)):
            page = self._pages[number]
            if page is None:
                raise UnreadableImage(f"the file has no page {number} although its description counts it")
            return np.asarray(page.asarray())


def _describe(file: Any, series: Any, axes: str, shape: tuple[int, ...], ome_text: str) -> Hyperstack:
    """Axes, sizes and names of a series, and what a writer of TIFF needs besides."""
    page = file.pages.first
    kind = "ome" if ome_text else series.kind if series.kind in ("imagej", "shaped") else "plain"
    imagej: dict[str, Any] = dict(file.imagej_metadata or {}) if kind == "imagej" else {}
    resolution = _resolution(page)
    stack = Hyperstack(axes, shape)
    steps: dict[str, Step] = {}
    names: tuple[str, ...] = ()
    if ome_text:
        steps, names = hyperstack.read_ome(ome_text)
    elif resolution is not None:
        steps, names = _steps(imagej, resolution), _label_names(imagej.get("Labels"), stack)
    if told := sorted(_DRAWN & imagej.keys()):
        log.warning("%s of the ImageJ stack are drawn on the originals and are left out", " and ".join(told))
    kept = {key: value for key, value in imagej.items() if key not in _COUNTS | _DRAWN}
    origin = TiffOrigin(kind, ome_text, kept, _storage_options(page, resolution))
    names = names if len(names) == stack.n_channels else ()
    return replace(stack, steps=steps, channel_names=names, origin=origin)


def _resolution(page: Any) -> tuple[float, float, int] | None:
    """The tags of the page: pixels per unit along X and Y, and which unit; None if it has none that mean anything."""
    values = [page.tags.valueof(name) for name in ("XResolution", "YResolution")]
    if not all(isinstance(value, tuple) and len(value) == 2 and all(value) for value in values):
        return None
    (x, per_x), (y, per_y) = values
    return x / per_x, y / per_y, int(page.tags.valueof("ResolutionUnit", 2))


def _steps(imagej: Mapping[str, Any], resolution: tuple[float, float, int]) -> dict[str, Step]:
    unit = str(imagej.get("unit", ""))
    if "\\u" in unit:
        unit = unit.encode("ascii", "ignore").decode("unicode_escape")
    unit = "µm" if unit in ("um", "micron", "microns") else unit or _PER_UNIT.get(resolution[2], "")
    steps = {letter: Step(1 / per_unit, unit) for letter, per_unit in zip("XY", resolution, strict=False) if unit}
    for letter, key, own in (("Z", "spacing", unit), ("T", "finterval", "s")):
        value = imagej.get(key)
        if isinstance(value, int | float) and np.isfinite(value) and value > 0:
            steps[letter] = Step(float(value), own)
    return steps


def _label_names(labels: Any, stack: Hyperstack) -> tuple[str, ...]:
    """Names of channels from ImageJ's labels of slices, where all slices of a channel are called the same."""
    channels, planes = stack.length("C"), math.prod(map(stack.length, "TZC"))
    if channels < 2 or not isinstance(labels, list | tuple) or len(labels) not in (channels, planes):
        return ()
    rows = [tuple(map(str, labels[start : start + channels])) for start in range(0, len(labels), channels)]
    return rows[0] if len(set(rows)) == 1 and len(set(rows[0])) == channels else ()


class TiffWriter(NpyWriter):
    """`aligned.tif`, one page per image.

    A source that is a scientific stack gets its axes, sizes and names back: ImageJ's way where it came from ImageJ,
    else as OME-TIFF.
    """

    file_name = "aligned.tif"

    def _arranged(self, stack: Hyperstack) -> Hyperstack:
        """Pages of Y and X, with colour samples on the side on which they were."""
        axes = _outer(stack) + ("SYX" if _is_planar(stack) else "YXS" if "S" in stack.axes else "YX")
        return replace(stack, axes=axes, shape=tuple(map(stack.length, axes)))

    def _finish(self, array: np.ndarray) -> None:
        grey = array.ndim == 3 or array.shape[3] == 1
        pages = Hyperstack("IYX" if grey else "IYXS", array.shape[:3] if grey else array.shape)
        with replacing(self.path) as whole:
            self._write_stack(whole, array, self.stack or pages)

    def _write_stack(self, whole: Any, array: np.ndarray, stack: Hyperstack) -> None:
        told = stack.steps or stack.channel_names or set(stack.axes) & set("TZC")  # what OME-TIFF has room for
        origin = stack.origin if isinstance(stack.origin, TiffOrigin) else TiffOrigin("ome" if told else "plain")
        if origin.kind == "ome" and (set(stack.axes) - set(_OME_AXES) or array.dtype.name not in _OME_TYPES):
            origin = replace(origin, kind="shaped")
        imagej = origin.kind == "imagej" and array.dtype.name in _IMAGEJ_TYPES and not set(stack.axes) - set("TZCYXS")
        large = array.nbytes > MOST_CLASSIC
        options = tiff_options(stack.length("S"), alpha=False) | dict(origin.options)
        if _is_planar(stack):
            options["planarconfig"] = "separate"
        options["metadata"] = {"axes": stack.axes} if origin.kind == "shaped" else None
        if imagej:
            options["metadata"] = {**_imagej(origin, stack), "axes": stack.axes}
        elif origin.kind == "ome":
            options["description"] = hyperstack.write_ome(origin.text, stack, array.dtype).encode()
        with tifffile.TiffWriter(whole, bigtiff=large and not imagej, imagej=imagej) as file:
            if imagej and large:  # ImageJ finds the pages behind the first by counting bytes
                options = {key: value for key, value in options.items() if key not in ("compression", "tile")}
                options |= {"truncate": True, "predictor": None}
            pages = self._stack_pages(array, stack)
            if options.get("tile"):
                pages = (part for page in pages for part in _tiles(page, options["tile"], stack))
            file.write(pages, shape=stack.shape, dtype=array.dtype, **options)

    def _stack_pages(self, array: np.ndarray, stack: Hyperstack) -> Iterator[np.ndarray]:
        """Pages in the order of the file: (H, W), or with colour samples (H, W, S) or (S, H, W)."""
        for at in stack.places(_outer(stack)):
            image = array[stack.index(at, stack.image_axes)]
            touch_pages(image.nbytes)
            if "S" in stack.axes:
                start = stack.index(at, stack.channel_axes)  # S is the last of the channel axes
                page = image[..., start : start + stack.length("S")]
                page = np.moveaxis(page, -1, 0) if _is_planar(stack) else page
            else:
                page = stack.plane(array, at)
            yield np.ascontiguousarray(page)


def _is_planar(stack: Hyperstack) -> bool:
    """Whether there are colour samples, each of which is a plane of its own."""
    return "S" in stack.axes and stack.axes.index("S") < stack.axes.index("Y")


def _outer(stack: Hyperstack) -> str:
    return "".join(letter for letter in stack.axes if letter not in "YXS")


def _tiles(page: np.ndarray, tile: Size, stack: Hyperstack) -> Iterator[np.ndarray]:
    """A page in the tiles that tifffile wants it in: by rows, samples that come first one after the other."""
    for plane in page if _is_planar(stack) else (page,):
        for top in range(0, plane.shape[0], tile[0]):
            for left in range(0, plane.shape[1], tile[1]):
                yield np.ascontiguousarray(plane[top : top + tile[0], left : left + tile[1]])


def _storage_options(page: Any, resolution: tuple[float, float, int] | None) -> dict[str, Any]:
    """Compression, tiles and resolution of a page, where they lose nothing and can be written here."""
    codecs = importlib.util.find_spec("imagecodecs") is not None
    options: dict[str, Any] = {}
    if page.compression != 1:
        name = _LOSSLESS.get(int(page.compression), "zlib")  # what was lossy once is not made worse
        options["compression"] = "zlib" if name in _NEEDS_CODECS and not codecs else name
        if page.predictor != 1 and page.compression in _LOSSLESS and codecs:
            options["predictor"] = int(page.predictor)
    if page.is_tiled and page.tilelength % 16 == page.tilewidth % 16 == 0:
        options["tile"] = (int(page.tilelength), int(page.tilewidth))
    if resolution is not None:
        options |= {"resolution": resolution[:2], "resolutionunit": resolution[2]}
    return options


def _imagej(origin: TiffOrigin, stack: Hyperstack) -> dict[str, Any]:
    """ImageJ's own metadata, with the labels of the slices that were kept."""
    facts = dict(origin.imagej)
    labels = facts.pop("Labels", None)
    if not isinstance(labels, list | tuple) or stack.ragged:
        return facts
    first = (stack.image_axes or "I")[0]  # the axis along which images may have been left out
    inner = math.prod(map(stack.length, "TZC")) // stack.length(first)
    if len(labels) == stack.length("C"):
        facts["Labels"] = list(labels)
    elif len(labels) % inner == 0:
        rows = stack.chosen.get(first, range(len(labels) // inner))
        facts["Labels"] = [label for row in rows for label in labels[row * inner : (row + 1) * inner]]
    return facts
