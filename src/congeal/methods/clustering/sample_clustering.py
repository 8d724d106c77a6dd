"""Clusters of a sample of the set, and the assignment of all images to them.

Images of the sample, the exemplars, are compared with each other: each is aligned to those that are most similar
unaligned, and the most similar under alignment become its neighbours in a graph, which is partitioned by spectral
clustering. Every other image is aligned to a few exemplars of the groups that it may belong to and is assigned to the
most similar group. An image that is far less similar to its neighbours than usual is an outlier, in no group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d, pad

from congeal.errors import CongealError
from congeal.evaluation.likeness import coherence, least_coherence
from congeal.execution.threads import map_ordered, single_torch_thread
from congeal.filters import gaussian_blur
from congeal.geometry import warp
from congeal.images import Stack
from congeal.methods.clustering.exemplars import NO_MATCH, Exemplars
from congeal.methods.clustering.network_features import (
    FEATURE_NEIGHBOURS,
    MAX_RELATIVE_CONDUCTANCE,
    MIN_GROUP_IMAGES,
    count_clusters,
    feature_picture_size,
    feature_views,
    fit_whitening,
    rank_weights,
    whiten,
)
from congeal.methods.clustering.spectral_clustering import NeighbourGraph, dendrogram, partition
from congeal.methods.semantic.extractors import Extractor
from congeal.registration.features import ImageFeatures
from congeal.registration.moments import frame_from_view
from congeal.transforms.transforms import NO_GROUP

OBJECT_VIEW_PX, PHOTO_VIEW_PX = 20, 32
"""Longer side of compared views: a digit keeps its strokes at 20 pixels (1-NN of 2,000 MNIST digits 97.6 %, at 14
pixels 96 %, at 28 pixels 98 % in twice the time)."""
VIEW_BLUR_PX = 0.7
"""Blur of an object's view: strokes that lie side by side should still overlap."""
MAX_EXEMPLAR_VALUES = 4_000_000
"""Values of all exemplars together: their linearisations take six times as much memory."""
MAX_FEATURE_VALUES = 20_000_000
"""The same if views are features, which are not linearised: 80 MB, two thousand images of lite0."""
CANDIDATES_PER_IMAGE = 30
"""Exemplars, most similar unaligned, that an image of the sample is aligned to."""
IMAGES_PER_NEIGHBOUR = 20
"""Images of the sample for each neighbour in the graph, which has 3 to 10: a small set has few of each kind."""
NEAREST_AVERAGED = 3
"""Exemplars of a group, most similar first, whose mean likeness is the likeness to the group …"""
EXEMPLARS_PER_GROUP, GROUPS_TRIED = 6, 4
"""… of those that an image is aligned to in each of the most similar groups; the others hardly ever win."""
CLUSTERING_STARTS = 8
"""Starts of the partition into a given number of groups."""
MIN_GIVEN_EXEMPLARS = 30
"""Exemplars of a given group, if it has as many images."""
BATCH_IMAGES = 256
"""Images that are compared with all exemplars at once: more would take hundreds of megabytes."""
MAX_CONDUCTANCE = 0.08
"""Conductance of a group, at most, where the number of groups is found. MNIST training digits: three digits 0.003 to
0.022, partitioned into four 0.09 and more; one digit partitioned into two 0.10 and more, but 0.075 for twos, with and
without a loop; ten digits 0.06, partitioned into eleven 0.09."""
CLEAR_CHOICE_FACTOR = 0.75
"""The number of groups is clear where the conductance is below the limit by this factor, and above it by the same
factor for one group more."""
OUTLIER_DISTANCE_FACTOR, MIN_OUTLIER_DISTANCE = 3.0, 0.12
"""An image is an outlier if one minus its likeness to its nearest exemplars exceeds the median by this factor, and this
value. Of MNIST training threes and sevens 0.5 % are, of noise as sparse as ink all."""


@dataclass
class GroupModel:
    """The groups of a set, as they are stored in a model: new images are assigned by it.

    exemplars : views (S, C, h, w), those of a group side by side. bounds (K + 1,): where each group begins and ends.
    min_likeness, min_coherence: an image with less of either is in no group. centre (C, h, w), whitening (C, C) and
    picture_size: mean, whitening and input size of features, if views are features.
    """

    exemplars: Exemplars
    bounds: torch.Tensor
    min_likeness: float
    min_coherence: float = 0.0
    centre: torch.Tensor | None = None
    picture_size: int = 0
    whitening: torch.Tensor | None = None

    @property
    def n_groups(self) -> int:
        """The number of groups."""
        return len(self.bounds) - 1

    @property
    def labels(self) -> np.ndarray:
        """(S,) the group of each exemplar."""
        return np.repeat(np.arange(self.n_groups), self.bounds.diff().numpy())

    def state(self) -> dict[str, torch.Tensor]:
        """As tensors, for a file."""
        numbers = torch.tensor([self.min_likeness, self.min_coherence, self.picture_size], dtype=torch.float64)
        state = {"exemplars": self.exemplars.views, "bounds": self.bounds, "numbers": numbers}
        more = {"centre": self.centre, "whitening": self.whitening}
        return state | {name: tensor for name, tensor in more.items() if tensor is not None}

    @classmethod
    def restore(cls, state: dict[str, torch.Tensor]) -> GroupModel:
        """The inverse of `state`."""
        likeness, coherent, size = state["numbers"].tolist()
        centre = state.get("centre")
        exemplars = Exemplars(state["exemplars"], _motion(centre))
        return cls(exemplars, state["bounds"], likeness, coherent, centre, int(size), state.get("whitening"))

    def assign(self, views: torch.Tensor, own: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Group, likeness to it and margin to the next best one, (B,) each, of images (B, C, h, w).

        own (B,): the exemplar that an image is itself, −1 for none.
        """
        alike = self.exemplars.correlations(views)
        rows = torch.nonzero(own >= 0)[:, 0]
        alike[rows, own[rows]] = -2
        best, which = [], []
        for low, high in pairwise(self.bounds.tolist()):
            top = alike[:, low:high].topk(min(EXEMPLARS_PER_GROUP, high - low), 1)
            lack = EXEMPLARS_PER_GROUP - top.values.shape[1]
            best.append(pad(top.values, (0, lack), value=-2))
            which.append(pad(top.indices + low, (0, lack), value=0))
        first = torch.stack([values[:, 0] for values in best], 1)
        tried = first.topk(min(GROUPS_TRIED, self.n_groups), 1).indices
        take = tried[:, :, None].expand(-1, -1, EXEMPLARS_PER_GROUP)
        values, exemplar = torch.stack(best, 1).gather(1, take), torch.stack(which, 1).gather(1, take)
        likeness = self.exemplars.aligned_likeness(views, exemplar.flatten(1))
        likeness = likeness.view(exemplar.shape).masked_fill(values <= -2, NO_MATCH)
        near = likeness.topk(NEAREST_AVERAGED, 2).values
        known = near > NO_MATCH
        score = (near * known).sum(2) / known.sum(2).clamp(min=1)
        score = torch.where(known.any(2), score, NO_MATCH)
        top = score.topk(min(2, score.shape[1]), 1)
        margin = top.values[:, 0] - top.values[:, 1] if score.shape[1] > 1 else torch.full((len(views),), float("nan"))
        return tried.gather(1, top.indices[:, :1])[:, 0], top.values[:, 0], margin


@dataclass(frozen=True)
class SampleClustering:
    """The clusters of a sample.

    rows (S,): positions of the exemplars in the set, in the order of the model. outliers: positions of sample images
    that are in no group. cost: the mean conductance. conductances: of each group. curve: the largest conductance for
    each number of groups. tree: as `dendrogram` returns it.
    """

    model: GroupModel
    rows: np.ndarray
    outliers: np.ndarray
    conductances: list[float]
    curve: list[tuple[int, float]]
    tree: list[tuple[int, int, float]]

    @property
    def cost(self) -> float:
        """The mean conductance of the groups."""
        return float(np.mean(self.conductances))

    def state(self) -> dict[str, Any]:
        """As plain tensors and numbers, for a checkpoint."""
        rows = {"rows": torch.as_tensor(self.rows), "outliers": torch.as_tensor(self.outliers)}
        plain = {"conductances": self.conductances, "curve": self.curve, "tree": self.tree}
        return {"model": self.model.state(), **rows, **plain}

    @classmethod
    def restore(cls, state: dict[str, Any]) -> SampleClustering:
        """The inverse of `state`."""
        return cls(
            GroupModel.restore(state["model"]),
            state["rows"].numpy(),
            state["outliers"].numpy(),
            list(state["conductances"]),
            [(int(count), float(value)) for count, value in state["curve"]],
            [(int(one), int(other), float(share)) for one, other, share in state["tree"]],
        )


def _motion(centre: torch.Tensor | None) -> str | None:
    """Features hardly change with small motions; they are compared unaligned."""
    return "affine" if centre is None else None


def make_views(stack: Stack, rows: np.ndarray, image_features: ImageFeatures) -> torch.Tensor:
    """(B, C, h, w) compared views of images: objects normalised by moments, edges of photographs at their start."""
    images, start = stack.images(rows), torch.as_tensor(stack.start[rows]).float()
    masks = stack.masks(rows)
    if image_features.empty_ground:
        images = images if masks is None else images * masks
        shown = warp(images, start, stack.frame)
        twice = (2 * OBJECT_VIEW_PX, 2 * OBJECT_VIEW_PX)  # then averaged, so that large objects are not aliased
        pose = start @ frame_from_view(shown, twice).float()
        return gaussian_blur(avg_pool2d(warp(images, pose, twice), 2), VIEW_BLUR_PX)
    shown = warp(images, start, stack.frame, padding=image_features.padding)
    soft = image_features.blurred(image_features.features(shown), image_features.last_blur(stack.frame))
    shrink = min(1.0, PHOTO_VIEW_PX / max(stack.frame))
    height, width = (max(1, round(side * shrink)) for side in stack.frame)
    return adaptive_avg_pool2d(soft, (height, width))


@dataclass(frozen=True)
class _ComparedSample:
    """Images of a sample and their nearest neighbours under alignment.

    views (S, C, h, w). neighbours (S, k): S is none. distance (S,): one minus the mean likeness to the nearest.
    max_distance: beyond it an image is an outlier. centre, picture_size, whitening: as of `GroupModel`.
    """

    views: torch.Tensor
    neighbours: np.ndarray
    distance: np.ndarray
    max_distance: float
    centre: torch.Tensor | None
    picture_size: int
    whitening: torch.Tensor | None

    def graph(self, rows: np.ndarray) -> NeighbourGraph:
        """The graph of some of the images and the neighbours among them."""
        position = np.full(len(self.views) + 1, -1)  # the last stands for no neighbour
        position[rows] = np.arange(len(rows))
        known = position[self.neighbours[rows]]
        return NeighbourGraph.of_neighbours(known, np.ones(known.shape) if self.centre is None else rank_weights(known))

    def clustering(
        self,
        rows: np.ndarray,
        groups: np.ndarray,
        min_coherence: float,
        *,
        sample: np.ndarray,
        outliers: np.ndarray,
        curve: list[tuple[int, float]],
    ) -> SampleClustering:
        """With images `rows`, which are in `groups`, as exemplars; sample: positions of all images in the set."""
        graph, count = self.graph(rows), int(groups.max()) + 1
        order = groups.argsort(kind="stable")
        exemplars = Exemplars(self.views[rows[order]].contiguous(), _motion(self.centre))
        bounds = torch.as_tensor(np.concatenate([[0], np.bincount(groups, minlength=count).cumsum()]))
        features = (self.centre, self.picture_size, self.whitening)
        return SampleClustering(
            GroupModel(exemplars, bounds, 1 - self.max_distance, min_coherence, *features),
            sample[rows[order]],
            outliers,
            graph.conductances(groups, count).tolist(),
            curve,
            dendrogram(graph.between(groups, count)),
        )


def cluster_sample(
    stack: Stack,
    image_features: ImageFeatures,
    n_groups: int | str,
    *,
    sample: int,
    most_groups: int,
    random_state: int,
    extractor: Extractor | None = None,
) -> SampleClustering:
    """Find the groups of a set, from a sample of it."""
    rng = np.random.default_rng(random_state)
    chosen = np.sort(rng.permutation(len(stack))[: _max_exemplars(stack, image_features, sample, extractor)])
    chosen, noise, coherent = _split_off_noise(stack, chosen)
    compared = _compare_sample(stack, chosen, image_features, extractor)
    inside = compared.distance <= compared.max_distance
    if inside.sum() < 2:
        inside[:] = True
    rows = np.flatnonzero(inside)
    if isinstance(n_groups, int) and n_groups > len(rows):
        raise CongealError(
            f"{stack.source.name} has {len(rows)} images that can be sorted, which cannot make {n_groups} groups: "
            f"ask for fewer"
        )
    if isinstance(n_groups, int) and n_groups > 1 and float(compared.distance[rows].max()) < 1e-6:
        raise CongealError(f"the images of {stack.source.name} are all alike, which makes one group, not {n_groups}")
    graph, curve = compared.graph(rows), None
    if n_groups == "auto" and compared.centre is not None:
        n_groups, curve = count_clusters(compared.views[rows], most_groups, rng)
    groups, conductances = _partition_graph(graph, n_groups, most_groups, rng)
    largest_first = np.argsort(-np.bincount(groups), kind="stable")
    groups = largest_first.argsort()[groups]
    outliers = np.union1d(chosen[~inside], noise)
    curve = conductances if curve is None else curve
    return compared.clustering(rows, groups, coherent, sample=chosen, outliers=outliers, curve=curve)


def clusters_from_table(
    stack: Stack,
    image_features: ImageFeatures,
    given: np.ndarray,
    *,
    sample: int,
    random_state: int,
    extractor: Extractor | None = None,
) -> SampleClustering:
    """Exemplars of groups that are given: (n,) the group of each image, below 0 for none.

    Each group has its share of the sample, and at least `MIN_GIVEN_EXEMPLARS`.
    """
    rng = np.random.default_rng(random_state)
    total = int((given >= 0).sum())
    most = _max_exemplars(stack, image_features, sample, extractor)
    chosen = []
    for number in range(int(given.max()) + 1):
        own = np.flatnonzero(given == number)
        share = max(MIN_GIVEN_EXEMPLARS, round(most * len(own) / total))
        chosen.append(np.sort(rng.permutation(own)[:share]))
    rows = np.concatenate(chosen)
    compared, coherent = _compare_sample(stack, rows, image_features, extractor), _split_off_noise(stack, rows)[2]
    none = np.zeros(0, dtype=np.int64)
    return compared.clustering(np.arange(len(rows)), given[rows], coherent, sample=rows, outliers=none, curve=[])


def _max_exemplars(stack: Stack, image_features: ImageFeatures, sample: int, extractor: Extractor | None) -> int:
    first = np.arange(1)
    if extractor is None:
        return max(2, min(sample, MAX_EXEMPLAR_VALUES // make_views(stack, first, image_features).numel()))
    return max(2, min(sample, MAX_FEATURE_VALUES // feature_views(stack, first, extractor, max(stack.frame)).numel()))


def _batches(rows: np.ndarray) -> list[np.ndarray]:
    return np.array_split(rows, -(-len(rows) // BATCH_IMAGES))


def _compare_sample(
    stack: Stack, rows: np.ndarray, image_features: ImageFeatures, extractor: Extractor | None
) -> _ComparedSample:
    centre, picture_size, whitening = None, 0, None
    if extractor is None:
        views = torch.cat([make_views(stack, part, image_features) for part in _batches(rows)])
    else:
        picture_size = feature_picture_size(stack, extractor)
        views = torch.cat([feature_views(stack, part, extractor, picture_size) for part in _batches(rows)])
        covered = views[:, -1:]
        centre = (views[:, :-1] * covered).sum(0) / covered.sum(0).clamp(min=1e-6)
        whitening = fit_whitening(stack, rows, extractor, picture_size)
        views = whiten(views, centre, whitening)
    features = (centre, picture_size, whitening)
    same = centre is not None and float(views.abs().max()) < 1e-6
    if len(rows) < 2 or same:
        none = np.full((len(rows), 1), len(rows))
        return _ComparedSample(views, none, np.zeros(len(rows)), MIN_OUTLIER_DISTANCE, *features)
    neighbours, likeness = _nearest_neighbours(Exemplars(views, _motion(centre)))
    distance = 1 - likeness[:, :NEAREST_AVERAGED].double().mean(1)
    limit = max(OUTLIER_DISTANCE_FACTOR * float(distance.median()), MIN_OUTLIER_DISTANCE)
    return _ComparedSample(views, neighbours.numpy(), distance.numpy(), limit, *features)


def _split_off_noise(stack: Stack, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Images that show something, those that show only noise, and the coherence that separates them.

    Images of noise are similar to each other, as all fill the frame: they would make a group.
    """
    values = torch.cat([coherence(stack.images(part)) for part in _batches(rows)])
    least = least_coherence(values)
    coherent = (values >= least).numpy()
    if coherent.sum() < 2:
        return rows, rows[:0], 0.0
    return rows[coherent], rows[~coherent], least


def _nearest_neighbours(exemplars: Exemplars) -> tuple[torch.Tensor, torch.Tensor]:
    """(S, k) the most similar exemplars of every exemplar once aligned, most similar first, and their likeness."""
    n = len(exemplars)
    # Of features always ten, weighted by rank.
    usual = max(3, n // IMAGES_PER_NEIGHBOUR) if exemplars.motion else FEATURE_NEIGHBOURS
    count = min(FEATURE_NEIGHBOURS, usual, n - 1)

    def nearest(part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        views = exemplars.views[part]
        which = exemplars.nearest(views, max(CANDIDATES_PER_IMAGE, count), without=part)
        top = exemplars.aligned_likeness(views, which).topk(count, 1)
        return which.gather(1, top.indices), top.values

    with single_torch_thread() as threads:
        _ = exemplars.unit_vectors, exemplars.linearisations  # cached before threads use them
        found = list(map_ordered(nearest, torch.arange(n).split(BATCH_IMAGES), threads))
    neighbours, likeness = (torch.cat(parts) for parts in zip(*found, strict=True))
    return torch.where(likeness > NO_MATCH, neighbours, n), likeness


def _partition_graph(
    graph: NeighbourGraph, n_groups: int | str, most_groups: int, rng: np.random.Generator
) -> tuple[np.ndarray, list[tuple[int, float]]]:
    """Groups of the graph, and the largest conductance for each number of groups that was tried.

    "auto": as many groups as possible of which none has a conductance above `MAX_CONDUCTANCE`.
    """
    if isinstance(n_groups, int):
        return partition(graph, graph.embedding(n_groups)[1], rng, CLUSTERING_STARTS), []
    most = min(len(graph) - 1, most_groups)
    _, vectors = graph.embedding(max(1, most))
    best, curve = np.zeros(len(graph), dtype=np.int64), [(1, 0.0)]
    least = max(MIN_GROUP_IMAGES, round(len(graph) / 200))
    for count in range(2, most + 1):
        groups = partition(graph, vectors[:, :count], rng, 1)
        worst = float(graph.conductances(groups, count).max())
        curve.append((count, worst))
        if worst <= MAX_CONDUCTANCE and np.bincount(groups, minlength=count).min() >= least:
            best = groups
    return best, curve


def describe_choice(
    count: int,
    curve: Sequence[tuple[int, float]],
    conductances: Sequence[float],
    *,
    given: bool = False,
    features: bool = False,
) -> dict[str, Any]:
    """The choice of the number of groups, in a sentence and in numbers; features: it is that of `count_clusters`."""
    groups = "1 group" if count == 1 else f"{count} groups"
    if not curve:
        how, worst = "given" if given else "asked", max(conductances)
        sentence = f"{groups}, as {how}: up to {worst:.1%} of the nearest neighbours of a group are in another one."
        return {"sentence": sentence, "n_groups": count, "conductances": list(conductances)}
    limit = MAX_RELATIVE_CONDUCTANCE if features else MAX_CONDUCTANCE
    here, after = dict(curve).get(count, 0.0), min((value for number, value in curve if number > count), default=1.0)
    sure = here <= CLEAR_CHOICE_FACTOR * limit and after >= limit / CLEAR_CHOICE_FACTOR
    if features:
        last = f"the conductance of the last split is {here:.0%} of that of a set of one kind; " if count > 1 else ""
        sentence = f"{groups}: {last}that of one more would be {after:.0%} of it (the limit is {limit:.0%})."
        name = "conductance of the next split, as a share of that of a set of one kind"
    else:
        sentence = (
            f"{groups}: up to {here:.1%} of the nearest neighbours of a group are in another one; with more groups it "
            f"would be {after:.1%} or more (the limit is {limit:.0%})."
        )
        name = "share of neighbours in another group"
    numbers = {"n_groups": count, "sure": sure, "limit": limit, "conductances": list(conductances)}
    shown = {"curve": [list(one) for one in curve], "curve_name": name}
    return {"sentence": f"{sentence} The choice is {'clear' if sure else 'close'}.", **numbers, **shown}


def suggest_features(chosen: dict[str, Any], kind: str) -> dict[str, str]:
    """Advice where edges of photographs separate no groups; empty where they do, and for objects."""
    clear = chosen["n_groups"] > 1 and max(chosen["conductances"]) <= MAX_CONDUCTANCE
    if kind != "photo" or clear:
        return {}
    return {"advice": "edges tell no clear groups apart in these photographs; a network may: --features lite0"}


def batch_assigner(
    stack: Stack, image_features: ImageFeatures, model: GroupModel, own: np.ndarray, extractor: Extractor | None = None
) -> Callable[[np.ndarray], tuple[torch.Tensor, ...]]:
    """Returns the function that gives `GroupModel.assign` and the total intensity for the images at some positions.

    own (n,): exemplar or −1.
    """

    def assign_part(part: np.ndarray) -> tuple[torch.Tensor, ...]:
        return tuple(torch.cat(column) for column in zip(*map(assign_few, _batches(part)), strict=True))

    def assign_few(rows: np.ndarray) -> tuple[torch.Tensor, ...]:
        images = stack.images(rows)
        group, *numbers = model.assign(views_of(rows), torch.as_tensor(own[rows]))
        noise = coherence(images) < model.min_coherence
        return (group.masked_fill(noise, NO_GROUP), *numbers, images.flatten(1).double().sum(1))

    def views_of(rows: np.ndarray) -> torch.Tensor:
        if model.centre is None:
            return make_views(stack, rows, image_features)
        known, exemplar = own[rows] >= 0, torch.as_tensor(own[rows])  # features of exemplars are known already
        views = torch.empty(len(rows), *model.centre.shape)
        views[known] = model.exemplars.views[exemplar[known]]
        if not known.all():
            assert extractor is not None
            features = feature_views(stack, rows[~known], extractor, model.picture_size)
            views[~known] = whiten(features, model.centre, model.whitening)
        return views

    with torch.no_grad():
        _ = model.exemplars.unit_vectors, model.exemplars.linearisations  # cached before threads use them
    return assign_part
