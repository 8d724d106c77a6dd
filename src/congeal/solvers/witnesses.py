"""Which of many pictures is an image most like, once it is aligned to each? The pictures are called witnesses.

Comparing an image with thousands of witnesses would take thousands of alignments. So all are compared as they are
first, with one matrix product, and only those that can win are aligned: a few affine Gauss-Newton steps each, from
the view that both are seen in. A witness is linearised once, and the image is moved onto it: what is compared is
always as large as the witness, so that nothing is won by shrinking.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from congeal.geometry.matrix import Size
from congeal.geometry.sampling import one_at_centre, sample_in_units, to_units
from congeal.solvers.gaussnewton import GaussNewton, steepest_descent

STEPS = 5
"""Of Gauss-Newton: four reach what eight reach; the fifth is for images that start farther away."""
PAIRS_AT_ONCE = 400_000
"""Values of the views that are aligned together, so that they stay in cache."""
_SOUND = (0.4, 2.5)
"""Area of what is left of a pixel: an alignment that squeezes or blows up an image beyond it is no match."""
NO_MATCH = -1.0


@dataclass(frozen=True)
class Witnesses:
    """Views (S, C, h, w) that images are compared with; motion None compares them as they are."""

    views: torch.Tensor
    motion: str | None = "affine"

    def __len__(self) -> int:
        return len(self.views)

    @property
    def size(self) -> Size:
        """(height, width) of the views."""
        return self.views.shape[-2], self.views.shape[-1]

    @cached_property
    def directions(self) -> torch.Tensor:
        """(S, C·h·w) float64 of mean 0 and norm 1: their product with those of images is a correlation."""
        return directions(self.views)

    @cached_property
    def steps(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What a step towards each witness needs: pull (S, k, C·h·w) and rest (S, k); nothing if none is made."""
        if self.motion is None:
            return torch.zeros(0), torch.zeros(0)
        newton, done = self._newton, 0
        pull, rest = torch.zeros(0), torch.zeros(0)
        for some in self.views.split(256):
            jacobian = steepest_descent(some, self.motion)
            own = newton.damped_inverse(jacobian.transpose(1, 2) @ jacobian) @ jacobian.transpose(1, 2)
            if not done:
                pull, rest = own.new_empty(len(self), *own.shape[1:]), own.new_empty(len(self), own.shape[1])
            part = slice(done, done + len(some))
            pull[part], rest[part] = own, (own @ some.flatten(1)[..., None])[..., 0]
            done += len(some)
        return pull, rest

    @property
    def _newton(self) -> GaussNewton:
        assert self.motion is not None
        return GaussNewton(self.motion, self.size)

    def correlations(self, views: torch.Tensor) -> torch.Tensor:
        """(B, S) likeness of images to all witnesses as they are."""
        return directions(views) @ self.directions.T

    def nearest(self, views: torch.Tensor, count: int, *, without: torch.Tensor | None = None) -> torch.Tensor:
        """(B, count) the witnesses that images are most like as they are; `without` (B,): not this one."""
        alike = self.correlations(views)
        if without is not None:
            alike[torch.arange(len(views)), without] = -2
        return alike.topk(min(count, len(self) - (without is not None)), 1).indices

    def aligned(self, views: torch.Tensor, which: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Likeness (B, m) of images (B, C, h, w) to the witnesses `which` (B, m), aligned, and the poses found.

        Likeness is the correlation of what the witness's view shows; poses (B, m, 3, 3) are view_from_witness.
        """
        count, many = which.shape
        if self.motion is None:
            likeness = (directions(views)[:, None] * self.directions[which]).sum(2).float()
            return likeness, torch.eye(3).expand(count, many, 3, 3)
        image = torch.arange(count)[:, None].expand(count, many).flatten()
        witness = which.flatten()
        block = max(1, PAIRS_AT_ONCE // self.views[0].numel())
        found = [self._some(views, *some) for some in zip(image.split(block), witness.split(block), strict=True)]
        likeness, poses = (torch.cat(parts) for parts in zip(*found, strict=True))
        return likeness.view(count, many), poses.view(count, many, 3, 3)

    def _some(
        self, views: torch.Tensor, image: torch.Tensor, witness: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        own, (pulls, rests), newton = views[image], self.steps, self._newton
        pull, rest = pulls[witness], rests[witness]
        poses = torch.eye(3).expand(len(own), 3, 3)
        unit = to_units(poses, self.size, self.size)
        start = unit
        for _ in range(STEPS):
            shown = sample_in_units(own, unit, self.size)
            delta = torch.bmm(pull, shown.flatten(1)[..., None])[..., 0] - rest
            unit = one_at_centre(newton.compose(unit, delta), self.size)
        shown = sample_in_units(own, unit, self.size)
        likeness = (directions(shown) * self.directions[witness]).sum(1).float()
        change = torch.linalg.solve(start, unit)
        area = torch.linalg.det(change[:, :2, :2])
        sound = (area > _SOUND[0]) & (area < _SOUND[1])
        return torch.where(sound, likeness, NO_MATCH), change


def directions(views: torch.Tensor) -> torch.Tensor:
    """(B, C·h·w) float64: pictures as vectors of mean 0 and norm 1. In float64, so that of two witnesses that are
    nearly alike the same one wins whatever other images come along."""
    flat = views.flatten(1).double()
    flat = flat - flat.mean(1, keepdim=True)
    return flat / flat.norm(dim=1, keepdim=True).clamp(min=1e-9)
