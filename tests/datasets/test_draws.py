"""Counter-based random numbers: right distribution, and no image's draw depends on another's."""

from __future__ import annotations

import numpy as np

from congeal.datasets.synthetic import normal, uniform


def test_distributions() -> None:
    u = uniform(0, np.arange(100_000), 4)
    assert u.min() >= 0
    assert u.max() < 1
    np.testing.assert_allclose(u.mean(0), 0.5, atol=0.005)
    np.testing.assert_allclose(u.std(0), 12**-0.5, atol=0.005)
    z = normal(0, np.arange(100_000), 4)
    np.testing.assert_allclose(z.mean(0), 0, atol=0.02)
    np.testing.assert_allclose(z.std(0), 1, atol=0.02)
    np.testing.assert_allclose((z**4).mean(0), 3, atol=0.2)
    np.testing.assert_allclose(np.corrcoef(z.T), np.eye(4), atol=0.02)
    assert abs(np.corrcoef(z[:-1, 0], z[1:, 0])[0, 1]) < 0.02, "neighbouring images are unrelated"


def test_a_draw_belongs_to_its_index_and_seed() -> None:
    all_of_them = normal(3, np.arange(1000), 5)
    np.testing.assert_array_equal(normal(3, [700, 2], 5), all_of_them[[700, 2]])
    assert not np.isin(normal(4, np.arange(1000), 5), all_of_them).any()
