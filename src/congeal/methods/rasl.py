"""Robust alignment by sparse and low-rank decomposition.

Peng, Ganesh, Wright, Xu and Ma (2012), "RASL: Robust Alignment by Sparse and Low-Rank Decomposition for Linearly
Correlated Images". Inner solver: Lin, Chen and Ma (2010), "The Augmented Lagrange Multiplier Method for Exact Recovery
of Corrupted Low-Rank Matrices".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from congeal.geometry.matrix import Size
from congeal.images import Stack
from congeal.methods.base import Method
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

    def _kept(self) -> int:
        """How many of the largest singular values are not penalised."""
        return 0

    def _align(self, stack: Stack, job: Job) -> torch.Tensor:
        start = torch.as_tensor(stack.start.copy())
        state: dict[str, Any] = job.load() or {
            "found": start, "best": start, "lowest": float("inf"), "last": float("inf"), "iteration": 0, "zoom": 1.0,
        }  # fmt: skip
        found, best, lowest, last = state["found"], state["best"], float(state["lowest"]), float(state["last"])
        kind = set_kind(stack)
        gauge = MotionGauge(stack, self.motion, kind, float(state["zoom"])) if self.guards else None
        with torch.no_grad():
            for iteration in range(int(state["iteration"]), self.iterations):
                line = linearise(stack, found, self.motion, self.smoothing, kind)
                seed = self.random_state * 1000 + iteration  # a resumed run draws what an uninterrupted one would
                spectrum = Spectrum(tuple(line.data.shape), self._kept(), seed)
                weight = self.sparsity / line.data.shape[1] ** 0.5
                result = self._decompose(line, weight, spectrum)
                found = self._move(found, line, result.step, stack.frame)
                if gauge is not None:
                    found = gauge.fix(found, line.ink)
                job.step(iteration + 1, self.iterations, objective=result.objective, inner=result.iterations)
                if not result.objective >= lowest or gauge is None:
                    best, lowest = found, result.objective
                done = last - result.objective < self.tolerance
                last = result.objective
                if job.due():
                    at = {"lowest": lowest, "last": last, "zoom": 1.0 if gauge is None else gauge.zoom}
                    # A run that was stopped between its last step and its end has no step left to take.
                    job.save(
                        {"found": found, "best": best, "iteration": self.iterations if done else iteration + 1, **at}
                    )
                if done:
                    break
        return best

    def _decompose(self, line: Linear, weight: float, spectrum: Spectrum) -> Decomposition:
        return decompose(line, weight, spectrum, self.inner_tolerance, self.inner_iterations)

    def _move(self, found: torch.Tensor, line: Linear, step: torch.Tensor, size: Size) -> torch.Tensor:
        return move(found, line, step, self.motion, size, self.max_step if self.guards else float("inf"))
