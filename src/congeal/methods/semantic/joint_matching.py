"""Joint matching: poses of a set of images of one kind of object, from the feature matches of all pairs.

Two passes. The first matches whole images, every pair of them, also mirrored or rotated where that is allowed;
orientations and similarities are synchronised over all pairs. The window that holds most matches is the object. The
second pass matches the object's window in the common frame: matches are finer and searched nearby, and poses may be
affine or homographies.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch

from congeal.execution.threads import single_torch_thread
from congeal.geometry import corners, map_points, normalise
from congeal.geometry.orientation import orientations, upright_from_source
from congeal.images import Stack
from congeal.methods.fit_context import FitContext
from congeal.methods.semantic.edge_refinement import EdgeTemplate, refine_unless_worse
from congeal.methods.semantic.extractors import Extractor
from congeal.methods.semantic.feature_maps import (
    FeatureMaps,
    FeatureTemplate,
    Window,
    centring_matrices,
    compute_feature_maps,
)
from congeal.methods.semantic.feature_matching import (
    MATCH_TOLERANCE,
    MatchRules,
    PairMatches,
    consensus_similarity,
    mutual_nearest_neighbours,
    subcell_offset,
)
from congeal.methods.semantic.group_synchronisation import (
    MIN_REORIENTATION_GAIN,
    MatchGraph,
    PairKey,
    choose_orientations,
    match_graph,
    pose_errors,
    spanning_tree_poses,
    synchronise_poses,
)
from congeal.rows import evenly_spaced_rows

FOLLOWED_SHARE = 0.3
"""Least share of pairs whose matches follow the image content when the window moves: noise of seven kinds 0 to 0.04,
birds, cars, bottles and faces 0.57 and more."""
FINE_MATCH_REACH, FINE_MATCH_TOLERANCE = 0.3, 0.05
"""Shares of the view's side: largest distance of matched points in the second pass, and its tolerance (chosen by
judgement: four and two thirds of the first pass's tolerance)."""
FINE_REGULARISATION = 0.02
"""Weight of the first pass's pose in the second, relative to a usual image's matches: few matches must not bend it
(chosen by judgement)."""


class JointMatch(NamedTuple):
    """Poses (n, 3, 3) stack_from_frame, with a negative determinant where an image is mirrored; the standard error (n,)
    of a frame corner in stack pixels, NaN where matches are too few; the agreement of matches relative to that of
    shuffled ones; templates of the whole frame and of the object's window; the gain of feature likeness by the edge
    refinement, and its template, None if it was rejected."""

    poses: np.ndarray
    error: np.ndarray
    agreement_ratio: float
    frame: FeatureTemplate
    object: FeatureTemplate
    edge_gain: float
    edges: EdgeTemplate | None


def match_jointly(
    stack: Stack,
    extractor: Extractor,
    *,
    mirror: bool,
    turns: bool,
    motion: str,
    seed: int,
    context: FitContext,
) -> JointMatch:
    """Estimate the poses of all images of a stack from its start poses."""
    start, whole = np.asarray(stack.start, dtype=np.float64), Window.whole(stack.frame)
    ways = orientations(mirror=mirror, turns=turns)
    first = compute_feature_maps(stack, start, whole, extractor, ways, quiet=context.quiet)
    with single_torch_thread():
        rules = MatchRules(MATCH_TOLERANCE * first.side, np.pi / 4 if turns else np.pi / 3)
        null: list[tuple[float, float]] = []
        pairs = match_all_pairs(first, ways, rules, seed, null)
        chosen = choose_orientations(pairs, len(stack), ways)
        matches = match_graph(pairs, chosen, ways)
        poses, agreement = _similarities(matches, rules.tolerance, first.side)
        context.note(agreement=float(agreement.mean()))
        found = compose_poses(start, whole, first.side, chosen, ways, poses)
        window = estimate_object_window(matches, poses, whole, first.side)
        rough = FeatureTemplate.of(first, whole, chosen, poses, agreement)
    # Both tests are needed: noise agrees ten times as often as by chance, but on positions in the picture.
    follow = shift_following_share(stack, found, window, extractor, first, rules)
    observed, shuffled = np.sum(null, axis=0)
    chance = float(observed / shuffled) if follow >= FOLLOWED_SHARE and shuffled > 0 else 0.0
    context.note(above_chance=chance)
    second = compute_feature_maps(stack, found, window, extractor, quiet=context.quiet)
    with single_torch_thread():
        rules = MatchRules(FINE_MATCH_TOLERANCE * second.side, np.pi / 4, (0.6, 1.7), FINE_MATCH_REACH * second.side)
        pairs, upright = match_all_pairs(second, (0,), rules, seed), np.zeros(len(stack), dtype=int)
        matches = match_graph(pairs, upright, (0,))
        begin = np.broadcast_to(np.eye(3), (len(stack), 3, 3))
        poses, agreement = synchronise_poses(
            matches, begin, motion, rules.tolerance, second.side / 2, FINE_REGULARISATION
        )
        context.note(agreement=float(agreement.mean()))
        begun, found = found, compose_poses(found, window, second.side, upright, (0,), poses)
        where = frame_corners_in_view(stack.frame, window, second.side)
        unsure = pose_errors(matches, poses, where, motion, rules.tolerance, second.side, max(second.grid))
        template = FeatureTemplate.of(second, window, upright, poses, agreement)
        found, last = refine_unless_worse(stack, second, window, begun, found, template, agreement)
    unsure = error_in_stack_px(unsure, found, window, second.side)
    return JointMatch(found, unsure, chance, rough, template, *last)


def frame_corners_in_view(frame: tuple[int, int], window: Window, side: int) -> np.ndarray:
    """(4, 2) the corners of the frame in a view of the window, about its centre."""
    return np.asarray(map_points(np.linalg.inv(window.frame_from_view(side)), corners(frame)) - (side - 1) / 2)


def error_in_stack_px(error: np.ndarray, poses: np.ndarray, window: Window, side: int) -> np.ndarray:
    """(n,) errors in pixels of a view, converted to pixels of the stack by stack_from_frame poses."""
    return np.asarray(error * (2 * window.half / side) * np.sqrt(np.abs(np.linalg.det(poses[:, :2, :2]))))


def shift_following_share(
    stack: Stack, poses: np.ndarray, window: Window, extractor: Extractor, seen: FeatureMaps, rules: MatchRules
) -> float:
    """The share of pairs whose matches follow the content when the window is shifted, under the first poses.

    Features depend a little on the position in the picture, and all images have a border. Where images have nothing
    else in common, these match, and do not follow a shift. So two windows inside the object's are compared, one shifted
    against the other.
    """
    few = evenly_spaced_rows(len(stack), 8)
    some = stack if len(few) == len(stack) else stack.some(few)
    step, half = 0.15 * window.half, 0.5 * window.half
    here, there = (
        compute_feature_maps(
            some, poses[few], Window(window.x + way * step, window.y + way * step, half), extractor, basis=seen.basis
        )
        for way in (-1, 1)
    )
    shift = complex(1, 1) * step / half * here.side

    def similarity(a: int, b: int, other: FeatureMaps) -> PairMatches:
        allowed = torch.from_numpy(here.seen[a, 0][:, None] & other.seen[b, 0][None])
        return match_cells(here, here.of(a), other.of(b), allowed, rules)

    along = []
    with single_torch_thread():
        for a, b in combinations(range(len(few)), 2):
            first, second = similarity(a, b, here), similarity(a, b, there)
            if first.score > 0 and second.score > 0:
                along.append(((first.t - second.t) * np.conj(shift)).real / abs(shift) ** 2)
    return float(np.mean(np.array(along) > 0.5)) if along else 0.0


def match_all_pairs(
    seen: FeatureMaps, ways: Sequence[int], rules: MatchRules, seed: int, null: list[tuple[float, float]] | None = None
) -> dict[PairKey, PairMatches]:
    """Matches of every image with every later one in each orientation.

    null: a list that is filled with the scores of some pairs, and their scores after the points were shuffled.
    """
    n, near = len(seen.cells), cells_in_reach(seen, rules)
    everything = [[seen.of(i, way) for way in range(len(ways))] for i in range(n)]
    inside = torch.from_numpy(seen.seen)
    pairs: dict[PairKey, PairMatches] = {}
    step = max(1, n * (n - 1) // 2 // 64)  # some 64 pairs for the null model
    subcell = (0.0, 0.0) if rules.reach is None else (0.5, 0.5)  # both points of a match get half of the offset
    for a, b in combinations(range(n), 2):
        for way in range(len(ways)):
            allowed = near & inside[a, 0][:, None] & inside[b, way][None]
            views = (seen, everything[a][0], everything[b][way], allowed, rules)
            own_seed = int(np.random.SeedSequence((seed, a, b, way)).generate_state(1)[0])
            pairs[a, b, way] = match_cells(*views, own_seed, subcell)
            if null is not None and way == 0 and (a + b) % step == 0:
                null.append((pairs[a, b, way].score, match_cells(*views, 0, subcell, shuffled=True).score))
    return pairs


def match_cells(
    seen: FeatureMaps,
    own: torch.Tensor,
    other: torch.Tensor,
    allowed: torch.Tensor,
    rules: MatchRules,
    seed: int = 0,
    subcell: tuple[float, float] = (0.0, 0.0),
    *,
    shuffled: bool = False,
) -> PairMatches:
    """Matches of the cells (L, K) of two views like `seen`; subcell: the shares of the offset within a cell that points
    of each get; shuffled: as if every point matched another one."""
    places = centred_cells(seen)
    rows, columns, alike = mutual_nearest_neighbours(own, other, allowed)
    ours, theirs = places[rows], places[columns]
    if subcell[0]:
        ours = ours + subcell_offset(own, other, rows, columns, seen.grid) * seen.cell * subcell[0]
    if subcell[1]:
        theirs = theirs + subcell_offset(other, own, columns, rows, seen.grid) * seen.cell * subcell[1]
    if shuffled:
        theirs = np.random.default_rng(len(theirs)).permutation(theirs)
    return consensus_similarity(ours, theirs, alike, rules, seen.side, seed)


def cells_in_reach(seen: FeatureMaps, rules: MatchRules) -> torch.Tensor:
    """(L, L) bool: cells of two views that may match by their distance."""
    places = centred_cells(seen)
    return torch.from_numpy(np.abs(places[:, None] - places) <= (np.inf if rules.reach is None else rules.reach))


def centred_cells(seen: FeatureMaps) -> np.ndarray:
    """(L,) complex: the cells' centres about the centre of the view."""
    middle = (seen.side - 1) / 2
    return np.asarray((seen.places[:, 0] - middle) + 1j * (seen.places[:, 1] - middle))


def _similarities(matches: MatchGraph, tolerance: float, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Similarities common_from_view, and the share of each image's matches that agree."""
    z, t = spanning_tree_poses(matches)
    usual = np.exp(np.median(np.log(np.abs(z))))
    rows = [[[c.real, -c.imag, d.real], [c.imag, c.real, d.imag], [0, 0, 1]] for c, d in zip(z, t, strict=True)]
    begin = np.array(rows)
    begin[:, :2] /= usual
    begin[:, :2, 2] -= np.median(begin[:, :2, 2], axis=0)
    poses, agreement = synchronise_poses(matches, begin, "similarity", tolerance, side / 2)
    # The median size and position stay those of the start.
    poses[:, :2] /= np.exp(np.median(np.log(np.abs(np.linalg.det(poses[:, :2, :2])))) / 2)
    poses[:, :2, 2] -= np.median(poses[:, :2, 2], axis=0)
    return poses, agreement


def compose_poses(
    poses: np.ndarray, window: Window, side: int, chosen: np.ndarray, ways: Sequence[int], found: np.ndarray
) -> np.ndarray:
    """stack_from_frame after images were reoriented and registered: found (n, 3, 3) is common_from_view, centred."""
    frame_from_view = window.frame_from_view(side)
    to_centre, back = centring_matrices(side)
    view_from_upright = np.array([np.linalg.inv(upright_from_source(ways[one], (side, side))) for one in chosen])
    upright_from_common = back @ np.linalg.inv(found) @ to_centre
    return normalise(poses @ frame_from_view @ view_from_upright @ upright_from_common @ np.linalg.inv(frame_from_view))


def estimate_object_window(matches: MatchGraph, poses: np.ndarray, window: Window, side: int) -> Window:
    """The window of the frame that holds most of the matches that agree."""
    if not len(matches.a):
        return window
    places = matches.common_points(poses)
    apart = np.linalg.norm(places[0] - places[1], axis=1)
    weight = matches.weight / (1 + (apart / (MATCH_TOLERANCE * side)) ** 2) ** 2
    middle = (places[0] + places[1]) / 2
    low, high = (np.array([_quantile(middle[:, k], weight, q) for k in (0, 1)]) for q in (0.03, 0.97))
    half = max(1.25 * float((high - low).max()) / 2, 0.1 * side)
    step = 2 * window.half / side
    centre = (low + high) / 2 * step
    return Window(window.x + float(centre[0]), window.y + float(centre[1]), half * step)


def _quantile(values: np.ndarray, weight: np.ndarray, share: float) -> float:
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weight[order])
    return float(values[order][min(len(values) - 1, int(np.searchsorted(total, share * total[-1])))])


def match_template(
    seen: FeatureMaps, row: int, template: FeatureTemplate, ways: Sequence[int], rules: MatchRules
) -> tuple[int, PairMatches]:
    """The orientation of an image that matches the template best, and its matches; a are points of the template."""
    near = cells_in_reach(seen, rules) & (template.weight > 0.3 * template.weight.max())[:, None]
    subcell = (0.0, 0.0 if rules.reach is None else 1.0)
    found = []
    for way in range(len(ways)):
        allowed = near & torch.from_numpy(seen.seen[row, way])[None]
        found.append(match_cells(seen, template.cells, seen.of(row, way), allowed, rules, subcell=subcell))
    scores = [pair.score for pair in found]
    best = int(np.argmax(scores))
    if scores[best] < (1 + MIN_REORIENTATION_GAIN) * scores[0]:
        best = 0
    return best, found[best]
