"""A sequence of views that may drift however far: from neighbour to neighbour, then all at once, coarse to fine.

1. At working size every view is matched with the one before it and the one before that, at any shift (`shifts`), then
   by steps on tiles (`pairs`). A view starts where the better of the two says.
2. Links farther apart, in steps of 2, 4, 8, …, are added wherever two views still see the same thing. Only they keep
   errors from adding up along the chain.
3. The joint adjustment (`posegraph`) finds the views that agree best with all links, each weighed by its error.
4. The same links again in larger pictures, up to the originals, each time followed by the adjustment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import cast

import numpy as np
import torch

from congeal.geometry import MOTIONS, invert, warp
from congeal.geometry.matrix import Size, corners, normalise
from congeal.images import Stack
from congeal.solvers.appearance import Appearance
from congeal.solvers.gauge import within_motion
from congeal.solvers.gaussnewton import point_motion
from congeal.solvers.motions import Foretold, MotionChoice, simplest
from congeal.solvers.pairs import PairSolver, Registered
from congeal.solvers.patches import LARGE_TILES, TILES, Patches
from congeal.solvers.posegraph import Adjusted, Graph, Origin, adjust
from congeal.solvers.shifts import find_shifts, overlap, shifted
from congeal.solvers.streaming import chunks
from congeal.solvers.threads import in_order

FIRST_MOTION = "similarity"
"""What views are matched with before it is known which motion they need."""
_SAMPLED, _SHRUNK = 0.004, 0.01  # pixels along an axis: what sampling costs a pair, and pictures that were made smaller
_STEPS = (12, 4)  # of a pair at working size, and at each finer one
_OVERLAP = 0.4  # of a view: links need so much in common
_ALIKE = 0.5  # of the median likeness of neighbours: less is no match
_LEAST_ALIKE = 0.15  # and never less than this
_SURE = 1.0  # pixels: a link that is less sure says nothing
_HELD = 5.0  # pixels: how loosely a view that matches none is held to the one before it
_LARGE = 256  # pixels along the longer side of a picture that needs fewer tiles: they have more pixels each
_TRIED = 32  # links by which the motion is chosen
_VALUES_TOGETHER = 1 << 17  # of tiles that are looked at together: small pictures one by one leave threads waiting


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
        """Those at these positions, or where this mask is true."""
        return Links(self.first[which], self.second[which], self.matrices[which])

    def ordered(self) -> Links:
        """By second, then by first."""
        return self.some(torch.argsort(self.second * (int(self.second.max()) + 1) + self.first))

    def between(self, views: torch.Tensor) -> Links:
        """The same links as views (n, 3, 3) have them."""
        return replace(self, matrices=normalise(views[self.second] @ invert(views[self.first])))


class Pictures:
    """What is compared of a stack's images, each as its start shows it."""

    def __init__(self, stack: Stack, appearance: Appearance) -> None:
        self.stack, self.appearance, self.frame = stack, appearance, stack.frame
        eye = np.eye(3)
        self._plain = stack.size == stack.frame and bool(np.allclose(stack.start, eye)) and not stack.has_masks
        self.floor = _SHRUNK if stack.native_size > max(stack.frame) else _SAMPLED

    def of(self, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(B, h, w) of these images, and where they have a picture; None: everywhere."""
        details = self.appearance.detail(self.stack.images(rows))
        if self._plain:
            return details[:, 0], None
        poses = torch.as_tensor(self.stack.start[rows]).float()
        shown = warp(details, poses, self.frame, padding=self.appearance.padding)[:, 0]
        covered = self.appearance.covered(poses, self.stack.size, self.frame, self.stack.masks(rows))
        return shown, None if covered is None else covered[:, 0]


@dataclass(frozen=True)
class Followed:
    """What is known of a sequence of n views at one size.

    Attributes
    ----------
    views : (n, 3, 3) tensor
        view_from_frame, in pixels.
    links : Links
        Those that said something, as the views have them.
    error : (n,) tensor
        Of a view against what the sequence is aligned to, all that adds up on the way included: of a corner along an
        axis, in pixels; NaN if it has no link.
    ends : float
        The same of the last view against the first.
    lost : (n,) tensor of bool
        Views that match none before them.
    """

    views: torch.Tensor
    links: Links
    error: torch.Tensor
    ends: float
    lost: torch.Tensor


@dataclass(frozen=True)
class _Made:
    """One view that is ready to be registered."""

    row: int
    shown: torch.Tensor
    inside: torch.Tensor | None
    patches: Patches | None


class _Pass:
    """One pass over the pictures, in which every link is registered when its second view comes by."""

    def __init__(self, pictures: Pictures, links: Links, motion: str, steps: int) -> None:
        self.pictures, self.links, self.steps, n = pictures, links, steps, len(pictures.stack)
        self.solver = PairSolver(motion, pictures.frame, pictures.floor)
        self.begin = within_motion(links.matrices, motion, pictures.frame)
        self.tiles = TILES if max(pictures.frame) < _LARGE else LARGE_TILES
        # Which links a view ends, and up to which view what is kept of it is asked for.
        self.starts = torch.searchsorted(links.second, torch.arange(n + 1)).tolist()
        self.needed = [0] * n
        for i, j in zip(links.first.tolist(), links.second.tolist(), strict=True):
            self.needed[i] = max(self.needed[i], j)

    def run(self) -> Registered:
        """All links, in order."""
        threads = torch.get_num_threads()
        made = in_order(self._made, self._asked_for(), threads)
        return Registered.joined([*in_order(self._registered, self._with_others(made), threads)])

    def _asked_for(self) -> list[np.ndarray]:
        """The views that some link begins or ends at, in runs."""
        asked = torch.cat([self.links.first, self.links.second]).unique().numpy()
        together = len(chunks(self.pictures.stack)[0])
        return np.array_split(asked, -(-len(asked) // together)) if len(asked) else []

    def _made(self, part: np.ndarray) -> list[_Made]:
        shown, inside = self.pictures.of(part)
        wanted = any(self.needed[j] for j in part)
        patches = Patches.of(shown, self.solver.motion, self.tiles) if wanted else None
        return [
            _Made(
                int(j),
                shown[k],
                None if inside is None else inside[k],
                None if patches is None else patches.one(k),
            )
            for k, j in enumerate(part)
        ]

    def _with_others(self, made: Iterable[list[_Made]]) -> Iterator[list[tuple[_Made, list[Patches]]]]:
        """Views with those that they are linked to, as many together as suits the cache."""
        kept: dict[int, Patches] = {}
        waiting: list[tuple[_Made, list[Patches]]] = []
        values = 0
        for one in chain.from_iterable(made):
            others = [kept[i] for i in self.links.first[self.starts[one.row] : self.starts[one.row + 1]].tolist()]
            if one.patches is not None and self.needed[one.row]:
                kept[one.row] = one.patches
            for row in [row for row in kept if self.needed[row] <= one.row]:
                del kept[row]
            if others:
                waiting.append((one, others))
                values += sum(patches.wanted.numel() for patches in others)
            if values >= _VALUES_TOGETHER:
                yield waiting
                waiting, values = [], 0
        if waiting:
            yield waiting

    @torch.no_grad()
    def _registered(self, items: list[tuple[_Made, list[Patches]]]) -> Registered:
        views = [one for one, _ in items]
        shown = torch.stack([one.shown for one in views])
        inside = None if views[0].inside is None else torch.stack([cast("torch.Tensor", one.inside) for one in views])
        which = torch.repeat_interleave(torch.tensor([len(others) for _, others in items]))
        # Views between them that end no link have none to leave out.
        begin = self.begin[self.starts[views[0].row] : self.starts[views[-1].row + 1]]
        others = Patches.joined([patches for _, some in items for patches in some])
        return self.solver.register(shown, inside, which, others, begin, self.steps)


def register_links(pictures: Pictures, links: Links, motion: str, steps: int) -> Registered:
    """Every link by steps on tiles, in one pass over the pictures; links in the order of their second view."""
    return _Pass(pictures, links, motion, steps).run()


# ---- the first views, at working size


@torch.no_grad()
def follow(pictures: Pictures, motion: str, origin: Origin, *, joint: bool = True) -> Followed:
    """Views of a sequence from nothing but its pictures. origin: what errors are against. joint: with links beyond
    neighbours, and adjusted."""
    n = len(pictures.stack)
    shown = torch.cat([pictures.of(part)[0] for part in chunks(pictures.stack)])
    reach = (1, 2) if joint else (1,)
    first = torch.cat([torch.arange(n - step) for step in reach if n > step])
    second = torch.cat([torch.arange(step, n) for step in reach if n > step])
    shift, _ = find_shifts(shown, first, second)
    near = Links(first, second, shifted(shift)).ordered()
    done = register_links(pictures, near, motion, _STEPS[0])
    bar = likeness_bar(done, near)
    good = sound(done, bar)
    views, lost = _chained(n, replace(near, matrices=done.matrices), done.likeness, good, shown, bar)
    if not joint:
        links = Links(near.first, near.second, done.matrices)
        error = _alone(done, n)
        return Followed(views, links.between(views), error, float(error[-1]), lost)
    links = near.between(views)
    more = far_links(views, pictures.frame, n)
    if len(more):
        links = Links(*(torch.cat(pair) for pair in zip(_parts(links), _parts(more), strict=True))).ordered()
    done = register_links(pictures, links, motion, _STEPS[0] // 2)
    return adjusted(links, done, views, lost, bar, pictures.frame, motion, origin)


def _parts(links: Links) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return links.first, links.second, links.matrices


def likeness_bar(done: Registered, links: Links) -> float:
    """Below it two views do not show the same thing."""
    neighbours = done.likeness[(links.second - links.first == 1) & done.error.isfinite()]
    return max(_LEAST_ALIKE, _ALIKE * float(neighbours.median())) if len(neighbours) else _LEAST_ALIKE


def sound(done: Registered, bar: float) -> torch.Tensor:
    """(E,) bool: links that say something."""
    return (done.likeness >= bar) & (done.error < _SURE)


def _chained(
    n: int, links: Links, likeness: torch.Tensor, good: torch.Tensor, shown: torch.Tensor, bar: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Views (n, 3, 3), each from the one before it that it matches best, and which of them match none (n,)."""
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
    """Links over 4, 8, 16, … views, half as many each time, between views that see enough of the same thing."""
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
    return links.some(overlap(links.matrices, frame) >= _OVERLAP)


def adjusted(
    links: Links,
    done: Registered,
    views: torch.Tensor,
    lost: torch.Tensor,
    bar: float,
    frame: Size,
    motion: str,
    origin: Origin,
) -> Followed:
    """The views that agree best with the links that say something; a view that has none stays near the one before."""
    good = sound(done, bar)
    held = ~_reached(len(views), links.some(good))
    held[0] = False
    rows = torch.nonzero(held)[:, 0]
    weak = Links(rows - 1, rows, torch.eye(3, dtype=torch.float64).repeat(len(rows), 1, 1)).between(views)
    graph = Graph(
        torch.cat([links.first[good], weak.first]),
        torch.cat([links.second[good], weak.second]),
        torch.cat([done.matrices[good], weak.matrices]),
        torch.cat([done.information[good], _held(motion, frame).expand(len(rows), -1, -1)]),
        frame,
        motion,
    )
    result: Adjusted = adjust(graph, views, origin)
    error = torch.where(held, torch.nan, result.error)
    return Followed(normalise(result.views), links.some(good).between(result.views), error, result.ends, lost | held)


def _held(motion: str, frame: Size) -> torch.Tensor:
    """(k, k) information of corners that are known to `_HELD` pixels."""
    corner = point_motion(torch.as_tensor(corners(frame)).double(), frame, motion).flatten(1)
    return corner @ corner.T / (corner.shape[1] * _HELD**2)


def _reached(n: int, links: Links) -> torch.Tensor:
    """(n,) bool: views that a link leads to from an earlier one."""
    reached = torch.zeros(n, dtype=torch.bool)
    reached[links.second] = True
    return reached


def _alone(done: Registered, n: int) -> torch.Tensor:
    """(n,) error of each view against the first, as it adds up from one to the next; of the first, that of the
    second."""
    if n < 2:
        return torch.full((1,), torch.nan, dtype=torch.float64)
    added = done.error.square().nan_to_num(_HELD**2).cumsum(0).sqrt()
    return torch.cat([added[:1], torch.where(done.error.isfinite(), added, torch.nan)])


def parts(n: int, links: Links) -> torch.Tensor:
    """(n,) number of the part that each view is in: views between which links lead, however many. Of two views in
    different parts it is not known how they lie against each other."""
    above = list(range(n))

    def top(i: int) -> int:
        while above[i] != i:
            above[i] = above[above[i]]
            i = above[i]
        return i

    for i, j in zip(links.first.tolist(), links.second.tolist(), strict=True):
        above[top(j)] = top(i)
    return torch.unique(torch.tensor([top(i) for i in range(n)]), return_inverse=True)[1]


# ---- larger pictures


def thinned(links: Links, n: int) -> Links:
    """Without those that skip one view and say what the two links around it say; larger pictures take their time."""
    followed = torch.zeros(n, dtype=torch.bool)
    followed[links.second[links.second - links.first == 1]] = True
    skips = links.second - links.first == 2
    return links.some(~(skips & followed[links.second] & followed[links.second - 1]))


@torch.no_grad()
def refine(known: Followed, pictures: Pictures, motion: str, origin: Origin, *, joint: bool = True) -> Followed:
    """The same views in larger pictures; `known` in their pixels."""
    if joint:
        known = replace(known, links=thinned(known.links, len(known.views)))
    done = register_links(pictures, known.links, motion, _STEPS[1])
    bar = likeness_bar(done, known.links)
    if joint:
        return adjusted(known.links, done, known.views, known.lost, bar, pictures.frame, motion, origin)
    good = sound(done, bar)
    matrices = torch.where(good[:, None, None], done.matrices, known.links.matrices)
    views = known.views.clone()
    for edge, j in enumerate(known.links.second.tolist()):
        views[j] = matrices[edge] @ views[j - 1]
    views = normalise(views)
    lost = torch.cat([torch.zeros(1, dtype=torch.bool), ~good])
    error = _alone(done, len(views))
    return Followed(views, known.links.between(views), error, float(error[-1]), lost)


@torch.no_grad()
def choose_sequence_motion(known: Followed, pictures: Pictures, motions: Sequence[str] = MOTIONS) -> MotionChoice:
    """The simplest motion that suffices, by links that are as long as there are."""
    length = known.links.second - known.links.first
    longest = torch.argsort(length, descending=True, stable=True)[: 4 * _TRIED]
    some = longest[:: max(1, len(longest) // _TRIED)].sort().values
    links = known.links.some(some)
    return simplest(lambda motion: Foretold(register_links(pictures, links, motion, _STEPS[0]).foretold), motions)


def restricted(known: Followed, motion: str, frame: Size) -> Followed:
    """The same within a motion, step by step. A view that drifted far lies far from the frame, so that the least turn
    of it, once taken out, would move it by many pixels."""
    steps = within_motion(known.views[1:] @ invert(known.views[:-1]), motion, frame)
    views = [within_motion(known.views[:1], motion, frame)[0]]
    for step in steps:
        views.append(step @ views[-1])
    links = replace(known.links, matrices=within_motion(known.links.matrices, motion, frame))
    return replace(known, views=normalise(torch.stack(views)), links=links)


def rescaled(known: Followed, change: torch.Tensor, times: float) -> Followed:
    """The same in pixels of another size: change (3, 3) leads to them."""
    back = torch.linalg.inv(change)
    links = replace(known.links, matrices=normalise(change @ known.links.matrices @ back))
    views = normalise(change @ known.views @ back)
    return replace(known, views=views, links=links, error=known.error * times, ends=known.ends * times)
