"""A matrix in words."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from congeal.geometry.matrix import decompose_motion

SIZE = (60, 80)
CENTRE = np.array([39.5, 29.5])


def about_centre(linear: np.ndarray, shift: tuple[float, float] = (0, 0)) -> np.ndarray:
    m = np.eye(3)
    m[:2, :2] = linear
    m[:2, 2] = CENTRE + shift - linear @ CENTRE
    return m


def test_identity_does_nothing() -> None:
    parts = decompose_motion(np.eye(3)[None], SIZE)
    assert (parts.shift_x[0], parts.shift_y[0], parts.rotation[0], parts.scale[0]) == (0, 0, 0, 1)
    assert (parts.stretch[0], parts.skew[0]) == (1, 0)


def test_each_part_is_found_again() -> None:
    angle, skew, across, down = np.radians(12.0), np.radians(-7.0), 1.3, 0.8
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    shape = np.array([[across, across * np.tan(skew)], [0, down]])
    # sx·tan(skew) is how far the y axis leans, for its own length sy it leans by sx/sy·tan(skew)
    parts = decompose_motion(about_centre(turn @ shape, (3, -5))[None], SIZE)
    assert np.allclose([parts.shift_x[0], parts.shift_y[0]], [3, -5])
    assert np.isclose(parts.rotation[0], 12)
    assert np.isclose(parts.scale[0], np.sqrt(across * down))
    assert np.isclose(parts.stretch[0], across / down)
    assert np.isclose(parts.skew[0], np.degrees(np.arctan(across * np.tan(skew) / down)))


def test_rotation_is_clockwise_on_the_screen() -> None:
    # OpenCV's positive angles are counter-clockwise
    m = np.vstack([cv2.getRotationMatrix2D(tuple(CENTRE), -20, 1.5), [0, 0, 1]])
    parts = decompose_motion(m[None], SIZE)
    assert np.isclose(parts.rotation[0], 20)
    assert np.isclose(parts.scale[0], 1.5)


def test_mirror_images_have_a_negative_scale() -> None:
    assert decompose_motion(about_centre(np.diag([1.0, -1.0]))[None], SIZE).scale[0] == -1


def test_homography_is_its_affine_approximation_at_the_centre() -> None:
    m = about_centre(np.array([[1.1, 0.1], [-0.2, 0.9]]), (2, 1))
    m[2, :2] = 1e-3, -2e-3
    step = 1e-4
    landed = cv2.perspectiveTransform((CENTRE + step * np.array([[[0, 0]], [[1, 0]], [[0, 1]]])), m)[:, 0]
    jacobian = np.stack([landed[1] - landed[0], landed[2] - landed[0]], -1) / step
    near, own = decompose_motion(about_centre(jacobian)[None], SIZE), decompose_motion(m[None], SIZE)
    for name in ("rotation", "scale", "stretch", "skew"):
        assert np.isclose(getattr(near, name)[0], getattr(own, name)[0], atol=1e-4), name


@pytest.mark.parametrize("bad", [np.full((3, 3), np.nan), np.zeros((3, 3))])
def test_matrices_without_meaning_give_no_number(bad: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        assert not np.isfinite(decompose_motion(np.stack([np.eye(3), bad]), SIZE).rotation[1]) or not bad.any()
        assert decompose_motion(np.stack([np.eye(3), bad]), SIZE).scale[0] == 1


def test_corners_and_perspective() -> None:
    shift = about_centre(np.eye(2), (3, 4))
    tilt = np.eye(3)
    tilt[2, 0] = 1e-2  # depth grows to the right
    behind = np.eye(3)
    behind[2, 0] = -1.0  # the horizon runs through the picture
    parts = decompose_motion(np.stack([np.eye(3), shift, tilt, behind]), SIZE)
    assert np.allclose(parts.corners[:2], [0, 5])
    assert np.allclose(parts.perspective[:2], 1)
    left, right = 1 - 0.5e-2, 1 + 1e-2 * (SIZE[1] - 0.5)
    assert np.isclose(parts.perspective[2], right / left)
    assert np.isnan(parts.perspective[3])
    assert np.allclose(decompose_motion(-tilt[None], SIZE).perspective, parts.perspective[2]), "the same up to a factor"
