"""Edge refinement of poses that were estimated from features.

A cell of a network is large: it separates a face from the background but does not locate the corner of an eye. Edges
do, where they are the same in all images; where they are not, as on birds, they mislead. Features take no part in this
refinement, so that their likeness before and after it is an independent test.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from congeal.execution.threads import single_torch_thread
from congeal.geometry import invert, normalise, warp
from congeal.images import Stack
from congeal.methods.semantic.feature_maps import MIN_RELATIVE_AGREEMENT, FeatureMaps, FeatureTemplate, Window
from congeal.registration.features import robust_features
from congeal.registration.gauge import Gauge
from congeal.registration.gauss_newton import GaussNewton

STEPS = 15
"""Gauss-Newton steps: cells of the network leave poses some pixels off, and a step moves one (chosen by judgement)."""
MOTION = "similarity"
"""Affine steps follow edges of the background: they are worse by features, and by landmarks of faces."""
MAX_SIMILARITY_LOSS = 0.005
"""Loss of feature likeness that the refinement may cost: its competitors were fitted to these very features (chosen by
judgement)."""


@dataclass(frozen=True)
class EdgeTemplate:
    """Mean edges of a set, (C, h, w) in the frame, and the weight of the object, (1, h, w)."""

    template: torch.Tensor
    weight: torch.Tensor

    @torch.no_grad()
    def register(self, stack: Stack, poses: np.ndarray) -> np.ndarray:
        """stack_from_frame poses of images registered to the template, each by itself."""
        with single_torch_thread():
            pose, newton = [], _newton(stack)
            line = newton.linearise(self.template)
            for i in range(len(stack)):
                edges, found = _BlurredEdges(stack, np.array([i])), torch.from_numpy(poses[[i]]).double()
                for _ in range(STEPS):
                    images, counted = edges.warped(found)
                    found = newton.compose(found, newton.delta(images, line, counted * self.weight).double())
                pose.append(found)
            return np.asarray(normalise(torch.cat(pose).numpy()))


@torch.no_grad()
def refine_on_edges(
    stack: Stack, poses: np.ndarray, weight: torch.Tensor, keep: np.ndarray
) -> tuple[np.ndarray, EdgeTemplate]:
    """Register all images jointly to the mean edges of those in `keep`; the mean motion is zero.

    weight (1, h, w): weight of the object in the frame, from 0 to 1.
    """
    began = torch.from_numpy(poses).double()
    newton, found, mean = _newton(stack), began, torch.zeros(0)
    # Poses of mirrored and plain images have no mean; their motions have one.
    gauge = Gauge(torch.eye(3).double().expand(len(stack), 3, 3), stack.frame, MOTION)
    with single_torch_thread():
        edges = _BlurredEdges(stack, np.arange(len(stack)))
        for _ in range(STEPS):
            images, counted = edges.warped(found)
            mean = (images * counted)[keep].sum(0) / counted[keep].sum(0).clamp(min=1e-3)
            moved = newton.compose(found, newton.delta(images, newton.linearise(mean), counted * weight).double())
            found = began @ gauge.fix(invert(began) @ moved, None, torch.from_numpy(keep))
    return np.asarray(normalise(found.numpy())), EdgeTemplate(mean, weight)


def refine_unless_worse(
    stack: Stack,
    seen: FeatureMaps,
    window: Window,
    begun: np.ndarray,
    found: np.ndarray,
    template: FeatureTemplate,
    agreement: np.ndarray,
) -> tuple[np.ndarray, tuple[float, EdgeTemplate | None]]:
    """Poses after the edge refinement if features, computed under the poses `begun`, stay as alike; the gain of their
    likeness, and the template of edges, None if the refinement was rejected."""
    frame_from_view = window.frame_from_view(seen.side)

    def likeness(poses: np.ndarray) -> float:
        """The mean likeness of each image's maps to the mean of the others, weighted by their agreement."""
        view_from_common = np.linalg.inv(frame_from_view) @ np.linalg.inv(begun) @ poses @ frame_from_view
        warped = [seen.warped(i, 0, matrix) for i, matrix in enumerate(view_from_common)]
        cells, counted = torch.stack([one for one, _ in warped]), torch.stack([one for _, one in warped])[..., None]
        others = (cells.sum(0) - cells) / (counted.sum(0) - counted).clamp(min=1e-3)
        weight = others.square().sum(-1, keepdim=True) * counted
        products = ((cells, others), (cells, cells), (others, others))
        both, own, theirs = ((weight * a * b).sum((1, 2)) for a, b in products)
        return float((both / (own * theirs).sqrt().clamp(min=1e-9)).mean())

    # The squared agreement at each pixel of the frame: the square suppresses the background.
    cell_from_frame = torch.from_numpy(np.linalg.inv(frame_from_view @ seen.view_from_cell))[None].float()
    shown = warp(template.weight.reshape(1, 1, *seen.grid), cell_from_frame, stack.frame)[0]
    weight = (shown / shown.max().clamp(min=1e-6)).square()
    keep = agreement >= MIN_RELATIVE_AGREEMENT * np.median(agreement)
    refined, edges = refine_on_edges(stack, found, weight, keep)
    gain = likeness(refined) - likeness(found)
    return (refined, (gain, edges)) if gain > -MAX_SIMILARITY_LOSS else (found, (gain, None))


def _newton(stack: Stack) -> GaussNewton:
    return GaussNewton(MOTION, stack.frame, robust=robust_features("photo").robust, max_step=1.0)


class _BlurredEdges:
    """Edges of some images of a stack."""

    def __init__(self, stack: Stack, rows: np.ndarray) -> None:
        self.stack, self.masks, self.edges = stack, stack.masks(rows), robust_features("photo")
        self.shown = self.edges.blurred(self.edges.features(stack.images(rows)), self.edges.last_blur(stack.frame))

    def warped(self, poses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Edges (B, C, h, w) warped to the frame, and their coverage (B, 1, h, w)."""
        counted = self.edges.covered(poses.float(), self.stack.size, self.stack.frame, self.masks)
        assert counted is not None
        return warp(self.shown, poses.float(), self.stack.frame), counted
