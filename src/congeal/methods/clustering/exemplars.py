"""Likeness of images to exemplars, each image aligned to the exemplar that it is compared with.

Aligning an image to thousands of exemplars would take too long. All are compared unaligned first, with one matrix
product, and only the most similar are aligned by a few affine Gauss-Newton steps. The exemplar is the template: the
compared view always has its size, so that shrinking an image gains nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch.nn.functional import pad

from congeal.evaluation.likeness import coherence
from congeal.geometry.matrix import Size
from congeal.geometry.warping import one_at_centre, sample_in_units, to_units
from congeal.images import Stack
from congeal.methods.clustering.views import FeatureSpace, make_views
from congeal.methods.semantic.extractors import Extractor
from congeal.registration.batching import CHUNK_VALUES
from congeal.registration.features import ImageFeatures
from congeal.registration.gauss_newton import GaussNewton, steepest_descent
from congeal.transforms.transforms import NO_GROUP

GAUSS_NEWTON_STEPS = 5
"""Steps of an alignment: four reach what eight reach; the fifth is for images that start farther away."""
NEAREST_AVERAGED = 3
"""Exemplars of a group, most similar first, whose mean likeness is the likeness to the group …"""
EXEMPLARS_PER_GROUP, GROUPS_TRIED = 6, 4
"""… of those that an image is aligned to in each of the most similar groups; the others hardly ever
win (chosen by judgement)."""
BATCH_IMAGES = 256
"""Images that are compared with all exemplars at once: more would take hundreds of
megabytes."""
NO_MATCH = -1.0
"""Likeness of an image to an exemplar that it cannot be aligned to."""


@dataclass(frozen=True)
class Exemplars:
    """Views (S, C, h, w) that images are compared with; motion None compares them unaligned."""

    views: torch.Tensor
    motion: str | None = "affine"

    @classmethod
    def of(cls, views: torch.Tensor, space: FeatureSpace | None) -> Exemplars:
        """Features hardly change with small motions: they are compared unaligned."""
        return cls(views, "affine" if space is None else None)

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
        return GaussNewton(self.motion or "affine", self.size)

    def correlations(self, views: torch.Tensor) -> torch.Tensor:
        """(B, S) correlation of images with all exemplars, unaligned."""
        return unit_vectors(views) @ self.unit_vectors.T

    def aligned_likeness(self, views: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
        """(B, m) correlation of images (B, C, h, w), once aligned, with the exemplars `which` (B, m)."""
        count, many = which.shape
        if self.motion is None:
            return (unit_vectors(views)[:, None] * self.unit_vectors[which]).sum(2).float()
        image, exemplar = torch.arange(count)[:, None].expand(count, many).flatten(), which.flatten()
        block = max(1, CHUNK_VALUES // self.views[0].numel())
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
        sound = (area > 0.4) & (area < 2.5)  # no match is squeezed or enlarged more
        return torch.where(sound, likeness, NO_MATCH)


@dataclass(frozen=True)
class GroupModel:
    """The groups of a set, as they are stored in a model: new images are assigned by it.

    exemplars : views (S, C, h, w), those of a group side by side. bounds (K + 1,): where each group begins and ends.
    min_likeness, min_coherence: an image with less of either is in no group. space: that of features, if views are
    features.
    """

    exemplars: Exemplars
    bounds: torch.Tensor
    min_likeness: float
    min_coherence: float = 0.0
    space: FeatureSpace | None = None

    @property
    def n_groups(self) -> int:
        """The number of groups."""
        return len(self.bounds) - 1

    @property
    def labels(self) -> np.ndarray:
        """(S,) the group of each exemplar."""
        return np.repeat(np.arange(self.n_groups), self.bounds.diff().numpy())

    def state(self) -> dict[str, torch.Tensor]:
        """As tensors, for a file."""
        numbers = [self.min_likeness, self.min_coherence, self.space.picture_size if self.space else 0]
        state = {"exemplars": self.exemplars.views, "bounds": self.bounds, "numbers": torch.tensor(numbers).double()}
        more = {"centre": self.space.centre, "whitening": self.space.whitening} if self.space else {}
        return state | more

    @classmethod
    def restore(cls, state: dict[str, torch.Tensor]) -> GroupModel:
        """The inverse of `state`."""
        likeness, coherent, size = state["numbers"].tolist()
        space = FeatureSpace(state["centre"], state["whitening"], int(size)) if "centre" in state else None
        return cls(Exemplars.of(state["exemplars"], space), state["bounds"], likeness, coherent, space)

    @torch.no_grad()
    def assign_images(
        self,
        stack: Stack,
        rows: np.ndarray,
        own: torch.Tensor,
        image_features: ImageFeatures,
        extractor: Extractor | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """What `assign` gives for some images of a stack, and their total intensity; own (B,): exemplar or −1."""
        parts = []
        for part in torch.arange(len(rows)).split(BATCH_IMAGES):
            some, exemplar = rows[part.numpy()], own[part]
            images = stack.images(some)
            if self.space is None:
                views = make_views(stack, some, image_features)
            else:
                views, new = self.exemplars.views[exemplar], exemplar < 0  # features of exemplars are known already
                if bool(new.any()):
                    assert extractor is not None
                    views[new] = self.space.views(stack, some[new.numpy()], extractor)
            group, *numbers = self.assign(views, exemplar)
            noise = coherence(images) < self.min_coherence
            parts.append((group.masked_fill(noise, NO_GROUP), *numbers, images.flatten(1).double().sum(1)))
        return tuple(torch.cat(column) for column in zip(*parts, strict=True))

    def assign(self, views: torch.Tensor, own: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Group, likeness to it and margin to the next best one, (B,) each, of images (B, C, h, w).

        own (B,): the exemplar that an image is itself, −1 for none.
        """
        alike = self.exemplars.correlations(views)
        rows = torch.nonzero(own >= 0)[:, 0]
        alike[rows, own[rows]] = -2
        best, which = [], []
        for low, high in pairwise(self.bounds.tolist()):
            top = alike[:, low:high].topk(min(EXEMPLARS_PER_GROUP, high - low), 1)
            lack = EXEMPLARS_PER_GROUP - top.values.shape[1]
            best.append(pad(top.values, (0, lack), value=-2))
            which.append(pad(top.indices + low, (0, lack), value=0))
        first = torch.stack([values[:, 0] for values in best], 1)
        tried = first.topk(min(GROUPS_TRIED, self.n_groups), 1).indices
        take = tried[:, :, None].expand(-1, -1, EXEMPLARS_PER_GROUP)
        values, exemplar = torch.stack(best, 1).gather(1, take), torch.stack(which, 1).gather(1, take)
        likeness = self.exemplars.aligned_likeness(views, exemplar.flatten(1))
        likeness = likeness.view(exemplar.shape).masked_fill(values <= -2, NO_MATCH)
        near = likeness.topk(NEAREST_AVERAGED, 2).values
        known = near > NO_MATCH
        score = (near * known).sum(2) / known.sum(2).clamp(min=1)
        score = torch.where(known.any(2), score, NO_MATCH)
        top = score.topk(min(2, score.shape[1]), 1)
        margin = top.values[:, 0] - top.values[:, 1] if score.shape[1] > 1 else torch.full((len(views),), float("nan"))
        return tried.gather(1, top.indices[:, :1])[:, 0], top.values[:, 0], margin


def unit_vectors(views: torch.Tensor) -> torch.Tensor:
    """(B, C·h·w) float64: pictures as vectors of mean 0 and norm 1. In float64, so that of two nearly equal exemplars
    the same one wins whatever other images are in the batch."""
    flat = views.flatten(1).double()
    flat = flat - flat.mean(1, keepdim=True)
    return flat / flat.norm(dim=1, keepdim=True).clamp(min=1e-9)
