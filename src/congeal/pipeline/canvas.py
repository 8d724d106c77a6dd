"""The frame of the results: that of the input, what all images share, all that they reach, or a size of one's own."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from congeal.errors import CongealError
from congeal.geometry.extents import Box, centred, reached, shared
from congeal.runs.folder import RunFolder
from congeal.transforms import Transforms

log = logging.getLogger("congeal")

CANVASES = ("input", "common", "union")
MOST_PIXELS = 1 << 27
"""Of a canvas: the mean and spread of the set take some 50 bytes a pixel."""
_SIZE = re.compile(r"([1-9][0-9]{0,5})\s*[x×X]\s*([1-9][0-9]{0,5})")


def read_size(canvas: str) -> tuple[int, int] | None:
    """(height, width) of "640x480"; None for one of the words."""
    if canvas in CANVASES:
        return None
    sides = _SIZE.fullmatch(canvas.strip()) if isinstance(canvas, str) else None
    if sides is None:
        raise CongealError(f"the canvas is {', '.join(CANVASES)} or WIDTHxHEIGHT, such as 640x480, not {canvas!r}")
    width, height = int(sides[1]), int(sides[2])
    if width * height > MOST_PIXELS:
        raise CongealError(f"the canvas {canvas} is too large: it may have {MOST_PIXELS:,} pixels")
    return height, width


def check_canvas(canvas: str) -> None:
    """Refuse a canvas there is none of."""
    read_size(canvas)


def asked_canvas(canvas: str) -> dict[str, Any]:
    """For config.json; "input" is not written, so that runs from before there was a choice can be resumed."""
    return {} if canvas == "input" else {"canvas": canvas}


def inherited_canvas(trained: RunFolder) -> dict[str, Any]:
    """For config.json of new images: they lie on the canvas of the run that they are aligned with."""
    box = trained.state.get("canvas")
    return {} if box is None else {"canvas": box}


def choose_canvas(run: RunFolder, found: Transforms) -> tuple[Box | None, dict[str, dict[str, Any]]]:
    """Which pixels of the aligned picture become the canvas of the run, None for those of the input; and why.

    A canvas that cannot be is that of the input, with a warning: the alignment is worth more.
    """
    asked, frame = run.config.get("canvas", "input"), found.aligned_size
    if asked == "input" or frame is None:
        return None, {}
    if isinstance(asked, Mapping):  # of the run that new images are aligned with
        height, width = asked["size"]
        return Box(asked["left"], asked["top"], (height, width)), {}
    size = read_size(asked)
    if size is not None:
        return centred(frame, size), {}
    known = np.isfinite(found.matrices).all((1, 2))
    trusted = known & found.ok if (known & found.ok).any() else known
    matrices, sizes = found.matrices[trusted], found.source_sizes[trusted]
    box = shared(matrices, sizes, frame) if asked == "common" else reached(matrices, sizes)
    if box is None:
        return None, _instead("no pixel lies inside every image")
    if box.size[0] * box.size[1] > max(MOST_PIXELS, frame[0] * frame[1]):
        return None, _instead(f"the images reach over {box.size[1]}×{box.size[0]} pixels, more than {MOST_PIXELS:,}")
    return box, {}


def _instead(reason: str) -> dict[str, dict[str, Any]]:
    sentence = f"{reason}, so the canvas is that of the input"
    log.warning("%s", sentence)
    return {"canvas": {"sentence": f"{sentence[0].upper()}{sentence[1:]}."}}
