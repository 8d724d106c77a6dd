"""`pack`: any source → one memory-mapped array, once."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import numpy as np

from congeal.errors import CongealError
from congeal.images.arrays import open_npy, sidecar
from congeal.images.canvas import place, render
from congeal.images.disk import allocate, write_atomic, writing
from congeal.images.plan import nothing_readable
from congeal.images.source import Header, Image, ImageSource, UnreadableImage
from congeal.progress import Progress


def pack(source: ImageSource, path: str | Path, *, quiet: bool = True) -> ImageSource:
    """Write a source as `path` (.npy, (N, H, W[, C])) and give back the packed source.

    Next to it `path.json` keeps ids, reasons of unreadable images (their rows are zero) and, for images of mixed sizes,
    canvas_from_source; `path.masks.npy` exists if there is alpha or letterbox. One size and dtype is kept as it is.
    Mixed sizes go to the median size; 8- and 16-bit mixed become 16-bit, other mixtures float32 in [0, 1]; grey among
    colour becomes colour.
    """
    path = Path(path)
    if path.suffix.lower() != ".npy":
        raise CongealError(f"pack writes a .npy file; {path} has another extension")
    headers, reasons = _headers(source, quiet)
    sizes = np.array([(h.height, h.width) for h in headers.values()])
    canvas = (int(np.median(sizes[:, 0])), int(np.median(sizes[:, 1])))
    dtype, channels = _common_dtype(headers), _common_channels(headers)
    shape = (len(source), *canvas) if channels == 1 and source.shape is None else (len(source), *canvas, channels)
    if source.grey:
        shape = (len(source), *canvas)
    partial = path.with_name(f".{path.name}.partial.npy")
    masks_partial = path.with_name(f".{path.name}.masks.partial.npy")
    array, masks = allocate(partial, shape, dtype), None
    placed: dict[str, list[float]] = {}
    with Progress(len(source), "packing", quiet=quiet) as progress:
        for i in range(len(source)):
            progress.update()
            if i in reasons:
                continue
            try:
                image = source.read(i)
            except UnreadableImage as error:
                reasons[i] = str(error)
                continue
            pixels = _convert(image, dtype, channels)
            mask = image.mask
            if pixels.shape[:2] != canvas:
                placement = place(pixels.shape[:2], canvas)
                values, mask = render(pixels, canvas, placement, mask)
                pixels = _rounded(np.moveaxis(values, 0, -1), dtype)
                placed[source.id(i)] = [float(v) for v in placement.matrix.ravel()]
            array[i] = pixels.reshape(shape[1:])
            if mask is not None:
                if masks is None:
                    masks = allocate(masks_partial, (len(source), *canvas), np.dtype(np.uint8))
                    masks[:] = 255
                masks[i] = np.rint(mask * 255)
    if len(reasons) == len(source):
        partial.unlink()
        raise nothing_readable(source, next(iter(reasons.values())))
    about: dict[str, object] = {
        "ids": [source.id(i) for i in range(len(source))],
        "skipped": reasons,
        "masks": None if masks is None else f"{path.name}.masks.npy",
        "canvas": list(canvas),
        "canvas_from_source": placed,
    }
    _publish(path, partial, masks_partial if masks is not None else None, about, (array, masks))
    return open_npy(path)


def _publish(
    path: Path,
    partial: Path,
    masks: Path | None,
    about: dict[str, object],
    arrays: tuple[np.ndarray, np.ndarray | None],
) -> None:
    """Everything under its final name; the array itself last, so that it never stands there without its ids."""
    for array in arrays:
        if isinstance(array, np.memmap):
            array.flush()
    with writing(path):
        if masks is not None:
            os.replace(masks, path.with_name(f"{path.name}.masks.npy"))
        write_atomic(sidecar(path), json.dumps(about).encode())
        os.replace(partial, path)


def _headers(source: ImageSource, quiet: bool) -> tuple[dict[int, Header], dict[int, str]]:
    """Sizes and types of all images that can be read, and reasons for the others."""
    headers: dict[int, Header] = {}
    reasons = dict(source.unreadable)
    with Progress(len(source), "looking at images", quiet=quiet) as progress:
        for i in range(len(source)):
            progress.update()
            if i in reasons:
                continue
            try:
                headers[i] = source.probe(i)
            except UnreadableImage as error:
                reasons[i] = str(error)
    if not headers:
        raise nothing_readable(source, next(iter(reasons.values()), "there is none"))
    return headers, reasons


def _common_dtype(headers: dict[int, Header]) -> np.dtype:
    dtypes = {header.dtype for header in headers.values()}
    if len(dtypes) == 1:
        return dtypes.pop()
    return np.dtype(np.uint16 if dtypes == {np.dtype(np.uint8), np.dtype(np.uint16)} else np.float32)


def _common_channels(headers: dict[int, Header]) -> int:
    counts = Counter(header.channels for header in headers.values())
    if len(counts) > 1 and set(counts) != {1, 3}:
        raise CongealError(f"images with {sorted(counts)} channels cannot share one array: pack them apart")
    return max(counts)


def _convert(image: Image, dtype: np.dtype, channels: int) -> np.ndarray:
    pixels = image.pixels
    if pixels.shape[-1] < channels:
        pixels = np.repeat(pixels, channels, axis=-1)
    if pixels.dtype == dtype:
        return pixels
    if dtype == np.uint16:
        return pixels.astype(np.uint16) * np.uint16(257)
    scale = np.float32(np.iinfo(pixels.dtype).max) if pixels.dtype.kind in "ui" else np.float32(1)
    return pixels.astype(np.float32) / scale


def _rounded(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "b":
        return values >= 0.5
    if dtype.kind in "ui":
        limits = np.iinfo(dtype)
        return np.clip(np.rint(values), limits.min, limits.max).astype(dtype)
    return values.astype(dtype)
