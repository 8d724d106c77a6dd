"""Which way round birds end, by the side of the bird that is seen."""

from __future__ import annotations

import numpy as np
import pytest

from congeal.datasets.photographs import Points
from congeal.experiments.wild import same_side

NAMES = ("back", "beak", "left eye", "nape", "right eye", "tail")


def test_birds_show_the_same_side_once_flipped_ones_are() -> None:
    visible = np.ones((4, 6), dtype=bool)
    visible[:, NAMES.index("left eye")] = False
    birds = Points(np.zeros((4, 6, 2)), visible, np.full(4, 100.0), NAMES)
    assert same_side(birds, np.zeros(4, dtype=bool)) == 100
    assert same_side(birds, np.array([False, False, True, False])) == pytest.approx(75)
    visible[:, NAMES.index("left eye")] = True
    assert same_side(birds, np.zeros(4, dtype=bool)) is None
