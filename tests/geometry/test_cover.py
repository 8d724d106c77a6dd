"""What images cover of a frame, in closed form, against sampling an image that is 1 everywhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from congeal.geometry.frame_coverage import covered
from congeal.geometry.warping import coverage

SOURCE, FRAME = (30, 41), (37, 29)


def bent(rng: np.random.Generator, n: int, strength: float) -> np.ndarray:
    """(n, 3, 3): turned, scaled and shifted, with perspective; horizons lie in the frame where `strength` is large."""
    scale = np.array([[1, 1, 40], [1, 1, 40], [0.02, 0.02, 0]])
    return np.eye(3) + strength * rng.normal(0, 1, (n, 3, 3)) * scale


@pytest.mark.parametrize("strength", [0.0, 0.02, 0.2, 1.0])
def test_one_image_covers_what_a_sampled_image_of_ones_shows(strength: float) -> None:
    matrices = bent(np.random.default_rng(0), 200, strength)
    shown = coverage(torch.from_numpy(matrices), SOURCE, FRAME)[:, 0].numpy()
    for matrix, expected in zip(matrices, shown, strict=True):
        np.testing.assert_allclose(covered(matrix[None], SOURCE, FRAME)[0], expected, atol=2e-4)
    np.testing.assert_allclose(covered(matrices, SOURCE, FRAME), shown, atol=2e-4)


def test_what_does_not_move_is_covered_wholly() -> None:
    assert (covered(np.eye(3)[None], SOURCE, SOURCE) == 1).all()


def test_an_image_outside_covers_nothing() -> None:
    away = np.array([[1.0, 0, 500], [0, 1, 0], [0, 0, 1]])
    assert not covered(away[None], SOURCE, FRAME).any()
