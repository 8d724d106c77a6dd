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
from congeal.geometry import coverage, warp
from congeal.images import Stack
from congeal.methods.appearance import blur
from congeal.methods.base import Method
from congeal.methods.gaussnewton import GaussNewton, Linearisation, steepest_descent
from congeal.methods.guards import Gauge, chunks, corner_motion, set_kind, total_ink
from congeal.methods.job import Job
from congeal.methods.reference import reference_image


@dataclass(kw_only=True, eq=False)
class LSC(Method):
    """Least-squares congealing. `fit` streams over the set once per iteration; memory stays flat.

    Minimises Σ_i ‖I_i∘p_i − T‖²: T is the mean of the aligned images (`reference="mean"`), one image ("auto" picks
    one, or a position, file or array), or every other image in turn ("stack").
    """

    reference: Any = "mean"
    blurs: tuple[float, ...] = (2.0, 1.0, 0.0)
    """Gaussian blur of each level, in pixels of a 28-pixel frame."""
    iterations: tuple[int, ...] = (10, 10, 30)
    """Steps at each level, at most."""
    robust: float | None = None
    """Huber threshold on intensities in [0, 1]: residuals beyond it count linearly. None: plain squares."""
    damping: float = 1e-2
    max_step: float = 3.0
    """No corner moves farther than this many pixels in one step."""
    tolerance: float = 0.01
    """A level ends when the mean corner motion of a step falls below this many pixels."""

    name: ClassVar[str] = "lsc"

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if len(self.blurs) != len(self.iterations):
            raise CongealError(f"blurs {self.blurs} and iterations {self.iterations} need the same length")

    def _align(self, stack: Stack, job: Job) -> torch.Tensor:
        self._template: torch.Tensor | None = None
        fixed = None
        if not (isinstance(self.reference, str) and self.reference in ("mean", "stack")):
            fixed = reference_image(self.reference, stack, self.random_state)
        start = torch.as_tensor(stack.start.copy()).float()
        state = job.load() or {"found": start.clone(), "level": 0, "iteration": 0, "target": None, "zoom": 1.0}
        found, total = state["found"], sum(self.iterations)
        with torch.no_grad():
            gauge = self._gauge(stack, start, float(state["zoom"])) if fixed is None else None
            for level in range(int(state["level"]), len(self.blurs)):
                solver = _Level(self, stack, self.blurs[level], fixed, gauge)
                resumed = level == state["level"] and state["target"] is not None
                solver.target = state["target"] if resumed else solver.look(found)
                first = int(state["iteration"]) if level == state["level"] else 0
                for iteration in range(first, self.iterations[level]):
                    found, moved, cost = solver.step(found)
                    done = sum(self.iterations[:level]) + iteration + 1
                    job.step(done, total, cost=cost, motion=moved, blur=self.blurs[level])
                    if job.due():
                        zoom = 1.0 if gauge is None else gauge.zoom
                        at = {"level": level, "iteration": iteration + 1, "zoom": zoom}
                        job.save({"found": found, "target": solver.target, **at})
                    if moved < self.tolerance:
                        break
            self._template = fixed if fixed is not None else _Level(self, stack, 0.0).look(found)["mean"]
        return found

    def _gauge(self, stack: Stack, start: torch.Tensor, zoom: float) -> Gauge | None:
        """A fixed reference holds the common pose by itself; a mean or a stack would drift."""
        if not self.guards:
            return None
        return Gauge(start, stack.frame, total_ink(stack) if set_kind(stack) == "object" else None, zoom)

    def _align_new(self, stack: Stack) -> torch.Tensor:
        """Steps towards the template that `fit` ended with."""
        found = torch.as_tensor(stack.start.copy()).float()
        with torch.no_grad():
            for sigma, iterations in zip(self.blurs, self.iterations, strict=True):
                solver = _Level(self, stack, sigma, self._template)
                solver.target = solver.look(found)
                for _ in range(iterations):
                    found, moved, _ = solver.step(found)
                    if moved < self.tolerance:
                        break
        return found

    def _state(self) -> dict[str, torch.Tensor]:
        if self._template is None:
            raise CongealError("this LSC is not fitted yet: call fit first")
        return {"template": self._template}

    def _restore(self, state: Mapping[str, torch.Tensor]) -> None:
        self._template = state["template"]


class _Level:
    """One level of blur: passes over the set that look (collect the target) or step (move every image)."""

    def __init__(
        self,
        method: LSC,
        stack: Stack,
        sigma: float,
        fixed: torch.Tensor | None = None,
        gauge: Gauge | None = None,
    ) -> None:
        self.stack, self.parts, self.gauge = stack, chunks(stack), gauge
        self.sigma = sigma * max(stack.frame) / 28
        self.fixed = None if fixed is None else blur(fixed[None], self.sigma)[0]
        self.pairs = isinstance(method.reference, str) and method.reference == "stack" and fixed is None
        self.kind = set_kind(stack)
        max_step = method.max_step if method.guards else float("inf")
        self.newton = GaussNewton(method.motion, stack.frame, method.damping, max_step, method.robust)
        self.target: dict[str, Any] = {}

    def look(self, found: torch.Tensor) -> dict[str, Any]:
        """What every image is aligned to, given where they are: the mean, and for `stack` the pairwise sums."""
        total = _Sums(self)
        for part in self.parts:
            total.add(part, *self._shown(part, found))
        return total.result(self.fixed)

    def step(self, found: torch.Tensor) -> tuple[torch.Tensor, float, float]:
        """Move every image once: (new stack_from_frame, mean corner motion, mean squared residual)."""
        moved, cost, total = torch.empty_like(found), 0.0, _Sums(self)
        line = self.newton.linearise(self.target["mean"])
        for part in self.parts:
            shown, weights = self._shown(part, found)
            # The next target is collected from the images as they are now: one warp per image and iteration.
            total.add(part, shown, weights)
            cost += float((shown - line.template).square().mean()) * len(part)
            delta = self._pair_delta(shown) if self.pairs else self.newton.delta(shown, line, weights)
            moved[part] = self.newton.compose(found[part], delta)
        self.target = total.result(self.fixed)
        if self.gauge is not None:
            # Blur carries ink over the frame's edge, so only sharp images witness the scale.
            moved = self.gauge.fix(moved, None if self.sigma else self.target["ink"])
        motion = float(corner_motion(found, moved, self.stack.frame).clamp(max=1e3).mean())
        return moved, motion, cost / len(self.stack)

    def _pair_delta(self, shown: torch.Tensor) -> torch.Tensor:
        """Towards all the others at once: H = Σ_{i≠j} J_iᵀJ_i, b = Σ_{i≠j} J_iᵀ(I_j − I_i)."""
        jacobian = steepest_descent(shown, self.newton.motion)
        own = jacobian.transpose(1, 2) @ jacobian
        slope = shown.flatten(1) @ self.target["jacobians"] - self.target["offset"]
        solver = self.newton._solver(self.target["hessian"] - own)
        return (solver @ slope[..., None])[..., 0]

    def _shown(self, part: np.ndarray, found: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        images, masks = self.stack.images(part), self.stack.masks(part)
        shown = warp(blur(images, self.sigma), found[part], self.stack.frame)
        if masks is not None:
            return shown, warp(masks, found[part], self.stack.frame)
        if self.kind == "photo":
            return shown, coverage(found[part], self.stack.size, self.stack.frame)
        return shown, None


class _Sums:
    """Running sums over the aligned images from which the next target is made."""

    def __init__(self, level: _Level) -> None:
        self.level = level
        self.image: Any = 0.0
        self.weight: Any = 0.0
        self.jacobians: Any = 0.0
        self.offset: Any = 0.0
        self.hessian: Any = 0.0

    def add(self, part: np.ndarray, shown: torch.Tensor, weights: torch.Tensor | None) -> None:
        self.image = self.image + (shown if weights is None else shown * weights).sum(0)
        self.weight = self.weight + (len(part) if weights is None else weights.sum(0))
        if self.level.pairs:
            jacobian = steepest_descent(shown, self.level.newton.motion)
            self.jacobians = self.jacobians + jacobian.sum(0)
            self.offset = self.offset + (jacobian * shown.flatten(1)[..., None]).sum((0, 1))
            self.hessian = self.hessian + torch.einsum("bmk,bml->kl", jacobian, jacobian)

    def result(self, fixed: torch.Tensor | None) -> dict[str, Any]:
        weight = self.weight if isinstance(self.weight, int | float) else self.weight.clamp(min=1e-3)
        mean = self.image / weight
        target = {"mean": mean if fixed is None else fixed, "ink": float(self.image.sum())}
        if self.level.pairs:
            target |= {"jacobians": self.jacobians, "offset": self.offset, "hessian": self.hessian}
        return target
