"""A set of images of one kind of thing, brought together by features that a network sees in all of them.

Two looks. The first at everything each image shows: every pair of images is matched, as they are and mirrored or
turned where that may be; orientations and similarities follow from all pairs together. Where matches gather is the
object. The second look is at the object alone, in its common frame: matches are finer and need not be looked for far
away, and poses may be affine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch

from congeal.geometry import corners, map_points, normalise
from congeal.geometry.orientation import orientations, upright_from_source
from congeal.images import Stack
from congeal.metrics.limits import FOLLOWED_SHARE
from congeal.solvers.edging import Edges, alike, in_frame, settle
from congeal.solvers.extractors import Extractor
from congeal.solvers.looks import Basis, Look, Window, look
from congeal.solvers.pairing import TOLERANCE, Pair, Rules, agree, between, mutual
from congeal.solvers.synchronise import PLAIN_UNLESS, Key, Matches, choose_orientations, errors, matches_of, meet, tree
from congeal.solvers.threads import one_thread

REACH = 0.3
"""Of the view's side: how far apart matches of the second look may be."""
FINE = 0.05
"""Of the view's side: tolerance of the second look."""
_PULL = 0.02  # towards the first look, of a usual image's weight, in the second: an affine pose bends to a few matches
_QUANTILE = 0.03  # of the matches, on each side, may lie outside the object's window …
_MARGIN = 1.25  # … which is then this much larger, so that the network sees what is around it
_CHANCE_PAIRS = 64
_FITTED = 0.005  # of likeness, which any other pose may cost: poses were fitted to these very features
_TRUSTED = 0.5  # of the usual agreement, which an image must have to be part of a mean
_FOLLOWED = 8  # images that are looked at again, in two windows …
_INSIDE, _ASIDE = 0.5, 0.15  # … of this share of the object's, which lie so far to the left and right, up and down

Report = Callable[[str, float], None]


@dataclass(frozen=True)
class Joined:
    """Where the images lie.

    poses : (n, 3, 3) stack_from_frame; a mirrored image has a negative determinant
    agreement : (n,) share of each image's matches that meet
    error : (n,) standard error of a frame corner's position, in stack pixels; NaN where matches are too few
    above_chance : how many times more matches agree than if they fell anywhere
    frame, object : what the set shows on average, in the whole frame and in the object's window
    edge_gain : by how much features were more alike after a last step on edges
    edges : what that step went to; None if features were clearly less alike, and it was not taken
    """

    poses: np.ndarray
    agreement: np.ndarray
    error: np.ndarray
    above_chance: float
    frame: Template
    object: Template
    edge_gain: float
    edges: Edges | None


def join(
    stack: Stack,
    extractor: Extractor,
    *,
    mirror: bool,
    turns: bool,
    motion: str,
    seed: int,
    quiet: bool = True,
    report: Report = lambda stage, value: None,
) -> Joined:
    """Poses for all images of a stack, from its start."""
    start, whole = np.asarray(stack.start, dtype=np.float64), Window.whole(stack.frame)
    ways = orientations(mirror=mirror, turns=turns)
    first = look(stack, start, whole, extractor, ways, quiet=quiet)
    with one_thread():
        rules = Rules(TOLERANCE * first.side, np.pi / 4 if turns else np.pi / 3)
        dealt = Chance()
        pairs = all_pairs(first, ways, rules, seed, dealt)
        chosen = choose_orientations(pairs, len(stack), ways)
        poses, agreement, matches = _poses(first, pairs, chosen, ways, rules.tolerance)
        report("agreement", float(agreement.mean()))
        found = moved(start, whole, first.side, chosen, ways, poses)
        window = object_window(matches, poses, whole, first.side)
        rough = Template.of(first, whole, chosen, poses, agreement)
    # Both have to be so: noise agrees ten times as often as by chance, but on where in the picture it lies.
    follow = followed(stack, found, window, extractor, first, rules)
    chance = dealt.times if follow >= FOLLOWED_SHARE else 0.0
    report("above_chance", chance)
    second = look(stack, found, window, extractor, quiet=quiet)
    with one_thread():
        rules = Rules(FINE * second.side, np.pi / 4, (0.6, 1.7), REACH * second.side)
        pairs, upright = all_pairs(second, (0,), rules, seed), np.zeros(len(stack), dtype=int)
        matches = matches_of(pairs, upright, (0,))
        begin = np.broadcast_to(np.eye(3), (len(stack), 3, 3))
        poses, agreement = meet(matches, begin, motion, rules.tolerance, second.side / 2, _PULL)
        report("agreement", float(agreement.mean()))
        begun, found = found, moved(found, window, second.side, upright, (0,), poses)
        where = frame_corners(stack.frame, window, second.side)
        unsure = errors(matches, poses, where, motion, rules.tolerance, second.side, max(second.grid))
        template = Template.of(second, window, upright, poses, agreement)
        found, last = _last_on_edges(stack, second, window, begun, found, template, agreement)
    unsure = in_stack(unsure, found, window, second.side)
    return Joined(found, agreement, unsure, chance, rough, template, *last)


def _last_on_edges(
    stack: Stack,
    seen: Look,
    window: Window,
    begun: np.ndarray,
    found: np.ndarray,
    template: Template,
    agreement: np.ndarray,
) -> tuple[np.ndarray, tuple[float, Edges | None]]:
    """Poses after a last step on edges if features, seen under the poses `begun`, are as alike then; by how much they
    are more alike, and what new images need for that step, None if it was not taken."""
    frame_from_view = window.frame_from_view(seen.side)

    def likeness(poses: np.ndarray) -> float:
        view_from_common = np.linalg.inv(frame_from_view) @ np.linalg.inv(begun) @ poses @ frame_from_view
        return float(alike(seen, view_from_common).mean())

    keep = agreement >= _TRUSTED * np.median(agreement)
    moved, edges = settle(stack, found, in_frame(template.weight, seen, window, stack.frame), keep)
    gain = likeness(moved) - likeness(found)
    return (moved, (gain, edges)) if gain > -_FITTED else (found, (gain, None))


def frame_corners(frame: tuple[int, int], window: Window, side: int) -> np.ndarray:
    """(4, 2) the corners of the frame in a view of the window, about its centre."""
    return np.asarray(map_points(np.linalg.inv(window.frame_from_view(side)), corners(frame)) - (side - 1) / 2)


def in_stack(error: np.ndarray, poses: np.ndarray, window: Window, side: int) -> np.ndarray:
    """(n,) errors in pixels of a view as pixels of the stack, under stack_from_frame poses."""
    return np.asarray(error * (2 * window.half / side) * np.sqrt(np.abs(np.linalg.det(poses[:, :2, :2]))))


def followed(stack: Stack, poses: np.ndarray, window: Window, extractor: Extractor, seen: Look, rules: Rules) -> float:
    """The share of pairs whose matches follow what images show when the window moves, under first poses.

    A network knows a little of where in the picture a cell lies, and the edge of an image is something all images have.
    Where they show nothing else in common, that is what matches, and it stays where it is. So two windows are compared
    that lie inside the object's, aside from each other.
    """
    few = np.unique(np.linspace(0, len(stack) - 1, min(len(stack), _FOLLOWED)).round().astype(int))
    some = stack if len(few) == len(stack) else stack.some(few)
    step, half = _ASIDE * window.half, _INSIDE * window.half
    here, there = (
        look(some, poses[few], Window(window.x + way * step, window.y + way * step, half), extractor, basis=seen.basis)
        for way in (-1, 1)
    )
    places, shift = centred(here), complex(1, 1) * step / half * here.side

    def similarity(a: int, b: int, other: Look) -> Pair:
        allowed = torch.from_numpy(here.seen[a, 0][:, None] & other.seen[b, 0][None])
        rows, columns, alike = mutual(here.of(a), other.of(b), allowed)
        return agree(places[rows], places[columns], alike, rules, here.side, 0)

    along = []
    with one_thread():
        for a, b in combinations(range(len(few)), 2):
            first, second = similarity(a, b, here), similarity(a, b, there)
            if first.score > 0 and second.score > 0:
                along.append(((first.t - second.t) * np.conj(shift)).real / abs(shift) ** 2)
    return float(np.mean(np.array(along) > 0.5)) if along else 0.0


@dataclass
class Chance:
    """How well pairs agree, and how well they would if the places of their matches were dealt out anew."""

    real: float = 0.0
    dealt: float = 0.0

    def add(self, a: np.ndarray, b: np.ndarray, alike: np.ndarray, pair: Pair, rules: Rules, side: int) -> None:
        """Take in one pair with all its matches."""
        mixed = np.random.default_rng(len(a)).permutation(b)
        self.real, self.dealt = self.real + pair.score, self.dealt + agree(a, mixed, alike, rules, side, 0).score

    @property
    def times(self) -> float:
        """How many times better."""
        return self.real / self.dealt if self.dealt > 0 else 0.0


def all_pairs(
    seen: Look, ways: Sequence[int], rules: Rules, seed: int, chance: Chance | None = None
) -> dict[Key, Pair]:
    """Every image with every later one, in each of that one's orientations; `chance` takes in some of them."""
    n, places = len(seen.cells), centred(seen)
    near = None
    if rules.reach is not None:
        apart = np.abs(places[:, None] - places[None])
        near = torch.from_numpy(apart <= rules.reach)
    everything = [[seen.of(i, way) for way in range(len(ways))] for i in range(n)]
    inside = torch.from_numpy(seen.seen)
    pairs: dict[Key, Pair] = {}
    step = max(1, n * (n - 1) // 2 // _CHANCE_PAIRS)
    for a in range(n):
        for b in range(a + 1, n):
            for way in range(len(ways)):
                allowed = inside[a, 0][:, None] & inside[b, way][None]
                if near is not None:
                    allowed = allowed & near
                own, other = everything[a][0], everything[b][way]
                rows, columns, alike = mutual(own, other, allowed)
                ours, theirs = places[rows], places[columns]
                if rules.reach is not None:  # a fine look: both ends of a match lie between cells, half of it each
                    ours = ours + between(own, other, rows, columns, seen.grid) * seen.cell / 2
                    theirs = theirs + between(other, own, columns, rows, seen.grid) * seen.cell / 2
                pair = pairs[a, b, way] = agree(ours, theirs, alike, rules, seen.side, _seed(seed, a, b, way))
                if chance is not None and way == 0 and (a + b) % step == 0:
                    chance.add(ours, theirs, alike, pair, rules, seen.side)
    return pairs


def _seed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def centred(seen: Look) -> np.ndarray:
    """(L,) complex: the cells' centres about the centre of the view."""
    middle = (seen.side - 1) / 2
    return np.asarray((seen.places[:, 0] - middle) + 1j * (seen.places[:, 1] - middle))


def _poses(
    seen: Look, pairs: Mapping[Key, Pair], chosen: np.ndarray, ways: Sequence[int], tolerance: float
) -> tuple[np.ndarray, np.ndarray, Matches]:
    """Similarities common_from_view, the share of each image's matches that meet, and the matches."""
    z, t = tree(pairs, chosen, ways)
    usual = np.exp(np.median(np.log(np.abs(z))))
    rows = [[[c.real, -c.imag, d.real], [c.imag, c.real, d.imag], [0, 0, 1]] for c, d in zip(z, t, strict=True)]
    begin = np.array(rows)
    begin[:, :2] /= usual
    begin[:, :2, 2] -= np.median(begin[:, :2, 2], axis=0)
    matches = matches_of(pairs, chosen, ways)
    poses, agreement = meet(matches, begin, "similarity", tolerance, seen.side / 2)
    # The usual size and place stay those of the start.
    poses[:, :2] /= np.exp(np.median(np.log(np.abs(np.linalg.det(poses[:, :2, :2])))) / 2)
    poses[:, :2, 2] -= np.median(poses[:, :2, 2], axis=0)
    return poses, agreement, matches


def centring(side: int) -> tuple[np.ndarray, np.ndarray]:
    """(3, 3) each: pixels of a view → pixels about its centre, and back."""
    to_centre, back = np.eye(3), np.eye(3)
    to_centre[:2, 2], back[:2, 2] = -(side - 1) / 2, (side - 1) / 2
    return to_centre, back


def moved(
    poses: np.ndarray, window: Window, side: int, chosen: np.ndarray, ways: Sequence[int], found: np.ndarray
) -> np.ndarray:
    """stack_from_frame after images were made upright and moved: found (n, 3, 3) is common_from_view, centred."""
    frame_from_view = window.frame_from_view(side)
    to_centre, back = centring(side)
    view_from_upright = np.array([np.linalg.inv(upright_from_source(ways[one], (side, side))) for one in chosen])
    upright_from_common = back @ np.linalg.inv(found) @ to_centre
    return normalise(poses @ frame_from_view @ view_from_upright @ upright_from_common @ np.linalg.inv(frame_from_view))


def object_window(matches: Matches, poses: np.ndarray, window: Window, side: int) -> Window:
    """Where the matches that meet gather, in the frame."""
    if not len(matches.a):
        return window
    places = []
    for points, images in zip((matches.a, matches.b), matches.images, strict=True):
        own = poses[images]
        both = [own[:, row, 0] * points.real + own[:, row, 1] * points.imag + own[:, row, 2] for row in (0, 1)]
        places.append(np.stack(both, 1))
    apart = np.linalg.norm(places[0] - places[1], axis=1)
    weight = matches.weight / (1 + (apart / (TOLERANCE * side)) ** 2) ** 2
    middle = (places[0] + places[1]) / 2
    low, high = (np.array([_quantile(middle[:, k], weight, q) for k in (0, 1)]) for q in (_QUANTILE, 1 - _QUANTILE))
    half = max(_MARGIN * float((high - low).max()) / 2, 0.1 * side)
    step = 2 * window.half / side
    centre = (low + high) / 2 * step
    return Window(window.x + float(centre[0]), window.y + float(centre[1]), half * step)


def _quantile(values: np.ndarray, weight: np.ndarray, share: float) -> float:
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weight[order])
    return float(values[order][min(len(values) - 1, int(np.searchsorted(total, share * total[-1])))])


@dataclass(frozen=True)
class Template:
    """What the set shows on average: cells (L, K) of length 1, and (L,) how much images agree there, from 0 to 1."""

    cells: torch.Tensor
    weight: torch.Tensor
    basis: Basis
    window: Window

    @classmethod
    def of(cls, seen: Look, window: Window, chosen: np.ndarray, poses: np.ndarray, agreement: np.ndarray) -> Template:
        """The mean of the images whose matches meet, moved by poses common_from_view, centred."""
        trusted = np.flatnonzero(agreement >= _TRUSTED * np.median(agreement))
        to_centre, back = centring(seen.side)
        total = torch.zeros(seen.cells.shape[2:])
        for i in trusted.tolist():
            cells, _ = seen.moved(i, int(chosen[i]), back @ np.linalg.inv(poses[i]) @ to_centre)
            total = total + cells
        length = total.norm(dim=1)
        return cls(total / length.clamp(min=1e-6)[:, None], length / max(1, len(trusted)), seen.basis, window)


def place_one(seen: Look, row: int, template: Template, ways: Sequence[int], rules: Rules) -> tuple[int, Pair]:
    """Which orientation of an image matches the template best, and how: a are places of the template."""
    places = centred(seen)
    near = torch.ones(len(places), len(places), dtype=torch.bool)
    if rules.reach is not None:
        near = torch.from_numpy(np.abs(places[:, None] - places[None]) <= rules.reach)
    strong = template.weight > 0.3 * template.weight.max()
    found = []
    for way in range(len(ways)):
        allowed = near & strong[:, None] & torch.from_numpy(seen.seen[row, way])[None]
        own = seen.of(row, way)
        rows, columns, alike = mutual(template.cells, own, allowed)
        theirs = places[columns]
        if rules.reach is not None:
            theirs = theirs + between(own, template.cells, columns, rows, seen.grid) * seen.cell
        found.append(agree(places[rows], theirs, alike, rules, seen.side, 0))
    scores = [pair.score for pair in found]
    best = int(np.argmax(scores))
    if scores[best] < (1 + PLAIN_UNLESS) * scores[0]:
        best = 0
    return best, found[best]
