"""Clusters of a sample of the set, and the assignment of all images to them.

Images of the sample, the exemplars, are compared with each other: each is aligned to those that are most similar
unaligned, and the most similar under alignment become its neighbours in a graph, which is partitioned by spectral
clustering. Every other image is aligned to a few exemplars of the groups that it may belong to and is assigned to the
most similar group. An image that is far less similar to its neighbours than usual is an outlier, in no group.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from congeal.errors import CongealError
from congeal.evaluation.likeness import coherence, least_coherence
from congeal.execution.threads import map_ordered, single_torch_thread
from congeal.images import Stack
from congeal.images.formats.writers import check_group_name
from congeal.methods.clustering.exemplars import BATCH_IMAGES, NEAREST_AVERAGED, NO_MATCH, Exemplars, GroupModel
from congeal.methods.clustering.spectral_clustering import (
    FEATURE_NEIGHBOURS,
    MAX_RELATIVE_CONDUCTANCE,
    MIN_GROUP_IMAGES,
    NeighbourGraph,
    count_clusters,
    dendrogram,
    partition,
    rank_weights,
)
from congeal.methods.clustering.views import FeatureSpace, feature_views, make_views
from congeal.methods.semantic.extractors import Extractor
from congeal.registration.features import ImageFeatures
from congeal.transforms.ids import match_ids, read_table
from congeal.transforms.transforms import NO_GROUP

NOT_LISTED = -2
"""Group number of an image that the table does not list: it is assigned to the most similar group."""
GROUP_TABLE_COLUMNS = ("id", "group")
MAX_EXEMPLAR_VALUES = 4_000_000
"""Values of all exemplars together, 16 MB: their linearisations take six times as much memory. Features, which are not
linearised, may have five times as many: two thousand images of lite0."""
CANDIDATES_PER_IMAGE = 30
"""Exemplars, most similar unaligned, that an image of the sample is aligned to (chosen by
judgement)."""
MIN_GIVEN_EXEMPLARS = 30
"""Exemplars of a given group, if it has as many images: all the poses of a rare kind (chosen by judgement)."""
MAX_CONDUCTANCE = 0.08
"""Conductance of a group, at most, where the number of groups is found. MNIST training digits: three digits 0.003 to
0.022, partitioned into four 0.09 and more; one digit partitioned into two 0.10 and more, but 0.075 for twos, with and
without a loop; ten digits 0.06, partitioned into eleven 0.09."""
OUTLIER_DISTANCE_FACTOR, MIN_OUTLIER_DISTANCE = 3.0, 0.12
"""An image is an outlier if one minus its likeness to its nearest exemplars exceeds the median by this factor, and this
value. Of MNIST training threes and sevens 0.5 % are, of noise as sparse as ink all."""


class SampleClustering(NamedTuple):
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
        arrays = {"rows": torch.as_tensor(self.rows), "outliers": torch.as_tensor(self.outliers)}
        return self._asdict() | arrays | {"model": self.model.state()}

    @classmethod
    def restore(cls, state: dict[str, Any]) -> SampleClustering:
        """The inverse of `state`."""
        arrays = {"rows": state["rows"].numpy(), "outliers": state["outliers"].numpy()}
        return cls(**state | arrays | {"model": GroupModel.restore(state["model"])})


@dataclass(frozen=True)
class ComparedSample:
    """Images of a sample and their nearest neighbours under alignment.

    rows (S,): their positions in the set. views (S, C, h, w). neighbours (S, k): S is none. distance (S,): one minus
    the mean likeness to the nearest. max_distance: beyond it an image is an outlier. min_coherence, space: as of
    `GroupModel`.
    """

    rows: np.ndarray
    views: torch.Tensor
    neighbours: np.ndarray
    distance: np.ndarray
    max_distance: float
    min_coherence: float
    space: FeatureSpace | None

    @classmethod
    def of(
        cls,
        stack: Stack,
        rows: np.ndarray,
        min_coherence: float,
        image_features: ImageFeatures,
        extractor: Extractor | None,
    ) -> ComparedSample:
        """Compare images of a set with each other."""
        space = None
        if extractor is None:
            views = torch.cat([make_views(stack, part, image_features) for part in _batches(rows)])
        else:
            space, views = FeatureSpace.fit(stack, rows, extractor)
        if len(rows) < 2 or (space is not None and float(views.abs().max()) < 1e-6):  # features are all alike
            none, zero = np.full((len(rows), 1), len(rows)), np.zeros(len(rows))
            return cls(rows, views, none, zero, MIN_OUTLIER_DISTANCE, min_coherence, space)
        neighbours, likeness = _nearest_neighbours(Exemplars.of(views, space))
        distance = 1 - likeness[:, :NEAREST_AVERAGED].double().mean(1)
        limit = max(OUTLIER_DISTANCE_FACTOR * float(distance.median()), MIN_OUTLIER_DISTANCE)
        return cls(rows, views, neighbours.numpy(), distance.numpy(), limit, min_coherence, space)

    def graph(self, some: np.ndarray) -> NeighbourGraph:
        """The graph of some of the images and the neighbours among them."""
        position = np.full(len(self.views) + 1, -1)  # the last stands for no neighbour
        position[some] = np.arange(len(some))
        known = position[self.neighbours[some]]
        return NeighbourGraph.of_neighbours(known, np.ones(known.shape) if self.space is None else rank_weights(known))

    def clustering(
        self, some: np.ndarray, groups: np.ndarray, outliers: np.ndarray, curve: list[tuple[int, float]]
    ) -> SampleClustering:
        """With some of the images, which are in `groups`, as exemplars."""
        graph, count = self.graph(some), int(groups.max()) + 1
        order = groups.argsort(kind="stable")
        exemplars = Exemplars.of(self.views[some[order]].contiguous(), self.space)
        bounds = torch.as_tensor(np.concatenate([[0], np.bincount(groups, minlength=count).cumsum()]))
        return SampleClustering(
            GroupModel(exemplars, bounds, 1 - self.max_distance, self.min_coherence, self.space),
            self.rows[some[order]],
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
    given: np.ndarray | None,
    sample: int,
    most_groups: int,
    random_state: int,
    extractor: Extractor | None,
) -> SampleClustering:
    """Find the groups of a set, from a sample of it; given (n,): groups that are known, below 0 for none."""
    rng = np.random.default_rng(random_state)
    drawn = _draw_sample(stack, image_features, given, sample, extractor, rng)
    chosen, noise, coherent = _split_off_noise(stack, drawn)
    if given is not None:
        compared = ComparedSample.of(stack, drawn, coherent, image_features, extractor)
        return compared.clustering(np.arange(len(drawn)), given[drawn], noise[:0], [])
    compared = ComparedSample.of(stack, chosen, coherent, image_features, extractor)
    inside = compared.distance <= compared.max_distance
    if inside.sum() < 2:
        inside[:] = True
    some = np.flatnonzero(inside)
    if isinstance(n_groups, int) and n_groups > len(some):
        raise CongealError(
            f"{stack.source.name} has {len(some)} images that can be sorted, which cannot make {n_groups} groups: "
            f"ask for fewer"
        )
    if isinstance(n_groups, int) and n_groups > 1 and float(compared.distance[some].max()) < 1e-6:
        raise CongealError(f"the images of {stack.source.name} are all alike, which makes one group, not {n_groups}")
    graph, curve = compared.graph(some), []  # type: NeighbourGraph, list[tuple[int, float]]
    if n_groups == "auto" and compared.space is not None:
        n_groups, curve = count_clusters(compared.views[some], most_groups, rng)
    if isinstance(n_groups, int):
        groups = partition(graph, graph.embedding(n_groups)[1], rearranged=True)
    else:
        groups, curve = _largest_partition(graph, most_groups)
    largest_first = np.argsort(-np.bincount(groups), kind="stable")
    return compared.clustering(some, largest_first.argsort()[groups], np.union1d(chosen[~inside], noise), curve)


def _draw_sample(
    stack: Stack,
    image_features: ImageFeatures,
    given: np.ndarray | None,
    sample: int,
    extractor: Extractor | None,
    rng: np.random.Generator,
) -> np.ndarray:
    """Positions of a random sample; each given group has its share of it, and at least `MIN_GIVEN_EXEMPLARS`."""
    if extractor is None:
        most = MAX_EXEMPLAR_VALUES // make_views(stack, np.arange(1), image_features).numel()
    else:
        most = 5 * MAX_EXEMPLAR_VALUES // feature_views(stack, np.arange(1), extractor, max(stack.frame)).numel()
    most = max(2, min(sample, most))
    if given is None:
        return np.sort(rng.permutation(len(stack))[:most])
    chosen, total = [], int((given >= 0).sum())
    for number in range(int(given.max()) + 1):
        own = np.flatnonzero(given == number)
        share = max(MIN_GIVEN_EXEMPLARS, round(most * len(own) / total))
        chosen.append(np.sort(rng.permutation(own)[:share]))
    return np.concatenate(chosen)


class GivenGroups(NamedTuple):
    """Groups of a table: their names, the largest first, and `group` (n,) of each image: −1 none, −2 not listed."""

    names: tuple[str, ...]
    group: np.ndarray


def read_group_table(path: str | os.PathLike[str], ids: Sequence[str]) -> GivenGroups:
    """The groups that a table gives to images of these ids; an empty cell is no group."""
    table = {row["id"]: row["group"] for row in read_table(path, GROUP_TABLE_COLUMNS)}
    meant = match_ids(table, ids)
    known = {meant[id]: name for id, name in table.items() if id in meant}
    if not known:
        example = f", such as '{ids[0]}'" if len(ids) else ""
        raise CongealError(f"'{path}' lists none of these images: its column id must have their ids{example}")
    sizes = Counter(name for name in known.values() if name)
    if not sizes:
        raise CongealError(f"'{path}' puts no image into a group: its column group is empty")
    try:
        names = [check_group_name(name) for name, _ in sizes.most_common()]
    except CongealError as error:
        raise CongealError(f"'{path}': {error}") from error
    number = {name: k for k, name in enumerate(names)} | {"": NO_GROUP}
    group = np.array([number[known[id]] if id in known else NOT_LISTED for id in ids], dtype=np.int64)
    return GivenGroups(tuple(names), group)


def _batches(rows: np.ndarray) -> list[np.ndarray]:
    return np.array_split(rows, -(-len(rows) // BATCH_IMAGES))


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
    # A small set has few of each kind, and 3 neighbours in place of 10. Of features always ten, weighted by rank.
    usual = max(3, n // 20) if exemplars.motion else FEATURE_NEIGHBOURS
    count = min(FEATURE_NEIGHBOURS, usual, n - 1)

    def nearest(part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        views = exemplars.views[part]
        alike = exemplars.correlations(views)
        alike[torch.arange(len(part)), part] = -2  # no image is its own neighbour
        which = alike.topk(min(max(CANDIDATES_PER_IMAGE, count), n - 1), 1).indices
        top = exemplars.aligned_likeness(views, which).topk(count, 1)
        return which.gather(1, top.indices), top.values

    with single_torch_thread() as threads:
        _ = exemplars.unit_vectors, exemplars.linearisations  # cached before threads use them
        found = list(map_ordered(nearest, torch.arange(n).split(BATCH_IMAGES), threads))
    neighbours, likeness = (torch.cat(parts) for parts in zip(*found, strict=True))
    return torch.where(likeness > NO_MATCH, neighbours, n), likeness


def _largest_partition(graph: NeighbourGraph, most_groups: int) -> tuple[np.ndarray, list[tuple[int, float]]]:
    """As many groups as possible of which none has a conductance above `MAX_CONDUCTANCE`, and the largest conductance
    for each number of groups that was tried."""
    most = min(len(graph) - 1, most_groups)
    _, vectors = graph.embedding(max(1, most))
    best, curve = np.zeros(len(graph), dtype=np.int64), [(1, 0.0)]
    least = max(MIN_GROUP_IMAGES, round(len(graph) / 200))
    for count in range(2, most + 1):
        groups = partition(graph, vectors[:, :count])
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
    numbers: dict[str, Any] = {"n_groups": count, "conductances": list(conductances)}
    if not curve:
        how = "given" if given else "asked"
        worst = f"up to {max(conductances):.1%} of the nearest neighbours of a group are in another one"
        return {"sentence": f"{groups}, as {how}: {worst}.", **numbers}
    limit = MAX_RELATIVE_CONDUCTANCE if features else MAX_CONDUCTANCE
    here, after = dict(curve).get(count, 0.0), min((value for number, value in curve if number > count), default=1.0)
    sure = here <= 0.75 * limit and after >= limit / 0.75  # clear by a quarter on both sides
    if features:
        name = "conductance of the next split, as a share of that of a set of one kind"
        last = f"the conductance of the last split is {here:.0%} of that of a set of one kind; " if count > 1 else ""
        sentence = f"{last}that of one more would be {after:.0%} of it (the limit is {limit:.0%})"
    else:
        name = "share of neighbours in another group"
        sentence = (
            f"up to {here:.1%} of the nearest neighbours of a group are in another one; with more groups it would be "
            f"{after:.1%} or more (the limit is {limit:.0%})"
        )
    sentence = f"{groups}: {sentence}. The choice is {'clear' if sure else 'close'}."
    shown = {"sure": sure, "limit": limit, "curve": [list(one) for one in curve], "curve_name": name}
    return {"sentence": sentence, **numbers, **shown}


def suggest_features(chosen: dict[str, Any], kind: str) -> dict[str, str]:
    """Advice where edges of photographs separate no groups; empty where they do, and for objects."""
    clear = chosen["n_groups"] > 1 and max(chosen["conductances"]) <= MAX_CONDUCTANCE
    if kind != "photo" or clear:
        return {}
    return {"advice": "edges tell no clear groups apart in these photographs; a network may: --features lite0"}
