"""Tracking of a drifting sequence: pairwise registration of neighbours, a pose graph, then coarse to fine.

1. At working size every view is registered to the two before it: by cross-correlation, then on tiles. The better of the
   two initialises its pose.
2. Links over 4, 8, … views are added wherever two views overlap enough. They bound the accumulated error.
3. The pose graph adjusts all views to all links, each weighted by its covariance.
4. The same links are registered again in larger pictures, up to the originals, each time followed by the adjustment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_matrix, csgraph

from congeal.execution.threads import map_ordered
from congeal.geometry import MOTIONS, invert, normalise, warp
from congeal.geometry.matrix import Size, corners
from congeal.images import Stack
from congeal.methods.sequence.cross_correlation import find_shifts, overlap, shifted
from congeal.methods.sequence.pairwise_registration import PairPoses, PairSolver, PictureTiles
from congeal.methods.sequence.pose_graph import Origin, PoseGraph, adjust
from congeal.registration.batching import chunks
from congeal.registration.features import ImageFeatures
from congeal.registration.gauge import within_motion
from congeal.registration.gauss_newton import point_motion
from congeal.registration.tile_refinement import MotionChoice, simplest
from congeal.registration.tiles import REDUCTION_ERROR_PX, SAMPLING_ERROR_PX

FIRST_MOTION = "similarity"
"""Motion of the registration before the motion is chosen."""
WORKING_STEPS, FINE_STEPS = 12, 4
"""Gauss-Newton steps of a pair at working size, where it begins at a whole number of pixels, and at each finer one,
where it begins at the pose of the one before (chosen by judgement)."""
MIN_OVERLAP = 0.4
"""Overlap of two linked views, as a share of a view: less leaves too few tiles for a small error (chosen by
judgement)."""
RELATIVE_MIN_LIKENESS, MIN_LIKENESS = 0.5, 0.15
"""Likeness of a valid link, as a share of the median likeness of neighbours, and its lower bound, below which noise
correlates with noise (chosen by judgement)."""
MAX_LINK_ERROR_PX = 1.0
"""Standard error of a valid link: a pair that is off by a pixel would only blur the poses of its neighbours (chosen by
judgement)."""
UNMATCHED_ERROR_PX = 5.0
"""Standard deviation by which a view without links is tied to the one before it: far more than the error of any link,
so that it only decides where there is nothing else (chosen by judgement)."""
SAMPLE_VIEWS = 32
"""Links by which the motion is chosen, and views that an external reference is compared with: a sample that takes less
time than one pass over the sequence (chosen by judgement)."""


@dataclass(frozen=True)
class Links:
    """Pairs of views, in the order of the second: positions first < second (E,) in the sequence, and matrices (E, 3, 3)
    second_from_first, in pixels of the frame at hand."""

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

    views (n, 3, 3): view_from_frame, in pixels. links: valid links, with the relative poses of the views. error (n,):
    standard error of a view against the origin, accumulated over links, of a corner along an axis, in pixels; NaN if it
    has no link. ends: the same, of the last view against the first. lost (n,) bool: views that match none of those
    before them.
    """

    views: torch.Tensor
    links: Links
    error: torch.Tensor
    ends: float
    lost: torch.Tensor


def register_links(pictures: ContrastPictures, links: Links, motion: str, steps: int) -> PairPoses:
    """Register every link on tiles, in one pass over the pictures: each when its second view is read."""
    solver, threads = PairSolver(motion, pictures.frame, pictures.min_error), torch.get_num_threads()
    begin = within_motion(links.matrices, motion, pictures.frame)
    last_use = dict(zip(links.first.tolist(), links.second.tolist(), strict=True))  # the links are in order of these
    linked = torch.cat([links.first, links.second]).unique().numpy()
    together = len(chunks(pictures.stack)[0])
    parts = np.array_split(linked, -(-len(linked) // together)) if len(linked) else []

    def prepare(part: np.ndarray) -> tuple[np.ndarray, torch.Tensor, torch.Tensor | None, PictureTiles]:
        shown, inside = pictures.of(part)
        return part, shown, inside, PictureTiles.of(shown, motion)

    def jobs() -> Iterator[tuple[Any, ...]]:
        kept: dict[int, PictureTiles] = {}
        for part, shown, inside, tiles in map_ordered(prepare, parts, threads):
            kept |= {row: tiles.one(k) for k, row in enumerate(part.tolist())}
            low, high = torch.searchsorted(links.second, torch.tensor([part[0], part[-1] + 1])).tolist()
            if low < high:
                which = torch.searchsorted(torch.from_numpy(part), links.second[low:high])
                others = PictureTiles.cat([kept[i] for i in links.first[low:high].tolist()])
                yield shown, inside, which, others, begin[low:high], steps
            kept = {row: tiles for row, tiles in kept.items() if last_use.get(row, -1) > part[-1]}

    return PairPoses.cat([*map_ordered(lambda job: solver.register(*job), jobs(), threads)])


# ---- working size


@torch.no_grad()
def track(pictures: ContrastPictures, motion: str, origin: Origin, *, joint: bool = True) -> TrackedViews:
    """Views of a sequence from its pictures alone. origin: the reference of errors. joint: with links beyond
    neighbours."""
    n = len(pictures.stack)
    shown = torch.cat([pictures.of(part)[0] for part in chunks(pictures.stack)])
    reach = (1, 2) if joint else (1,)
    first = torch.cat([torch.arange(n - step) for step in reach if n > step])
    second = torch.cat([torch.arange(step, n) for step in reach if n > step])
    near = Links(first, second, shifted(find_shifts(shown, first, second)[0])).ordered()
    done = register_links(pictures, near, motion, WORKING_STEPS)
    bar = min_link_likeness(done, near)
    views, lost = _chain(replace(near, matrices=done.matrices), done.likeness, valid_links(done, bar), shown, bar)
    links = near.between(views)
    if joint:
        more = far_links(views, pictures.frame)
        both = ((links.first, more.first), (links.second, more.second), (links.matrices, more.matrices))
        links = Links(*map(torch.cat, both)).ordered()
        done = register_links(pictures, links, motion, WORKING_STEPS)
    return adjust_views(links, done, views, lost, bar, pictures.frame, motion, origin)


def min_link_likeness(done: PairPoses, links: Links) -> float:
    """Likeness below which two views do not show the same."""
    neighbours = done.likeness[(links.second - links.first == 1) & done.error.isfinite()]
    return max(MIN_LIKENESS, RELATIVE_MIN_LIKENESS * float(neighbours.median())) if len(neighbours) else MIN_LIKENESS


def valid_links(done: PairPoses, bar: float) -> torch.Tensor:
    """(E,) bool: links with sufficient likeness and precision."""
    return (done.likeness >= bar) & (done.error < MAX_LINK_ERROR_PX)


def _chain(
    links: Links, likeness: torch.Tensor, good: torch.Tensor, shown: torch.Tensor, bar: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Views (n, 3, 3), each from the best link to a view before it, and which have no such link (n,)."""
    n = len(shown)
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


def far_links(views: torch.Tensor, frame: Size) -> Links:
    """Links over 4, 8, 16, … views, half as many each time, and of the first with the last view, where both views
    overlap enough."""
    n, step = len(views), 4
    pairs = [(0, n - 1)] if n > 4 else []
    while step < n:
        pairs += [(begin, begin + step) for begin in range(0, n - step, step // 2)]
        step *= 2
    first, second = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T
    links = Links(first, second, torch.empty(0)).between(views)
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
    valid = links.some(good)
    held = torch.ones(len(views), dtype=torch.bool)
    held[valid.second], held[0] = False, False
    rows = torch.nonzero(held)[:, 0]
    weak = Links(rows - 1, rows, torch.empty(0)).between(views)
    corner = point_motion(torch.as_tensor(corners(frame)).double(), frame, motion).flatten(1)
    information = corner @ corner.T / (corner.shape[1] * UNMATCHED_ERROR_PX**2)
    graph = PoseGraph(
        torch.cat([valid.first, weak.first]),
        torch.cat([valid.second, weak.second]),
        torch.cat([done.matrices[good], weak.matrices]),
        torch.cat([done.information[good], information.expand(len(rows), -1, -1)]),
        frame,
        motion,
    )
    result = adjust(graph, views, origin)
    error = torch.where(held, torch.nan, result.error)
    return TrackedViews(normalise(result.views), valid.between(result.views), error, result.ends, lost | held)


def connected_components(n: int, links: Links) -> torch.Tensor:
    """(n,) component of each view in the graph of links. The relative pose of two components is not known."""
    edges = coo_matrix((np.ones(len(links)), (links.first.numpy(), links.second.numpy())), shape=(n, n))
    return torch.from_numpy(csgraph.connected_components(edges, directed=False)[1]).long()


# ---- larger pictures


@torch.no_grad()
def refine(known: TrackedViews, pictures: ContrastPictures, motion: str, origin: Origin) -> TrackedViews:
    """Refine views in larger pictures; `known` is in their pixels."""
    links, followed = known.links, torch.zeros(len(known.views), dtype=torch.bool)
    followed[links.second[links.second - links.first == 1]] = True
    # Links over two views are left out where two links over one view replace them, to save time in large pictures.
    replaced = (links.second - links.first == 2) & followed[links.second] & followed[links.second - 1]
    links = links.some(~replaced)
    done = register_links(pictures, links, motion, FINE_STEPS)
    bar = min_link_likeness(done, links)
    return adjust_views(links, done, known.views, known.lost, bar, pictures.frame, motion, origin)


@torch.no_grad()
def choose_sequence_motion(
    known: TrackedViews, pictures: ContrastPictures, motions: Sequence[str] = MOTIONS
) -> MotionChoice:
    """The simplest sufficient motion, by the longest links."""
    length = known.links.second - known.links.first
    longest = torch.argsort(length, descending=True, stable=True)[: 4 * SAMPLE_VIEWS]
    some = longest[:: max(1, len(longest) // SAMPLE_VIEWS)].sort().values
    links = known.links.some(some)
    return simplest(lambda motion: register_links(pictures, links, motion, FINE_STEPS).explained_variance, motions)


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
