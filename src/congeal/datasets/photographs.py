"""Named sets of photographs: `lfw:Tony_Blair@0.3`, `cub:047.American_Goldfinch`, `willow:car(G)`.

`lfw` are the original 250×250 files of one person of Labeled Faces in the Wild, each started at the box OpenCV's
frontal-face cascade finds in it, grown by the share after the @ (0.3: sides 30% longer, about the same centre).
`lfw-deepfunneled` are the same files as aligned by Deep Congealing (Huang 2012), all started at one box, so that
nothing but their own alignment counts. The folders `lfw` and `lfw_deepfunneled`, one folder per person inside, are
looked for in `$CONGEAL_DATA`; the original set is otherwise downloaded to the user's cache.

`cub` and `willow` are things of one kind in the wild, with points to measure by, in `$CONGEAL_DATA/wild`:
`cub/CLASS/*.jpg` with `cub_boxes.csv` (id,x,y,width,height) and `cub_parts.csv` (id,part,x,y,visible) of CUB-200-2011;
`pf_willow/SUBSET/*.png` with `*.mat` of PF-WILLOW. Both are for research only and no part of this package. Birds are
cut out by their boxes, as the field does.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from congeal.datasets import cache_folder, download, find_data
from congeal.errors import CongealError
from congeal.images.formats.array_files import read_variable
from congeal.images.sources.base import Header, Image, ImageSource
from congeal.images.sources.faces import Faces, FaceSearch, FaceSource, parse_grow
from congeal.images.sources.files import open_folder
from congeal.images.sources.views import SourceView

URL = "https://ndownloader.figshare.com/files/5976018"
SHA256 = "055f7d9c632d7370e6fb4afc7468d40f970c34a80d4c6f50ffec63f5a8d536c0"
# The files were cut around a detection that fills nearly half of them: the one nearest the centre is meant.
SEARCH = FaceSearch(smallest=0.3, neighbours=(3,))
# Outer eye corners and nose tip, in the order of `landmarks`.
LANDMARKS = ("left_eye", "right_eye", "nose")


def open_lfw(which: str, family: str = "lfw") -> FaceSource:
    """`Tony_Blair` or `Tony_Blair@0.3`."""
    subject, _, grow = which.partition("@")
    share = parse_grow(grow, f"{family}:{subject}@0.3")
    part = family.replace("-", "_")
    people = find_data(part) or (_download_lfw() if part == "lfw" else None)
    if people is None:
        raise CongealError(
            f"the deep-funneled images of LFW are not at hand: set CONGEAL_DATA to a folder that has {part}"
        )
    source = (FaceSource if part == "lfw" else OneBox)(
        open_folder(_subfolder(people, subject, "person")), share, SEARCH
    )
    source.name, source.kind = f"{family}:{which}", "photo"
    return source


def open_deepfunneled(which: str) -> FaceSource:
    """As `open_lfw`, over the deep-funneled files."""
    return open_lfw(which, "lfw-deepfunneled")


def _download_lfw() -> Path:
    """The original set in the cache, fetched if need be (173 MB)."""
    import pooch

    advice = "put the folder 'lfw', one folder per person inside, somewhere and set CONGEAL_DATA to the folder above it"
    unpack = pooch.Untar(extract_dir="lfw-files")
    download("the set of faces LFW", [URL], SHA256, cache_folder() / "lfw.tgz", advice, processor=unpack)
    return cache_folder() / "lfw-files" / "lfw"


class OneBox(FaceSource):
    """Images that are aligned already: they share the median of the boxes found in them."""

    @cached_property
    def faces(self) -> Faces:
        """The median box for every readable image; `found` as detected in each."""
        each = super().faces
        return Faces(np.where(np.isfinite(each.boxes), np.nanmedian(each.boxes, axis=0), np.nan), each.found)


def landmarks(source: ImageSource) -> NDArray[np.float64]:
    """(N,3,2) outer eye corners and nose tip (`LANDMARKS`) of a source of LFW, x and y in source pixels.

    NaN where they are not reliable. For measuring only: nothing may be fitted or tuned on them.
    """
    family, _, rest = source.name.partition(":")
    person = family.replace("-", "_"), rest.partition("@")[0]
    known = {
        row["file"]: [[float(row[f"{name}_x"]), float(row[f"{name}_y"])] for name in LANDMARKS]
        for row in _rows("lfw_landmarks.csv")
        if (row["set"], row["subject"]) == person and row["detected"] == "1"
    }
    nothing = np.full((len(LANDMARKS), 2), np.nan)
    return np.array([known.get(source.id(i), nothing) for i in range(len(source))])


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
    source = open_folder(_subfolder(_wild("cub"), which, "class"))
    boxes = {row["id"]: row for row in _rows("wild/cub_boxes.csv")}
    rows = []
    for i in range(len(source)):
        own, header = boxes[f"{which}/{source.id(i)}"], source.probe(i)
        left, top, width, height = (float(own[name]) for name in ("x", "y", "width", "height"))
        x, y = max(0, round(left)), max(0, round(top))
        rows.append((x, y, min(header.width, round(left + width)) - x, min(header.height, round(top + height)) - y))
    cropped = CroppedSource(source, np.array(rows))
    cropped.name, cropped.kind = f"cub:{which}", "photo"
    return cropped


def cub_points(source: CroppedSource) -> Points:
    """The parts of the birds of `open_cub`."""
    which = source.name.partition(":")[2]
    parts: dict[str, list[dict[str, str]]] = {}
    for row in _rows("wild/cub_parts.csv"):
        parts.setdefault(row["id"], []).append(row)
    own = [sorted(parts[f"{which}/{source.id(i)}"], key=lambda row: row["part"]) for i in range(len(source))]
    xy = np.array([[(float(row["x"]), float(row["y"])) for row in rows] for rows in own]) - source.boxes[:, None, :2]
    visible = np.array([[row["visible"] == "1" for row in rows] for rows in own])
    return Points(xy, visible, source.boxes[:, 2:].max(1), tuple(row["part"] for row in own[0]))


def open_willow(which: str) -> ImageSource:
    """`car(G)`."""
    source = open_folder(_subfolder(_wild("pf_willow"), which, "class"))
    source.name, source.kind = f"willow:{which}", "photo"
    return source


def willow_points(source: ImageSource) -> Points:
    """The ten points of every image of `open_willow`."""
    folder = _wild("pf_willow") / source.name.partition(":")[2]
    files = [(folder / source.id(i)).with_suffix(".mat") for i in range(len(source))]
    xy = np.array([np.asarray(read_variable(file, "pts_coord"))[:2].T for file in files], dtype=np.float64)
    names = tuple(str(number + 1) for number in range(xy.shape[1]))
    return Points(xy, np.ones(xy.shape[:2], bool), np.ptp(xy, axis=1).max(1), names)


def wild_classes(family: str) -> list[str]:
    """The folders of "cub" or "pf_willow"."""
    return _subfolders(_wild(family))


def _wild(family: str) -> Path:
    home = find_data(f"wild/{family}")
    if home is None:
        raise CongealError(f"this set is not at hand: set CONGEAL_DATA to a folder that has wild/{family}")
    return home


def _subfolders(home: Path) -> list[str]:
    return sorted(one.name for one in home.iterdir() if one.is_dir())


def _subfolder(home: Path, name: str, what: str) -> Path:
    if not name or name.startswith(".") or Path(name).name != name or not (home / name).is_dir():
        some = ", ".join(_subfolders(home)[:4])
        raise CongealError(f"there is no {what} '{name}' in {home}: write the name of a folder there, as {some}")
    return home / name


def _rows(place: str) -> list[dict[str, str]]:
    """The rows of a table in `$CONGEAL_DATA`."""
    path = find_data(place)
    if path is None:
        raise CongealError(f"there is no {place}: set CONGEAL_DATA to the folder that holds it")
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
