"""The poses and orientations at which an alignment starts: read from a file, found at faces, or estimated.

| options                                   | effect                                                                |
|-------------------------------------------|-----------------------------------------------------------------------|
| `init="faces"`, or a file                 | poses at faces, or of a file with transforms or one box per image     |
| `features="lite0"`, or a file             | the method "semantic" aligns by them, with mirror images and turns    |
| the same with another method              | they give the initial poses of that method                            |
| `start="features"`                        | the same with lite0                                                   |
| the same with `groups`                    | images are sorted by them; groups are aligned by them or that method  |
| `mirror` or `turns` and no features       | orientations are estimated from pixels or edges before the method     |
"""

from __future__ import annotations

import csv
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from congeal.errors import CongealError
from congeal.files import read_json, write_json
from congeal.geometry.boxes import fit_boxes
from congeal.geometry.orientation import orientation_of, orientations, upright_from_source
from congeal.images import ImageSource, prepare
from congeal.images.plan import Layout, resolve_initial_poses
from congeal.images.sources.faces import REMARK, FaceSource, cascade, parse_grow
from congeal.images.sources.views import SourceView
from congeal.methods.base import Method, load
from congeal.methods.semantic.estimator import SemanticCongealing
from congeal.methods.semantic.extractors import PLAIN_FEATURES, is_semantic, open_extractor
from congeal.methods.semantic.orientation_estimation import (
    UprightTemplate,
    classify_orientations,
    estimate_orientations,
)
from congeal.pipeline.options import AlignOptions
from congeal.registration.features import robust_features
from congeal.runs.folder import RunFolder
from congeal.transforms import Transforms
from congeal.transforms.ids import read_table

log = logging.getLogger("congeal")

Size = tuple[int, int]
Init = str | os.PathLike[str] | None
InitialPoses = tuple[Transforms | np.ndarray | None, Size | None]
"""`aligned_from_source` of every image, or None for those of the source; and the (height, width) of the frame."""
BOX = ("id", "x", "y", "width", "height")
FACES = "faces"
SEMANTIC, DEFAULT_NETWORK = "semantic", "lite0"
# Files under .work: the poses found by features and the model that found them; the orientation of every image, and the
# template and layout by which new images are oriented.
FEATURE_POSES, FEATURE_MODEL = "feature_poses.npz", "feature_model.safetensors"
ORIENTATIONS = "orientations.npz"
ORIENTATION_TEMPLATE, ORIENTATION_LAYOUT = "orientation_template.npz", "orientation_layout.json"


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
    if path.suffix.lower() == ".csv":
        with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            header = [name.strip() for name in next(csv.reader(file), [])]
        if set(BOX) <= set(header):
            return read_boxes(path, source)
    found = Transforms.load(path)
    _ = found.matching(source.ids())
    return found, found.aligned_size or _size_beside(path)


def read_boxes(path: Path, source: ImageSource) -> tuple[np.ndarray, Size]:
    """(N,3,3) that fit each image's box into one frame, the median size of the boxes; NaN where there is no box.

    Boxes are in source pixels by their outer edges: 0,0,width,height is the whole image.
    """
    boxes: dict[str, tuple[float, ...]] = {}
    for number, row in enumerate(read_table(path, BOX), start=2):
        cells = [row[name] for name in BOX[1:]]
        if not all(cells):
            continue  # an image without a box: it is listed in skipped.csv
        try:
            box = tuple(float(cell) for cell in cells)
        except ValueError:
            raise CongealError(f"{path} line {number}: {','.join(cells)!r} is not a box x,y,width,height") from None
        if not (np.isfinite(box).all() and min(box[2:]) > 0):
            raise CongealError(
                f"{path} line {number}: a box needs a width and a height above 0, not {','.join(cells)!r}"
            )
        boxes[row["id"]] = box
    ids = source.ids()
    rows = np.array([boxes.get(name, (np.nan,) * 4) for name in ids])
    if not np.isfinite(rows).all(1).any():
        raise CongealError(
            f"{path} belongs to another set: it has a box for none of the {len(ids)} images of {source.name}, "
            f"the first of which is {ids[0]!r}"
        )
    return fit_boxes(rows)


def _size_beside(path: Path) -> Size | None:
    """The aligned size of the run a transforms.csv lies in; the CSV itself has no column for it."""
    with suppress(OSError, ValueError, KeyError, TypeError):  # there is none, or it is some other program's
        height, width = read_json(path.parent / "metrics.json")["aligned_size"]
        return int(height), int(width)
    return None


# ---- estimated poses and orientations


@dataclass(frozen=True)
class StartOptions:
    """How an alignment starts.

    params: the parameters of the method that follow from the options. init: a file of initial poses, or "faces".
    start_features, sorting_features: the networks whose features give the initial poses, and sort images into groups.
    mirror, turns: whether images may be mirrored or turned. ignore_source_poses: leave out those that the source has.
    """

    method: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    init: Init = None
    start_features: str | None = None
    sorting_features: str | None = None
    mirror: bool = False
    turns: bool = False
    ignore_source_poses: bool = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any], init: Init = None) -> StartOptions:
        """Those of a run with this config.json, for new images."""
        return cls(
            init=init,
            start_features=config.get("start_features"),
            mirror=bool(config.get("mirror")),
            turns=bool(config.get("turns")),
            ignore_source_poses=config.get("start") == "none",
        )

    def as_config(self) -> dict[str, Any]:
        """For config.json."""
        return {
            "init": init_name(self.init),
            "start": "none" if self.ignore_source_poses else None,
            "start_features": self.start_features,
            "mirror": self.mirror,
            "turns": self.turns,
        }

    def select_source(self, images: ImageSource) -> ImageSource:
        """The images, without the initial poses of the source if these are to be ignored."""
        if self.ignore_source_poses:
            images = SourceView(images)
            images.initial = images.initial_size = None
        return images

    @property
    def estimates_poses(self) -> bool:
        """Whether poses or orientations are estimated before the method begins."""
        return self.start_features is not None or self.mirror or self.turns


def parse_start_options(options: AlignOptions) -> StartOptions:
    """The part of the options that decides how an alignment starts, checked."""
    method, start, mirror = options.method, options.start, options.mirror
    if start is not None and options.init is not None:
        raise CongealError(f"the start is given twice, as start {str(start)!r} and as init {str(options.init)!r}")
    if mirror not in (True, False, "auto"):
        raise CongealError(f"mirror is True, False or 'auto', not {mirror!r}")
    if not isinstance(options.turns, bool):
        raise CongealError(f"turns is True or False, not {options.turns!r}")
    init = options.init if start in (None, "features", "none") else start
    orientation: dict[str, Any] = {"mirror": bool(mirror), "turns": options.turns}
    known = StartOptions(method, init=init, ignore_source_poses=start == "none", **orientation)
    features = options.features
    features = str(Path(features).resolve()) if features is not None and Path(features).is_file() else features
    if features is not None and is_semantic(features):
        open_extractor(features)  # a missing package or file is reported before anything is written
        sorting = None if options.groups is None else features
        if method in (None, SEMANTIC) and start != "features":
            return replace(
                known, method=SEMANTIC, params={"features": features, **orientation}, sorting_features=sorting
            )
        if start == "none":
            raise CongealError(
                f"features of {features} give {method} its start, and start 'none' takes it away: leave one of them out"
            )
        # Images of several kinds have no object in common: unless asked for, features give them no initial poses.
        gives_start = sorting is None or start == "features"
        return replace(known, start_features=features if gives_start else None, sorting_features=sorting)
    if features is not None and method not in (None, "joint"):
        raise CongealError(
            f"only joint can compare {' or '.join(PLAIN_FEATURES[1:])}, not {method}: leave --features out"
        )
    if start == "features":
        open_extractor(DEFAULT_NETWORK)
        known = replace(known, start_features=DEFAULT_NETWORK)
    if method == SEMANTIC:
        return replace(known, params=orientation)
    return known if features is None else replace(known, params={"features": features})


def initialise(
    run: RunFolder,
    images: ImageSource,
    model: Method,
    options: StartOptions,
    initial: InitialPoses,
    *,
    quiet: bool,
    trained: RunFolder | None = None,
) -> tuple[ImageSource, InitialPoses]:
    """The images in their estimated orientation, and the initial poses; both are stored for a resumed run.

    trained: for new images, the finished run whose estimates they get, each image by itself.
    """
    if model.name == SEMANTIC or not options.estimates_poses:
        return images, initial
    by_features = options.start_features is not None
    needed = (FEATURE_MODEL,) if by_features else (ORIENTATION_TEMPLATE, ORIENTATION_LAYOUT)
    for name in needed:
        if trained is not None and not (trained.work / name).is_file():
            raise CongealError(f"{trained} has lost its orientation data (.work/{name}): run 'congeal align' again")
    path = run.work / (FEATURE_POSES if by_features else ORIENTATIONS)
    if not path.is_file():
        known = {"size": model.size, "init": initial[0], "init_size": initial[1]}
        if by_features:
            _estimate_poses(path, images, model, options, known, trained, quiet=quiet)
        else:
            _estimate_orientations(path, images, model, options, known, trained)
    found = Transforms.load(path)
    matrices = np.asarray(found.matrices, dtype=np.float64)
    if by_features:
        upright = SourceView(images, orientation=orientation_of(matrices, turns=options.turns))
        return upright, (matrices, found.aligned_size)
    return _reorient(images, initial, np.asarray(orientation_of(matrices)))


def _estimate_poses(
    path: Path,
    images: ImageSource,
    model: Method,
    options: StartOptions,
    known: Mapping[str, Any],
    trained: RunFolder | None,
    *,
    quiet: bool,
) -> None:
    """Store the poses that features of a network give."""
    if trained is not None:
        first = load(trained.work / FEATURE_MODEL)
        layout = replace(first.layout_, align_on=model.layout_.align_on)
        stack = prepare(images, **{**known, "size": first.size}, layout=layout)
        first.align_new(stack, verbose=not quiet).transforms.save(path)
        return
    first = SemanticCongealing(
        motion="similarity",
        features=str(options.start_features),
        mirror=options.mirror,
        turns=options.turns,
        size=model.size,
        align_on=model.align_on,
        random_state=model.random_state,
    )
    first.fit(prepare(images, **known, align_on=model.align_on), verbose=not quiet)
    first.save(path.with_name(FEATURE_MODEL))
    first.transforms_.save(path)


def _estimate_orientations(
    path: Path,
    images: ImageSource,
    model: Method,
    options: StartOptions,
    known: Mapping[str, Any],
    trained: RunFolder | None,
) -> None:
    """Store the orientation of every image; images that cannot be read stay as they are."""
    candidates = orientations(mirror=options.mirror, turns=options.turns)
    if trained is None:
        stack = prepare(images, **known, align_on=model.align_on)
        kind = stack.kind if model.kind == "auto" else model.kind
        found, upright = estimate_orientations(stack, robust_features(kind), candidates)
        upright.save(path.with_name(ORIENTATION_TEMPLATE))
        write_json(path.with_name(ORIENTATION_LAYOUT), stack.layout.as_dict())
    else:
        layout = replace(Layout(**read_json(trained.work / ORIENTATION_LAYOUT)), align_on=model.layout_.align_on)
        stack = prepare(images, **known, layout=layout)
        kind = (model.layout_.kind or stack.kind) if model.kind == "auto" else model.kind
        template = UprightTemplate.load(trained.work / ORIENTATION_TEMPLATE)
        found = classify_orientations(stack, robust_features(kind), candidates, template)
    orientation = np.zeros(len(images), dtype=int)
    orientation[stack.kept] = found
    matrices = np.array([upright_from_source(int(one), (1, 1)) for one in orientation])
    Transforms(images.ids(), matrices, np.ones((len(images), 2), int), (1, 1)).save(path)


def _reorient(images: ImageSource, initial: InitialPoses, orientation: np.ndarray) -> tuple[ImageSource, InitialPoses]:
    """The images in their orientation (N,), and their initial poses turned with them, about the centre of the frame."""
    matrices, size = resolve_initial_poses(images, *initial)
    if matrices is not None and size is not None:  # without a size there is no frame that could be turned
        turns, centre = [], np.array([(size[1] - 1) / 2, (size[0] - 1) / 2])
        for one in orientation:
            turn = upright_from_source(int(one), (1, 1))
            turn[:2, 2] = centre - turn[:2, :2] @ centre
            turns.append(turn)
        initial = np.array(turns) @ matrices, size
    return SourceView(images, orientation=orientation), initial
