"""Likeness in a sequence: each image against those near it in time, where both show something.

The images of a drifting sequence have no mean: the first and the last may show different things. So each image is
looked at as it is, and its neighbours as its own frame would show them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from congeal.geometry import invert, normalise, rescale, warp
from congeal.images import Stack
from congeal.metrics.chance import best_shift_likeness
from congeal.metrics.contrast import local_contrast
from congeal.metrics.limits import (
    BOTH_SEEN,
    CENTRE,
    CHANCE_IMAGES,
    FINE_IMAGES,
    FINE_SIDE,
    NEIGHBOUR_SHARE,
    TIME_NEIGHBOURS,
)
from congeal.solvers.appearance import plain_appearance


@dataclass
class AmongNeighbours:
    """What is known of n images, each NaN where neither neighbour can be compared."""

    before: np.ndarray  # (n,) mean likeness to neighbours where the images started
    after: np.ndarray  # (n,) the same as aligned
    flat: np.ndarray  # (n,) bool: shows nothing
    chance: float  # likeness that noise of the same kind reaches
    least: float  # of which an image of the sequence has at least this


def among_neighbours(stack: Stack, stack_from_frame: np.ndarray, kind: str) -> AmongNeighbours:
    """Likeness of every image to those `TIME_NEIGHBOURS` before and after it."""
    views = _OwnViews(stack, stack_from_frame, kind)
    n = len(stack)
    before, after = np.zeros((2, n)), np.zeros((2, n))  # sums, and of how many
    flat, chances = np.zeros(n, dtype=bool), []
    noisy = set(np.linspace(0, n - 1, min(n, CHANCE_IMAGES)).round().astype(int).tolist())
    for i in range(n):
        own, own_counts = views.itself(i)
        flat[i] = not bool(own.any())
        for distance in TIME_NEIGHBOURS:
            j = i + distance
            if j >= n:
                continue
            still = views.of(j, i, moved=False)
            moved = views.of(j, i, moved=True)
            if i in noisy and distance == TIME_NEIGHBOURS[0]:
                chances.append(best_shift_likeness(own, moved[0]))
            for k, (values, seen) in enumerate((still, moved)):
                like = _correlation(own, own_counts, values, seen)
                if like is not None:
                    total = before if k == 0 else after
                    total[0, [i, j]] += like
                    total[1, [i, j]] += 1
    with np.errstate(invalid="ignore", divide="ignore"):
        first, last = before[0] / before[1], after[0] / after[1]
    known = last[np.isfinite(last)]
    usual = float(np.quantile(known, CENTRE)) if len(known) else 0.0
    chance = float(np.mean(chances)) if chances else 0.0
    return AmongNeighbours(first, last, flat, chance, NEIGHBOUR_SHARE * usual)


class _OwnViews:
    """Local contrast of images as one of them sees them, at the resolution that likeness is measured at."""

    def __init__(self, stack: Stack, stack_from_frame: np.ndarray, kind: str) -> None:
        self.stack = stack.at(FINE_SIDE) if len(stack) <= FINE_IMAGES else stack
        self.appearance = plain_appearance(kind)
        left, right = rescale(stack.size, self.stack.size), rescale(self.stack.frame, stack.frame)
        self.start = left @ stack.start @ right
        self.found = left @ stack_from_frame.astype(np.float64) @ right

    def itself(self, i: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Image i at its start."""
        return self._shown(i, self.start[i])

    def of(self, j: int, i: int, *, moved: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Image j in the view of image i: where it started, or as it lies against i now."""
        if not moved:
            return self._shown(j, self.start[j])
        return self._shown(j, self.found[j] @ invert(self.found[i]) @ self.start[i])

    def _shown(self, j: int, pose: np.ndarray) -> tuple[torch.Tensor, torch.Tensor | None]:
        stack = self.stack
        matrix = torch.as_tensor(np.nan_to_num(normalise(pose)))[None].float()
        shown = warp(stack.images([j]), matrix, stack.frame, padding=self.appearance.padding)
        weights = self.appearance.covered(matrix, stack.size, stack.frame, stack.masks([j]))
        contrast, counts = local_contrast(shown, weights)
        return contrast[0], None if counts is None else counts[0]


def _correlation(
    a: torch.Tensor, counts_a: torch.Tensor | None, b: torch.Tensor, counts_b: torch.Tensor | None
) -> float | None:
    """Of two pictures where both show something; None where that is too little."""
    if counts_a is not None and counts_b is not None:
        both = counts_a * counts_b
        if float(both.mean()) < BOTH_SEEN:
            return None
        a, b = a * both, b * both
    norm = float(a.norm()) * float(b.norm())
    return None if norm < 1e-9 else float((a * b).sum()) / norm
