"""Least-squares congealing (Cox, Sridharan, Lucey and Cohn 2008, 2009): align every image to a reference.

The reference is the running mean of the set, one image, or the whole stack; each image takes inverse-compositional
Gauss-Newton steps towards it, from blurred to sharp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from congeal.errors import CongealError
from congeal.execution import key_of
from congeal.execution.threads import single_torch_thread
from congeal.filters import frame_unit, gaussian_blur
from congeal.geometry import warp
from congeal.images import Stack
from congeal.methods.base import Method
from congeal.methods.checks import CountOrZero, NotNegative, Positive, PositiveOrEndless, Reference, Some
from congeal.methods.fit_context import FitContext
from congeal.registration.batching import chunks, stack_values, start_poses
from congeal.registration.features import ImageFeatures
from congeal.registration.gauge import Gauge, corner_motion
from congeal.registration.gauss_newton import GaussNewton, Linearisation
from congeal.registration.joint_gauss_newton import JointGaussNewton
from congeal.registration.reference import reference_image

_OF_THE_SET = ("auto", "mean", "stack")  # references that the set itself makes, anew with every step


@dataclass(kw_only=True, eq=False)
class LSC(Method):
    """Least-squares congealing: Gauss-Newton steps towards a reference. Needs roughly aligned input.

    Minimises Σ_i ‖I_i∘p_i − T‖². `fit` streams over the set once per iteration, so memory does not grow with it. New
    images take the same steps towards the reference that the fit ended with.

    Parameters
    ----------
    reference : str, int, path or array
        T: the mean of the aligned images ("auto" or "mean"), every other image in turn ("stack"), a typical image of
        the set ("medoid"), or one image: a position in the set, a file, or an array of the frame's size.
    blurs : tuple of float
        Standard deviation of the Gaussian blur at each level, in pixels of a 28-pixel frame.
    iterations : tuple of int
        Steps at each level, at most.
    robust : float, optional
        Huber threshold on intensities in [0, 1]: larger residuals count linearly. None: plain squares.
    damping : float
        Levenberg damping, relative to the diagonal of the Hessian.
    max_step : float
        With guards: no corner moves farther than this many pixels in one step.
    tolerance : float
        A level ends when the mean corner motion of a step falls below this many pixels. A new image ends a level by its
        own motion.
    motion, size, align_on, kind, guards, random_state
        As for every method, see `Method`.

    Attributes
    ----------
    transforms_ : Transforms
        aligned_from_source of every image of the fit, in source pixels.
    quality_ : Quality
        Numbers and verdict of the fit.
    history_ : list of dict
        After every step: cost (mean squared residual), motion (mean corner motion in pixels), blur.
    stack_from_frame_ : (n, 3, 3) array
        The poses between the pictures the method worked on.
    layout_ : Layout
        Sizes, channels, value ranges and kind of those pictures.
    """

    reference: Reference = "auto"
    """"auto" or "mean", "stack", "medoid", a position, a file or an array."""
    blurs: Some[NotNegative] = (2.0, 1.0, 0.0)
    """Gaussian blur of each level, in pixels of a 28-pixel frame."""
    iterations: Some[CountOrZero] = (10, 10, 30)
    """Steps at each level, at most."""
    robust: Positive | None = None
    """Huber threshold on intensities in [0, 1]: residuals beyond it count linearly. None: plain squares."""
    damping: NotNegative = 1e-2
    """Levenberg damping, relative to the diagonal of the Hessian."""
    max_step: PositiveOrEndless = 3.0
    """With guards: no corner moves farther than this many pixels in one step."""
    tolerance: NotNegative = 0.01
    """A level ends when the mean corner motion of a step falls below this many pixels."""

    name: ClassVar[str] = "lsc"

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if len(self.blurs) != len(self.iterations):
            raise CongealError(f"blurs {self.blurs} and iterations {self.iterations} need the same length")

    def _align(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> torch.Tensor:
        fixed = None if self._is_of_the_set() else reference_image(self.reference, stack, self.random_state_)
        start = start_poses(stack)
        state = context.load() or {"found": start, "level": 0, "iteration": 0, "target": None, "zoom": 1.0}
        found, total = state["found"], sum(self.iterations)
        with torch.no_grad(), single_torch_thread():
            gauge = None
            if self.guards and fixed is None:  # a fixed reference holds the common pose by itself
                zoom = float(state["zoom"])
                gauge = Gauge.of_stack(stack, self.motion, keeps_intensity=image_features.keeps_intensity, zoom=zoom)
            for level in range(int(state["level"]), len(self.blurs)):
                solver = self._pass(stack, image_features, self.blurs[level], fixed, gauge)
                resumed = level == state["level"] and state["target"] is not None
                solver.target = state["target"] if resumed else solver.collect(found)
                first = int(state["iteration"]) if level == state["level"] else 0
                for iteration in range(first, self.iterations[level]):
                    found, moved, cost = solver.step(found)
                    done = sum(self.iterations[:level]) + iteration + 1
                    context.step(done, total, cost=cost, motion=moved, blur=self.blurs[level])
                    converged = moved < self.tolerance
                    if context.due():
                        at = {"found": found, "zoom": 1.0 if gauge is None else gauge.zoom}
                        if converged:  # a run stopped right here has no step left to take on this level
                            context.save({**at, "level": level + 1, "iteration": 0, "target": None})
                        else:
                            context.save({**at, "level": level, "iteration": iteration + 1, "target": solver.target})
                    if converged:
                        context.ends_early(f"a step moved the images by less than {self.tolerance:g} px")
                        break
            last = self._pass(stack, image_features, 0.0).collect(found)["mean"] if fixed is None else fixed
        self._template: torch.Tensor = last
        return found

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
        how: dict[str, Any] = {"fixed": fixed, "gauge": gauge, "pairs": pairs, "distributed": not pairs}
        return JointGaussNewton(stack, self._newton(stack), image_features, sigma, **how)

    def _newton(self, stack: Stack) -> GaussNewton:
        max_step = self.max_step if self.guards else float("inf")
        return GaussNewton(self.motion, stack.frame, self.damping, max_step, self.robust)

    def _align_new(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> torch.Tensor:
        """Steps towards the template that `fit` ended with."""
        found, newton, unit = start_poses(stack), self._newton(stack), frame_unit(stack.frame)
        with torch.no_grad(), single_torch_thread() as threads:
            template = self._template.double()[None]
            levels = [
                (sigma * unit, newton.linearise(gaussian_blur(template, sigma * unit)[0])) for sigma in self.blurs
            ]
            placing = _Placing(stack, image_features, newton, levels, self.iterations, self.tolerance)
            inputs = ("lsc", template, self._plain_params(), stack.kept, stack.start, image_features.kind)
            how: dict[str, Any] = {"key": lambda: key_of(*inputs), "values": stack_values(stack), "threads": threads}
            context.map_images(placing, chunks(stack), found, **how)
        return found

    def _state(self) -> dict[str, torch.Tensor]:
        return {"template": self._template}

    def _restore(self, state: Mapping[str, torch.Tensor]) -> None:
        self._template = state["template"]


@dataclass
class _Placing:
    """Steps of new images towards a template, in this process or another."""

    stack: Stack
    image_features: ImageFeatures
    newton: GaussNewton
    levels: list[tuple[float, Linearisation]]
    iterations: tuple[int, ...]
    tolerance: float

    def __call__(self, part: np.ndarray) -> tuple[torch.Tensor]:
        """Poses (B, 3, 3) of some images, each of which ends a level by its own motion.

        In float64: how sums are rounded depends on the number of images, and no image may depend on the others.
        """
        stack, image_features, newton, levels = self.stack, self.image_features, self.newton, self.levels
        poses, images, masks = torch.as_tensor(stack.start[part]), stack.images(part).double(), stack.masks(part)
        masks = None if masks is None else masks.double()
        for (sigma, line), iterations in zip(levels, self.iterations, strict=True):
            soft, moving = gaussian_blur(images, sigma), torch.arange(len(part))
            for _ in range(iterations):
                before, own_masks = poses[moving], None if masks is None else masks[moving]
                shown = warp(soft[moving], before, stack.frame)
                weights = image_features.weights(before, stack.size, stack.frame, own_masks)
                poses[moving] = newton.compose(before, newton.delta(shown, line, weights))
                moving = moving[corner_motion(before, poses[moving], stack.frame) >= self.tolerance]
                if not len(moving):
                    break
        return (poses.float(),)
