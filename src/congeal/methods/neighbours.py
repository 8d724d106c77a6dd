"""Likeness in a sequence: each image against those near it in time, where both show something.

The images of a drifting sequence have no mean: the first and the last may show different things. So each image is
looked at as it is, and its neighbours as its own frame would show them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

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
from congeal.solvers.threads import in_order


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
    last = deque[_Seen](maxlen=max(TIME_NEIGHBOURS) + 1)
    for j, seen in enumerate(in_order(views.seen, range(n), torch.get_num_threads())):
        flat[j] = not bool(seen.own.contrast.any())
        last.append(seen)
        for distance in TIME_NEIGHBOURS:
            i = j - distance
            if i < 0:
                continue
            own, moved = last[-1 - distance].own, last[-1 - distance].later[distance]
            if i in noisy and distance == TIME_NEIGHBOURS[0]:
                chances.append(best_shift_likeness(own.contrast, moved.contrast))
            for total, other in ((before, seen.own), (after, moved)):
                like = _correlation(own, other)
                if like is not None:
                    total[0, [i, j]] += like
                    total[1, [i, j]] += 1
    with np.errstate(invalid="ignore", divide="ignore"):
        start, end = before[0] / before[1], after[0] / after[1]
    known = end[np.isfinite(end)]
    usual = float(np.quantile(known, CENTRE)) if len(known) else 0.0
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
        self.stack = stack.at(FINE_SIDE) if len(stack) <= FINE_IMAGES else stack
        self.appearance = plain_appearance(kind)
        left, right = rescale(stack.size, self.stack.size), rescale(self.stack.frame, stack.frame)
        self.start = left @ stack.start @ right
        self.found = left @ stack_from_frame.astype(np.float64) @ right

    @torch.no_grad()
    def seen(self, i: int) -> _Seen:
        """Image i, and its neighbours where they lie against it."""
        frame = invert(self.found[i]) @ self.start[i]
        later = [distance for distance in TIME_NEIGHBOURS if i + distance < len(self.found)]
        moved = {distance: self._shown(i + distance, self.found[i + distance] @ frame) for distance in later}
        return _Seen(self._shown(i, self.start[i]), moved)

    def _shown(self, j: int, pose: np.ndarray) -> _View:
        stack = self.stack
        matrix = torch.as_tensor(np.nan_to_num(normalise(pose)))[None].float()
        shown = warp(stack.images([j]), matrix, stack.frame, padding=self.appearance.padding)
        weights = self.appearance.covered(matrix, stack.size, stack.frame, stack.masks([j]))
        contrast, counts = local_contrast(shown, weights)
        return _View(contrast[0], None if counts is None else counts[0])


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
