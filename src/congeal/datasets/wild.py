"""`cub:047.American_Goldfinch` and `willow:car(G)`: things of one kind in the wild, with points to measure by.

Looked for in `$CONGEAL_DATA/wild`: `cub/CLASS/*.jpg` with `cub_boxes.csv` (id,x,y,width,height) and `cub_parts.csv`
(id,part,x,y,visible) of CUB-200-2011; `pf_willow/SUBSET/*.png` with `*.mat` of PF-WILLOW. Both are for research only
and no part of this package. Birds are cut out by their boxes, as the field does.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from congeal.datasets import find_data
from congeal.errors import CongealError
from congeal.images.formats.array_files import read_variable
from congeal.images.sources.base import Header, Image, ImageSource
from congeal.images.sources.files import open_folder
from congeal.images.sources.views import SourceView


@dataclass(frozen=True)
class Points:
    """For measuring only: xy (N, P, 2) in source pixels, visible (N, P), and (N,) the side that errors are held
    against: for birds the longer side of the box, for PF-WILLOW that of the box around an image's points."""

    xy: np.ndarray
    visible: np.ndarray
    side: np.ndarray
    names: tuple[str, ...]


class CroppedSource(SourceView):
    """The images of another source, each cropped to a box (x, y, width, height) of whole pixels."""

    def __init__(self, source: ImageSource, boxes: np.ndarray) -> None:
        super().__init__(source)
        self.boxes = boxes

    def read(self, i: int) -> Image:
        image = self.source.read(i)
        x, y, width, height = self.boxes[i].tolist()
        return Image(image.id, np.ascontiguousarray(image.pixels[y : y + height, x : x + width]))

    def probe(self, i: int) -> Header:
        width, height = self.boxes[i, 2:].tolist()
        return self.source.probe(i)._replace(height=height, width=width)


def open_cub(which: str) -> CroppedSource:
    """`047.American_Goldfinch`."""
    folder = _folder("cub", which)
    source = open_folder(folder)
    boxes = {row["id"]: row for row in _rows("cub_boxes.csv")}
    rows = []
    for i in range(len(source)):
        own, header = boxes[f"{which}/{source.id(i)}"], source.probe(i)
        x, y = max(0, round(float(own["x"]))), max(0, round(float(own["y"])))
        right = min(header.width, round(float(own["x"]) + float(own["width"])))
        rows.append((x, y, right - x, min(header.height, round(float(own["y"]) + float(own["height"]))) - y))
    cut = CroppedSource(source, np.array(rows))
    cut.name, cut.kind = f"cub:{which}", "photo"
    return cut


def cub_points(source: CroppedSource) -> Points:
    """The parts of the birds of `open_cub`."""
    which = source.name.partition(":")[2]
    parts: dict[str, list[dict[str, str]]] = {}
    for row in _rows("cub_parts.csv"):
        parts.setdefault(row["id"], []).append(row)
    own = [sorted(parts[f"{which}/{source.id(i)}"], key=lambda row: row["part"]) for i in range(len(source))]
    xy = np.array([[(float(row["x"]), float(row["y"])) for row in rows] for rows in own]) - source.boxes[:, None, :2]
    visible = np.array([[row["visible"] == "1" for row in rows] for rows in own])
    return Points(xy, visible, source.boxes[:, 2:].max(1), tuple(row["part"] for row in own[0]))


def open_willow(which: str) -> ImageSource:
    """`car(G)`."""
    source = open_folder(_folder("pf_willow", which))
    source.name, source.kind = f"willow:{which}", "photo"
    return source


def willow_points(source: ImageSource) -> Points:
    """The ten points of every image of `open_willow`."""
    folder = _folder("pf_willow", source.name.partition(":")[2])
    files = [(folder / source.id(i)).with_suffix(".mat") for i in range(len(source))]
    xy = np.array([np.asarray(read_variable(file, "pts_coord"))[:2].T for file in files], dtype=np.float64)
    return Points(
        xy, np.ones(xy.shape[:2], bool), np.ptp(xy, axis=1).max(1), tuple(map(str, range(1, xy.shape[1] + 1)))
    )


def wild_classes(family: str) -> list[str]:
    """The folders of "cub" or "pf_willow"."""
    return sorted(one.name for one in _home(family).iterdir() if one.is_dir())


def _folder(family: str, which: str) -> Path:
    home = _home(family)
    if not which or Path(which).name != which or which.startswith(".") or not (home / which).is_dir():
        raise CongealError(f"'{which}' is no folder of {home}: it has {', '.join(wild_classes(family)[:4])}")
    return home / which


def _home(family: str) -> Path:
    home = find_data(f"wild/{family}")
    if home is None:
        raise CongealError(f"this set is not at hand: set CONGEAL_DATA to a folder that has wild/{family}")
    return home


def _rows(name: str) -> list[dict[str, str]]:
    path = _home("cub").parent / name
    if not path.is_file():
        raise CongealError(f"there is no {path.name}: it belongs beside the folder cub in CONGEAL_DATA/wild")
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
