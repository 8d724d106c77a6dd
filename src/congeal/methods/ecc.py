"""Alignment to the running mean by the enhanced correlation coefficient, with OpenCV's `findTransformECC`.

Evangelidis and Psarakis, "Parametric image alignment using enhanced correlation coefficient maximization", 2008: the
pairwise step. Rounds over the set with a mean that sharpens make it a congealing method: the floor for all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch

from congeal.errors import require
from congeal.geometry import parameters_from_matrix, to_normalised, warp
from congeal.images import Stack
from congeal.methods.base import Method
from congeal.methods.checks import Count, CountOrZero, NotNegative, Positive, PositiveOrEndless, Range, Some
from congeal.methods.fit_context import FitContext
from congeal.methods.iterative import Iterations, canvas_of, place_each, step_until_still, why_still
from congeal.registration.batching import chunks
from congeal.registration.features import ImageFeatures
from congeal.registration.gauge import mean_motion
from congeal.registration.gauss_newton import GaussNewton

MIN_CANVAS_COVERAGE = 0.99
"""A canvas pixel counts if this much of it has image under it: OpenCV's masks are yes or no. Chosen by judgement: 1
less rounding."""
MAX_PERSPECTIVE = 0.9
"""Sum of the perspective entries of a step. From 1 on a corner of the frame lies on the horizon; less by judgement."""
MIN_DETERMINANT = 0.05
"""Of a step. Chosen by judgement: what shrinks an image to less than a twentieth of its area has lost it."""


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
        From a poor start ECC otherwise loses single images.
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

    Attributes
    ----------
    history_ : list of dict
        After every round: cost (mean squared distance to the mean), motion (mean corner motion in pixels), correlation
        (mean over images), failures (images on which OpenCV gave up).
    transforms_, quality_, stack_from_frame_, layout_
        As for every method, see `Method`.
    """

    rounds: Count = 8
    warm_up: CountOrZero = 3
    iterations: Count = 50
    epsilon: Positive = 1e-4
    smoothing: Some[Annotated[int, Range(least=1, every=2)]] = (5, 5, 5, 3)
    max_step: PositiveOrEndless = 3.0
    tolerance: NotNegative = 0.01

    motion: str = "homography"
    name: ClassVar[str] = "ecc"
    motions: ClassVar[tuple[str, ...]] = ("translation", "rigid", "affine", "homography")

    def _check_parameters(self) -> None:
        super()._check_parameters()
        require("cv2", "faces")

    @torch.no_grad()
    def _align(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> torch.Tensor:
        rounds = _Rounds(self, stack, image_features)
        run = Iterations(self, stack, image_features, context, (self.rounds,))
        mean, _, ink = rounds.collect(run.poses)
        for _ in run.levels():
            for i in run.steps():
                stepped, correlations = run.poses.clone(), []
                for part in chunks(stack):
                    stepped[part], reached = rounds.step(part, run.poses[part], mean, i)
                    correlations += reached
                stepped = run.fix_gauge(stepped, ink)
                moved = mean_motion(run.poses, stepped, stack.frame)
                run.poses, (mean, cost, ink) = stepped, rounds.collect(stepped)
                if i + 1 >= len(self.smoothing):  # before, the images still move by whole pixels
                    run.offer(stepped, cost, ink)
                values = {"cost": cost, "motion": moved, "failures": len(stack) - len(correlations)}
                values["correlation"] = float(np.mean(correlations)) if correlations else float("nan")
                run.end_step(values, why_still(moved, self.tolerance))
        found = run.result()
        self._template: torch.Tensor = rounds.collect(found)[0]
        return found

    def _align_new(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> torch.Tensor:
        """Rounds towards the mean that `fit` ended with, in float64: no image may depend on the others."""
        rounds = _Rounds(self, stack, image_features)

        def place(part: np.ndarray) -> torch.Tensor:
            def step(poses: torch.Tensor, i: int, rows: torch.Tensor) -> torch.Tensor:
                return rounds.step(rows.numpy(), poses, self._template, i)[0]

            poses = torch.as_tensor(stack.start[part])
            step_until_still(poses, step, self.rounds, self.tolerance, stack.frame, torch.from_numpy(part))
            return poses.float()

        return place_each(stack, context, place)

    def _state(self) -> dict[str, torch.Tensor]:
        return {"template": self._template}

    def _restore(self, state: Mapping[str, torch.Tensor]) -> None:
        self._template = state["template"]


class _Rounds:
    """Rounds of ECC over images of a stack.

    Each image is sampled once per round into the frame with a margin, and ECC starts at the identity: OpenCV's own
    matrices cannot hold a general start (its rigid one drops the scale), a step in the frame can.
    """

    def __init__(self, method: ECC, stack: Stack, image_features: ImageFeatures) -> None:
        self.method, self.stack, self.image_features = method, stack, image_features
        self.size, self.frame_from_canvas = canvas_of(stack.frame)
        self.canvas_from_frame = np.linalg.inv(self.frame_from_canvas).astype(np.float32)

    def step(
        self, part: np.ndarray, found: torch.Tensor, mean: torch.Tensor, i: int
    ) -> tuple[torch.Tensor, list[float]]:
        """One ECC call for each of some images at `found` (B, 3, 3), as in round i.

        (new stack_from_frame, correlations of those images on which it did not fail), as precise as `found`.
        """
        method, stack, motion = self.method, self.stack, self.method.motion
        if i < method.warm_up and motion in ("affine", "homography"):  # while images lie far from their mean
            motion = "affine" if i else "rigid"
        images, masks = self._show(part, found)
        steps, correlations = torch.eye(3).to(found).repeat(len(part), 1, 1), []
        for k in range(len(part)):
            result = self._call(mean.mean(0).numpy(), images[k], None if masks is None else masks[k], motion, i)
            if result is not None:
                steps[k] = torch.as_tensor(result[0])
                correlations.append(result[1])
        if not method.guards:
            return found @ steps, correlations
        delta = parameters_from_matrix(to_normalised(steps.double(), stack.frame), motion).to(found)
        newton = GaussNewton(motion, stack.frame, max_step=method.max_step)
        return newton.compose(found, -delta.nan_to_num(0.0)), correlations

    def _show(self, part: np.ndarray, found: torch.Tensor) -> tuple[np.ndarray, np.ndarray | None]:
        """(B, H, W) float32, and uint8 masks where part of the canvas has no image under it."""
        stack = self.stack
        stack_from_canvas = found @ torch.as_tensor(self.frame_from_canvas).to(found)
        images, masks = stack.images(part).mean(1, keepdim=True).to(found), stack.masks(part)
        shown = warp(images, stack_from_canvas, self.size, mode="bicubic")[:, 0].float().numpy()
        masks = None if masks is None else masks.to(found)
        seen = self.image_features.covered(stack_from_canvas, stack.size, self.size, masks)
        return shown, None if seen is None else (seen[:, 0] > MIN_CANVAS_COVERAGE).numpy().astype(np.uint8)

    def _call(
        self, template: np.ndarray, image: np.ndarray, mask: np.ndarray | None, motion: str, i: int
    ) -> tuple[np.ndarray, float] | None:
        """The step (3, 3) in frame pixels and its correlation, or None where OpenCV gives up."""
        cv2, method = require("cv2", "faces"), self.method
        if image.max() == image.min():
            return None
        kinds = {"translation": 0, "rigid": 1, "affine": 2, "homography": 3}  # cv2.MOTION_*
        first = self.canvas_from_frame[: 3 if motion == "homography" else 2].copy()
        criteria = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, method.iterations, method.epsilon)
        width = method.smoothing[min(i, len(method.smoothing) - 1)]
        try:
            correlation, found = cv2.findTransformECC(template, image, first, kinds[motion], criteria, mask, width)
        except cv2.error:  # did not converge, or the images do not correlate: reported as a failure of this image
            return None
        step = self.frame_from_canvas @ np.vstack([found, [0, 0, 1]])[:3].astype(np.float64)
        if not np.isfinite(step).all():
            return None
        if method.guards:  # a step keeps the frame in front of the horizon, unmirrored and of visible size
            centred = to_normalised(step, self.stack.frame)
            if not np.isfinite(centred).all() or abs(centred[2, 2]) < 1e-6:
                return None
            centred = centred / centred[2, 2]
            if np.abs(centred[2, :2]).sum() >= MAX_PERSPECTIVE or np.linalg.det(centred) <= MIN_DETERMINANT:
                return None
        return step, float(correlation)

    def collect(self, found: torch.Tensor) -> tuple[torch.Tensor, float, float]:
        """The mean (C, h, w) of the images as they are now, their mean squared distance to it, and their ink."""
        stack, total = self.stack, torch.zeros(())
        squares, weight, ink = total, total, 0.0
        for part in chunks(stack):
            shown = warp(stack.images(part), found[part], stack.frame)
            seen = self.image_features.covered(found[part], stack.size, stack.frame, stack.masks(part))
            seen = torch.ones_like(shown[:, :1]) if seen is None else seen
            total, squares = total + (shown * seen).sum(0).double(), squares + (shown.square() * seen).sum(0).double()
            weight = weight + seen.sum(0).double()
            ink += float(shown.sum())
        weight = weight.clamp(min=1e-3)
        mean = total / weight
        cost = float((squares - weight * mean.square()).sum() / (weight.sum() * len(mean)))
        return mean.float(), cost, ink
