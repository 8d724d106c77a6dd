"""Images as likeness is measured on them: the local contrast of what the frame shows."""

from __future__ import annotations

import numpy as np
import torch

from congeal.geometry import normalise, warp
from congeal.images import Stack
from congeal.metrics.contrast import local_contrast
from congeal.metrics.likeness import likeness
from congeal.metrics.limits import FINE_IMAGES, FINE_SIDE
from congeal.metrics.sharpness import Sharpness
from congeal.solvers.appearance import plain_appearance
from congeal.solvers.sight import FeatureSight
from congeal.solvers.streaming import CHUNK_VALUES

PHASE = 0.5 - 3**-0.5 / 2
"""Where (1 − x)² + x², the noise that is left between two pixels, is 2/3, its mean over all x."""


class ContrastViews:
    """Local contrast of images of a stack under some poses, at the resolution that likeness is measured at."""

    def __init__(
        self, stack: Stack, stack_from_frame: np.ndarray, kind: str, sight: FeatureSight | None = None
    ) -> None:
        self.whole, self._sight = stack, sight
        self.stack = stack.at(FINE_SIDE) if len(stack) <= FINE_IMAGES else stack
        self.count = len(stack)
        self._poses, self._appearance = stack_from_frame, plain_appearance(kind)
        # Sampling between pixels averages noise, which would make every image that moved look more like the others.
        # So nothing is sampled right on its pixels: all views are moved by the part of a pixel that averages as much
        # noise as a random one does.
        self._frame_from_view = stack.frame_from(self.stack) @ [[1, 0, PHASE], [0, 1, PHASE], [0, 0, 1]]
        self.sharpness = Sharpness()

    def of(self, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Local contrast (B,h,w) of rows of the stack, and where it counts; a few images at a time."""
        values = self.stack.frame[0] * self.stack.frame[1] * self.stack.channels
        parts = [self._few(part) for part in np.array_split(rows, max(1, len(rows) * values // CHUNK_VALUES))]
        if self._sight is not None:
            return self._sight.of(self.whole, self._poses, rows)
        contrasts, counts = zip(*parts, strict=True)
        return torch.cat(contrasts), None if counts[0] is None else torch.cat(counts)

    def pictures(self, rows: np.ndarray) -> torch.Tensor:
        """(B,C,h,w) what the frame shows of rows of the stack."""
        return self._shown(rows)[0]

    def _few(self, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor | None]:
        shown, weights = self._shown(rows)
        self.sharpness.update(shown, weights)
        return local_contrast(shown, weights)

    def _shown(self, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Pictures, and where they count."""
        stack, appearance = self.stack, self._appearance
        larger_from_stack = stack.stack_from(self.whole, rows)
        poses = larger_from_stack @ self._poses[rows].astype(np.float64) @ self._frame_from_view
        matrices = torch.as_tensor(np.nan_to_num(normalise(poses))).float()
        shown = warp(stack.images(rows), matrices, stack.frame, padding=appearance.padding)
        return shown, appearance.covered(matrices, stack.size, stack.frame, stack.masks(rows))


def each_likeness(contrast: torch.Tensor, counts: torch.Tensor | None) -> np.ndarray:
    """Likeness of each image to the mean of the others, NaN for one that shows nothing; one image alone is its mean."""
    values = likeness(contrast, counts).numpy() if len(contrast) > 1 else np.ones(1)
    return np.where(contrast.flatten(1).any(1).numpy(), values, np.nan)
