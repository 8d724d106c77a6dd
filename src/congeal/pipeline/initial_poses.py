"""Where an alignment starts: at faces, or read from a file with transforms of the same images or one box per image."""

from __future__ import annotations

import csv
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from congeal.errors import CongealError
from congeal.geometry.boxes import fit_boxes
from congeal.images import ImageSource
from congeal.images.sources.faces import REMARK, FaceSource, cascade, parse_grow
from congeal.runs.folder import RunFolder
from congeal.transforms import Transforms

log = logging.getLogger("congeal")

Size = tuple[int, int]
Init = str | os.PathLike[str] | None
InitialPoses = tuple[Transforms | np.ndarray | None, Size | None]
"""`aligned_from_source` of every image, or None for those of the source; and the (height, width) of the frame."""
BOX = ("id", "x", "y", "width", "height")
FACES = "faces"


def is_faces(init: Init) -> bool:
    """`faces` or `faces@0.3`: the word, not a file of that name (which is ./faces)."""
    return isinstance(init, str) and init.partition("@")[0] == FACES


def init_name(init: Init) -> str | None:
    """What to call the start in config.json: a path in full, so that it means the same from anywhere."""
    return None if init is None else str(init) if is_faces(init) else str(Path(init).resolve())


def inherited_init(config: Mapping[str, Any]) -> str | None:
    """How a run with this config.json found faces to start at, for new images; None if it did not."""
    source, init = str(config.get("source")), config.get("init")
    if is_faces(init):
        return str(init)
    if init is None and source.startswith("lfw:") and config.get("start") != "none":
        return f"{FACES}@{source.partition('@')[2] or 0}"
    return None


def start_at_faces(source: ImageSource, init: Init, *, quiet: bool = True) -> ImageSource:
    """The source started at its faces if that is what `init` says; else as it is. They are looked for later."""
    if not is_faces(init):
        return source
    cascade()  # what is missing is told before anything is written
    return FaceSource(source, parse_grow(str(init).partition("@")[2], f"{FACES}@0.3"), quiet=quiet)


def write_face_boxes(run: RunFolder, source: ImageSource) -> None:
    """Write boxes.csv of a source that starts at faces, and name images without one. `--init boxes.csv` reads it."""
    if not isinstance(source, FaceSource):
        return
    faces, missing = source.faces, source.faces.missing
    remarks = dict.fromkeys(missing.tolist(), REMARK)
    rows = [
        {"id": source.id(i), **dict(zip(BOX[1:], box.round(3).tolist(), strict=True)), "remark": remarks.get(i, "")}
        for i, box in enumerate(faces.boxes)
        if np.isfinite(box).all()
    ]
    run.write_rows("boxes.csv", rows, columns=[*BOX, "remark"])
    for i in missing[:3]:
        log.warning("%s: %s", source.id(int(i)), REMARK)
    if len(missing) > 3:
        log.warning("and %d more, see %s", len(missing) - 3, run / "boxes.csv")


def read_initial_poses(init: Init, source: ImageSource) -> InitialPoses:
    """The initial poses that a file holds for the images of the source; (None, None) without a file."""
    if init is None or is_faces(init):
        return None, None
    path = Path(init)
    if not path.is_file():
        raise CongealError(
            f"--init is 'faces', or a file of transforms or of boxes (columns {','.join(BOX)}), "
            f"and there is no file {str(path)!r}"
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
    if not np.isfinite(rows).all(1).any():
        raise CongealError(
            f"{path} belongs to another set: it has a box for none of the {len(ids)} images of {source.name}, "
            f"the first of which is {ids[0]!r}"
        )
    return fit_boxes(rows)


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
