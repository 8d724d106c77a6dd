"""Likeness in a sequence: each image against those near it in time, where both show something.

The images of a drifting sequence have no mean: the first and the last may show different things. So each image is
looked at as it is, and its neighbours as its own frame would show them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from congeal.evaluation.likeness import Pictures, visible_contrast
from congeal.evaluation.outliers import fit_surrogates
from congeal.evaluation.thresholds import (
    MAX_SAMPLE_IMAGES,
    MAX_SURROGATES,
    MEASURED_SIDE_PX,
    TYPICAL_QUANTILE,
)
from congeal.execution.threads import map_ordered
from congeal.geometry import invert, normalise, warp
from congeal.images import Stack
from congeal.registration.batching import chunks
from congeal.registration.features import pixel_features
from congeal.rows import evenly_spaced_rows

TIME_NEIGHBOURS = (1, 3)
"""Distances in images: the next one, and one that slow motion has moved a little from."""
NEIGHBOUR_SHARE = 0.5
"""Least likeness of an image to its neighbours, as a share of the typical one: they show the same thing."""
BOTH_SEEN = 0.1
"""Least share of the frame that two images must both show to be compared."""


class TemporalLikeness(NamedTuple):
    """Likeness of n images to their neighbours in time, NaN where no neighbour can be compared.

    before, after: (n,) mean likeness at the start and as aligned. flat: (n,) bool, images that show nothing. chance:
    likeness that noise of the same kind reaches. least: likeness that an image of the sequence has at least.
    """

    before: np.ndarray
    after: np.ndarray
    flat: np.ndarray
    chance: float
    least: float


@torch.no_grad()
def temporal_likeness(stack: Stack, stack_from_frame: np.ndarray, kind: str) -> TemporalLikeness:
    """Likeness of every image to those `TIME_NEIGHBOURS` before and after it, at the resolution of all likeness."""
    n, image_features = len(stack), pixel_features(kind)
    larger = stack.at(MEASURED_SIDE_PX) if n <= MAX_SAMPLE_IMAGES else stack
    left, right = larger.stack_from(stack), stack.frame_from(larger)
    start, found = (left @ poses.astype(np.float64) @ right for poses in (stack.start, stack_from_frame))
    surrogates = evenly_spaced_rows(n, MAX_SURROGATES)

    def contrast(images: torch.Tensor, rows: np.ndarray, poses: np.ndarray) -> Pictures:
        matrices = torch.as_tensor(np.nan_to_num(normalise(poses))).float()
        shown = warp(images, matrices, larger.frame, padding=image_features.padding)
        covered = image_features.covered(matrices, larger.size, larger.frame, larger.masks(rows))
        return visible_contrast(shown, covered)

    def compare(run: np.ndarray) -> tuple[np.ndarray, list[float], list[tuple[np.ndarray, ...]]]:
        """Of a run: which images show nothing, likeness of surrogates, and likeness of pairs: rows, before, after."""
        first = run[0]
        whole = np.arange(first, min(n, run[-1] + 1 + max(TIME_NEIGHBOURS)))
        images = larger.images(whole).mean(1, keepdim=True)
        own = contrast(images, whole, start[whole])
        chances: list[float] = []
        pairs: list[tuple[np.ndarray, ...]] = []
        for distance in TIME_NEIGHBOURS:
            rows = run[run + distance < n]
            if not len(rows):
                continue
            later = rows + distance
            poses = found[later] @ invert(found[rows]) @ start[rows]
            moved = contrast(images[later - first], later, poses)
            here, there = (_some(own, one - first) for one in (rows, later))
            pairs.append((rows, later, _correlation(here, there), _correlation(here, moved)))
            if distance == TIME_NEIGHBOURS[0]:
                some = np.flatnonzero(np.isin(rows, surrogates)).tolist()
                chances += [float(fit_surrogates(here[0][[k]], moved[0][[k]])[1]) for k in some]
        return ~own[0][: len(run)].flatten(1).any(1).numpy(), chances, pairs

    sums, counts = np.zeros((2, n)), np.zeros((2, n))
    flats, chances = [], []
    for flat, noise, pairs in map_ordered(compare, chunks(larger), torch.get_num_threads()):
        flats.append(flat)
        chances += noise
        for rows, later, *alike in pairs:
            for k, value in enumerate(alike):
                for ends in (rows, later):
                    sums[k, ends] += np.nan_to_num(value)
                    counts[k, ends] += np.isfinite(value)
    with np.errstate(invalid="ignore", divide="ignore"):
        before, after = sums / counts
    known = after[np.isfinite(after)]
    usual = float(np.quantile(known, TYPICAL_QUANTILE)) if len(known) else 0.0
    chance = float(np.mean(chances)) if chances else 0.0
    return TemporalLikeness(before, after, np.concatenate(flats), chance, NEIGHBOUR_SHARE * usual)


def _some(pictures: Pictures, rows: np.ndarray) -> Pictures:
    contrast, counts = pictures
    return contrast[rows], None if counts is None else counts[rows]


def _correlation(one: Pictures, other: Pictures) -> np.ndarray:
    """(B,) of pictures where both show something; NaN where that is too little."""
    (a, counts_a), (b, counts_b) = one, other
    enough = torch.ones(len(a), dtype=torch.bool)
    if counts_a is not None and counts_b is not None:
        both = counts_a * counts_b
        enough = both.mean((1, 2)) >= BOTH_SEEN
        a, b = a * both, b * both
    norm = a.flatten(1).norm(dim=1).double() * b.flatten(1).norm(dim=1).double()
    alike = (a * b).sum((1, 2)).double() / norm
    return torch.where(enough & (norm >= 1e-9), alike, torch.nan).numpy()
