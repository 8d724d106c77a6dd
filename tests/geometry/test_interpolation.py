"""Values between pixels: exact where they must be, and as sharp as promised."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from congeal.geometry.kernels import INTERPOLATIONS, Interpolation, interpolate, spline_coefficients
from congeal.geometry.warping import to_units


def sampled(values: np.ndarray, matrix: np.ndarray, kind: Interpolation) -> np.ndarray:
    """(H, W) through source_from_output, at its own size."""
    size = values.shape[0], values.shape[1]
    image = values[None, None]
    units = to_units(torch.from_numpy(matrix)[None], size, size).to(torch.from_numpy(image).dtype)
    given = spline_coefficients(image) if kind == "bicubic" else image
    return interpolate(torch.from_numpy(given), units, size, kind)[0, 0].numpy()


def shift(x: float, y: float) -> np.ndarray:
    return np.array([[1.0, 0, x], [0, 1, y], [0, 0, 1]])


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (5, 40), (97, 110)])
@pytest.mark.parametrize("kind", INTERPOLATIONS)
def test_pixels_themselves_and_flat_ground_come_back(size: tuple[int, int], kind: Interpolation) -> None:
    image = np.random.default_rng(0).random(size)
    np.testing.assert_allclose(sampled(image, np.eye(3), kind), image, atol=1e-9)
    np.testing.assert_allclose(sampled(np.full(size, 0.3), shift(0.37, -0.6), kind), 0.3, atol=1e-9)


def test_the_spline_is_exact_for_cubics() -> None:
    y, x = np.mgrid[:80, :90].astype(float)

    def cubic(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return (x / 40 - 1) ** 3 - 2 * (y / 50) ** 3 + x * y * y / 1e4 + 3

    inside = (slice(35, 45), slice(35, 50))
    found = sampled(cubic(x, y), shift(0.41, 0.77), "bicubic")
    np.testing.assert_allclose(found[inside], cubic(x + 0.41, y + 0.77)[inside], atol=1e-9)


@pytest.mark.parametrize(("kind", "least", "most"), [("bilinear", 0.38, 0.39), ("bicubic", 0.84, 0.86)])
def test_what_is_left_of_fine_detail_half_way_between_pixels(kind: Interpolation, least: float, most: float) -> None:
    """Three quarters of the finest frequency there is; the cubic B-spline of other programs leaves 0.76."""
    x = np.arange(240)
    wave = np.tile(np.cos(2 * np.pi * 0.375 * x), (3, 1))
    true = np.cos(2 * np.pi * 0.375 * (x + 0.5))[50:-50]
    found = sampled(wave, shift(0.5, 0), kind)[1, 50:-50]
    left = float(found @ true / (true @ true))
    assert least < left < most
    lanczos = sampled(wave, shift(0.5, 0), "lanczos")[1, 50:-50]
    assert float(lanczos @ true / (true @ true)) == pytest.approx(0.764, abs=0.01)


@pytest.mark.parametrize("kind", INTERPOLATIONS)
def test_noise_is_not_amplified(kind: Interpolation) -> None:
    noise = np.random.default_rng(0).standard_normal((200, 200))
    turn = 0.1
    matrix = np.array([[math.cos(turn), -math.sin(turn), 5.3], [math.sin(turn), math.cos(turn), -6.1], [0, 0, 1]])
    inside = sampled(noise, matrix, kind)[40:-40, 40:-40]
    assert inside.std() < 1.01 * noise.std()


@pytest.mark.parametrize("size", [(1, 2), (9, 70), (64, 300), (300, 129)])
def test_the_filter_is_the_inverse_of_the_kernel_between_mirrors(size: tuple[int, int]) -> None:
    image = np.random.default_rng(1).random((3, 2, *size))
    whole = spline_coefficients(image)
    padded = np.pad(whole, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="symmetric")
    across = (4 * padded[..., :-2] + 13 * padded[..., 1:-1] + 4 * padded[..., 2:]) / 21
    both = (4 * across[:, :, :-2] + 13 * across[:, :, 1:-1] + 4 * across[:, :, 2:]) / 21
    np.testing.assert_allclose(both, image, atol=1e-12)
    np.testing.assert_allclose(spline_coefficients(image.astype(np.float32)), whole, atol=2e-6)


def test_an_image_is_filtered_the_same_alone_and_with_others() -> None:
    images = np.random.default_rng(2).random((5, 2, 40, 33)).astype(np.float32)
    together = spline_coefficients(images)
    for image, one in zip(images, together, strict=True):
        np.testing.assert_array_equal(spline_coefficients(image[None])[0], one)
