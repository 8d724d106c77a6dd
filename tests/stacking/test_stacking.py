"""One picture out of many: flaws go away, and poses that were found are nearly as good as those that are true."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tifffile

import congeal
from congeal import CongealError, Transforms
from congeal.cli import main
from congeal.images import warp_pixels
from congeal.images.resample import SHARP
from congeal.opening import open_images
from congeal.stacking.combine import Frames, combine
from congeal.stacking.stack import combine_images

SIDE, FRAMES = 72, 40


def make_frames(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(n, h, w) uint8 frames, the clean scene (h, w), and scene_from_frame (n, 3, 3)."""
    skimage_data = pytest.importorskip("skimage.data")
    rng = np.random.default_rng(seed)
    scene = skimage_data.camera()[90 : 90 + 2 * SIDE : 1, 170 : 170 + 2 * SIDE : 1].astype(np.float32)
    scene_from_frame = np.tile(np.eye(3), (FRAMES, 1, 1))
    scene_from_frame[:, :2, 2] = SIDE / 2 + rng.uniform(-4, 4, (FRAMES, 2))
    frames = np.stack([warp_pixels(scene, matrix, (SIDE, SIDE)) for matrix in scene_from_frame])
    frames += rng.normal(0, 25, frames.shape)
    frames[rng.random(frames.shape) < 0.02] = 255
    frames[:2] = rng.uniform(0, 255, (2, SIDE, SIDE))
    return np.clip(np.rint(frames), 0, 255).astype(np.uint8), scene, scene_from_frame


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stacking")
    frames, _, _ = make_frames()
    np.save(folder / "frames.npy", frames)
    congeal.align(folder / "frames.npy", folder / "run", method="lsc", motion="translation", size=SIDE, quiet=True)
    return folder / "run"


def decibels(picture: np.ndarray, clean: np.ndarray) -> float:
    inside = (slice(8, -8), slice(8, -8))
    return float(10 * np.log10(255**2 / np.mean((picture[inside] - clean[inside]) ** 2)))


def test_found_poses_stack_nearly_as_well_as_true_ones(run: Path) -> None:
    frames, scene, scene_from_frame = make_frames()
    found = Transforms.load(run / "transforms.csv")
    found.aligned_size = (SIDE, SIDE)
    stacked = congeal.stack(run)
    rows = np.array([int(id) for id in stacked.ids])
    shift = np.median((scene_from_frame[rows] @ np.linalg.inv(found.matrices[rows]))[:, :2, 2], axis=0)
    scene_from_aligned = np.array([[1, 0, shift[0]], [0, 1, shift[1]], [0, 0, 1]])
    clean = warp_pixels(scene, scene_from_aligned, (SIDE, SIDE))
    true = Transforms(found.ids, np.linalg.inv(scene_from_aligned) @ scene_from_frame, found.source_sizes, (SIDE, SIDE))
    best, _ = combine_images(Frames.of(open_images(frames), true, rows, SHARP), "clip", 3.0, 1.0, quiet=True)
    assert decibels(stacked.picture, clean) > decibels(best[..., 0], clean) - 0.5
    assert decibels(stacked.picture, clean) > decibels(congeal.stack(run, method="mean").picture, clean) + 0.3
    assert decibels(congeal.stack(run, method="median").picture, clean) > 27


def test_flaws_of_single_images_go_away() -> None:
    rng = np.random.default_rng(0)
    values = 100 + rng.normal(0, 2, (6, 5, 2, 30)).astype(np.float32)
    values[2, 3, 1, 4] = 255
    values[1, :, :, 7:10] = 0
    weight = np.ones((6, 5, 30), np.float32)
    weight[4, 4] = 0
    for clip in (3.0, None):
        out = combine(values, weight, clip, 0.5)
        assert np.isnan(out[4, 4]).all(), "where no image is there is nothing"
        out[4, 4] = 100
        assert np.abs(out - 100).max() < 2.5
    plain = combine(values, weight, 1e9, 0.5)
    np.testing.assert_allclose(plain[0], values[0].mean(-1), rtol=1e-5)


def test_rows_at_a_time_make_the_whole(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = congeal.stack(run).picture
    monkeypatch.setattr("congeal.stacking.combine.MAX_STACKED_BYTES", FRAMES * SIDE * 2 * 4 * 5)
    np.testing.assert_allclose(congeal.stack(run).picture, whole, atol=2e-2)


def test_the_best_are_the_sharp_ones(tmp_path: Path) -> None:
    _, scene, scene_from_frame = make_frames()
    rng = np.random.default_rng(1)
    clear = np.stack([warp_pixels(scene, matrix, (SIDE, SIDE)) for matrix in scene_from_frame[:12]])
    smooth = clear.copy()
    for axis in (1, 2):
        smooth = (np.roll(smooth, 1, axis) + smooth + np.roll(smooth, -1, axis)) / 3
    clear[::2] = smooth[::2]
    clear[4] += rng.normal(0, 40, clear[4].shape)  # grain is not detail
    images = np.clip(clear, 0, 255).astype(np.uint8)
    aligned_from_frame = scene_from_frame[:12] - [[0, 0, SIDE / 2], [0, 0, SIDE / 2], [0, 0, 0]]
    found = Transforms([str(i) for i in range(12)], aligned_from_frame, [[SIDE, SIDE]] * 12, (SIDE, SIDE))
    frames_of = Frames.of(open_images(images), found, np.arange(12), SHARP)
    _, rows = combine_images(frames_of, "mean", 3.0, 0.5, quiet=True)
    assert rows.tolist() == [1, 3, 5, 7, 9, 11]
    assert len(combine_images(frames_of, "sharp", 3.0, 1.0, quiet=True)[1]) == 12


def test_files_of_every_kind(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = congeal.stack(run, tmp_path / "deep" / "a.tif").picture
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "deep" / "a.tif"), picture)
    assert main(["stack", str(run), "-o", str(tmp_path / "a.png"), "--method", "median", "--best", "50%"]) == 0
    assert "images" in capsys.readouterr().out
    shown = open_images(tmp_path / "a.png").read(0).pixels
    assert shown.dtype == np.uint16
    assert shown.shape[:2] == picture.shape
    fits = pytest.importorskip("astropy.io.fits")
    congeal.stack(run, tmp_path / "a.fits")
    with fits.open(tmp_path / "a.fits") as opened:
        np.testing.assert_array_equal(opened[0].data, picture)
        assert opened[0].header["NCOMBINE"] > 10


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["-o", "x.jpg"], "ends in .tif"),
        (["-o", "x.tif", "--method", "max"], "unknown way to stack 'max'"),
        (["-o", "x.tif", "--best", "0"], "percentage of images"),
        (["-o", "x.tif", "--best", "some"], "percentage of images"),
        (["-o", "x.tif", "--sigma", "-1"], "standard deviations"),
        (["-o", "x.tif", "--exclude", "none.txt"], "there is no file"),
    ],
)
def test_what_cannot_be_stacked_is_one_sentence(
    run: Path,
    options: list[str],
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["stack", str(run), *options]) == 2
    assert told in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_excluded_images_and_other_kinds(run: Path, tmp_path: Path) -> None:
    used = congeal.stack(run).ids
    assert len(congeal.stack(run, exclude=used[:3]).ids) == len(used) - 3
    assert len(congeal.stack(run, flagged=True).ids) == FRAMES
    with pytest.raises(CongealError, match="no image of that name"):
        congeal.stack(run, exclude=["nobody"])
    with pytest.raises(CongealError, match="no such run folder"):
        congeal.stack(tmp_path / "none", tmp_path / "a.tif")
