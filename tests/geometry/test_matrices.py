"""Matrices and motions: round trips, nestedness, means; numpy and torch give the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from congeal.errors import CongealError
from congeal.geometry import (
    MOTIONS,
    compose,
    corners,
    from_normalised,
    homography_from_points,
    identity,
    invert,
    map_points,
    matrix_from_parameters,
    mean_matrix,
    n_parameters,
    normalise,
    parameters_from_matrix,
    rescale,
    to_normalised,
)

SIZES = st.tuples(st.integers(1, 300), st.integers(1, 300))
MOTION = st.sampled_from(MOTIONS)


def numbers(count: int, limit: float) -> Any:
    return st.lists(st.floats(-limit, limit), min_size=count, max_size=count)


@st.composite
def parameters(draw: Any, limit: float = 0.3) -> torch.Tensor:
    """Parameters of a random motion, as many as it has."""
    return torch.tensor(draw(numbers(n_parameters(draw(MOTION)), limit)), dtype=torch.float64)


# ---- matrices


@given(parameters(), SIZES)
def test_inverse_undoes(p: torch.Tensor, size: tuple[int, int]) -> None:
    m = from_normalised(matrix_from_parameters(p), size)
    assert torch.allclose(normalise(compose(m, invert(m))), torch.eye(3, dtype=m.dtype), atol=1e-8)
    assert torch.allclose(invert(invert(m)), normalise(m), atol=1e-8, rtol=1e-8)


@given(parameters(), parameters(), SIZES)
def test_composition_maps_points_one_after_the_other(p: torch.Tensor, q: torch.Tensor, size: tuple[int, int]) -> None:
    b_from_a, c_from_b = (from_normalised(matrix_from_parameters(x), size).numpy() for x in (p, q))
    points = corners(size)
    assert np.allclose(
        map_points(compose(c_from_b, b_from_a), points), map_points(c_from_b, map_points(b_from_a, points)), atol=1e-6
    )
    assert np.allclose(map_points(invert(b_from_a), map_points(b_from_a, points)), points, atol=1e-6)


@given(parameters(), SIZES)
def test_normalised_coordinates_and_back(p: torch.Tensor, size: tuple[int, int]) -> None:
    m = matrix_from_parameters(p)
    assert torch.allclose(to_normalised(from_normalised(m, size), size), m, atol=1e-9)


@given(parameters(), SIZES)
def test_numpy_and_torch_agree(p: torch.Tensor, size: tuple[int, int]) -> None:
    m = matrix_from_parameters(p)
    points = corners(size)
    for ours, theirs in [
        (invert(m.numpy()), invert(m)),
        (from_normalised(m.numpy(), size), from_normalised(m, size)),
        (map_points(m.numpy(), points), map_points(m, torch.from_numpy(points))),
        (mean_matrix(m.numpy()[None], size), mean_matrix(m[None], size)),
    ]:
        assert isinstance(ours, np.ndarray)
        assert isinstance(theirs, torch.Tensor)
        assert np.allclose(ours, theirs.numpy(), atol=1e-9)


@given(SIZES, SIZES)
def test_rescale_puts_edges_on_edges(a: tuple[int, int], b: tuple[int, int]) -> None:
    assert np.allclose(map_points(rescale(a, b), corners(a)), corners(b), atol=1e-9)
    assert np.allclose(compose(rescale(a, b), rescale(b, a)), np.eye(3), atol=1e-9)


def test_inverse_of_the_identity_is_exact() -> None:
    assert np.array_equal(invert(identity(3)), identity(3))
    assert identity().shape == (3, 3)


@given(numbers(8, 0.3), SIZES)
def test_homography_through_four_points(moves: list[float], size: tuple[int, int]) -> None:
    source = corners(size)
    target = source + np.array(moves).reshape(4, 2) * size[::-1]
    found = homography_from_points(source, target)
    assert np.allclose(map_points(found, source), target, atol=1e-6 * max(size))
    assert found[2, 2] == 1


def test_homography_errors_name_what_is_wrong() -> None:
    with pytest.raises(CongealError, match="4 point pairs"):
        homography_from_points(np.zeros((3, 2)), np.zeros((3, 2)))
    line = np.array([[0, 0], [1, 1], [2, 2], [0, 3.0]])
    with pytest.raises(CongealError, match="one line"):
        homography_from_points(line, corners((2, 2)))


# ---- motions


def test_parameter_counts() -> None:
    assert [n_parameters(m) for m in MOTIONS] == [2, 3, 4, 6, 8]
    with pytest.raises(CongealError, match=r"unknown motion 'elastic'.*homography"):
        n_parameters("elastic")


@pytest.mark.parametrize("motion", MOTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_is_the_identity_exactly(motion: str, dtype: torch.dtype) -> None:
    zero = matrix_from_parameters(torch.zeros(2, n_parameters(motion), dtype=dtype))
    assert torch.equal(zero, torch.eye(3, dtype=dtype).expand(2, 3, 3))


@given(parameters(limit=0.5))
def test_smaller_motions_are_prefixes_of_larger_ones(p: torch.Tensor) -> None:
    padded = torch.cat([p, torch.zeros(8 - len(p), dtype=p.dtype)])
    assert torch.allclose(matrix_from_parameters(p), matrix_from_parameters(padded), atol=1e-12)


@given(parameters(limit=0.5))
def test_negated_parameters_are_the_inverse(p: torch.Tensor) -> None:
    product = matrix_from_parameters(p) @ matrix_from_parameters(-p)
    assert torch.allclose(product, torch.eye(3, dtype=p.dtype), atol=1e-9)


@given(parameters(limit=0.5))
def test_exponential_is_torchs(p: torch.Tensor) -> None:
    """Our own form of it, in plain products, against `torch.linalg.matrix_exp` on the generators' sum."""
    step = torch.zeros(3, 3, dtype=p.dtype)
    for k, value in enumerate(p):
        unit = torch.zeros(len(p), dtype=p.dtype)
        unit[k] = 1e-6
        step += value * (matrix_from_parameters(unit) - matrix_from_parameters(-unit)) / 2e-6
    assert torch.allclose(matrix_from_parameters(p), torch.linalg.matrix_exp(step), atol=1e-7)


@given(parameters(limit=0.5))
def test_logarithm_undoes_the_exponential(p: torch.Tensor) -> None:
    back = parameters_from_matrix(matrix_from_parameters(p))
    assert torch.allclose(back[: len(p)], p, atol=1e-8)
    assert torch.allclose(back[len(p) :], torch.zeros(8 - len(p), dtype=p.dtype), atol=1e-8)


@given(parameters(limit=0.5), st.floats(0.1, 10))
def test_logarithm_ignores_the_scale_a_homography_does_not_have(p: torch.Tensor, scale: float) -> None:
    m = matrix_from_parameters(p)
    assert torch.allclose(parameters_from_matrix(m * scale), parameters_from_matrix(-m * scale), atol=1e-8)
    assert torch.allclose(parameters_from_matrix(m * scale)[: len(p)], p, atol=1e-8)


@pytest.mark.parametrize("m", [torch.diag(torch.tensor([-1.0, 1, 1])), torch.diag(torch.tensor([1.0, 0, 1]))])
def test_mirrored_and_singular_matrices_have_no_logarithm(m: torch.Tensor) -> None:
    with pytest.raises(CongealError, match="mirrored or singular"):
        parameters_from_matrix(m)


@given(numbers(3, 0.8), SIZES)
def test_rigid_keeps_distances_in_pixels_whatever_the_frame(values: list[float], size: tuple[int, int]) -> None:
    m = from_normalised(matrix_from_parameters(torch.tensor(values, dtype=torch.float64)), size)
    moved = map_points(m.numpy(), corners(size))
    before, after = (np.linalg.norm(np.diff(x, axis=0), axis=1) for x in (corners(size), moved))
    assert np.allclose(before, after, atol=1e-8)


@given(numbers(4, 0.5))
def test_similarity_keeps_angles(values: list[float]) -> None:
    m = matrix_from_parameters(torch.tensor(values, dtype=torch.float64))[:2, :2]
    scale = torch.linalg.det(m)
    assert torch.allclose(m.T @ m, scale * torch.eye(2, dtype=m.dtype), atol=1e-9)
    assert float(scale) == pytest.approx(np.exp(2 * values[3]))


def test_affine_keeps_the_last_row() -> None:
    m = matrix_from_parameters(torch.linspace(-0.5, 0.5, 6, dtype=torch.float64))
    assert torch.equal(m[2], torch.tensor([0, 0, 1.0], dtype=torch.float64))


# ---- means


@given(parameters(limit=0.2), SIZES)
def test_mean_of_equal_transforms_is_that_transform(p: torch.Tensor, size: tuple[int, int]) -> None:
    m = from_normalised(matrix_from_parameters(p), size)
    mean = mean_matrix(m.expand(5, 3, 3), size)
    assert torch.allclose(mean, normalise(m), atol=1e-7, rtol=1e-7)


def test_mean_of_opposite_shifts_is_the_identity() -> None:
    shifts = identity(2)
    shifts[0, 0, 2], shifts[1, 0, 2] = 3, -3
    assert np.allclose(mean_matrix(shifts, (28, 28)), np.eye(3))


def test_mean_moves_with_the_set() -> None:
    """mean(A·H_i) = A·mean(H_i) for affine A, up to a scale: what a gauge has to do."""
    rng = np.random.default_rng(0)
    moves = rng.normal(0, 2, (20, 4, 2))
    matrices = homography_from_points(corners((28, 28)), corners((28, 28)) + moves)
    a = np.array([[1.1, 0.1, 3], [-0.2, 0.9, -1], [0, 0, 1]])
    assert np.allclose(mean_matrix(a @ matrices, (28, 28)), normalise(a @ mean_matrix(matrices, (28, 28))), atol=1e-9)


def test_one_wild_homography_does_not_drag_the_mean_along() -> None:
    """Averaging corners would: the horizon of this one passes just beside the frame and throws two of them far out."""
    wild = np.array([[1, 0, 0], [0, 1, 0], [-1 / 27.6, 0, 1]])
    matrices = np.concatenate([identity(199), wild[None]])
    frame = corners((28, 28))
    assert np.abs(map_points(matrices, frame).mean(0) - frame).max() > 30
    assert np.abs(map_points(mean_matrix(matrices, (28, 28)), frame) - frame).max() < 1
