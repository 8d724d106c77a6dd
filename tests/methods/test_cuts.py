"""Groups of a graph: what hangs together stays together, empty groups are born again, the tree joins neighbours."""

from __future__ import annotations

import pytest
import torch

from congeal.solvers.cuts import Graph, cut, filled, merges, regrouped, settle


def clusters(sizes: list[int], k: int = 6, astray: float = 0.05, seed: int = 0) -> tuple[Graph, torch.Tensor]:
    """A graph of neighbours in which a few of each image's neighbours are of another cluster, and the clusters."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    neighbours = torch.empty(len(truth), k, dtype=torch.long)
    for i, own in enumerate(truth.tolist()):
        members = torch.nonzero(truth == own)[:, 0]
        members = members[members != i]
        near = members[torch.randperm(len(members), generator=generator)[:k]]
        wrong = torch.rand(k, generator=generator) < astray
        anyone = torch.randint(len(truth), (k,), generator=generator)
        neighbours[i] = torch.where(wrong, anyone, near)
    return Graph.of_neighbours(neighbours, torch.ones(len(truth), k)), truth


def same(one: torch.Tensor, other: torch.Tensor) -> float:
    """Share of pairs on which two groupings agree."""
    return float(((one[:, None] == one) == (other[:, None] == other)).double().mean())


@pytest.mark.parametrize("sizes", [[40, 40, 40], [300, 200, 60], [10, 12, 400]])
def test_clusters_are_found_whatever_their_sizes(sizes: list[int]) -> None:
    graph, truth = clusters(sizes)
    values, vectors = graph.embedding(len(sizes) + 1)
    groups = cut(graph, vectors[:, : len(sizes)])
    assert same(groups, truth) > 0.99
    assert values[0] == pytest.approx(1, abs=1e-6)
    assert values[len(sizes) - 1] - values[len(sizes)] > 0.2, "one eigenvalue near 1 for each cluster"


def test_large_and_small_graphs_have_the_same_eigenvalues() -> None:
    """Above 400 images they come from iterations."""
    graph, _ = clusters([200, 150, 100])
    found, vectors = graph.embedding(5)
    root = graph.degrees.rsqrt()
    exact = torch.linalg.eigvalsh(root[:, None] * graph.weights.to_dense() * root).flip(0)[:5]
    assert found.numpy() == pytest.approx(exact.numpy(), abs=1e-3)
    assert (vectors.T @ vectors).numpy() == pytest.approx(torch.eye(5).double().numpy(), abs=1e-6)


def test_a_leak_is_the_share_of_edges_that_leave() -> None:
    graph = Graph.of_neighbours(torch.tensor([[1], [0], [3], [2], [3]]), torch.ones(5, 1))
    assert graph.leaks(torch.tensor([0, 0, 1, 1, 1]), 2).tolist() == [0, 0]
    assert graph.leaks(torch.tensor([0, 0, 0, 1, 1]), 2).tolist() == pytest.approx([1 / 3, 1 / 2])


def test_emptying_a_group_gains_nothing() -> None:
    graph, truth = clusters([50, 50, 50])
    good = float(graph.leaks(truth, 3).sum())
    one_taken = truth.clone()
    one_taken[torch.nonzero(truth == 2)[1:, 0]] = 0  # all but one image
    assert good < float(graph.leaks(one_taken, 3).sum())
    assert same(settle(graph, one_taken, 3), truth) < 1.01  # it ends, whatever it makes of it


def test_an_empty_group_is_born_again() -> None:
    graph, truth = clusters([60, 60])
    groups = filled(graph, torch.zeros(120, dtype=torch.long), 2)
    assert same(groups, truth) > 0.95
    same_all = Graph.of_neighbours(torch.tensor([[1], [0]]), torch.ones(2, 1))
    assert sorted(filled(same_all, torch.zeros(2, dtype=torch.long), 2).tolist()) == [0, 1]


def test_the_tree_joins_the_most_alike_first() -> None:
    between = torch.tensor([[80.0, 15.0, 1.0], [15.0, 70.0, 2.0], [1.0, 2.0, 90.0]])
    tree = merges(between)
    assert [merge[:2] for merge in tree] == [(0, 1), (3, 2)]
    assert tree[0][2] > tree[1][2]


def test_two_kinds_in_one_group_and_one_kind_in_two_are_put_right() -> None:
    """Moving single images does not get out of it."""
    graph, truth = clusters([60, 60, 60, 60])
    wrong = torch.where(truth == 1, 0, truth)
    wrong[torch.nonzero(truth == 2)[::2, 0]] = 1
    assert same(settle(graph, wrong, 4), truth) < 0.9
    _, vectors = graph.embedding(4)
    assert same(regrouped(graph, wrong, 4, vectors), truth) > 0.99


@pytest.mark.parametrize("count", [2, 3])
def test_groups_too_small_to_split_stay(count: int) -> None:
    graph = Graph.of_neighbours(torch.tensor([[1], [0], [3], [2], [3]]), torch.ones(5, 1))
    groups = torch.tensor([0, 0, 1, 1, 1]) if count == 2 else torch.tensor([0, 0, 1, 1, 2])
    assert regrouped(graph, groups, count, torch.eye(5).double()).tolist() == groups.tolist()
