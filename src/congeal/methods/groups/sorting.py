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
from congeal.methods.groups.features import (
    count_kinds,
    feature_views,
    fine_size,
    less,
    rank_strength,
    steadied,
)
from congeal.metrics.coherence import coherence, least_coherence
from congeal.metrics.limits import (
    FOREIGN_LEAST,
    FOREIGN_TIMES,
    LEAK,
    LEAST_GROUP,
    NO_KINDS,
    SURE_LEAK,
)
from congeal.solvers.appearance import Appearance
from congeal.solvers.cuts import Graph, cut, merges
from congeal.solvers.extractors import Extractor
from congeal.solvers.filters import blur
from congeal.solvers.threads import in_order, one_thread
from congeal.solvers.upright import frame_from_view
from congeal.solvers.witnesses import NO_MATCH, Witnesses
from congeal.transforms.transforms import NO_GROUP

OBJECT_VIEW, PHOTO_VIEW = 20, 32
"""Longer side of what is compared: a digit keeps its strokes at 20 pixels (1-NN of 2,000 MNIST digits 97.6 %, at 14
pixels 96 %, at 28 pixels 98 % in twice the time)."""
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
    centre (C, h, w): what features show on average, if views are features. fine: the frame's longer side in the
    pictures that features are seen in. steady (C, C): what features less their centre are multiplied by, as `less`.
    """

    witnesses: Witnesses
    bounds: torch.Tensor
    limit: float
    coherence: float = 0.0
    centre: torch.Tensor | None = None
    fine: int = 0
    steady: torch.Tensor | None = None

    @property
    def n_groups(self) -> int:
        """How many groups there are."""
        return len(self.bounds) - 1

    def state(self) -> dict[str, torch.Tensor]:
        """As tensors, for a file."""
        numbers = torch.tensor([self.limit, self.coherence, self.fine], dtype=torch.float64)
        state = {"witnesses": self.witnesses.views, "bounds": self.bounds, "limit": numbers}
        more = {"centre": self.centre, "steady": self.steady}
        return state | {name: tensor for name, tensor in more.items() if tensor is not None}

    @classmethod
    def restore(cls, state: dict[str, torch.Tensor]) -> Sorter:
        """The inverse of `state`."""
        # Models from before there was a coherence have one number, those from before finer pictures two.
        limit, coherent, fine = [*state["limit"].tolist(), 0.0, 0.0][:3]
        centre = state.get("centre")
        known = Witnesses(state["witnesses"], _motion(centre))
        return cls(known, state["bounds"], limit, coherent, centre, int(fine), state.get("steady"))

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


def make_views(stack: Stack, rows: np.ndarray, appearance: Appearance) -> torch.Tensor:
    """(B, C, h, w) what is compared of some images: objects upright at one size, edges of photographs as they lie."""
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
    compared = _compared(stack, rows, appearance, extractor)
    inside = compared.near <= compared.limit
    if inside.sum() < 2:
        inside[:] = True
    kept = torch.nonzero(inside)[:, 0]
    if isinstance(n_groups, int) and n_groups > len(kept):
        raise CongealError(
            f"{stack.source.name} has {len(kept)} images that can be sorted, which cannot make {n_groups} groups: "
            f"ask for fewer"
        )
    if isinstance(n_groups, int) and n_groups > 1 and float(compared.near[kept].max()) < 1e-6:
        raise CongealError(f"the images of {stack.source.name} are all alike, which makes one group, not {n_groups}")
    graph, curve = compared.graph(kept), None
    if n_groups == "auto" and compared.centre is not None:
        n_groups, curve = count_kinds(compared.views[kept], most_groups, generator)
    most = min(len(kept), most_groups + 1 if n_groups == "auto" else int(n_groups) + 1)
    _, vectors = graph.embedding(most)
    groups, leaking = _groups(graph, vectors, n_groups, generator)
    count = int(groups.max()) + 1
    order = torch.bincount(groups, minlength=count).argsort(descending=True, stable=True)
    groups = order.argsort()[groups]  # the largest first
    turn = groups.argsort(stable=True)
    bounds = torch.cat([torch.zeros(1, dtype=torch.long), torch.bincount(groups, minlength=count).cumsum(0)])
    leaks = graph.leaks(groups, count)
    return Sorted(
        compared.sorter(kept[turn], bounds, coherent),
        rows[kept[turn].numpy()],
        np.union1d(rows[~inside.numpy()], noise),
        float(leaks.mean()),
        leaks.tolist(),
        leaking if curve is None else curve,
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
    compared, everybody = _compared(stack, rows, appearance, extractor), torch.arange(len(rows))
    groups, graph = torch.as_tensor(given[rows]), compared.graph(everybody)
    bounds = torch.cat([torch.zeros(1, dtype=torch.long), torch.bincount(groups, minlength=count).cumsum(0)])
    leaks = graph.leaks(groups, count)
    return Sorted(
        compared.sorter(everybody, bounds, _without_noise(stack, rows)[2]),
        rows,
        np.zeros(0, dtype=np.int64),
        float(leaks.mean()),
        leaks.tolist(),
        [],
        merges(graph.between(groups, count)),
    )


def _most(stack: Stack, appearance: Appearance, sample: int, extractor: Extractor | None) -> int:
    """How many witnesses there may be."""
    first = np.arange(1)
    if extractor is None:
        return max(2, min(sample, _WITNESS_VALUES // make_views(stack, first, appearance)[0].numel()))
    return max(2, min(sample, _FEATURE_VALUES // feature_views(stack, first, extractor, max(stack.frame))[0].numel()))


@dataclass(frozen=True)
class _Compared:
    """Images of a sample beside each other.

    views (S, C, h, w); of features, seen in pictures of size `fine`, less `centre` and times `steady` as of `Sorter`.
    graph: the nearest of each once aligned. near (S,): how far it is from its nearest. limit: what is too far.
    """

    views: torch.Tensor
    neighbours: torch.Tensor
    near: torch.Tensor
    limit: float
    centre: torch.Tensor | None = None
    fine: int = 0
    steady: torch.Tensor | None = None

    def graph(self, rows: torch.Tensor) -> Graph:
        """Of some of the images and the neighbours (S, k) among them; S is nobody."""
        place = torch.full((len(self.views) + 1,), -1, dtype=torch.long)  # the last is nobody
        place[rows] = torch.arange(len(rows))
        known = place[self.neighbours[rows]]
        return Graph.of_neighbours(known, torch.ones(known.shape) if self.centre is None else rank_strength(known))

    def sorter(self, rows: torch.Tensor, bounds: torch.Tensor, coherent: float) -> Sorter:
        """With these images as witnesses."""
        witnesses = Witnesses(self.views[rows].contiguous(), _motion(self.centre))
        return Sorter(witnesses, bounds, 1 - self.limit, coherent, self.centre, self.fine, self.steady)


def _compared(stack: Stack, rows: np.ndarray, appearance: Appearance, extractor: Extractor | None) -> _Compared:
    parts = np.array_split(rows, -(-len(rows) // _AT_ONCE))
    centre, fine, steady = None, 0, None
    if extractor is None:
        views = torch.cat([make_views(stack, part, appearance) for part in parts])
    else:
        fine = fine_size(stack, extractor)
        views = torch.cat([feature_views(stack, part, extractor, fine) for part in parts])
        seen = views[:, -1:]
        centre = (views[:, :-1] * seen).sum(0) / seen.sum(0).clamp(min=1e-6)
        steady = steadied(stack, rows, extractor, fine)
        views = less(views, centre, steady)
    same = centre is not None and float(views.abs().max()) < 1e-6
    if len(rows) < 2 or same:
        nobody = torch.full((len(rows), 1), len(rows))
        near = torch.zeros(len(rows), dtype=torch.float64)
        return _Compared(views, nobody, near, FOREIGN_LEAST, centre, fine, steady)
    neighbours, likeness = _neighbours(Witnesses(views, _motion(centre)))
    near = 1 - likeness[:, :_NEAR].double().mean(1)
    limit = max(FOREIGN_TIMES * float(near.median()), FOREIGN_LEAST)
    return _Compared(views, neighbours, near, limit, centre, fine, steady)


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
    usual = n // _PER_NEIGHBOUR if witnesses.motion else n  # of features all ten, the nearer count more
    count = min(_NEIGHBOURS[1], max(_NEIGHBOURS[0], usual), n - 1)

    def of(part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        views = witnesses.views[part]
        which = witnesses.nearest(views, max(_CANDIDATES, count), without=part)
        top = witnesses.aligned(views, which)[0].topk(count, 1)
        return which.gather(1, top.indices), top.values

    with one_thread() as threads:
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
    count: int,
    curve: Sequence[tuple[int, float]],
    leaks: Sequence[float],
    *,
    given: bool = False,
    features: bool = False,
) -> dict[str, Any]:
    """How the number of groups was found, in a sentence and in numbers; features: by `count_kinds`."""
    if not curve:
        kinds = "1 group" if count == 1 else f"{count} groups"
        how = "given" if given else "asked"
        sentence = f"{kinds}, as {how}: up to {max(leaks):.1%} of the nearest neighbours of a group are in another one."
        return {"sentence": sentence, "n_groups": count, "leaks": list(leaks)}
    leak, limit = dict(curve), NO_KINDS if features else LEAK
    later = [value for number, value in curve if number > count]
    here, after = leak.get(count, 0.0), min(later, default=1.0)
    sure = here <= SURE_LEAK * limit and after >= limit / SURE_LEAK
    words = "clear" if sure else "close"
    kinds = "1 group" if count == 1 else f"{count} groups"
    if features:
        last = f"the last cut leaks {here:.0%} of what it would if there were no kinds; " if count > 1 else ""
        sentence = f"{kinds}: {last}one more would leak {after:.0%} of it (the limit is {limit:.0%})."
        name = "leak of the next cut, as a share of that of a set without kinds"
    else:
        sentence = (
            f"{kinds}: up to {here:.1%} of the nearest neighbours of a group are in another one; with more groups it "
            f"would be {after:.1%} or more (the limit is {limit:.0%})."
        )
        name = "share of neighbours in another group"
    numbers = {"n_groups": count, "sure": sure, "limit": limit, "leaks": list(leaks)}
    shown = {"curve": [list(one) for one in curve], "curve_name": name}
    return {"sentence": f"{sentence} The choice is {words}.", **numbers, **shown}


def advice(chosen: dict[str, Any], kind: str) -> dict[str, str]:
    """What to try where edges of photographs tell no groups apart; empty where they do, and for objects."""
    clear = chosen["n_groups"] > 1 and max(chosen["leaks"]) <= LEAK
    if kind != "photo" or clear:
        return {}
    return {"advice": "edges tell no clear groups apart in these photographs; a network may: --features lite0"}


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
            assert extractor is not None
            views[~known] = less(
                feature_views(stack, rows[~known], extractor, sorter.fine), sorter.centre, sorter.steady
            )
        return views

    with one_thread() as threads, torch.no_grad():
        _ = sorter.witnesses.directions, sorter.witnesses.steps
        yield from in_order(of, parts, threads)
