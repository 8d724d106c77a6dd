"""What the iterative methods share: the loop of a fit with gauge and checkpoints, and the loop of a new image."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from congeal.errors import CongealError
from congeal.evaluation.thresholds import Band
from congeal.geometry.matrix import Size
from congeal.images import Stack
from congeal.methods.base import Method
from congeal.methods.checks import CountOrZero, NotNegative, PositiveOrEndless, Some
from congeal.methods.fit_context import FitContext
from congeal.registration.batching import chunks, start_poses
from congeal.registration.features import ImageFeatures
from congeal.registration.gauge import Gauge, corner_motion
from congeal.registration.gauss_newton import GaussNewton

CANVAS_MARGIN = 0.25
"""Margin of a canvas, as a share of the frame's longer side: how far one round of steps may reach beyond the frame.
Chosen by judgement: steps of a round are capped at a few pixels."""
COMPARABLE_ENERGY: Band = (0.93, 1.07)
"""Energy ratios within which the costs of two iterates may be compared: shrinking lowers any cost."""


class BestIterate:
    """The stack_from_frame with the lowest cost so far, among iterates that kept their ink if there is one.

    A method that overshoots late does not end worse than it once was.
    """

    def __init__(self, found: torch.Tensor, state: dict[str, Any] | None = None) -> None:
        kept = state or {"found": found, "cost": math.inf, "sound": False}
        self.found: torch.Tensor = kept["found"]
        self.cost, self.sound = float(kept["cost"]), bool(kept["sound"])

    def offer(self, found: torch.Tensor, cost: float, energy: float | None = None) -> None:
        """Compare an iterate; `energy` is its energy ratio, None where ink means nothing (photographs)."""
        sound = energy is None or COMPARABLE_ENERGY[0] <= energy <= COMPARABLE_ENERGY[1]
        if sound < self.sound or not math.isfinite(cost):
            return
        # Among unsound ones the later is nearer to being corrected by the gauge.
        if sound > self.sound or not sound or cost < self.cost:
            self.found, self.cost, self.sound = found.clone(), cost, sound

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"found": self.found, "cost": self.cost, "sound": self.sound}


class Iterations:
    """The iterations of a fit, level by level, which go on where an interrupted fit was saved.

        run = Iterations(method, stack, image_features, context, limits)
        for level in run.levels():
            for iteration in run.steps():
                run.poses = run.fix_gauge(step(run.poses), ink)
                run.end_step({"cost": cost}, converged)

    Parameters
    ----------
    limits : sequence of int
        Largest number of iterations on each level.
    poses : (n, 3, 3) tensor, optional
        Where a new fit begins; the start of the stack by default.
    gauge : bool
        With guards, hold the common pose.
    rows : (m,) array, optional
        The images whose common pose is held and whose best iterate is kept; all by default.
    **own
        What the method itself keeps in a checkpoint, as a new fit begins with it.
    """

    def __init__(
        self,
        method: Method,
        stack: Stack,
        image_features: ImageFeatures,
        context: FitContext,
        limits: Sequence[int],
        poses: torch.Tensor | None = None,
        *,
        gauge: bool = True,
        rows: np.ndarray | None = None,
        **own: Any,
    ) -> None:
        fresh = {"poses": start_poses(stack) if poses is None else poses, "zoom": 1.0, "best": None}
        state = context.load() or {**fresh, "level": 0, "iteration": 0, "own": own}
        self.context, self.limits = context, limits
        self.poses: torch.Tensor = state["poses"]
        self.own: dict[str, Any] = state["own"]
        self.best = BestIterate(self.poses if rows is None else self.poses[rows], state["best"])
        self.gauge: Gauge | None = None
        if gauge and method.guards:
            keeps, zoom = image_features.keeps_intensity, float(state["zoom"])
            self.gauge = Gauge.of_stack(stack, method.motion, keeps_intensity=keeps, zoom=zoom, rows=rows)
        self._first = int(state["level"]), int(state["iteration"])
        self._at, self._ended = self._first, False

    @property
    def resumed(self) -> bool:
        """Whether this level goes on where a checkpoint was written, so that `own` belongs to it."""
        return self._at[0] == self._first[0]

    def levels(self) -> Iterator[int]:
        """Numbers of the levels that are left."""
        for level in range(self._first[0], len(self.limits)):
            self._at = level, self._first[1] if level == self._first[0] else 0
            yield level

    def steps(self) -> Iterator[int]:
        """Numbers of the iterations that are left on this level, until one ends it."""
        level, first = self._at
        self._ended = False
        for iteration in range(first, self.limits[level]):
            self._at = level, iteration
            yield iteration
            if self._ended:
                break

    def fix_gauge(self, poses: torch.Tensor, ink: float | None = None) -> torch.Tensor:
        """The poses with the common pose of the start, if it is held."""
        return poses if self.gauge is None else self.gauge.fix(poses, ink)

    def offer(self, poses: torch.Tensor, cost: float, ink: float) -> None:
        """Keep the poses if they are the best so far; without a gauge the last ones count."""
        if self.gauge is not None:
            self.best.offer(poses, cost, self.gauge.energy(ink))

    def end_step(self, values: dict[str, float], ended: str = "", **own: Any) -> None:
        """Report a step and save if it is time. ended: why this level takes no further step; own: for a checkpoint."""
        level, iteration = self._at
        self.context.step(sum(self.limits[:level]) + iteration + 1, sum(self.limits), **values)
        self._ended = bool(ended)
        if self.context.due():
            # A level that is interrupted after its last step has no further one to take.
            at = {"level": level, "iteration": self.limits[level] if ended else iteration + 1}
            zoom = 1.0 if self.gauge is None else self.gauge.zoom
            self.context.save({"poses": self.poses, "zoom": zoom, "best": self.best.state(), **at, "own": own})
        if ended:
            self.context.ends_early(ended)

    def result(self) -> torch.Tensor:
        """The best poses that were offered, else the last ones."""
        return self.best.found if np.isfinite(self.best.cost) else self.poses


@dataclass(kw_only=True, eq=False)
class GaussNewtonMethod(Method):
    """What the methods by Gauss-Newton have in common: steps of all images, from blurred to sharp.

    Parameters
    ----------
    blurs : tuple of float
        Standard deviation of the Gaussian blur at each level, in pixels of a 28-pixel frame.
    iterations : tuple of int
        Steps at each level, at most.
    damping : float
        Levenberg damping, relative to the diagonal of the Hessian.
    max_step : float
        With guards: no corner moves farther than this many pixels in one step.
    tolerance : float
        A level ends when the mean corner motion of a step falls below this many pixels. A new image ends a level by its
        own motion.
    """

    blurs: Some[NotNegative] = (2.0, 1.0, 0.0)
    iterations: Some[CountOrZero] = (10, 10, 30)
    damping: NotNegative = 1e-2
    max_step: PositiveOrEndless = 3.0
    tolerance: NotNegative = 0.01

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if len(self.blurs) != len(self.iterations):
            raise CongealError(f"blurs {self.blurs} and iterations {self.iterations} need the same length")

    def _newton(self, stack: Stack, robust: float | None = None) -> GaussNewton:
        return GaussNewton(self.motion, stack.frame, self.damping, self.max_step if self.guards else np.inf, robust)


def why_still(moved: float, tolerance: float) -> str:
    """Why no further step is taken where one moved the images by less than the tolerance; empty where it did not."""
    return f"a step moved the images by less than {tolerance:g} px" if moved < tolerance else ""


def double_images(stack: Stack, part: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Initial poses, images and masks in float64.

    How sums are rounded depends on the number of images, and the pose of a new image may not depend on the others.
    """
    masks = stack.masks(part)
    images = stack.images(part).double()
    return torch.as_tensor(stack.start[part]), images, None if masks is None else masks.double()


def step_until_still(
    poses: torch.Tensor,
    step: Callable[..., torch.Tensor],
    most: int,
    tolerance: float,
    frame: Size,
    *own: torch.Tensor | None,
) -> None:
    """Repeat a step in place, at most `most` times, for each image until it moves by less than `tolerance` pixels.

    step(poses, number of the iteration, *own) gives the new poses of the images that still move; own: what the step
    takes of each image.
    """
    moving = torch.arange(len(poses))
    for iteration in range(most):
        before = poses[moving]
        poses[moving] = step(before, iteration, *(None if one is None else one[moving] for one in own))
        moving = moving[corner_motion(before, poses[moving], frame) >= tolerance]
        if not len(moving):
            break


def place_each(stack: Stack, context: FitContext, place: Callable[[np.ndarray], torch.Tensor]) -> torch.Tensor:
    """Poses (n, 3, 3) of new images, which `place(positions)` finds for each alone."""
    poses = start_poses(stack)
    context.map_images(lambda part: (place(part),), chunks(stack), poses)
    return poses


def canvas_of(frame: Size) -> tuple[Size, np.ndarray]:
    """The size of the frame with a margin around it, and frame_from_canvas (3, 3)."""
    margin = int(np.ceil(CANVAS_MARGIN * max(frame)))
    size = frame[0] + 2 * margin, frame[1] + 2 * margin
    return size, np.array([[1.0, 0, -margin], [0, 1, -margin], [0, 0, 1]])
