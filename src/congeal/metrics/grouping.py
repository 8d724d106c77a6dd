"""How well groups agree with labels: the table of both, the best matching of one to the other, purity."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
    return float(table[matching(table)].sum() / max(1, len(np.asarray(labels))))


def purity(groups: ArrayLike, labels: ArrayLike) -> float:
    """Share of the images in groups that have the commonest label of their group."""
    table, _ = confusion(groups, labels)
    return float(table.max(1).sum() / max(1, table.sum()))


def matching(table: Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns, one to one, that hold the most together: the assignment problem, by shortest paths."""
    cost = -np.asarray(table, dtype=np.float64)
    turned = cost.shape[0] > cost.shape[1]
    cost = cost.T if turned else cost
    n, m = cost.shape
    row_price, column_price = np.zeros(n + 1), np.zeros(m + 1)
    row_of = np.zeros(m + 1, dtype=np.int64)  # of each column, from 1; 0 is free
    for row in range(1, n + 1):
        row_of[0], here = row, 0
        least, before = np.full(m + 1, np.inf), np.zeros(m + 1, dtype=np.int64)
        seen = np.zeros(m + 1, dtype=bool)
        while row_of[here]:
            seen[here] = True
            now = row_of[here]
            price = cost[now - 1] - row_price[now] - column_price[1:]
            better = ~seen[1:] & (price < least[1:])
            least[1:][better], before[1:][better] = price[better], here
            there = int(np.where(seen, np.inf, np.r_[np.inf, least[1:]]).argmin())
            step = least[there]
            row_price[row_of[seen]] += step
            column_price[seen] -= step
            least[~seen] -= step
            here = there
        while here:
            row_of[here] = row_of[before[here]]
            here = int(before[here])
    columns = np.flatnonzero(row_of[1:])
    rows = row_of[1:][columns] - 1
    return (columns, rows) if turned else (rows, columns)
