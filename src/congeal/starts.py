"""Where an alignment starts, read from a file: transforms of the same images, or one box per image."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import numpy as np

from congeal.errors import CongealError
from congeal.images import ImageSource
from congeal.transforms import Transforms

Size = tuple[int, int]
BOX = ("id", "x", "y", "width", "height")


def read_start(
    init: str | os.PathLike[str] | None, source: ImageSource
) -> tuple[Transforms | np.ndarray | None, Size | None]:
    """The start `aligned_from_source` for every image of the source, and the (height, width) it leads to, if known."""
    if init is None:
        return None, None
    path = Path(init)
    if not path.is_file():
        raise CongealError(
            f"--init is a file of transforms or of boxes (columns {','.join(BOX)}), and there is no file {str(path)!r}"
        )
    if path.suffix.lower() == ".csv" and set(BOX) <= set(_header(path)):
        return boxes_start(path, source)
    found = Transforms.load(path)
    _ = found.matching(source.id(i) for i in range(len(source)))
    return found, found.aligned_size or _size_beside(path)


def boxes_start(path: Path, source: ImageSource) -> tuple[np.ndarray, Size]:
    """(N,3,3) that fit each image's box into one frame, the median size of the boxes; NaN where there is no box.

    Boxes are in source pixels by their outer edges: 0,0,width,height is the whole image.
    """
    boxes = _read_boxes(path)
    ids = [source.id(i) for i in range(len(source))]
    rows = np.array([boxes.get(name, (np.nan,) * 4) for name in ids])
    known = np.isfinite(rows).all(1)
    if not known.any():
        raise CongealError(
            f"{path} belongs to another set: it has a box for none of the {len(ids)} images of {source.name}, "
            f"the first of which is {ids[0]!r}"
        )
    x, y, width, height = rows.T
    frame = (max(1, round(float(np.median(height[known])))), max(1, round(float(np.median(width[known])))))
    matrices = np.full((len(ids), 3, 3), np.nan)
    scale_x, scale_y = frame[1] / width[known], frame[0] / height[known]
    matrices[known] = np.eye(3)
    matrices[known, 0, 0], matrices[known, 1, 1] = scale_x, scale_y
    # The outer edge of a box lies half a pixel before the centre of its first pixel, here and in the frame.
    matrices[known, 0, 2] = -0.5 - scale_x * (x[known] - 0.5)
    matrices[known, 1, 2] = -0.5 - scale_y * (y[known] - 0.5)
    return matrices, frame


def _header(path: Path) -> list[str]:
    with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
        return [name.strip() for name in next(csv.reader(file), [])]


def _read_boxes(path: Path) -> dict[str, tuple[float, float, float, float]]:
    boxes: dict[str, tuple[float, float, float, float]] = {}
    with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
        for number, row in enumerate(csv.DictReader(file, skipinitialspace=True), start=2):
            cells = [(row.get(name) or "").strip() for name in BOX[1:]]
            if not all(cells):
                continue  # an image without a box: it is listed in skipped.csv
            try:
                x, y, width, height = (float(cell) for cell in cells)
            except ValueError:
                raise CongealError(f"{path} line {number}: {','.join(cells)!r} is not a box x,y,width,height") from None
            if not (np.isfinite([x, y]).all() and 0 < width < np.inf and 0 < height < np.inf):
                raise CongealError(
                    f"{path} line {number}: a box needs a width and a height above 0, not {','.join(cells)!r}"
                )
            boxes[str(row["id"])] = (x, y, width, height)
    return boxes


def _size_beside(path: Path) -> Size | None:
    """The aligned size of the run a transforms.csv lies in; the CSV itself has no room for it."""
    metrics = path.parent / "metrics.json"
    if not metrics.is_file():
        return None
    try:
        height, width = json.loads(metrics.read_text())["aligned_size"]
    except (ValueError, KeyError, TypeError):
        return None  # some other program's metrics.json
    return int(height), int(width)
