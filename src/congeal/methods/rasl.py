"""Robust alignment by sparse and low-rank decomposition.

Peng, Ganesh, Wright, Xu and Ma (2012), "RASL: Robust Alignment by Sparse and Low-Rank Decomposition for Linearly
Correlated Images". Inner solver: Lin, Chen and Ma (2010), "The Augmented Lagrange Multiplier Method for Exact Recovery
of Corrupted Low-Rank Matrices".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from congeal.geometry.matrix import Size
from congeal.images import Stack
from congeal.methods.base import Method
from congeal.methods.best import Best
from congeal.methods.guards import set_kind
from congeal.methods.job import Job
from congeal.methods.lowrank import Decomposition, Linear, MotionGauge, Spectrum, decompose, linearise, move


@dataclass(kw_only=True, eq=False)
class RASL(Method):
    """Minimises ‖A‖_* + λ‖E‖₁ over transforms, where the aligned images, as rows of unit norm, are A + E.

    The whole set is in memory as float64, (2 + number of parameters) values per pixel and image.
    """

    motion: str = "affine"
    sparsity: float = 1.0
    """λ = sparsity / √(pixels). Smaller: more is explained as error, and A has lower rank."""
    smoothing: float = 0.4
    """Gaussian blur of the images, in frame pixels."""
    iterations: int = 25
    """Outer steps (re-linearisations), at most."""
    tolerance: float = 0.01
    """The method ends when a step lowers the objective by less than this."""
    inner_tolerance: float = 1e-6
    inner_iterations: int = 1000
    max_step: float = 3.0
    """With guards: no corner moves farther than this many pixels in one step."""

    name: ClassVar[str] = "rasl"

    def _unpenalised(self) -> int:
        """How many of the largest singular values are not penalised."""
        return 0

    def _align(self, stack: Stack, job: Job) -> torch.Tensor:
        start, kind = torch.as_tensor(stack.start.copy()), set_kind(stack)
        state: dict[str, Any] = job.load() or {"found": start, "last": math.inf, "iteration": 0, "zoom": 1.0}
        found, last, best = state["found"], float(state["last"]), Best(start, state.get("best"))
        gauge = MotionGauge(stack, self.motion, kind, float(state["zoom"])) if self.guards else None
        with torch.no_grad():
            for iteration in range(int(state["iteration"]), self.iterations):
                line = linearise(stack, found, self.motion, self.smoothing, kind)
                seed = self.random_state * 1000 + iteration  # a resumed run draws what an uninterrupted one would
                spectrum = Spectrum((line.data.shape[0], line.data.shape[1]), self._unpenalised(), seed)
                result = self._decompose(line, self.sparsity / line.data.shape[1] ** 0.5, spectrum)
                found = self._move(found, line, result.step, stack.frame)
                if gauge is not None:
                    found = gauge.fix(found, line.ink)
                    best.offer(found, result.objective, gauge.energy(line.ink))
                job.step(iteration + 1, self.iterations, objective=result.objective, inner=result.iterations)
                ended = last - result.objective < self.tolerance
                last = result.objective
                if job.due():
                    # A run that is interrupted after its last step has no further one to take.
                    at = {"iteration": self.iterations if ended else iteration + 1, "last": last, "best": best.state()}
                    job.save({"found": found, "zoom": 1.0 if gauge is None else gauge.zoom, **at})
                if ended:
                    break
        return found if gauge is None else best.found

    def _decompose(self, line: Linear, weight: float, spectrum: Spectrum) -> Decomposition:
        return decompose(line, weight, spectrum, self.inner_tolerance, self.inner_iterations)

    def _move(self, found: torch.Tensor, line: Linear, step: torch.Tensor, size: Size) -> torch.Tensor:
        return move(found, line, step, self.motion, size, self.max_step if self.guards else float("inf"))
