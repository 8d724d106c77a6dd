"""Alignment to the running mean by the enhanced correlation coefficient, with OpenCV's `findTransformECC`.

Evangelidis and Psarakis, "Parametric image alignment using enhanced correlation coefficient maximization", 2008: the
pairwise step. Rounds over the set with a mean that sharpens make it a congealing method: the floor for all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch

from congeal.errors import require
from congeal.geometry import parameters_from_matrix, to_normalised, warp
from congeal.images import Stack
from congeal.methods.base import Method
from congeal.methods.checks import Count, CountOrZero, NotNegative, Positive, PositiveOrEndless, Range, Some
from congeal.methods.fit_context import FitContext
from congeal.registration.batching import chunks, start_poses
from congeal.registration.features import ImageFeatures
from congeal.registration.gauge import BestIterate, Gauge, corner_motion, mean_motion
from congeal.registration.gauss_newton import GaussNewton

_MARGIN = 0.25  # of the longer side: what an image shows beyond the frame, for a step to reach into
_WHOLLY_SEEN = 0.99  # OpenCV's masks are yes or no: a canvas pixel counts if this much of it has image under it
_STEEPEST = 0.9  # sum of the perspective entries of a step; from 1 on a corner of the frame lies on the horizon
_SMALLEST = 0.05  # determinant of a step: what shrinks an image to less than a twentieth of its area has lost it


@dataclass(kw_only=True, eq=False)
class ECC(Method):
    """ECC to the running mean, by OpenCV (extra `faces`). Needs roughly aligned input.

    Maximises each image's correlation with the mean of all; gain and offset do not matter. Channels are averaged. An
    image on which ECC gives up keeps its transform. New images go through the same rounds towards the mean that the fit
    ended with.

    Parameters
    ----------
    rounds : int
        Passes over the set, at most; the mean is made anew after each.
    warm_up : int
        First rounds in which an affine motion or a homography moves by less: rigid in the first, affine in the others.
    iterations : int
        Steps of one OpenCV call, at most.
    epsilon : float
        A call ends when the correlation grows by less than this.
    smoothing : tuple of int
        Width in pixels (odd) of OpenCV's Gaussian filter in each round; the last one holds for the rest.
    max_step : float
        With guards: no corner moves farther than this many pixels in one round.
    tolerance : float
        The fit ends when the mean corner motion of a round falls below this many pixels; a new image ends by its own.
    motion : str
        translation, rigid, affine or homography: what OpenCV has.
    size, align_on, kind, guards, random_state
        As for every method, see `Method`.

    Attributes
    ----------
    transforms_ : Transforms
        aligned_from_source of every image of the fit, in source pixels.
    quality_ : Quality
        Numbers and verdict of the fit.
    history_ : list of dict
        After every round: cost (mean squared distance to the mean), motion (mean corner motion in pixels), correlation
        (mean over images), failures (images on which OpenCV gave up).
    stack_from_frame_ : (n, 3, 3) array
        The poses between the pictures the method worked on.
    layout_ : Layout
        Sizes, channels, value ranges and kind of those pictures.
    """

    rounds: Count = 8
    """Passes over the set, at most."""
    warm_up: CountOrZero = 3
    """Rounds at the beginning that an affine motion or a homography spends as a smaller one, the first as a rigid and a
    homography's others as an affine: from a poor start ECC loses single images."""
    iterations: Count = 50
    """Steps of one call, at most."""
    epsilon: Positive = 1e-4
    """A call ends when the correlation grows by less than this."""
    smoothing: Some[Annotated[int, Range(least=1, every=2)]] = (5, 5, 5, 3)
    """Width in pixels (odd) of OpenCV's Gaussian filter in each round; the last one holds for the rest."""
    max_step: PositiveOrEndless = 3.0
    """With guards: no corner moves farther than this many pixels in one round."""
    tolerance: NotNegative = 0.01
    """Stop when the mean corner motion of a round falls below this many pixels."""

    motion: str = "homography"
    name: ClassVar[str] = "ecc"
    motions: ClassVar[tuple[str, ...]] = ("translation", "rigid", "affine", "homography")

    def _check_parameters(self) -> None:
        super()._check_parameters()
        require("cv2", "faces")

    def _align(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> torch.Tensor:
        start = start_poses(stack)
        state = context.load() or {"found": start, "round": 0, "zoom": 1.0, "best": None, "motion": float("inf")}
        found, moved = state["found"], float(state["motion"])
        gauge = None
        if self.guards:
            zoom = float(state["zoom"])
            gauge = Gauge.of_stack(stack, self.motion, keeps_intensity=image_features.keeps_intensity, zoom=zoom)
        best = BestIterate(found, state["best"])
        with torch.no_grad():
            target = _collect(stack, found, image_features)
            for i in range(int(state["round"]), self.rounds):
                if moved < self.tolerance:
                    context.ends_early(f"a step moved the images by less than {self.tolerance:g} px")
                    break
                stepped, failures, correlation = self._round(stack, found, target.mean, image_features, i)
                if gauge is not None:
                    stepped = gauge.fix(stepped, target.ink)
                moved = mean_motion(found, stepped, stack.frame)
                found, target = stepped, _collect(stack, stepped, image_features)
                # Before, the images still move by whole pixels: nothing to keep.
                if gauge is not None and i + 1 >= len(self.smoothing):
                    best.offer(found, target.cost, gauge.energy(target.ink))
                values = {"cost": target.cost, "motion": moved, "correlation": correlation, "failures": failures}
                context.step(i + 1, self.rounds, **values)
                if context.due():
                    zoom = 1.0 if gauge is None else gauge.zoom
                    at = {"round": i + 1, "zoom": zoom, "motion": moved}
                    context.save({"found": found, "best": best.state(), **at})
            if gauge is not None and np.isfinite(best.cost):
                found, target = best.found, _collect(stack, best.found, image_features)
        self._template: torch.Tensor = target.mean
        return found

    def _align_new(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> torch.Tensor:
        """Rounds towards the mean that `fit` ended with."""
        found, template = start_poses(stack), self._template
        with torch.no_grad():
            context.map_images(lambda part: (self._place(stack, part, template, image_features),), chunks(stack), found)
        return found

    def _place(
        self, stack: Stack, part: np.ndarray, template: torch.Tensor, image_features: ImageFeatures
    ) -> torch.Tensor:
        """Poses (B, 3, 3) of some images, each of which ends by its own motion.

        In float64: how sums are rounded depends on the number of images, and no image may depend on the others.
        """
        poses, moving = torch.as_tensor(stack.start[part]), torch.arange(len(part))
        for i in range(self.rounds):
            before = poses[moving]
            poses[moving], _ = self._step(stack, part[moving.numpy()], before, template, image_features, i)
            moving = moving[corner_motion(before, poses[moving], stack.frame) >= self.tolerance]
            if not len(moving):
                break
        return poses.float()

    def _round(
        self, stack: Stack, found: torch.Tensor, template: torch.Tensor, image_features: ImageFeatures, i: int
    ) -> tuple[torch.Tensor, int, float]:
        """Round i over the set: (new stack_from_frame, images on which it failed, mean correlation of the rest)."""
        stepped, correlations = found.clone(), []
        for part in chunks(stack):
            stepped[part], reached = self._step(stack, part, found[part], template, image_features, i)
            correlations += reached
        mean = float(np.mean(correlations)) if correlations else float("nan")
        return stepped, len(stack) - len(correlations), mean

    def _step(
        self,
        stack: Stack,
        part: np.ndarray,
        found: torch.Tensor,
        template: torch.Tensor,
        image_features: ImageFeatures,
        i: int,
    ) -> tuple[torch.Tensor, list[float]]:
        """One ECC call for each of some images at `found` (B, 3, 3), as in round i.

        (new stack_from_frame, correlations of those images on which it did not fail), as precise as `found`.
        """
        motion, width = self._round_motion(i), self.smoothing[min(i, len(self.smoothing) - 1)]
        canvas, target = _Canvas(stack.frame), template.mean(0).numpy()
        images, masks = canvas.show(stack, part, found, image_features)
        steps, correlations = torch.eye(3).to(found).repeat(len(part), 1, 1), []
        for k in range(len(part)):
            result = self._call(target, images[k], None if masks is None else masks[k], canvas, width, motion)
            if result is not None:
                steps[k] = torch.as_tensor(result[0])
                correlations.append(result[1])
        return self._compose(found, steps, motion, stack), correlations

    def _round_motion(self, i: int) -> str:
        """The motion of round i: a smaller one while images lie far from their mean."""
        if i < self.warm_up and self.motion in ("affine", "homography"):
            return "affine" if i else "rigid"
        return self.motion

    def _call(
        self, template: np.ndarray, image: np.ndarray, mask: np.ndarray | None, canvas: _Canvas, width: int, motion: str
    ) -> tuple[np.ndarray, float] | None:
        """The step (3, 3) in frame pixels and its correlation, or None where OpenCV gives up."""
        cv2 = require("cv2", "faces")
        if image.max() == image.min():
            return None
        kinds = {"translation": 0, "rigid": 1, "affine": 2, "homography": 3}  # cv2.MOTION_*
        rows = 3 if motion == "homography" else 2
        criteria = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, self.iterations, self.epsilon)
        try:
            correlation, found = cv2.findTransformECC(
                template, image, canvas.from_frame[:rows].copy(), kinds[motion], criteria, mask, width
            )
        except cv2.error:  # did not converge, or the images do not correlate: reported as a failure of this image
            return None
        step = canvas.frame_from @ np.vstack([found, [0, 0, 1]])[:3].astype(np.float64)
        if not np.isfinite(step).all() or (self.guards and not _sane(step, canvas.frame)):
            return None
        return step, float(correlation)

    def _compose(self, found: torch.Tensor, steps: torch.Tensor, motion: str, stack: Stack) -> torch.Tensor:
        if not self.guards:
            return found @ steps
        delta = parameters_from_matrix(to_normalised(steps.double(), stack.frame), motion).to(found)
        return GaussNewton(motion, stack.frame, max_step=self.max_step).compose(found, -delta.nan_to_num(0.0))

    def _state(self) -> dict[str, torch.Tensor]:
        return {"template": self._template}

    def _restore(self, state: Mapping[str, torch.Tensor]) -> None:
        self._template = state["template"]


class _Canvas:
    """The frame with a margin, into which each image is sampled once per round; ECC then starts at the identity.

    OpenCV's own matrices cannot hold a general start (its rigid one drops the scale), a step in the frame can.
    """

    def __init__(self, frame: tuple[int, int]) -> None:
        self.frame = frame
        margin = int(np.ceil(_MARGIN * max(frame)))
        self.size = (frame[0] + 2 * margin, frame[1] + 2 * margin)
        self.from_frame = np.array([[1, 0, margin], [0, 1, margin], [0, 0, 1]], dtype=np.float32)
        self.frame_from = np.linalg.inv(self.from_frame.astype(np.float64))

    def show(
        self, stack: Stack, part: np.ndarray, found: torch.Tensor, image_features: ImageFeatures
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """(B, H, W) float32, and uint8 masks where part of the canvas has no image under it.

        Sampled as precisely as `found` is given.
        """
        stack_from_canvas = found @ torch.as_tensor(self.frame_from).to(found)
        images, masks = stack.images(part).mean(1, keepdim=True).to(found), stack.masks(part)
        shown = warp(images, stack_from_canvas, self.size, mode="bicubic")[:, 0].float().numpy()
        masks = None if masks is None else masks.to(found)
        seen = image_features.covered(stack_from_canvas, stack.size, self.size, masks)
        return shown, None if seen is None else (seen[:, 0] > _WHOLLY_SEEN).numpy().astype(np.uint8)


def _sane(step: np.ndarray, frame: tuple[int, int]) -> bool:
    """Whether a step (3, 3) keeps the frame in front of the horizon, unmirrored and of visible size."""
    centred = to_normalised(step, frame)
    if not np.isfinite(centred).all() or abs(centred[2, 2]) < 1e-6:
        return False
    centred = centred / centred[2, 2]
    return bool(np.abs(centred[2, :2]).sum() < _STEEPEST and np.linalg.det(centred) > _SMALLEST)


@dataclass
class _Target:
    """What the images show together."""

    mean: torch.Tensor  # (C, h, w)
    cost: float  # mean squared distance of the images to it
    ink: float  # of all images together, in frame pixels


def _collect(stack: Stack, found: torch.Tensor, image_features: ImageFeatures) -> _Target:
    """The mean of the images as they are now, and what goes with it, in one pass."""
    total: Any = 0.0
    squares: Any = 0.0
    weight: Any = 0.0
    ink = 0.0
    for part in chunks(stack):
        shown = warp(stack.images(part), found[part], stack.frame)
        seen = image_features.covered(found[part], stack.size, stack.frame, stack.masks(part))
        seen = torch.ones_like(shown[:, :1]) if seen is None else seen
        total, squares = total + (shown * seen).sum(0).double(), squares + (shown.square() * seen).sum(0).double()
        weight = weight + seen.sum(0).double()
        ink += float(shown.sum())
    weight = weight.clamp(min=1e-3)
    mean = total / weight
    cost = float((squares - weight * mean.square()).sum() / (weight.sum() * len(mean)))
    return _Target(mean.float(), cost, ink)
