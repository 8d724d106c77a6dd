"""Robust alignment by sparse and low-rank decomposition.

Peng, Ganesh, Wright, Xu and Ma (2012), "RASL: Robust Alignment by Sparse and Low-Rank Decomposition for Linearly
Correlated Images". Inner solver: Lin, Chen and Ma (2010), "The Augmented Lagrange Multiplier Method for Exact Recovery
of Corrupted Low-Rank Matrices". PSSV: Oh, Tai, Bazin, Kim and Kweon (2016), "Partial Sum Minimization of Singular
Values in Robust PCA: Algorithm and Applications".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from congeal.errors import CongealError
from congeal.filters import frame_unit
from congeal.geometry.matrix import Size
from congeal.images import Stack
from congeal.methods.base import Method
from congeal.methods.checks import Count, CountOrZero, NotNegative, Positive, PositiveOrEndless, Range
from congeal.methods.fit_context import FitContext
from congeal.methods.iterative import Iterations
from congeal.methods.lowrank.decomposition import Decomposition, Linear, Spectrum, decompose, linearise, move
from congeal.registration.features import ImageFeatures

COARSE_TOLERANCE = 1e-3
"""Tolerance of the inner solver on blurred images: a third fewer steps, the same outcome."""
MIN_DECREASE = 5e-4
"""With guards a step that lowers the objective by a smaller share is the last one. Chosen by judgement: it
is the `tolerance` of objectives of about twenty."""


@dataclass(kw_only=True, eq=False)
class RASL(Method):
    """Low rank plus sparse errors: for sets with occlusions or changing light. Needs roughly aligned input.

    Minimises ‖A‖_* + λ‖E‖₁ over transforms, where the aligned images, as rows of unit norm, are A + E. The whole set is
    in memory: per pixel and image (1 + number of parameters) values in float64, and (5 + number of parameters) in
    float32 for pixels that are not empty in every image. It has no step for new images.

    Parameters
    ----------
    sparsity : float
        λ = sparsity / √(pixels). Smaller: more is explained as error, and A has lower rank.
    smoothing : float
        Standard deviation of the Gaussian blur of the images, in frame pixels.
    coarse : tuple of float
        With guards, for objects: blurs to begin with, in pixels of a 28-pixel frame. (): sharp from the start, as
        published. Photographs always are: of them blur leaves light and background to be aligned.
    coarse_iterations : int
        Outer steps at each of them, at most.
    iterations : int
        Outer steps (re-linearisations) on the images as `smoothing` leaves them, at most.
    tolerance : float
        The method ends when a step lowers the objective by less than this or, with guards, by less than a 2,000th.
    inner_tolerance : float
        The inner solver ends when D + Q d − A − E is this small against D; 1e-6 as published.
    inner_iterations : int
        Steps of the inner solver, at most.
    growth : float
        Of the inner solver's penalty with every step; 1.25 as published, at twice the number of steps.
    max_step : float
        With guards: no corner moves farther than this many pixels in one step.

    Attributes
    ----------
    history_ : list of dict
        After every outer step: objective, and inner (steps of the inner solver).
    transforms_, quality_, stack_from_frame_, layout_
        As for every method, see `Method`.
    """

    motion: str = "affine"
    sparsity: Positive = 1.0
    smoothing: NotNegative = 0.4
    coarse: tuple[NotNegative, ...] = (2.0, 1.0)
    coarse_iterations: CountOrZero = 6
    iterations: Count = 25
    tolerance: Annotated[float, Range(endless=True)] = 0.01
    inner_tolerance: Positive = 1e-4
    inner_iterations: Count = 1000
    growth: Annotated[float, Range(above=1)] = 1.5
    max_step: PositiveOrEndless = 3.0

    name: ClassVar[str] = "rasl"

    def _unpenalised(self) -> int:
        """How many of the largest singular values are not penalised."""
        return 0

    @torch.no_grad()
    def _align(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> torch.Tensor:
        blurs, start = self._blurs(stack.frame, image_features), torch.as_tensor(stack.start.copy())
        limits = [self.coarse_iterations] * (len(blurs) - 1) + [self.iterations]
        run = Iterations(self, stack, image_features, context, limits, start, last=math.inf)
        for level in run.levels():
            last, sharp = float(run.own["last"]) if run.resumed else math.inf, level + 1 == len(blurs)
            for _ in run.steps():
                line = linearise(stack, run.poses, self.motion, blurs[level], image_features)
                if not bool(line.data.any()):
                    raise CongealError(
                        f"{self.name} lost every image of {stack.source.name}: use a smaller motion, or another method"
                    )
                spectrum = Spectrum(line.data.shape, max(self._unpenalised(), int(not sharp)))
                result = self._decompose(line, self.sparsity / line.data.shape[1] ** 0.5, spectrum, sharp=sharp)
                moved = self._move(run.poses, line, result.step, stack.frame)
                run.poses = run.fix_gauge(moved, line.ink)
                if sharp:
                    run.offer(run.poses, result.objective, line.ink)
                ended = last - result.objective < self._least(result.objective)
                last = result.objective
                values = {"objective": result.objective, "inner": result.iterations}
                run.end_step(values, "a step lowered the objective by next to nothing" if ended else "", last=last)
        return run.result()

    def _blurs(self, frame: Size, image_features: ImageFeatures) -> list[float]:
        """Of the levels, in frame pixels."""
        coarse = [sigma * frame_unit(frame) for sigma in self.coarse if self.guards and image_features.empty_ground]
        return [*(sigma for sigma in coarse if sigma > self.smoothing), self.smoothing]

    def _least(self, objective: float) -> float:
        """By how much a step must lower the objective for another one to follow."""
        return max(self.tolerance, MIN_DECREASE * objective) if self.guards else self.tolerance

    def _decompose(self, line: Linear, weight: float, spectrum: Spectrum, sharp: bool) -> Decomposition:
        tolerance = self.inner_tolerance if sharp else max(self.inner_tolerance, COARSE_TOLERANCE)
        return decompose(line, weight, spectrum, tolerance, self.inner_iterations, growth=self.growth)

    def _move(self, found: torch.Tensor, line: Linear, step: torch.Tensor, size: Size) -> torch.Tensor:
        return move(found, line, step, self.motion, size, self.max_step if self.guards else math.inf)


@dataclass(kw_only=True, eq=False)
class PSSV(RASL):
    """RASL whose largest singular values are free: for few images, or a known rank. Needs roughly aligned input.

    Minimises Σ_{i>rank} σ_i(A) + λ‖E‖₁: the `rank` largest singular values cost nothing, so they do not shrink.

    Parameters
    ----------
    rank : int
        How many singular values are free; 0 is RASL.

    Attributes
    ----------
    transforms_, quality_, history_, stack_from_frame_, layout_
        As for every method, see `Method`.
    """

    rank: CountOrZero = 1

    name: ClassVar[str] = "pssv"

    def _unpenalised(self) -> int:
        return self.rank
