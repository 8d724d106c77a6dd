"""Perspective noise: the protocol's statistics, both variants, and the right direction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from congeal.datasets import open_named
from congeal.datasets.synthetic import loses_half_its_ink, perturbations
from congeal.evaluation import corner_error
from congeal.geometry import matrix, warp

FRAME = matrix.corners((28, 28))


def corner_motion(sigma: float, n: int = 20_000) -> np.ndarray:
    """(N,4,2) in sides of the frame."""
    return (matrix.map_points(perturbations(np.arange(n), sigma), FRAME) - FRAME) / 28


@pytest.mark.parametrize("sigma", [0.02, 0.1])
def test_size_of_the_noise(sigma: float) -> None:
    motion = corner_motion(sigma)
    np.testing.assert_allclose(motion.mean(0), 0, atol=0.03 * sigma)
    # own noise and shared shift, σ² each
    np.testing.assert_allclose(motion.std(0), np.sqrt(2) * sigma, rtol=0.03)
    # corners share exactly the shift: covariance σ² between corners, none between axes
    x = motion[..., 0]
    np.testing.assert_allclose(np.cov(x.T), sigma**2 * (np.eye(4) + 1), atol=0.06 * sigma**2)
    np.testing.assert_allclose(np.corrcoef(x[:, 0], motion[:, 0, 1])[0, 1], 0, atol=0.03)


def test_zero_noise_is_the_identity() -> None:
    np.testing.assert_allclose(perturbations(np.arange(5), 0), matrix.identity(5), atol=1e-12)


@pytest.mark.parametrize("sigma", [0.3, 0.5])
def test_no_frame_folds_over_or_is_mirrored(sigma: float) -> None:
    m = perturbations(np.arange(5000), sigma)
    depth = np.concatenate([FRAME, np.ones((4, 1))], 1) @ m[:, 2, :, None]
    centre = m[:, 2] @ [13.5, 13.5, 1]
    assert (depth[..., 0] / centre[:, None]).min() > 0.1
    assert (np.linalg.det(m) / centre**3 > 0).all()


def test_a_draw_belongs_to_its_image() -> None:
    numbers = np.arange(50_000, 60_000)
    m = perturbations(numbers, 0.3)
    np.testing.assert_array_equal(perturbations(numbers[[77, 3]], 0.3), m[[77, 3]])


def test_initial_variant(mnist: Path) -> None:
    source = open_named("perspective:3@0.2")
    plain = open_named("mnist:3")
    assert len(source) == len(plain) == 200
    np.testing.assert_array_equal(source.batch([5, 199]), plain.batch([5, 199]))
    assert source.id(5) == plain.id(5)
    assert source.initial is not None
    assert source.initial_size == (28, 28)
    baked = open_named("perspective-baked:3@0.2")
    landed = matrix.map_points(source.initial, matrix.map_points(np.asarray(baked.truth), FRAME))
    np.testing.assert_allclose(landed, np.broadcast_to(FRAME, landed.shape), atol=1e-6)
    assert source.truth is not None
    assert np.median(corner_error(source.initial, source.truth, (28, 28))) > 4
    assert source.limit(10).initial is not None


def test_baked_pixels_are_what_the_initial_warp_shows(mnist: Path) -> None:
    baked, source = open_named("perspective-baked:3@0.2"), open_named("perspective:3@0.2")
    rows = np.array([150, 1, 17])
    pixels = torch.from_numpy(source.batch(rows)[..., 0].astype(np.float32))[:, None]
    shown = warp(pixels, torch.from_numpy(np.linalg.inv(np.asarray(source.initial)[rows])).float())
    np.testing.assert_allclose(baked.batch(rows)[..., 0], shown[:, 0].numpy(), atol=0.51)
    np.testing.assert_array_equal(baked.read(17).pixels, baked.batch(rows)[2])
    assert baked.initial is None
    assert baked.dtype == np.uint8


def test_baked_truth_undoes_the_warp(mnist: Path) -> None:
    baked, plain = open_named("perspective-baked:3@0.1"), open_named("mnist:3")
    rows = np.arange(200)
    assert baked.truth is not None
    pixels = torch.from_numpy(baked.batch(rows)[..., 0].astype(np.float32))[:, None]
    undone = warp(pixels, torch.from_numpy(np.linalg.inv(baked.truth[rows])).float())[:, 0].numpy()
    original = plain.batch(rows)[..., 0].astype(np.float32)
    warped_error = np.abs(baked.batch(rows)[..., 0] - original).mean()
    assert np.abs(undone - original).mean() < 0.3 * warped_error


@pytest.mark.parametrize(("sigma", "low", "high"), [(0.1, 0, 0.005), (0.2, 0.1, 0.25), (0.3, 0.35, 0.55)])
def test_share_of_images_that_lose_half_their_ink(mnist: Path, sigma: float, low: float, high: float) -> None:
    assert low <= loses_half_its_ink(f"3@{sigma}").mean() <= high
