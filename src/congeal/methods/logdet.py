"""Log-det congealing: a lossy code for the set, cheap in the frame and faithful in the source.

Vedaldi, Guidi and Soatto, "Joint data alignment up to (lossy) transformations", 2008. Every image is coded as a picture
in the frame and a transform. Codes should be simple together, ½ log det(ε²I + cov), and give every image back *in its
own pixels*: a frame that shows only an emptied corner, or a shrunken object, gives nothing back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch

from congeal.filters import frame_unit, gaussian_blur
from congeal.geometry import coverage, invert, warp
from congeal.images import Stack
from congeal.methods.checks import Count, Positive
from congeal.methods.fit_context import FitContext
from congeal.methods.iterative import (
    GaussNewtonMethod,
    Iterations,
    double_images,
    place_each,
    step_until_still,
    why_still,
)
from congeal.registration.batching import chunks
from congeal.registration.features import ImageFeatures
from congeal.registration.gauge import mean_motion
from congeal.registration.gauss_newton import steepest_descent

LEARNT = ("mean", "basis", "keep")  # of a codebook, for new images
FIRST_POWER_STEPS = 4
"""Power steps from a random basis; later ones begin where the last ended and need one. Chosen by judgement: the basis
goes on turning with every step of the images."""


@dataclass(kw_only=True, eq=False)
class LogDet(GaussNewtonMethod):
    """Log-det congealing: PCA of the aligned set and Gauss-Newton towards each image's projection, in turn.

    Minimises ½ log det(ε²I + cov(c)) + 1/(2D) Σ_i ‖I_i − c_i∘p_i⁻¹‖² / n over codes c_i and transforms p_i. Needs
    roughly aligned input. New images take steps towards their projections on the codes that the fit learnt.

    Parameters
    ----------
    noise : float
        ε: standard deviation of a pixel, in [0, 1], below which a direction of the codes costs nothing more.
    distortion : float
        D: how much squared error one nat of code is worth; large ones leave little more than the mean image.
    rank : int
        Principal directions kept, at most; the rest of the variance counts as one flat remainder.

    Attributes
    ----------
    history_ : list of dict
        After every step: cost, its parts complexity (nats) and distortion (squared error of an image), and motion (mean
        corner motion in pixels).
    transforms_, quality_, stack_from_frame_, layout_
        As for every method, see `Method`.
    """

    noise: Positive = 0.03
    distortion: Positive = 1.0
    rank: Count = 24

    name: ClassVar[str] = "logdet"

    @torch.no_grad()
    def _align(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> torch.Tensor:
        run = Iterations(self, stack, image_features, context, self.iterations, basis=None, codebooks=[])
        basis, codebooks = run.own["basis"], list(run.own["codebooks"])
        for at in run.levels():
            level = _Level(self, stack, self.blurs[at], image_features)
            for _ in run.steps():
                code = level.learn(run.poses, basis)
                basis = code.basis
                stepped, distortion = level.step(run.poses, code)
                cost = code.complexity + distortion / (2 * self.distortion)
                if at == len(self.blurs) - 1:
                    run.offer(run.poses, cost, code.ink)
                # Blur carries ink over the frame's edge, so only sharp images tell the scale.
                stepped = run.fix_gauge(stepped, None if level.sigma else code.ink)
                moved = mean_motion(run.poses, stepped, stack.frame)
                run.poses = stepped
                values = {"cost": cost, "complexity": code.complexity, "distortion": distortion, "motion": moved}
                run.end_step(values, why_still(moved, self.tolerance), basis=basis, codebooks=codebooks)
            code = level.learn(run.poses, basis)
            codebooks.append({name: getattr(code, name) for name in LEARNT})
        self._codebooks: list[dict[str, torch.Tensor]] = codebooks
        return run.result()

    def _align_new(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> torch.Tensor:
        """Gauss-Newton towards projections on what `fit` learnt at each level."""
        levels = [_Level(self, stack, sigma, image_features) for sigma in self.blurs]
        precise = [{name: code[name].double() for name in LEARNT} for code in self._codebooks]
        codes = [Codebook(code["mean"], code["basis"], code["keep"]) for code in precise]
        return place_each(stack, context, lambda part: self._place(stack, part, levels, codes))

    def _place(self, stack: Stack, part: np.ndarray, levels: list[_Level], codes: list[Codebook]) -> torch.Tensor:
        """Poses (B, 3, 3) of some images."""
        poses, images, masks = double_images(stack, part)
        for level, code, iterations in zip(levels, codes, self.iterations, strict=True):
            step, soft = partial(level.step_new, code), gaussian_blur(images, level.sigma)
            step_until_still(poses, step, iterations, self.tolerance, stack.frame, soft, masks)
        return poses.float()

    def _state(self) -> dict[str, torch.Tensor]:
        return {f"{i}.{name}": value for i, code in enumerate(self._codebooks) for name, value in code.items()}

    def _restore(self, state: Mapping[str, torch.Tensor]) -> None:
        self._codebooks = [{name: state[f"{i}.{name}"] for name in LEARNT} for i in range(len(self.blurs))]


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


class _Level:
    """One level of blur: passes over the set that learn the codebook or step every image towards its code."""

    def __init__(self, method: LogDet, stack: Stack, sigma: float, image_features: ImageFeatures) -> None:
        """sigma: in pixels of a 28-pixel frame."""
        self.method, self.stack, self.image_features, self.parts = method, stack, image_features, chunks(stack)
        self.sigma = sigma * frame_unit(stack.frame)
        self.newton = method._newton(stack)

    def learn(self, found: torch.Tensor, basis: torch.Tensor | None) -> Codebook:
        """PCA of the images as they are now, by subspace iteration that starts where the last one ended."""
        m = self.stack.channels * self.stack.frame[0] * self.stack.frame[1]
        rank = min(self.method.rank, m, len(self.stack) - 1)
        rounds = 1
        if basis is None or basis.shape != (m, rank):
            generator = torch.Generator().manual_seed(self.method.random_state_)
            basis = torch.linalg.qr(torch.randn(m, rank, generator=generator, dtype=torch.float32))[0]
            rounds = FIRST_POWER_STEPS
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
            shown = self._shown(gaussian_blur(self.stack.images(part), self.sigma), found[part]).flatten(1).double()
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
            images = gaussian_blur(self.stack.images(part), self.sigma)
            moved[part], squares = self.step_some(images, self.stack.masks(part), found[part], code)
            distortion += squares
        return moved, distortion / len(self.stack)

    def step_new(
        self, code: Codebook, poses: torch.Tensor, _: int, images: torch.Tensor, masks: torch.Tensor | None
    ) -> torch.Tensor:
        """`step_some` for new images."""
        return self.step_some(images, masks, poses, code)[0]

    def step_some(
        self, images: torch.Tensor, masks: torch.Tensor | None, found: torch.Tensor, code: Codebook
    ) -> tuple[torch.Tensor, float]:
        """Move some blurred images (B, C, H, W) once: (new stack_from_frame, summed squared distance to their codes).

        Masks, poses and codes have the precision of the images.
        """
        picture = code.project(self._shown(images, found))
        b, c = picture.shape[:2]
        slopes = steepest_descent(picture, self.method.motion).transpose(1, 2)  # (B, k, C·h·w)
        k = slopes.shape[1]
        maps = torch.cat([picture, slopes.reshape(b, k * c, *self.stack.frame)], 1)
        frame_from_stack = invert(found.double()).to(found)
        back = warp(maps, frame_from_stack, self.stack.size)
        residual = images - back[:, :c]
        jacobian, weight = back[:, c:].reshape(b, k, -1), masks
        if not self.image_features.empty_ground:  # of an object what the frame misses is lost, of a photo it is not
            seen = coverage(frame_from_stack, self.stack.frame, self.stack.size)
            weight = seen if masks is None else seen * masks
        if weight is not None:
            residual = residual * weight
            jacobian = jacobian * weight.expand_as(residual).reshape(b, 1, -1)
        slope = jacobian @ residual.reshape(b, -1, 1)
        delta = (self.newton.damped_inverse(jacobian @ jacobian.transpose(1, 2)) @ slope)[..., 0]
        return self.newton.compose(found, delta), float(residual.square().sum())

    def _shown(self, images: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        # Photographs do not end in black: the edge is carried on, or every frame corner would be a principal direction.
        return warp(images, found, self.stack.frame, padding=self.image_features.padding)
