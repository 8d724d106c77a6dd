"""Likeness of images to exemplars, each image aligned to the exemplar that it is compared with.

Aligning an image to thousands of exemplars would take too long. All are compared unaligned first, with one matrix
product, and only the most similar are aligned by a few affine Gauss-Newton steps. The exemplar is the template: the
compared view always has its size, so that shrinking an image gains nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from congeal.geometry.matrix import Size
from congeal.geometry.warping import one_at_centre, sample_in_units, to_units
from congeal.registration.gauss_newton import GaussNewton, steepest_descent

GAUSS_NEWTON_STEPS = 5
"""Steps of an alignment: four reach what eight reach; the fifth is for images that start farther away."""
MAX_BATCH_VALUES = 400_000
"""Values of the views that are aligned together, so that they stay in cache."""
AREA_CHANGE_RANGE = (0.4, 2.5)
"""Change of area beyond which an alignment squeezes or enlarges an image too much to be a match."""
NO_MATCH = -1.0
"""Likeness of an image to an exemplar that it cannot be aligned to."""


@dataclass(frozen=True)
class Exemplars:
    """Views (S, C, h, w) that images are compared with; motion None compares them unaligned."""

    views: torch.Tensor
    motion: str | None = "affine"

    def __len__(self) -> int:
        return len(self.views)

    @property
    def size(self) -> Size:
        """(height, width) of the views."""
        return self.views.shape[-2], self.views.shape[-1]

    @cached_property
    def unit_vectors(self) -> torch.Tensor:
        """(S, C·h·w) float64 of mean 0 and norm 1: their product with those of images is a correlation."""
        return unit_vectors(self.views)

    @cached_property
    def linearisations(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Gauss-Newton matrices (S, k, C·h·w) and their products with the exemplar itself (S, k)."""
        if self.motion is None:
            return torch.zeros(0), torch.zeros(0)
        matrices, offsets = [], []
        for some in self.views.split(256):
            jacobian = steepest_descent(some, self.motion).transpose(1, 2)
            matrices.append(self._newton.damped_inverse(jacobian @ jacobian.transpose(1, 2)) @ jacobian)
            offsets.append((matrices[-1] @ some.flatten(1)[..., None])[..., 0])
        return torch.cat(matrices), torch.cat(offsets)

    @property
    def _newton(self) -> GaussNewton:
        assert self.motion is not None
        return GaussNewton(self.motion, self.size)

    def correlations(self, views: torch.Tensor) -> torch.Tensor:
        """(B, S) correlation of images with all exemplars, unaligned."""
        return unit_vectors(views) @ self.unit_vectors.T

    def nearest(self, views: torch.Tensor, count: int, *, without: torch.Tensor | None = None) -> torch.Tensor:
        """(B, count) the most similar exemplars, unaligned; `without` (B,): an exemplar to leave out."""
        alike = self.correlations(views)
        if without is not None:
            alike[torch.arange(len(views)), without] = -2
        return alike.topk(min(count, len(self) - (without is not None)), 1).indices

    def aligned_likeness(self, views: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
        """(B, m) correlation of images (B, C, h, w), once aligned, with the exemplars `which` (B, m)."""
        count, many = which.shape
        if self.motion is None:
            return (unit_vectors(views)[:, None] * self.unit_vectors[which]).sum(2).float()
        image, exemplar = torch.arange(count)[:, None].expand(count, many).flatten(), which.flatten()
        block = max(1, MAX_BATCH_VALUES // self.views[0].numel())
        parts = zip(image.split(block), exemplar.split(block), strict=True)
        return torch.cat([self._aligned_pairs(views[one], other) for one, other in parts]).view(count, many)

    def _aligned_pairs(self, own: torch.Tensor, exemplar: torch.Tensor) -> torch.Tensor:
        (matrices, offsets), newton = self.linearisations, self._newton
        matrix, offset = matrices[exemplar], offsets[exemplar]
        unit = start = to_units(torch.eye(3).expand(len(own), 3, 3), self.size, self.size)
        for _ in range(GAUSS_NEWTON_STEPS):
            shown = sample_in_units(own, unit, self.size)
            delta = torch.bmm(matrix, shown.flatten(1)[..., None])[..., 0] - offset
            unit = one_at_centre(newton.compose(unit, delta), self.size)
        shown = sample_in_units(own, unit, self.size)
        likeness = (unit_vectors(shown) * self.unit_vectors[exemplar]).sum(1).float()
        area = torch.linalg.det(torch.linalg.solve(start, unit)[:, :2, :2])
        sound = (area > AREA_CHANGE_RANGE[0]) & (area < AREA_CHANGE_RANGE[1])
        return torch.where(sound, likeness, NO_MATCH)


def unit_vectors(views: torch.Tensor) -> torch.Tensor:
    """(B, C·h·w) float64: pictures as vectors of mean 0 and norm 1. In float64, so that of two nearly equal exemplars
    the same one wins whatever other images are in the batch."""
    flat = views.flatten(1).double()
    flat = flat - flat.mean(1, keepdim=True)
    return flat / flat.norm(dim=1, keepdim=True).clamp(min=1e-9)
