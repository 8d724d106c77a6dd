"""Groups in a set: whether there are two that differ, and how well groups agree with labels.

Groups that are searched for in a set always look more alike inside than across, even groups of noise. So the frame is
cut into a chessboard: groups are found on the black squares and compared on the white ones, and the other way round.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

from congeal.evaluation.likeness import Matrix, Pictures, pair_likeness
from congeal.evaluation.thresholds import MIN_GROUP_IMAGES

Table = NDArray[np.int64]
CHESSBOARD_SQUARES = 8
"""Squares along the longer side of the chessboard, as many as leave each large enough for local contrast."""
MAX_KMEANS_ROUNDS = 20
"""Rounds of k-means; a few are usual."""
MIN_INSIDE_LIKENESS = 1e-4
"""Likeness inside a group that is divided by at least; less is noise."""


class TwoGroups(NamedTuple):
    """The two groups of a set that differ most."""

    between_likeness: float = 1.0  # of images of different groups, divided by that of one group: 1 for one kind
    smaller_share: float = 0.0  # share of the images that is in the smaller group


def compare_groups(pictures: Pictures) -> TwoGroups:
    """The groups of a set; a set with fewer than 2 × `MIN_GROUP_IMAGES` images has none."""
    contrast, counts = pictures
    n, height, width = contrast.shape
    if n < 2 * MIN_GROUP_IMAGES:
        return TwoGroups()
    square = max(1, max(height, width) // CHESSBOARD_SQUARES)
    rows, columns = torch.arange(height) // square, torch.arange(width) // square
    black = ((rows[:, None] + columns) % 2).float()
    halves = [
        pair_likeness((contrast * part, None if counts is None else counts * part)) for part in (black, 1 - black)
    ]
    found = [_compare(*pair) for pair in ((halves[0], halves[1]), (halves[1], halves[0]))]
    return TwoGroups(*np.mean(found, axis=0).tolist())


def _compare(seen: Matrix, hidden: Matrix) -> TwoGroups:
    """Groups found in one matrix of likeness (N,N), compared in another one."""
    group = two_groups(seen)
    same = group[:, None] == group
    pairs = same & ~np.eye(len(seen), dtype=bool)
    inside = np.array([hidden[pairs & side[:, None]].mean() for side in (group, ~group)])
    between = hidden[~same].mean() / np.sqrt(np.maximum(inside, MIN_INSIDE_LIKENESS).prod())
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
    for _ in range(MAX_KMEANS_ROUNDS):
        distance = [likeness[np.ix_(side, side)].mean() - 2 * likeness[:, side].mean(1) for side in (group, ~group)]
        moved = distance[0] < distance[1]
        if min(moved.sum(), n - moved.sum()) < MIN_GROUP_IMAGES or (moved == group).all():
            break
        group = moved
    return group


def confusion(groups: ArrayLike, labels: ArrayLike) -> tuple[Table, list[str]]:
    """(K, L) how many images of each group have each label, and the labels in order; groups below 0 are none."""
    group, known = np.asarray(groups), np.asarray(labels).astype(str)
    names, label = np.unique(known, return_inverse=True)
    table = np.zeros((max(int(group.max(initial=-1)) + 1, 1), len(names)), dtype=np.int64)
    inside = group >= 0
    np.add.at(table, (group[inside], label[inside]), 1)
    return table, names.tolist()


def accuracy(groups: ArrayLike, labels: ArrayLike) -> float:
    """Share of images whose group is matched to their label, under the best matching of groups to labels, one to one.

    An image in no group is wrong.
    """
    table, _ = confusion(groups, labels)
    return float(table[linear_sum_assignment(-table)].sum() / max(1, len(np.asarray(labels))))


def purity(groups: ArrayLike, labels: ArrayLike) -> float:
    """Share of the images in groups that have the commonest label of their group."""
    table, _ = confusion(groups, labels)
    return float(table.max(1).sum() / max(1, table.sum()))
