"""Least-squares congealing (Cox, Sridharan, Lucey and Cohn 2008, 2009): align every image to a reference.

The reference is the running mean of the set, one image, or the whole stack; each image takes inverse-compositional
Gauss-Newton steps towards it, from blurred to sharp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch

from congeal.execution import key_of
from congeal.execution.threads import single_torch_thread
from congeal.filters import frame_unit, gaussian_blur
from congeal.geometry import warp
from congeal.images import Stack
from congeal.methods.checks import Positive, Reference
from congeal.methods.fit_context import FitContext
from congeal.methods.iterative import GaussNewtonMethod, Iterations, double_images, step_until_still, why_still
from congeal.registration.batching import chunks, reference_image, stack_values, start_poses
from congeal.registration.features import ImageFeatures
from congeal.registration.gauge import Gauge
from congeal.registration.gauss_newton import GaussNewton, Linearisation, steepest_descent
from congeal.registration.joint_gauss_newton import JointGaussNewton, Sums

_OF_THE_SET = ("auto", "mean", "stack")  # references that the set itself makes, anew with every step


@dataclass(kw_only=True, eq=False)
class LSC(GaussNewtonMethod):
    """Least-squares congealing: Gauss-Newton steps towards a reference. Needs roughly aligned input.

    Minimises Σ_i ‖I_i∘p_i − T‖². `fit` streams over the set once per iteration, so memory does not grow with it. New
    images take the same steps towards the reference that the fit ended with.

    Parameters
    ----------
    reference : str, int, path or array
        T: the mean of the aligned images ("auto" or "mean"), every other image in turn ("stack"), a typical image of
        the set ("medoid"), or one image: a position in the set, a file, or an array of the frame's size.
    robust : float, optional
        Huber threshold on intensities in [0, 1]: larger residuals count linearly. None: plain squares.

    Attributes
    ----------
    history_ : list of dict
        After every step: cost (mean squared residual), motion (mean corner motion in pixels), blur.
    transforms_, quality_, stack_from_frame_, layout_
        As for every method, see `Method`.
    """

    reference: Reference = "auto"
    robust: Positive | None = None

    name: ClassVar[str] = "lsc"

    def _align(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> torch.Tensor:
        fixed = None if self._is_of_the_set() else reference_image(self.reference, stack, self.random_state_)
        with torch.no_grad(), single_torch_thread():
            drifts = fixed is None  # a fixed reference holds the common pose by itself
            run = Iterations(self, stack, image_features, context, self.iterations, gauge=drifts, target=None)
            for level in run.levels():
                solver = self._pass(stack, image_features, self.blurs[level], fixed, run.gauge)
                target = run.own["target"] if run.resumed else None
                solver.target = solver.collect(run.poses) if target is None else target
                for _ in run.steps():
                    run.poses, moved, cost = solver.step(run.poses)
                    values = {"cost": cost, "motion": moved, "blur": self.blurs[level]}
                    run.end_step(values, why_still(moved, self.tolerance), target=solver.target)
            last = self._pass(stack, image_features, 0.0).collect(run.poses)["mean"] if fixed is None else fixed
        self._template: torch.Tensor = last
        return run.poses

    def _is_of_the_set(self) -> bool:
        return isinstance(self.reference, str) and self.reference in _OF_THE_SET

    def _pass(
        self,
        stack: Stack,
        image_features: ImageFeatures,
        sigma: float,
        fixed: torch.Tensor | None = None,
        gauge: Gauge | None = None,
    ) -> JointGaussNewton:
        """A pass over the set; sigma in pixels of a 28-pixel frame."""
        pairs = self._is_of_the_set() and self.reference == "stack" and fixed is None
        sigma *= frame_unit(stack.frame)
        how: dict[str, Any] = {"fixed": fixed, "gauge": gauge, "distributed": not pairs}
        passes = PairGaussNewton if pairs else JointGaussNewton
        return passes(stack, self._newton(stack, self.robust), image_features, sigma, **how)

    def _align_new(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> torch.Tensor:
        """Steps towards the template that `fit` ended with."""
        found, newton, unit = start_poses(stack), self._newton(stack, self.robust), frame_unit(stack.frame)
        with torch.no_grad(), single_torch_thread() as threads:
            template = self._template.double()[None]
            levels = [
                (sigma * unit, newton.linearise(gaussian_blur(template, sigma * unit)[0])) for sigma in self.blurs
            ]
            place = _PlacementTask(stack, image_features, newton, levels, self.iterations, self.tolerance)
            inputs = ("lsc", template, self._plain_params(), stack.kept, stack.start, image_features.kind)
            how: dict[str, Any] = {"key": lambda: key_of(*inputs), "values": stack_values(stack), "threads": threads}
            context.map_images(place, chunks(stack), found, **how)
        return found

    def _state(self) -> dict[str, torch.Tensor]:
        return {"template": self._template}

    def _restore(self, state: Mapping[str, torch.Tensor]) -> None:
        self._template = state["template"]


class PairGaussNewton(JointGaussNewton):
    """Every other image in turn is the reference. The sums are larger than the images, so that no worker adds them."""

    def sums_of(self, part: np.ndarray, shown: torch.Tensor, weights: torch.Tensor | None) -> Sums:
        """With the sums over all images of J, JᵀI and JᵀJ."""
        jacobian = steepest_descent(shown, self.newton.motion)
        sums = super().sums_of(part, shown, weights)
        sums["jacobians"] = jacobian.sum(0)
        sums["offset"] = (jacobian * shown.flatten(1)[..., None]).sum((0, 1))
        sums["hessian"] = torch.einsum("bmk,bml->kl", jacobian, jacobian)
        return sums

    def delta(
        self,
        shown: torch.Tensor,
        line: Linearisation,
        weights: torch.Tensor | None,
        prior: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> torch.Tensor:
        """Towards all the others at once: H = Σ_{i≠j} J_iᵀJ_i, b = Σ_{i≠j} J_iᵀ(I_j − I_i)."""
        jacobian = steepest_descent(shown, self.newton.motion)
        own = jacobian.transpose(1, 2) @ jacobian
        slope = shown.flatten(1) @ self.target["jacobians"] - self.target["offset"]
        solver = self.newton.damped_inverse(self.target["hessian"] - own)
        return (solver @ slope[..., None])[..., 0]


@dataclass
class _PlacementTask:
    """Steps of new images towards a template, in this process or another."""

    stack: Stack
    image_features: ImageFeatures
    newton: GaussNewton
    levels: list[tuple[float, Linearisation]]
    iterations: tuple[int, ...]
    tolerance: float

    def __call__(self, part: np.ndarray) -> tuple[torch.Tensor]:
        """Poses (B, 3, 3) of some images."""
        poses, images, masks = double_images(self.stack, part)
        for (sigma, line), iterations in zip(self.levels, self.iterations, strict=True):
            step, soft = partial(self._step, line), gaussian_blur(images, sigma)
            step_until_still(poses, step, iterations, self.tolerance, self.stack.frame, soft, masks)
        return (poses.float(),)

    def _step(
        self, line: Linearisation, poses: torch.Tensor, _: int, soft: torch.Tensor, masks: torch.Tensor | None
    ) -> torch.Tensor:
        weights = self.image_features.weights(poses, self.stack.size, self.stack.frame, masks)
        return self.newton.compose(poses, self.newton.delta(warp(soft, poses, self.stack.frame), line, weights))
