"""Inverse-compositional Gauss-Newton: the solver under `lsc` and under the refinement of the deep method.

One step aligns a batch of images to a template. The template is linearised once, so its Jacobian and, without
per-pixel weights, its Hessian are shared by all images: a step is one warp and one thin matrix product.

    r = I∘H − T        δ = (JᵀJ)⁻¹ Jᵀ r        H ← H · exp(−δ)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch

from congeal.geometry import from_normalised, map_points, matrix_from_parameters, n_parameters
from congeal.geometry.matrix import Size, corners
from congeal.geometry.motion import GENERATORS
from congeal.methods.appearance import gradient


def point_motion(points: torch.Tensor, frame: Size, motion: str) -> torch.Tensor:
    """How points (P, 2) of the frame move, in pixels, per unit of each parameter at the identity: (k, P, 2)."""
    height, width = frame
    unit = max(height, width) / 2
    x, y = (points[:, 0] - (width - 1) / 2) / unit, (points[:, 1] - (height - 1) / 2) / unit
    zero, one = torch.zeros_like(x), torch.ones_like(x)
    fields = [(one, zero), (zero, one), (-y, x), (x, y), (x, -y), (y, x), (-x * x, -x * y), (-x * y, -y * y)]
    return torch.stack([torch.stack(field, -1) for field in fields[: n_parameters(motion)]]) * unit


@lru_cache(maxsize=16)
def motion_field(frame: Size, motion: str) -> torch.Tensor:
    """`point_motion` of every pixel centre: (k, 2, h, w)."""
    y, x = torch.meshgrid(torch.arange(frame[0]), torch.arange(frame[1]), indexing="ij")
    points = torch.stack([x.flatten(), y.flatten()], -1).float()
    return point_motion(points, frame, motion).transpose(1, 2).reshape(-1, 2, *frame).contiguous()


@lru_cache(maxsize=16)
def _pixel_generators(frame: Size, motion: str) -> torch.Tensor:
    """The motion's generators in pixel coordinates: (k, 9)."""
    count = n_parameters(motion)
    return from_normalised(GENERATORS[:count], frame).reshape(count, 9)


def steepest_descent(template: torch.Tensor, motion: str) -> torch.Tensor:
    """J: how the template (..., C, h, w) changes per unit of each parameter → (..., C·h·w, k)."""
    size = (template.shape[-2], template.shape[-1])
    field = motion_field(size, motion).to(template)
    dx, dy = gradient(template)
    change = (
        dx[..., None, :, :, :] * field[:, 0, None] + dy[..., None, :, :, :] * field[:, 1, None]
    )  # (..., k, C, h, w)
    return change.flatten(-3).transpose(-1, -2)


@dataclass
class GaussNewton:
    """The step rule. All methods take and give `stack_from_frame` in pixels."""

    motion: str
    size: Size
    damping: float = 1e-2
    """Levenberg damping relative to the Hessian's diagonal."""
    max_step: float = 3.0
    """No corner of the frame moves farther than this many pixels in one step."""
    robust: float | None = None
    """Huber threshold in intensity units: residuals beyond it count linearly."""

    def linearise(self, template: torch.Tensor) -> Linearisation:
        """Prepare a template (C, h, w), shared by every image that is stepped towards it."""
        jacobian = steepest_descent(template, self.motion)
        return Linearisation(template, jacobian, self._solver(jacobian.T @ jacobian))

    def _solver(self, hessian: torch.Tensor) -> torch.Tensor:
        """The damped inverse of (..., k, k), in float64; a flat template gives a zero step, not an error."""
        hessian = hessian.double()
        diagonal = torch.diagonal(hessian, dim1=-2, dim2=-1)
        floor = 1e-6 * diagonal.amax(-1, keepdim=True) + 1e-12
        return torch.linalg.inv(hessian + torch.diag_embed(self.damping * diagonal + floor)).float()

    def delta(self, warped: torch.Tensor, line: Linearisation, weights: torch.Tensor | None = None) -> torch.Tensor:
        """The parameter step (B, k) of images already sampled into the frame (B, C, h, w).

        `weights` (B, 1 or C, h, w) count pixels: coverage, masks.
        """
        if weights is None and self.robust is None:
            # Jᵀ(I − T) as JᵀI − JᵀT: the residual image itself is never made.
            return (warped.flatten(1) @ line.jacobian - line.template.flatten() @ line.jacobian) @ line.solver
        residual = (warped - line.template).flatten(1)
        weight = torch.ones_like(residual) if weights is None else weights.expand_as(warped).flatten(1)
        if self.robust is not None:
            weight = weight * (self.robust / residual.abs().clamp(min=self.robust))
        upper = torch.triu_indices(line.jacobian.shape[1], line.jacobian.shape[1])
        products = line.jacobian[:, upper[0]] * line.jacobian[:, upper[1]]
        entries = weight @ products  # every image's own Hessian, from one matrix product
        hessian = warped.new_empty(len(warped), line.jacobian.shape[1], line.jacobian.shape[1])
        hessian[:, upper[0], upper[1]] = entries
        hessian[:, upper[1], upper[0]] = entries
        slope = (residual * weight) @ line.jacobian
        return (self._solver(hessian) @ slope[..., None])[..., 0]

    def compose(self, stack_from_frame: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        """H · exp(−δ), with each image's step shortened so that no corner exceeds `max_step`."""
        frame = torch.as_tensor(corners(self.size), dtype=delta.dtype, device=delta.device)
        step = self._step(delta)
        moved = (map_points(step, frame) - frame).square().sum(-1).amax(-1).sqrt()
        too_far = ~(moved <= self.max_step)  # NaN, from a step over the horizon, counts as too far
        if bool(too_far.any()):
            shorter = (self.max_step / moved[too_far]).nan_to_num(0.0).clamp(max=1.0)
            step[too_far] = self._step(delta[too_far] * shorter[:, None])
        return stack_from_frame @ step

    def _step(self, delta: torch.Tensor) -> torch.Tensor:
        """exp(−δ) in pixels. Three terms of it where any matrix is a valid step and steps are short: twice as fast."""
        if self.motion not in ("affine", "homography") or not math.isfinite(self.max_step):
            return from_normalised(matrix_from_parameters(-delta), self.size)
        generators = _pixel_generators(self.size, self.motion).to(delta)
        a = (delta @ generators).view(-1, 3, 3)
        square = a @ a
        return torch.eye(3, dtype=delta.dtype, device=delta.device) - a + (square - (square @ a) / 3) / 2


@dataclass
class Linearisation:
    template: torch.Tensor  # (C, h, w)
    jacobian: torch.Tensor  # (C·h·w, k)
    solver: torch.Tensor  # (k, k), the damped inverse Hessian
