"""The pose of one image, corrected by the user, who drags points of the mean to their place in that image.

The pose is first fitted to these points, then registered to the mean; the registered pose is used if it correlates
better and leaves the points in place. No model is needed, so that this works for every method.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import max_pool2d, pad

from congeal.filters import NEIGHBOURHOOD_SHARE, gaussian_blur, local_contrast, normalised_correlation
from congeal.geometry import warp
from congeal.geometry.frame_coverage import covered
from congeal.geometry.matrix import invert, map_points
from congeal.geometry.motion import transform_from_points
from congeal.images import warp_pixels
from congeal.images.canvas import place
from congeal.pipeline.display import fit_within
from congeal.registration.gauss_newton import GaussNewton

FRAME_SIDE_PX = 128
"""Longer side of the frame in which the image is registered: fine enough for a hand.
Chosen by judgement, like the others here."""
BLUR_SIGMAS_PX, STEPS_PER_BLUR = (3.0, 1.5, 0.0), 25
"""Coarse to fine; a pin that is off by a few pixels of the frame lies within the first blur."""
MAX_PIN_SHIFT = 0.05
"""Largest shift of a point by the registration, relative to the longer side: beyond it the user is right."""


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
    source_from_frame = invert(frame_from_aligned @ begun)
    image = local_contrast(_tensor(warp_pixels(pixels, source_from_frame, frame)))
    template = local_contrast(_tensor(warp_pixels(mean, invert(frame_from_aligned), frame)))
    inside = _eroded(_tensor(covered(source_from_frame[None], (pixels.shape[0], pixels.shape[1]), frame)[0]), frame)
    rim = _eroded(torch.ones(1, 1, *frame), frame)
    start = torch.eye(3)[None]
    found, newton = start, GaussNewton(motion, frame)
    for sigma in BLUR_SIGMAS_PX:
        soft, line = gaussian_blur(image, sigma), newton.linearise(gaussian_blur(template, sigma)[0])
        for _ in range(STEPS_PER_BLUR):
            delta = newton.delta(warp(soft, found, frame), line, warp(inside, found, frame) * rim)
            found = newton.compose(found, delta)
    frame_from_begun = invert(found[0].double().numpy()) @ frame_from_aligned
    matrix = invert(frame_from_aligned) @ frame_from_begun @ begun
    moved = np.hypot(*(map_points(matrix, places) - targets).T).max() if np.isfinite(matrix).all() else np.inf
    before, after = (normalised_correlation(warp(image, pose, frame), template[0]) for pose in (start, found))
    if after <= before or moved > MAX_PIN_SHIFT * max(size):
        return RefitResult(begun / begun[2, 2], fitted=False)
    return RefitResult(matrix / matrix[2, 2], fitted=True)


def _tensor(values: np.ndarray) -> torch.Tensor:
    return torch.as_tensor(np.ascontiguousarray(values), dtype=torch.float32)[None, None]


def _eroded(mask: torch.Tensor, frame: tuple[int, int]) -> torch.Tensor:
    """The mask (1, 1, h, w) without its edge, where local contrast would hold the pose to the edge."""
    edge = max(1, round(2 * NEIGHBOURHOOD_SHARE * max(frame)))
    return -max_pool2d(-pad(mask, (edge, edge, edge, edge)), 2 * edge + 1, stride=1)
