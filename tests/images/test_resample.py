"""Aligned pixels: what lies outside, masks, whole shifts, shrinking, and how sharp they are."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import congeal
from blobs import blob, save_folder
from congeal import CongealError
from congeal.cli import main
from congeal.geometry.kernels import INTERPOLATIONS, Interpolation
from congeal.geometry.matrix import invert, rescale
from congeal.images import warp_pixel_batch, warp_pixels
from congeal.images.canvas import Placement, put_on_canvas
from congeal.images.resample import Sampling, is_plain_resize, shrink_pixels, warp_masks

RNG = np.random.default_rng(0)
HALF = np.array([[1.0, 0, 0.5], [0, 1, 0.25], [0, 0, 1]])


def turned(angle: float, x: float, y: float) -> np.ndarray:
    c, s = math.cos(angle), math.sin(angle)
    return np.array([[c, -s, x], [s, c, y], [0, 0, 1]])


@pytest.mark.parametrize("kernel", INTERPOLATIONS)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.float32, np.float64, bool])
def test_whole_shifts_are_byte_for_byte(kernel: Interpolation, dtype: type) -> None:
    pixels = (RNG.random((3, 9, 11, 2)) * 200).astype(dtype)
    matrices = np.array([np.eye(3)] * 3)
    matrices[:, :2, 2] = [[2, 1], [-3, 4.00001], [0, 0]]
    out = warp_pixel_batch(pixels, matrices, (9, 11), Sampling(kernel))
    np.testing.assert_array_equal(out[0, :8, :9], pixels[0, 1:, 2:])
    assert not out[0, 8:].any()
    assert not out[0, :, 9:].any()
    np.testing.assert_array_equal(out[1, :5, 3:], pixels[1, 4:, :8])
    np.testing.assert_array_equal(out[2], pixels[2])


@pytest.mark.parametrize("kernel", INTERPOLATIONS)
def test_fill_is_what_lies_outside(kernel: Interpolation) -> None:
    pixels = np.full((12, 12, 1), 100, np.uint8)
    for matrix in (turned(0.3, 4, -5), np.array([[1.0, 0, 20], [0, 1, 0], [0, 0, 1]])):
        for fill in (0, 7, 255):
            out = warp_pixels(pixels, matrix, (12, 12), Sampling(kernel, fill))
            assert set(np.unique(out)) <= set(range(min(fill, 100), max(fill, 100) + 1))
            assert (out == fill).any()
        assert (warp_pixels(pixels, matrix, (12, 12), Sampling(kernel, "edge")) == 100).all()
        floats = warp_pixels(pixels.astype(np.float32), matrix, (12, 12), Sampling(kernel, math.nan))
        assert np.isnan(floats).any()
        np.testing.assert_allclose(floats[~np.isnan(floats)], 100, rtol=1e-5)
        assert not warp_pixels(pixels, matrix, (12, 12), Sampling(kernel, math.nan))[0, -1].any(), "integers have none"


@pytest.mark.parametrize("kernel", INTERPOLATIONS)
def test_masks_and_images_of_true_and_false_are_not_blended(kernel: Interpolation) -> None:
    mask = (RNG.random((2, 20, 20)) > 0.5).astype(np.float32)
    matrices = np.array([turned(0.2, 1.3, 0.4), HALF])
    out = warp_masks(mask, matrices, (20, 20), kernel)
    assert set(np.unique(out)) == {0, 1}
    for k in range(2):
        np.testing.assert_array_equal(warp_masks(mask[k : k + 1], matrices[k : k + 1], (20, 20), kernel)[0], out[k])
    soft = warp_masks(mask * 0.5, matrices, (20, 20), kernel)
    assert soft.max() <= 0.5
    assert warp_pixels(mask[0] > 0, HALF, (20, 20), Sampling(kernel)).dtype == bool
    labels = RNG.choice(np.array([3, 90, 200], np.uint8), (20, 20))
    assert set(np.unique(warp_pixels(labels, matrices[0], (20, 20), Sampling("nearest")))) == {0, 3, 90, 200}


@pytest.mark.parametrize("kernel", ["bicubic", "lanczos"])
def test_slight_shrinking_does_not_alias_either(kernel: Interpolation) -> None:
    stripes = np.tile(np.array([0, 255], np.uint8), (150, 75))[..., None]
    smaller = np.array([[1.5, 0, 0.25], [0, 1.5, 0.25], [0, 0, 1]])
    out = warp_pixels(stripes, smaller, (100, 100), Sampling(kernel)).astype(float)
    assert out[:, 5:-5].std() < 32, "of 127: the finest stripes there are become grey"


@pytest.mark.parametrize("kernel", ["bicubic", "lanczos"])
def test_bright_edges_do_not_become_black_where_a_picture_shrinks(kernel: Interpolation) -> None:
    """The filter for shrinking overshoots; bytes beyond 255 would begin at 0 again."""
    step = np.zeros((120, 120, 1), np.uint8)
    step[:, 40:80] = 255
    smaller = np.array([[1.5, 0.02, 0.3], [-0.02, 1.5, 1.3], [0, 0, 1]])
    out = warp_pixels(step, smaller, (70, 70), Sampling(kernel)).astype(int)
    assert (out[2:, 30:50] > 200).all()
    assert (out[:, 2:22] < 55).all()


def test_sharper_than_stackreg() -> None:
    pystackreg = pytest.importorskip("pystackreg")
    skimage_data = pytest.importorskip("skimage.data")
    frame = skimage_data.camera()[60:260, 120:320]
    matrix = turned(0.03, 3.4, 2.7)

    def gradient(picture: np.ndarray) -> float:
        inside = np.asarray(picture, dtype=float)[20:-20, 20:-20]
        return float(np.hypot(np.diff(inside, axis=1)[:-1], np.diff(inside, axis=0)[:, :-1]).mean())

    stackreg = pystackreg.StackReg(pystackreg.StackReg.RIGID_BODY)
    theirs = gradient(np.clip(stackreg.transform(frame, tmat=matrix), 0, 255))
    ours = {kernel: gradient(warp_pixels(frame, matrix, (200, 200), Sampling(kernel))) for kernel in INTERPOLATIONS}
    assert ours["bicubic"] > 1.02 * theirs
    assert ours["lanczos"] > theirs > 1.05 * ours["bilinear"]


OPTIONS = {"method": "lsc", "motion": "similarity", "size": 24, "quiet": True}


def test_a_run_keeps_how_it_was_wanted_and_new_images_get_the_same(tmp_path: Path) -> None:
    photos = save_folder(tmp_path / "photos", np.where(blob() > 90, 200, 60).astype(np.uint8))
    run = congeal.align(photos, tmp_path / "run", interpolation="nearest", fill=9, **OPTIONS)
    config = json.loads((run.folder / "config.json").read_text())
    assert (config["interpolation"], config["fill"]) == ("nearest", "9.0")
    pixels = np.concatenate([image.ravel() for image in read_all(run.folder / "aligned")])
    assert set(np.unique(pixels)) == {9, 60, 200}
    new = congeal.apply(run, photos, tmp_path / "new", quiet=True)
    assert json.loads((new.folder / "config.json").read_text())["interpolation"] == "nearest"
    (run.folder / "aligned" / "3.png").unlink()
    congeal.align(photos, tmp_path / "run", interpolation="nearest", fill=9, **OPTIONS)
    again = np.concatenate([image.ravel() for image in read_all(run.folder / "aligned")])
    np.testing.assert_array_equal(again, pixels)
    with pytest.raises(CongealError, match="differs in interpolation"):
        congeal.align(photos, tmp_path / "run", fill=9, **OPTIONS)


def read_all(folder: Path) -> list[np.ndarray]:
    source = congeal.open_images(folder)
    return [source.read(i).pixels for i in range(len(source))]


def test_nothing_weighs_nothing_in_the_mean(tmp_path: Path) -> None:
    images = blob().astype(np.float32) / 255
    run = congeal.align(images, tmp_path / "run", fill="nan", **OPTIONS)
    aligned = np.load(run.folder / "aligned" / "aligned.npy")
    assert np.isnan(aligned).any()
    assert np.isfinite(aligned[:, 8:16, 8:16]).all()
    mean = congeal.open_images(run.folder / "mean.png").read(0).pixels
    inside = np.nanmean(aligned, 0)[4:-4, 4:-4] * 255
    assert np.abs(mean[4:-4, 4:-4, 0] - inside).max() < 6


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--interpolation", "sinc"], "unknown interpolation 'sinc': use nearest, bilinear, bicubic, lanczos"),
        (["--fill", "white"], "a number on the scale of the pixels, nan or edge, not 'white'"),
        (["--fill", "300"], "the fill 300 does not fit: the images are uint8"),
        (["--fill", "nan"], "which has no NaN"),
        (["--fill", "inf"], "not 'inf'"),
    ],
)
def test_what_cannot_be_wanted_is_one_sentence(
    options: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = save_folder(tmp_path / "photos", blob(3))
    assert main(["align", str(photos), "-o", str(tmp_path / "run"), *options]) == 2
    assert told in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(30, 45), (17, 11), (59, 89)])
def test_shrinking_counts_every_pixel(channels: int, size: tuple[int, int]) -> None:
    pixels = RNG.integers(0, 256, (2, 60, 90, channels), dtype=np.uint8)
    pixels.flags.writeable = False
    small = shrink_pixels(pixels, size)
    whole = Placement(size[1] / 90, size[0] / 60, 0, 0)
    for found, given in zip(small, pixels, strict=True):
        expected, _ = put_on_canvas(given, size, whole)
        assert np.abs(found - expected.transpose(1, 2, 0)).max() < 1.6, "in whole numbers, across and then down"


def test_a_plain_resize_is_known_from_anything_else() -> None:
    plain = invert(rescale((60, 90), (30, 45)))
    assert is_plain_resize(plain, (60, 90), (30, 45))
    assert not is_plain_resize(plain, (60, 90), (30, 44))
    for moved in (turned(1e-3, 0, 0), turned(0, 0.01, 0)):
        assert not is_plain_resize(moved @ plain, (60, 90), (30, 45))
