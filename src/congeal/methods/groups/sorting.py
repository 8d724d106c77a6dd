"""Which image belongs to which group.

A sample of the set, the *witnesses*, are compared with each other: every image is aligned to those that look most
like it, and the nearest of them under alignment become its neighbours. Where few images have neighbours on the other
side, the set is cut. Every other image is aligned to a few witnesses of each group that it may belong to, and goes
where it finds the most likeness. An image that is far less like its neighbours than usual belongs nowhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d

from congeal.errors import CongealError
from congeal.geometry import warp
from congeal.images import Stack
from congeal.metrics.coherence import coherence, least_coherence
from congeal.metrics.limits import (
    FOREIGN_LEAST,
    FOREIGN_TIMES,
    LEAK,
    LEAST_GROUP,
    SURE_LEAK,
)
from congeal.solvers.appearance import Appearance
from congeal.solvers.cuts import Graph, cut, merges
from congeal.solvers.extractors import Extractor
from congeal.solvers.filters import blur
from congeal.solvers.looks import Window
from congeal.solvers.threads import few_threads, in_order
from congeal.solvers.upright import frame_from_view
from congeal.solvers.witnesses import NO_MATCH, Witnesses
from congeal.transforms.transforms import NO_GROUP

OBJECT_VIEW, PHOTO_VIEW = 20, 32
"""Longer side of what is compared: a digit keeps its strokes at 20 pixels (1-NN of 2,000 MNIST digits 97.6 %, at 14
pixels 96 %, at 28 pixels 98 % in twice the time)."""
FEATURE_VIEW = (4, 4)
"""Cells of what a network sees: fewer say too little about where things are, more about what is where."""
_FEATURE_VALUES = 20_000_000  # of all witnesses together, if they are features: 80 MB, two thousand images of lite0
_SOFT = 0.7  # pixels of the view: strokes that lie side by side should still touch
_WITNESS_VALUES = 4_000_000  # values of all witnesses together; what a step towards them needs is six times as much
_CANDIDATES = 30  # witnesses that an image is aligned to, of those that look most like it
_NEIGHBOURS = (3, 10)  # of these, at least and at most; a small set has few
_PER_NEIGHBOUR = 20  # images of the set for each of them
_NEAR = 3  # witnesses whose likeness counts as likeness to a group …
_TRIED = 6  # … of those that a new image is aligned to …
_RIVALS = 4  # … in each of so many groups; the others cannot win
_STARTS = 8
_LEAST_WITNESSES = 30  # of a group that is given, if it has as many images
_AT_ONCE = 256


@dataclass
class Sorter:
    """What was learnt about the groups of a set, and the way into them for any image.

    witnesses : views (S, C, h, w), those of a group side by side. bounds (K + 1,): where each group's begin and end.
    limit: an image that is less like its nearest witnesses belongs nowhere. coherence: nor does one with less of it.
    centre (C, h, w): what features show on average, if views are features.
    """

    witnesses: Witnesses
    bounds: torch.Tensor
    limit: float
    coherence: float = 0.0
    centre: torch.Tensor | None = None

    @property
    def n_groups(self) -> int:
        """How many groups there are."""
        return len(self.bounds) - 1

    def state(self) -> dict[str, torch.Tensor]:
        """As tensors, for a file."""
        numbers = torch.tensor([self.limit, self.coherence], dtype=torch.float64)
        state = {"witnesses": self.witnesses.views, "bounds": self.bounds, "limit": numbers}
        return state if self.centre is None else {**state, "centre": self.centre}

    @classmethod
    def restore(cls, state: dict[str, torch.Tensor]) -> Sorter:
        """The inverse of `state`."""
        limit, coherent = [*state["limit"].tolist(), 0.0][
            :2
        ]  # models from before there was a coherence have one number
        centre = state.get("centre")
        known = Witnesses(state["witnesses"], _motion(centre))
        return cls(known, state["bounds"], limit, coherent, centre)

    def place(self, views: torch.Tensor, own: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Group, likeness to it and margin to the next best one, (B,) each, of images (B, C, h, w).

        own (B,): the witness that an image is itself, −1 for none. A group that even its most similar witness does not
        bring among the best few is not tried.
        """
        alike = torch.as_tensor(self.witnesses.correlations(views))
        rows = torch.nonzero(own >= 0)[:, 0]
        alike[rows, own[rows]] = -2
        edges = self.bounds.tolist()
        best, which = [], []
        for low, high in pairwise(edges):
            top = alike[:, low:high].topk(min(_TRIED, high - low), 1)
            lack = _TRIED - top.values.shape[1]
            best.append(torch.nn.functional.pad(top.values, (0, lack), value=-2))
            which.append(torch.nn.functional.pad(top.indices + low, (0, lack), value=0))
        first = torch.stack([values[:, 0] for values in best], 1)
        rivals = first.topk(min(_RIVALS, self.n_groups), 1).indices
        take = rivals[:, :, None].expand(-1, -1, _TRIED)
        values, witness = torch.stack(best, 1).gather(1, take), torch.stack(which, 1).gather(1, take)
        likeness, _ = self.witnesses.aligned(views, witness.flatten(1))
        likeness = likeness.view(witness.shape).masked_fill(values <= -2, NO_MATCH)
        near = likeness.topk(_NEAR, 2).values
        known = near > NO_MATCH
        score = (near * known).sum(2) / known.sum(2).clamp(min=1)
        score = torch.where(known.any(2), score, NO_MATCH)
        top = score.topk(min(2, score.shape[1]), 1)
        margin = top.values[:, 0] - top.values[:, 1] if score.shape[1] > 1 else torch.full((len(views),), float("nan"))
        return rivals.gather(1, top.indices[:, :1])[:, 0], top.values[:, 0], margin


@dataclass(frozen=True)
class Sorted:
    """Groups of a set's sample: the sorter, the rows it was learnt from, in its order, and how clear it all is.

    rows (S,): positions of the witnesses in the set. cost: the mean leak of the groups. curve: for each number of
    groups the largest leak. tree: as `merges` gives it. outside: sample rows that belong nowhere.
    """

    sorter: Sorter
    rows: np.ndarray
    outside: np.ndarray
    cost: float
    leaks: list[float]
    curve: list[tuple[int, float]]
    tree: list[tuple[int, int, float]]


def _motion(centre: torch.Tensor | None) -> str | None:
    """Features are the same a little aside; they are compared as they are."""
    return "affine" if centre is None else None


def make_views(
    stack: Stack, rows: np.ndarray, appearance: Appearance, extractor: Extractor | None = None
) -> torch.Tensor:
    """(B, C, h, w) what is compared of some images: objects upright at one size, edges of photographs as they lie; or
    features of a network, in a few cells."""
    if extractor is not None:
        return torch.stack([_seen_by(extractor, stack, int(row)) for row in rows])
    images, start = stack.images(rows), torch.as_tensor(stack.start[rows]).float()
    masks = stack.masks(rows)
    if appearance.empty_ground:
        images = images if masks is None else images * masks
        shown = warp(images, start, stack.frame)
        twice = (2 * OBJECT_VIEW, 2 * OBJECT_VIEW)  # so that a large object is averaged, not picked at
        pose = start @ frame_from_view(shown, twice).float()
        return blur(avg_pool2d(warp(images, pose, twice), 2), _SOFT)
    shown = warp(images, start, stack.frame, padding=appearance.padding)
    soft = appearance.blurred(appearance.features(shown), appearance.last_blur(stack.frame))
    shrink = min(1.0, PHOTO_VIEW / max(stack.frame))
    height, width = (max(1, round(side * shrink)) for side in stack.frame)
    return adaptive_avg_pool2d(soft, (height, width))


def _seen_by(extractor: Extractor, stack: Stack, row: int) -> torch.Tensor:
    """(C, 4, 4) the features of one image as it starts."""
    side = extractor.side
    view = torch.as_tensor(stack.start[row] @ Window.whole(stack.frame).frame_from_view(side))[None].float()
    shown = warp(stack.images([row]), view, (side, side), padding="border")[0]
    shown = shown if len(shown) == 3 else shown.mean(0, keepdim=True).expand(3, -1, -1)
    with torch.inference_mode(False), torch.no_grad():
        return adaptive_avg_pool2d(extractor.maps(shown)[None], FEATURE_VIEW)[0]


def sort_sample(
    stack: Stack,
    appearance: Appearance,
    n_groups: int | str,
    *,
    sample: int,
    most_groups: int,
    random_state: int,
    extractor: Extractor | None = None,
) -> Sorted:
    """Find the groups of a set, from a sample of it."""
    generator = torch.Generator().manual_seed(random_state)
    most = _most(stack, appearance, sample, extractor)
    rows = np.sort(torch.randperm(len(stack), generator=generator)[:most].numpy())
    rows, noise, coherent = _without_noise(stack, rows)
    views, centre, neighbours, near, limit = _compared(stack, rows, appearance, extractor)
    inside = near <= limit
    if inside.sum() < 2:
        inside[:] = True
    kept = torch.nonzero(inside)[:, 0]
    if isinstance(n_groups, int) and n_groups > len(kept):
        raise CongealError(
            f"{stack.source.name} has {len(kept)} images that can be sorted, which cannot make {n_groups} groups: "
            f"ask for fewer"
        )
    if isinstance(n_groups, int) and n_groups > 1 and float(near[kept].max()) < 1e-6:
        raise CongealError(f"the images of {stack.source.name} are all alike, which makes one group, not {n_groups}")
    place = torch.full((len(rows) + 1,), -1, dtype=torch.long)  # the last is nobody
    place[kept] = torch.arange(len(kept))
    graph = Graph.of_neighbours(place[neighbours[kept]], torch.ones(len(kept), neighbours.shape[1]))
    most = min(len(kept), most_groups + 1 if n_groups == "auto" else int(n_groups) + 1)
    _, vectors = graph.embedding(most)
    groups, curve = _groups(graph, vectors, n_groups, generator)
    count = int(groups.max()) + 1
    order = torch.bincount(groups, minlength=count).argsort(descending=True, stable=True)
    groups = order.argsort()[groups]  # the largest first
    turn = groups.argsort(stable=True)
    bounds = torch.cat([torch.zeros(1, dtype=torch.long), torch.bincount(groups, minlength=count).cumsum(0)])
    leaks = graph.leaks(groups, count)
    return Sorted(
        Sorter(Witnesses(views[kept[turn]].contiguous(), _motion(centre)), bounds, 1 - limit, coherent, centre),
        rows[kept[turn].numpy()],
        np.union1d(rows[~inside.numpy()], noise),
        float(leaks.mean()),
        leaks.tolist(),
        curve,
        merges(graph.between(groups, count)),
    )


def sort_given(
    stack: Stack,
    appearance: Appearance,
    given: np.ndarray,
    *,
    sample: int,
    random_state: int,
    extractor: Extractor | None = None,
) -> Sorted:
    """What new images need to find into groups that are given: (n,) the group of each image, below 0 for none.

    The numbers are those of groups that were found. A group has its share of the sample, and at least a few.
    """
    generator = torch.Generator().manual_seed(random_state)
    count, total = int(given.max()) + 1, int((given >= 0).sum())
    most = _most(stack, appearance, sample, extractor)
    chosen = []
    for number in range(count):
        own = torch.as_tensor(np.flatnonzero(given == number))
        share = max(_LEAST_WITNESSES, round(most * len(own) / total))
        chosen.append(own[torch.randperm(len(own), generator=generator)[:share]].sort().values.numpy())
    rows = np.concatenate(chosen)
    views, centre, neighbours, _, limit = _compared(stack, rows, appearance, extractor)
    groups = torch.as_tensor(given[rows])
    known = torch.where(neighbours < len(rows), neighbours, -1)
    graph = Graph.of_neighbours(known, torch.ones(known.shape))
    bounds = torch.cat([torch.zeros(1, dtype=torch.long), torch.bincount(groups, minlength=count).cumsum(0)])
    leaks = graph.leaks(groups, count)
    return Sorted(
        Sorter(Witnesses(views, _motion(centre)), bounds, 1 - limit, _without_noise(stack, rows)[2], centre),
        rows,
        np.zeros(0, dtype=np.int64),
        float(leaks.mean()),
        leaks.tolist(),
        [],
        merges(graph.between(groups, count)),
    )


def _most(stack: Stack, appearance: Appearance, sample: int, extractor: Extractor | None) -> int:
    """How many witnesses there may be."""
    values = make_views(stack, np.arange(1), appearance, extractor)[0].numel()
    return max(2, min(sample, (_WITNESS_VALUES if extractor is None else _FEATURE_VALUES) // values))


def _compared(
    stack: Stack, rows: np.ndarray, appearance: Appearance, extractor: Extractor | None
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor, float]:
    """Views of some images; of features, what they show on average, which is taken away; the nearest of each once
    aligned (S, k), S for nobody; how far it is from its nearest (S,); and what is too far."""
    parts = np.array_split(rows, -(-len(rows) // _AT_ONCE))
    views = torch.cat([make_views(stack, part, appearance, extractor) for part in parts])
    centre = None if extractor is None else views.mean(0)
    if centre is not None:
        views -= centre
    same = centre is not None and float(views.abs().max()) < 1e-6
    if len(rows) < 2 or same:
        nobody = torch.full((len(rows), 1), len(rows))
        return views, centre, nobody, torch.zeros(len(rows), dtype=torch.float64), FOREIGN_LEAST
    neighbours, likeness = _neighbours(Witnesses(views, _motion(centre)))
    near = 1 - likeness[:, :_NEAR].double().mean(1)
    return views, centre, neighbours, near, max(FOREIGN_TIMES * float(near.median()), FOREIGN_LEAST)


def _without_noise(stack: Stack, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Images that show something, those that show nothing but noise, and the coherence that tells them apart.

    Noise is alike as a whole, all of it fills its frame, so that it would make a group: it has to go before.
    """
    values = torch.cat([coherence(stack.images(part)) for part in np.array_split(rows, -(-len(rows) // _AT_ONCE))])
    least = least_coherence(values)
    shows = (values >= least).numpy()
    if shows.sum() < 2:
        return rows, rows[:0], 0.0
    return rows[shows], rows[~shows], least


def _neighbours(witnesses: Witnesses) -> tuple[torch.Tensor, torch.Tensor]:
    """(S, k) the nearest of every witness once aligned, nearest first, and their likeness."""
    n = len(witnesses)
    count = min(_NEIGHBOURS[1], max(_NEIGHBOURS[0], n // _PER_NEIGHBOUR), n - 1)

    def of(part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        views = witnesses.views[part]
        which = witnesses.nearest(views, max(_CANDIDATES, count), without=part)
        top = witnesses.aligned(views, which)[0].topk(count, 1)
        return which.gather(1, top.indices), top.values

    with few_threads(witnesses.size) as threads:
        _ = witnesses.directions, witnesses.steps  # made once, before threads ask for them
        found = list(in_order(of, torch.arange(n).split(_AT_ONCE), threads))
    neighbours, likeness = (torch.cat(parts) for parts in zip(*found, strict=True))
    return torch.where(likeness > NO_MATCH, neighbours, n), likeness


def _groups(
    graph: Graph, vectors: torch.Tensor, n_groups: int | str, generator: torch.Generator
) -> tuple[torch.Tensor, list[tuple[int, float]]]:
    """Groups of the graph, as many as asked for; "auto": as many as can be without one that leaks."""
    if isinstance(n_groups, int):
        return cut(graph, vectors[:, :n_groups], generator, _STARTS), []
    best, curve = torch.zeros(len(graph), dtype=torch.long), [(1, 0.0)]
    least = max(LEAST_GROUP, round(len(graph) / 200))
    for count in range(2, vectors.shape[1]):
        groups = cut(graph, vectors[:, :count], generator, 1)
        worst = float(graph.leaks(groups, count).max())
        curve.append((count, worst))
        if worst <= LEAK and int(torch.bincount(groups, minlength=count).min()) >= least:
            best = groups
    return best, curve


def choice(
    count: int, curve: Sequence[tuple[int, float]], leaks: Sequence[float], *, given: bool = False
) -> dict[str, Any]:
    """How the number of groups was found, in a sentence and in numbers."""
    if not curve:
        kinds = "1 group" if count == 1 else f"{count} groups"
        how = "given" if given else "asked"
        sentence = f"{kinds}, as {how}: up to {max(leaks):.1%} of the nearest neighbours of a group are in another one."
        return {"sentence": sentence, "n_groups": count, "leaks": list(leaks)}
    leak = dict(curve)
    later = [value for number, value in curve if number > count]
    here, after = leak.get(count, 0.0), min(later, default=1.0)
    sure = here <= SURE_LEAK * LEAK and after >= LEAK / SURE_LEAK
    words = "clear" if sure else "close"
    kinds = "1 group" if count == 1 else f"{count} groups"
    sentence = (
        f"{kinds}: up to {here:.1%} of the nearest neighbours of a group are in another one; with more groups it would "
        f"be {after:.1%} or more (the limit is {LEAK:.0%}). The choice is {words}."
    )
    numbers = {"n_groups": count, "sure": sure, "limit": LEAK, "leaks": list(leaks)}
    return {"sentence": sentence, **numbers, "curve": [list(one) for one in curve]}


def placing(
    stack: Stack,
    appearance: Appearance,
    sorter: Sorter,
    own: np.ndarray,
    parts: Iterable[np.ndarray],
    extractor: Extractor | None = None,
) -> Iterable[tuple[torch.Tensor, ...]]:
    """`Sorter.place` of runs of images, and how much ink each has, side by side; own (n,): witness or −1."""

    def of(part: np.ndarray) -> tuple[torch.Tensor, ...]:
        # A few at a time: all of a run against all witnesses would take hundreds of megabytes.
        found = [few(rows) for rows in np.array_split(part, -(-len(part) // _AT_ONCE))]
        return tuple(torch.cat(column) for column in zip(*found, strict=True))

    def few(rows: np.ndarray) -> tuple[torch.Tensor, ...]:
        images = stack.images(rows)
        group, *numbers = sorter.place(views_of(rows), torch.as_tensor(own[rows]))
        noise = coherence(images) < sorter.coherence
        return (group.masked_fill(noise, NO_GROUP), *numbers, images.flatten(1).double().sum(1))

    def views_of(rows: np.ndarray) -> torch.Tensor:
        if sorter.centre is None:
            return make_views(stack, rows, appearance)
        known, witness = own[rows] >= 0, torch.as_tensor(own[rows])  # what a network has seen once it need not again
        views = torch.empty(len(rows), *sorter.centre.shape)
        views[known] = sorter.witnesses.views[witness[known]]
        if not known.all():
            views[~known] = make_views(stack, rows[~known], appearance, extractor) - sorter.centre
        return views

    with few_threads(sorter.witnesses.size) as threads, torch.no_grad():
        _ = sorter.witnesses.directions, sorter.witnesses.steps
        yield from in_order(of, parts, threads)
