"""How results are written: formats, the table of transforms, interpolation, the value outside an image, the canvas."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from congeal.errors import CongealError, did_you_mean, require
from congeal.geometry.boxes import Box, centred, reached, shared
from congeal.geometry.kernels import INTERPOLATIONS
from congeal.images import ImageSource, UnreadableImage
from congeal.images.formats.video import check_video_output
from congeal.images.formats.writers import FORMATS
from congeal.images.resample import SHARP, Sampling
from congeal.runs.folder import RunFolder
from congeal.transforms import Transforms

log = logging.getLogger("congeal")

TABLES = ("auto", "csv", "npz", "parquet")
CANVASES = ("input", "common", "union")
MAX_CANVAS_PIXELS = 1 << 27
"""Upper bound of a canvas: mean and standard deviation of the set take about 50 bytes per pixel, 7 GB here."""
MAX_CSV_ROWS = 200_000
"""Rows beyond which "auto" writes an .npz file, which is read and written in a fraction of the time."""
_SIZE = re.compile(r"([1-9][0-9]{0,5})\s*[x×X]\s*([1-9][0-9]{0,5})")


# ---- formats


def check_formats(images: ImageSource, output_format: str, transforms_format: str) -> None:
    """Refuse unknown formats, those that cannot hold the images, and those whose package is missing."""
    if output_format not in FORMATS:
        guess = did_you_mean(output_format, FORMATS)
        raise CongealError(f"unknown output format '{output_format}'{guess}: use {', '.join(FORMATS)}")
    check_video_output(output_format, images)
    if transforms_format not in TABLES:
        raise CongealError(f"unknown format of transforms '{transforms_format}': use {', '.join(TABLES)}")
    for name, module in (("zarr", "zarr"), ("fits", "astropy.io.fits")):
        if output_format == name:
            require(module, name)
    if transforms_format == "parquet":
        require("pyarrow.parquet", "parquet")


def write_transforms(run: RunFolder, found: Transforms) -> Path:
    """Write transforms.csv, .npz or .parquet, and .work/found.npz, which later stages read; returns its path."""
    kind = run.config.get("transforms_format", "auto")
    if kind == "auto":
        kind = "npz" if len(found) > MAX_CSV_ROWS else "csv"
    table = run / f"transforms.{kind}"
    for path in (table, run.work / "found.npz"):
        found.save(path)
    return table


# ---- sampling


def parse_sampling(
    interpolation: str | None, fill: float | str | None, images: ImageSource, run: Mapping[str, Any] | None = None
) -> Sampling:
    """The sampling that is asked for; run: the config.json of a run whose sampling holds where nothing is given."""
    before = sampling_from_config(run or {})
    if interpolation is not None and interpolation not in INTERPOLATIONS:
        raise CongealError(f"unknown interpolation {interpolation!r}: use {', '.join(INTERPOLATIONS)}")
    kernel = next((known for known in INTERPOLATIONS if known == interpolation), before.interpolation)
    value = before.fill if fill is None else parse_fill(fill)
    if value not in (SHARP.fill, "edge"):
        check_fill(float(value), images)
    return Sampling(kernel, value)


def sampling_from_config(config: Mapping[str, Any]) -> Sampling:
    """The sampling of a run with this config.json."""
    kernel = config.get("interpolation", SHARP.interpolation)
    if kernel not in INTERPOLATIONS:
        raise CongealError(f"the run asks for an unknown interpolation, {kernel!r}: it was made by a newer version")
    return Sampling(kernel, parse_fill(config.get("fill", SHARP.fill)))


def parse_fill(fill: float | str) -> Any:
    """A number, NaN, or "edge"."""
    if isinstance(fill, str) and fill.strip().lower() == "edge":
        return "edge"
    try:
        value = float(fill)
    except (TypeError, ValueError):
        value = math.inf
    if math.isinf(value) or isinstance(fill, bool):
        raise CongealError(f"the fill is a number on the scale of the pixels, nan or edge, not {fill!r}")
    return value


def check_fill(value: float, images: ImageSource) -> None:
    """Refuse a fill that the data type of the images, which is that of the first readable one, cannot hold."""
    dtype = images.dtype
    for i in range(len(images) if dtype is None else 0):
        with suppress(UnreadableImage):
            dtype = images.probe(i).dtype
            break
    if dtype is None or dtype.kind == "f":
        return
    if math.isnan(value):
        raise CongealError(f"the fill cannot be nan: the images are {dtype}, which has no NaN; give a number, or edge")
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if not low <= value <= high:
        raise CongealError(f"the fill {value:g} does not fit: the images are {dtype}, with values from {low} to {high}")


# ---- canvas


def parse_canvas_size(canvas: str) -> tuple[int, int] | None:
    """(height, width) of "640x480"; None for one of the words."""
    if canvas in CANVASES:
        return None
    sides = _SIZE.fullmatch(canvas.strip()) if isinstance(canvas, str) else None
    if sides is None:
        raise CongealError(f"the canvas is {', '.join(CANVASES)} or WIDTHxHEIGHT, such as 640x480, not {canvas!r}")
    width, height = int(sides[1]), int(sides[2])
    if width * height > MAX_CANVAS_PIXELS:
        raise CongealError(f"the canvas {canvas} is too large: it may have {MAX_CANVAS_PIXELS:,} pixels")
    return height, width


def choose_canvas(run: RunFolder, found: Transforms) -> tuple[Box | None, dict[str, dict[str, Any]]]:
    """The box of the aligned frame that becomes the canvas, None for the frame of the input; and the reason.

    A canvas that is impossible is replaced by that of the input, with a warning, so that the alignment is not lost.
    """
    asked, frame = run.config.get("canvas") or "input", found.aligned_size
    if asked == "input" or frame is None:
        return None, {}
    if isinstance(asked, Mapping):  # new images take the canvas of the run whose model they are aligned with
        height, width = asked["size"]
        return Box(asked["left"], asked["top"], (height, width)), {}
    size = parse_canvas_size(asked)
    if size is not None:
        return centred(frame, size), {}
    known = np.isfinite(found.matrices).all((1, 2))
    trusted = known & found.ok if (known & found.ok).any() else known
    matrices, sizes = found.matrices[trusted], found.source_sizes[trusted]
    box = shared(matrices, sizes, frame) if asked == "common" else reached(matrices, sizes)
    if box is None:
        reason = "no pixel lies inside every image"
    else:
        height, width = box.size
        if height * width <= max(MAX_CANVAS_PIXELS, frame[0] * frame[1]):
            return box, {}
        reason = f"the images reach over {width}×{height} pixels, more than {MAX_CANVAS_PIXELS:,}"
    sentence = f"{reason}, so the canvas is that of the input"
    log.warning("%s", sentence)
    return None, {"canvas": {"sentence": f"{sentence[0].upper()}{sentence[1:]}."}}
