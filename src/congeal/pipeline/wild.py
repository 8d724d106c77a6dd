"""What was asked about features, mirror images and turns, and where that lets an alignment start.

| asked                                   | what happens                                                           |
|-----------------------------------------|------------------------------------------------------------------------|
| `features="lite0"`, or a file           | the method "semantic" aligns by them, mirror images and turns included |
| the same with another method            | they give the start, and that method goes on from there                |
| `start="features"`                      | the same with lite0                                                    |
| the same with `groups`                  | they sort the pile; each group is aligned by them or by that method    |
| `mirror` or `turns` and nothing of that | orientations are told by pixels or edges, before the method begins     |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from congeal.errors import CongealError
from congeal.files import read_json, write_json
from congeal.geometry.orientation import orientation_of, orientations, upright_from_source
from congeal.images import ImageSource, prepare
from congeal.images.oriented import OrientedSource
from congeal.images.plan import Layout, starting_matrices
from congeal.images.unstarted import Unstarted
from congeal.methods.base import Method, load
from congeal.methods.semantic import SemanticCongealing
from congeal.pipeline.starts import Init
from congeal.runs.folder import RunFolder
from congeal.solvers.appearance import lasting_appearance
from congeal.solvers.extractors import PLAIN, is_semantic, open_extractor
from congeal.solvers.orienting import Upright, find_orientations, orientations_of
from congeal.transforms import Transforms

Start = tuple[Transforms | np.ndarray | None, tuple[int, int] | None]
SEMANTIC, BEGAN, UPRIGHT = "semantic", "began.npz", "upright.npz"
# What new images of a finished run are brought upright by.
GUIDE, SHOWN, LAID = "began.safetensors", "upright_mean.npz", "upright_layout.json"


@dataclass(frozen=True)
class Wild:
    """What was asked.

    features: of which extractor, None for the method's own. from_features: they give the start of another method.
    mirror, turns: whether images may be mirrored or turned. unstarted: whatever start the images bring along, it is not
    taken.
    """

    features: str | None
    from_features: bool
    mirror: bool
    turns: bool
    unstarted: bool = False

    def as_config(self) -> dict[str, Any]:
        """For config.json; what was not asked for is not written, so that runs of earlier versions can be resumed."""
        asked = {"mirror": self.mirror, "turns": self.turns, "start_features": self.from_features and self.features}
        asked["start"] = "none" if self.unstarted else None
        return {name: value for name, value in asked.items() if value}

    def in_groups(self, asked: str | None, start: Init) -> tuple[Wild, str | None]:
        """The same for a pile that is sorted into groups, and the features to sort it by: those that were asked for.

        They give no start then: a pile of several kinds has no object in common. `start="features"` still asks for one.
        """
        if not is_semantic(asked):
            return self, None
        return replace(self, from_features=self.from_features and start == "features"), self.features

    def of(self, images: ImageSource) -> ImageSource:
        """The images, without the start they bring along where that is not wanted."""
        return Unstarted(images) if self.unstarted else images


def read_wishes(
    method: str | None,
    features: str | None,
    start: Init,
    init: Init,
    mirror: bool | str,
    turns: bool,
) -> tuple[str | None, Wild, Init, dict[str, Any]]:
    """The method, what was asked, where to start, and the parameters that the method gets from it."""
    if start is not None and init is not None:
        raise CongealError(f"the start is given twice, as start {str(start)!r} and as init {str(init)!r}")
    if mirror not in (True, False, "auto"):
        raise CongealError(f"mirror is True, False or 'auto', not {mirror!r}")
    if not isinstance(turns, bool):
        raise CongealError(f"turns is True or False, not {turns!r}")
    may_mirror = bool(mirror)
    from_features, unstarted = start == "features", start == "none"
    if from_features or unstarted:
        start = None
    init = init if start is None else start
    features = str(Path(features).resolve()) if features is not None and Path(features).is_file() else features
    if is_semantic(features):
        assert features is not None
        open_extractor(features)  # what is missing or wrong is told before anything is written
        if method in (None, SEMANTIC) and not from_features:
            params = {"features": features, "mirror": may_mirror, "turns": turns}
            return SEMANTIC, Wild(features, False, may_mirror, turns, unstarted), init, params
        if unstarted:
            raise CongealError(
                f"features of {features} give {method} its start, and start 'none' takes it away: leave one of them out"
            )
        return method, Wild(features, True, may_mirror, turns), init, {}
    own: dict[str, Any] = {} if features is None else {"features": features}
    if features is not None and method not in (None, "deep"):
        raise CongealError(f"only deep can compare {' or '.join(PLAIN[1:])}, not {method}: leave --features out")
    if from_features:
        open_extractor("lite0")
    if method == SEMANTIC:
        own = {"mirror": may_mirror, "turns": turns}
    return method, Wild("lite0" if from_features else None, from_features, may_mirror, turns, unstarted), init, own


def begin(
    run: RunFolder, images: ImageSource, model: Method, start: Start, wild: Wild, *, quiet: bool
) -> tuple[ImageSource, Start]:
    """The images as the method is to see them, and where it starts; what was found is kept for a resumed run."""
    if model.name == SEMANTIC or not (wild.from_features or wild.mirror or wild.turns):
        return images, start
    if wild.from_features:
        found, shape = _from_features(run, images, model, start, wild, quiet=quiet)
        return OrientedSource(images, orientation_of(found, turns=wild.turns)), (found, shape)
    return _laid(images, start, _upright(run, images, model, start, wild))


def begin_new(
    trained: RunFolder, run: RunFolder, images: ImageSource, model: Method, start: Start, *, quiet: bool
) -> tuple[ImageSource, Start]:
    """The same for new images of a finished run, each by itself, as that run began."""
    asked = {name: trained.config.get(name) for name in ("mirror", "turns", "start_features")}
    if model.name == SEMANTIC or not any(asked.values()):
        return images, start
    needed = (GUIDE,) if asked["start_features"] else (SHOWN, LAID)
    if not all((trained.work / name).is_file() for name in needed):
        raise CongealError(f"{trained} does not know any more which way its images were laid down: align them again")
    wild = Wild(asked["start_features"] or None, bool(asked["start_features"]), *map(bool, list(asked.values())[:2]))
    if wild.from_features:
        path = run.work / BEGAN
        if not path.is_file():
            guide = load(trained.work / GUIDE)
            layout = replace(guide.layout_, align_on=model.layout_.align_on)
            stack = prepare(images, size=guide.size, init=start[0], init_size=start[1], layout=layout)
            guide.align_new(stack, verbose=not quiet).transforms.save(path)
        found, shape = _began(path)
        return OrientedSource(images, orientation_of(found, turns=wild.turns)), (found, shape)
    path, ways = run.work / UPRIGHT, orientations(mirror=wild.mirror, turns=wild.turns)
    if not path.is_file():
        layout = replace(Layout(**read_json(trained.work / LAID)), align_on=model.layout_.align_on)
        stack = prepare(images, size=model.size, init=start[0], init_size=start[1], layout=layout)
        appearance = lasting_appearance((model.layout_.kind or stack.kind) if model.kind == "auto" else model.kind)
        way = np.zeros(len(images), dtype=int)
        way[stack.kept] = orientations_of(stack, appearance, ways, Upright.load(trained.work / SHOWN))
        _keep(path, images, way)
    return _laid(images, start, _kept(path))


def laid_as(config: Mapping[str, Any]) -> dict[str, Any]:
    """For config.json of new images: how those of the run may lie, and whether they start as they lie."""
    return {name: config[name] for name in ("mirror", "turns", "start_features", "start") if config.get(name)}


def _laid(images: ImageSource, start: Start, way: np.ndarray) -> tuple[ImageSource, Start]:
    """Images upright, and their start turned with them."""
    matrices, size = starting_matrices(images, *start)
    if matrices is not None and size is not None:  # a start of unknown size leads to no frame that could be turned
        start = np.array([_about_centre(int(one), size) for one in way]) @ matrices, size
    return OrientedSource(images, way), start


def _about_centre(way: int, size: tuple[int, int]) -> np.ndarray:
    """(3, 3) the orientation as a movement of a frame of `size`, about its centre."""
    matrix = upright_from_source(way, (1, 1))
    middle = np.array([(size[1] - 1) / 2, (size[0] - 1) / 2])
    matrix[:2, 2] = middle - matrix[:2, :2] @ middle
    return matrix


def _from_features(
    run: RunFolder, images: ImageSource, model: Method, start: Start, wild: Wild, *, quiet: bool
) -> tuple[np.ndarray, tuple[int, int]]:
    path = run.work / BEGAN
    if not path.is_file():
        assert wild.features is not None
        first = SemanticCongealing(
            motion="similarity",
            features=wild.features,
            mirror=wild.mirror,
            turns=wild.turns,
            size=model.size,
            align_on=model.align_on,
            random_state=model.random_state,
        )
        stack = prepare(images, size=model.size, init=start[0], init_size=start[1], align_on=model.align_on)
        first.fit(stack, verbose=not quiet).save(run.work / GUIDE)
        first.transforms_.save(path)
    return _began(path)


def _began(path: Path) -> tuple[np.ndarray, tuple[int, int]]:
    began = Transforms.load(path)
    size = began.aligned_size
    assert size is not None
    return np.asarray(began.matrices, dtype=np.float64), size


def _upright(run: RunFolder, images: ImageSource, model: Method, start: Start, wild: Wild) -> np.ndarray:
    """(N,) the orientation of every image; the plain one for those that cannot be read."""
    path = run.work / UPRIGHT
    if path.is_file():
        return _kept(path)
    stack = prepare(images, size=model.size, init=start[0], init_size=start[1], align_on=model.align_on)
    appearance = lasting_appearance(stack.kind if model.kind == "auto" else model.kind)
    way = np.zeros(len(images), dtype=int)
    ways = orientations(mirror=wild.mirror, turns=wild.turns)
    way[stack.kept], upright = find_orientations(stack, appearance, ways)
    upright.save(run.work / SHOWN)
    write_json(run.work / LAID, stack.layout.as_dict())
    _keep(path, images, way)
    return way


def _keep(path: Path, images: ImageSource, way: np.ndarray) -> None:
    matrices = np.array([upright_from_source(int(one), (1, 1)) for one in way])
    Transforms(images.ids(), matrices, np.ones((len(images), 2), int), (1, 1)).save(path)


def _kept(path: Path) -> np.ndarray:
    return np.asarray(orientation_of(np.asarray(Transforms.load(path).matrices, dtype=np.float64)))
