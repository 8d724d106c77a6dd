"""One pose for every image from what pairs of images say: first which are mirrored or turned, then where each lies.

A pair is often wrong; all pairs together are not. Orientations are chosen so that the scores of all pairs add up to
most. Poses are those under which the matches of all pairs meet, by least squares in which what stays far apart counts
less and less. Places are complex numbers x + iy about the centre of a view.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from congeal.geometry import n_parameters
from congeal.geometry.orientation import MIRROR, upright_from_source
from congeal.solvers.bending import STEPS, bent, fields, moves_between, pose_error, shown_at
from congeal.solvers.pairing import Pair

PLAIN_UNLESS = 0.05
"""How much more of its matches an image must have in another orientation than in the plain one: things that are the
same from both sides match both ways, and are best left as they are."""
_SWEEPS = 30
_ROUNDS = 30  # of least squares
_WIDE = 3.0  # times the tolerance at first, so that far images are pulled in
_GRAIN = 1 / 8  # of a cell: what stays unknown of a place between cells, on painted birds whose poses are known
_LEAST_PULL = 2e-3  # towards where an image started, of a usual image's weight: for those that nothing holds

Key = tuple[int, int, int]  # of a pair: image a, image b, number of b's orientation


def relative(ways: Sequence[int]) -> np.ndarray:
    """(O, O) which orientation of image b matches image a as it is, if g_a makes a upright and g_b makes b upright."""
    matrices = [upright_from_source(way, (1, 1))[:2, :2].round().astype(int) for way in ways]
    known = {one.tobytes(): number for number, one in enumerate(matrices)}
    return np.array([[known[(a.T @ b).astype(int).tobytes()] for b in matrices] for a in matrices])


def choose_orientations(pairs: Mapping[Key, Pair], n: int, ways: Sequence[int]) -> np.ndarray:
    """(n,) the number, in `ways`, of each image's orientation. The plain one (0) is that of most images."""
    inverse = relative(ways)[:, 0]
    score = np.zeros((n, n, len(ways)))
    for (a, b, way), pair in pairs.items():
        score[a, b, way] = score[b, a, inverse[way]] = pair.score
    return orient(score, ways)


def orient(score: np.ndarray, ways: Sequence[int]) -> np.ndarray:
    """(n,) the numbers of the orientations that suit all pairs best.

    score (n, n, O): how well image b in each orientation matches image a as it is.
    """
    n, everyone = len(score), np.arange(len(score))
    if len(ways) == 1:
        return np.zeros(n, dtype=int)
    table = relative(ways)
    score = score / np.maximum(score.sum(2, keepdims=True), 1e-9)
    score[everyone, everyone] = 0

    def suits(a: int, way: int, chosen: np.ndarray) -> float:
        return float(score[a, everyone, table[way, chosen]].sum())

    def swept(chosen: np.ndarray) -> tuple[float, np.ndarray]:
        """Each image in turn to the orientation that suits the others best, until none wants to change."""
        for _ in range(_SWEEPS):
            before = chosen.copy()
            for a in range(n):
                gains = [suits(a, way, chosen) for way in range(len(ways))]
                if max(gains) > gains[chosen[a]] + 1e-9:
                    chosen[a] = int(np.argmax(gains))
            if (before == chosen).all():
                break
        return sum(suits(a, int(chosen[a]), chosen) for a in range(n)), chosen

    # From several images as the one that is upright: one sweep may end where half of the set is the wrong way round.
    roots = np.unique(np.linspace(0, n - 1, min(n, 16)).round().astype(int))
    _, chosen = max((swept(score[root].argmax(1)) for root in roots), key=lambda one: one[0])
    usual = int(np.bincount(chosen, minlength=len(ways)).argmax())
    chosen = np.array([table[usual, one] for one in chosen])
    for a in np.flatnonzero(chosen).tolist():
        best = suits(a, int(chosen[a]), chosen)
        if best - suits(a, 0, chosen) < PLAIN_UNLESS * best:
            chosen[a] = 0
    return chosen


def turned(places: np.ndarray, way: int) -> np.ndarray:
    """Places (M,) complex, about the centre of a square view, in the view that the orientation makes of it."""
    return (-np.conj(places) if way >= MIRROR else places) * 1j ** (way % 4)


@dataclass(frozen=True)
class Matches:
    """Matches of the pairs that are left, pair after pair: places a and b (M,) in upright views, their weight, and
    for each of the E pairs where its matches begin and its two images."""

    a: np.ndarray
    b: np.ndarray
    weight: np.ndarray
    begins: np.ndarray
    first: np.ndarray
    second: np.ndarray
    n: int

    @property
    def images(self) -> tuple[np.ndarray, np.ndarray]:
        """(M,) each: the images of every match."""
        counts = np.diff(np.append(self.begins, len(self.a)))
        return np.repeat(self.first, counts), np.repeat(self.second, counts)

    def per_image(self, weight: np.ndarray) -> np.ndarray:
        """(n,) the weights of the matches of each image."""
        first, second = self.images
        return np.bincount(first, weight, self.n) + np.bincount(second, weight, self.n)


def matches_of(pairs: Mapping[Key, Pair], chosen: np.ndarray, ways: Sequence[int]) -> Matches:
    """The matches that hold for the chosen orientations, in upright views."""
    table, parts = relative(ways), []
    for (a, b, way), pair in sorted(pairs.items()):
        if way == table[chosen[a], chosen[b]] and len(pair.a) >= 4:
            own = ways[chosen[a]]
            # A pair that agrees on little is less to be believed, match by match.
            trust = pair.weight * (pair.score / len(pair.a))
            parts.append((turned(pair.a, own), turned(pair.b, own), trust, a, b))
    if not parts:
        return Matches(*(np.zeros(0, complex),) * 2, np.zeros(0), *(np.zeros(0, int),) * 3, len(chosen))
    sizes = np.array([len(part[0]) for part in parts])
    ours, theirs, weight = (np.concatenate([part[k] for part in parts]) for k in range(3))
    first, second = (np.array([part[k] for part in parts]) for k in (3, 4))
    return Matches(ours, theirs, weight, np.cumsum(sizes) - sizes, first, second, len(chosen))


def tree(pairs: Mapping[Key, Pair], chosen: np.ndarray, ways: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """First similarities (n,) z and t of upright views: along the surest pairs, from the image that knows most others.

    common = z·view + t.
    """
    n, table = len(chosen), relative(ways)
    weight = np.zeros((n, n))
    for (a, b, way), pair in pairs.items():
        if way == table[chosen[a], chosen[b]]:
            weight[a, b] = weight[b, a] = pair.score
    z, t = np.ones(n, complex), np.zeros(n, complex)
    root = int(weight.sum(1).argmax())
    best, parent = weight[root].copy(), np.full(n, root)
    inside = np.arange(n) == root
    for _ in range(n - 1):
        new = int(np.where(inside, -1.0, best).argmax())
        if best[new] > 0:
            own_z, own_t = _between(pairs, int(parent[new]), new, chosen, table, ways)
            z[new], t[new] = z[parent[new]] * own_z, z[parent[new]] * own_t + t[parent[new]]
        inside[new] = True
        closer = weight[new] > best
        best, parent = np.where(closer, weight[new], best), np.where(closer, new, parent)
    return z, t


def _between(
    pairs: Mapping[Key, Pair], known: int, new: int, chosen: np.ndarray, table: np.ndarray, ways: Sequence[int]
) -> tuple[complex, complex]:
    """The similarity z, t of upright views: known = z·new + t."""
    a, b = min(known, new), max(known, new)
    pair = pairs[a, b, int(table[chosen[a], chosen[b]])]
    own = ways[chosen[a]]
    z = complex(np.conj(pair.z)) if own >= MIRROR else pair.z
    t = complex(turned(np.array([pair.t]), own)[0])
    return (z, t) if known == b else (1 / z, -t / z)


def meet(
    matches: Matches, begin: np.ndarray, motion: str, tolerance: float, unit: float, pull: float = _LEAST_PULL
) -> tuple[np.ndarray, np.ndarray]:
    """Poses (n, 3, 3), common_from_view about the centres, under which matches meet; and (n,) the share that does.

    begin (n, 3, 3): first poses. motion: similarity, affine or homography. tolerance, unit: in pixels; unit is half a
    view. pull: towards the first poses, of a usual image's weight.
    """
    complex_plane = motion == "similarity"
    points = [_rows(places / unit, complex_plane) for places in (matches.a, matches.b)]
    first = np.stack([_unknowns(one, complex_plane, unit) for one in begin])
    solution, (image_a, image_b) = first.copy(), matches.images
    usual = matches.per_image(matches.weight).mean() if len(matches.a) else 1.0
    weight = matches.weight
    for step in range(_ROUNDS):
        apart = [np.einsum("mk,mkc->mc", p, solution[i]) for p, i in zip(points, (image_a, image_b), strict=True)]
        error = np.sqrt((np.abs(apart[0] - apart[1]) ** 2).sum(1)) * unit
        width = tolerance * max(1.0, _WIDE * (1 - step / 12))
        weight = matches.weight / (1 + (error / width) ** 2) ** 2
        held = np.maximum(matches.per_image(weight), 1e-6 * usual)
        solution = _solve(matches, points, weight, first, pull * usual, held)
    poses = np.stack([_pose(one, complex_plane, unit) for one in solution])
    if motion == "homography":
        poses, weight = _bend(matches, poses, begin, tolerance, unit, pull * usual)
    share = matches.per_image(weight) / np.maximum(matches.per_image(matches.weight), 1e-9)
    return poses, share


def _bend(
    matches: Matches, poses: np.ndarray, begin: np.ndarray, tolerance: float, unit: float, pull: float
) -> tuple[np.ndarray, np.ndarray]:
    """Homographies under which matches meet, from affine poses, and the weight of every match."""
    weight, k = matches.weight, n_parameters("homography")
    for _ in range(STEPS):
        there = [shown_at(poses[i], p) for p, i in zip((matches.a, matches.b), matches.images, strict=True)]
        apart = (there[0] - there[1]) / unit
        weight = matches.weight / (1 + (np.linalg.norm(apart, axis=1) * unit / tolerance) ** 2) ** 2
        held = np.maximum(matches.per_image(weight), 1e-9)
        moves = [fields(one, unit, "homography") for one in there]
        votes = np.zeros((len(poses), k))
        for own, image, sign in zip(moves, matches.images, (-1, 1), strict=True):
            np.add.at(votes, image, sign * np.einsum("m,mck,mc->mk", weight, own, apart))
        right = votes - pull * moves_between(poses, begin, unit)
        step = _balanced(_normal(matches, moves, weight), right[..., None], pull, held, np.zeros((k, 1)))
        poses = bent(poses, step[..., 0], unit)
    return poses, weight


def errors(
    matches: Matches, poses: np.ndarray, where: np.ndarray, motion: str, tolerance: float, side: int, cells: int
) -> np.ndarray:
    """(n,) the standard error of each pose at places `where` (P, 2) of the common view, in its pixels: `pose_error`.

    side: pixels along a view; cells: how many of the network's lie along it.
    """
    unit, grain = side / 2, _GRAIN * side / cells
    images = matches.images
    there = [shown_at(poses[i], p) for p, i in zip((matches.a, matches.b), images, strict=True)]
    apart = there[0] - there[1]
    weight = matches.weight / (1 + (np.linalg.norm(apart, axis=1) / tolerance) ** 2) ** 2
    found = []
    for image, pose in enumerate(poses):
        first, second = images[0] == image, images[1] == image
        own = np.concatenate([matches.a[first], matches.b[second]])
        residual = np.concatenate([apart[first], -apart[second]])
        own_weight = np.concatenate([weight[first], weight[second]])
        found.append(pose_error(own, residual, own_weight, pose, where, motion, unit, grain))
    return np.array(found)


def _rows(places: np.ndarray, complex_plane: bool) -> np.ndarray:
    one = np.ones(len(places))
    return np.stack([places, one], 1) if complex_plane else np.stack([places.real, places.imag, one], 1)


def _unknowns(pose: np.ndarray, complex_plane: bool, unit: float) -> np.ndarray:
    """(k, c) of a pose: z, t of a similarity, or the transposed rows of an affine one."""
    if complex_plane:
        return np.array([[pose[0, 0] + 1j * pose[1, 0]], [(pose[0, 2] + 1j * pose[1, 2]) / unit]])
    return np.array([pose[:2, 0], pose[:2, 1], pose[:2, 2] / unit])


def _pose(unknowns: np.ndarray, complex_plane: bool, unit: float) -> np.ndarray:
    """The inverse of `_unknowns`."""
    if complex_plane:
        (z,), (t,) = unknowns
        return np.array([[z.real, -z.imag, t.real * unit], [z.imag, z.real, t.imag * unit], [0, 0, 1]])
    return np.vstack([np.column_stack([unknowns[0], unknowns[1], unknowns[2] * unit]), [0, 0, 1]])


def _solve(
    matches: Matches, points: list[np.ndarray], weight: np.ndarray, first: np.ndarray, pull: float, held: np.ndarray
) -> np.ndarray:
    """Weighted least squares for all images at once, with the mean pose, by what holds each image, kept at that of the
    first poses: otherwise everything would shrink to a point."""
    normal = _normal(matches, [one[:, None] for one in points], weight)
    mean = np.einsum("n,nkc->kc", held / held.sum(), first)
    return _balanced(normal, pull * first, pull, held, mean)


def _normal(matches: Matches, points: list[np.ndarray], weight: np.ndarray) -> np.ndarray:
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


def _balanced(normal: np.ndarray, right: np.ndarray, pull: float, held: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """(n, k, c) unknowns whose mean, by what holds each image, is `mean` (k, c)."""
    n, k, columns = right.shape
    system = normal.transpose(0, 2, 1, 3).reshape(n * k, n * k) + pull * np.eye(n * k)
    gauge = ((held / held.sum())[:, None, None] * np.eye(k)).reshape(n * k, k)
    whole = np.block([[system, gauge], [gauge.T, np.zeros((k, k))]])
    equal = np.concatenate([right.reshape(n * k, columns), mean])
    return np.asarray(np.linalg.solve(whole, equal)[: n * k].reshape(n, k, columns))
