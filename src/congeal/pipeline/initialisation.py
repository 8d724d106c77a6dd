"""Initial poses and orientations that are estimated before the method begins.

| options                                   | effect                                                                |
|-------------------------------------------|-----------------------------------------------------------------------|
| `features="lite0"`, or a file             | the method "semantic" aligns by them, with mirror images and turns    |
| the same with another method              | they give the initial poses of that method                            |
| `start="features"`                        | the same with lite0                                                   |
| the same with `groups`                    | images are sorted by them; groups are aligned by them or that method  |
| `mirror` or `turns` and none of the above | orientations are estimated from pixels or edges before the method     |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from congeal.errors import CongealError
from congeal.files import read_json, write_json
from congeal.geometry.orientation import orientation_of, orientations, upright_from_source
from congeal.images import ImageSource, Stack, prepare
from congeal.images.plan import Layout, resolve_initial_poses
from congeal.images.sources.views import SourceView
from congeal.methods.base import Method, load
from congeal.methods.semantic.estimator import SemanticCongealing
from congeal.methods.semantic.extractors import PLAIN_FEATURES, is_semantic, open_extractor
from congeal.methods.semantic.orientation_estimation import (
    UprightTemplate,
    classify_orientations,
    estimate_orientations,
)
from congeal.pipeline.initial_poses import Init, InitialPoses, init_name
from congeal.pipeline.options import AlignOptions
from congeal.registration.features import robust_features
from congeal.runs.folder import RunFolder
from congeal.transforms import Transforms

SEMANTIC, DEFAULT_NETWORK = "semantic", "lite0"
# Files under .work: the poses found by features and the model that found them; the orientation of every image, and the
# template and layout by which new images are oriented.
FEATURE_POSES, FEATURE_MODEL = "feature_poses.npz", "feature_model.safetensors"
ORIENTATIONS = "orientations.npz"
ORIENTATION_TEMPLATE, ORIENTATION_LAYOUT = "orientation_template.npz", "orientation_layout.json"


@dataclass(frozen=True)
class StartOptions:
    """How an alignment starts.

    Attributes
    ----------
    method, params : the method, and those of its parameters that follow from the options.
    init : a file of initial poses, or "faces".
    start_features : the network whose features give the initial poses, if any.
    sorting_features : the network by whose features images are sorted into groups, if any.
    mirror, turns : whether images may be mirrored or turned.
    ignore_source_poses : whether initial poses that the source has are ignored.
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
        return SourceView(images, initial_poses=False) if self.ignore_source_poses else images

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
    run: RunFolder, images: ImageSource, model: Method, options: StartOptions, initial: InitialPoses, *, quiet: bool
) -> tuple[ImageSource, InitialPoses]:
    """The images in their estimated orientation, and the initial poses; both are stored for a resumed run."""
    if model.name == SEMANTIC or not options.estimates_poses:
        return images, initial
    if options.start_features is not None:
        path = run.work / FEATURE_POSES
        if not path.is_file():
            first = SemanticCongealing(
                motion="similarity",
                features=options.start_features,
                mirror=options.mirror,
                turns=options.turns,
                size=model.size,
                align_on=model.align_on,
                random_state=model.random_state,
            )
            stack = prepare(images, size=model.size, init=initial[0], init_size=initial[1], align_on=model.align_on)
            first.fit(stack, verbose=not quiet).save(run.work / FEATURE_MODEL)
            first.transforms_.save(path)
        return _use_feature_poses(path, images, options)
    path = run.work / ORIENTATIONS
    if not path.is_file():
        stack = prepare(images, size=model.size, init=initial[0], init_size=initial[1], align_on=model.align_on)
        candidates = orientations(mirror=options.mirror, turns=options.turns)
        found, upright = estimate_orientations(stack, robust_features(_kind(model, stack)), candidates)
        upright.save(run.work / ORIENTATION_TEMPLATE)
        write_json(run.work / ORIENTATION_LAYOUT, stack.layout.as_dict())
        _save_orientations(path, images, stack, found)
    return _reorient(images, initial, _load_orientations(path))


def initialise_new_images(
    trained: RunFolder, run: RunFolder, images: ImageSource, model: Method, initial: InitialPoses, *, quiet: bool
) -> tuple[ImageSource, InitialPoses]:
    """The same for new images of a finished run, each by itself."""
    options = StartOptions.from_config(trained.config)
    if model.name == SEMANTIC or not options.estimates_poses:
        return images, initial
    from_features = options.start_features is not None
    needed = (FEATURE_MODEL,) if from_features else (ORIENTATION_TEMPLATE, ORIENTATION_LAYOUT)
    for name in needed:
        if not (trained.work / name).is_file():
            raise CongealError(f"{trained} has lost its orientation data (.work/{name}): run 'congeal align' again")
    if from_features:
        path = run.work / FEATURE_POSES
        if not path.is_file():
            first = load(trained.work / FEATURE_MODEL)
            layout = replace(first.layout_, align_on=model.layout_.align_on)
            stack = prepare(images, size=first.size, init=initial[0], init_size=initial[1], layout=layout)
            first.align_new(stack, verbose=not quiet).transforms.save(path)
        return _use_feature_poses(path, images, options)
    path = run.work / ORIENTATIONS
    if not path.is_file():
        layout = replace(Layout(**read_json(trained.work / ORIENTATION_LAYOUT)), align_on=model.layout_.align_on)
        stack = prepare(images, size=model.size, init=initial[0], init_size=initial[1], layout=layout)
        image_features = robust_features(_kind(model, stack, model.layout_.kind))
        candidates = orientations(mirror=options.mirror, turns=options.turns)
        found = classify_orientations(
            stack, image_features, candidates, UprightTemplate.load(trained.work / ORIENTATION_TEMPLATE)
        )
        _save_orientations(path, images, stack, found)
    return _reorient(images, initial, _load_orientations(path))


def _kind(model: Method, stack: Stack, fitted: str | None = None) -> str:
    """The kind of images: as the method is told, as it was for the fitted set, or as the stack looks."""
    return (fitted or stack.kind) if model.kind == "auto" else model.kind


def _use_feature_poses(path: Path, images: ImageSource, options: StartOptions) -> tuple[ImageSource, InitialPoses]:
    found = Transforms.load(path)
    matrices = np.asarray(found.matrices, dtype=np.float64)
    return SourceView(images, orientation=orientation_of(matrices, turns=options.turns)), (matrices, found.aligned_size)


def _reorient(images: ImageSource, initial: InitialPoses, orientation: np.ndarray) -> tuple[ImageSource, InitialPoses]:
    """The images in their orientation (N,), and their initial poses turned with them."""
    matrices, size = resolve_initial_poses(images, *initial)
    if matrices is not None and size is not None:  # without a size there is no frame that could be turned
        initial = np.array([_about_centre(int(one), size) for one in orientation]) @ matrices, size
    return SourceView(images, orientation=orientation), initial


def _about_centre(orientation: int, size: tuple[int, int]) -> np.ndarray:
    """(3, 3) the orientation as a transform of a frame of `size`, about its centre."""
    matrix = upright_from_source(orientation, (1, 1))
    centre = np.array([(size[1] - 1) / 2, (size[0] - 1) / 2])
    matrix[:2, 2] = centre - matrix[:2, :2] @ centre
    return matrix


def _save_orientations(path: Path, images: ImageSource, stack: Stack, found: np.ndarray) -> None:
    """The orientation of every image; 0, as it is, for images that cannot be read."""
    orientation = np.zeros(len(images), dtype=int)
    orientation[stack.kept] = found
    matrices = np.array([upright_from_source(int(one), (1, 1)) for one in orientation])
    Transforms(images.ids(), matrices, np.ones((len(images), 2), int), (1, 1)).save(path)


def _load_orientations(path: Path) -> np.ndarray:
    return np.asarray(orientation_of(np.asarray(Transforms.load(path).matrices, dtype=np.float64)))
