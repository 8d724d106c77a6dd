"""Numbers of an alignment that do not come from metrics.json, on transforms whose effect is known."""

from __future__ import annotations

import numpy as np
import pytest

from congeal.datasets import open_named
from congeal.evaluation import apsnr
from congeal.experiments.measures import apsnr_at_energy, kept_numbers, quality
from congeal.transforms import Transforms

SOURCE = open_named("digits:3")
N = 60


def zoomed(scale: float, shift: float = 0.0) -> Transforms:
    """Every image enlarged about the middle of the frame, and moved to the right."""
    matrix = np.array([[scale, 0, 13.5 * (1 - scale) + shift], [0, scale, 13.5 * (1 - scale)], [0, 0, 1]])
    ids = [SOURCE.id(i) for i in range(N)]
    return Transforms(ids, np.repeat(matrix[None], N, 0), np.full((N, 2), 28), aligned_size=(28, 28))


def test_nothing_done_is_the_set_itself() -> None:
    decibel, energy = quality(SOURCE, zoomed(1.0), np.arange(N))
    assert decibel == pytest.approx(apsnr(SOURCE.batch(np.arange(N))), abs=1e-4)
    assert energy == pytest.approx(1.0, abs=1e-6)


def test_energy_follows_the_area() -> None:
    _, energy = quality(SOURCE, zoomed(0.8), np.arange(N))
    assert energy == pytest.approx(0.64, abs=0.02)


def test_at_one_energy_shrinking_gains_nothing() -> None:
    reduced, large = zoomed(0.8), zoomed(1.05)
    raw = [quality(SOURCE, t, np.arange(N))[0] for t in (reduced, large)]
    assert raw[0] > raw[1] + 1.5
    fair = [apsnr_at_energy(SOURCE, t, 0.95) for t in (reduced, large)]
    assert fair[0] is not None
    assert fair[0] == pytest.approx(fair[1], abs=0.1)


def test_an_object_that_is_gone_has_no_value() -> None:
    assert apsnr_at_energy(SOURCE, zoomed(1.0, shift=100.0), 0.95) is None


def test_kept_images_are_measured_apart() -> None:
    lost = np.arange(N) < 15
    row = kept_numbers(SOURCE, zoomed(1.0), lost)
    assert row["lost_share"] == 0.25
    assert row["apsnr_kept"] == pytest.approx(apsnr(SOURCE.batch(np.arange(15, N))), abs=1e-4)
    assert kept_numbers(SOURCE, zoomed(1.0), np.ones(N, dtype=bool))["apsnr_kept"] is None
