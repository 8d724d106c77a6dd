"""Faces in photographs: one box per image from OpenCV's frontal-face cascade (Viola–Jones), as a start for aligning.

Of several faces the one nearest the centre of the image is taken. An image without one gets a box in its centre, as
large as the others' usually are, and is listed.
"""

from __future__ import annotations

import re
import threading
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from congeal.errors import CongealError, require
from congeal.execution.threads import map_ordered, usable_cores
from congeal.geometry.boxes import fit_boxes, grow_boxes
from congeal.geometry.matrix import Size
from congeal.images.intensity import intensity_range, select_channels
from congeal.images.sources.base import ImageSource, Indices, UnreadableImage
from congeal.images.sources.views import SourceView
from congeal.progress import Progress

CASCADE = "haarcascade_frontalface_default.xml"
# Larger images are reduced to this before the search: a face worth aligning is still dozens of pixels wide.
LONGER_SIDE = 400
REMARK = "no face found: starts at a box in the centre"

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class FaceSearch:
    """What counts as a face. smallest: its side, as a share of the image's longer side. large: faces of that share or
    more are looked for first, which takes a third of the time; one that holds the centre of the image is taken.
    neighbours: how many overlapping hits make a face, tried in this order until there is one: OpenCV's usual 3 sees
    faces in folds of cloth as well, so surer ones come first."""

    smallest: float = 0.1
    large: float = 0.3
    neighbours: tuple[int, ...] = (8, 3)


ANYBODY = FaceSearch()


@dataclass(frozen=True)
class Faces:
    """Boxes (N,4) in source pixels, x, y, width, height by outer edges; found (N,) False where the box is a guess.

    A box is NaN where the image cannot be read.
    """

    boxes: NDArray[np.float64]
    found: NDArray[np.bool_]

    @property
    def missing(self) -> NDArray[np.intp]:
        """Positions of readable images without a face."""
        return np.flatnonzero(~self.found & np.isfinite(self.boxes).all(1))


def find_faces(source: ImageSource, search: FaceSearch = ANYBODY, *, quiet: bool = True) -> Faces:
    """Look for a face in every image of a source, in several at a time."""
    cascade()  # a missing package is reported here, not by a thread
    import cv2

    boxes, sizes = np.full((len(source), 4), np.nan), np.full((len(source), 2), np.nan)
    own = threading.local()  # a classifier works on one image at a time

    def load_classifier() -> None:
        own.classifier = cascade()

    def find_face(i: int) -> tuple[Size, Box | None] | None:
        try:
            pixels = source.read(i).pixels
        except UnreadableImage:
            return None  # the stack finds that out as well, and says so
        return pixels.shape[:2], _central_face(own.classifier, pixels, search)

    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)  # OpenCV's own threads are of little use on small images, and in the way of ours
    try:
        with (
            Progress(len(source), "finding faces", quiet=quiet) as progress,
            closing(map_ordered(find_face, range(len(source)), usable_cores(), initializer=load_classifier)) as results,
        ):
            for i, result in enumerate(results):
                progress.update()
                if result is not None:
                    sizes[i], boxes[i] = result[0], result[1] or np.nan
    finally:
        cv2.setNumThreads(threads)
    found = np.isfinite(boxes).all(1)
    if not found.any():
        raise CongealError(
            f"no face was found in any of the {len(source)} images of {source.name}: the cascade knows upright frontal "
            "faces only; give boxes in a file (columns id,x,y,width,height) instead"
        )
    # In the others: a square in the middle, as large a part of the image as faces usually are.
    shorter, (height, width) = sizes.min(1), sizes.T
    side = np.nanmedian(boxes[:, 2] / shorter) * shorter
    middle = np.stack([(width - side) / 2, (height - side) / 2, side, side], axis=1)
    return Faces(np.where(found[:, None], boxes, middle), found)


def cascade() -> Any:
    """OpenCV's classifier, or an error that says how to get it."""
    cv2 = require("cv2", "faces")
    if not (hasattr(cv2, "CascadeClassifier") and hasattr(cv2, "data")):  # OpenCV 5 and some distributions' own builds
        raise CongealError(
            f"this OpenCV ({cv2.__version__}) comes without the face cascade: pip install 'congeal[faces]' "
            "brings opencv-python-headless<5, which has it"
        )
    return cv2.CascadeClassifier(str(Path(cv2.data.haarcascades) / CASCADE))


def _central_face(classifier: Any, pixels: np.ndarray, search: FaceSearch) -> Box | None:
    """The detection nearest the centre, in pixels of the image (H,W,C), or None."""
    height, width = pixels.shape[:2]
    grey = _grey8(_reduced(pixels))
    middle = np.array([grey.shape[1], grey.shape[0]]) / 2
    large, any_size = (search.large, search.neighbours[:1], True), (search.smallest, search.neighbours, False)
    for smallest, neighbours, holds_centre in (large, any_size):
        faces = _detect(classifier, grey, smallest, neighbours)
        distance = np.abs(faces[:, :2] + faces[:, 2:] / 2 - middle)
        if not len(faces):
            continue
        nearest = np.argmin(np.linalg.norm(distance, axis=1))
        if holds_centre and (distance[nearest] > faces[nearest, 2:] / 2).any():
            continue
        x, y, w, h = faces[nearest].tolist()
        scale_x, scale_y = width / grey.shape[1], height / grey.shape[0]
        return x * scale_x, y * scale_y, w * scale_x, h * scale_y
    return None


def _detect(classifier: Any, grey: NDArray[np.uint8], smallest: float, neighbours: tuple[int, ...]) -> np.ndarray:
    """Faces (n,4) whose side is at least a share `smallest` of the longer one; n may be 0."""
    import cv2

    least = max(1, round(smallest * max(grey.shape)))
    hits = classifier.detectMultiScale(grey, scaleFactor=1.1, minNeighbors=0, minSize=(least, least))
    faces: Any = ()
    for number in neighbours:
        # 0.2: how far, as a share of their size, hits of one face may be apart, as in OpenCV itself.
        faces, _ = cv2.groupRectangles(list(map(list, hits)), number, 0.2)
        if len(faces):
            break
    return np.asarray(faces, dtype=np.float64).reshape(-1, 4)


def _reduced(pixels: np.ndarray) -> np.ndarray:
    """(H,W,C) with its longer side at most `LONGER_SIDE`."""
    import cv2

    height, width, channels = pixels.shape
    shrink = max(height, width) / LONGER_SIDE
    if shrink <= 1:
        return pixels
    if channels not in (1, 3) or pixels.dtype not in (np.uint8, np.uint16, np.float32):
        pixels = _grey8(pixels)[..., None]  # what OpenCV's resize does not know
    size = (max(1, round(width / shrink)), max(1, round(height / shrink)))
    small = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    return np.asarray(small).reshape(size[1], size[0], -1)


def _grey8(pixels: np.ndarray) -> NDArray[np.uint8]:
    """(H,W,C) of any type → (H,W) uint8; what is not 8-bit is stretched from its darkest to its brightest value."""
    grey = select_channels(pixels, "grey")[..., 0]
    if pixels.dtype == np.uint8:
        return np.rint(grey).astype(np.uint8)
    black, white = intensity_range(pixels.dtype, float(grey.min()), float(grey.max()))
    levels = (grey.astype(np.float32) - black) * (255 / (white - black))
    return np.clip(np.rint(levels), 0, 255).astype(np.uint8)


class FaceSource(SourceView):
    """The images of another source, started at their faces. The search happens when the start is first asked for."""

    def __init__(
        self, source: ImageSource, grow: float = 0.0, search: FaceSearch = ANYBODY, *, quiet: bool = True
    ) -> None:
        super().__init__(source)
        self.grow, self.search, self.quiet = grow, search, quiet

    @cached_property
    def faces(self) -> Faces:
        """The boxes as found, with sides longer by the share `grow` about the same centres."""
        faces = find_faces(self.source, self.search, quiet=self.quiet)
        return Faces(grow_boxes(faces.boxes, self.grow), faces.found)

    @cached_property
    def _start(self) -> tuple[NDArray[np.float64], Size]:
        return fit_boxes(self.faces.boxes)

    @cached_property
    def initial(self) -> np.ndarray | None:  # type: ignore[override]
        """(N,3,3) `aligned_from_source`: every box fills the aligned frame."""
        return self._start[0]

    @cached_property
    def initial_size(self) -> Size | None:  # type: ignore[override]
        """(height, width) of that frame: the median box."""
        return self._start[1]

    def subset(self, indices: Indices) -> ImageSource:
        """Fewer images are searched less long, so the search is left to the subset."""
        fewer = type(self)(self.source.subset(indices), self.grow, self.search, quiet=self.quiet)
        fewer.name, fewer.kind = self.name, self.kind
        return fewer


def parse_grow(text: str, example: str) -> float:
    """ "" or "0.3" after an @ → the share by which boxes grow; below 0 they shrink."""
    if re.fullmatch(r"-?\d*\.?\d+", text or "0") and -0.9 <= float(text or 0) <= 10:
        return float(text or 0)
    raise CongealError(f"'@{text}' is not a share to grow boxes by: write {example} for 30% of their side")
