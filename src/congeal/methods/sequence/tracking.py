"""Tracking of a drifting sequence: pairwise registration of neighbours, a pose graph, then coarse to fine.

1. At working size every view is registered to the two before it: by cross-correlation, then on tiles. The better of the
   two initialises its pose.
2. Links over 4, 8, … views are added wherever two views overlap enough. They bound the accumulated error.
3. The pose graph adjusts all views to all links, each weighted by its covariance.
4. The same links are registered again in larger pictures, up to the originals, each time followed by the adjustment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import cast

import numpy as np
import torch
from scipy.sparse import coo_matrix, csgraph

from congeal.execution.threads import map_ordered
from congeal.geometry import MOTIONS, invert, warp
from congeal.geometry.matrix import Size, corners, normalise
from congeal.images import Stack
from congeal.methods.sequence.pairwise_registration import LARGE_TILES, TILES, PairPoses, PairSolver, PictureTiles
from congeal.methods.sequence.pose_graph import Origin, PoseGraph, adjust
from congeal.registration.batching import chunks
from congeal.registration.cross_correlation import find_shifts, overlap, shifted
from congeal.registration.features import ImageFeatures
from congeal.registration.gauge import within_motion
from congeal.registration.gauss_newton import point_motion
from congeal.registration.motion_selection import MotionChoice, simplest

FIRST_MOTION = "similarity"
"""Motion of the registration before the motion is chosen."""
SAMPLING_ERROR_PX, REDUCTION_ERROR_PX = 0.004, 0.01
"""Standard error of a pair along an axis by sampling, and in pictures that were reduced in size."""
WORKING_STEPS, FINE_STEPS = 12, 4
"""Gauss-Newton steps of a pair at working size and at each finer one."""
MIN_OVERLAP = 0.4
"""Overlap of two linked views, as a share of a view."""
RELATIVE_MIN_LIKENESS, MIN_LIKENESS = 0.5, 0.15
"""Likeness of a valid link, as a share of the median likeness of neighbours, and its lower bound."""
MAX_LINK_ERROR_PX = 1.0
"""Standard error of a valid link."""
UNMATCHED_ERROR_PX = 5.0
"""Standard deviation by which a view without links is tied to the one before it."""
LARGE_PICTURE_PX = 256
"""Longer side from which pictures have fewer, larger tiles."""
MOTION_LINKS = 32
"""Links by which the motion is chosen."""
BATCH_VALUES = 1 << 17
"""Tile values that are registered in one batch: single small pictures would leave threads idle."""


@dataclass(frozen=True)
class Links:
    """Pairs of views, in the order of the second.

    Attributes
    ----------
    first, second : (E,) tensors of int64
        Positions in the sequence; first < second.
    matrices : (E, 3, 3) tensor
        second_from_first, in pixels of the frame at hand.
    """

    first: torch.Tensor
    second: torch.Tensor
    matrices: torch.Tensor

    def __len__(self) -> int:
        return len(self.first)

    def some(self, which: torch.Tensor) -> Links:
        """The links at these positions, or of a mask."""
        return Links(self.first[which], self.second[which], self.matrices[which])

    def ordered(self) -> Links:
        """Sorted by second, then by first."""
        return self.some(torch.argsort(self.second * (int(self.second.max()) + 1) + self.first))

    def between(self, views: torch.Tensor) -> Links:
        """The same links with the relative poses of views (n, 3, 3)."""
        return replace(self, matrices=normalise(views[self.second] @ invert(views[self.first])))


class ContrastPictures:
    """Local contrast of a stack's images in the frame of their start poses."""

    def __init__(self, stack: Stack, image_features: ImageFeatures) -> None:
        self.stack, self.image_features, self.frame = stack, image_features, stack.frame
        eye = np.eye(3)
        self._plain = stack.size == stack.frame and bool(np.allclose(stack.start, eye)) and not stack.has_masks
        self.min_error = REDUCTION_ERROR_PX if stack.native_size > max(stack.frame) else SAMPLING_ERROR_PX

    def of(self, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(B, h, w) local contrast of these images, and their coverage; None: complete."""
        details = self.image_features.detail(self.stack.images(rows))
        if self._plain:
            return details[:, 0], None
        poses = torch.as_tensor(self.stack.start[rows]).float()
        shown = warp(details, poses, self.frame, padding=self.image_features.padding)[:, 0]
        covered = self.image_features.covered(poses, self.stack.size, self.frame, self.stack.masks(rows))
        return shown, None if covered is None else covered[:, 0]


@dataclass(frozen=True)
class TrackedViews:
    """Poses of a sequence of n views at one size.

    Attributes
    ----------
    views : (n, 3, 3) tensor
        view_from_frame, in pixels.
    links : Links
        Valid links, with the relative poses of the views.
    error : (n,) tensor
        Standard error of a view against the origin, accumulated over links: of a corner along an axis, in pixels; NaN
        if it has no link.
    ends : float
        The same, of the last view against the first.
    lost : (n,) tensor of bool
        Views that match none of those before them.
    """

    views: torch.Tensor
    links: Links
    error: torch.Tensor
    ends: float
    lost: torch.Tensor


@dataclass(frozen=True)
class _PreparedView:
    """One view that is ready to be registered."""

    row: int
    shown: torch.Tensor
    inside: torch.Tensor | None
    tiles: PictureTiles | None


class _LinkRegistration:
    """One pass over the pictures: every link is registered when its second view is read."""

    def __init__(self, pictures: ContrastPictures, links: Links, motion: str, steps: int) -> None:
        self.pictures, self.links, self.steps, n = pictures, links, steps, len(pictures.stack)
        self.solver = PairSolver(motion, pictures.frame, pictures.min_error)
        self.begin = within_motion(links.matrices, motion, pictures.frame)
        self.tiles = TILES if max(pictures.frame) < LARGE_PICTURE_PX else LARGE_TILES
        # The links that end at a view, and the last view that needs its tiles.
        self.starts = torch.searchsorted(links.second, torch.arange(n + 1)).tolist()
        self.needed = [0] * n
        for i, j in zip(links.first.tolist(), links.second.tolist(), strict=True):
            self.needed[i] = max(self.needed[i], j)

    def run(self) -> PairPoses:
        """All links, in order."""
        threads = torch.get_num_threads()
        made = map_ordered(self._prepare, self._linked_batches(), threads)
        return PairPoses.cat([*map_ordered(self._register, self._batch_links(made), threads)])

    def _linked_batches(self) -> list[np.ndarray]:
        """Batches of the views at which a link begins or ends."""
        asked = torch.cat([self.links.first, self.links.second]).unique().numpy()
        together = len(chunks(self.pictures.stack)[0])
        return np.array_split(asked, -(-len(asked) // together)) if len(asked) else []

    def _prepare(self, part: np.ndarray) -> list[_PreparedView]:
        shown, inside = self.pictures.of(part)
        wanted = any(self.needed[j] for j in part)
        patches = PictureTiles.of(shown, self.solver.motion, self.tiles) if wanted else None
        return [
            _PreparedView(
                int(j),
                shown[k],
                None if inside is None else inside[k],
                None if patches is None else patches.one(k),
            )
            for k, j in enumerate(part)
        ]

    def _batch_links(
        self, made: Iterable[list[_PreparedView]]
    ) -> Iterator[list[tuple[_PreparedView, list[PictureTiles]]]]:
        """Views with the tiles of their links' first views, in batches that fit the cache."""
        kept: dict[int, PictureTiles] = {}
        waiting: list[tuple[_PreparedView, list[PictureTiles]]] = []
        values = 0
        for one in chain.from_iterable(made):
            others = [kept[i] for i in self.links.first[self.starts[one.row] : self.starts[one.row + 1]].tolist()]
            if one.tiles is not None and self.needed[one.row]:
                kept[one.row] = one.tiles
            for row in [row for row in kept if self.needed[row] <= one.row]:
                del kept[row]
            if others:
                waiting.append((one, others))
                values += sum(patches.values.numel() for patches in others)
            if values >= BATCH_VALUES:
                yield waiting
                waiting, values = [], 0
        if waiting:
            yield waiting

    @torch.no_grad()
    def _register(self, items: list[tuple[_PreparedView, list[PictureTiles]]]) -> PairPoses:
        views = [one for one, _ in items]
        shown = torch.stack([one.shown for one in views])
        inside = None if views[0].inside is None else torch.stack([cast("torch.Tensor", one.inside) for one in views])
        which = torch.repeat_interleave(torch.tensor([len(others) for _, others in items]))
        # Views between them that end no link have none to leave out.
        begin = self.begin[self.starts[views[0].row] : self.starts[views[-1].row + 1]]
        others = PictureTiles.cat([patches for _, some in items for patches in some])
        return self.solver.register(shown, inside, which, others, begin, self.steps)


def register_links(pictures: ContrastPictures, links: Links, motion: str, steps: int) -> PairPoses:
    """Register every link on tiles, in one pass over the pictures; links in the order of their second view."""
    return _LinkRegistration(pictures, links, motion, steps).run()


# ---- working size


@torch.no_grad()
def track(pictures: ContrastPictures, motion: str, origin: Origin, *, joint: bool = True) -> TrackedViews:
    """Views of a sequence from its pictures alone. origin: the reference of errors. joint: with links beyond neighbours
    and the joint adjustment."""
    n = len(pictures.stack)
    shown = torch.cat([pictures.of(part)[0] for part in chunks(pictures.stack)])
    reach = (1, 2) if joint else (1,)
    first = torch.cat([torch.arange(n - step) for step in reach if n > step])
    second = torch.cat([torch.arange(step, n) for step in reach if n > step])
    shift, _ = find_shifts(shown, first, second)
    near = Links(first, second, shifted(shift)).ordered()
    done = register_links(pictures, near, motion, WORKING_STEPS)
    bar = min_link_likeness(done, near)
    good = valid_links(done, bar)
    views, lost = _chain(n, replace(near, matrices=done.matrices), done.likeness, good, shown, bar)
    if not joint:
        links = Links(near.first, near.second, done.matrices)
        error = _accumulated_error(done, n)
        return TrackedViews(views, links.between(views), error, float(error[-1]), lost)
    links = near.between(views)
    more = far_links(views, pictures.frame, n)
    if len(more):
        links = Links(*(torch.cat(pair) for pair in zip(_parts(links), _parts(more), strict=True))).ordered()
    done = register_links(pictures, links, motion, WORKING_STEPS // 2)
    return adjust_views(links, done, views, lost, bar, pictures.frame, motion, origin)


def _parts(links: Links) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return links.first, links.second, links.matrices


def min_link_likeness(done: PairPoses, links: Links) -> float:
    """Likeness below which two views do not show the same."""
    neighbours = done.likeness[(links.second - links.first == 1) & done.error.isfinite()]
    return max(MIN_LIKENESS, RELATIVE_MIN_LIKENESS * float(neighbours.median())) if len(neighbours) else MIN_LIKENESS


def valid_links(done: PairPoses, bar: float) -> torch.Tensor:
    """(E,) bool: links with sufficient likeness and precision."""
    return (done.likeness >= bar) & (done.error < MAX_LINK_ERROR_PX)


def _chain(
    n: int, links: Links, likeness: torch.Tensor, good: torch.Tensor, shown: torch.Tensor, bar: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Views (n, 3, 3), each from the best link to a view before it, and which have no such link (n,)."""
    views, lost = torch.eye(3, dtype=torch.float64).repeat(n, 1, 1), torch.zeros(n, dtype=torch.bool)
    by_second: list[list[int]] = [[] for _ in range(n)]
    for edge in torch.nonzero(good)[:, 0].tolist():
        by_second[int(links.second[edge])].append(edge)
    seen = 0  # the last view that was matched
    for j in range(1, n):
        edges = [edge for edge in by_second[j] if not lost[links.first[edge]]] or by_second[j]
        if edges:
            best = max(edges, key=lambda edge: float(likeness[edge]))
            views[j] = links.matrices[best] @ views[links.first[best]]
            seen = j
            continue
        shift, alike = find_shifts(shown, torch.tensor([seen]), torch.tensor([j]))
        if float(alike[0]) >= bar:
            views[j], seen = shifted(shift)[0] @ views[seen], j
        else:
            views[j], lost[j] = views[j - 1], True
    return normalise(views), lost


def far_links(views: torch.Tensor, frame: Size, n: int) -> Links:
    """Links over 4, 8, 16, … views, half as many each time, between views that overlap enough."""
    first, second, step = [], [], 4
    while step < n:
        begin = torch.arange(0, n - step, step // 2)
        first.append(begin)
        second.append(begin + step)
        step *= 2
    if n > 4:
        first.append(torch.tensor([0]))
        second.append(torch.tensor([n - 1]))
    if not first:
        none = torch.zeros(0, dtype=torch.int64)
        return Links(none, none, torch.zeros(0, 3, 3, dtype=torch.float64))
    links = Links(torch.cat(first), torch.cat(second), torch.empty(0)).between(views)
    return links.some(overlap(links.matrices, frame) >= MIN_OVERLAP)


def adjust_views(
    links: Links,
    done: PairPoses,
    views: torch.Tensor,
    lost: torch.Tensor,
    bar: float,
    frame: Size,
    motion: str,
    origin: Origin,
) -> TrackedViews:
    """Adjust views to the valid links; a view without one is tied weakly to the view before it."""
    good = valid_links(done, bar)
    held = ~_has_link(len(views), links.some(good))
    held[0] = False
    rows = torch.nonzero(held)[:, 0]
    weak = Links(rows - 1, rows, torch.eye(3, dtype=torch.float64).repeat(len(rows), 1, 1)).between(views)
    graph = PoseGraph(
        torch.cat([links.first[good], weak.first]),
        torch.cat([links.second[good], weak.second]),
        torch.cat([done.matrices[good], weak.matrices]),
        torch.cat([done.information[good], _weak_information(motion, frame).expand(len(rows), -1, -1)]),
        frame,
        motion,
    )
    result = adjust(graph, views, origin)
    error = torch.where(held, torch.nan, result.error)
    return TrackedViews(
        normalise(result.views), links.some(good).between(result.views), error, result.ends, lost | held
    )


def _weak_information(motion: str, frame: Size) -> torch.Tensor:
    """(k, k) information of corners with a standard deviation of `UNMATCHED_ERROR_PX` pixels."""
    corner = point_motion(torch.as_tensor(corners(frame)).double(), frame, motion).flatten(1)
    return corner @ corner.T / (corner.shape[1] * UNMATCHED_ERROR_PX**2)


def _has_link(n: int, links: Links) -> torch.Tensor:
    """(n,) bool: views with a link from an earlier one."""
    reached = torch.zeros(n, dtype=torch.bool)
    reached[links.second] = True
    return reached


def _accumulated_error(done: PairPoses, n: int) -> torch.Tensor:
    """(n,) error of each view against the first, accumulated along the chain; for the first, that of the second."""
    if n < 2:
        return torch.full((1,), torch.nan, dtype=torch.float64)
    added = done.error.square().nan_to_num(UNMATCHED_ERROR_PX**2).cumsum(0).sqrt()
    return torch.cat([added[:1], torch.where(done.error.isfinite(), added, torch.nan)])


def connected_components(n: int, links: Links) -> torch.Tensor:
    """(n,) component of each view in the graph of links. The relative pose of two components is not known."""
    edges = coo_matrix((np.ones(len(links)), (links.first.numpy(), links.second.numpy())), shape=(n, n))
    return torch.from_numpy(csgraph.connected_components(edges, directed=False)[1]).long()


# ---- larger pictures


def thin_links(links: Links, n: int) -> Links:
    """Without links over two views that two links over one view replace, to save time in large pictures."""
    followed = torch.zeros(n, dtype=torch.bool)
    followed[links.second[links.second - links.first == 1]] = True
    skips = links.second - links.first == 2
    return links.some(~(skips & followed[links.second] & followed[links.second - 1]))


@torch.no_grad()
def refine(
    known: TrackedViews, pictures: ContrastPictures, motion: str, origin: Origin, *, joint: bool = True
) -> TrackedViews:
    """Refine views in larger pictures; `known` is in their pixels."""
    if joint:
        known = replace(known, links=thin_links(known.links, len(known.views)))
    done = register_links(pictures, known.links, motion, FINE_STEPS)
    bar = min_link_likeness(done, known.links)
    if joint:
        return adjust_views(known.links, done, known.views, known.lost, bar, pictures.frame, motion, origin)
    good = valid_links(done, bar)
    matrices = torch.where(good[:, None, None], done.matrices, known.links.matrices)
    views = known.views.clone()
    for edge, j in enumerate(known.links.second.tolist()):
        views[j] = matrices[edge] @ views[j - 1]
    views = normalise(views)
    lost = torch.cat([torch.zeros(1, dtype=torch.bool), ~good])
    error = _accumulated_error(done, len(views))
    return TrackedViews(views, known.links.between(views), error, float(error[-1]), lost)


@torch.no_grad()
def choose_sequence_motion(
    known: TrackedViews, pictures: ContrastPictures, motions: Sequence[str] = MOTIONS
) -> MotionChoice:
    """The simplest sufficient motion, by the longest links."""
    length = known.links.second - known.links.first
    longest = torch.argsort(length, descending=True, stable=True)[: 4 * MOTION_LINKS]
    some = longest[:: max(1, len(longest) // MOTION_LINKS)].sort().values
    links = known.links.some(some)
    return simplest(
        lambda motion: register_links(pictures, links, motion, WORKING_STEPS).explained_variance,
        motions,
    )


def restrict_motion(known: TrackedViews, motion: str, frame: Size) -> TrackedViews:
    """Project the steps from view to view to a motion. Projecting a view itself would move it by many pixels, as it
    lies far from the frame and a small rotation has a long lever."""
    steps = within_motion(known.views[1:] @ invert(known.views[:-1]), motion, frame)
    views = [within_motion(known.views[:1], motion, frame)[0]]
    for step in steps:
        views.append(step @ views[-1])
    links = replace(known.links, matrices=within_motion(known.links.matrices, motion, frame))
    return replace(known, views=normalise(torch.stack(views)), links=links)


def rescale_views(known: TrackedViews, change: torch.Tensor, times: float) -> TrackedViews:
    """Convert views to pixels of another size by change (3, 3)."""
    back = torch.linalg.inv(change)
    links = replace(known.links, matrices=normalise(change @ known.links.matrices @ back))
    views = normalise(change @ known.views @ back)
    return replace(known, views=views, links=links, error=known.error * times, ends=known.ends * times)
