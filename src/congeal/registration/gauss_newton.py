"""Inverse-compositional Gauss-Newton: the solver of `lsc`, `joint` and the refinement of `dprc`.

One step aligns a batch of images to a template. The template is linearised once, so its Jacobian and, without
per-pixel weights, its Hessian are shared by all images: a step is one warp and one thin matrix product.

    r = I∘H − T        δ = (JᵀJ)⁻¹ Jᵀ r        H ← H · exp(−δ)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch

from congeal.filters import gradient
from congeal.geometry import from_normalised, map_points, matrix_from_parameters, n_parameters
from congeal.geometry.matrix import Size, corners
from congeal.geometry.motion import GENERATORS
from congeal.geometry.warping import from_units, one_at_centre, sample_in_units, to_units


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


@lru_cache(maxsize=16)
def _corner_motion(frame: Size, motion: str) -> torch.Tensor:
    """`point_motion` of the frame's corners: (k, 8)."""
    return point_motion(torch.as_tensor(corners(frame)), frame, motion).flatten(1)


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
        pull = (jacobian @ self.damped_inverse(jacobian.T @ jacobian)).T.contiguous()
        return Linearisation(template, jacobian, pull, pull @ template.flatten())

    def damped_inverse(self, hessian: torch.Tensor) -> torch.Tensor:
        """The damped inverse of (..., k, k), found in float64; a flat template gives a zero step, not an error."""
        exact = hessian.double()
        diagonal = torch.diagonal(exact, dim1=-2, dim2=-1)
        floor = 1e-6 * diagonal.amax(-1, keepdim=True) + 1e-12
        return torch.linalg.inv(exact + torch.diag_embed(self.damping * diagonal + floor)).to(hessian.dtype)

    def delta(
        self,
        warped: torch.Tensor,
        line: Linearisation,
        weights: torch.Tensor | None = None,
        prior: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """The parameter step (B, k) of images already sampled into the frame (B, C, h, w).

        `weights` (B, 1 or C, h, w) count pixels: coverage, masks. `prior`: how far each image is from where it is
        expected (B, k), and with what precision (B or 1, k) per unit of residual variance that is known.
        """
        if weights is None and self.robust is None and prior is None:
            # The residual image itself is never made; a product with few rows is far faster than one with few columns.
            return (line.pull @ warped.flatten(1).T).T - line.rest
        residual = (warped - line.template).flatten(1)
        weight = torch.ones_like(residual) if weights is None else weights.expand_as(warped).flatten(1)
        if self.robust is not None:
            weight = weight * (self.robust / residual.abs().clamp(min=self.robust))
        upper, products = line.products
        entries = weight @ products  # every image's own Hessian, from one matrix product
        hessian = warped.new_empty(len(warped), line.jacobian.shape[1], line.jacobian.shape[1])
        hessian[:, upper[0], upper[1]] = entries
        hessian[:, upper[1], upper[0]] = entries
        # In float64: what is left of it near the optimum is far smaller than its terms.
        slope = ((residual * weight).double() @ line.exact_jacobian).to(residual.dtype)
        if prior is not None:
            away, precision = prior
            noise = (residual.square() * weight).sum(1) / weight.sum(1).clamp(min=1.0)
            stiffness = noise[:, None] * precision
            hessian += torch.diag_embed(stiffness)
            slope += stiffness * away
        return (self.damped_inverse(hessian) @ slope[..., None])[..., 0]

    def descend(
        self, images: torch.Tensor, stack_from_frame: torch.Tensor, line: Linearisation, steps: int
    ) -> torch.Tensor:
        """`steps` unweighted steps of images (B, C, H, W), without leaving the sampler's coordinates in between.

        Sums are in float64, so that an image's result is the same in any batch: steps magnify what rounding leaves.
        """
        source_size = (images.shape[-2], images.shape[-1])
        unit = to_units(stack_from_frame.double(), source_size, self.size)
        pull, rest = line.pull.double(), line.rest.double()
        for _ in range(steps):
            shown = sample_in_units(images, unit.to(images.dtype), self.size)
            delta = (pull @ shown.flatten(1).double().T).T - rest
            unit = one_at_centre(self.compose(unit, delta), self.size)
        return from_units(unit, source_size).to(stack_from_frame.dtype)

    def compose(self, stack_from_frame: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        """H · exp(−δ), with each image's step shortened so that no corner moves farther than about `max_step`."""
        if math.isfinite(self.max_step):
            moved = (delta @ _corner_motion(self.size, self.motion).to(delta)).view(-1, 4, 2).square().sum(-1).amax(-1)
            delta = delta * (self.max_step / moved.sqrt().clamp(min=self.max_step))[:, None]
            if self.motion in ("affine", "homography"):  # any matrix is a valid step, so the exponential's line will do
                step = (delta @ _pixel_generators(self.size, self.motion).to(delta)).view(-1, 3, 3)
                return torch.baddbmm(stack_from_frame, stack_from_frame, step, alpha=-1)
        step = from_normalised(matrix_from_parameters(-delta), self.size)
        moved = map_points(step, torch.as_tensor(corners(self.size)).to(delta))
        usable = moved.square().sum((1, 2)).isfinite()  # an unbounded step can leave what numbers can say
        moved_on = one_at_centre(stack_from_frame @ step, self.size)
        return torch.where(usable[:, None, None], moved_on, stack_from_frame)


@dataclass
class Linearisation:
    """A template and what a step towards it needs, made once for all images."""

    template: torch.Tensor  # (C, h, w)
    jacobian: torch.Tensor  # (C·h·w, k)
    pull: torch.Tensor  # (k, C·h·w): H⁻¹Jᵀ, from the damped Hessian
    rest: torch.Tensor  # (k,): what the template itself gives under `pull`

    @cached_property
    def exact_jacobian(self) -> torch.Tensor:
        """The Jacobian in float64."""
        return self.jacobian.double()

    @cached_property
    def products(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Which two parameters (2, k(k+1)/2), and the product of their columns (C·h·w, k(k+1)/2)."""
        upper = torch.triu_indices(self.jacobian.shape[1], self.jacobian.shape[1])
        return upper, self.jacobian[:, upper[0]] * self.jacobian[:, upper[1]]
