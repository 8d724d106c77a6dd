"""APSNR in wrapping uint8 arithmetic, by hand and as a finished run shows its images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from congeal.datasets import open_named
from congeal.experiments import measures
from congeal.experiments.measures import apsnr_uint8_wrap, wrapped_squares
from congeal.transforms import Transforms


def test_by_hand() -> None:
    images = np.array([[[0, 100]], [[20, 101]]], dtype=np.uint8)
    # mean 10 and 100 (100.5 rounds to even): differences −10 → 246, 10, 0, 1; 246² mod 256 = 100
    assert apsnr_uint8_wrap(images) == pytest.approx(10 * np.log10(255**2 * 4 / (100 + 100 + 0 + 1)))
    large = np.array([[[0]], [[40]]], dtype=np.uint8)  # 20² = 400 → 144
    assert apsnr_uint8_wrap(large) == pytest.approx(10 * np.log10(255**2 / 144))


def test_digits_land_in_the_range_that_the_paper_prints() -> None:
    threes = open_named("digits:3").batch(np.arange(200))
    assert 30 < apsnr_uint8_wrap(threes) < 33
    total = sum(wrapped_squares(part, threes.mean(0)) for part in np.array_split(threes, 7))
    assert apsnr_uint8_wrap(threes) == pytest.approx(10 * np.log10(255**2 * threes.size / total))


def test_before_and_after_are_what_the_run_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_named("digits:3")
    n, shift = len(source), np.array([[1.0, 0, 2], [0, 1, 0], [0, 0, 1]])
    start = Transforms(
        [source.id(i) for i in range(n)], np.repeat(np.eye(3)[None], n, 0), np.full((n, 2), 28), (28, 28)
    )
    found = start.compose(np.where(np.arange(n)[:, None, None] % 2, shift, np.eye(3)))
    found.aligned_size = (28, 28)
    monkeypatch.setattr(measures, "start_of", lambda folder: start)
    monkeypatch.setattr(measures, "transforms_of", lambda folder: found)
    row = measures.wrapped_numbers(source, Path("run"))
    images = source.batch(np.arange(n))[..., 0]
    moved = images.copy()
    moved[1::2, :, 2:], moved[1::2, :, :2] = images[1::2, :, :-2], 0
    assert row["apsnr_uint8_wrap_before"] == pytest.approx(apsnr_uint8_wrap(images), abs=1e-9)
    assert row["apsnr_uint8_wrap_after"] == pytest.approx(apsnr_uint8_wrap(moved), abs=1e-9)
