"""`lfw:Tony_Blair`, `lfw:Tony_Blair@0.3`: photographs of one person from Labeled Faces in the Wild, with face boxes.

The original 250×250 files, each started at the box OpenCV's frontal-face cascade finds in it, grown by the share after
the @ (0.3: sides 30% longer, about the same centre). `lfw-deepfunneled:Tony_Blair` are the same files as aligned by
Deep Congealing (Huang 2012), all started at one box, so that nothing but their own alignment counts.

The folders `lfw` and `lfw_deepfunneled`, one folder per person inside, are looked for in `$CONGEAL_DATA`. The original
set is otherwise taken from the user's cache, where it is downloaded and checked against its SHA-256.
"""

from __future__ import annotations

import csv
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from congeal.datasets import find_data
from congeal.errors import CongealError
from congeal.images.sources.base import ImageSource
from congeal.images.sources.faces import Faces, FaceSource, Search, parse_grow
from congeal.images.sources.files import open_folder

URL = "https://ndownloader.figshare.com/files/5976018"
SHA256 = "055f7d9c632d7370e6fb4afc7468d40f970c34a80d4c6f50ffec63f5a8d536c0"
# The files were cut around a detection that fills nearly half of them: the one nearest the centre is meant.
SEARCH = Search(smallest=0.3, neighbours=(3,))
# Outer eye corners and nose tip, in the order of `landmarks`.
LANDMARKS = ("left_eye", "right_eye", "nose")


def open_lfw(which: str) -> FaceSource:
    """`Tony_Blair` or `Tony_Blair@0.3`."""
    return _open("lfw", FaceSource, which)


def open_deepfunneled(which: str) -> FaceSource:
    """As `open_lfw`, over the deep-funneled files."""
    return _open("lfw-deepfunneled", OneBox, which)


def _open(family: str, kind: type[FaceSource], which: str) -> FaceSource:
    subject, _, grow = which.partition("@")
    share = parse_grow(grow, f"{family}:{subject}@0.3")
    source = kind(open_folder(_person(family.replace("-", "_"), subject)), share, SEARCH)
    source.name, source.kind = f"{family}:{which}", "photo"
    return source


class OneBox(FaceSource):
    """Images that are aligned already: they share the median of the boxes found in them."""

    @cached_property
    def faces(self) -> Faces:
        """The median box for every readable image; `found` as detected in each."""
        each = super().faces
        return Faces(np.where(np.isfinite(each.boxes), np.nanmedian(each.boxes, axis=0), np.nan), each.found)


def landmarks(source: ImageSource) -> NDArray[np.float64]:
    """(N,3,2) outer eye corners and nose tip (`LANDMARKS`) of a source of this file, x and y in source pixels.

    NaN where they are not reliable. For measuring only: nothing may be fitted or tuned on them.
    """
    family, _, rest = source.name.partition(":")
    known = _read_landmarks(family.replace("-", "_"), rest.partition("@")[0])
    nothing = np.full((len(LANDMARKS), 2), np.nan)
    return np.array([known.get(source.id(i), nothing) for i in range(len(source))])


def _read_landmarks(part: str, subject: str) -> dict[str, NDArray[np.float64]]:
    """File name → (3,2), from `lfw_landmarks.csv` in `$CONGEAL_DATA`."""
    path = find_data("lfw_landmarks.csv")
    if path is None:
        raise CongealError("there is no lfw_landmarks.csv: set CONGEAL_DATA to the folder that holds it")
    with path.open(newline="") as file:
        return {
            row["file"]: np.array([[float(row[f"{name}_x"]), float(row[f"{name}_y"])] for name in LANDMARKS])
            for row in csv.DictReader(file)
            if (row["set"], row["subject"]) == (part, subject) and row["detected"] == "1"
        }


def _person(part: str, subject: str) -> Path:
    """The folder of one person in "lfw" or "lfw_deepfunneled"."""
    people = find_data(part) or (_download() if part == "lfw" else None)
    if people is None:
        raise CongealError(
            f"the deep-funneled images of LFW are not at hand: set CONGEAL_DATA to a folder that has {part}"
        )
    folder = people / subject
    if not subject or subject.startswith(".") or Path(subject).name != subject or not folder.is_dir():
        some = ", ".join(sorted(one.name for one in people.iterdir() if one.is_dir())[:4])
        raise CongealError(f"'{part}' has no person '{subject}': write the name of a folder in {people}, as {some}")
    return folder


def _download() -> Path:
    """The original set in the cache, fetched if need be (173 MB)."""
    import pooch

    cache = Path(pooch.os_cache("congeal"))
    pooch.get_logger().setLevel("WARNING")
    fetch = pooch.HTTPDownloader(timeout=30, progressbar=False)
    try:
        pooch.retrieve(
            URL, SHA256, fname="lfw.tgz", path=cache, downloader=fetch, processor=pooch.Untar(extract_dir="lfw-files")
        )
    except (OSError, ValueError) as error:
        raise CongealError(
            f"the faces of LFW are neither on this machine nor could they be downloaded ({type(error).__name__}): "
            "put the folder 'lfw', one folder per person inside, somewhere and set CONGEAL_DATA to the folder above it"
        ) from error
    return cache / "lfw-files" / "lfw"
