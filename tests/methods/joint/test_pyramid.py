"""The pyramid: poses as exact as the originals allow, and their error bars."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from known_warps import align_new, photograph_copies, pixels, warped_digit

import congeal
from congeal import JointAlignment
from congeal.evaluation import corner_error
from congeal.filters import gaussian_blur, local_contrast
from congeal.geometry import compose, from_normalised, invert, map_points, matrix_from_parameters, warp
from congeal.geometry.matrix import corners
from congeal.images import stack as stacks
from congeal.methods.base import Method
from congeal.registration.features import PhotoEdges
from congeal.registration.tile_refinement import LevelImages, refine_tiles
from congeal.registration.tiles import Tiles, TileSolver, TileSums

SIDE = 96
FRAME = (SIDE, SIDE)


def apart(found: np.ndarray, others: np.ndarray) -> float:
    """The largest distance of a corner between two sets of poses, in pixels."""
    return float(np.abs(map_points(found, corners(FRAME)) - map_points(others, corners(FRAME))).max())


@pytest.fixture(scope="module")
def copies() -> tuple[np.ndarray, np.ndarray]:
    """Twelve similarities of a photograph: images, truth."""
    return photograph_copies("similarity", SIDE, 12)


@pytest.fixture(scope="module")
def model(copies: tuple[np.ndarray, np.ndarray]) -> Method:
    """Fitted on the first eight of them."""
    return JointAlignment(size=32).fit(copies[0][:8])


# ---- how exact


def test_poses_are_as_exact_as_the_originals_allow() -> None:
    images, truth = photograph_copies("homography", 256)
    errors = {}
    for finest in (None, 64):
        model = JointAlignment(finest=finest).fit(images)
        errors[finest] = corner_error(model.transforms_.matrices, truth, (256, 256)).mean()
    assert errors[None] < 0.1
    assert errors[64] > 0.2


@pytest.mark.parametrize("size", [(118, 207), (119, 207), (201, 133)])
@pytest.mark.parametrize("motion", ["translation", "rigid"])
def test_pictures_of_a_shape_that_is_rounded_at_working_size(motion: str, size: tuple[int, int]) -> None:
    """36.5 rows of 64 columns are 36 or 37: what is lost or added there must not bend or stretch the motion."""
    images, truth = photograph_copies(motion, size)
    model = JointAlignment(motion=motion).fit(images)
    assert corner_error(model.transforms_.matrices, truth, size).mean() < 0.03
    turns = model.transforms_.matrices[:, :2, :2]
    np.testing.assert_allclose(turns @ turns.transpose(0, 2, 1), np.broadcast_to(np.eye(2), turns.shape), atol=1e-6)


def test_local_contrast_of_a_thing_that_is_shown_larger() -> None:
    """The same as that of the thing, larger: if its neighbourhood is."""
    waves = gaussian_blur(torch.randn(1, 1, 120, 120, generator=torch.Generator().manual_seed(0)), 3.0)
    waves = waves * torch.hann_window(120) * torch.hann_window(120)[:, None]  # on plain ground
    larger = torch.tensor([[[1 / 1.2, 0, 0.1 * 119 / 1.2], [0, 1 / 1.2, 0.1 * 119 / 1.2], [0, 0, 1]]])
    shown = warp(waves, larger, (120, 120), mode="bicubic")
    wanted = warp(local_contrast(waves), larger, (120, 120), mode="bicubic")
    plain, wider = (float((local_contrast(shown, by) - wanted).norm() / wanted.norm()) for by in (1.0, 1.2))
    assert wider < 0.07
    assert plain > 2 * wider


def test_small_pictures_are_brought_to_a_fraction_of_a_pixel_too() -> None:
    images, truth = photograph_copies("similarity", 64, 12)
    model = JointAlignment().fit(images)
    assert model.levels_ == (64,)
    assert corner_error(model.transforms_.matrices, truth, (64, 64)).mean() < 0.035
    assert model.decisions_["resolution"]["sentence"].startswith("Refined at 64 pixels")
    moved = align_new(model, images[:3]).transforms.matrices
    np.testing.assert_allclose(moved, model.transforms_.matrices[:3], atol=0.3)


def test_objects_stay_where_they_were_refined_on_the_same_pixels() -> None:
    """They have a size to keep, which joint steps know nothing of."""
    model = JointAlignment().fit(warped_digit()[0])
    assert model.decisions_["resolution"]["sentence"].startswith("Refined at 28 pixels (no finer level is available)")
    assert model.quality_.energy_ratio == pytest.approx(0.95, abs=0.005)


def test_a_thing_on_plain_ground_keeps_its_size() -> None:
    """Where all there is to see is one thing, a neighbourhood that does not grow with it pulls at its size."""
    from skimage.data import camera

    y, x = np.mgrid[-1:1:200j, -1:1:200j]
    inside = 1 / (1 + np.exp(30 * (np.hypot(x, 1.3 * y) - 0.7)))
    thing = 255 + (camera()[60:260, 150:350] - 255.0) * inside
    rng, side = torch.Generator().manual_seed(0), 96
    draws = (torch.rand(16, 4, generator=rng) * 2 - 1) * torch.tensor([0.1, 0.1, 0.2, 0.12])
    truth = from_normalised(matrix_from_parameters(draws), (side, side)).double()
    thing_from_scene = torch.tensor([[3.2, 0, -52.0], [0, 3.2, -52.0], [0, 0, 1]], dtype=torch.float64)
    seen = gaussian_blur(torch.as_tensor(thing).float()[None, None], 1.9).expand(16, -1, -1, -1)
    shown = warp(seen, (thing_from_scene @ truth).float(), (side, side), mode="bicubic", padding="border")
    images = shown[:, 0].clamp(0, 255).round().numpy().astype(np.uint8)
    model = JointAlignment(motion="similarity").fit(images)
    assert corner_error(model.transforms_.matrices, truth.numpy(), (side, side)).mean() < 0.06
    sizes = np.log(np.linalg.det((model.transforms_.matrices @ np.linalg.inv(truth.numpy()))[:, :2, :2])) / 2
    slope = np.polyfit(draws[:, 3].numpy(), sizes, 1)[0]
    assert abs(slope) < 0.004, "of a change of size, that is lost or added"


@pytest.mark.parametrize(("slanted", "most"), [(False, 0.03), (True, 0.03)])
def test_sampling_between_pixels_does_not_pull_at_shifted_pictures(slanted: bool, most: float) -> None:
    """slanted: of waves along one diagonal mostly, so that sampling along x pulls along y, too."""
    rng, side = np.random.default_rng(0), 128
    across, down = np.meshgrid(np.fft.fftfreq(side), np.fft.fftfreq(side))
    steps = np.hypot(across, down)
    spectrum = np.fft.fft2(rng.standard_normal((side, side))) / (0.02 + steps) * (steps < 0.35)
    if slanted:
        spectrum *= np.where(across * down > 0, 1, 0.2)
    shifts = np.stack([np.linspace(0, 3, 13), np.linspace(2, 0, 13)], 1)
    made = [np.fft.ifft2(spectrum * np.exp(-2j * np.pi * (across * x + down * y))).real for x, y in shifts]
    images = np.stack(made).astype(np.float32)[:, 16:-16, 16:-16]
    found = JointAlignment(size=32, motion="translation").fit(images).transforms_.matrices[:, :2, 2]
    off = found + shifts
    assert np.abs(off - off.mean(0)).max() < most, "the bias of bilinear sampling, and no more"


def test_levels_rise_and_are_in_the_history(model: Method) -> None:
    assert model.levels_ == (32, 96)
    assert model.decisions_["resolution"]["sentence"].startswith("Refined at 96 pixels")
    assert {row["size"] for row in model.history_} == {96}
    assert [row["step"] for row in model.history_] == list(range(1, len(model.history_) + 1))
    moved = [row["moved"] for row in model.history_]
    assert moved[-1] < 0.2 * moved[0], "it settles"


@pytest.mark.parametrize(("finest", "levels"), [(32, (32,)), (64, (32, 64)), (500, (32, 96))])
def test_finest_is_the_largest_size(
    copies: tuple[np.ndarray, np.ndarray], finest: int, levels: tuple[int, ...]
) -> None:
    found = JointAlignment(size=32, finest=finest, motion="similarity").fit(copies[0][:5])
    assert found.levels_ == levels
    assert np.isfinite(found.transforms_.uncertainty_px).all()


def test_several_levels_each_at_most_three_times_larger(copies: tuple[np.ndarray, np.ndarray]) -> None:
    found = JointAlignment(size=16, motion="similarity").fit(copies[0][:6])
    assert found.levels_[0] == 16
    assert all(1 < b / a <= 3 for a, b in pairwise(found.levels_))


def test_a_set_too_large_for_larger_pictures_is_judged_by_the_last_it_had(
    copies: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = JointAlignment(size=16, motion="similarity", finest=48).fit(copies[0][:6])
    monkeypatch.setattr(stacks, "MAX_COPY_VALUES", 6 * 48**2)
    found = JointAlignment(size=16, motion="similarity").fit(copies[0][:6])
    assert found.levels_ == whole.levels_ == (16, 48)
    assert np.array_equal(found.transforms_.matrices, whole.transforms_.matrices)
    assert np.array_equal(found.transforms_.uncertainty_px, whole.transforms_.uncertainty_px)


LARGE = 256


@pytest.fixture(scope="module")
def large_copies() -> tuple[np.ndarray, np.ndarray]:
    """Eight similarities of a photograph: images, truth."""
    return photograph_copies("similarity", LARGE, 8)


# ---- new images


def test_new_images_are_sharpened_too(model: Method, copies: tuple[np.ndarray, np.ndarray]) -> None:
    images, truth = copies
    new = align_new(model, images[8:])
    together = np.concatenate([model.transforms_.matrices, new.transforms.matrices])
    assert corner_error(together, truth, FRAME)[8:].max() < 0.1
    assert new.found.levels == model.levels_
    assert np.median(new.transforms.uncertainty_px) < 0.05


def test_an_image_alone_gets_the_pose_it_gets_among_others(
    model: Method, copies: tuple[np.ndarray, np.ndarray]
) -> None:
    new = copies[0][8:]
    together = align_new(model, new).transforms
    alone = align_new(model, new[2:3]).transforms
    assert apart(alone.matrices, together.matrices[2:3]) < 1e-5
    assert alone.uncertainty_px[0] == pytest.approx(together.uncertainty_px[2], rel=1e-5)


def test_a_model_from_a_file_sharpens_alike(
    model: Method, copies: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    model.save(tmp_path / "model.safetensors")
    loaded = congeal.load(tmp_path / "model.safetensors")
    assert align_new(loaded, copies[0][8:]).transforms == align_new(model, copies[0][8:]).transforms


def test_new_images_that_are_smaller_than_the_finest_level(
    model: Method, copies: tuple[np.ndarray, np.ndarray]
) -> None:
    images, truth = copies
    small = torch.nn.functional.avg_pool2d(torch.as_tensor(images[8:]).float()[:, None], 2)[:, 0].round()
    new = align_new(model, small.numpy().astype(np.uint8)).transforms
    half = np.array([[2, 0, 0.5], [0, 2, 0.5], [0, 0, 1.0]])  # from pixels of the small picture to those of the large
    seen = new.matrices @ invert(half[None])
    together = np.concatenate([model.transforms_.matrices, seen])
    assert corner_error(together, truth, FRAME)[8:].max() < 0.5
    assert np.isfinite(new.uncertainty_px).all()


# ---- error bars


@pytest.mark.parametrize(("motion", "n"), [("translation", 6), ("similarity", 6), ("homography", 12)])
def test_true_errors_lie_within_the_error_bars(motion: str, n: int) -> None:
    images, truth = photograph_copies(motion, SIDE, n)
    found = JointAlignment(size=32).fit(images).transforms_
    off = corner_error(found.matrices, truth, FRAME) / found.uncertainty_px
    assert np.mean(off < 2.5) >= 0.8
    assert off.max() < 5, "nobody is surely wrong"
    assert np.median(off) > 0.3, "and the bars are no wider than they need be"


def test_error_bars_grow_with_noise(model: Method) -> None:
    noisy, _ = photograph_copies("similarity", SIDE, 8, noise=0.1)
    found = JointAlignment(size=32, motion="similarity").fit(noisy).transforms_
    assert np.median(found.uncertainty_px) > 2 * np.median(model.transforms_.uncertainty_px)


def test_images_without_larger_originals_have_error_bars_too() -> None:
    model = JointAlignment(restarts=2).fit(pixels("3", 0, 24))
    assert model.levels_ == (28,)
    assert model.decisions_["resolution"]["sentence"].startswith("Refined at 28 pixels (no finer level is available)")
    bars = model.transforms_.uncertainty_px
    assert np.isfinite(bars).all()
    assert bars.min() > 0
    assert bars.max() < 14, "half of the picture"
    assert np.isfinite(align_new(model, pixels("3", 24, 30)).transforms.uncertainty_px).all()


def test_error_bars_are_in_pixels_of_the_originals(copies: tuple[np.ndarray, np.ndarray]) -> None:
    """The same pictures, each pixel four times: the same poses, bars twice as long."""
    images = copies[0][:6]
    doubled = images.repeat(2, 1).repeat(2, 2)
    once, twice = (
        JointAlignment(size=32, finest=SIDE, motion="similarity").fit(some).transforms_ for some in (images, doubled)
    )
    half = np.array([[0.5, 0, -0.25], [0, 0.5, -0.25], [0, 0, 1.0]])
    assert apart(compose(half, twice.matrices, invert(half)), once.matrices) < 0.02
    assert np.median(twice.uncertainty_px / once.uncertainty_px) == pytest.approx(2, rel=0.3)


def test_an_image_is_not_compared_with_itself() -> None:
    """Where an image is alone nothing is known of its pose; where it is one of two, it is compared with the other."""
    tiles = Tiles((16, 16), 4, torch.tensor([[2, 2], [8, 2], [2, 8], [8, 8]]))
    rng = torch.Generator().manual_seed(0)
    seen = torch.rand(4, 4, 6, 6, generator=rng)
    covered = torch.ones(4, 4)
    covered[1:, 0] = 0  # only the first image shows the first tile …
    covered[2:, 1] = 0  # … and two show the second
    sums = TileSums(tiles, 0.0)
    sums.add(seen, covered)
    level = sums.template()
    assert level.count.tolist() == [0, 2, 4, 4]
    _, residual = TileSolver(level, "translation")._residual(seen, torch.ones(4, dtype=torch.bool))
    expected = tiles.inner(seen[0] - seen[1])[1]
    torch.testing.assert_close(residual[0, 1], expected, atol=1e-5, rtol=0)
    others = tiles.inner(seen[0] - seen[1:].mean(0))[2]
    torch.testing.assert_close(residual[0, 2], others, atol=1e-5, rtol=0)


def test_a_few_images_meet_at_their_mean_in_one_step() -> None:
    """Each is compared with the mean of the others, and all move: a whole step would take every one too far."""
    images, truth = photograph_copies("translation", 192, 5)
    stack, keep, moved = stacks.prepare(congeal.open_images(images), size=192), torch.ones(5, dtype=torch.bool), []
    poses = torch.as_tensor(invert(truth))
    poses[:, :2, 2] += torch.tensor([[0.3, 0.0], [-0.3, 0.2], [0.0, -0.2], [0.2, 0.2], [-0.2, -0.2]])
    level = LevelImages(stack, PhotoEdges())
    refine_tiles(level, poses, "translation", keep, passes=2, on_pass=lambda **now: moved.append(now["moved"]))
    assert moved[1] < 0.2 * moved[0], "0.3 with whole steps"


def test_an_image_that_is_lost_does_not_claim_to_be_sure(large_copies: tuple[np.ndarray, np.ndarray]) -> None:
    images = large_copies[0].copy()
    images[3] = np.random.default_rng(0).integers(0, 256, images[3].shape)
    bars = JointAlignment(motion="similarity").fit(images).transforms_.uncertainty_px
    assert bars[3] > LARGE / 4
    assert np.delete(bars, 3).max() < 0.1
