"""The pose of one image, corrected by the user, who drags points of the mean to their place in that image.

The pose is first fitted to these points, then registered to the mean; the registered pose is used if it correlates
better and leaves the points in place. No model is needed, so that this works for every method.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import max_pool2d, pad

from congeal.filters import NEIGHBOURHOOD_SHARE, gaussian_blur, local_contrast
from congeal.geometry import warp
from congeal.geometry.frame_coverage import covered
from congeal.geometry.matrix import invert, map_points
from congeal.geometry.motion import transform_from_points
from congeal.images import warp_pixels
from congeal.images.canvas import place
from congeal.pipeline.display import fit_within
from congeal.registration.gauss_newton import GaussNewton

FRAME_SIDE_PX = 128
"""Longer side of the frame in which the image is registered."""
MARGIN_SHARE = 0.25
"""Width of the margin around the frame, relative to its sides, that registration can reach into."""
BLUR_SIGMAS_PX = (3.0, 1.5, 0.0)
"""Coarse to fine."""
STEPS_PER_BLUR = 25
MAX_PIN_SHIFT = 0.05
"""Largest shift of a point by the registration, relative to the longer side."""


@dataclass(frozen=True)
class RefitResult:
    """A corrected pose `aligned_from_source` (3, 3), and whether it was registered to the mean or only to the pins."""

    matrix: np.ndarray
    fitted: bool


@torch.no_grad()
def refit_pose(
    pixels: np.ndarray,
    mean: np.ndarray,
    aligned_from_source: np.ndarray,
    pins: tuple[np.ndarray, np.ndarray],
    motion: str,
) -> RefitResult:
    """The pose of an image (H,W), fitted to its pins and then registered to the mean (h,w), both as floats.

    pins: (P,2) points of the aligned picture, and (P,2) where they belong in the source.
    """
    targets, places = pins
    begun = transform_from_points(map_points(aligned_from_source, places), targets, motion) @ aligned_from_source
    size = (mean.shape[0], mean.shape[1])
    frame = fit_within(size, FRAME_SIDE_PX)
    frame_from_aligned = place(size, frame).matrix
    around = (round(MARGIN_SHARE * frame[0]), round(MARGIN_SHARE * frame[1]))
    canvas = (frame[0] + 2 * around[0], frame[1] + 2 * around[1])
    canvas_from_frame = np.array([[1.0, 0.0, around[1]], [0.0, 1.0, around[0]], [0.0, 0.0, 1.0]])
    source_from_canvas = invert(canvas_from_frame @ frame_from_aligned @ begun)
    seen = local_contrast(_tensor(warp_pixels(pixels[..., None], source_from_canvas, canvas)[..., 0]))
    wanted = local_contrast(_tensor(warp_pixels(mean[..., None], invert(frame_from_aligned), frame)[..., 0]))
    edge = max(1, round(2 * NEIGHBOURHOOD_SHARE * max(frame)))
    inside = _tensor(covered(source_from_canvas[None], (pixels.shape[0], pixels.shape[1]), canvas)[0])
    inside, rim = _within(inside, edge), _within(torch.ones(1, 1, *frame), edge)
    start = torch.as_tensor(canvas_from_frame)[None].float()
    found, newton = start, GaussNewton(motion, frame)
    for sigma in BLUR_SIGMAS_PX:
        soft, line = gaussian_blur(seen, sigma), newton.linearise(gaussian_blur(wanted, sigma)[0])
        for _ in range(STEPS_PER_BLUR):
            delta = newton.delta(warp(soft, found, frame), line, warp(inside, found, frame) * rim)
            found = newton.compose(found, delta)
    fitted_from_begun = frame_from_begun(found[0].double().numpy(), canvas_from_frame, frame_from_aligned)
    matrix = fitted_from_begun @ begun
    moved = np.hypot(*(map_points(matrix, places) - targets).T).max() if np.isfinite(matrix).all() else np.inf
    better = _alike(seen, found, wanted) > _alike(seen, start, wanted)
    if not better or moved > MAX_PIN_SHIFT * max(size):
        return RefitResult(begun / begun[2, 2], fitted=False)
    return RefitResult(matrix / matrix[2, 2], fitted=True)


def frame_from_begun(canvas_from_found: np.ndarray, canvas_from_frame: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The composed steps as a transform of the aligned frame."""
    return invert(scale) @ invert(canvas_from_found) @ canvas_from_frame @ scale


def _tensor(values: np.ndarray) -> torch.Tensor:
    return torch.as_tensor(np.ascontiguousarray(values), dtype=torch.float32)[None, None]


def _within(there: torch.Tensor, edge: int) -> torch.Tensor:
    """The mask (1, 1, h, w) eroded by `edge`: local contrast near an edge would hold the pose to the edge."""
    return -max_pool2d(-pad(there, (edge, edge, edge, edge)), 2 * edge + 1, stride=1)


def _alike(seen: torch.Tensor, canvas_from_frame: torch.Tensor, wanted: torch.Tensor) -> float:
    """Correlation of the image in the frame with the mean."""
    shown = warp(seen, canvas_from_frame, (wanted.shape[-2], wanted.shape[-1]))
    a, b = shown - shown.mean(), wanted - wanted.mean()
    return float((a * b).sum() / (a.norm() * b.norm() + 1e-12))
