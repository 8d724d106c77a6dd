"""Mirror images and quarter turns: pixels and matrices say the same."""

from __future__ import annotations

import numpy as np
import pytest

from congeal.geometry import map_points
from congeal.geometry.orientation import (
    all_upright_from_source,
    make_upright,
    mirrored,
    orientation_of,
    orientations,
    upright_from_source,
    upright_sizes,
)


@pytest.mark.parametrize("way", range(8))
def test_matrix_and_pixels_agree(way: int) -> None:
    picture = np.arange(12).reshape(3, 4)
    upright = make_upright(picture, way)
    assert upright.shape == tuple(upright_sizes(np.array([way]), np.array([[3, 4]]))[0])
    matrix = upright_from_source(way, (3, 4))
    for y, x in np.ndindex(3, 4):
        (column, row) = map_points(matrix, np.array([[x, y]], dtype=float))[0]
        assert upright[round(row), round(column)] == picture[y, x]


def test_orientation_is_read_off_a_matrix() -> None:
    ways, sizes = np.arange(8), np.full((8, 2), 9)
    matrices = all_upright_from_source(ways, sizes)
    little = np.array([[0.9, -0.2, 3], [0.2, 0.9, -1], [0.001, 0, 1]])  # a pose that is not far
    assert orientation_of(little @ matrices).tolist() == ways.tolist()
    assert orientation_of(little @ matrices, turns=False).tolist() == [0] * 4 + [4] * 4
    assert mirrored(-matrices).tolist() == (ways >= 4).tolist()  # a homography has no sign
    assert not mirrored(np.full((1, 3, 3), np.nan)).any()


def test_possible_orientations() -> None:
    assert orientations(mirror=False, turns=False) == (0,)
    assert orientations(mirror=True, turns=False) == (0, 4)
    assert len(orientations(mirror=True, turns=True)) == 8
