"""Agreement of groups with labels: confusion table, accuracy under the best assignment, purity."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

Table = NDArray[np.int64]


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
