"""Which way round birds end: by left and right in the picture, and by the side of the bird that is seen."""

from __future__ import annotations

import numpy as np
import pytest

from congeal.datasets.photographs import Points
from congeal.experiments.wild import facing_right

NAMES = ("back", "beak", "left eye", "nape", "right eye", "tail")


def test_a_bird_upside_down_shows_the_same_side() -> None:
    """Three birds face right. The fourth shows its right side too, hanging: its beak is left of its back."""
    right = np.array([[40, 30], [80, 20], [0, 0], [60, 20], [70, 18], [10, 40]], dtype=float)
    xy = np.stack([right, right, right, 100 - right])
    visible = np.ones((4, 6), dtype=bool)
    visible[:, NAMES.index("left eye")] = False
    plain = np.zeros(4, dtype=bool)
    row = facing_right(Points(xy, visible, np.full(4, 100.0), NAMES), plain)
    assert row == {"facing": 75.0, "n_facing": 4, "facing_eye": 100.0, "n_facing_eye": 4}
    flipped = facing_right(Points(xy, visible, np.full(4, 100.0), NAMES), np.array([False, False, True, False]))
    assert flipped["facing_eye"] == pytest.approx(75)
    visible[:, NAMES.index("left eye")] = True
    assert facing_right(Points(xy, visible, np.full(4, 100.0), NAMES), plain)["facing_eye"] is None
