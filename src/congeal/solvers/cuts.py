"""Cutting a set into groups, given which images are neighbours of which.

The neighbours make a graph. A good cut goes where few edges are: the *leak* of a group is the share of its edges that
lead out of it. Leaks cannot be lowered by emptying a group, because a small group has few edges of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import one_hot

from congeal.solvers.descriptors import kmeans, squared_distances

_FILTER = 24  # degree of the polynomial that separates wanted eigenvectors from the others
_ROUNDS = 12
_EXTRA = 8  # vectors carried along, so that the wanted ones converge
_MOVES = 30  # passes in which images change sides
_SPLIT = 4  # images in a group that may be split, at least
_TRIED = 4  # ways to split and merge that are tried, of those that promise most


@dataclass(frozen=True)
class Graph:
    """Undirected, weighted edges between n images, as a sparse matrix (n, n) in float64."""

    weights: torch.Tensor

    @staticmethod
    def of_neighbours(neighbours: torch.Tensor, strength: torch.Tensor) -> Graph:
        """From the neighbours (n, k) of every image and how strong each is; −1 is nobody.

        An edge counts half for each side that names it, so that mutual neighbours count most.
        """
        n, k = neighbours.shape
        here = torch.arange(n)[:, None].expand(n, k)[neighbours >= 0]
        there, value = neighbours[neighbours >= 0], strength[neighbours >= 0].double() / 2
        index = torch.stack([torch.cat([here, there]), torch.cat([there, here])])
        return Graph(_sparse(index, torch.cat([value, value]), n))

    def __len__(self) -> int:
        return self.weights.shape[0]

    @property
    def degrees(self) -> torch.Tensor:
        """(n,) the weight of all edges of each image."""
        return self.weights @ torch.ones(len(self), dtype=torch.float64)

    def embedding(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The `count` largest eigenvalues (count,) of the normalised adjacency matrix, and eigenvectors (n, count).

        By subspace iteration with a Chebyshev filter: a few hundred products with a sparse matrix.
        """
        n = len(self)
        root = self.degrees.clamp(min=1e-12).rsqrt()
        if n <= 400:
            values, vectors = torch.linalg.eigh(root[:, None] * self.weights.to_dense() * root)
            return values.flip(0)[:count], vectors.flip(1)[:, :count]
        width = min(n, count + _EXTRA)
        block = torch.randn(n, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        block, _ = torch.linalg.qr(block)

        def times(vectors: torch.Tensor) -> torch.Tensor:
            return root[:, None] * (self.weights @ (root[:, None] * vectors))

        values, cut = torch.zeros(width, dtype=torch.float64), 0.5
        for _ in range(_ROUNDS):
            middle, half = (cut - 1) / 2, (cut + 1) / 2  # what is unwanted lies in [-1, cut] and stays small
            before, now = block, (times(block) - middle * block) / half
            for _ in range(_FILTER - 1):
                before, now = now, 2 * (times(now) - middle * now) / half - before
            block, _ = torch.linalg.qr(now)
            values, turn = torch.linalg.eigh(block.T @ times(block))
            block = block @ turn
            cut = min(0.98, max(float(values[0]), 0.0))
        order = values.argsort(descending=True)[:count]
        return values[order], block[:, order]

    def leaks(self, groups: torch.Tensor, count: int) -> torch.Tensor:
        """(count,) the share of each group's edges that leads out of it."""
        between = self.between(groups, count)
        total = between.sum(1).clamp(min=1e-12)
        return 1 - between.diagonal() / total

    def some(self, rows: torch.Tensor) -> Graph:
        """The graph of some of the images, without edges to others."""
        place = torch.full((len(self),), -1, dtype=torch.long)
        place[rows] = torch.arange(len(rows))
        here, there = place[self.weights.indices()]
        inside = (here >= 0) & (there >= 0)
        index = torch.stack([here[inside], there[inside]])
        return Graph(_sparse(index, self.weights.values()[inside], len(rows)))

    def between(self, groups: torch.Tensor, count: int) -> torch.Tensor:
        """(count, count) the weight of edges between every two groups; −1 is in none."""
        inside = one_hot(groups.clamp(min=0), count).double() * (groups >= 0)[:, None]
        return inside.T @ (self.weights @ inside)


def _sparse(index: torch.Tensor, values: torch.Tensor, n: int) -> torch.Tensor:
    return torch.sparse_coo_tensor(index, values, (n, n), check_invariants=False).coalesce()


def cut(graph: Graph, vectors: torch.Tensor, generator: torch.Generator | None = None, starts: int = 0) -> torch.Tensor:
    """(n,) groups, as many as there are eigenvectors (n, count), that leak least of several starts.

    The first start has no luck in it: every image goes to the axis that it lies along, and the axes are images of the
    set that point apart (QR with pivoting). The others are k-means from random centres. From each, single images change
    sides while that lowers the leaks. No group is left empty. The best of several starts is then split and merged: one
    start in four finds the ten digits in affNIST-style images, and from any of them split and merged all do.
    """
    count = vectors.shape[1]
    if count == 1:
        return torch.zeros(len(vectors), dtype=torch.long)
    pivots, left = [], vectors.clone()
    for _ in range(count):
        best = int(left.square().sum(1).argmax())
        pivots.append(best)
        along = left[best] / left[best].norm().clamp(min=1e-12)
        left = left - (left @ along)[:, None] * along
    u, _, v = torch.linalg.svd(vectors[pivots].T)
    found = [(vectors @ (u @ v)).abs().argmax(1)]
    rows = vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1e-12)
    for _ in range(starts if generator is not None else 0):
        assert generator is not None
        found.append(squared_distances(rows, kmeans(rows, count, generator)).argmin(1))
    settled = [settle(graph, filled(graph, groups, count), count) for groups in found]
    least = min(settled, key=lambda groups: float(graph.leaks(groups, count).sum()))
    return regrouped(graph, least, count, rows) if starts > 1 else least


def filled(graph: Graph, groups: torch.Tensor, count: int) -> torch.Tensor:
    """Groups that are empty are born again: half of the largest one, cut where it is weakest."""
    groups = groups.clone()
    for empty in range(count):
        sizes = torch.bincount(groups, minlength=count)
        if sizes[empty]:
            continue
        members = torch.nonzero(groups == int(sizes.argmax()))[:, 0]
        part = graph.some(members)
        side = part.embedding(2)[1][:, 1] if len(members) > 2 else torch.arange(len(members)).double()
        groups[members[side > side.median()]] = empty
        if not (groups == empty).any():  # all alike
            groups[members[len(members) // 2 :]] = empty
    return groups


def settle(graph: Graph, groups: torch.Tensor, count: int) -> torch.Tensor:
    """Let images move to the group that most of their edges lead to, for the group's size, while the leaks fall."""
    degrees = graph.degrees
    best, least = groups, float(graph.leaks(groups, count).sum())
    for _ in range(_MOVES):
        inside = one_hot(best, count).double()
        volume = (inside * degrees[:, None]).sum(0).clamp(min=1e-12)
        towards = graph.weights @ inside
        stays = (inside * towards).sum(0) / volume
        moved = (2 * towards / volume - degrees[:, None] * stays / volume).argmax(1)
        if (torch.bincount(moved, minlength=count) == 0).any():
            break
        cost = float(graph.leaks(moved, count).sum())
        if cost >= least - 1e-9:
            break
        best, least = moved, cost
    return best


def regrouped(graph: Graph, groups: torch.Tensor, count: int, rows: torch.Tensor) -> torch.Tensor:
    """Two groups are merged and another one is split, while that lowers the leaks.

    A cut that has two kinds in one group and one kind in two does not get better by moving single images: all that lie
    between have to move at once. rows (n, d) is where the images lie, of which groups are split.
    """
    best, least = groups, float(graph.leaks(groups, count).sum())
    known: dict[bytes, torch.Tensor] = {}  # the second half of groups that were split before
    while True:
        between = graph.between(best, count)
        volume, leaks = between.sum(1), graph.leaks(best, count)
        split: dict[int, tuple[torch.Tensor, float]] = {}  # a group → its second half, and by how much the leaks rise
        for group in range(count):
            members = torch.nonzero(best == group)[:, 0]
            if len(members) < _SPLIT:
                continue
            name = members.numpy().tobytes()
            half = known[name] = known[name] if name in known else _half(graph, members, rows)
            changed = best.index_fill(0, half, count)
            split[group] = half, float(graph.leaks(changed, count + 1)[[group, count]].sum() - leaks[group])
        tries = []
        for one in range(count):
            for other in range(one + 1, count):
                inside = between[one, one] + between[other, other] + 2 * between[one, other]
                fall = float(leaks[one] + leaks[other] - 1 + inside / (volume[one] + volume[other]).clamp(min=1e-12))
                tries += [(rise - fall, one, other, third) for third, (_, rise) in split.items()]
        for _, one, other, third in sorted(t for t in tries if t[3] not in t[1:3])[:_TRIED]:
            changed = torch.where(best == other, one, best).index_fill(0, split[third][0], other)
            changed = settle(graph, changed, count)
            cost = float(graph.leaks(changed, count).sum())
            if cost < least - 1e-9:
                best, least = changed, cost
                break
        else:
            return best


def _half(graph: Graph, members: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Those members of a group that lie on one side of it, along its longest axis, and then change sides as images
    do."""
    own = rows[members] - rows[members].mean(0)
    side = own @ torch.linalg.eigh(own.T @ own)[1][:, -1]
    two = (side > 0).long() if float(side.abs().max()) > 1e-9 else torch.arange(len(members)) % 2
    return members[settle(graph.some(members), two, 2) == 1]


def merges(between: torch.Tensor) -> list[tuple[int, int, float]]:
    """The tree of groups, from the weight of edges between every two (k, k): at each step the two that share most.

    A merge is (one, other, share): numbers below k are groups, k + i is what merge i made; share is the part of the
    edges of the smaller one that lead to the larger.
    """
    weight = between.clone()
    alive = {i: i for i in range(len(weight))}  # row of the table → its number in the tree
    found: list[tuple[int, int, float]] = []
    while len(alive) > 1:
        rows = list(alive)
        volume = weight[rows][:, rows].sum(1)
        pairs = [(a, b) for a in range(len(rows)) for b in range(a + 1, len(rows))]
        shares = [
            float(weight[rows[a], rows[b]] / torch.minimum(volume[a], volume[b]).clamp(min=1e-12)) for a, b in pairs
        ]
        best = max(range(len(pairs)), key=shares.__getitem__)
        one, other = (rows[i] for i in pairs[best])
        found.append((alive[one], alive[other], shares[best]))
        weight[one] += weight[other]
        weight[:, one] += weight[:, other]
        alive[one] = len(between) + len(found) - 1
        del alive[other]
    return found


def joined(tree: Sequence[Sequence[float]], groups: int, left: int) -> list[int]:
    """(groups,) the new number of every group after the first merges of a tree, which leave `left` of them.

    New numbers are in the order of the first group that each holds.
    """
    root = {number: number for number in range(groups)}
    holds = {number: [number] for number in range(groups)}
    for i, (one, other, _) in enumerate(tree[: groups - left]):
        holds[groups + i] = holds.pop(int(one)) + holds.pop(int(other))
        root |= dict.fromkeys(holds[groups + i], groups + i)
    order = list(dict.fromkeys(root[number] for number in range(groups)))
    return [order.index(root[number]) for number in range(groups)]
