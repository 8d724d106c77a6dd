"""What the library built from native.c draws, against torch, and what happens where it is not there."""

from __future__ import annotations

import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from congeal.geometry import native
from congeal.images import resample, warp_pixel_batch, warp_pixels
from congeal.images.resample import Sampling

needs_library = pytest.mark.skipif(
    sys.platform == "win32" or shutil.which("cc") is None, reason="there is no C compiler to build the library with"
)
TOP = {"uint8": 255, "uint16": 65535, "float32": 1}
SIDES = st.sampled_from([1, 2, 3, 5, 19, 40, 300])


@needs_library
def test_it_was_built_where_there_is_a_compiler() -> None:
    assert native.suits(np.dtype("uint8"), "bicubic")
    assert not native.suits(np.dtype("float64"), "bicubic")
    assert not native.suits(np.dtype("uint8"), "lanczos")


@needs_library
@given(
    seed=st.integers(0, 2**32 - 1),
    source=st.tuples(SIDES, SIDES),
    size=st.tuples(SIDES, SIDES),
    channels=st.integers(1, 6),
    dtype=st.sampled_from(sorted(TOP)),
    kernel=st.sampled_from(["bilinear", "bicubic"]),
    fill=st.sampled_from([0.0, 0.4, 7.0, math.nan, "edge"]),
    bent=st.booleans(),
)
def test_the_same_picture_as_torch(
    seed: int,
    source: tuple[int, int],
    size: tuple[int, int],
    channels: int,
    dtype: str,
    kernel: str,
    fill: float | str,
    bent: bool,
) -> None:
    rng = np.random.default_rng(seed)
    pixels = (rng.random((2, *source, channels)) * TOP[dtype]).astype(dtype)
    matrices = np.eye(3) + rng.normal(0, 0.3, (2, 3, 3))
    matrices[:, :2, 2] = rng.normal(0, 6, (2, 2))
    # Near the horizon places in float32 are far from those in float64, and behind it there is nothing to agree on.
    matrices[:, 2] = [0, 0, 1]
    matrices[:, 2, :2] += rng.normal(0, 0.1 / max(size) if bent else 0, (2, 2))
    sampling = Sampling(kernel, fill)  # type: ignore[arg-type]
    ours = resample._sample(pixels, matrices, size, pixels.dtype, sampling).astype(np.float64)
    theirs = resample._sample_by_torch(pixels, matrices, size, pixels.dtype, sampling).astype(np.float64)
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
    # Torch's places are float32: a few millionths of a pixel, more near the horizon; at the border of an image the
    # difference to the fill value counts as much as that between pixels.
    span = max(TOP[dtype], fill) if isinstance(fill, float) and math.isfinite(fill) else TOP[dtype]
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1.01 if dtype == "uint8" else 2e-4 * span)
    if dtype == "uint8":
        assert (ours != theirs).mean() < 0.02
    if dtype == "uint16":
        assert np.abs(np.nan_to_num(ours - theirs)).mean() < 1


@needs_library
@pytest.mark.parametrize("fill", [0.0, 300.0, -5.0, "edge"])
def test_a_picture_that_shrinks_is_the_same_as_by_torch(fill: float | str, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.random.default_rng(4).integers(0, 256, (90, 80, 3), dtype=np.uint8)
    smaller = np.array([[1.7, 0.02, -9.3], [-0.02, 1.7, 1.3], [0, 0, 1]])
    sampling = Sampling("bicubic", fill)  # type: ignore[arg-type]
    ours = warp_pixels(pixels, smaller, (60, 50), sampling).astype(int)
    monkeypatch.setattr(native, "_library", lambda: None)
    theirs = warp_pixels(pixels, smaller, (60, 50), sampling).astype(int)
    assert np.abs(ours - theirs).max() <= 1
    assert (ours != theirs).mean() < 0.01


@needs_library
def test_an_image_does_not_depend_on_its_neighbours() -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (5, 30, 41, 3), dtype=np.uint8)
    matrices = np.eye(3) + rng.normal(0, 0.02, (5, 3, 3)) * [[1, 1, 40], [1, 1, 40], [0.01, 0.01, 0]]
    together = warp_pixel_batch(pixels, matrices, (33, 28))
    for k in range(5):
        np.testing.assert_array_equal(
            warp_pixel_batch(pixels[k : k + 1], matrices[k : k + 1], (33, 28))[0], together[k]
        )
        grey = warp_pixel_batch(pixels[k : k + 1, :, :, 1:2], matrices[k : k + 1], (33, 28))[0, ..., 0]
        assert np.abs(grey.astype(int) - together[k, ..., 1]).max() <= 1, "sums in another order"


@needs_library
def test_a_pixel_that_is_not_finite_spoils_only_what_is_near_it() -> None:
    rng = np.random.default_rng(1)
    pixels = rng.random((2, 60, 60, 1), dtype=np.float32)
    pixels[1, 30, 30] = np.nan
    matrix = np.array([[1, 0.01, 0.3], [-0.01, 1, 0.4], [0, 0, 1]])
    out = warp_pixel_batch(pixels, np.stack([matrix, matrix]), (60, 60))
    assert np.isfinite(out[0]).all()
    assert np.isnan(out[1]).any()
    assert np.isfinite(out[1, :10]).all()


def test_torch_draws_where_the_library_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.random.default_rng(2).integers(0, 256, (1, 24, 24, 3), dtype=np.uint8)
    matrix = np.array([[[1, 0.05, 0.3], [-0.05, 1, 0.4], [0, 0, 1]]])
    usual = warp_pixel_batch(pixels, matrix, (24, 24))
    wrong = tmp_path / "libnative.so"
    wrong.write_bytes(b"no library")
    for missing in (tmp_path / "nothing.so", wrong):
        monkeypatch.setattr(native, "LIBRARY", missing)
        native._library.cache_clear()
        try:
            assert not native.suits(np.dtype("uint8"), "bicubic")
            without = warp_pixel_batch(pixels, matrix, (24, 24))
        finally:
            native._library.cache_clear()
        assert np.abs(usual.astype(int) - without).max() <= 1


@needs_library
def test_a_library_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "VERSION", native.VERSION + 1)
    native._library.cache_clear()
    try:
        assert not native.suits(np.dtype("uint8"), "bicubic")
    finally:
        native._library.cache_clear()
