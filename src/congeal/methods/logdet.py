"""Log-det congealing: a lossy code for the set, cheap in the frame and faithful in the source.

Vedaldi, Guidi and Soatto, "Joint data alignment up to (lossy) transformations", 2008. Every image is coded as a picture
in the frame and a transform. Codes should be simple together, ½ log det(ε²I + cov), and give every image back *in its
own pixels*: a frame that shows only an emptied corner, or a shrunken object, gives nothing back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from congeal.errors import CongealError
from congeal.geometry import coverage, invert, warp
from congeal.images import Stack
from congeal.methods.base import Method
from congeal.methods.job import Job
from congeal.solvers.best import Best
from congeal.solvers.filters import blur
from congeal.solvers.gauge import Gauge, chunks, corner_motion, set_kind, total_ink
from congeal.solvers.gaussnewton import GaussNewton, steepest_descent


@dataclass(kw_only=True, eq=False)
class LogDet(Method):
    """Log-det congealing. Alternates PCA of the aligned set and Gauss-Newton towards each image's projection.

    Minimises ½ log det(ε²I + cov(c)) + 1/(2D) Σ_i ‖I_i − c_i∘p_i⁻¹‖² / n over codes c_i and transforms p_i.
    """

    noise: float = 0.03
    """ε: standard deviation of a pixel, in [0, 1], below which a direction of the codes costs nothing more."""
    distortion: float = 1.0
    """D: how much squared error one nat of code is worth; large ones leave little more than the mean image."""
    rank: int = 24
    """Principal directions kept, at most; the rest of the variance counts as one flat remainder."""
    blurs: tuple[float, ...] = (2.0, 1.0, 0.0)
    """Gaussian blur of each level, in pixels of a 28-pixel frame."""
    iterations: tuple[int, ...] = (10, 10, 30)
    damping: float = 1e-2
    max_step: float = 3.0
    """No corner moves farther than this many pixels in one step."""
    tolerance: float = 0.01
    """A level ends when the mean corner motion of a step falls below this many pixels."""

    name: ClassVar[str] = "logdet"

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if len(self.blurs) != len(self.iterations):
            raise CongealError(f"blurs {self.blurs} and iterations {self.iterations} need the same length")

    def _align(self, stack: Stack, job: Job) -> torch.Tensor:
        with torch.no_grad():
            return self._alternate(stack, job)

    def _alternate(self, stack: Stack, job: Job) -> torch.Tensor:
        start, kind = torch.as_tensor(stack.start.copy()).float(), set_kind(stack)
        fresh: dict[str, Any] = {"found": start, "level": 0, "iteration": 0, "zoom": 1.0, "best": None, "basis": None}
        state = job.load() or fresh
        found, basis, total = state["found"], state["basis"], sum(self.iterations)
        ink = total_ink(stack) if kind == "object" else None
        gauge = Gauge(start, stack.frame, ink, float(state["zoom"])) if self.guards else None
        best, self._codebooks = Best(start, state["best"]), list(state.get("codebooks", []))
        for at in range(int(state["level"]), len(self.blurs)):
            level = _Level(self, stack, self.blurs[at], kind)
            moved = float("inf")
            for iteration in range(int(state["iteration"]) if at == state["level"] else 0, self.iterations[at]):
                code = level.learn(found, basis)
                basis = code.basis
                stepped, distortion = level.step(found, code)
                cost = code.complexity + distortion / (2 * self.distortion)
                if at == len(self.blurs) - 1:
                    best.offer(found, cost, code.ink / ink if ink else None)
                if gauge is not None:
                    stepped = gauge.fix(stepped, None if level.sigma else code.ink)
                moved = float(corner_motion(found, stepped, stack.frame).clamp(max=1e3).mean())
                found = stepped
                values = {"cost": cost, "complexity": code.complexity, "distortion": distortion, "motion": moved}
                job.step(sum(self.iterations[:at]) + iteration + 1, total, **values)
                if job.due():
                    zoom = 1.0 if gauge is None else gauge.zoom
                    next_one = iteration + 1 if moved >= self.tolerance else self.iterations[at]
                    where = {"level": at, "iteration": next_one, "zoom": zoom, "basis": basis}
                    kept = {"best": best.state(), "codebooks": self._codebooks}
                    job.save({"found": found, **where, **kept})
                if moved < self.tolerance:
                    break
            self._codebooks.append(level.learn(found, basis).tensors())
        return found if gauge is None or not best.sound else best.found

    def _align_new(self, stack: Stack) -> torch.Tensor:
        """Gauss-Newton towards projections on what `fit` learnt at each level."""
        found, kind = torch.as_tensor(stack.start.copy()).float(), set_kind(stack)
        with torch.no_grad():
            for sigma, iterations, tensors in zip(self.blurs, self.iterations, self._codebooks, strict=True):
                level = _Level(self, stack, sigma, kind)
                for _ in range(iterations):
                    before = found
                    found, _ = level.step(found, Codebook(**tensors))
                    if float(corner_motion(before, found, stack.frame).clamp(max=1e3).mean()) < self.tolerance:
                        break
        return found

    def _state(self) -> dict[str, torch.Tensor]:
        if not hasattr(self, "_codebooks"):
            raise CongealError("this LogDet is not fitted yet: call fit first")
        return {f"{i}.{name}": value for i, code in enumerate(self._codebooks) for name, value in code.items()}

    def _restore(self, state: Mapping[str, torch.Tensor]) -> None:
        names = ("mean", "basis", "keep")
        self._codebooks = [{name: state[f"{i}.{name}"] for name in names} for i in range(len(self.blurs))]


@dataclass
class Codebook:
    """What the aligned set has in common: a mean and principal directions, each kept as much as it is worth."""

    mean: torch.Tensor  # (m,)
    basis: torch.Tensor  # (m, r), orthonormal
    keep: torch.Tensor  # (r,) in [0, 1]
    complexity: float = 0.0
    ink: float = 0.0

    def project(self, shown: torch.Tensor) -> torch.Tensor:
        """Codes of images (B, C, h, w) already sampled into the frame."""
        weights = (shown.flatten(1) - self.mean) @ self.basis
        return (self.mean + (weights * self.keep) @ self.basis.T).view_as(shown)

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"mean": self.mean, "basis": self.basis, "keep": self.keep}


class _Level:
    """One level of blur: passes over the set that learn the codebook or step every image towards its code."""

    def __init__(self, method: LogDet, stack: Stack, sigma: float, kind: str) -> None:
        self.method, self.stack, self.kind, self.parts = method, stack, kind, chunks(stack)
        self.sigma = sigma * max(stack.frame) / 28
        max_step = method.max_step if method.guards else float("inf")
        self.newton = GaussNewton(method.motion, stack.frame, method.damping, max_step)

    def learn(self, found: torch.Tensor, basis: torch.Tensor | None) -> Codebook:
        """PCA of the images as they are now, by subspace iteration that starts where the last one ended."""
        m = self.stack.channels * self.stack.frame[0] * self.stack.frame[1]
        rank = min(self.method.rank, m, len(self.stack) - 1)
        rounds = 1
        if basis is None or basis.shape != (m, rank):
            generator = torch.Generator().manual_seed(self.method.random_state)
            basis, rounds = torch.linalg.qr(torch.randn(m, rank, generator=generator))[0], 4
        for _ in range(rounds):
            mean, spread, total, ink = self._moments(found, basis)
            values, turn = torch.linalg.eigh(basis.double().T @ spread)
            # One pass is one step of the power method on the whole subspace.
            basis, values = torch.linalg.qr(spread @ turn.flip(1))[0].float(), values.flip(0).clamp(min=0)
        floor = self.method.noise**2
        rest = max(total - float(values.sum()), 0.0) / max(m - rank, 1)
        complexity = float((values + floor).log().sum() + (m - rank) * torch.log(torch.tensor(rest + floor))) / 2
        keep = ((values + floor) / (values + floor + self.method.distortion)).float()
        return Codebook(mean.float(), basis, keep, complexity, ink)

    def _moments(self, found: torch.Tensor, basis: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float, float]:
        """Mean (m,), covariance · basis (m, r), total variance and ink, in one pass and float64."""
        first: Any = 0.0
        product: Any = 0.0
        squares = ink = 0.0
        for part in self.parts:
            shown = self._shown(part, found).flatten(1).double()
            first, squares = first + shown.sum(0), squares + float(shown.square().sum())
            product = product + shown.T @ (shown @ basis.double())
            ink += float(shown.sum())
        n = len(self.stack)
        mean = first / n
        spread = product / n - mean[:, None] * (mean @ basis.double())
        return mean, spread, squares / n - float(mean @ mean), ink

    def step(self, found: torch.Tensor, code: Codebook) -> tuple[torch.Tensor, float]:
        """Move every image once: (new stack_from_frame, mean squared distance of a source image to its code)."""
        moved, distortion = torch.empty_like(found), 0.0
        for part in self.parts:
            images, masks = blur(self.stack.images(part), self.sigma), self.stack.masks(part)
            picture = code.project(self._shown(part, found))
            b, c = picture.shape[:2]
            slopes = steepest_descent(picture, self.method.motion).transpose(1, 2)  # (B, k, C·h·w)
            k = slopes.shape[1]
            maps = torch.cat([picture, slopes.reshape(b, k * c, *self.stack.frame)], 1)
            frame_from_stack = invert(found[part].double()).float()
            back = warp(maps, frame_from_stack, self.stack.size)
            residual = images - back[:, :c]
            weight = self._weight(frame_from_stack, masks)
            if weight is not None:
                residual = residual * weight
            jacobian = back[:, c:].reshape(b, k, -1)
            if weight is not None:
                jacobian = jacobian * weight.expand_as(residual).reshape(b, 1, -1)
            slope = jacobian @ residual.reshape(b, -1, 1)
            delta = (self.newton._solver(jacobian @ jacobian.transpose(1, 2)) @ slope)[..., 0]
            moved[part] = self.newton.compose(found[part], delta)
            distortion += float(residual.square().sum())
        return moved, distortion / len(self.stack)

    def _weight(self, frame_from_stack: torch.Tensor, masks: torch.Tensor | None) -> torch.Tensor | None:
        """Which source pixels count: all for objects, as what the frame misses is lost; the shared part of photos."""
        if self.kind == "object":
            return masks
        seen = coverage(frame_from_stack, self.stack.frame, self.stack.size)
        return seen if masks is None else seen * masks

    def _shown(self, part: Any, found: torch.Tensor) -> torch.Tensor:
        images = self.stack.images(part)
        # Photographs do not end in black: the edge is carried on, or every frame corner would be a principal direction.
        return warp(
            blur(images, self.sigma),
            found[part],
            self.stack.frame,
            padding="zeros" if self.kind == "object" else "border",
        )
