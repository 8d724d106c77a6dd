"""Spectral clustering of a graph of nearest neighbours, refined until its conductance no longer falls.

The conductance of a group is the share of its edge weight that leads out of it. Emptying a group does not lower it,
because a small group has little edge weight of its own.

Photographs of one kind differ in light and pose as much as those of two kinds do, so that no fixed conductance of their
features tells the two cases apart. A bipartition is compared with that of a null model without clusters: as many points
of a normal distribution with the same covariance.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.cluster.hierarchy import linkage
from scipy.cluster.vq import kmeans2
from scipy.linalg import qr
from scipy.sparse import coo_matrix, csr_matrix, diags
from scipy.sparse.linalg import eigsh
from scipy.spatial.distance import squareform

from congeal.methods.clustering.exemplars import unit_vectors

MAX_SWEEPS = 30
"""Sweeps in which nodes change groups; graphs of ten thousand digits end after fewer than ten."""
MAX_MERGES_TRIED = 4
"""Splits and merges that are carried out and refined before a partition counts as final, the most promising first
(chosen by judgement)."""
FEATURE_NEIGHBOURS = 10
"""Nearest neighbours of each image in the graph of features (chosen by judgement)."""
MIN_GROUP_IMAGES = 5
"""Images in a group that is found, not asked for, at least (chosen by judgement)."""
MAX_RELATIVE_CONDUCTANCE = 0.55
"""A bipartition by features of a network counts where its conductance is below this share of the null model's. Birds of
two species and two kinds of things of PF-WILLOW: 0.39 and less; one kind: cars 0.75, ducks and motorbikes more than 1,
but jays, goldfinches and woodpeckers 0.3 to 0.53, by their posture. It is about the middle of 0.39 and 0.75."""
MAX_TESTED_IMAGES, NULL_SAMPLES = 500, 5
"""Images of a group that is compared with the null model, beyond which the share no longer changes, and sets that are
drawn from it."""


@dataclass(frozen=True)
class NeighbourGraph:
    """Undirected, weighted edges between n images, as a sparse symmetric matrix (n, n)."""

    weights: csr_matrix

    @staticmethod
    def of_neighbours(neighbours: np.ndarray, strength: np.ndarray) -> NeighbourGraph:
        """From the neighbours (n, k) of every image and the weight of each; −1 is none.

        An edge counts half for each side that names it, so that mutual neighbours count most.
        """
        n, known = len(neighbours), neighbours >= 0
        here = np.nonzero(known)[0]
        directed = coo_matrix((strength[known].astype(np.float64) / 2, (here, neighbours[known])), shape=(n, n))
        return NeighbourGraph((directed + directed.T).tocsr())

    def __len__(self) -> int:
        return int(self.weights.shape[0])

    @property
    def degrees(self) -> np.ndarray:
        """(n,) the weight of all edges of each image."""
        return np.asarray(self.weights.sum(1)).ravel()

    def embedding(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The `count` largest eigenvalues (count,) of the normalised adjacency matrix, and eigenvectors (n, count)."""
        root = diags(1 / np.sqrt(np.maximum(self.degrees, 1e-12)))
        normalised = root @ self.weights @ root
        if len(self) <= max(400, 4 * count):  # Lanczos iterations are not faster here
            values, vectors = np.linalg.eigh(normalised.toarray())
        else:
            start = np.random.default_rng(0).standard_normal(len(self))
            values, vectors = eigsh(
                normalised, count, which="LA", v0=start, ncv=min(len(self), 4 * count + 20), tol=1e-6
            )
        order = np.argsort(values)[::-1][:count]
        return values[order], vectors[:, order]

    def conductances(self, groups: np.ndarray, count: int) -> np.ndarray:
        """(count,) the share of each group's edge weight that leads out of it."""
        between = self.between(groups, count)
        return 1 - between.diagonal() / np.maximum(between.sum(1), 1e-12)

    def subgraph(self, rows: np.ndarray) -> NeighbourGraph:
        """The graph of some of the images, without edges to others."""
        return NeighbourGraph(self.weights[rows][:, rows])

    def between(self, groups: np.ndarray, count: int) -> np.ndarray:
        """(count, count) the weight of edges between every two groups; images of group −1 are left out."""
        members = _membership(groups, count)
        return members.T @ (self.weights @ members)


def _membership(groups: np.ndarray, count: int) -> np.ndarray:
    """(n, count) 1 where an image is in a group."""
    return (groups[:, None] == np.arange(count)).astype(np.float64)


def partition(
    graph: NeighbourGraph, vectors: np.ndarray, rng: np.random.Generator | None = None, starts: int = 0
) -> np.ndarray:
    """(n,) groups, as many as there are eigenvectors (n, count): of several starts those of the least conductance.

    The first start is deterministic: QR with pivoting finds images whose eigenvectors point apart, and every image goes
    to the axis that it lies along. The others are k-means from random centres. No group is left empty. The best of
    several starts is then split and merged: one start in four finds the ten digits in affNIST-style images, and from
    any of them split and merged all do.
    """
    count = vectors.shape[1]
    if count == 1:
        return np.zeros(len(vectors), dtype=np.int64)
    pivots = qr(vectors.T, mode="r", pivoting=True)[-1][:count]
    u, _, v = np.linalg.svd(vectors[pivots].T)
    begun = [np.abs(vectors @ (u @ v)).argmax(1)]
    rows = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    if rng is not None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="One of the clusters is empty")
            runs = [kmeans2(rows, count, iter=30, minit="++", seed=rng) for _ in range(starts)]
        begun += [labels.astype(np.int64) for _, labels in runs]
    refined = [move_nodes(graph, fill_empty_groups(graph, groups, count), count) for groups in begun]
    best = min(refined, key=lambda groups: float(graph.conductances(groups, count).sum()))
    return split_and_merge(graph, best, count, rows) if starts > 1 else best


def fill_empty_groups(graph: NeighbourGraph, groups: np.ndarray, count: int) -> np.ndarray:
    """The same groups, each empty one replaced by half of the largest, which is split along its second eigenvector."""
    groups = groups.copy()
    for empty in range(count):
        sizes = np.bincount(groups, minlength=count)
        if sizes[empty]:
            continue
        members = np.flatnonzero(groups == sizes.argmax())
        side = graph.subgraph(members).embedding(2)[1][:, 1] if len(members) > 2 else np.arange(len(members))
        half = members[side > np.median(side)]
        groups[half if len(half) else members[len(members) // 2 :]] = empty
    return groups


def move_nodes(graph: NeighbourGraph, groups: np.ndarray, count: int) -> np.ndarray:
    """Move all nodes to the group that most of their edges lead to, for its volume, while the conductance falls."""
    degrees = graph.degrees
    best, least = groups, float(graph.conductances(groups, count).sum())
    for _ in range(MAX_SWEEPS):
        members = _membership(best, count)
        volume = np.maximum(degrees @ members, 1e-12)
        links = graph.weights @ members
        inside = (members * links).sum(0) / volume
        moved = (2 * links / volume - degrees[:, None] * inside / volume).argmax(1)
        cost = float(graph.conductances(moved, count).sum())
        if (np.bincount(moved, minlength=count) == 0).any() or cost >= least - 1e-9:
            break
        best, least = moved, cost
    return best


def split_and_merge(graph: NeighbourGraph, groups: np.ndarray, count: int, rows: np.ndarray) -> np.ndarray:
    """Merge two groups and split another one, while that lowers the conductance.

    A partition with two kinds in one group and one kind in two does not improve by moving single images. rows (n, d) is
    the embedding by which groups are split.
    """
    best, least = groups, float(graph.conductances(groups, count).sum())
    while True:  # halves of fewer than four images have no edges inside
        members = [np.flatnonzero(best == group) for group in range(count)]
        halves = {group: _split_group(graph, own, rows) for group, own in enumerate(members) if len(own) >= 4}
        for one, other, third in _promising(graph, best, count, halves)[:MAX_MERGES_TRIED]:
            changed = np.where(best == other, one, best)
            changed[halves[third]] = other
            changed = move_nodes(graph, changed, count)
            cost = float(graph.conductances(changed, count).sum())
            if cost < least - 1e-9:
                best, least = changed, cost
                break
        else:
            return best


def _promising(
    graph: NeighbourGraph, groups: np.ndarray, count: int, halves: dict[int, np.ndarray]
) -> list[tuple[int, int, int]]:
    """Two groups to merge and a third one to split, those first that raise the conductance least."""
    between, own = graph.between(groups, count), graph.conductances(groups, count)
    rises = {}
    for group, half in halves.items():
        changed = groups.copy()
        changed[half] = count
        rises[group] = float(graph.conductances(changed, count + 1)[[group, count]].sum() - own[group])
    changes = []
    for one in range(count):
        for other in range(one + 1, count):
            inside = between[one, one] + between[other, other] + 2 * between[one, other]
            merged = 1 - inside / max(between[[one, other]].sum(), 1e-12)
            fall = float(own[one] + own[other] - merged)
            changes += [(rise - fall, one, other, third) for third, rise in rises.items() if third not in (one, other)]
    return [change[1:] for change in sorted(changes)]


def _split_group(graph: NeighbourGraph, members: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The members on one side of a group, along its first principal axis, after nodes were moved."""
    own = rows[members] - rows[members].mean(0)
    side = own @ np.linalg.eigh(own.T @ own)[1][:, -1]
    two = (side > 0).astype(np.int64) if np.abs(side).max() > 1e-9 else np.arange(len(members)) % 2
    return members[move_nodes(graph.subgraph(members), two, 2) == 1]


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


def dendrogram(between: np.ndarray) -> list[tuple[int, int, float]]:
    """The merges of groups by average linkage, from the weight of edges between every two (k, k), most alike first.

    A merge is (one, other, share): numbers below k are groups, k + i is the result of merge i. share is the part of the
    edge weight of the smaller group that leads to the other, mean over all pairs of groups that are merged.
    """
    if len(between) < 2:
        return []
    volume = between.sum(1)
    share = between / np.maximum(np.minimum(volume[:, None], volume), 1e-12)
    np.fill_diagonal(share, 1.0)
    merges = linkage(squareform(1 - share, checks=False), "average")
    return [(int(one), int(other), float(1 - distance)) for one, other, distance, _ in merges]


def cut_dendrogram(tree: Sequence[Sequence[float]], groups: int, remaining: int) -> list[int]:
    """(groups,) the new number of every group after the first merges of a tree, which leave `remaining` groups.

    New numbers are in the order of the first group that each holds.
    """
    root = {number: number for number in range(groups)}
    holds = {number: [number] for number in range(groups)}
    for i, (one, other, _) in enumerate(tree[: groups - remaining]):
        holds[groups + i] = holds.pop(int(one)) + holds.pop(int(other))
        root |= dict.fromkeys(holds[groups + i], groups + i)
    order = list(dict.fromkeys(root[number] for number in range(groups)))
    return [order.index(root[number]) for number in range(groups)]
