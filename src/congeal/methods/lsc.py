"""Least-squares congealing (Cox, Sridharan, Lucey and Cohn 2008, 2009): align every image to a reference.

The reference is the running mean of the set, one image, or the whole stack; each image takes inverse-compositional
Gauss-Newton steps towards it, from blurred to sharp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from congeal.errors import CongealError
from congeal.images import Stack
from congeal.methods.base import Method
from congeal.methods.job import Job
from congeal.solvers.gauge import Gauge, set_kind, total_ink
from congeal.solvers.gaussnewton import GaussNewton
from congeal.solvers.reference import reference_image
from congeal.solvers.setpass import SetPass


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
                solver = self._pass(stack, self.blurs[level], fixed, gauge)
                resumed = level == state["level"] and state["target"] is not None
                solver.target = state["target"] if resumed else solver.look(found)
                first = int(state["iteration"]) if level == state["level"] else 0
                for iteration in range(first, self.iterations[level]):
                    found, moved, cost = solver.step(found)
                    done = sum(self.iterations[:level]) + iteration + 1
                    job.step(done, total, cost=cost, motion=moved, blur=self.blurs[level])
                    converged = moved < self.tolerance
                    if job.due():
                        at = {"found": found, "zoom": 1.0 if gauge is None else gauge.zoom}
                        if converged:  # a run stopped right here has no step left to take on this level
                            job.save({**at, "level": level + 1, "iteration": 0, "target": None})
                        else:
                            job.save({**at, "level": level, "iteration": iteration + 1, "target": solver.target})
                    if converged:
                        break
            self._template = fixed if fixed is not None else self._pass(stack, 0.0).look(found)["mean"]
        return found

    def _gauge(self, stack: Stack, start: torch.Tensor, zoom: float) -> Gauge | None:
        """A fixed reference holds the common pose by itself; a mean or a stack would drift."""
        if not self.guards:
            return None
        return Gauge(start, stack.frame, total_ink(stack) if set_kind(stack) == "object" else None, zoom)

    def _pass(
        self, stack: Stack, sigma: float, fixed: torch.Tensor | None = None, gauge: Gauge | None = None
    ) -> SetPass:
        max_step = self.max_step if self.guards else float("inf")
        newton = GaussNewton(self.motion, stack.frame, self.damping, max_step, self.robust)
        pairs = isinstance(self.reference, str) and self.reference == "stack" and fixed is None
        return SetPass(stack, newton, sigma * max(stack.frame) / 28, fixed=fixed, gauge=gauge, pairs=pairs)

    def _align_new(self, stack: Stack) -> torch.Tensor:
        """Steps towards the template that `fit` ended with."""
        found = torch.as_tensor(stack.start.copy()).float()
        with torch.no_grad():
            for sigma, iterations in zip(self.blurs, self.iterations, strict=True):
                solver = self._pass(stack, sigma, self._template)
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
