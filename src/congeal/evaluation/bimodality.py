"""Whether a set is of one kind: how much less alike its two most different groups are than the images inside them.

Groups that are searched for in a set always look more alike inside than across, even groups of noise. So the frame is
cut into a chessboard: groups are found on the black squares and compared on the white ones, and the other way round.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from congeal.evaluation.likeness import Matrix, Pictures, pair_likeness
from congeal.evaluation.thresholds import MIN_GROUP_IMAGES

_SQUARES = 8  # along the longer side of the chessboard
_MAX_ROUNDS = 20  # of k-means; a few are usual
_MIN_LIKENESS = 1e-4  # inside a group; less is noise


class TwoGroups(NamedTuple):
    """The two groups of a set that differ most.

    Attributes
    ----------
    between_likeness : float
        Likeness of images of different groups, divided by likeness of images of one group: 1 for one kind.
    smaller_share : float
        Share of the images that is in the smaller group.
    """

    between_likeness: float = 1.0
    smaller_share: float = 0.0


def compare_groups(pictures: Pictures) -> TwoGroups:
    """The groups of a set; a set with fewer than 2 × `MIN_GROUP_IMAGES` images has none."""
    contrast, counts = pictures
    n, height, width = contrast.shape
    if n < 2 * MIN_GROUP_IMAGES:
        return TwoGroups()
    black = _chessboard(height, width)
    halves = [
        pair_likeness((contrast * part, None if counts is None else counts * part)) for part in (black, 1 - black)
    ]
    found = [_compare(*pair) for pair in ((halves[0], halves[1]), (halves[1], halves[0]))]
    return TwoGroups(*np.mean(found, axis=0).tolist())


def _chessboard(height: int, width: int) -> torch.Tensor:
    square = max(1, max(height, width) // _SQUARES)
    rows, columns = torch.arange(height) // square, torch.arange(width) // square
    return ((rows[:, None] + columns) % 2).float()


def _compare(seen: Matrix, hidden: Matrix) -> TwoGroups:
    """Groups found in one matrix of likeness (N,N), compared in another one."""
    group = two_groups(seen)
    same = group[:, None] == group
    pairs = same & ~np.eye(len(seen), dtype=bool)
    inside = np.array([hidden[pairs & side[:, None]].mean() for side in (group, ~group)])
    between = hidden[~same].mean() / np.sqrt(np.maximum(inside, _MIN_LIKENESS).prod())
    return TwoGroups(between, min(group.mean(), 1 - group.mean()))


def two_groups(likeness: Matrix) -> NDArray[np.bool_]:
    """(N,) bool: two groups of images with likeness (N,N), by k-means from the best cut of the first component."""
    n = len(likeness)
    centred = likeness - likeness.mean(0) - likeness.mean(1)[:, None] + likeness.mean()
    component = np.linalg.eigh((centred + centred.T) / 2)[1][:, -1]
    order = np.argsort(component, kind="stable")
    line, least = component[order], max(MIN_GROUP_IMAGES, n // 10)
    cut = min(range(least, n - least + 1), key=lambda i: i * line[:i].var() + (n - i) * line[i:].var())
    group = np.zeros(n, dtype=bool)
    group[order[cut:]] = True
    for _ in range(_MAX_ROUNDS):
        distance = [likeness[np.ix_(side, side)].mean() - 2 * likeness[:, side].mean(1) for side in (group, ~group)]
        moved = distance[0] < distance[1]
        if min(moved.sum(), n - moved.sum()) < MIN_GROUP_IMAGES or (moved == group).all():
            break
        group = moved
    return group
