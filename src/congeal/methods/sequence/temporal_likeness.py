"""Likeness in a sequence: each image against those near it in time, where both show something.

The images of a drifting sequence have no mean: the first and the last may show different things. So each image is
looked at as it is, and its neighbours as its own frame would show them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch

from congeal.evaluation.likeness import visible_contrast
from congeal.evaluation.outliers import fit_surrogates
from congeal.evaluation.thresholds import (
    BOTH_SEEN,
    MAX_SAMPLE_IMAGES,
    MAX_SURROGATES,
    MEASURED_SIDE_PX,
    NEIGHBOUR_SHARE,
    TIME_NEIGHBOURS,
    TYPICAL_QUANTILE,
)
from congeal.execution.threads import map_ordered
from congeal.geometry import invert, normalise, warp
from congeal.images import Stack
from congeal.registration.batching import chunks
from congeal.registration.features import pixel_features


@dataclass
class AmongNeighbours:
    """What is known of n images, each NaN where neither neighbour can be compared."""

    before: np.ndarray  # (n,) mean likeness to neighbours where the images started
    after: np.ndarray  # (n,) the same as aligned
    flat: np.ndarray  # (n,) bool: shows nothing
    chance: float  # likeness that noise of the same kind reaches
    least: float  # of which an image of the sequence has at least this


def temporal_likeness(stack: Stack, stack_from_frame: np.ndarray, kind: str) -> AmongNeighbours:
    """Likeness of every image to those `TIME_NEIGHBOURS` before and after it."""
    views = _OwnViews(stack, stack_from_frame, kind)
    n = len(stack)
    before, after = np.zeros((2, n)), np.zeros((2, n))  # sums, and of how many
    flat, chances = np.zeros(n, dtype=bool), []
    noisy = set(np.linspace(0, n - 1, min(n, MAX_SURROGATES)).round().astype(int).tolist())
    last = deque[_Seen](maxlen=max(TIME_NEIGHBOURS) + 1)
    for j, seen in enumerate(chain.from_iterable(map_ordered(views.seen, views.runs(), torch.get_num_threads()))):
        flat[j] = not bool(seen.own.contrast.any())
        last.append(seen)
        for distance in TIME_NEIGHBOURS:
            i = j - distance
            if i < 0:
                continue
            own, moved = last[-1 - distance].own, last[-1 - distance].later[distance]
            if i in noisy and distance == TIME_NEIGHBOURS[0]:
                chances.append(float(fit_surrogates(own.contrast[None], moved.contrast[None])[1]))
            for total, other in ((before, seen.own), (after, moved)):
                like = _correlation(own, other)
                if like is not None:
                    total[0, [i, j]] += like
                    total[1, [i, j]] += 1
    with np.errstate(invalid="ignore", divide="ignore"):
        start, end = before[0] / before[1], after[0] / after[1]
    known = end[np.isfinite(end)]
    usual = float(np.quantile(known, TYPICAL_QUANTILE)) if len(known) else 0.0
    chance = float(np.mean(chances)) if chances else 0.0
    return AmongNeighbours(start, end, flat, chance, NEIGHBOUR_SHARE * usual)


class _View(NamedTuple):
    """Local contrast (h, w), and where it counts; None: everywhere."""

    contrast: torch.Tensor
    counts: torch.Tensor | None


class _Seen(NamedTuple):
    """An image at its start, and those so far behind it as its own frame shows them now."""

    own: _View
    later: dict[int, _View]


class _OwnViews:
    """Local contrast of images as one of them sees them, at the resolution that likeness is measured at."""

    def __init__(self, stack: Stack, stack_from_frame: np.ndarray, kind: str) -> None:
        self.stack = stack.at(MEASURED_SIDE_PX) if len(stack) <= MAX_SAMPLE_IMAGES else stack
        self.image_features = pixel_features(kind)
        left, right = self.stack.stack_from(stack), stack.frame_from(self.stack)
        self.start = left @ stack.start @ right
        self.found = left @ stack_from_frame.astype(np.float64) @ right

    def runs(self) -> list[range]:
        """All images, as many together as suits the cache."""
        return [range(part[0], part[-1] + 1) for part in chunks(self.stack)]

    @torch.no_grad()
    def seen(self, run: range) -> list[_Seen]:
        """Each image of a run, and its neighbours where they lie against it."""
        whole = np.arange(run.start, min(len(self.found), run.stop + max(TIME_NEIGHBOURS)))
        images = self.stack.images(whole).mean(1, keepdim=True)
        own = self._shown(images, whole, np.asarray(run), self.start[run.start : run.stop])
        found = [_Seen(view, {}) for view in own]
        for distance in TIME_NEIGHBOURS:
            rows = np.arange(run.start, min(run.stop, len(self.found) - distance))
            frames = invert(self.found[rows]) @ self.start[rows]
            moved = self._shown(images, whole, rows + distance, self.found[rows + distance] @ frames)
            for seen, view in zip(found, moved, strict=False):  # the last ones have nothing behind them
                seen.later[distance] = view
        return found

    def _shown(self, images: torch.Tensor, whole: np.ndarray, rows: np.ndarray, poses: np.ndarray) -> list[_View]:
        """Images `rows`, which are some of `whole` (B, 1, H, W), at poses of theirs."""
        if not len(rows):
            return []
        stack, first = self.stack, int(rows[0] - whole[0])
        matrices = torch.as_tensor(np.nan_to_num(normalise(poses))).float()
        some = images[first : first + len(rows)]
        shown = warp(some, matrices, stack.frame, padding=self.image_features.padding)
        weights = self.image_features.covered(matrices, stack.size, stack.frame, stack.masks(rows))
        contrast, counts = visible_contrast(shown, weights)
        return [_View(one, None if counts is None else counts[k]) for k, one in enumerate(contrast)]


def _correlation(one: _View, other: _View) -> float | None:
    """Of two pictures where both show something; None where that is too little."""
    (a, counts_a), (b, counts_b) = one, other
    if counts_a is not None and counts_b is not None:
        both = counts_a * counts_b
        if float(both.mean()) < BOTH_SEEN:
            return None
        a, b = a * both, b * both
    norm = float(a.norm()) * float(b.norm())
    return None if norm < 1e-9 else float((a * b).sum()) / norm
