"""Group synchronisation: one orientation and one pose for every image, from the matches of all pairs of images.

A single pair is often wrong; all pairs together are not. Orientations maximise the sum of the scores of all pairs.
Poses minimise the robust squared distance of matched points in the common view. Points are complex numbers x + iy about
the centre of a view, in pixels; poses are common_from_view about the centres.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

from congeal.geometry import map_points, matrix_from_parameters, n_parameters, parameters_from_matrix
from congeal.geometry.orientation import MIRROR, upright_from_source
from congeal.methods.semantic.feature_matching import PairMatches
from congeal.registration.gauss_newton import point_motion
from congeal.rows import evenly_spaced_rows

MIN_REORIENTATION_GAIN = 0.05
"""Share by which the score of another orientation must exceed that of the plain one: objects that look the same from
both sides match both ways and should stay as they are (chosen by judgement)."""
MAX_SWEEPS = 30
"""Sweeps over all orientations: a bound against cycles (chosen by judgement)."""
INITIAL_IMAGES = 16
"""Images from which orientations are initialised, each as the upright one: one good image among them is enough (chosen
by judgement)."""
MIN_REGULARISATION = 2e-3
"""Weight of the initial pose relative to a usual image's matches: it only decides where there are no matches."""
SUBCELL_ERROR = 1 / 8
"""Standard error of a matched point, in cells of the network: measured on synthetic birds with known poses."""
BLOCKS = 5
"""Blocks along a view whose matches have one common error: about the size of the parts of an animal (chosen by
judgement)."""

PairKey = tuple[int, int, int]  # image a, image b, number of b's orientation


# ---- orientations


def relative_orientations(ways: Sequence[int]) -> np.ndarray:
    """(O, O) the orientation of image b that matches image a unchanged, if g_a makes a upright and g_b makes b so."""
    matrices = [upright_from_source(way, (1, 1))[:2, :2].round().astype(int) for way in ways]
    known = {one.tobytes(): number for number, one in enumerate(matrices)}
    return np.array([[known[(a.T @ b).astype(int).tobytes()] for b in matrices] for a in matrices])


def choose_orientations(pairs: Mapping[PairKey, PairMatches], n: int, ways: Sequence[int]) -> np.ndarray:
    """(n,) the number, in `ways`, of each image's orientation. The plain one (0) is that of most images."""
    inverse = relative_orientations(ways)[:, 0]
    score = np.zeros((n, n, len(ways)))
    for (a, b, way), pair in pairs.items():
        score[a, b, way] = score[b, a, inverse[way]] = pair.score
    return synchronise_orientations(score, ways)


def synchronise_orientations(score: np.ndarray, ways: Sequence[int]) -> np.ndarray:
    """(n,) the orientation numbers with the largest total score.

    score (n, n, O): how well image b in each orientation matches image a unchanged.
    """
    n, rows = len(score), np.arange(len(score))
    if len(ways) == 1:
        return np.zeros(n, dtype=int)
    table = relative_orientations(ways)
    score = score / np.maximum(score.sum(2, keepdims=True), 1e-9)
    score[rows, rows] = 0

    def score_of(a: int, way: int, chosen: np.ndarray) -> float:
        return float(score[a, rows, table[way, chosen]].sum())

    def coordinate_ascent(chosen: np.ndarray) -> tuple[float, np.ndarray]:
        for _ in range(MAX_SWEEPS):
            before = chosen.copy()
            for a in range(n):
                scores = [score_of(a, way, chosen) for way in range(len(ways))]
                if max(scores) > scores[chosen[a]] + 1e-9:
                    chosen[a] = int(np.argmax(scores))
            if (before == chosen).all():
                break
        return sum(score_of(a, int(chosen[a]), chosen) for a in range(n)), chosen

    # From several images as the upright one: one start may end with half of the set the wrong way round.
    roots = evenly_spaced_rows(n, INITIAL_IMAGES)
    _, chosen = max((coordinate_ascent(score[root].argmax(1)) for root in roots), key=lambda one: one[0])
    usual = int(np.bincount(chosen, minlength=len(ways)).argmax())
    chosen = np.array([table[usual, one] for one in chosen])
    for a in np.flatnonzero(chosen).tolist():
        best = score_of(a, int(chosen[a]), chosen)
        if best - score_of(a, 0, chosen) < MIN_REORIENTATION_GAIN * best:
            chosen[a] = 0
    return chosen


def reorient_points(points: np.ndarray, way: int) -> np.ndarray:
    """Points (M,) complex of a square view after the orientation is applied to it."""
    return (-np.conj(points) if way >= MIRROR else points) * 1j ** (way % 4)


# ---- poses


@dataclass(frozen=True)
class MatchGraph:
    """Matches of E pairs of images, pair after pair.

    a, b (M,): matched points in upright views. weight (M,). begins (E,): where the matches of each pair begin. first,
    second (E,): the images of each pair. n: the number of images. similarities (E, 2) complex: z and t of each pair, b
    = z·a + t. scores (E,): of each pair.
    """

    a: np.ndarray
    b: np.ndarray
    weight: np.ndarray
    begins: np.ndarray
    first: np.ndarray
    second: np.ndarray
    n: int
    similarities: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), complex))
    scores: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @property
    def images(self) -> tuple[np.ndarray, np.ndarray]:
        """(M,) each: the images of every match."""
        counts = np.diff(np.append(self.begins, len(self.a)))
        return np.repeat(self.first, counts), np.repeat(self.second, counts)

    def per_image(self, weight: np.ndarray) -> np.ndarray:
        """(n,) the total weight of the matches of each image."""
        first, second = self.images
        return np.bincount(first, weight, self.n) + np.bincount(second, weight, self.n)

    def common_points(self, poses: np.ndarray) -> list[np.ndarray]:
        """(M, 2) twice: both points of every match in the common view."""
        return [map_complex_points(poses[i], p) for p, i in zip((self.a, self.b), self.images, strict=True)]


def match_graph(pairs: Mapping[PairKey, PairMatches], chosen: np.ndarray, ways: Sequence[int]) -> MatchGraph:
    """The matches that are consistent with the chosen orientations, in upright views."""
    table = relative_orientations(ways)
    used = {
        (a, b): pair
        for (a, b, way), pair in sorted(pairs.items())
        if way == table[chosen[a], chosen[b]] and len(pair.a) >= 4
    }
    if not used:
        return MatchGraph(*(np.zeros(0, complex),) * 2, np.zeros(0), *(np.zeros(0, int),) * 3, len(chosen))
    own = [ways[chosen[a]] for a, _ in used]
    points = [
        np.concatenate([reorient_points(side, way) for side, way in zip(sides, own, strict=True)])
        for sides in zip(*((pair.a, pair.b) for pair in used.values()), strict=True)
    ]
    sizes, scores = (np.array(one) for one in zip(*((len(p.a), p.score) for p in used.values()), strict=True))
    # Matches of a pair that agrees on few of them have less weight each.
    weight = np.concatenate([pair.weight for pair in used.values()]) * np.repeat(scores / sizes, sizes)
    similarities = [
        (np.conj(pair.z) if way >= MIRROR else pair.z, reorient_points(np.array(pair.t), way).item())
        for pair, way in zip(used.values(), own, strict=True)
    ]
    first, second = np.array(list(used)).T
    begins = np.cumsum(sizes) - sizes
    return MatchGraph(points[0], points[1], weight, begins, first, second, len(chosen), np.array(similarities), scores)


def spanning_tree_poses(matches: MatchGraph) -> tuple[np.ndarray, np.ndarray]:
    """Initial similarities (n,) z and t of upright views, common = z·view + t, along the maximum spanning tree of the
    scores of pairs, from the image with the largest total score."""
    n, edges = matches.n, (matches.first, matches.second)
    weight = csr_matrix((matches.scores, edges), shape=(n, n))
    root = int((weight.sum(1).A1 + weight.sum(0).A1).argmax())
    order, parents = breadth_first_order(minimum_spanning_tree(-weight), root, directed=False)
    z, t = np.ones(n, complex), np.zeros(n, complex)
    number = {pair: k for k, pair in enumerate(zip(*(one.tolist() for one in edges), strict=True))}
    for new in order[1:].tolist():
        parent = int(parents[new])
        own_z, own_t = matches.similarities[number[min(parent, new), max(parent, new)]]
        if parent < new:  # the similarity maps the first view to the second
            own_z, own_t = 1 / own_z, -own_t / own_z
        z[new], t[new] = z[parent] * own_z, z[parent] * own_t + t[parent]
    return z, t


def synchronise_poses(
    matches: MatchGraph,
    begin: np.ndarray,
    motion: str,
    tolerance: float,
    unit: float,
    regularisation: float = MIN_REGULARISATION,
) -> tuple[np.ndarray, np.ndarray]:
    """Poses (n, 3, 3) that minimise the distance of matches, and (n,) the share of each image's matches that agree.

    begin (n, 3, 3): initial poses. motion: similarity, affine or homography. tolerance, unit: in pixels; unit is half a
    view. regularisation: weight of the initial poses, relative to a usual image's matches.
    """
    is_similarity = motion == "similarity"
    one = np.ones(len(matches.a))
    points = [
        np.stack([places, one] if is_similarity else [places.real, places.imag, one], 1)
        for places in (matches.a / unit, matches.b / unit)
    ]
    first = np.stack([_unknowns(one, is_similarity, unit) for one in begin])
    solution, images = first.copy(), matches.images
    usual = matches.per_image(matches.weight).mean() if len(matches.a) else 1.0
    weight = matches.weight
    for step in range(30):
        there = [np.einsum("mk,mkc->mc", p, solution[i]) for p, i in zip(points, images, strict=True)]
        error = np.sqrt((np.abs(there[0] - there[1]) ** 2).sum(1)) * unit
        width = tolerance * max(1.0, 3 * (1 - step / 12))  # wide at first, so that distant images are attracted
        weight = _robust_weight(matches, error, width)
        support = np.maximum(matches.per_image(weight), 1e-6 * usual)
        normal = _normal_matrix(matches, [one[:, None] for one in points], weight)
        # The mean pose, weighted by support, stays that of the initial poses: else everything would shrink to a point.
        mean = np.einsum("n,nkc->kc", support / support.sum(), first)
        solution = _solve_with_gauge(normal, regularisation * usual * first, regularisation * usual, support, mean)
    poses = np.stack([_pose(one, is_similarity, unit) for one in solution])
    if motion == "homography":
        poses, weight = _refine_homographies(matches, poses, begin, tolerance, unit, regularisation * usual)
    return poses, matches.per_image(weight) / np.maximum(matches.per_image(matches.weight), 1e-9)


def _robust_weight(matches: MatchGraph, error: np.ndarray, tolerance: float) -> np.ndarray:
    """(M,) weights of matches with these errors, by the Geman-McClure function."""
    return np.asarray(matches.weight / (1 + (error / tolerance) ** 2) ** 2)


def _refine_homographies(
    matches: MatchGraph, poses: np.ndarray, begin: np.ndarray, tolerance: float, unit: float, regularisation: float
) -> tuple[np.ndarray, np.ndarray]:
    """Homographies that minimise the distance of matches, from affine poses, and the weight of every match."""
    weight, k = matches.weight, n_parameters("homography")
    for _ in range(8):
        there = matches.common_points(poses)
        apart = (there[0] - there[1]) / unit
        weight = _robust_weight(matches, np.linalg.norm(apart, axis=1) * unit, tolerance)
        support = np.maximum(matches.per_image(weight), 1e-9)
        jacobians = [_motion_jacobian(one, unit, "homography") for one in there]
        gradient = np.zeros((len(poses), k))
        for own, image, sign in zip(jacobians, matches.images, (-1, 1), strict=True):
            np.add.at(gradient, image, sign * np.einsum("m,mck,mc->mk", weight, own, apart))
        apart_from_begin = _rescale(poses @ np.linalg.inv(begin), 1 / unit)
        gradient -= regularisation * parameters_from_matrix(torch.from_numpy(apart_from_begin)).numpy()
        normal = _normal_matrix(matches, jacobians, weight)
        step = _solve_with_gauge(normal, gradient[..., None], regularisation, support, np.zeros((k, 1)))
        poses = _compose_homographies(poses, step[..., 0], unit)
    return poses, weight


def _motion_jacobian(places: np.ndarray, unit: float, motion: str) -> np.ndarray:
    """(M, 2, k) derivative of points (M, 2), in units, by each parameter of a motion; unit is half a view."""
    size = round(2 * unit)
    moves = point_motion(torch.from_numpy(places + (size - 1) / 2), (size, size), motion)
    return np.asarray(moves.permute(1, 2, 0).numpy() / (size / 2))


def map_complex_points(poses: np.ndarray, places: np.ndarray) -> np.ndarray:
    """(M, 2) points (M,) complex under one pose each, (M, 3, 3)."""
    return np.asarray(map_points(poses, np.stack([places.real, places.imag], -1)[:, None])[:, 0])


def _compose_homographies(poses: np.ndarray, parameters: np.ndarray, unit: float) -> np.ndarray:
    """Poses (n, 3, 3) after steps (n, 8) of the common view, whose perspective is limited so that it does not fold."""
    steep = np.abs(parameters[:, 6:]).sum(1, keepdims=True)
    limited = parameters[:, 6:] * np.minimum(1, 0.5 / np.maximum(steep, 1e-9))  # from 1 on the view folds
    step = matrix_from_parameters(torch.from_numpy(np.concatenate([parameters[:, :6], limited], 1)))
    found = _rescale(step.numpy(), unit) @ poses
    return np.asarray(found / found[:, 2:, 2:])


def _rescale(matrices: np.ndarray, unit: float) -> np.ndarray:
    scale = np.array([unit, unit, 1.0])
    return np.asarray(scale[:, None] * matrices / scale)


def _unknowns(pose: np.ndarray, is_similarity: bool, unit: float) -> np.ndarray:
    """(k, c) of a pose: z, t of a similarity, or the transposed rows of an affine one."""
    if is_similarity:
        return np.array([[pose[0, 0] + 1j * pose[1, 0]], [(pose[0, 2] + 1j * pose[1, 2]) / unit]])
    return np.array([pose[:2, 0], pose[:2, 1], pose[:2, 2] / unit])


def _pose(unknowns: np.ndarray, is_similarity: bool, unit: float) -> np.ndarray:
    """The inverse of `_unknowns`."""
    if is_similarity:
        (z,), (t,) = unknowns
        return np.array([[z.real, -z.imag, t.real * unit], [z.imag, z.real, t.imag * unit], [0, 0, 1]])
    return np.vstack([np.column_stack([unknowns[0], unknowns[1], unknowns[2] * unit]), [0, 0, 1]])


def _normal_matrix(matches: MatchGraph, points: list[np.ndarray], weight: np.ndarray) -> np.ndarray:
    """(n, n, k, k) of equations a·x[first] = b·x[second], points a and b (M, r, k)."""
    k = points[0].shape[-1]
    normal = np.zeros((matches.n, matches.n, k, k), points[0].dtype)
    a, b = points
    for one, other, rows, cols, sign in (
        (a, a, matches.first, matches.first, 1),
        (b, b, matches.second, matches.second, 1),
        (a, b, matches.first, matches.second, -1),
        (b, a, matches.second, matches.first, -1),
    ):
        products = np.einsum("m,mri,mrj->mij", weight, np.conj(one), other)
        if len(products):
            np.add.at(normal, (rows, cols), sign * np.add.reduceat(products, matches.begins, axis=0))
    return normal


def _solve_with_gauge(
    normal: np.ndarray, right: np.ndarray, regularisation: float, support: np.ndarray, mean: np.ndarray
) -> np.ndarray:
    """(n, k, c) unknowns whose mean, weighted by support, is `mean` (k, c)."""
    n, k, columns = right.shape
    system = normal.transpose(0, 2, 1, 3).reshape(n * k, n * k) + regularisation * np.eye(n * k)
    gauge = ((support / support.sum())[:, None, None] * np.eye(k)).reshape(n * k, k)
    whole = np.block([[system, gauge], [gauge.T, np.zeros((k, k))]])
    equal = np.concatenate([right.reshape(n * k, columns), mean])
    return np.asarray(np.linalg.solve(whole, equal)[: n * k].reshape(n, k, columns))


# ---- error bars


def pose_errors(
    matches: MatchGraph, poses: np.ndarray, where: np.ndarray, motion: str, tolerance: float, side: int, cells: int
) -> np.ndarray:
    """(n,) the standard error of each pose at points `where` (P, 2) of the common view, in its pixels: `pose_error`.

    side: pixels along a view; cells: cells of the network along it.
    """
    images, there = matches.images, matches.common_points(poses)
    apart = there[0] - there[1]
    weight = _robust_weight(matches, np.linalg.norm(apart, axis=1), tolerance)
    found = []
    for image, pose in enumerate(poses):
        first, second = images[0] == image, images[1] == image
        own = np.concatenate([matches.a[first], matches.b[second]])
        residual = np.concatenate([apart[first], -apart[second]])
        own_weight = np.concatenate([weight[first], weight[second]])
        point_error = SUBCELL_ERROR * side / cells
        found.append(pose_error(own, residual, own_weight, pose, where, motion, side / 2, point_error))
    return np.array(found)


def pose_error(
    own: np.ndarray,
    residual: np.ndarray,
    weight: np.ndarray,
    pose: np.ndarray,
    where: np.ndarray,
    motion: str,
    unit: float,
    point_error: float,
) -> float:
    """The standard error of one pose, along an axis and in pixels of the common view, at points `where`.

    All matches that begin in the same part of the image have a common error. One block of the view therefore counts as
    one observation, and errors follow from the disagreement of blocks about the image's step (a sandwich estimate).
    Errors within a cell show in no match: every block may also err by `point_error`. NaN if there are too few blocks.

    own (M,) complex: points of the image's matches in its view. residual (M, 2): distance of each to its partner in the
    common view. where (P, 2) in the common view.
    """
    freedom = n_parameters(motion)
    jacobian = _motion_jacobian(map_complex_points(np.broadcast_to(pose, (len(own), 3, 3)), own), unit, motion)
    hessian = np.einsum("m,mci,mcj->ij", weight, jacobian, jacobian)
    column, row = (
        np.clip(((axis / unit + 1) / 2 * BLOCKS).astype(int), 0, BLOCKS - 1) for axis in (own.real, own.imag)
    )
    block = row * BLOCKS + column
    gradients, common = np.zeros((BLOCKS**2, freedom)), np.zeros((BLOCKS**2, 2, freedom))
    np.add.at(gradients, block, np.einsum("m,mci,mc->mi", weight, jacobian, residual / unit))
    np.add.at(common, block, weight[:, None, None] * jacobian * (point_error / unit))
    used = int((np.bincount(block, weight, BLOCKS**2) > 0.01 * weight.sum()).sum())
    if used < max(4, freedom / 2 + 1):
        return float("nan")
    scatter = gradients.T @ gradients * used / (used - freedom / 2) + np.einsum("bci,bcj->ij", common, common)
    inverse = np.linalg.pinv(hessian + 1e-6 * np.trace(hessian) / freedom * np.eye(freedom))
    there = _motion_jacobian(where, unit, motion)
    return float(np.sqrt(np.einsum("pci,ij,pcj->pc", there, inverse @ scatter @ inverse, there).mean()) * unit)
