"""One pass over a whole set: Gauss-Newton steps of every image towards what the set itself says.

Images are read in chunks and nothing is kept but sums, so memory does not grow with the set.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from congeal.geometry import warp
from congeal.images import Stack
from congeal.solvers.appearance import Appearance
from congeal.solvers.filters import blur
from congeal.solvers.gauge import Gauge, mean_motion
from congeal.solvers.gaussnewton import GaussNewton, steepest_descent
from congeal.solvers.pose_prior import PosePrior
from congeal.solvers.streaming import chunks
from congeal.solvers.threads import in_order

_KEPT_BYTES = 512 << 20  # of blurred features kept between steps; a larger set makes them anew every time


class SetPass:
    """Passes over the set at one level of blur that `collect` the target, or `step` every image towards it.

    Parameters
    ----------
    stack : Stack
    newton : GaussNewton
        The step rule.
    appearance : Appearance
        What is compared, and where it counts.
    sigma : float
        Blur in frame pixels.
    fixed : (C, h, w) tensor, optional
        A reference instead of the running mean.
    gauge : Gauge, optional
        What holds the common pose.
    pairs : bool
        Every other image in turn is the reference.
    keep : (n,) bool tensor, optional
        Which images make the target and the gauge; the others follow.
    use_prior : bool
        Images are held to poses that the kept ones make likely.
    threads : int
        Runs of images that are worked on side by side; the result does not depend on it.
    """

    def __init__(
        self,
        stack: Stack,
        newton: GaussNewton,
        appearance: Appearance,
        sigma: float = 0.0,
        *,
        fixed: torch.Tensor | None = None,
        gauge: Gauge | None = None,
        pairs: bool = False,
        keep: torch.Tensor | None = None,
        use_prior: bool = False,
        threads: int = 1,
    ) -> None:
        self.stack, self.newton, self.appearance = stack, newton, appearance
        self.sigma, self.gauge, self.pairs = sigma, gauge, pairs
        self.fixed = None if fixed is None else blur(fixed[None], sigma)[0]
        self.keep, self.use_prior, self.threads = keep, use_prior, threads
        self._soft: dict[int, torch.Tensor] = {}
        self._room = appearance.costly and 16 * len(stack) * stack.size[0] * stack.size[1] < _KEPT_BYTES
        self.parts = chunks(stack, 2 if appearance.costly else 1)  # few images a run spend their time on overhead
        self.target: dict[str, Any] = {}

    def collect(self, found: torch.Tensor) -> dict[str, Any]:
        """What every image is aligned to, given where they are: the mean, and for `stack` the pairwise sums."""
        total = _Sums(self)
        shown = in_order(lambda part: self._shown(part, found), self.parts, self.threads)
        for part, (images, weights) in zip(self.parts, shown, strict=True):
            total.add(part, images, weights)
        return total.result(self.fixed)

    def step(self, found: torch.Tensor) -> tuple[torch.Tensor, float, float]:
        """Move every image once: (new stack_from_frame, mean corner motion, mean squared residual)."""
        moved, total = torch.empty_like(found), _Sums(self)
        line = self.newton.linearise(self.target["mean"])
        likely = self.prior(found) if self.use_prior else None

        @torch.no_grad()
        def one(part: np.ndarray) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
            shown, weights = self._shown(part, found)
            prior = None
            if likely is not None:
                start = torch.as_tensor(self.stack.start[part]).float()
                prior = likely.pull(start, found[part], self.stack.frame, line.jacobian.shape[1])
            delta = self._pair_delta(shown) if self.pairs else self.newton.delta(shown, line, weights, prior)
            return shown, weights, self.newton.compose(found[part], delta)

        for part, (shown, weights, poses) in zip(self.parts, in_order(one, self.parts, self.threads), strict=True):
            # The next target is collected from the images as they are now: one warp per image and iteration.
            total.add(part, shown, weights)
            moved[part] = poses
        cost = total.residual(line.template)
        self.target = total.result(self.fixed)
        if self.gauge is not None:
            # Blur carries ink over the frame's edge, so only sharp images witness the scale.
            moved = self.gauge.fix(moved, None if self.sigma else self.target["ink"], self.keep)
        return moved, mean_motion(found, moved, self.stack.frame), cost

    def prior(self, found: torch.Tensor) -> PosePrior:
        """Which poses the kept images make likely."""
        rows = torch.arange(len(found)) if self.keep is None else torch.nonzero(self.keep)[:, 0]
        start = torch.as_tensor(self.stack.start[rows.numpy()]).float()
        return PosePrior.from_poses(start, found[rows], self.stack.frame)

    def _pair_delta(self, shown: torch.Tensor) -> torch.Tensor:
        """Towards all the others at once: H = Σ_{i≠j} J_iᵀJ_i, b = Σ_{i≠j} J_iᵀ(I_j − I_i)."""
        jacobian = steepest_descent(shown, self.newton.motion)
        own = jacobian.transpose(1, 2) @ jacobian
        slope = shown.flatten(1) @ self.target["jacobians"] - self.target["offset"]
        solver = self.newton.damped_inverse(self.target["hessian"] - own)
        return (solver @ slope[..., None])[..., 0]

    def _shown(self, part: np.ndarray, found: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        poses, size, frame = found[part], self.stack.size, self.stack.frame
        weights = self.appearance.weights(poses, size, frame, self.stack.masks(part))
        return warp(self._softened(part), poses, frame), weights

    def _softened(self, part: np.ndarray) -> torch.Tensor:
        """What is compared, before it is warped; kept between steps where it is costly to make and there is room."""
        first = int(part[0])
        if first in self._soft:
            return self._soft[first]
        images = self.stack.images(part)
        soft = blur(self.appearance.features(images), self.sigma)
        if self._room:
            self._soft[first] = soft
        return soft


class _Sums:
    """Running sums over the aligned images from which the next target is made."""

    def __init__(self, level: SetPass) -> None:
        self.level = level
        self.image: Any = 0.0
        self.plain: Any = 0.0
        self.weight: Any = 0.0
        self.ink = 0.0
        self.squares = 0.0
        self.count = 0
        self.jacobians: Any = 0.0
        self.offset: Any = 0.0
        self.hessian: Any = 0.0

    def add(self, part: np.ndarray, shown: torch.Tensor, weights: torch.Tensor | None) -> None:
        if self.level.keep is not None:
            counted = self.level.keep[part]
            self.ink += float(shown[~counted].sum())
            part, shown = part[counted.numpy()], shown[counted]
            weights = None if weights is None else weights[counted]
        flat = shown.flatten()
        self.squares += float(flat @ flat)
        self.count += len(part)
        image = shown.sum(0)
        self.ink += float(image.sum())
        self.image = self.image + (image if weights is None else (shown * weights).sum(0))
        self.plain = self.plain + image
        self.weight = self.weight + (len(part) if weights is None else weights.sum(0))
        if self.level.pairs:
            jacobian = steepest_descent(shown, self.level.newton.motion)
            self.jacobians = self.jacobians + jacobian.sum(0)
            self.offset = self.offset + (jacobian * shown.flatten(1)[..., None]).sum((0, 1))
            self.hessian = self.hessian + torch.einsum("bmk,bml->kl", jacobian, jacobian)

    def residual(self, template: torch.Tensor) -> float:
        """Mean squared distance of the counted images from a template, from the sums alone."""
        cross, own = float((self.plain * template).sum()), float(template.square().sum())
        return max(0.0, self.squares - 2 * cross + self.count * own) / max(1, self.count * template.numel())

    def result(self, fixed: torch.Tensor | None) -> dict[str, Any]:
        weight = self.weight if isinstance(self.weight, int | float) else self.weight.clamp(min=1e-3)
        mean = self.image / weight
        target = {"mean": mean if fixed is None else fixed, "ink": self.ink}
        if self.level.pairs:
            target |= {"jacobians": self.jacobians, "offset": self.offset, "hessian": self.hessian}
        return target
