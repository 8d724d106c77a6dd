"""One TIFF for all aligned images: a plain stack of pages, or a scientific stack with all it said about itself."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tifffile

from congeal.files import is_plain, replacing
from congeal.images import ome
from congeal.images.encode import tiff_options
from congeal.images.hyperstack import Hyperstack
from congeal.images.source import ImageSource
from congeal.images.tiff_stacks import TiffOrigin
from congeal.images.writers import NpyWriter

Size = tuple[int, int]
MOST_CLASSIC = 3 << 30
"""Bytes of pixels in a TIFF with offsets of 32 bits; beyond, those of 64 bits are used."""
_LOSSLESS = {5: "lzw", 8: "zlib", 32946: "zlib", 50000: "zstd", 34925: "lzma"}
_NEEDS_CODECS = ("lzw", "zstd")
_IMAGEJ_TYPES = ("uint8", "uint16", "float32")


class TiffWriter(NpyWriter):
    """`aligned.tif`, one page per image; gathered in a memory map first because pages can arrive in any order.

    A source that is a scientific stack gets its axes, sizes and names back: ImageJ's way where it came from ImageJ,
    else as OME-TIFF.
    """

    def __init__(self, folder: Path, source: ImageSource, size: Size) -> None:
        self._tiff = folder / "aligned.tif"
        stack = source.hyperstack
        self._stack = None if stack is None else _in_tiff_order(stack.resized(size))
        super().__init__(folder, source, size)

    def _final_exists(self) -> bool:
        pages = len(self.source) if self._stack is None else _n_pages(self._stack)
        return is_whole_tiff(self._tiff, pages, self.size)

    def _finish(self, array: np.ndarray) -> None:
        with replacing(self._tiff) as whole:
            if self._stack is None:
                self._write_pages(whole, array)
            else:
                self._write_stack(whole, array, self._stack)

    def _write_pages(self, whole: Any, array: np.ndarray) -> None:
        channels = array.shape[3] if array.ndim == 4 else 1
        options: dict[str, Any] = tiff_options(channels, alpha=False)
        with tifffile.TiffWriter(whole, bigtiff=array.nbytes > MOST_CLASSIC) as file:
            for page in array:
                self._pages.touched(page.nbytes)
                pixels = page[..., 0] if array.ndim == 4 and channels == 1 else page
                file.write(np.ascontiguousarray(pixels), contiguous=False, metadata=None, **options)

    def _write_stack(self, whole: Any, array: np.ndarray, stack: Hyperstack) -> None:
        # The writer knows source and size; what the file is called like depends on the type of its numbers, too.
        origin = stack.origin if isinstance(stack.origin, TiffOrigin) else _origin_for(stack)
        if origin.kind == "ome" and set(stack.axes) - set(ome.LETTERS):
            origin = replace(origin, kind="shaped")
        imagej = origin.kind == "imagej" and array.dtype.name in _IMAGEJ_TYPES and not set(stack.axes) - set("TZCYXS")
        large = array.nbytes > MOST_CLASSIC
        options: dict[str, Any] = {**_sample_options(stack), **_storage(origin, stack), **_resolution(origin)}
        if imagej:
            options["metadata"] = {**_imagej(origin, stack), "axes": stack.axes}
        elif origin.kind == "ome":
            text = ome.written(origin.text, stack, array.dtype) if origin.text else ome.made(stack, array.dtype)
            options |= {"description": text.encode(), "metadata": None}
        else:
            options["metadata"] = {"axes": stack.axes} if origin.kind == "shaped" else None
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
        samples = stack.length("S") if "S" in stack.axes else 0
        first = "S" in stack.axes and stack.axes.index("S") < stack.axes.index("Y")
        for at in stack.places(_outer(stack)):
            image = array[stack.number(at)]
            self._pages.touched(image.nbytes)
            if image.ndim == 2:
                page = image
            elif samples:
                start = stack.channel(at)  # S is the last of the channel axes
                page = image[..., start : start + samples]
                page = np.moveaxis(page, -1, 0) if first else page
            else:
                page = image[..., stack.channel(at)]
            yield np.ascontiguousarray(page)


def is_whole_tiff(path: Path, pages: int = 1, size: Size | None = None) -> bool:
    """Whether a TIFF is there with all its pages, of that size if one is given."""
    if not is_plain(path) or path.stat().st_size == 0:
        return False
    try:
        with tifffile.TiffFile(path) as file:
            first, count = file.pages.first, len(file.pages)
            series = file.series[0]
            if count == 1 < pages and file.is_imagej and series.dataoffset is not None:  # one page stands for all
                there = series.size == pages * first.size and series.dataoffset + series.nbytes <= path.stat().st_size
                return there and (size is None or first.shape[:2] == size)
            last = file.pages[-1].aspage()  # written in order
            end = max(map(sum, zip(last.dataoffsets, last.databytecounts, strict=True)))
            planar = first.axes.startswith("S")
            fits = size is None or (first.shape[-2:] if planar else first.shape[:2]) == size
            return count == pages and fits and end <= path.stat().st_size
    except Exception:  # damaged files raise nearly anything
        return False


def _in_tiff_order(stack: Hyperstack) -> Hyperstack:
    """Axes as a TIFF has them: pages of Y and X, with colour samples on the side on which they were."""
    before = "S" in stack.axes and stack.axes.index("S") < stack.axes.index("Y")
    page = "".join(("S" if before else "", "YX", "S" if "S" in stack.axes and not before else ""))
    axes = "".join(letter for letter in stack.axes if letter not in "YXS") + page
    return replace(stack, axes=axes, shape=tuple(map(stack.length, axes)))


def _outer(stack: Hyperstack) -> str:
    return "".join(letter for letter in stack.axes if letter not in "YXS")


def _n_pages(stack: Hyperstack) -> int:
    return int(np.prod([stack.length(letter) for letter in _outer(stack)]))


def _origin_for(stack: Hyperstack) -> TiffOrigin:
    """For a stack from another format: OME-TIFF if it has anything to say."""
    return TiffOrigin("ome" if stack.steps or stack.channel_names or set(stack.axes) & set("TZC") else "plain")


def _tiles(page: np.ndarray, tile: Size, stack: Hyperstack) -> Iterator[np.ndarray]:
    """A page in the tiles that tifffile wants it in: by rows, samples that come first one after the other."""
    first = "S" in stack.axes and stack.axes.index("S") < stack.axes.index("Y")
    for plane in page if first else (page,):
        for top in range(0, plane.shape[0], tile[0]):
            for left in range(0, plane.shape[1], tile[1]):
                yield np.ascontiguousarray(plane[top : top + tile[0], left : left + tile[1]])


def _sample_options(stack: Hyperstack) -> dict[str, Any]:
    if "S" not in stack.axes:
        return {"photometric": "minisblack"}
    options = tiff_options(stack.length("S"), alpha=False)
    if stack.axes.index("S") < stack.axes.index("Y"):
        options["planarconfig"] = "separate"
    return options


def _storage(origin: TiffOrigin, stack: Hyperstack) -> dict[str, Any]:
    """Compression and tiles as they were, where that loses nothing and can be written here."""
    code, codecs = origin.storage.get("compression", 1), importlib.util.find_spec("imagecodecs") is not None
    options: dict[str, Any] = {}
    if code != 1:
        name = _LOSSLESS.get(code, "zlib")  # what was lossy once is not made worse
        options["compression"] = "zlib" if name in _NEEDS_CODECS and not codecs else name
        if origin.storage.get("predictor", 1) != 1 and code in _LOSSLESS and codecs:
            options["predictor"] = origin.storage["predictor"]
    tile = origin.storage.get("tile")
    if tile and all(side % 16 == 0 for side in tile):
        options["tile"] = tile
    return options


def _resolution(origin: TiffOrigin) -> dict[str, Any]:
    if origin.resolution is None:
        return {}
    x, y, unit = origin.resolution
    return {"resolution": (x, y), "resolutionunit": unit}


def _imagej(origin: TiffOrigin, stack: Hyperstack) -> dict[str, Any]:
    """ImageJ's own facts, of the slices that are left."""
    facts = dict(origin.imagej)
    labels = facts.pop("Labels", None)
    if not isinstance(labels, list | tuple) or stack.ragged:
        return facts
    if len(labels) == stack.length("C"):
        return {**facts, "Labels": list(labels)}
    letters = [letter for letter in "TZC" if letter in stack.axes]
    before = [max(stack.length(letter), 1 + max(stack.chosen.get(letter, (0,)))) for letter in letters]
    if letters and len(labels) % int(np.prod(before[1:])) == 0:
        grid = np.arange(len(labels)).reshape(-1, *before[1:])
        for k, letter in enumerate(letters):
            if letter in stack.chosen:
                grid = grid.take(stack.chosen[letter], axis=k)
        facts["Labels"] = [labels[n] for n in grid.reshape(-1)]
    return facts
