"""The last step of images that were brought together by features: on their edges, where features do not object.

A cell of a network is large: it tells what is a face from what is not, but says little about where an eye ends. Edges
do, where they are the same in all images. Where they are not, as on birds, they lead astray. Features decide: they
have no part in this step, so that what they say about its poses is evidence of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from congeal.geometry import invert, normalise, warp
from congeal.images import Stack
from congeal.solvers.appearance import lasting_appearance
from congeal.solvers.gauge import Gauge
from congeal.solvers.gaussnewton import GaussNewton
from congeal.solvers.looks import Look, Window
from congeal.solvers.threads import one_thread

STEPS = 15
MOTION = "similarity"
"""An affine step follows edges of what is around the object: it is worse by features, and by landmarks of faces."""
_FARTHEST = 1.0  # pixels of the frame that a corner may move in one step


@dataclass(frozen=True)
class Edges:
    """What is left of the edges of a set on average, (C, h, w) in the frame, and where the object is, (1, h, w)."""

    template: torch.Tensor
    weight: torch.Tensor

    @torch.no_grad()
    def place(self, stack: Stack, poses: np.ndarray) -> np.ndarray:
        """stack_from_frame poses of images after steps towards the template, each image by itself."""
        with one_thread():
            pose, line = [], _newton(stack).linearise(self.template)
            for i in range(len(stack)):
                shown, found = _softened(stack, np.array([i])), torch.from_numpy(poses[[i]]).double()
                for _ in range(STEPS):
                    images, counted = _in_frame(stack, np.array([i]), shown, found)
                    delta = _newton(stack).delta(images, line, counted * self.weight)
                    found = _newton(stack).compose(found, delta.double())
                pose.append(found)
            return np.asarray(normalise(torch.cat(pose).numpy()))


@torch.no_grad()
def settle(stack: Stack, poses: np.ndarray, weight: torch.Tensor, keep: np.ndarray) -> tuple[np.ndarray, Edges]:
    """Joint steps of all images towards the mean edges of those in `keep`; the mean pose stays where it is.

    weight (1, h, w): where in the frame the object is, from 0 to 1.
    """
    everyone, began = np.arange(len(stack)), torch.from_numpy(poses).double()
    newton, found, mean = _newton(stack), began, torch.zeros(0)
    # Poses of mirrored and plain images have no mean; what each was moved by has.
    gauge = Gauge(torch.eye(3).double().expand(len(stack), 3, 3), stack.frame, MOTION)
    with one_thread():
        shown = _softened(stack, everyone)
        for _ in range(STEPS):
            images, counted = _in_frame(stack, everyone, shown, found)
            mean = (images * counted)[keep].sum(0) / counted[keep].sum(0).clamp(min=1e-3)
            moved = newton.compose(found, newton.delta(images, newton.linearise(mean), counted * weight).double())
            found = began @ gauge.fix(invert(began) @ moved, None, torch.from_numpy(keep))
    return np.asarray(normalise(found.numpy())), Edges(mean, weight)


def in_frame(weight: torch.Tensor, seen: Look, window: Window, frame: tuple[int, int]) -> torch.Tensor:
    """(1, h, w) how much images agree at each pixel of the frame, from how much they do in cells (L,) of a window: the
    square, so that the object counts and what is around it does not."""
    frame_from_cell = window.frame_from_view(seen.side) @ seen.view_from_cell
    cells = torch.from_numpy(np.linalg.inv(frame_from_cell))[None].float()
    shown = warp(weight.reshape(1, 1, *seen.grid), cells, frame)[0]
    return (shown / shown.max().clamp(min=1e-6)).square()


def alike(seen: Look, view_from_common: np.ndarray) -> np.ndarray:
    """(n,) how like the mean of the others each image is, by the cells of a look moved to the common view (n, 3, 3),
    where the others agree."""
    found = [seen.moved(i, 0, matrix) for i, matrix in enumerate(view_from_common)]
    cells, counted = torch.stack([one for one, _ in found]), torch.stack([one for _, one in found])[..., None]
    others = (cells.sum(0) - cells) / (counted.sum(0) - counted).clamp(min=1e-3)
    weight = others.square().sum(-1, keepdim=True) * counted
    both, own, theirs = ((weight * a * b).sum((1, 2)) for a, b in ((cells, others), (cells, cells), (others, others)))
    return np.asarray((both / (own * theirs).sqrt().clamp(min=1e-9)).numpy())


def _newton(stack: Stack) -> GaussNewton:
    return GaussNewton(MOTION, stack.frame, robust=lasting_appearance("photo").robust, max_step=_FARTHEST)


def _softened(stack: Stack, rows: np.ndarray) -> torch.Tensor:
    edges = lasting_appearance("photo")
    return edges.blurred(edges.features(stack.images(rows)), edges.last_blur(stack.frame))


def _in_frame(
    stack: Stack, rows: np.ndarray, shown: torch.Tensor, poses: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Edges (B, C, h, w) as the frame shows them, and where they count (B, 1, h, w)."""
    counted = lasting_appearance("photo").covered(poses.float(), stack.size, stack.frame, stack.masks(rows))
    assert counted is not None
    return warp(shown, poses.float(), stack.frame), counted
