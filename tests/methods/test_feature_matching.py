"""What matches alone say: homographies under which they meet, how sure a pose is, and places between cells."""

from __future__ import annotations

import numpy as np
import torch

from congeal.geometry import map_points
from congeal.images import prepare
from congeal.methods.semantic.edge_refinement import refine_on_edges, refine_unless_worse
from congeal.methods.semantic.feature_maps import FeatureBasis, FeatureMaps, FeatureTemplate, Window, cell_places
from congeal.methods.semantic.feature_matching import subcell_offset
from congeal.methods.semantic.group_synchronisation import MatchGraph, pose_error, synchronise_poses
from congeal.opening import open_images

UNIT = 160.0


def shown(places: np.ndarray, pose: np.ndarray) -> np.ndarray:
    """Places (M,) complex of the common view, in the view of an image of that pose."""
    found = map_points(np.linalg.inv(pose), np.stack([places.real, places.imag], 1))
    return found[:, 0] + 1j * found[:, 1]


def matches_under(poses: np.ndarray, noise: float = 0.0) -> MatchGraph:
    """Of all pairs, at the same 60 places of the common view."""
    generator = np.random.default_rng(0)
    a, b, first, second = [], [], [], []
    for i in range(len(poses)):
        for j in range(i + 1, len(poses)):
            places = generator.uniform(-120, 120, 60) + 1j * generator.uniform(-120, 120, 60)
            a.append(shown(places, poses[i]))
            b.append(shown(places, poses[j]))
            first.append(i)
            second.append(j)
    begins = 60 * np.arange(len(a))
    weight = np.ones(60 * len(a))
    far = generator.normal(0, noise, (2, len(weight))) @ np.diag(weight)
    places_b = np.concatenate(b) + far[0] + 1j * far[1]
    return MatchGraph(np.concatenate(a), places_b, weight, begins, np.array(first), np.array(second), len(poses))


def test_homographies_under_which_matches_meet() -> None:
    generator = np.random.default_rng(1)
    poses = np.eye(3) + generator.normal(0, 1, (6, 3, 3)) * [[0.05, 0.05, 8], [0.05, 0.05, 8], [4e-4, 4e-4, 0]]
    matches, begin = matches_under(poses), np.broadcast_to(np.eye(3), (6, 3, 3))

    def apart(motion: str) -> float:
        found, _ = synchronise_poses(matches, begin, motion, 16, UNIT, 1e-6)
        ends = [
            map_points(found[image], np.stack([p.real, p.imag], 1)[:, None])[:, 0]
            for p, image in zip((matches.a, matches.b), matches.images, strict=True)
        ]
        return float(np.linalg.norm(ends[0] - ends[1], axis=1).mean())

    assert apart("homography") < 0.05 < 1 < apart("affine") < apart("similarity")


def test_the_error_of_a_pose_is_what_it_errs_by() -> None:
    """Blocks of a view err together, by 3 pixels; a similarity fitted to 16 of them errs as foretold."""
    generator, corners = np.random.default_rng(2), np.array([[-160.0, -160], [160, -160], [160, 160], [-160, 160]])
    side = np.linspace(-140, 140, 12)
    own = (side[:, None] + 1j * side[None]).ravel()
    x, y, one, zero = own.real / UNIT, own.imag / UNIT, np.ones(len(own)), np.zeros(len(own))
    rows = np.stack([np.stack([one, zero, -y, x], 1), np.stack([zero, one, x, y], 1)], 1)  # as `fields` has them
    block = ((own.real / UNIT + 1) / 2 * 5).astype(int) + 5 * ((own.imag / UNIT + 1) / 2 * 5).astype(int)
    errors, foretold = [], []
    for _ in range(60):
        off = generator.normal(0, 3, (25, 2))[block]
        moves = np.linalg.lstsq(rows.reshape(-1, 4), off.ravel(), rcond=None)[0]
        left = off - rows @ moves
        at = [
            np.array([moves[0] - moves[2] * q + moves[3] * p, moves[1] + moves[2] * p + moves[3] * q])
            for p, q in corners / UNIT
        ]
        errors.append(np.mean(np.square(at)))
        weight = np.ones(len(own))
        foretold.append(pose_error(own, left, weight, np.eye(3), corners, "similarity", UNIT, 0.0))
    assert 0.75 < np.sqrt(np.mean(errors)) / np.sqrt(np.mean(np.square(foretold))) < 1.33
    assert np.isnan(pose_error(own[:3], left[:3], weight[:3], np.eye(3), corners, "similarity", UNIT, 0.0))


def test_places_between_cells() -> None:
    """Smooth features that are moved by a third of a cell are found a third of a cell aside."""
    y, x = np.mgrid[:10, :10]

    def cells(dx: float, dy: float) -> torch.Tensor:
        waves = [f(k * (c + d)) for k in (0.3, 0.5) for c, d in ((x, dx), (y, dy)) for f in (np.sin, np.cos)]
        return torch.nn.functional.normalize(torch.from_numpy(np.stack(waves, -1).reshape(100, -1)).float(), dim=1)

    inner = ((x > 0) & (x < 9) & (y > 0) & (y < 9)).ravel().nonzero()[0]
    found = subcell_offset(cells(0, 0), cells(1 / 3, -0.25), inner, inner, (10, 10))
    assert np.allclose(found, 1 / 3 - 0.25j, atol=0.02)
    assert subcell_offset(cells(0, 0), cells(1 / 3, 0), np.array([0]), np.array([0]), (10, 10))[0] == 0


def test_edges_are_not_followed_where_features_object() -> None:
    """Stripes that lie elsewhere in every image, under features that are in place already; then the other way round."""
    generator, n = np.random.default_rng(3), 6
    places = np.arange(64)
    shifts = generator.uniform(-3, 3, n)
    stripes = np.stack([np.sin((places + s) / 2.2) + 0 * places[:, None] for s in shifts])
    stripes = stripes + np.sin(places[:, None] / 3)  # what holds them up and down
    stack = prepare(open_images((stripes * 50 + 128).clip(0, 255).astype(np.uint8)), size=64)
    poses, window = np.broadcast_to(np.eye(3), (n, 3, 3)).copy(), Window.whole(stack.frame)
    grid = (8, 8)
    column, row = np.meshgrid(np.arange(8.0), np.arange(8.0))

    def waves(shift: float) -> np.ndarray:
        return np.stack([f(k * c) for k in (0.8, 1.6) for c in (column + shift / 8, row) for f in (np.sin, np.cos)], -1)

    def seen(moves: np.ndarray) -> FeatureMaps:
        cells = np.stack([waves(shift) for shift in moves]).reshape(n, 1, 64, -1)
        cells = cells / np.linalg.norm(cells, axis=-1, keepdims=True)

        class _Cells:
            side, offset = 64, 0.0

        everywhere = np.ones((n, 1, 64), dtype=bool)
        return FeatureMaps(
            cells, everywhere, grid, cell_places(grid, _Cells()), 64, FeatureBasis(torch.zeros(8), torch.eye(8))
        )  # type: ignore[arg-type]

    template = FeatureTemplate(torch.zeros(64, 8), torch.ones(64), FeatureBasis(torch.zeros(8), torch.eye(8)), window)
    moved, _ = refine_on_edges(stack, poses, torch.ones(1, 64, 64), np.ones(n, dtype=bool))
    found = moved[:, 0, 2] - moved[:, 0, 2].mean()
    assert np.allclose(found, -(shifts - shifts.mean()), atol=0.5)  # edges bring the stripes together
    kept, (gain, edges) = refine_unless_worse(stack, seen(0 * shifts), window, poses, poses, template, np.ones(n))
    assert gain < -0.005
    assert edges is None
    assert np.array_equal(kept, poses)
    kept, (gain, edges) = refine_unless_worse(stack, seen(shifts), window, poses, poses, template, np.ones(n))
    assert gain > 0
    assert edges is not None
    assert np.allclose(kept[:, 0, 2], moved[:, 0, 2], atol=0.1)
