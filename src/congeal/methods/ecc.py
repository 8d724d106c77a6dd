"""Alignment to the running mean by the enhanced correlation coefficient, with OpenCV's `findTransformECC`.

Evangelidis and Psarakis, "Parametric image alignment using enhanced correlation coefficient maximization", 2008: the
pairwise step. Rounds over the set with a mean that sharpens make it a congealing method: the floor for all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from congeal.errors import CongealError, require
from congeal.geometry import coverage, parameters_from_matrix, to_normalised, warp
from congeal.images import Stack
from congeal.methods.base import Method
from congeal.methods.job import Job
from congeal.solvers.best import Best
from congeal.solvers.gauge import Gauge, chunks, corner_motion, set_kind, total_ink
from congeal.solvers.gaussnewton import GaussNewton

_MARGIN = 0.25  # of the longer side: what an image shows beyond the frame, for a step to reach into


@dataclass(kw_only=True, eq=False)
class ECC(Method):
    """ECC to the running mean. Maximises each image's correlation with the mean of all; gain and offset do not matter.

    Needs the extra `faces` (OpenCV). Channels are averaged. An image on which ECC gives up keeps its transform.
    """

    rounds: int = 8
    warm_up: int = 3
    """Rounds at the beginning that an affine motion or a homography spends as a smaller one, the first as a rigid and a
    homography's others as an affine: from a poor start ECC loses single images."""
    iterations: int = 50
    """Steps of one call, at most."""
    epsilon: float = 1e-4
    """A call ends when the correlation grows by less than this."""
    smoothing: tuple[int, ...] = (5, 5, 5, 3)
    """Width in pixels (odd) of OpenCV's Gaussian filter in each round; the last one holds for the rest."""
    max_step: float = 3.0
    """No corner moves farther than this many pixels in one round."""
    tolerance: float = 0.01
    """Stop when the mean corner motion of a round falls below this many pixels."""

    motion: str = "homography"
    name: ClassVar[str] = "ecc"
    motions: ClassVar[tuple[str, ...]] = ("translation", "rigid", "affine", "homography")

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if not self.smoothing or any(width < 1 or width % 2 == 0 for width in self.smoothing):
            raise CongealError(f"smoothing {self.smoothing} needs odd widths of 1 or more")
        require("cv2", "faces")

    def _align(self, stack: Stack, job: Job) -> torch.Tensor:
        start = torch.as_tensor(stack.start.copy()).float()
        state = job.load() or {"found": start, "round": 0, "zoom": 1.0, "best": None, "motion": float("inf")}
        found, moved = state["found"], float(state["motion"])
        kind = set_kind(stack)
        ink = total_ink(stack) if kind == "object" else None
        gauge = Gauge(start, stack.frame, ink, float(state["zoom"])) if self.guards else None
        best = Best(found, state["best"])
        with torch.no_grad():
            look = _look(stack, found, kind)
            for i in range(int(state["round"]), self.rounds):
                if moved < self.tolerance:
                    break
                stepped, failures, correlation = self._round(stack, found, look, kind, i)
                if gauge is not None:
                    stepped = gauge.fix(stepped, look["ink"])
                moved = float(corner_motion(found, stepped, stack.frame).clamp(max=1e3).mean())
                found, look = stepped, _look(stack, stepped, kind)
                if i + 1 >= len(self.smoothing):  # before, the images still move by whole pixels: nothing to keep
                    best.offer(found, look["cost"], look["ink"] / ink if ink else None)
                values = {"cost": look["cost"], "motion": moved, "correlation": correlation, "failures": failures}
                job.step(i + 1, self.rounds, **values)
                if job.due():
                    zoom = 1.0 if gauge is None else gauge.zoom
                    at = {"round": i + 1, "zoom": zoom, "motion": moved}
                    job.save({"found": found, "best": best.state(), **at})
            if gauge is not None and np.isfinite(best.cost):
                found, look = best.found, _look(stack, best.found, kind)
        self._template: torch.Tensor | None = look["mean"]
        return found

    def _align_new(self, stack: Stack) -> torch.Tensor:
        """Rounds towards the mean that `fit` ended with."""
        found = torch.as_tensor(stack.start.copy()).float()
        kind = set_kind(stack)
        with torch.no_grad():
            for i in range(self.rounds):
                before = found
                found, _, _ = self._round(stack, found, {"mean": self._template}, kind, i)
                if float(corner_motion(before, found, stack.frame).clamp(max=1e3).mean()) < self.tolerance:
                    break
        return found

    def _round(
        self, stack: Stack, found: torch.Tensor, look: dict[str, Any], kind: str, i: int
    ) -> tuple[torch.Tensor, int, float]:
        """One ECC call per image: (new stack_from_frame, images on which it failed, mean correlation of the rest)."""
        template = look["mean"].mean(0).numpy()
        width = self.smoothing[min(i, len(self.smoothing) - 1)]
        motion = self._round_motion(i)
        newton = GaussNewton(motion, stack.frame, max_step=self.max_step if self.guards else float("inf"))
        canvas = _Canvas(stack.frame)
        stepped, correlations = found.clone(), []
        for part in chunks(stack):
            images, masks = canvas.show(stack, part, found[part], kind)
            steps = torch.eye(3).repeat(len(part), 1, 1)
            for k in range(len(part)):
                result = self._call(template, images[k], None if masks is None else masks[k], canvas, width, motion)
                if result is not None:
                    steps[k] = torch.as_tensor(result[0])
                    correlations.append(result[1])
            stepped[part] = self._compose(newton, found[part], steps, stack)
        mean = float(np.mean(correlations)) if correlations else float("nan")
        return stepped, len(stack) - len(correlations), mean

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

    def _compose(self, newton: GaussNewton, found: torch.Tensor, steps: torch.Tensor, stack: Stack) -> torch.Tensor:
        if not self.guards:
            return found @ steps
        delta = parameters_from_matrix(to_normalised(steps.double(), stack.frame), newton.motion).float()
        return newton.compose(found, -delta.nan_to_num(0.0))

    def _state(self) -> dict[str, torch.Tensor]:
        if self._template is None:
            raise CongealError("this ECC is not fitted yet: call fit first")
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
        self, stack: Stack, part: np.ndarray, found: torch.Tensor, kind: str
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """(B, H, W) float32, and uint8 masks where part of the canvas has no image under it."""
        stack_from_canvas = found @ torch.as_tensor(self.frame_from).float()
        images, masks = stack.images(part).mean(1, keepdim=True), stack.masks(part)
        shown = warp(images, stack_from_canvas, self.size, mode="bicubic")[:, 0].numpy()
        if masks is not None:
            seen = warp(masks, stack_from_canvas, self.size)
        elif kind == "photo":
            seen = coverage(stack_from_canvas, stack.size, self.size)
        else:
            return shown, None
        return shown, (seen[:, 0] > 0.99).numpy().astype(np.uint8)


def _sane(step: np.ndarray, frame: tuple[int, int]) -> bool:
    """Whether a step (3, 3) keeps the frame in front of the horizon, unmirrored and of visible size."""
    centred = to_normalised(step, frame)
    if not np.isfinite(centred).all() or abs(centred[2, 2]) < 1e-6:
        return False
    centred = centred / centred[2, 2]
    return bool(np.abs(centred[2, :2]).sum() < 0.9 and np.linalg.det(centred) > 0.05)


def _look(stack: Stack, found: torch.Tensor, kind: str) -> dict[str, Any]:
    """The mean (C, h, w) of the images as they are now, their mean squared distance to it, and their ink."""
    total: Any = 0.0
    squares: Any = 0.0
    weight: Any = 0.0
    ink = 0.0
    for part in chunks(stack):
        masks = stack.masks(part)
        shown = warp(stack.images(part), found[part], stack.frame)
        seen = torch.ones_like(shown[:, :1])
        if masks is not None:
            seen = warp(masks, found[part], stack.frame)
        elif kind == "photo":
            seen = coverage(found[part], stack.size, stack.frame)
        total, squares = total + (shown * seen).sum(0).double(), squares + (shown.square() * seen).sum(0).double()
        weight = weight + seen.sum(0).double()
        ink += float(shown.sum())
    weight = weight.clamp(min=1e-3)
    mean = total / weight
    cost = float((squares - weight * mean.square()).sum() / (weight.sum() * len(mean)))
    return {"mean": mean.float(), "cost": cost, "ink": ink}
