"""Robust alignment by sparse and low-rank decomposition.

Peng, Ganesh, Wright, Xu and Ma (2012), "RASL: Robust Alignment by Sparse and Low-Rank Decomposition for Linearly
Correlated Images". Inner solver: Lin, Chen and Ma (2010), "The Augmented Lagrange Multiplier Method for Exact Recovery
of Corrupted Low-Rank Matrices".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch

from congeal.errors import CongealError
from congeal.filters import frame_unit
from congeal.geometry.matrix import Size
from congeal.images import Stack
from congeal.methods.base import Method
from congeal.methods.checks import Count, CountOrZero, NotNegative, Positive, PositiveOrEndless, Range
from congeal.methods.fit_context import FitContext
from congeal.methods.lowrank.decomposition import Decomposition, Linear, Spectrum, decompose, linearise, move
from congeal.registration.features import ImageFeatures
from congeal.registration.gauge import BestIterate, Gauge

_ROUGH = 1e-3  # tolerance of the inner solver on blurred images: a third fewer steps, the same outcome
_SMALL = 5e-4  # of the objective: with guards a step that lowers it by less is the last one


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
        published.
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
        Of the inner solver's penalty with every step; 1.25 as published.
    max_step : float
        With guards: no corner moves farther than this many pixels in one step.
    motion, size, align_on, kind, guards, random_state
        As for every method, see `Method`.

    Attributes
    ----------
    transforms_ : Transforms
        aligned_from_source of every image, in source pixels.
    quality_ : Quality
        Numbers and verdict of the fit.
    history_ : list of dict
        After every outer step: objective, and inner (steps of the inner solver).
    stack_from_frame_ : (n, 3, 3) array
        The poses between the pictures the method worked on.
    layout_ : Layout
        Sizes, channels, value ranges and kind of those pictures.
    """

    motion: str = "affine"
    sparsity: Positive = 1.0
    """λ = sparsity / √(pixels). Smaller: more is explained as error, and A has lower rank."""
    smoothing: NotNegative = 0.4
    """Gaussian blur of the images, in frame pixels."""
    coarse: tuple[NotNegative, ...] = (2.0, 1.0)
    """With guards: blurs to begin with, in pixels of a 28-pixel frame. (): sharp from the start, as published, and as
    photographs always are, in which blur leaves light and background to be aligned."""
    coarse_iterations: CountOrZero = 6
    """Outer steps at each of them, at most."""
    iterations: Count = 25
    """Outer steps (re-linearisations) on the images as `smoothing` leaves them, at most."""
    tolerance: Annotated[float, Range(endless=True)] = 0.01
    """The method ends when a step lowers the objective by less than this or, with guards, by less than a 2,000th."""
    inner_tolerance: Positive = 1e-4
    """The inner solver ends when D + Q d − A − E is this small against D; 1e-6 as published."""
    inner_iterations: Count = 1000
    """Steps of the inner solver, at most."""
    growth: Annotated[float, Range(above=1)] = 1.5
    """Of the inner solver's penalty with every step; 1.25 as published, at twice the number of steps."""
    max_step: PositiveOrEndless = 3.0
    """With guards: no corner moves farther than this many pixels in one step."""

    name: ClassVar[str] = "rasl"

    def _unpenalised(self) -> int:
        """How many of the largest singular values are not penalised."""
        return 0

    def _align(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> torch.Tensor:
        start, blurs = torch.as_tensor(stack.start.copy()), self._blurs(stack.frame, image_features)
        fresh: dict[str, Any] = {"found": start, "last": math.inf, "level": 0, "iteration": 0, "zoom": 1.0}
        state = context.load() or fresh
        found, last, best = state["found"], float(state["last"]), BestIterate(start, state.get("best"))
        gauge = None
        if self.guards:
            zoom = float(state["zoom"])
            gauge = Gauge.of_stack(stack, self.motion, keeps_intensity=image_features.keeps_intensity, zoom=zoom)
        limits = [self.coarse_iterations] * (len(blurs) - 1) + [self.iterations]
        with torch.no_grad():
            for level in range(int(state["level"]), len(blurs)):
                for iteration in range(int(state["iteration"]) if level == state["level"] else 0, limits[level]):
                    done = sum(limits[:level]) + iteration
                    line = linearise(stack, found, self.motion, blurs[level], image_features)
                    if not bool(line.data.any()):
                        lost = f"{self.name} lost every image of {stack.source.name} in step {done}"
                        raise CongealError(f"{lost}: use a smaller motion, or another method")
                    seed = self.random_state_ * 1000 + done  # a resumed run draws what an uninterrupted one would
                    free = max(self._unpenalised(), int(level + 1 < len(blurs)))
                    spectrum = Spectrum((line.data.shape[0], line.data.shape[1]), free, seed)
                    weight = self.sparsity / line.data.shape[1] ** 0.5
                    result = self._decompose(line, weight, spectrum, sharp=level + 1 == len(blurs))
                    found = self._move(found, line, result.step, stack.frame)
                    if gauge is not None:
                        found = gauge.fix(found, line.ink)
                        if level + 1 == len(blurs):
                            best.offer(found, result.objective, gauge.energy(line.ink))
                    context.step(done + 1, sum(limits), objective=result.objective, inner=result.iterations)
                    ended = last - result.objective < self._least(result.objective)
                    last = math.inf if ended else result.objective
                    if context.due():
                        # A level that is interrupted after its last step has no further one to take.
                        at = {"level": level, "iteration": limits[level] if ended else iteration + 1, "last": last}
                        zoom = 1.0 if gauge is None else gauge.zoom
                        context.save({"found": found, "zoom": zoom, "best": best.state(), **at})
                    if ended:
                        context.ends_early("a step lowered the objective by next to nothing")
                        break
                last = math.inf
        return found if gauge is None else best.found

    def _blurs(self, frame: Size, image_features: ImageFeatures) -> list[float]:
        """Of the levels, in frame pixels."""
        coarse = [sigma * frame_unit(frame) for sigma in self.coarse if self.guards and image_features.empty_ground]
        return [*(sigma for sigma in coarse if sigma > self.smoothing), self.smoothing]

    def _least(self, objective: float) -> float:
        """By how much a step must lower the objective for another one to follow."""
        return max(self.tolerance, _SMALL * objective) if self.guards else self.tolerance

    def _decompose(self, line: Linear, weight: float, spectrum: Spectrum, sharp: bool) -> Decomposition:
        tolerance = self.inner_tolerance if sharp else max(self.inner_tolerance, _ROUGH)
        return decompose(line, weight, spectrum, tolerance, self.inner_iterations, growth=self.growth)

    def _move(self, found: torch.Tensor, line: Linear, step: torch.Tensor, size: Size) -> torch.Tensor:
        return move(found, line, step, self.motion, size, self.max_step if self.guards else float("inf"))
