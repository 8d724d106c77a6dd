"""One image whose pose the user corrects: points of the mean are pinned to where they belong in it.

The pins move the pose as far as they can say; from there the image is fitted to the mean, and the better pose is kept
as long as it leaves the pins where they are. No model is needed, so that this works for every method.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import max_pool2d, pad

from congeal.geometry import warp
from congeal.geometry.cover import covered
from congeal.geometry.matrix import invert, map_points
from congeal.geometry.pins import transform_from_points
from congeal.images import warp_pixels
from congeal.images.canvas import place
from congeal.pipeline.display import smaller
from congeal.solvers.contrast import REACH as SURROUNDINGS
from congeal.solvers.contrast import local_contrast
from congeal.solvers.filters import blur
from congeal.solvers.gaussnewton import GaussNewton

SIDE = 128  # pixels, longer side of the frame that is worked in
MARGIN = 0.25  # of a side: what is seen around the frame, for steps to find
BLURS = (3.0, 1.5, 0.0)  # pixels, coarse to fine
STEPS = 25  # at each
REACH = 0.05  # of the longer side: how far the fit may take a pin from where the user put it


@dataclass(frozen=True)
class Settled:
    """A corrected pose `aligned_from_source` (3, 3), and whether it was fitted or is just where the pins put it."""

    matrix: np.ndarray
    fitted: bool


@torch.no_grad()
def settle(
    pixels: np.ndarray,
    mean: np.ndarray,
    aligned_from_source: np.ndarray,
    pins: tuple[np.ndarray, np.ndarray],
    motion: str,
) -> Settled:
    """The pose of an image (H,W) after its pins, and after fitting it to the mean (h,w), both as floats.

    pins: (P,2) points of the aligned picture, and (P,2) where they belong in the source.
    """
    targets, places = pins
    begun = transform_from_points(map_points(aligned_from_source, places), targets, motion) @ aligned_from_source
    size = (mean.shape[0], mean.shape[1])
    frame = smaller(size, SIDE)
    frame_from_aligned = place(size, frame).matrix
    around = (round(MARGIN * frame[0]), round(MARGIN * frame[1]))
    canvas = (frame[0] + 2 * around[0], frame[1] + 2 * around[1])
    canvas_from_frame = np.array([[1.0, 0.0, around[1]], [0.0, 1.0, around[0]], [0.0, 0.0, 1.0]])
    source_from_canvas = invert(canvas_from_frame @ frame_from_aligned @ begun)
    seen = local_contrast(_tensor(warp_pixels(pixels[..., None], source_from_canvas, canvas)[..., 0]))
    wanted = local_contrast(_tensor(warp_pixels(mean[..., None], invert(frame_from_aligned), frame)[..., 0]))
    edge = max(1, round(2 * SURROUNDINGS * max(frame)))
    inside = _tensor(covered(source_from_canvas[None], (pixels.shape[0], pixels.shape[1]), canvas)[0])
    inside, rim = _within(inside, edge), _within(torch.ones(1, 1, *frame), edge)
    start = torch.as_tensor(canvas_from_frame)[None].float()
    found, newton = start, GaussNewton(motion, frame)
    for sigma in BLURS:
        soft, line = blur(seen, sigma), newton.linearise(blur(wanted, sigma)[0])
        for _ in range(STEPS):
            delta = newton.delta(warp(soft, found, frame), line, warp(inside, found, frame) * rim)
            found = newton.compose(found, delta)
    fitted_from_begun = frame_from_begun(found[0].double().numpy(), canvas_from_frame, frame_from_aligned)
    matrix = fitted_from_begun @ begun
    moved = np.hypot(*(map_points(matrix, places) - targets).T).max() if np.isfinite(matrix).all() else np.inf
    better = _alike(seen, found, wanted) > _alike(seen, start, wanted)
    if not better or moved > REACH * max(size):
        return Settled(begun / begun[2, 2], fitted=False)
    return Settled(matrix / matrix[2, 2], fitted=True)


def frame_from_begun(canvas_from_found: np.ndarray, canvas_from_frame: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """What the steps did, as a transform of the aligned picture."""
    return invert(scale) @ invert(canvas_from_found) @ canvas_from_frame @ scale


def _tensor(values: np.ndarray) -> torch.Tensor:
    return torch.as_tensor(np.ascontiguousarray(values), dtype=torch.float32)[None, None]


def _within(there: torch.Tensor, edge: int) -> torch.Tensor:
    """Where there is picture (1, 1, h, w) all around: near an edge local contrast knows one side only, and would hold
    the pose to where the edge is."""
    return -max_pool2d(-pad(there, (edge, edge, edge, edge)), 2 * edge + 1, stride=1)


def _alike(seen: torch.Tensor, canvas_from_frame: torch.Tensor, wanted: torch.Tensor) -> float:
    """Correlation of what the frame shows with what is wanted."""
    shown = warp(seen, canvas_from_frame, (wanted.shape[-2], wanted.shape[-1]))
    a, b = shown - shown.mean(), wanted - wanted.mean()
    return float((a * b).sum() / (a.norm() * b.norm() + 1e-12))
