"""Things of one kind in the wild, by features of a network that was trained elsewhere; mirror images included.

Birds of one species, cats, cars: their pixels and edges differ from image to image, what a network sees in them does
not. Up to a hundred images are brought together as a set (`congeal.solvers.joining`); all others, and new ones, are
placed one by one on what those have in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import torch

from congeal.errors import CongealError, RunFailed
from congeal.geometry.orientation import mirrored, orientations
from congeal.images import Stack
from congeal.methods.base import Method
from congeal.methods.checks import Range
from congeal.methods.found import Found
from congeal.methods.job import Job
from congeal.metrics.limits import COMMON_OBJECT
from congeal.solvers.appearance import Appearance
from congeal.solvers.edging import Edges
from congeal.solvers.extractors import Extractor, is_semantic, open_extractor
from congeal.solvers.joining import FINE, REACH, Template, frame_corners, in_stack, join, moved, place_one
from congeal.solvers.looks import Basis, Look, Window, look
from congeal.solvers.pairing import TOLERANCE, Pair, Rules
from congeal.solvers.sight import FeatureSight
from congeal.solvers.synchronise import Matches, errors, meet
from congeal.solvers.threads import one_thread

LEAST_IMAGES = 4
"""Fewer have too few pairs to tell right matches from wrong ones."""
_AT_ONCE = 16  # images that are placed before progress is kept


@dataclass(kw_only=True, eq=False)
class SemanticCongealing(Method):
    """Alignment by dense features of a network: mutual nearest neighbours of all pairs, brought together.

    Parameters
    ----------
    features : str
        "lite0", a file MODULE.pt (TorchScript) or MODEL.onnx, or "timm:NAME".
    mirror : bool
        Every image may be a mirror image; its matrix then has a negative determinant.
    turns : bool
        Every image may be turned by 90, 180 or 270 degrees.
    motion : str
        similarity, affine or homography.
    fit_sample : int
        At most this many images are brought together as pairs; the others are placed on what those show.

    Attributes
    ----------
    transforms_, quality_, history_, stack_from_frame_, layout_
        As for every method.
    """

    motion: str = "affine"
    features: str = "lite0"
    mirror: bool = False
    turns: bool = False
    fit_sample: Annotated[int, Range(least=LEAST_IMAGES)] = 100

    name: ClassVar[str] = "semantic"
    motions: ClassVar[tuple[str, ...]] = ("similarity", "affine", "homography")

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if not is_semantic(self.features):
            raise CongealError(
                f"{self.name} compares features of a network: lite0, MODULE.pt, MODEL.onnx or timm:NAME, "
                f"not {self.features!r}"
            )

    def _align(self, stack: Stack, appearance: Appearance, job: Job) -> Found:
        if len(stack) < LEAST_IMAGES:
            raise CongealError(
                f"{stack.source.name} has {len(stack)} usable images: aligning by features needs at least "
                f"{LEAST_IMAGES}, which can vote on each other's matches"
            )
        extractor = open_extractor(self.features)
        saved = job.load() or {}
        rows = np.unique(np.linspace(0, len(stack) - 1, min(len(stack), self.fit_sample)).round().astype(int))
        few = stack if len(rows) == len(stack) else stack.some(rows)
        if "edge_gain" not in saved:  # nor in the checkpoint of a version without error bars
            joined = join(
                few,
                extractor,
                mirror=self.mirror,
                turns=self.turns,
                motion=self.motion,
                seed=self.random_state or 0,
                quiet=job.quiet,
                report=lambda stage, value: job.note(**{stage: value}),
            )
            self._refuse_strangers(stack, joined.above_chance)
            saved = {"learnt": {**_kept("frame", joined.frame), **_kept("object", joined.object)}}
            if joined.edges is not None:
                saved["learnt"] |= {"edges.template": joined.edges.template, "edges.weight": joined.edges.weight}
            saved["edge_gain"] = joined.edge_gain
            saved["poses"], saved["chance"] = torch.from_numpy(joined.poses), joined.above_chance
            saved["error"] = torch.from_numpy(joined.error)
            job.save(saved)
        self._known = {name: torch.as_tensor(value) for name, value in saved["learnt"].items()}
        poses, error = _room(stack)
        if few is not stack:
            self._place(stack, extractor, job, poses, error, beside=saved)
        poses[rows], error[rows] = saved["poses"], saved["error"]
        return self._answer(stack, poses, error, extractor, float(saved["chance"]), float(saved["edge_gain"]))

    def _align_new(self, stack: Stack, appearance: Appearance, job: Job) -> Found:
        extractor = self.extractor()
        poses, error = _room(stack)
        self._place(stack, extractor, job, poses, error)
        return self._answer(stack, poses, error, extractor)

    def _refuse_strangers(self, stack: Stack, above_chance: float) -> None:
        if above_chance == 0:
            raise RunFailed(
                f"the images of {stack.source.name} have no object in common that {self.features} sees: what "
                "matches is where in the picture something lies, not what it is; choose images of one kind of thing, "
                "or other features"
            )
        if above_chance < COMMON_OBJECT:
            raise RunFailed(
                f"the images of {stack.source.name} have no object in common that {self.features} sees: matches agree "
                f"{above_chance:.1f} times as often as by chance, and {COMMON_OBJECT:g} times is the least; "
                "choose images of one kind of thing, or other features"
            )

    def _answer(
        self,
        stack: Stack,
        poses: torch.Tensor,
        error: torch.Tensor,
        extractor: Extractor,
        chance: float | None = None,
        edge_gain: float | None = None,
    ) -> Found:
        flipped = int(mirrored(poses.numpy()).sum())
        words = [f"Poses come from features of {self.features}"]
        if chance is not None:
            words.append(f"its matches agree {chance:.1f} times as often as by chance")
        if self.mirror:
            words.append(f"{flipped} of {len(stack)} images are mirrored")
        sight = FeatureSight(extractor, self._template("object"))
        decision: dict[str, Any] = {"sentence": "; ".join(words) + ".", "mirrored": flipped, "above_chance": chance}
        facts = {"features": decision}
        if edge_gain is not None:
            taken = self._edges is not None
            sentence = (
                "The last step was on edges: features are as alike after it"
                if taken
                else "A last step on edges was not taken: features would be less alike after it"
            )
            facts["edges"] = {"sentence": f"{sentence} ({edge_gain:+.4f}).", "taken": taken, "gain": edge_gain}
        return Found(poses, self.motion, (extractor.side,), error=error, decisions=facts, sight=sight)

    # ---- one by one

    @property
    def object_template(self) -> Template:
        """What the set shows on average, in the window of the object."""
        self._check_fitted()
        return self._template("object")

    def _template(self, name: str) -> Template:
        known = self._known
        basis = Basis(known[f"{name}.centre"], known[f"{name}.directions"])
        return Template(
            known[f"{name}.cells"], known[f"{name}.weight"], basis, Window(*known[f"{name}.window"].tolist())
        )

    def _place(
        self,
        stack: Stack,
        extractor: Extractor,
        job: Job,
        poses: torch.Tensor,
        error: torch.Tensor,
        beside: Mapping[str, Any] | None = None,
    ) -> None:
        """Fill the poses (n, 3, 3) and errors (n,) of a stack, each image by itself."""
        parts = np.array_split(np.arange(len(stack)), -(-len(stack) // _AT_ONCE))

        def work(left: Sequence[np.ndarray]) -> Iterable[tuple[torch.Tensor, ...]]:
            for part in left:
                yield tuple(torch.from_numpy(one) for one in self._placed(stack.some(part), extractor))

        job.place(parts, work, poses, error, beside=beside)

    def _placed(self, few: Stack, extractor: Extractor) -> tuple[np.ndarray, np.ndarray]:
        """stack_from_frame of a few images, on the templates, and their errors in stack pixels."""
        poses, error = np.array(few.start, dtype=np.float64), np.zeros(0)
        ways = orientations(mirror=self.mirror, turns=self.turns)
        for name, possible, tolerance, reach, motion in (
            ("frame", ways, TOLERANCE, None, "similarity"),
            ("object", (0,), FINE, REACH, self.motion),
        ):
            template = self._template(name)
            seen = look(few, poses, template.window, extractor, possible, template.basis)
            side, window = seen.side, template.window
            where = frame_corners(few.frame, window, side)
            rules = Rules(tolerance * side, np.pi / 3, reach=None if reach is None else reach * side)
            with one_thread():
                found = [place_one(seen, row, template, possible, rules) for row in range(len(few))]
                moves, unsure = zip(
                    *(_move(pair, motion, rules.tolerance, seen, where) for _, pair in found), strict=True
                )
            chosen = np.array([way for way, _ in found])
            poses = moved(poses, window, side, chosen, possible, np.array(moves))
            error = in_stack(np.array(unsure), poses, window, side)
        return poses if self._edges is None else self._edges.place(few, poses), error

    @property
    def _edges(self) -> Edges | None:
        """What the last step goes to, if there is one."""
        known = self._known
        return Edges(known["edges.template"], known["edges.weight"]) if "edges.template" in known else None

    # ---- the model file

    def _state(self) -> dict[str, torch.Tensor]:
        return dict(self._known)

    def _restore(self, state: Mapping[str, torch.Tensor]) -> None:
        self._known = dict(state)
        self._named_by_file = self.features != "lite0"

    def set_params(self, **params: Any) -> Self:
        """Change hyper-parameters; `features` given again after a load says that they are trusted."""
        if "features" in params:
            self._named_by_file = False
        return super().set_params(**params)

    def extractor(self) -> Extractor:
        """Of the features; a model file cannot decide which program is run."""
        if getattr(self, "_named_by_file", False):
            raise CongealError(
                f"this model was fitted on features of {self.features!r}, a program that its file must not choose: "
                "load it from Python and give them again, with set_params(features=…)"
            )
        return open_extractor(self.features)


def _kept(name: str, template: Template) -> dict[str, torch.Tensor]:
    """A template as tensors by name."""
    window = template.window
    return {
        f"{name}.cells": template.cells,
        f"{name}.weight": template.weight,
        f"{name}.centre": template.basis.centre,
        f"{name}.directions": template.basis.directions,
        f"{name}.window": torch.tensor([window.x, window.y, window.half], dtype=torch.float64),
    }


def _room(stack: Stack) -> tuple[torch.Tensor, torch.Tensor]:
    """For the poses and errors of a stack."""
    return torch.zeros(len(stack), 3, 3, dtype=torch.float64), torch.zeros(len(stack), dtype=torch.float64)


def _move(pair: Pair, motion: str, tolerance: float, seen: Look, where: np.ndarray) -> tuple[np.ndarray, float]:
    """(3, 3) common_from_view of one image from its matches with a template (a), which stays where it is; and its
    error at places `where` of the view, in pixels of it."""
    if len(pair.a) < LEAST_IMAGES:
        return np.eye(3), float("nan")
    z, t = 1 / pair.z, -pair.t / pair.z
    begin = np.array([np.eye(3), [[z.real, -z.imag, t.real], [z.imag, z.real, t.imag], [0, 0, 1]]])
    zero = np.zeros(1, dtype=int)
    # Two images of which the first is the template; what it would have to move, the other moves instead.
    matches = Matches(pair.a, pair.b, pair.weight, zero, zero, zero + 1, 2)
    poses, _ = meet(matches, begin, motion, tolerance, seen.side / 2)
    move = np.linalg.inv(poses[0]) @ poses[1]
    both = np.array([np.eye(3), move])
    return move, float(errors(matches, both, where, motion, tolerance, seen.side, max(seen.grid))[1])
