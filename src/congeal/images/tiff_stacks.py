"""Scientific TIFF stacks: ImageJ hyperstacks, OME-TIFF and plain pages, with what they say about themselves."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import tifffile

from congeal.errors import first_line
from congeal.images import ome
from congeal.images.arrays import MOST_UNPACKED
from congeal.images.hyperstack import Hyperstack, Step
from congeal.images.hyperstack_source import IndexedReader, Reader, open_stack
from congeal.images.source import ImageSource, UnreadableImage

log = logging.getLogger("congeal")
# It writes to stderr where nobody listens; what matters of a file is said in our own words.
logging.getLogger("tifffile").addHandler(logging.NullHandler())

_PER_UNIT = {2: ("inch", 1.0), 3: ("cm", 1.0)}
_COUNTS = frozenset(("ImageJ", "images", "channels", "slices", "frames", "hyperstack", "axes"))
_DRAWN = frozenset(("ROI", "Overlays"))


@dataclass(frozen=True)
class TiffOrigin:
    """What a TIFF has besides pixels: "imagej", "ome", "shaped" (tifffile's own) or "plain"; for a TIFF writer.

    text: the OME-XML. imagej: ImageJ's own facts. resolution: (x, y, unit) of the tags. storage: compression and tiles.
    """

    kind: str
    text: str = ""
    imagej: Mapping[str, Any] = field(default_factory=dict)
    resolution: tuple[float, float, int] | None = None
    storage: Mapping[str, Any] = field(default_factory=dict)


def open_series(path: Path, file: tifffile.TiffFile, z: str | None) -> ImageSource | None:
    """The stack of a TIFF whose pages belong together; None if they are single images."""
    series = file.series
    ome_text = _ome_text(path, file)
    alike = len({(one.shape, one.axes, one.dtype, one.kind) for one in series}) == 1
    if not alike or (len(series) > 1 and (series[0].kind != "ome" or not ome_text)):
        return None
    first = series[0]
    if len(set(first.axes)) != len(first.axes) or "Y" not in first.axes or "X" not in first.axes:
        return None
    mapped: np.ndarray | None = None
    reader: Reader | None
    if len(series) == 1 and first.dataoffset is not None:
        mapped = tifffile.memmap(path, series=0, mode="r")
        reader = IndexedReader(mapped, first.axes)
    else:
        reader = _reader(series)
    if reader is None:
        return None
    axes = ("R" if len(series) > 1 else "") + first.axes
    shape = (*((len(series),) if len(series) > 1 else ()), *first.shape)
    stack = _described(file, first, axes, shape, ome_text)
    source = open_stack(stack, reader, name=path.name, layout="tiff", z=z, mapped=mapped)
    if mapped is not None:
        file.close()
    return source


def _ome_text(path: Path, file: tifffile.TiffFile) -> str:
    """The OME-XML of a file; empty if there is none. A broken one is said, and the pages speak for themselves."""
    text = file.pages.first.description or ""
    if ome.MARK not in text:
        return ""
    try:
        ome.parse(text)
        if file.series[0].kind != "ome":
            raise ome.BrokenOme("it does not fit the pages")
    except ome.BrokenOme as error:
        log.warning(
            "the OME-XML of %s is broken (%s): its pages are taken as they are, without names and sizes", path, error
        )
        return ""
    return text


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
    return readers[0] if len(readers) == 1 else _Several(readers)


class PagedReader:
    """Planes of a TIFF series, each decoded when it is asked for."""

    def __init__(self, series: Any) -> None:
        self.dtype, self._pages, self._lock = np.dtype(series.dtype).newbyteorder("="), series.pages, Lock()
        split = len(series.axes) - len(series.keyframe.shape)
        self._outer, self._lengths, self._inner = series.axes[:split], series.shape[:split], series.axes[split:]

    def take(self, at: Mapping[str, int]) -> np.ndarray:
        """Decode the pages of the block and put them together."""
        left = [n for letter, n in zip(self._outer, self._lengths, strict=True) if letter not in at]
        index = tuple(at.get(letter, slice(None)) for letter in self._inner)
        planes = [self._page(at, free)[index] for free in np.ndindex(*left)]
        if not left:
            return planes[0]
        return np.stack(planes).reshape(*left, *planes[0].shape)

    def _page(self, at: Mapping[str, int], free: tuple[int, ...]) -> np.ndarray:
        rest, number = iter(free), 0
        for letter, n in zip(self._outer, self._lengths, strict=True):
            number = number * n + (at[letter] if letter in at else next(rest))
        with self._lock:
            page = self._pages[number]
            if page is None:
                raise UnreadableImage(f"the file has no page {number} although its description counts it")
            try:
                return np.asarray(page.asarray())
            except Exception as error:  # damaged pages raise nearly anything; each is a reason in skipped.csv
                raise UnreadableImage(page_reason(error)) from error


class _Several:
    """Series of one kind, one after the other along R."""

    def __init__(self, readers: Sequence[Reader]) -> None:
        self.readers, self.dtype = readers, readers[0].dtype

    def take(self, at: Mapping[str, int]) -> np.ndarray:
        return self.readers[at["R"]].take({letter: n for letter, n in at.items() if letter != "R"})


def page_reason(error: Exception) -> str:
    """Why a page cannot be used."""
    text = first_line(error)
    if "imagecodecs" in text:
        return f"{text}: pip install 'congeal[formats]'"
    return f"damaged page ({text})"


def _described(file: Any, series: Any, axes: str, shape: tuple[int, ...], ome_text: str) -> Hyperstack:
    """Axes, sizes and names of a series, and what a writer of TIFF needs besides."""
    page = file.pages.first
    kind = "ome" if ome_text else series.kind if series.kind in ("imagej", "shaped") else "plain"
    imagej: dict[str, Any] = dict(file.imagej_metadata or {}) if kind == "imagej" else {}
    resolution = _resolution(page)
    steps: dict[str, Step] = {}
    names: tuple[str, ...] = ()
    if ome_text:
        steps, names = ome.known(ome_text)
    elif resolution is not None:
        steps = _steps(imagej, resolution)
        names = _label_names(imagej.get("Labels"), axes, shape)
    channels = int(np.prod([n for letter, n in zip(axes, shape, strict=True) if letter in "CS"]))
    told = sorted(_DRAWN & imagej.keys())
    if told:
        log.warning("%s of the ImageJ stack are drawn on the originals and are left out", " and ".join(told))
    kept = {key: value for key, value in imagej.items() if key not in _COUNTS | _DRAWN}
    origin = TiffOrigin(kind, ome_text, kept, resolution, _storage(page))
    return Hyperstack(axes, shape, steps, names if len(names) == channels else (), origin=origin)


def _resolution(page: Any) -> tuple[float, float, int] | None:
    """The tags of the page: pixels per unit along X and Y, and which unit; None if it has none that mean anything."""
    values = []
    for name in ("XResolution", "YResolution"):
        tag = page.tags.get(name)
        if tag is None or not isinstance(tag.value, tuple) or len(tag.value) != 2 or not all(tag.value):
            return None
        values.append(tag.value[0] / tag.value[1])
    tag = page.tags.get("ResolutionUnit")
    return values[0], values[1], int(tag.value) if tag is not None else 2


def _steps(imagej: Mapping[str, Any], resolution: tuple[float, float, int]) -> dict[str, Step]:
    unit = str(imagej.get("unit", ""))
    if "\\u" in unit:
        unit = unit.encode("ascii", "ignore").decode("unicode_escape")
    if unit in ("um", "micron", "microns"):
        unit = "µm"
    x, y, code = resolution
    if not unit and code in _PER_UNIT:
        unit = _PER_UNIT[code][0]
    steps = {"X": Step(1 / x, unit), "Y": Step(1 / y, unit)} if unit else {}
    for letter, key, own in (("Z", "spacing", unit), ("T", "finterval", "s")):
        value = imagej.get(key)
        if isinstance(value, int | float) and np.isfinite(value) and value > 0:
            steps[letter] = Step(float(value), own)
    return steps


def _label_names(labels: Any, axes: str, shape: tuple[int, ...]) -> tuple[str, ...]:
    """Names of channels from ImageJ's labels of slices, where all slices of a channel are called the same."""
    lengths = dict(zip(axes, shape, strict=True))
    channels, planes = lengths.get("C", 1), int(np.prod([lengths.get(letter, 1) for letter in "TZC"]))
    if channels < 2 or not isinstance(labels, list | tuple) or len(labels) not in (channels, planes):
        return ()
    rows = [tuple(map(str, labels[start : start + channels])) for start in range(0, len(labels), channels)]
    return rows[0] if len(set(rows)) == 1 and len(set(rows[0])) == channels else ()


def _storage(page: Any) -> dict[str, Any]:
    """Compression, predictor and tiles."""
    found: dict[str, Any] = {"compression": int(page.compression), "predictor": int(page.predictor)}
    if page.is_tiled and page.tilelength and page.tilewidth:
        found["tile"] = (int(page.tilelength), int(page.tilewidth))
    return found
