"""What the pieces of objects reach by chance: the likeness of a set that has everything in common but its objects.

Random blobs on black ground are bright in some places and empty in others, as objects are, and steps towards their mean
make them alike. Noise of the same spectrum knows nothing of empty ground. So the images are cut into squares, which are
laid elsewhere, and what comes of that is aligned in the plainest way.
"""

from __future__ import annotations

import numpy as np
import torch

from congeal.images import Stack, prepare
from congeal.images.arrays import ArraySource
from congeal.methods.views import ContrastViews, each_likeness
from congeal.metrics.limits import CHANCE_IMAGES
from congeal.solvers.appearance import plain_appearance
from congeal.solvers.filters import frame_unit
from congeal.solvers.gauge import Gauge
from congeal.solvers.gaussnewton import GaussNewton
from congeal.solvers.setpass import SetPass
from congeal.solvers.streaming import start_poses

_SQUARES = 4  # along each side
_STEPS = ((2.0, 10), (1.0, 10), (0.0, 20))  # (blur in pixels of a 28-pixel frame, steps); further ones change little
_MOST_MOTION = 3.0  # pixels of a corner in one step


def likeness_in_pieces(views: ContrastViews) -> float:
    """The likeness that pieces of the images of some views reach, aligned by homographies; NaN where there are none.
    The same set always has the same pieces."""
    rows = np.unique(np.linspace(0, views.count - 1, min(views.count, CHANCE_IMAGES)).round().astype(int))
    shown = views.pictures(rows)
    if min(shown.shape[2:]) < _SQUARES or not shown.any():
        return float("nan")
    source = ArraySource(_laid_elsewhere(shown).permute(0, 2, 3, 1).contiguous().numpy())
    source.kind = "object"
    stack = prepare(source, size=max(views.whole.frame))
    alike = each_likeness(*ContrastViews(stack, _aligned(stack), "object").of(np.arange(len(stack))))
    return float(alike[np.isfinite(alike)].mean()) if np.isfinite(alike).any() else float("nan")


def _laid_elsewhere(pictures: torch.Tensor) -> torch.Tensor:
    """Pictures (B,C,h,w) cut into squares, each of which may be mirrored, in another order."""
    height, width = (side // _SQUARES for side in pictures.shape[2:])
    draws = np.random.default_rng(0)
    laid = []
    for picture in pictures[:, :, : _SQUARES * height, : _SQUARES * width]:
        squares = (
            picture.unfold(1, height, height).unfold(2, width, width).flatten(1, 2)[:, draws.permutation(_SQUARES**2)]
        )
        for k, flips in enumerate(draws.integers(0, 2, (_SQUARES**2, 2))):
            squares[:, k] = squares[:, k].flip([axis + 1 for axis in (0, 1) if flips[axis]])
        rows = squares.unflatten(1, (_SQUARES, _SQUARES)).permute(0, 1, 3, 2, 4)
        laid.append(rows.reshape(-1, _SQUARES * height, _SQUARES * width))
    return torch.stack(laid)


def _aligned(stack: Stack) -> np.ndarray:
    """Gauss-Newton steps of all images to their mean, first blurred."""
    appearance, newton = plain_appearance("object"), GaussNewton("homography", stack.frame, max_step=_MOST_MOTION)
    gauge = Gauge.of_stack(stack, "homography", holds_ink=True)
    poses = start_poses(stack)
    for sigma, steps in _STEPS:
        solver = SetPass(stack, newton, appearance, sigma * frame_unit(stack.frame), gauge=gauge)
        solver.target = solver.collect(poses)
        for _ in range(steps):
            poses, _, _ = solver.step(poses)
    return poses.numpy()
