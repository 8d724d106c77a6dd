"""`pack`: any source → one memory-mapped array, once."""

from __future__ import annotations

import json
import math
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from congeal.errors import CongealError
from congeal.files import create_npy, locked, put_in_place, replacing, shortened, sweep, write_bytes, writing
from congeal.images.canvas import place, put_on_canvas
from congeal.images.intensity import CHUNK_VALUES, NOT_FINITE, finite
from congeal.images.plan import nothing_readable
from congeal.images.sources.arrays import PACKED, open_npy, sidecar
from congeal.images.sources.base import Header, Image, ImageSource, UnreadableImage
from congeal.progress import Progress
from congeal.rows import row_slices


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
    if path.is_dir():
        raise CongealError(f"cannot write to {path}: it is a folder")
    with ExitStack() as held:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            # Two at once would leave the array of one beside the ids of the other.
            held.enter_context(locked(_hidden(path, "lock"), f"packing into {path}"))
        sweep(path.parent, shared=True)
        _pack_locked(source, path, quiet)
        return open_npy(path)


def _pack_locked(source: ImageSource, path: Path, quiet: bool) -> None:
    partial, masks = _hidden(path, "partial.npy"), _hidden(path, "masks.partial.npy")
    try:
        if source.shape is not None and source.dtype is not None and not source.has_masks:
            packed = _copy(source, partial, source.shape, source.dtype, quiet)
        else:
            packed = _decode(source, partial, masks, quiet)
        if len(packed.reasons) == len(source):
            raise nothing_readable(source, packed.reasons)
        _publish(source, path, packed)
        if packed.masks is None:
            _beside(path, "masks").unlink(missing_ok=True)
        else:
            put_in_place(masks, _beside(path, "masks"))
        put_in_place(partial, path)
    except BaseException:
        for unfinished in (partial, masks):
            unfinished.unlink(missing_ok=True)  # it may be large
        raise


def _hidden(path: Path, what: str) -> Path:
    """A file beside `path` that is only there while it is made."""
    return path.with_name(f".{shortened(path.name, 200)}.{what}")


@dataclass
class PackedImages:
    """Arrays under temporary names, why images are missing in them, and the matrices of images that were resized."""

    array: np.ndarray
    reasons: dict[int, str]
    masks: np.ndarray | None = None
    canvas_from_source: dict[int, np.ndarray] = field(default_factory=dict)


def _copy(
    source: ImageSource, partial: Path, shape: tuple[int, int, int], dtype: np.dtype, quiet: bool
) -> PackedImages:
    """Images of one kind, in batches, as they are."""
    array = create_npy(partial, (len(source), *(shape[:2] if source.grey else shape)), dtype)
    packed = PackedImages(array, dict(source.unreadable))
    with Progress(len(source), "packing", quiet=quiet) as progress:
        for part in row_slices(len(source), max(1, CHUNK_VALUES // math.prod(shape))):
            rows = np.array([i for i in range(part.start, part.stop) if i not in packed.reasons], int)
            if len(rows):
                batch = source.batch(rows)
                usable = finite(batch.reshape(len(rows), -1), axis=1)
                packed.reasons |= {int(i): NOT_FINITE for i in rows[~usable]}
                array[rows[usable]] = batch[usable].reshape(-1, *array.shape[1:])
            progress.update(part.stop - part.start)
    return packed


def _decode(source: ImageSource, partial: Path, partial_masks: Path, quiet: bool) -> PackedImages:
    """Images that may differ, one by one, on a canvas of the median size."""
    headers, reasons = _headers(source, quiet)
    canvas = (
        int(np.median([header.height for header in headers.values()])),
        int(np.median([header.width for header in headers.values()])),
    )
    counts = {header.channels for header in headers.values()}
    if len(counts) > 1 and counts != {1, 3}:
        raise CongealError(f"images with {sorted(counts)} channels cannot share one array: pack them apart")
    dtypes, channels = {header.dtype for header in headers.values()}, max(counts)
    dtype = np.dtype(np.uint16 if dtypes == {np.dtype(np.uint8), np.dtype(np.uint16)} else np.float32)
    if len(dtypes) == 1:
        (dtype,) = dtypes
    array = create_npy(partial, (len(source), *canvas, *((channels,) if channels > 1 else ())), dtype)
    packed = PackedImages(array, reasons)
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
            pixels, mask = _convert(image, dtype, channels), image.mask
            if pixels.shape[:2] != canvas:
                placement = place(pixels.shape[:2], canvas)
                values, mask = put_on_canvas(pixels, canvas, placement, mask)
                pixels = _rounded(np.moveaxis(values, 0, -1), dtype)
                packed.canvas_from_source[i] = placement.matrix
            array[i] = pixels.reshape(array.shape[1:])
            if mask is not None:
                if packed.masks is None:
                    packed.masks = create_npy(partial_masks, (len(source), *canvas), np.dtype(np.uint8))
                    packed.masks[:] = 255
                packed.masks[i] = np.rint(mask * 255)
    return packed


def _publish(source: ImageSource, path: Path, packed: PackedImages) -> None:
    """The files beside the array, which gets its own name last, so that it never stands there without its ids."""
    path.unlink(missing_ok=True)  # what was packed here before must not stand beside the ids of this
    about = {
        "format": PACKED,
        "ids": list(source.ids()),
        "skipped": packed.reasons,
        "kind": source.kind,
        "initial_size": source.initial_size,
        "masks": None if packed.masks is None else _beside(path, "masks").name,
        "canvas_from_source": {source.id(i): m.ravel().tolist() for i, m in packed.canvas_from_source.items()},
    }
    for name, aligned_from_source in (("initial", source.initial), ("truth", source.truth)):
        beside = _beside(path, name)
        about[name] = None if aligned_from_source is None else beside.name
        if aligned_from_source is None:
            beside.unlink(missing_ok=True)  # of what was packed here before
            continue
        matrices = np.array(aligned_from_source, dtype=np.float64)
        for i, canvas_from_source in packed.canvas_from_source.items():  # the canvas is the source of the packed file
            matrices[i] = matrices[i] @ np.linalg.inv(canvas_from_source)
        with replacing(beside) as file:
            np.save(file, matrices)
    for array in (packed.array, packed.masks):
        if isinstance(array, np.memmap):
            array.flush()
    write_bytes(sidecar(path), json.dumps(about).encode())


def packed_files(path: Path) -> list[Path]:
    """The files of a packed set: the array, its sidecar, and what may lie beside them."""
    return [path, sidecar(path), *(_beside(path, what) for what in ("masks", "initial", "truth"))]


def _beside(path: Path, what: str) -> Path:
    return path.with_name(f"{path.name}.{what}.npy")


def _headers(source: ImageSource, quiet: bool) -> tuple[dict[int, Header], dict[int, str]]:
    """Sizes and types of all images that can be read, and reasons for the others."""
    headers: dict[int, Header] = {}
    reasons = dict(source.unreadable)
    with Progress(len(source), "looking at images", quiet=quiet) as progress:
        for i in range(len(source)):
            progress.update()
            try:
                if i not in reasons:
                    headers[i] = source.probe(i)
            except UnreadableImage as error:
                reasons[i] = str(error)
    if not headers:
        raise nothing_readable(source, reasons)
    return headers, reasons


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
