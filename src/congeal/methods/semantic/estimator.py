"""Alignment of photographs of one kind of object by features of a pretrained network; mirror images included.

Birds of one species, cats, cars: their pixels and edges differ from image to image, features of a network less so. Up
to a hundred images are matched jointly (`joint_matching.py`); all others, and new ones, are registered to the template.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch

from congeal.errors import CongealError, RunFailed
from congeal.execution.threads import single_torch_thread
from congeal.geometry.orientation import mirrored, orientations
from congeal.images import Stack
from congeal.methods.base import Method
from congeal.methods.checks import Range
from congeal.methods.fit_context import FitContext, FitResult
from congeal.methods.semantic.edge_refinement import EdgeTemplate
from congeal.methods.semantic.extractors import Extractor, FeatureTrust, is_semantic, open_extractor
from congeal.methods.semantic.feature_maps import (
    FeatureBasis,
    FeatureMaps,
    FeatureSimilarity,
    FeatureTemplate,
    Window,
    compute_feature_maps,
)
from congeal.methods.semantic.feature_matching import MATCH_TOLERANCE, MatchRules, PairMatches
from congeal.methods.semantic.group_synchronisation import MatchGraph, pose_errors, synchronise_poses
from congeal.methods.semantic.joint_matching import (
    FINE_MATCH_REACH,
    FINE_MATCH_TOLERANCE,
    compose_poses,
    error_in_stack_px,
    frame_corners_in_view,
    match_jointly,
    match_template,
)
from congeal.registration.features import ImageFeatures
from congeal.rows import evenly_spaced_rows

COMMON_OBJECT = 2.5
"""Least number of feature matches that agree, in units of the number by chance, for a set to have an object in common:
photographs of different things reach 2.1 to 2.2, of one kind of bird, car, bottle or face 2.9 to 8."""
MIN_IMAGES = 4
"""Fewer images have too few pairs to separate right matches from wrong ones."""


@dataclass(kw_only=True, eq=False)
class SemanticCongealing(FeatureTrust, Method):
    """Alignment by dense features of a network: mutual nearest neighbours of all pairs, synchronised over the set.

    Parameters
    ----------
    features : str
        "lite0", a file MODULE.pt (TorchScript) or MODEL.onnx, or "timm:NAME".
    mirror : bool
        Every image may be a mirror image; its matrix then has a negative determinant.
    turns : bool
        Every image may be rotated by 90, 180 or 270 degrees.
    motion : str
        similarity, affine or homography.
    fit_sample : int
        Number of images that are matched jointly, at most; the others are registered to the template of those.

    Attributes
    ----------
    transforms_, quality_, history_, stack_from_frame_, layout_
        As for every method.
    """

    motion: str = "affine"
    features: str = "lite0"
    mirror: bool = False
    turns: bool = False
    fit_sample: Annotated[int, Range(least=MIN_IMAGES)] = 100

    name: ClassVar[str] = "semantic"
    motions: ClassVar[tuple[str, ...]] = ("similarity", "affine", "homography")

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if not is_semantic(self.features):
            raise CongealError(
                f"{self.name} compares features of a network: lite0, MODULE.pt, MODEL.onnx or timm:NAME, "
                f"not {self.features!r}"
            )

    def _align(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> FitResult:
        if len(stack) < MIN_IMAGES:
            raise CongealError(
                f"{stack.source.name} has {len(stack)} usable images: aligning by features needs at least "
                f"{MIN_IMAGES}, which can vote on each other's matches"
            )
        extractor = open_extractor(self.features)
        saved = context.load() or {}
        rows = evenly_spaced_rows(len(stack), self.fit_sample)
        few = stack if len(rows) == len(stack) else stack.some(rows)
        if "learnt" not in saved:
            joined = match_jointly(
                few,
                extractor,
                mirror=self.mirror,
                turns=self.turns,
                motion=self.motion,
                seed=self.random_state or 0,
                context=context,
            )
            self._check_common_object(stack, joined.agreement_ratio)
            saved = {"learnt": {**_template_state("frame", joined.frame), **_template_state("object", joined.object)}}
            if joined.edges is not None:
                saved["learnt"] |= {"edges.template": joined.edges.template, "edges.weight": joined.edges.weight}
            saved["edge_gain"] = joined.edge_gain
            saved["poses"], saved["chance"] = torch.from_numpy(joined.poses), joined.agreement_ratio
            saved["error"] = torch.from_numpy(joined.error)
            context.save(saved)
        self._learnt = {name: torch.as_tensor(value) for name, value in saved["learnt"].items()}
        poses, error = _empty_results(stack)
        if few is not stack:
            self._align_each(stack, extractor, context, poses, error, beside=saved)
        poses[rows], error[rows] = saved["poses"], saved["error"]
        return self._found_poses(stack, poses, error, extractor, float(saved["chance"]), float(saved["edge_gain"]))

    def _align_new(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> FitResult:
        extractor = self.extractor()
        poses, error = _empty_results(stack)
        self._align_each(stack, extractor, context, poses, error)
        return self._found_poses(stack, poses, error, extractor)

    def _check_common_object(self, stack: Stack, agreement_ratio: float) -> None:
        if agreement_ratio >= COMMON_OBJECT:
            return
        why = "what matches is where in the picture something lies, not what it is"
        if agreement_ratio > 0:
            why = (
                f"matches agree {agreement_ratio:.1f} times as often as by chance, and {COMMON_OBJECT:g} times is the "
                "least"
            )
        raise RunFailed(
            f"the images of {stack.source.name} have no object in common that {self.features} sees: {why}; choose "
            "images of one kind of thing, or other features"
        )

    def _found_poses(
        self,
        stack: Stack,
        poses: torch.Tensor,
        error: torch.Tensor,
        extractor: Extractor,
        chance: float | None = None,
        edge_gain: float | None = None,
    ) -> FitResult:
        flipped = int(mirrored(poses.numpy()).sum())
        words = [f"Poses come from features of {self.features}"]
        if chance is not None:
            words.append(f"its matches agree {chance:.1f} times as often as by chance")
        if self.mirror:
            words.append(f"{flipped} of {len(stack)} images are mirrored")
        sight = FeatureSimilarity(extractor, self._template("object"))
        decision: dict[str, Any] = {
            "sentence": "; ".join(words) + ".",
            "mirrored": flipped,
            "above_chance": chance,
        }
        facts = {"features": decision}
        if edge_gain is not None:
            taken = self._edges is not None
            sentence = (
                "Poses were refined on edges: features are as alike after it"
                if taken
                else "A refinement on edges was rejected: features would be less alike after it"
            )
            facts["edges"] = {"sentence": f"{sentence} ({edge_gain:+.4f}).", "taken": taken, "gain": edge_gain}
        return FitResult(poses, self.motion, (extractor.side,), error=error, decisions=facts, sight=sight)

    # ---- one by one

    @property
    def object_template(self) -> FeatureTemplate:
        """The template of the set in the window of the object."""
        self._check_fitted()
        return self._template("object")

    def _template(self, name: str) -> FeatureTemplate:
        known = self._learnt
        basis = FeatureBasis(known[f"{name}.centre"], known[f"{name}.directions"])
        return FeatureTemplate(
            known[f"{name}.cells"], known[f"{name}.weight"], basis, Window(*known[f"{name}.window"].tolist())
        )

    def _align_each(
        self,
        stack: Stack,
        extractor: Extractor,
        context: FitContext,
        poses: torch.Tensor,
        error: torch.Tensor,
        beside: Mapping[str, Any] | None = None,
    ) -> None:
        """Register every image of a stack to the templates, which fills poses (n, 3, 3) and errors (n,)."""
        parts = np.array_split(np.arange(len(stack)), -(-len(stack) // 16))  # a few seconds of work

        def work(part: np.ndarray) -> tuple[torch.Tensor, ...]:
            return tuple(torch.from_numpy(one) for one in self._align_few(stack.some(part), extractor))

        context.map_images(work, parts, poses, error, state=beside)

    def _align_few(self, few: Stack, extractor: Extractor) -> tuple[np.ndarray, np.ndarray]:
        """stack_from_frame of a few images registered to the templates, and their errors in stack pixels."""
        poses, error = np.array(few.start, dtype=np.float64), np.zeros(0)
        ways = orientations(mirror=self.mirror, turns=self.turns)
        for name, possible, tolerance, reach, motion in (
            ("frame", ways, MATCH_TOLERANCE, None, "similarity"),
            ("object", (0,), FINE_MATCH_TOLERANCE, FINE_MATCH_REACH, self.motion),
        ):
            template = self._template(name)
            seen = compute_feature_maps(few, poses, template.window, extractor, possible, template.basis)
            side, window = seen.side, template.window
            where = frame_corners_in_view(few.frame, window, side)
            rules = MatchRules(tolerance * side, np.pi / 3, reach=None if reach is None else reach * side)
            with single_torch_thread():
                found = [match_template(seen, row, template, possible, rules) for row in range(len(few))]
                moves, unsure = zip(
                    *(_register_to_template(pair, motion, rules.tolerance, seen, where) for _, pair in found),
                    strict=True,
                )
            chosen = np.array([way for way, _ in found])
            poses = compose_poses(poses, window, side, chosen, possible, np.array(moves))
            error = error_in_stack_px(np.array(unsure), poses, window, side)
        return poses if self._edges is None else self._edges.register(few, poses), error

    @property
    def _edges(self) -> EdgeTemplate | None:
        """The template of the edge refinement, if that was accepted."""
        known = self._learnt
        return EdgeTemplate(known["edges.template"], known["edges.weight"]) if "edges.template" in known else None

    # ---- the model file

    def _state(self) -> dict[str, torch.Tensor]:
        return dict(self._learnt)

    def _restore(self, state: Mapping[str, torch.Tensor]) -> None:
        self._learnt = dict(state)
        self._features_from_file = self.features != "lite0"


def _template_state(name: str, template: FeatureTemplate) -> dict[str, torch.Tensor]:
    """A template as tensors by name."""
    window = template.window
    return {
        f"{name}.cells": template.cells,
        f"{name}.weight": template.weight,
        f"{name}.centre": template.basis.centre,
        f"{name}.directions": template.basis.directions,
        f"{name}.window": torch.tensor([window.x, window.y, window.half], dtype=torch.float64),
    }


def _empty_results(stack: Stack) -> tuple[torch.Tensor, torch.Tensor]:
    """Arrays for the poses and errors of a stack."""
    return torch.zeros(len(stack), 3, 3, dtype=torch.float64), torch.zeros(len(stack), dtype=torch.float64)


def _register_to_template(
    pair: PairMatches, motion: str, tolerance: float, seen: FeatureMaps, where: np.ndarray
) -> tuple[np.ndarray, float]:
    """(3, 3) common_from_view of one image from its matches with a template (a), which is fixed; and its error at
    points `where` of the view, in pixels of it."""
    if len(pair.a) < MIN_IMAGES:
        return np.eye(3), float("nan")
    z, t = 1 / pair.z, -pair.t / pair.z
    begin = np.array([np.eye(3), [[z.real, -z.imag, t.real], [z.imag, z.real, t.imag], [0, 0, 1]]])
    zero = np.zeros(1, dtype=int)
    # Two images of which the first is the template; its motion is applied inversely to the other.
    matches = MatchGraph(pair.a, pair.b, pair.weight, zero, zero, zero + 1, 2)
    poses, _ = synchronise_poses(matches, begin, motion, tolerance, seen.side / 2)
    move = np.linalg.inv(poses[0]) @ poses[1]
    both = np.array([np.eye(3), move])
    return move, float(pose_errors(matches, both, where, motion, tolerance, seen.side, max(seen.grid))[1])
