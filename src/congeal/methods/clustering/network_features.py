"""Features of a network for clustering: pooled views, augmentation whitening, and the number of clusters.

A picture that is rotated, shifted or lit a little differently shows the same thing, but its features change, in some
directions much more than in others. Whitening by the covariance of that change (estimated from augmented images without
labels) makes these directions count less.

Photographs of one kind differ in light and pose as much as those of two kinds do, so that no fixed conductance tells
the two cases apart. A bipartition is compared with that of a null model without clusters: as many points of a normal
distribution with the same covariance.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch.nn.functional import adaptive_avg_pool2d

from congeal.geometry import warp
from congeal.images import Stack
from congeal.methods.clustering.exemplars import unit_vectors
from congeal.methods.clustering.spectral_clustering import NeighbourGraph, partition
from congeal.methods.semantic.extractors import Extractor
from congeal.methods.semantic.feature_maps import FeatureSampler, Window
from congeal.rows import evenly_spaced_rows

FEATURE_CELLS = (4, 4)
"""Cells along each side that features are averaged in: fewer lose where things are, more compare exact positions."""
FEATURE_NEIGHBOURS = 10
"""Nearest neighbours of each image in the graph."""
MIN_GROUP_IMAGES = 5
"""Images in a group that is found, not asked for, at least."""
MAX_RELATIVE_CONDUCTANCE = 0.55
"""A bipartition by features of a network counts where its conductance is below this share of the null model's. Birds of
two species and two kinds of things of PF-WILLOW: 0.39 and less; one kind: cars 0.75, ducks and motorbikes more than 1,
but jays, goldfinches and woodpeckers 0.3 to 0.53, by their posture. It is about the middle of 0.39 and 0.75."""
MAX_PICTURE_VALUES = 1 << 30
"""Values of larger pictures of a whole set that may be kept in memory; above it the working size is used."""
MAX_TESTED_IMAGES = 500
"""Images of a group that is compared with the null model: the share no longer changes beyond."""
NULL_SAMPLES = 5
"""Sets drawn from the null model."""
MAX_AUGMENTED_IMAGES, AUGMENTATIONS_PER_IMAGE = 60, 6
"""Images from which the covariance is estimated, and how often each is augmented."""
AUGMENTATION_SCALES = {"rotation": 0.08, "scale": 0.08, "shift": 0.05, "gamma": 0.25, "tint": 0.1, "shading": 0.2}
"""Standard deviations of an augmentation: rotation in radians, scale as a share, shift as a share of the side, then
logarithms of the gamma curve, of each colour and of brightness across the image."""
WHITENING_SHRINKAGE = 0.1
"""Share of the mean variance that is added to that along every direction: along some hardly any change is observed."""


def feature_picture_size(stack: Stack, extractor: Extractor) -> int:
    """The frame's longer side in the pictures given to the network: its own input size, if the originals have it."""
    size = min(extractor.side, stack.native_size)
    fits = stack.store_folder is not None or 3 * len(stack) * size**2 <= MAX_PICTURE_VALUES
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


def fit_whitening(stack: Stack, rows: np.ndarray, extractor: Extractor, picture_size: int) -> torch.Tensor:
    """(C, C) the augmentation whitening of a set's features."""
    some = rows[evenly_spaced_rows(len(rows), MAX_AUGMENTED_IMAGES)]
    few = stack.some(some)
    seeing = FeatureSampler(few, few.start, Window.whole(stack.frame), extractor, picture_size)
    covariance, generator = AugmentationCovariance(), torch.Generator().manual_seed(0)
    with torch.inference_mode(False), torch.no_grad():
        for i in range(len(some)):
            picture, inside = seeing.picture(i, 0)
            augmented = (augment(picture, inside, generator) for _ in range(AUGMENTATIONS_PER_IMAGE))
            covariance.add(torch.stack([_mirror_averaged_features(*one, extractor) for one in augmented]))
    return covariance.whitening()


def whiten(views: torch.Tensor, centre: torch.Tensor, whitening: torch.Tensor | None) -> torch.Tensor:
    """(B, C, 4, 4) features minus the set's mean (C, 4, 4), times the whitening (C, C).

    A cell without image equals the mean: the outline of a picture is not a feature of its content.
    """
    centred = (views[:, :-1] - centre) * views[:, -1:]
    return centred if whitening is None else torch.einsum("ck,bkhw->bchw", whitening, centred)


def _mirror_averaged_features(picture: torch.Tensor, inside: torch.Tensor, extractor: Extractor) -> torch.Tensor:
    """(C + 1, 4, 4) of one picture."""
    total, covered = _pool_cells(extractor.maps(picture), inside)
    mirrored, its = _pool_cells(extractor.maps(picture.flip(-1)), inside.flip(-1))
    return torch.cat([(total + mirrored) / (covered + its).clamp(min=1e-6), (covered + its) / 2])


def _pool_cells(maps: torch.Tensor, inside: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(C, 4, 4) the sum of a map (C, h, w) over the covered part of each cell, and (1, 4, 4) the size of that part."""
    covered = (adaptive_avg_pool2d(inside[None], (maps.shape[1], maps.shape[2])) > 0.5).float()
    return adaptive_avg_pool2d(maps * covered, FEATURE_CELLS), adaptive_avg_pool2d(covered, FEATURE_CELLS)


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


class AugmentationCovariance:
    """Covariance of the features (C, h, w) of one image under augmentation, summed over images."""

    def __init__(self) -> None:
        self._sum = torch.zeros(0, 0, dtype=torch.float64)

    def add(self, views: torch.Tensor) -> None:
        """Take in views (B, C + 1, h, w) of one image, augmented B times; the last map is the covered share."""
        features, covered = views[:, :-1].double(), views[:, -1:].double()
        mean = (features * covered).sum(0) / covered.sum(0).clamp(min=1e-6)
        rows = ((features - mean) * covered).movedim(1, -1).flatten(0, -2)
        own = rows.T @ rows
        self._sum = self._sum + own if len(self._sum) else own

    def whitening(self) -> torch.Tensor:
        """(C, C) the matrix under which augmentation changes features alike in all directions."""
        mean = float(self._sum.diagonal().mean())
        if not mean > 0:  # the features of all images are the same
            return torch.eye(len(self._sum))
        values, axes = torch.linalg.eigh(self._sum / mean)
        return ((axes * (values.clamp(min=0) + WHITENING_SHRINKAGE).rsqrt()) @ axes.T).float()


def rank_weights(neighbours: np.ndarray) -> np.ndarray:
    """(n, k) weights of neighbours, nearest first, falling linearly: in a small set most of ten neighbours may be of
    another kind, and only the nearest are reliable."""
    k = neighbours.shape[1]
    return np.broadcast_to(np.linspace(1, 1 / k, k), neighbours.shape)


def count_clusters(features: torch.Tensor, most: int, rng: np.random.Generator) -> tuple[int, list[tuple[int, float]]]:
    """The number of clusters among features (n, …), at most `most`, and for each number from 1 on the conductance of
    the last bipartition relative to the null model's; the last number was rejected.

    The group whose bipartition has the least relative conductance is split, while that is below
    `MAX_RELATIVE_CONDUCTANCE`.
    """
    flat = features.flatten(1).double()
    groups = [np.arange(len(flat))]
    tests = [_bipartition_test(flat, rng)]
    curve = [(1, 0.0)]
    while len(groups) < most:
        weakest = min(range(len(groups)), key=lambda k: tests[k][0])
        conductance, side = tests.pop(weakest)
        curve.append((len(groups) + 1, conductance))
        if conductance > MAX_RELATIVE_CONDUCTANCE:
            break
        members = groups.pop(weakest)
        for half in (members[side == 0], members[side == 1]):
            groups.append(half)
            tests.append(_bipartition_test(flat[half], rng))
    return len(groups), curve


def _bipartition_test(flat: torch.Tensor, rng: np.random.Generator) -> tuple[float, np.ndarray]:
    """The conductance of a bipartition relative to the null model's, and (n,) the side of each image."""
    n = len(flat)
    nothing = 1.0, np.zeros(n, dtype=np.int64)
    if n < 2 * MIN_GROUP_IMAGES:
        return nothing
    centred = flat - flat.mean(0)
    side, conductance = _bipartition(centred, rng)
    if np.bincount(side, minlength=2).min() < max(MIN_GROUP_IMAGES, n // 200):
        return nothing
    if n > MAX_TESTED_IMAGES:
        centred = centred[np.sort(rng.permutation(n)[:MAX_TESTED_IMAGES])]
        _, conductance = _bipartition(centred, rng)
    deviation = torch.linalg.svdvals(centred) / len(centred) ** 0.5
    samples = [torch.as_tensor(rng.standard_normal((len(centred), len(deviation)))) for _ in range(NULL_SAMPLES)]
    usual = sum(_bipartition(sample * deviation, rng)[1] for sample in samples) / NULL_SAMPLES
    return (conductance / usual, side) if usual > 0 else nothing


def _bipartition(flat: torch.Tensor, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    """(n,) the side of each image in a spectral bipartition, and the mean conductance of both sides."""
    unit = unit_vectors(flat)
    alike = (unit @ unit.T).fill_diagonal_(-2)
    neighbours = alike.topk(min(FEATURE_NEIGHBOURS, len(flat) - 1), 1).indices.numpy()
    graph = NeighbourGraph.of_neighbours(neighbours, rank_weights(neighbours))
    side = partition(graph, graph.embedding(2)[1], rng, 2)
    return side, float(graph.conductances(side, 2).mean())
