"""What a network sees in the images of a pile, and how many kinds that tells apart.

Photographs of one kind differ in light and pose as much as those of two kinds do, so that no share of neighbours says
by itself how many there are. A cut is compared with the cut of a set that has no kinds: images drawn from a normal
distribution, as many, and spread as widely in every direction. Where there are kinds, few images lie between them, and
the cut leaks far less than there.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import adaptive_avg_pool2d

from congeal.images import Stack
from congeal.methods.groups.unsteady import SHAKEN, TIMES, Changes, shaken
from congeal.metrics.limits import LEAST_GROUP, NO_KINDS
from congeal.solvers.cuts import Graph, cut
from congeal.solvers.extractors import Extractor
from congeal.solvers.looks import Seeing, Window
from congeal.solvers.witnesses import directions

CELLS = (4, 4)
"""Of what a network sees: fewer say too little about where things are, more about what is where."""
NEIGHBOURS = 10
_SEEN = 0.5  # of a cell of the network's own that lies in the image
_FINE_VALUES = 1 << 30  # of larger pictures of a whole set that would have to stay in memory
_TESTED = 500  # images of a group that is tested
_DRAWS = 5  # sets without kinds
_STARTS = 2


def fine_size(stack: Stack, extractor: Extractor) -> int:
    """The frame's longer side in the pictures that are looked at: as the network wants it, if the originals have it."""
    size = min(extractor.side, stack.native_size)
    return size if stack.store_folder is not None or 3 * len(stack) * size**2 <= _FINE_VALUES else max(stack.frame)


def feature_views(stack: Stack, rows: np.ndarray, extractor: Extractor, fine: int) -> torch.Tensor:
    """(B, C + 1, 4, 4) features of some images as they start, in a few cells; last, how much of each cell is image.

    The mean of an image's features and of its mirror image's: which side a face or a bird shows says nothing about what
    it is, yet differs more. fine: as `fine_size`.
    """
    few = stack.some(rows)
    seeing = Seeing(few, few.start, Window.whole(stack.frame), extractor, fine)
    views = []
    with torch.inference_mode(False), torch.no_grad():
        for i in range(len(rows)):
            views.append(_seen_both_ways(*seeing.picture(i, 0), extractor))
    return torch.stack(views)


def steadied(stack: Stack, rows: np.ndarray, extractor: Extractor, fine: int) -> torch.Tensor:
    """(C, C) what features of a set are multiplied by, so that what light and pose change counts less."""
    some = rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), SHAKEN)).round().astype(int))]
    few = stack.some(some)
    seeing = Seeing(few, few.start, Window.whole(stack.frame), extractor, fine)
    changes, generator = Changes(), torch.Generator().manual_seed(0)
    with torch.inference_mode(False), torch.no_grad():
        for i in range(len(some)):
            picture, inside = seeing.picture(i, 0)
            again = (shaken(picture, inside, generator) for _ in range(TIMES))
            changes.add(torch.stack([_seen_both_ways(*one, extractor) for one in again]))
    return changes.steady()


def _seen_both_ways(picture: torch.Tensor, inside: torch.Tensor, extractor: Extractor) -> torch.Tensor:
    """(C + 1, 4, 4) of one picture."""
    total, seen = _in_cells(extractor.maps(picture), inside)
    mirrored, its = _in_cells(extractor.maps(picture.flip(-1)), inside.flip(-1))
    return torch.cat([(total + mirrored) / (seen + its).clamp(min=1e-6), (seen + its) / 2])


def _in_cells(maps: torch.Tensor, inside: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(C, 4, 4) the sum of a map (C, h, w) over the image's part of each cell, and (1, 4, 4) how large that part is."""
    seen = (adaptive_avg_pool2d(inside[None], (maps.shape[1], maps.shape[2])) > _SEEN).float()
    return adaptive_avg_pool2d(maps * seen, CELLS), adaptive_avg_pool2d(seen, CELLS)


def less(views: torch.Tensor, centre: torch.Tensor, steady: torch.Tensor | None) -> torch.Tensor:
    """(B, C, 4, 4) features less what all images show, (C, 4, 4), and multiplied by `steady` (C, C).

    A cell without image is like that of all others: the shape of a picture is none of the features of what it shows.
    """
    away = (views[:, :-1] - centre) * views[:, -1:]
    return away if steady is None else torch.einsum("ck,bkhw->bchw", steady, away)


def rank_strength(neighbours: torch.Tensor) -> torch.Tensor:
    """(n, k) how much each neighbour counts, nearest first: the nearer, the more. So a small set, too, hangs together
    by its ten neighbours, most of which would be of another kind where a kind has only ten images."""
    k = neighbours.shape[1]
    return torch.linspace(1, 1 / k, k).expand(neighbours.shape)


def count_kinds(views: torch.Tensor, most: int, generator: torch.Generator) -> tuple[int, list[tuple[int, float]]]:
    """How many kinds there are in features (n, …), at most `most`, and for each number from 1 on how much the last cut
    leaks, as a share of what it would in a set without kinds; the last number was not taken.

    The group whose cut leaks least is cut in two, while that is below `NO_KINDS`.
    """
    flat = views.flatten(1).double()
    groups = [torch.arange(len(flat))]
    tests = [_test(flat, generator)]
    curve = [(1, 0.0)]
    while len(groups) < most:
        weakest = min(range(len(groups)), key=lambda k: tests[k][0])
        leak, side = tests.pop(weakest)
        curve.append((len(groups) + 1, leak))
        if leak > NO_KINDS:
            break
        members = groups.pop(weakest)
        for half in (members[side == 0], members[side == 1]):
            groups.append(half)
            tests.append(_test(flat[half], generator))
    return len(groups), curve


def _test(flat: torch.Tensor, generator: torch.Generator) -> tuple[float, torch.Tensor]:
    """How much a cut in two leaks, as a share of what it would without kinds, and (n,) the side of each image."""
    n = len(flat)
    nothing = 1.0, torch.zeros(n, dtype=torch.long)
    if n < 2 * LEAST_GROUP:
        return nothing
    away = flat - flat.mean(0)
    side, leak = _halves(away, generator)
    if int(torch.bincount(side, minlength=2).min()) < max(LEAST_GROUP, n // 200):
        return nothing
    if n > _TESTED:
        away = away[torch.randperm(n, generator=generator)[:_TESTED].sort().values]
        _, leak = _halves(away, generator)
    spread = torch.linalg.svdvals(away) / len(away) ** 0.5
    drawn = [torch.randn(len(away), len(spread), generator=generator, dtype=torch.float64) for _ in range(_DRAWS)]
    usual = sum(_halves(one * spread, generator)[1] for one in drawn) / _DRAWS
    return (leak / usual, side) if usual > 0 else nothing


def _halves(flat: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, float]:
    """(n,) the side of each image of a cut in two, and how much the sides leak in the mean."""
    unit = directions(flat)
    alike = (unit @ unit.T).fill_diagonal_(-2)
    neighbours = alike.topk(min(NEIGHBOURS, len(flat) - 1), 1).indices
    graph = Graph.of_neighbours(neighbours, rank_strength(neighbours))
    side = cut(graph, graph.embedding(2)[1], generator, _STARTS)
    return side, float(graph.leaks(side, 2).mean())
