"""Boxes into one frame: outer edges meet, whatever their size, and growing keeps the centre."""

from __future__ import annotations

import numpy as np

from congeal.geometry import map_points
from congeal.geometry.boxes import fit_boxes, grow_boxes

BOXES = np.array([[0, 0, 20, 10], [4, 6, 10, 30], [-3.5, 2.5, 40, 20]])


def test_outer_corners_of_every_box_land_on_those_of_the_frame() -> None:
    matrices, (height, width) = fit_boxes(BOXES)
    assert (height, width) == (20, 20)
    x, y, w, h = BOXES.T
    corners = np.stack([np.stack([x, y], -1), np.stack([x + w, y + h], -1)], 1) - 0.5
    np.testing.assert_allclose(map_points(matrices, corners), np.tile([[-0.5, -0.5], [19.5, 19.5]], (3, 1, 1)))


def test_a_box_of_the_frame_s_size_is_a_plain_shift() -> None:
    matrices, size = fit_boxes(np.array([[3.0, 4, 8, 6]]))
    assert size == (6, 8)
    np.testing.assert_allclose(matrices[0], [[1, 0, -3], [0, 1, -4], [0, 0, 1]])


def test_an_image_without_a_box_has_no_matrix_and_no_say() -> None:
    matrices, size = fit_boxes(np.array([[0.0, 0, 4, 4], [np.nan] * 4]))
    assert size == (4, 4)
    assert np.isnan(matrices[1]).all()


def test_growing_about_the_centre() -> None:
    np.testing.assert_allclose(grow_boxes(BOXES[:1], 0.5), [[-5, -2.5, 30, 15]])
    np.testing.assert_allclose(grow_boxes(grow_boxes(BOXES, 1.0), -0.5), BOXES)
