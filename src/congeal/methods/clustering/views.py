"""Views that images are compared by: objects centred by moments, edges of photographs, or features of a network.

A picture that is rotated, shifted or lit a little differently shows the same thing, but its features change, in some
directions much more than in others. Whitening by the covariance of that change (estimated from augmented images without
labels) makes these directions count less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d

from congeal.filters import gaussian_blur
from congeal.geometry import warp
from congeal.images import Stack
from congeal.methods.semantic.extractors import Extractor
from congeal.methods.semantic.feature_maps import FeatureSampler, Window
from congeal.methods.views import frame_from_view
from congeal.registration.features import ImageFeatures
from congeal.rows import evenly_spaced_rows

OBJECT_VIEW_PX, PHOTO_VIEW_PX = 20, 32
"""Longer side of compared views: a digit keeps its strokes at 20 pixels (1-NN of 2,000 MNIST digits 97.6 %, at 14
pixels 96 %, at 28 pixels 98 % in twice the time)."""
AUGMENTATION_SCALES = {"rotation": 0.08, "scale": 0.08, "shift": 0.05, "gamma": 0.25, "tint": 0.1, "shading": 0.2}
"""Standard deviations of an augmentation: rotation in radians, scale as a share, shift as a share of the side, then
logarithms of the gamma curve, of each colour and of brightness across the image (chosen by judgement: changes that hand
and daylight make)."""


def make_views(stack: Stack, rows: np.ndarray, image_features: ImageFeatures) -> torch.Tensor:
    """(B, C, h, w) compared views of images: objects normalised by moments, edges of photographs at their start."""
    images, start = stack.images(rows), torch.as_tensor(stack.start[rows]).float()
    masks = stack.masks(rows)
    if image_features.empty_ground:
        images = images if masks is None else images * masks
        shown = warp(images, start, stack.frame)
        twice = (2 * OBJECT_VIEW_PX, 2 * OBJECT_VIEW_PX)  # then averaged, so that large objects are not aliased
        pose = start @ frame_from_view(shown, twice).float()
        return gaussian_blur(avg_pool2d(warp(images, pose, twice), 2), 0.7)  # strokes side by side still overlap
    shown = warp(images, start, stack.frame, padding=image_features.padding)
    soft = image_features.blurred(image_features.features(shown), image_features.last_blur(stack.frame))
    shrink = min(1.0, PHOTO_VIEW_PX / max(stack.frame))
    height, width = (max(1, round(side * shrink)) for side in stack.frame)
    return adaptive_avg_pool2d(soft, (height, width))


@dataclass(frozen=True)
class FeatureSpace:
    """Features of a network relative to a set: their mean `centre` (C, h, w), their augmentation `whitening` (C, C),
    and the input size `picture_size`."""

    centre: torch.Tensor
    whitening: torch.Tensor
    picture_size: int

    @classmethod
    def fit(cls, stack: Stack, rows: np.ndarray, extractor: Extractor) -> tuple[FeatureSpace, torch.Tensor]:
        """The space of some images of a set, and their views in it."""
        size = feature_picture_size(stack, extractor)
        views = feature_views(stack, rows, extractor, size)
        covered = views[:, -1:]
        centre = (views[:, :-1] * covered).sum(0) / covered.sum(0).clamp(min=1e-6)
        whitening = _fit_whitening(stack, rows, extractor, size)
        return cls(centre, whitening, size), whiten(views, centre, whitening)

    def views(self, stack: Stack, rows: np.ndarray, extractor: Extractor) -> torch.Tensor:
        """(B, C, h, w) views of images."""
        return whiten(feature_views(stack, rows, extractor, self.picture_size), self.centre, self.whitening)


def feature_picture_size(stack: Stack, extractor: Extractor) -> int:
    """The frame's longer side in the pictures given to the network: its own input size, if the originals have it."""
    size = min(extractor.side, stack.native_size)
    fits = stack.store_folder is not None or 3 * len(stack) * size**2 <= 1 << 30  # 4 GB of memory
    return size if fits else max(stack.frame)


def feature_views(stack: Stack, rows: np.ndarray, extractor: Extractor, picture_size: int) -> torch.Tensor:
    """(B, C + 1, 4, 4) pooled features of some images at their start; the last map is the covered share of each cell.

    Features are the mean of those of an image and of its mirror image: which side a face or a bird shows says nothing
    about its kind, yet differs more.
    """
    few = stack.some(rows)
    seeing = FeatureSampler(few, few.start, Window.whole(stack.frame), extractor, picture_size)
    with torch.inference_mode(False), torch.no_grad():
        return torch.stack([_mirror_averaged_features(*seeing.picture(i, 0), extractor) for i in range(len(rows))])


def _fit_whitening(stack: Stack, rows: np.ndarray, extractor: Extractor, picture_size: int) -> torch.Tensor:
    """(C, C) the augmentation whitening of a set's features."""
    few = stack.some(rows[evenly_spaced_rows(len(rows), 60)])  # about a minute of work
    seeing = FeatureSampler(few, few.start, Window.whole(stack.frame), extractor, picture_size)
    covariance, generator = torch.zeros(1, dtype=torch.float64), torch.Generator().manual_seed(0)
    with torch.inference_mode(False), torch.no_grad():
        for i in range(len(few)):
            picture, inside = seeing.picture(i, 0)
            augmented = (augment(picture, inside, generator) for _ in range(6))
            covariance = covariance + change_covariance(
                torch.stack([_mirror_averaged_features(*one, extractor) for one in augmented])
            )
    return whitening_matrix(covariance)


def whiten(views: torch.Tensor, centre: torch.Tensor, whitening: torch.Tensor) -> torch.Tensor:
    """(B, C, 4, 4) features minus the set's mean (C, 4, 4), times the whitening (C, C).

    A cell without image equals the mean: the outline of a picture is not a feature of its content.
    """
    centred = (views[:, :-1] - centre) * views[:, -1:]
    return torch.einsum("ck,bkhw->bchw", whitening, centred)


def _mirror_averaged_features(picture: torch.Tensor, inside: torch.Tensor, extractor: Extractor) -> torch.Tensor:
    """(C + 1, 4, 4) of one picture."""
    total, covered = _pool_cells(extractor.maps(picture), inside)
    mirrored, its = _pool_cells(extractor.maps(picture.flip(-1)), inside.flip(-1))
    return torch.cat([(total + mirrored) / (covered + its).clamp(min=1e-6), (covered + its) / 2])


def _pool_cells(maps: torch.Tensor, inside: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(C, 4, 4) the sum of a map (C, h, w) over the covered part of each cell, and (1, 4, 4) the size of that part."""
    covered = (adaptive_avg_pool2d(inside[None], (maps.shape[1], maps.shape[2])) > 0.5).float()
    return adaptive_avg_pool2d(maps * covered, 4), adaptive_avg_pool2d(covered, 4)


def augment(
    picture: torch.Tensor, inside: torch.Tensor, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """A picture (3, s, s) in [0, 1] and its coverage (s, s) under a small random similarity and change of light."""
    side, scales = picture.shape[-1], AUGMENTATION_SCALES
    turn, scale, right, down, gamma, across, along, *colour = torch.randn(10, generator=generator).tolist()
    size, angle, middle = math.exp(scales["scale"] * scale), scales["rotation"] * turn, (side - 1) / 2
    cos, sin = size * math.cos(angle), size * math.sin(angle)
    x, y = middle + scales["shift"] * side * right, middle + scales["shift"] * side * down
    pose = torch.tensor(
        [[cos, -sin, x - (cos - sin) * middle], [sin, cos, y - (sin + cos) * middle], [0, 0, 1]], dtype=torch.float32
    )[None]
    shown = warp(picture[None], pose, (side, side), padding="border")[0].clamp(1e-4, 1)
    ramp = torch.linspace(-scales["shading"], scales["shading"], side)
    light = torch.exp(across * ramp[None, :] + along * ramp[:, None])
    tint = torch.exp(scales["tint"] * torch.tensor(colour))[:, None, None]
    shown = (shown ** math.exp(scales["gamma"] * gamma) * tint * light).clamp(0, 1)
    return shown, warp(inside[None, None], pose, (side, side))[0, 0]


def change_covariance(views: torch.Tensor) -> torch.Tensor:
    """(C, C) covariance, up to a factor, of the features of one image that was augmented B times: views (B, C + 1, h,
    w), whose last map is the covered share."""
    features, covered = views[:, :-1].double(), views[:, -1:].double()
    mean = (features * covered).sum(0) / covered.sum(0).clamp(min=1e-6)
    rows = ((features - mean) * covered).movedim(1, -1).flatten(0, -2)
    return rows.T @ rows


def whitening_matrix(covariance: torch.Tensor) -> torch.Tensor:
    """(C, C) the matrix under which changes of this covariance (C, C) are alike in all directions."""
    mean = float(covariance.diagonal().mean())
    if not mean > 0:  # the features of all images are the same
        return torch.eye(len(covariance))
    values, axes = torch.linalg.eigh(covariance / mean)
    return ((axes * (values.clamp(min=0) + 0.1).rsqrt()) @ axes.T).float()
