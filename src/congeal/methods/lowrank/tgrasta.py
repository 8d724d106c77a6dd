"""Transformed Grassmannian robust adaptive subspace tracking: alignment to a subspace learnt image by image.

He, Zhang, Balzano and Tao (2014), "Iterative Grassmannian Optimization for Robust Image Alignment"; the step size is
that of He, Balzano and Szlam (2012), "Incremental Gradient on the Grassmannian for Online Foreground and Background
Separation in Subsampled Video".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from congeal.errors import CongealError
from congeal.filters import frame_unit
from congeal.images import Stack
from congeal.methods.base import Method
from congeal.methods.checks import Count, NotNegative, PositiveOrEndless
from congeal.methods.fit_context import FitContext
from congeal.methods.iterative import Iterations, place_each
from congeal.methods.lowrank.decomposition import Linear, linearise, move, soft
from congeal.registration.batching import chunks
from congeal.registration.features import ImageFeatures
from congeal.registration.gauge import Gauge

MODES = ("batch", "online", "frozen")
WARM_UP_IMAGES = 20
"""Images that an online subspace is learnt on before it goes on alone."""
MAX_INK_CORRECTION = 1.2
"""Factor by which the scale of images that followed a subspace is corrected at most. Chosen by judgement: beyond it an
image is lost, and the others must not be zoomed for it."""
FROZEN_SHARE, MAX_FROZEN_IMAGES = 0.2, 150
"""Share and largest number of the images that a frozen subspace is learnt on. Chosen by judgement: the subspace has a
few columns only."""
APPROACH_SHARE = 0.7
"""With guards: share of the linearisations that lead from one blurred direction to the whole subspace. Chosen by
judgement: the last ones are sharp and have all columns."""
IMAGES_AT_ONCE = 16
"""With guards, images that are solved for one subspace before it turns for each of them. Chosen by judgement: one turn
hardly changes the solution of the next image."""
MAX_TURNS = 2000
"""Of the subspace between two warps, and images that new directions are taken from: a larger set shows it no more."""
MIN_IMAGES_PER_COLUMN = 5
"""With guards: a subspace with more columns learns each image by heart, misaligned as it is."""
CACHED_IMAGES = 256
"""Images that are solved at once, so that what they need stays in cache."""
FIRST_PENALTY, MAX_ITERATIONS = 2.0, 30
"""Of the per-image solver: the penalty doubles with every step, so that it is 1e9 in the end and the remaining gap 1e-9
of an image."""
FIRST_TURN, MAX_TURN = math.pi / 2, math.pi / 3
"""Radians: what sets the scale of turns, and the largest of them, after the multi-level rule of the paper."""
FIRST_AGREEMENT, MIN_AGREEMENT, MAX_AGREEMENT, AGREEMENT_WIDTH = 3.0, 1.0, 30.0, 0.1
"""Memory of how turns agree: at first, where the level of step sizes changes, and the cosine by which two turns must
agree or disagree to count fully. Chosen by judgement after the multi-level rule of the paper."""
DECAY_TURNS = 500
"""The first turn of a decaying tracker is so many times shorter: it begins near where it belongs."""


@dataclass(kw_only=True, eq=False)
class TGRASTA(Method):
    """Alignment to a subspace learnt image by image, with sparse errors. Needs roughly aligned input.

    Minimises Σ_i ‖e_i‖₁ where image i, aligned and of unit norm, is U w_i + e_i with one orthonormal basis U.
    `batch` learns U on all images; `online` on the first 20, then passes once over the others and lets U follow;
    `frozen` on a fifth of them, 150 at most, and aligns the others to it. Images the fit has not seen are aligned to
    the sequence of subspaces that the fit went through, then to U as it ended.

    With guards U begins as the one direction that blurred images share and grows while they sharpen: a subspace that is
    whole from the start learns the misalignment. Its turns become shorter with every image. Without them it begins as
    noise, as published.

    Parameters
    ----------
    mode : str
        batch, online or frozen.
    dimension : int
        Columns of U in the end. With guards at most a fifth of the images it is learnt on.
    linearisations : int
        Times that images are warped anew; each ends with one step of every image.
    sweeps : int
        Passes of the subspace over the images between two warps.
    solver_iterations : int
        Of the per-image solver; more than 30 change nothing.
    smoothing : float
        Standard deviation of the Gaussian blur of the images, in frame pixels.
    coarse : float
        With guards: the blur to begin with, in pixels of a 28-pixel frame.
    max_step : float
        With guards: no corner moves farther than this many pixels in one step.

    Attributes
    ----------
    history_ : list of dict
        After every linearisation or run of followers: cost, the mean of ‖e_i‖₁.
    transforms_, quality_, stack_from_frame_, layout_
        As for every method, see `Method`.
    """

    motion: str = "affine"
    mode: str = "batch"
    dimension: Count = 15
    linearisations: Count = 10
    sweeps: Count = 5
    solver_iterations: Count = 12
    smoothing: NotNegative = 0.4
    coarse: NotNegative = 1.5
    max_step: PositiveOrEndless = 3.0

    name: ClassVar[str] = "tgrasta"

    def _check_parameters(self) -> None:
        if self.mode not in MODES:
            raise CongealError(f"tgrasta has no mode '{self.mode}': choose one of {', '.join(MODES)}")

    @torch.no_grad()
    def _align(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> torch.Tensor:
        learners, followers = self._split(stack)
        start, limits = torch.as_tensor(stack.start.copy()), (self.linearisations, len(followers))
        fresh: dict[str, Any] = {"subspace": None, "path": [], "pace": None}
        run = Iterations(self, stack, image_features, context, limits, start, rows=learners, **fresh)
        if run.own["subspace"] is None:
            run.own["subspace"] = self._first_subspace(stack, image_features, learners)
        self._tracker = tracker = Tracker(run.own["subspace"], run.own["pace"], decaying=self.guards)
        self._path: list[torch.Tensor] = list(run.own["path"])
        for level in run.levels():
            for i in run.steps():
                if level == 0:
                    cost = self._learn(run, stack, image_features, learners, i)
                else:
                    cost = self._follow(run, stack, image_features, followers[i])
                run.end_step({"cost": cost}, subspace=tracker.subspace, path=self._path, pace=tracker.pace)
            if level == 0 and self.guards:
                run.poses[learners] = run.best.found
        return run.poses

    def _split(self, stack: Stack) -> tuple[np.ndarray, list[np.ndarray]]:
        """Positions of the images U is learnt on, and the others in runs."""
        n, order = len(stack), np.arange(len(stack))
        if self.mode == "batch" or n <= WARM_UP_IMAGES:
            return order, []
        if self.mode == "online":
            learners = order[:WARM_UP_IMAGES]
        else:
            count = min(MAX_FROZEN_IMAGES, max(WARM_UP_IMAGES, round(FROZEN_SHARE * n)))
            learners = np.sort(np.random.default_rng(self.random_state_).permutation(n)[:count])
        others = np.setdiff1d(order, learners)
        return learners, [part for part in np.array_split(others, len(chunks(stack))) if len(part)]

    def _first_subspace(self, stack: Stack, image_features: ImageFeatures, learners: np.ndarray) -> torch.Tensor:
        """With guards the direction that the blurred images share, else noise, as published."""
        if self.guards:
            start = torch.as_tensor(stack.start[learners])
            line = linearise(stack, start, self.motion, self._blur(stack, 0), image_features, learners)
            return leading(line.data, 1)
        pixels = stack.channels * stack.frame[0] * stack.frame[1]
        generator = torch.Generator().manual_seed(self.random_state_)
        noise = torch.randn(pixels, min(self.dimension, pixels), generator=generator, dtype=torch.float64)
        return torch.linalg.qr(noise)[0]

    def _approach(self) -> int:
        """How many linearisations pass before the subspace is whole and the images are sharp."""
        return int(APPROACH_SHARE * self.linearisations) if self.guards else 0

    def _blur(self, stack: Stack, step: int) -> float:
        """The blur of a linearisation, in frame pixels."""
        coarse = max(self.coarse * frame_unit(stack.frame), self.smoothing)
        left = 1 - step / self._approach() if step < self._approach() else 0.0
        return self.smoothing + left * (coarse - self.smoothing)

    def _columns(self, step: int, images: int) -> int:
        """With guards: of the subspace, one for the first half of the linearisations, then more and more."""
        half = self.linearisations / 2
        share = (step + 1 - half) / (self._approach() + 1 - half)
        return 1 + int((min(self.dimension, max(1, images // MIN_IMAGES_PER_COLUMN)) - 1) * min(1.0, max(0.0, share)))

    def _learn(
        self, run: Iterations, stack: Stack, image_features: ImageFeatures, learners: np.ndarray, step: int
    ) -> float:
        """One linearisation of all learners: sweeps of the subspace, then one step of every image; gives the cost."""
        tracker, found = self._tracker, run.poses[learners]
        line = linearise(stack, found, self.motion, self._blur(stack, step), image_features, learners)
        generator = torch.Generator().manual_seed(self.random_state_ * 1000 + step)
        if self.guards:
            tracker.begin(line.data, self._columns(step, len(learners)))
        for _ in range(self.sweeps):
            order = torch.randperm(len(learners), generator=generator)
            if self.guards:
                order = order[: max(1, MAX_TURNS // self.sweeps)]
            for some in order.split(IMAGES_AT_ONCE if self.guards else 1):
                tracker.update(solve(line, some, tracker.subspace, self.solver_iterations))
            tracker.orthonormalise()
        if step < self._approach():
            self._path.append(tracker.subspace.clone())  # which goes on turning in place
        moved, costs = self._step(stack, found, line, tracker.subspace)
        cost = float(costs.mean())
        moved = run.fix_gauge(moved, line.ink)
        if step >= self._approach():  # costs of blurred images, or on fewer columns, are others
            run.offer(moved, cost, line.ink)
        run.poses[learners] = moved
        return cost

    def _follow(self, run: Iterations, stack: Stack, image_features: ImageFeatures, rows: np.ndarray) -> float:
        """Align images to the subspace, which follows them one by one in `online`; gives the cost."""
        found, tracker = run.poses[rows], self._tracker
        if self.mode == "online":
            costs = found.new_zeros(len(rows))
            for i in range(len(rows)):
                one = slice(i, i + 1)
                found[one], costs[one] = self._place(stack, image_features, found[one], rows[one])
                line = linearise(stack, found[one], self.motion, self.smoothing, image_features, rows[one])
                tracker.update(solve(line, torch.arange(1), tracker.subspace, self.solver_iterations))
            tracker.orthonormalise()
        else:
            found, costs = self._place(stack, image_features, found, rows)
        if self.guards and len(rows) >= WARM_UP_IMAGES:  # fewer have no mean worth trusting
            gauge = Gauge.of_stack(stack, self.motion, keeps_intensity=image_features.keeps_intensity, rows=rows)
            found = gauge.fix(found)
            line = linearise(stack, found, self.motion, self.smoothing, image_features, rows)
            gauge.follow_intensity(line.ink, MAX_INK_CORRECTION)
            found = gauge.fix(found)
        run.poses[rows] = found
        return float(costs.mean())

    def _place(
        self,
        stack: Stack,
        image_features: ImageFeatures,
        found: torch.Tensor,
        rows: np.ndarray,
        dtype: torch.dtype = torch.float32,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Align images `rows` along the path the subspace took and to what it is: (poses, costs).

        With guards each keeps its best. dtype: of the samples, see `linearise`.
        """
        best, lowest = found.clone(), found.new_full((len(rows),), math.inf)
        for step in range(self.linearisations):
            subspace = self._path[step] if step < len(self._path) else self._tracker.subspace
            line = linearise(stack, found, self.motion, self._blur(stack, step), image_features, rows, dtype)
            found, costs = self._step(stack, found, line, subspace)
            better = (costs < lowest) & (line.data.abs().amax(1) > 0) | (not self.guards)
            better &= step >= len(self._path)
            best[better], lowest[better] = found[better], costs[better]
        return best, lowest

    def _step(
        self, stack: Stack, found: torch.Tensor, line: Linear, subspace: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Poses after one step of all images towards a subspace, and their costs ‖e‖₁ (n,)."""
        parts = torch.arange(len(line.data)).split(CACHED_IMAGES)
        fits = [solve(line, part, subspace, self.solver_iterations) for part in parts]
        steps, max_step = torch.cat([fit.step for fit in fits]), self.max_step if self.guards else math.inf
        moved = move(found, line, steps, self.motion, stack.frame, max_step)
        return moved, torch.cat([fit.errors.abs().sum(1) for fit in fits])

    def _align_new(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> torch.Tensor:
        """Along the path of the subspace and to what it ended as; all in float64, so that each image is alone."""

        def place(part: np.ndarray) -> torch.Tensor:
            start = torch.as_tensor(stack.start[part])
            return self._place(stack, image_features, start, part, torch.float64)[0].float()

        return place_each(stack, context, place)

    def _state(self) -> dict[str, torch.Tensor]:
        return {"subspace": self._tracker.subspace} | {f"path.{i}": one for i, one in enumerate(self._path)}

    def _restore(self, state: Mapping[str, torch.Tensor]) -> None:
        self._tracker = Tracker(state["subspace"])
        self._path = [state[f"path.{i}"] for i in range(len(state) - 1)]


@dataclass
class Fit:
    """Images explained by a subspace: x = v + Q d = U w + e, with multipliers y."""

    step: torch.Tensor  # (b, k) d
    moved: torch.Tensor  # (b, m) x
    weights: torch.Tensor  # (b, d) w
    errors: torch.Tensor  # (b, m) e
    dual: torch.Tensor  # (b, m) y


def solve(line: Linear, rows: torch.Tensor, subspace: torch.Tensor, iterations: int) -> Fit:
    """min ‖e‖₁ subject to v + Q d = U w + e, for each of some images, by the alternating direction method.

    Every image takes as many steps, so that none depends on the others.
    """
    data, basis = line.data[rows], line.basis[rows]
    weights = data.new_zeros(len(data), subspace.shape[1])
    errors, dual = torch.zeros_like(data), torch.zeros_like(data)
    explained, step, moved = torch.zeros_like(data), basis.new_zeros(basis.shape[:2]), data
    penalty = FIRST_PENALTY
    for _ in range(min(iterations, MAX_ITERATIONS)):
        scaled = dual / penalty
        step = torch.bmm(basis, (explained + errors - data + scaled)[..., None])[..., 0]
        moved = data + torch.bmm(step[:, None], basis)[:, 0]
        rest = moved - scaled
        weights = (rest - errors) @ subspace
        explained = weights @ subspace.T
        errors = soft(rest - explained, 1 / penalty)
        dual = dual + penalty * (explained + errors - moved)
        penalty *= 2
    return Fit(step, moved, weights, errors, dual)


def leading(images: torch.Tensor, count: int) -> torch.Tensor:
    """(m, count) the directions that hold most of the images (n, m), orthonormal."""
    some = images[:: -(-len(images) // MAX_TURNS)]
    value, vector = torch.linalg.eigh(some @ some.T)
    longest = value[-count:].clamp(min=1e-12).rsqrt()
    return torch.linalg.qr(some.T @ (vector[:, -count:] * longest).flip(1))[0]


@dataclass
class StepSize:
    """What sets the length of a tracker's turns."""

    scale: float = 0.0
    agreement: float = FIRST_AGREEMENT
    level: int = 0
    turns: int = 0
    last: tuple[torch.Tensor, torch.Tensor] | None = None


class Tracker:
    """A subspace that turns along geodesics, image by image, by steps whose size adapts on several levels.

    decaying: turns become shorter with their number as well. Gradients of an ℓ₁ norm do not fade near its minimum, and
    those of different images neither agree nor disagree enough to change the level.
    """

    def __init__(self, subspace: torch.Tensor, pace: dict[str, Any] | None = None, decaying: bool = False) -> None:
        self.subspace = subspace.clone(memory_format=torch.contiguous_format)  # (m, d) orthonormal
        self._size, self._decaying = StepSize(**pace or {}), decaying

    @property
    def pace(self) -> dict[str, Any]:
        """What the next turn depends on, for a checkpoint."""
        return dict(vars(self._size))

    def begin(self, images: torch.Tensor, dimension: int) -> None:
        """Look at images (n, m) as they lie now: count turns anew, and add columns for what is missed most of them."""
        self._size.turns = 0
        if (more := dimension - self.subspace.shape[1]) > 0:
            missed = images - (images @ self.subspace) @ self.subspace.T
            self.subspace, self._size.last = torch.cat([self.subspace, leading(missed, more)], 1), None
            self.orthonormalise()

    def update(self, fit: Fit) -> None:
        """One turn for every image of the fit, in their order."""
        residual = fit.dual + 2 * (fit.weights @ self.subspace.T + fit.errors - fit.moved)
        for gradient, weights in zip(residual, fit.weights, strict=True):
            self._turn(gradient - self.subspace @ (self.subspace.T @ gradient), weights)

    def _turn(self, gradient: torch.Tensor, weights: torch.Tensor) -> None:
        length, weight = float(gradient.norm()), float(weights.norm())
        product = length * weight
        if product < 1e-12:  # an image that is blank, or explained already
            return
        along, coefficients = gradient / length, weights / weight
        size = self._size
        size.scale = size.scale or FIRST_TURN / product
        if size.last is not None:
            agreement = float(along @ size.last[0]) * float(coefficients @ size.last[1])
            # From −½ where gradients agree through 0 to 1 where they do not.
            size.agreement += -0.5 + 1.5 / (1 + 2 * math.exp(agreement / AGREEMENT_WIDTH))
            if not MIN_AGREEMENT < size.agreement <= MAX_AGREEMENT:
                size.level = max(0, size.level + (1 if size.agreement > MAX_AGREEMENT else -1))
                size.agreement = FIRST_AGREEMENT
        size.last = along, coefficients
        angle = min(MAX_TURN, size.scale * 2.0**-size.level * length * weight / (1 + size.agreement))
        if self._decaying:
            size.turns += 1
            angle /= DECAY_TURNS + size.turns / 2
        turned = (math.cos(angle) - 1) * (self.subspace @ coefficients) - math.sin(angle) * along
        self.subspace.addr_(turned, coefficients)

    def orthonormalise(self) -> None:
        """Orthonormal again, against rounding."""
        basis, upper = torch.linalg.qr(self.subspace)
        # Row by row, as a file gives it back: the order of a sum must not depend on where the numbers came from. And a
        # copy, because one column counts as contiguous whatever its strides.
        self.subspace = (basis * torch.sign(torch.diagonal(upper))).clone(memory_format=torch.contiguous_format)
