"""affNIST-style and infiMNIST-style sets: the definitions, and that image i is always the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from congeal.datasets import open_named
from congeal.datasets.mnist import load_mnist
from congeal.datasets.synthetic import FIELDS, WarpedDigits, affnist_poses, fields, tangents
from congeal.geometry import warp


@pytest.mark.parametrize("family", ["affnist:2", "infimnist:7"])
def test_an_image_depends_on_its_index_alone(mnist: Path, family: str) -> None:
    few, many = open_named(f"{family}@100"), open_named(f"{family}@2000")
    assert (len(few), len(many)) == (100, 2000)
    np.testing.assert_array_equal(few.batch([99, 5, 5]), many.batch([99, 5, 5]))
    np.testing.assert_array_equal(many.batch(np.arange(1500, 1530))[[7]], many.batch([1507]))
    np.testing.assert_array_equal(many.read(-1).pixels, many.batch([1999])[0])
    assert few.id(99) == many.id(99)
    assert len({many.id(i) for i in range(2000)}) == 2000
    assert many.dtype == np.uint8
    assert many.batch([0]).shape == (1, *many.shape)
    with pytest.raises(IndexError):
        many.read(2000)


def test_affnist_default_count_and_size(mnist: Path) -> None:
    source = open_named("affnist:2")
    assert len(source) == 100_000
    assert source.shape == (40, 40, 1)


def test_affnist_draws(mnist: Path) -> None:
    source = open_named("affnist:2@20000")
    assert isinstance(source, WarpedDigits)
    m = affnist_poses(source.digits, 20000)
    angle = np.rad2deg(np.arctan2(m[:, 1, 0], m[:, 0, 0]))
    across = np.hypot(m[:, 0, 0], m[:, 1, 0])
    determinant = np.linalg.det(m[:, :2, :2])
    for values, low, high in ((angle, -20, 20), (across, 0.8, 1.2), (determinant / across, 0.8, 1.2)):
        np.testing.assert_allclose([values.min(), values.max(), values.mean()], [low, high, (low + high) / 2], atol=0.3)
    shear = (m[:, 0, 0] * m[:, 0, 1] + m[:, 1, 0] * m[:, 1, 1]) / determinant
    np.testing.assert_allclose([shear.min(), shear.max()], [-0.2, 0.2], atol=1e-3)
    ink = source.batch(np.arange(500))[..., 0] > 0
    centres = np.stack([np.average(np.arange(40), weights=image.sum(0)) for image in ink])
    assert centres.std() > 3, "digits are all over the place"


def test_affnist_keeps_the_ink(mnist: Path) -> None:
    source = open_named("affnist:2@500")
    assert isinstance(source, WarpedDigits)
    rows = np.arange(500)
    area = np.linalg.det(affnist_poses(source.digits, 500)[:, :2, :2])
    ink = source.batch(rows).sum((1, 2, 3), dtype=np.float64)
    before = source.digits.images[rows % len(source.digits.images)].sum((1, 2), dtype=np.float64) * area
    np.testing.assert_allclose(ink / before, 1, atol=0.04)


def test_affnist_truth_brings_the_digit_to_the_middle(mnist: Path) -> None:
    source = open_named("affnist:2@200")
    assert isinstance(source, WarpedDigits)
    assert source.truth is not None
    pixels = torch.from_numpy(source.batch(np.arange(200))[..., 0].astype(np.float32))[:, None]
    upright = warp(pixels, torch.from_numpy(np.linalg.inv(source.truth)).float())[:, 0, 6:34, 6:34].numpy()
    assert np.corrcoef(upright.ravel(), source.digits.images[:200].ravel())[0, 1] > 0.97


def test_infimnist_numbers_follow_the_scheme(mnist: Path) -> None:
    source = open_named("infimnist:7@2000")
    _, labels = load_mnist("train")
    numbers = np.array([int(source.id(i).removeprefix("infi-")) for i in range(2000)])
    assert numbers.min() >= 70000
    assert (np.diff(numbers) > 0).all()
    assert (labels[(numbers - 10000) % 60000] == 7).all()
    assert source.ids() == [source.id(i) for i in range(2000)]


def test_infimnist_image_by_hand(mnist: Path) -> None:
    source = open_named("infimnist:7@20000")
    images, _ = load_mnist("train")
    f = fields()
    for index in (0, 1, 2, 3, 12345):
        i = int(source.id(index).removeprefix("infi-"))
        k1 = (i * 131071) % 2**32 % 1521
        k2 = (k1 + 1 + 2 * i) % 1522
        x = images[(i - 10000) % 60000].astype(np.float32).reshape(1, -1)
        down, across = tangents(x)
        wanted = np.clip(x - f[k1] * down + f[k2] * across, 0, 255).reshape(28, 28)
        steps = [(0, 0), (-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1)]
        padded = np.roll(np.pad(wanted, 1), steps[k1 % 9], (0, 1))[1:-1, 1:-1]
        np.testing.assert_allclose(source.read(index).pixels[..., 0], padded, atol=0.51)


def test_infimnist_deforms_but_keeps_the_digit(mnist: Path) -> None:
    source = open_named("infimnist:7@100000")
    images, labels = load_mnist("train")
    sevens = images[labels == 7].astype(np.float64)
    turn = source.batch(np.arange(2 * len(sevens), 3 * len(sevens)))[..., 0].astype(np.float64)
    change = np.abs(turn - sevens).sum((1, 2)) / sevens.sum((1, 2))
    assert 0.1 < change.mean() < 1.2
    assert abs(turn.sum() / sevens.sum() - 1) < 0.15


def test_fields_are_smooth_and_one_pixel_large() -> None:
    f = fields()
    assert f.shape == (FIELDS, 784)
    np.testing.assert_allclose((f**2).mean(1), 1, rtol=1e-4)
    steps = np.diff(f.reshape(-1, 28, 28), axis=2)
    assert np.sqrt((steps**2).mean()) < 0.35
    assert len(np.unique(f[:, 0])) == FIELDS


def test_tangents_are_grey_levels_per_pixel() -> None:
    ramp = np.add.outer(3.0 * np.arange(28), 5.0 * np.arange(28)).astype(np.float32).reshape(1, -1)
    down, across = (t.reshape(28, 28)[8:-8, 8:-8] for t in tangents(ramp))
    np.testing.assert_allclose(down, 3, rtol=1e-2)
    np.testing.assert_allclose(across, 5, rtol=1e-2)
