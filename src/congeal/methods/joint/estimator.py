"""Joint alignment by direct optimisation, as an estimator: parameters, fitting, placing new images, the model file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch

from congeal.errors import CongealError
from congeal.geometry import MOTIONS
from congeal.images import Stack
from congeal.methods.base import Method
from congeal.methods.checks import Count, CountOrZero, Range, Reference
from congeal.methods.fit_context import FitContext, FitResult
from congeal.methods.joint.alignment import align
from congeal.methods.joint.pyramid import place_each
from congeal.methods.joint.state import FittedModel
from congeal.methods.semantic.extractors import PLAIN_FEATURES
from congeal.registration.features import ImageFeatures, PhotoEdges, pixel_features, robust_features
from congeal.registration.reference import check_one_image


@dataclass(kw_only=True, eq=False)
class JointAlignment(Method):
    """Direct joint optimisation of all poses; the default method. It trains no network.

    Every image is registered to a template by Gauss-Newton from several initial poses, the template is the mean of the
    inliers, and poses are refined together on a pyramid up to the resolution of the originals (`alignment.py`).

    Parameters
    ----------
    motion : str
        "auto" (the simplest that suffices), translation, rigid, similarity, affine or homography.
    features : str
        What is compared: "auto" (pixels of objects on empty ground, edges of photographs), "edges" or "pixels".
    finest : int or None
        Longer side of the finest pyramid level; None for the resolution of the originals.
    reference : str, int, path or array
        The first template: "auto" (a typical image), a position, a file or an array.
    fit_sample : int
        The template and the motion are found with at most this many images; all are aligned.
    restarts : int
        Images that match badly are registered again from this many perturbed poses.

    Attributes
    ----------
    transforms_, quality_, history_, stack_from_frame_, layout_
        As for every method.
    """

    motion: str = "auto"
    features: str = "auto"
    finest: Count | None = None
    reference: Reference = "auto"
    fit_sample: Annotated[int, Range(least=2)] = 6000
    restarts: CountOrZero = 16

    name: ClassVar[str] = "joint"
    motions: ClassVar[tuple[str, ...]] = (*MOTIONS, "auto")

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.features not in PLAIN_FEATURES:
            raise CongealError(
                f"{self.name}: features must be one of {', '.join(PLAIN_FEATURES)}, not {self.features!r}; "
                "those of a network belong to the method semantic"
            )
        check_one_image(self.reference, self.name)

    def _features(self, kind: str) -> ImageFeatures:
        return {"edges": PhotoEdges(), "pixels": pixel_features(kind)}.get(self.features) or robust_features(kind)

    def _align(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> FitResult:
        fit = align(stack, image_features, self, context)
        self._model = fit.model
        return self._found(stack, fit.poses, fit.error, fit.decisions)

    def _align_new(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> FitResult:
        placed = place_each(stack, self._model, self.restarts, self.random_state_, context)
        return self._found(stack, *placed, {})

    def _found(
        self, stack: Stack, poses: torch.Tensor, error: torch.Tensor, decisions: Mapping[str, Mapping[str, Any]]
    ) -> FitResult:
        model, base = self._model, max(stack.frame)
        finer = [max(level.frame) for level in model.levels if model.refines and max(level.frame) > base]
        return FitResult(poses, model.motion, (base, *finer), False, error, decisions)

    # ---- the model file

    def _state(self) -> dict[str, torch.Tensor]:
        return self._model.tensors() | {"motion": torch.tensor(MOTIONS.index(self._model.motion))}

    def _restore(self, state: Mapping[str, torch.Tensor]) -> None:
        self.motion_ = MOTIONS[int(state["motion"])]
        image_features = self._features(self.layout_.kind or "photo")
        self._model = FittedModel.from_tensors(state, self.motion_, image_features)
