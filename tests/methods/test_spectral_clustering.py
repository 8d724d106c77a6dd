"""Spectral clustering: clusters of any size are found, no group stays empty, a wrong split is repaired."""

from __future__ import annotations

import numpy as np
import pytest

from congeal.methods.clustering.spectral_clustering import (
    NeighbourGraph,
    dendrogram,
    move_nodes,
    partition,
    split_and_merge,
)


def clusters(sizes: list[int], k: int = 6, astray: float = 0.05, seed: int = 0) -> tuple[NeighbourGraph, np.ndarray]:
    """A graph of neighbours in which a few of each image's neighbours are of another cluster, and the clusters."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(len(sizes)), sizes)
    neighbours = np.empty((len(truth), k), dtype=np.int64)
    for i, own in enumerate(truth):
        members = np.setdiff1d(np.flatnonzero(truth == own), [i])
        near = rng.permutation(members)[:k]
        neighbours[i] = np.where(rng.random(k) < astray, rng.integers(len(truth), size=k), near)
    return NeighbourGraph.of_neighbours(neighbours, np.ones(neighbours.shape)), truth


def agreement(one: np.ndarray, other: np.ndarray) -> float:
    """Share of pairs on which two groupings agree."""
    return float(((one[:, None] == one) == (other[:, None] == other)).mean())


def small_graph() -> NeighbourGraph:
    return NeighbourGraph.of_neighbours(np.array([[1], [0], [3], [2], [3]]), np.ones((5, 1)))


@pytest.mark.parametrize("sizes", [[40, 40, 40], [300, 200, 60], [10, 12, 400]])
def test_clusters_are_found_whatever_their_sizes(sizes: list[int]) -> None:
    graph, truth = clusters(sizes)
    values, vectors = graph.embedding(len(sizes) + 1)
    groups = partition(graph, vectors[:, : len(sizes)])
    assert agreement(groups, truth) > 0.99
    assert values[0] == pytest.approx(1, abs=1e-6)
    assert values[len(sizes) - 1] - values[len(sizes)] > 0.2, "one eigenvalue near 1 for each cluster"


@pytest.mark.parametrize("astray", [0.05, 0.0])
def test_large_and_small_graphs_have_the_same_eigenvalues(astray: float) -> None:
    """Above 400 images they come from Lanczos iterations; without stray edges the eigenvalue 1 is threefold."""
    graph, truth = clusters([200, 150, 100], astray=astray)
    values, vectors = graph.embedding(5)
    root = 1 / np.sqrt(graph.degrees)
    exact = np.linalg.eigvalsh(root[:, None] * graph.weights.toarray() * root)[::-1][:5]
    assert values == pytest.approx(exact, abs=1e-3)
    assert vectors.T @ vectors == pytest.approx(np.eye(5), abs=1e-6)
    assert agreement(partition(graph, vectors[:, :3]), truth) > 0.99


def test_conductance_is_the_share_of_edges_that_leave() -> None:
    graph = small_graph()
    assert graph.conductances(np.array([0, 0, 1, 1, 1]), 2).tolist() == [0, 0]
    assert graph.conductances(np.array([0, 0, 0, 1, 1]), 2).tolist() == pytest.approx([1 / 3, 1 / 2])


def test_emptying_a_group_gains_nothing() -> None:
    graph, truth = clusters([50, 50, 50])
    one_taken = truth.copy()
    one_taken[np.flatnonzero(truth == 2)[1:]] = 0  # all but one image
    assert graph.conductances(truth, 3).sum() < graph.conductances(one_taken, 3).sum()


@pytest.mark.parametrize("count", [2, 3, 6])
def test_no_group_is_empty(count: int) -> None:
    """Not even of images without any neighbour, or where there is only one cluster."""
    alone = NeighbourGraph.of_neighbours(np.full((6, 1), -1), np.ones((6, 1)))
    graph, _ = clusters([60])
    for one in (alone, graph):
        for rearranged in (False, True):
            groups = partition(one, one.embedding(count)[1], rearranged=rearranged)
            assert np.bincount(groups, minlength=count).min() > 0


def test_the_dendrogram_merges_the_most_alike_first() -> None:
    tree = dendrogram(np.array([[80.0, 15.0, 1.0], [15.0, 70.0, 2.0], [1.0, 2.0, 90.0]]))
    assert [merge[:2] for merge in tree] == [(0, 1), (2, 3)]
    assert tree[0][2] > tree[1][2]
    assert dendrogram(np.ones((1, 1))) == []


def test_two_kinds_in_one_group_and_one_kind_in_two_are_separated() -> None:
    """Moving single images does not."""
    graph, truth = clusters([60, 60, 60, 60])
    wrong = np.where(truth == 1, 0, truth)
    wrong[np.flatnonzero(truth == 2)[::2]] = 1
    assert agreement(move_nodes(graph, wrong, 4), truth) < 0.9
    _, vectors = graph.embedding(4)
    assert agreement(split_and_merge(graph, wrong, 4, vectors), truth) > 0.99


@pytest.mark.parametrize("groups", [[0, 0, 1, 1, 1], [0, 0, 1, 1, 2]])
def test_groups_too_small_to_split_stay(groups: list[int]) -> None:
    count = max(groups) + 1
    assert split_and_merge(small_graph(), np.array(groups), count, np.eye(5)).tolist() == groups
