"""Images as they are measured and shown: their local contrast in the frame, and thumbnails for notebooks."""

from __future__ import annotations

import numpy as np
import torch

from congeal.evaluation.likeness import Pictures, Sharpness, visible_contrast
from congeal.evaluation.quality import Preview, Thumbnail
from congeal.evaluation.thresholds import MAX_SAMPLE_IMAGES, MEASURED_SIDE_PX
from congeal.geometry import normalise, warp
from congeal.geometry.matrix import Size
from congeal.images import Stack
from congeal.images.formats.output_files import png_bytes
from congeal.methods.semantic.feature_maps import FeatureSimilarity
from congeal.registration.batching import CHUNK_VALUES
from congeal.registration.features import pixel_features
from congeal.registration.template_registration import MIN_TOTAL, moments_of
from congeal.rows import row_slices
from congeal.transforms import STATUSES

SAMPLING_PHASE_PX = 0.5 - 3**-0.5 / 2
"""Distance from a pixel centre at which bilinear sampling leaves (1 − x)² + x² = 2/3 of the variance of noise, which is
its mean over all distances x."""
MAX_THUMBNAILS = 5
"""Of the images that match least. Chosen by judgement: one row of a notebook."""
LOW_CONTRAST_SHARE = 0.43
"""Of the range; means that use less of it are shown with their contrast stretched. Chosen by judgement."""
VIEW_DEVIATIONS = 2.3
"""Half the side of the normalised view, in standard deviations of the intensity: a digit fills it."""
MAX_SHEAR = 0.7
"""Largest shear that is undone: a horizontal bar is no slanted vertical one."""
MIN_SPREAD_PX = 0.5
"""Smallest standard deviation of an object, so that a dot is not enlarged to fill the view."""


class ContrastViews:
    """Local contrast of images of a stack under some poses, at the resolution that likeness is measured at.

    Sampling between pixels averages noise, which would make every image that moved look more like the others. So
    nothing is sampled exactly on its pixels: all views are shifted by the distance that averages as much noise as a
    random one does (`SAMPLING_PHASE_PX`).
    """

    def __init__(
        self, stack: Stack, stack_from_frame: np.ndarray, kind: str, sight: FeatureSimilarity | None = None
    ) -> None:
        self.whole, self._sight = stack, sight
        self.stack = stack.at(MEASURED_SIDE_PX) if len(stack) <= MAX_SAMPLE_IMAGES else stack
        self.count = len(stack)
        self._poses, self._features = stack_from_frame, pixel_features(kind)
        phase = SAMPLING_PHASE_PX
        self._frame_from_view = stack.frame_from(self.stack) @ [[1, 0, phase], [0, 1, phase], [0, 0, 1]]
        self.sharpness = Sharpness()

    def pictures(self, rows: np.ndarray) -> Pictures:
        """Local contrast (B,h,w) of rows of the stack, and where it counts; a few images at a time."""
        values = self.stack.frame[0] * self.stack.frame[1] * self.stack.channels
        parts = [self._contrast(part) for part in np.array_split(rows, max(1, len(rows) * values // CHUNK_VALUES))]
        if self._sight is not None:
            return self._sight.of(self.whole, self._poses, rows)
        contrasts, counts = zip(*parts, strict=True)
        return torch.cat(contrasts), None if counts[0] is None else torch.cat(counts)

    def poses(self, rows: np.ndarray) -> np.ndarray:
        """(B,3,3) stack_from_frame of rows of the stack."""
        return np.asarray(self._poses[rows], dtype=np.float64)

    def _contrast(self, rows: np.ndarray) -> Pictures:
        stack, image_features = self.stack, self._features
        larger_from_stack = stack.stack_from(self.whole, rows)
        poses = larger_from_stack @ self.poses(rows) @ self._frame_from_view
        matrices = torch.as_tensor(np.nan_to_num(normalise(poses))).float()
        images = warp(stack.images(rows), matrices, stack.frame, padding=image_features.padding)
        weights = image_features.covered(matrices, stack.size, stack.frame, stack.masks(rows))
        self.sharpness.update(images, weights)
        return visible_contrast(images, weights)


class NormalisedViews(ContrastViews):
    """Objects on empty ground, each centred, sheared upright and scaled by the moments of its own ink.

    No other image and no alignment has a part in these views.
    """

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack, stack.start, "object")

    def poses(self, rows: np.ndarray) -> np.ndarray:
        """(B,3,3) stack_from_frame of rows of the stack."""
        stack, start = self.whole, super().poses(rows)
        images, masks = stack.images(rows), stack.masks(rows)
        shown = warp(images if masks is None else images * masks, torch.as_tensor(start).float(), stack.frame)
        return np.asarray(start @ frame_from_view(shown, stack.frame).numpy())


def frame_from_view(shown: torch.Tensor, view: Size) -> torch.Tensor:
    """(B, 3, 3) for images (B, C, h, w) as the frame shows them: pixels of an upright view → pixels of the frame.

    The view is centred on the intensity, scaled by its spread and sheared by its slant: x + shear · y. An empty image
    is shown whole.
    """
    ink = shown.mean(1).double().clamp(min=0)
    height, width = ink.shape[-2:]
    total, centre, xx, yy, xy = moments_of(ink)
    known = total > MIN_TOTAL
    shear = (xy / yy.clamp(min=MIN_SPREAD_PX**2)).clamp(-MAX_SHEAR, MAX_SHEAR)
    across = (xx - 2 * shear * xy + shear.square() * yy).clamp(min=0)
    spread = (across + yy).sqrt().clamp(min=MIN_SPREAD_PX)
    scale = torch.where(known, 2 * VIEW_DEVIATIONS * spread / max(view), max(height, width) / max(view))
    shear = torch.where(known, shear, 0)
    centre_x, centre_y = torch.where(known[:, None], centre, centre.new_tensor([width - 1, height - 1]) / 2).unbind(1)
    matrix = torch.zeros(len(ink), 3, 3, dtype=torch.float64)
    middle_x, middle_y = (view[1] - 1) / 2, (view[0] - 1) / 2
    matrix[:, 0, 0], matrix[:, 0, 1] = scale, shear * scale
    matrix[:, 0, 2] = centre_x - scale * middle_x - shear * scale * middle_y
    matrix[:, 1, 1], matrix[:, 1, 2] = scale, centre_y - scale * middle_y
    matrix[:, 2, 2] = 1
    return matrix


# ---- small pictures of an alignment, for notebooks


def make_preview(
    stack: Stack,
    stack_from_frame: np.ndarray,
    means: tuple[np.ndarray, np.ndarray],
    score: np.ndarray,
    status: np.ndarray,
) -> Preview:
    """Means (C,h,w) on the 0–255 scale, and the images that match least, as the frame shows them."""
    black, white = (float(value) for value in np.nanquantile(means[1], [0.005, 0.995]))
    if not 1 <= white - black < LOW_CONTRAST_SHARE * 255:  # all of the range, unless the means use little of it
        black, white = 0.0, 255.0

    def shown(values: np.ndarray) -> bytes:
        channels = values if len(values) in (1, 3) else values.mean(0, keepdims=True)
        levels = np.clip((channels - black) * (255 / (white - black)), 0, 255).round().astype(np.uint8)
        return png_bytes(np.ascontiguousarray(levels.transpose(1, 2, 0)))

    def thumbnail(i: int) -> Thumbnail:
        image = stack.images([i])
        before, after = (
            255 * warp(image, torch.as_tensor(np.nan_to_num(poses[[i]])).float(), stack.frame)[0].numpy()
            for poses in (stack.start, stack_from_frame)
        )
        name, word = stack.source.id(int(stack.kept[i])), STATUSES[int(status[i])]
        return Thumbnail(name, word, float(score[i]), shown(before), shown(after))

    before, after = means
    return Preview(shown(before), shown(after), stack.frame[1], tuple(thumbnail(int(i)) for i in _worst(score, status)))


def _worst(score: np.ndarray, status: np.ndarray) -> np.ndarray:
    """Positions of the few that match least, flagged ones first."""
    found = np.zeros(0, dtype=np.int64)
    for part in row_slices(len(score)):
        rows = np.concatenate([found, np.arange(part.start, part.stop)])
        order = np.lexsort((np.nan_to_num(score[rows], nan=2.0), status[rows] == STATUSES.index("ok")))
        found = rows[order[:MAX_THUMBNAILS]]
    return found
