"""Finer levels: poses as exact as the originals allow, and how sure they are."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from known_warps import align_new, photograph_copies, pixels, warped_digit
from safetensors import safe_open
from safetensors.torch import save_file

import congeal
from congeal import DeepCongealing
from congeal.geometry import compose, from_normalised, invert, map_points, matrix_from_parameters, warp
from congeal.geometry.matrix import corners
from congeal.images import stack as stacks
from congeal.methods.base import Method
from congeal.methods.deep import finer
from congeal.metrics import corner_error
from congeal.solvers import sharpen, values, votes
from congeal.solvers.appearance import PhotoEdges
from congeal.solvers.contrast import local_contrast
from congeal.solvers.filters import blur
from congeal.solvers.halves import Common
from congeal.solvers.level import Level, LevelSums
from congeal.solvers.tiles import Tiles
from congeal.solvers.values import Valued, sharpen_values
from congeal.solvers.votes import Poll

SIDE = 96
FRAME = (SIDE, SIDE)
NO_LEVEL = Level(Tiles(FRAME, 16, torch.zeros(0, 2)), *torch.zeros(3, 0), floor=0.0, common=Common(*torch.zeros(4, 2)))


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
    return DeepCongealing(size=32).fit(copies[0][:8])


# ---- how exact


def test_poses_are_as_exact_as_the_originals_allow() -> None:
    images, truth = photograph_copies("homography", 256)
    errors = {}
    for finest in (None, 64):
        model = DeepCongealing(finest=finest).fit(images)
        errors[finest] = corner_error(model.transforms_.matrices, truth, (256, 256)).mean()
    assert errors[None] < 0.1
    assert errors[64] > 0.2


@pytest.mark.parametrize("size", [(118, 207), (119, 207), (201, 133)])
@pytest.mark.parametrize("motion", ["translation", "rigid"])
def test_pictures_of_a_shape_that_is_rounded_at_working_size(motion: str, size: tuple[int, int]) -> None:
    """36.5 rows of 64 columns are 36 or 37: what is lost or added there must not bend or stretch the motion."""
    images, truth = photograph_copies(motion, size)
    model = DeepCongealing(motion=motion).fit(images)
    assert corner_error(model.transforms_.matrices, truth, size).mean() < 0.03
    turns = model.transforms_.matrices[:, :2, :2]
    np.testing.assert_allclose(turns @ turns.transpose(0, 2, 1), np.broadcast_to(np.eye(2), turns.shape), atol=1e-6)


def test_local_contrast_of_a_thing_that_is_shown_larger() -> None:
    """The same as that of the thing, larger: if its neighbourhood is."""
    waves = blur(torch.randn(1, 1, 120, 120, generator=torch.Generator().manual_seed(0)), 3.0)
    waves = waves * torch.hann_window(120) * torch.hann_window(120)[:, None]  # on plain ground
    larger = torch.tensor([[[1 / 1.2, 0, 0.1 * 119 / 1.2], [0, 1 / 1.2, 0.1 * 119 / 1.2], [0, 0, 1]]])
    shown = warp(waves, larger, (120, 120), mode="bicubic")
    wanted = warp(local_contrast(waves), larger, (120, 120), mode="bicubic")
    plain, wider = (float((local_contrast(shown, by) - wanted).norm() / wanted.norm()) for by in (1.0, 1.2))
    assert wider < 0.07
    assert plain > 2 * wider


def test_small_pictures_are_brought_to_a_fraction_of_a_pixel_too() -> None:
    images, truth = photograph_copies("similarity", 64, 12)
    model = DeepCongealing().fit(images)
    assert model.levels_ == (64,)
    assert corner_error(model.transforms_.matrices, truth, (64, 64)).mean() < 0.035
    assert model.decisions_["resolution"]["sentence"].startswith("Worked at 64 pixels: poses are known to 0.0")
    moved = align_new(model, images[:3]).transforms.matrices
    np.testing.assert_allclose(moved, model.transforms_.matrices[:3], atol=0.3)


def test_objects_stay_where_they_were_refined_on_the_same_pixels() -> None:
    """They have a size to keep, which joint steps know nothing of."""
    model = DeepCongealing().fit(warped_digit()[0])
    assert model.decisions_["resolution"]["sentence"] == "Worked at 28 pixels: as fine as the images are."
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
    seen = blur(torch.as_tensor(thing).float()[None, None], 1.9).expand(16, -1, -1, -1)
    shown = warp(seen, (thing_from_scene @ truth).float(), (side, side), mode="bicubic", padding="border")
    images = shown[:, 0].clamp(0, 255).round().numpy().astype(np.uint8)
    model = DeepCongealing(motion="similarity").fit(images)
    assert corner_error(model.transforms_.matrices, truth.numpy(), (side, side)).mean() < 0.06
    sizes = np.log(np.linalg.det((model.transforms_.matrices @ np.linalg.inv(truth.numpy()))[:, :2, :2])) / 2
    slope = np.polyfit(draws[:, 3].numpy(), sizes, 1)[0]
    assert abs(slope) < 0.004, "of a change of size, that is lost or added"


@pytest.mark.parametrize(("slanted", "most"), [(False, 0.004), (True, 0.006)])
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
    found = DeepCongealing(size=32, motion="translation").fit(images).transforms_.matrices[:, :2, 2]
    off = found + shifts
    assert np.abs(off - off.mean(0)).max() < most, (
        "0.017 with the bias of bilinear weights, 0.009 with what it does across"
    )


def test_levels_rise_and_are_in_the_history(model: Method) -> None:
    assert model.levels_ == (32, 96)
    assert model.decisions_["resolution"]["sentence"].startswith("Worked at 32 pixels, then 96")
    assert {row["size"] for row in model.history_} == {96}
    assert [row["step"] for row in model.history_] == list(range(1, len(model.history_) + 1))
    moved = [row["moved"] for row in model.history_]
    assert moved[-1] < 0.2 * moved[0], "it settles"


@pytest.mark.parametrize(("finest", "levels"), [(32, (32,)), (64, (32, 64)), (500, (32, 96))])
def test_finest_is_the_largest_size(
    copies: tuple[np.ndarray, np.ndarray], finest: int, levels: tuple[int, ...]
) -> None:
    found = DeepCongealing(size=32, finest=finest, motion="similarity").fit(copies[0][:5])
    assert found.levels_ == levels
    assert np.isfinite(found.transforms_.uncertainty_px).all()


def test_several_levels_each_at_most_three_times_larger(copies: tuple[np.ndarray, np.ndarray]) -> None:
    found = DeepCongealing(size=16, motion="similarity").fit(copies[0][:6])
    assert found.levels_[0] == 16
    assert all(1 < b / a <= 3 for a, b in pairwise(found.levels_))


def test_a_set_too_large_for_larger_pictures_is_judged_by_the_last_it_had(
    copies: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = DeepCongealing(size=16, motion="similarity", finest=48).fit(copies[0][:6])
    monkeypatch.setattr(stacks, "_MOST_VALUES", 6 * 48**2)
    found = DeepCongealing(size=16, motion="similarity").fit(copies[0][:6])
    assert found.levels_ == whole.levels_ == (16, 48)
    assert np.array_equal(found.transforms_.matrices, whole.transforms_.matrices)
    assert np.array_equal(found.transforms_.uncertainty_px, whole.transforms_.uncertainty_px)


# ---- plain values


def test_plain_values_make_poses_more_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local contrast has a neighbourhood of fixed size, which shows other things in a view of another scale."""
    images, truth = photograph_copies("similarity", 192, 8)
    by_both = DeepCongealing(motion="similarity").fit(images)
    monkeypatch.setattr(finer, "_on_values", lambda *_: None)
    by_contrast = DeepCongealing(motion="similarity").fit(images)
    errors = [corner_error(m.transforms_.matrices, truth, (192, 192)).mean() for m in (by_both, by_contrast)]
    assert errors[0] < 0.85 * errors[1]
    assert "plain values of 192 pixels" in by_both.decisions_["resolution"]["sentence"]
    assert "plain values" not in by_contrast.decisions_["resolution"]["sentence"]
    assert by_both.levels_ == by_contrast.levels_, "new images are compared as before"


def test_uneven_light_does_not_mislead_plain_values() -> None:
    even, truth = photograph_copies("similarity", 192, 8)
    y, x = np.mgrid[-1:1:192j, -1:1:192j]
    turns = np.linspace(0, 2 * np.pi, 8, endpoint=False)
    light = 0.75 + 0.25 * np.stack([np.cos(turn) * x + np.sin(turn) * y for turn in turns])
    lit = (even * light).round().astype(np.uint8)
    one, other = (DeepCongealing(motion="similarity").fit(images) for images in (even, lit))
    errors = [corner_error(m.transforms_.matrices, truth, (192, 192)).mean() for m in (one, other)]
    assert errors[1] < 2 * errors[0] + 0.005


def test_clipped_highlights_do_not_mislead_plain_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the photograph is white at the longest exposure, and its edges move with the exposure."""
    even, truth = photograph_copies("similarity", 192, 8)
    exposures = np.linspace(1.0, 1.5, 8)[:, None, None] * 255 / np.quantile(even, 0.9)
    burnt = (even * exposures).clip(0, 255).round().astype(np.uint8)
    without = DeepCongealing(motion="similarity").fit(burnt)
    monkeypatch.setattr(values, "_same_white", lambda _: True)
    with_them = DeepCongealing(motion="similarity").fit(burnt)
    errors = [corner_error(m.transforms_.matrices, truth, (192, 192)).mean() for m in (without, with_them)]
    assert errors[0] < 0.7 * errors[1]


def test_only_other_exposures_make_highlights_unlike() -> None:
    same = torch.tensor([[0.30, 0.2], [0.301, 0.2], [0.30, 0.2005]])
    assert values._same_white(same)
    assert not values._same_white(same * torch.tensor([[1.0], [0.9], [1.1]]))


def test_what_parts_with_the_exposure_is_in_the_bar(copies: tuple[np.ndarray, np.ndarray]) -> None:
    """Plain values are off by 0.1 pixels for every 10 % of exposure, and by 0.2 whatever it is."""
    stack, n = stacks.prepare(congeal.open_images(copies[0]), size=SIDE), 12
    exposure, all_agree = torch.linspace(-0.1, 0.1, n).double(), torch.ones(n, dtype=torch.bool)
    entry = torch.eye(3, dtype=torch.float64).repeat(n, 1, 1)
    off = entry.clone()
    off[:, 0, 2] += exposure + 0.2
    found = Valued(off, torch.ones(n), torch.ones(n), NO_LEVEL, exposure)
    parted = finer._parted_by_exposure(entry, found, stack, all_agree)
    torch.testing.assert_close(parted, exposure.abs())
    alike = Valued(off, torch.ones(n), torch.ones(n), NO_LEVEL, torch.zeros(n).double())
    assert not finer._parted_by_exposure(entry, alike, stack, all_agree).any()


@pytest.mark.parametrize("wrong", ["poses", "errors"])
def test_plain_values_that_contradict_or_know_less_are_not_taken(
    copies: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    def misled(_: object, poses: torch.Tensor, *__: object) -> Valued:
        shift = torch.eye(3, dtype=torch.float64)
        shift[0, 2] = 3.0 if wrong == "poses" else 0.0
        error = torch.full((len(poses),), 1e-3 if wrong == "poses" else 9.0, dtype=torch.float64)
        return Valued(poses @ shift, error, error, NO_LEVEL, torch.zeros(len(poses)))

    monkeypatch.setattr(finer, "sharpen_values", misled)
    found = DeepCongealing(size=32, motion="similarity").fit(copies[0][:6])
    assert corner_error(found.transforms_.matrices, copies[1][:6], FRAME).max() < 0.1
    assert "plain values" not in found.decisions_["resolution"]["sentence"]


LARGE = 256


@pytest.fixture(scope="module")
def large_copies() -> tuple[np.ndarray, np.ndarray]:
    """Eight similarities of a photograph: images, truth."""
    return photograph_copies("similarity", LARGE, 8)


@pytest.fixture(scope="module")
def by_values(large_copies: tuple[np.ndarray, np.ndarray]) -> Method:
    """Fitted on the first six of them, which would also be looked at in pictures of 180 pixels."""
    return DeepCongealing(size=20, motion="similarity").fit(large_copies[0][:6])


def test_plain_values_make_levels_between_unnecessary(
    by_values: Method, large_copies: tuple[np.ndarray, np.ndarray]
) -> None:
    assert by_values.levels_ == (20, 60, LARGE)
    assert {row["size"] for row in by_values.history_} == {60}
    assert corner_error(by_values.transforms_.matrices, large_copies[1][:6], (LARGE, LARGE)).max() < 0.03


def test_one_image_that_contradicts_is_enough_to_look_at_levels_between(
    large_copies: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    def misled(*given: Any) -> Valued:
        found = sharpen_values(*given)
        found.poses[0, 0, 2] += 5
        return found

    monkeypatch.setattr(finer, "sharpen_values", misled)
    found = DeepCongealing(size=20, motion="similarity").fit(large_copies[0][:6])
    assert found.levels_[:3] == (20, 60, 180)
    assert corner_error(found.transforms_.matrices, large_copies[1][:6], (LARGE, LARGE)).max() < 0.1


def test_new_images_end_on_plain_values_too(
    by_values: Method, large_copies: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    images, truth = large_copies
    new = align_new(by_values, images[6:]).transforms
    together = np.concatenate([by_values.transforms_.matrices, new.matrices])
    assert corner_error(together, truth, (LARGE, LARGE))[6:].max() < 0.04
    assert new.uncertainty_px.max() < 0.03
    alone = align_new(by_values, images[7:]).transforms
    assert apart(alone.matrices, new.matrices[1:]) < 1e-4, "but for the last digits of sums"
    by_values.save(tmp_path / "model.safetensors")
    assert align_new(congeal.load(tmp_path / "model.safetensors"), images[6:]).transforms == new


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_tiles_cut_out_of_a_picture_show_what_the_picture_shows(
    large_copies: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch, dtype: type
) -> None:
    grey = large_copies[0][:2].astype(dtype)
    images = np.stack([grey, grey // 2, 255 - grey], -1)
    stack = stacks.prepare(congeal.open_images(images), size=LARGE)
    shift = torch.tensor([[0.99, 0.03, -7.3], [-0.02, 1.01, 9.6], [1e-5, 2e-5, 1]], dtype=torch.float64)
    poses, tiles = (
        shift.repeat(2, 1, 1),
        Tiles((LARGE, LARGE), 16, torch.tensor([[0, 0], [64, 80], [239, 120], [239, 239]])),
    )
    part = np.arange(2)
    whole, seen_whole = sharpen.Details(stack, PhotoEdges(), plain=True).on_tiles(part, poses, tiles)
    monkeypatch.setattr(sharpen, "CHUNK_VALUES", 1)
    cut, seen_cut = sharpen.Details(stack, PhotoEdges(), plain=True).on_tiles(part, poses, tiles)
    assert torch.equal(seen_whole, seen_cut)
    assert 0 < seen_cut.sum() < seen_cut.numel()
    torch.testing.assert_close(cut, whole * seen_whole[..., None, None], atol=2e-4, rtol=0)


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


def test_a_model_that_does_not_know_what_is_noise_still_aligns(
    model: Method, copies: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    """As models of earlier versions."""
    path = tmp_path / "model.safetensors"
    model.save(path)
    with safe_open(path, "pt") as file:
        about, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file({name: tensor for name, tensor in tensors.items() if not name.endswith(".common")}, path, about)
    new, old = (align_new(one, copies[0][8:]).transforms for one in (model, congeal.load(path)))
    assert apart(new.matrices, old.matrices) < 0.01


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
    found = DeepCongealing(size=32).fit(images).transforms_
    off = corner_error(found.matrices, truth, FRAME) / found.uncertainty_px
    assert np.mean(off < 2.5) >= 0.8
    assert off.max() < 5, "nobody is surely wrong"
    assert np.median(off) > 0.3, "and the bars are no wider than they need be"


def test_error_bars_grow_with_noise(model: Method) -> None:
    noisy, _ = photograph_copies("similarity", SIDE, 8, noise=0.1)
    found = DeepCongealing(size=32, motion="similarity").fit(noisy).transforms_
    assert np.median(found.uncertainty_px) > 2 * np.median(model.transforms_.uncertainty_px)


def test_images_without_larger_originals_have_error_bars_too() -> None:
    model = DeepCongealing(restarts=2).fit(pixels("3", 0, 24))
    assert model.levels_ == (28,)
    assert model.decisions_["resolution"]["sentence"] == "Worked at 28 pixels: as fine as the images are."
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
        DeepCongealing(size=32, finest=SIDE, motion="similarity").fit(some).transforms_ for some in (images, doubled)
    )
    half = np.array([[0.5, 0, -0.25], [0, 0.5, -0.25], [0, 0, 1.0]])
    assert apart(compose(half, twice.matrices, invert(half)), once.matrices) < 0.02
    assert np.median(twice.uncertainty_px / once.uncertainty_px) == pytest.approx(2, rel=0.3)


def test_an_image_is_not_its_own_witness() -> None:
    """Where an image is alone nothing is known of its pose; where it is one of two, it is compared with the other."""
    tiles = Tiles((16, 16), 4, torch.tensor([[2, 2], [8, 2], [2, 8], [8, 8]]))
    rng = torch.Generator().manual_seed(0)
    seen = torch.rand(4, 4, 6, 6, generator=rng)
    covered = torch.ones(4, 4)
    covered[1:, 0] = 0  # only the first image shows the first tile …
    covered[2:, 1] = 0  # … and two show the second
    sums = LevelSums(tiles, 0.0)
    sums.add(seen, covered)
    level = sums.level()
    assert level.count.tolist() == [0, 2, 4, 4]
    _, residual = Poll(level, "translation")._residual(seen, torch.ones(4, dtype=torch.bool))
    expected = tiles.inner(seen[0] - seen[1])[1]
    torch.testing.assert_close(residual[0, 1], expected, atol=1e-5, rtol=0)
    others = tiles.inner(seen[0] - seen[1:].mean(0))[2]
    torch.testing.assert_close(residual[0, 2], others, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("apart", "least", "most"),
    [
        (0.02, 0.095, 0.105),  # both err alike: what they share is not averaged away
        (0.1414, 0.075, 0.085),  # each by itself: nearly the root of two better than one
        (0.2828, 0.15, 0.17),  # farther apart than their errors explain: neither is as sure as it thinks
    ],
)
def test_two_answers_together_are_as_sure_as_their_distance_says(apart: float, least: float, most: float) -> None:
    one, everyone = torch.full((20,), 0.1), torch.ones(20, dtype=torch.bool)
    error = finer._joined(torch.full((20,), apart), one, one, torch.full((20,), 0.5), everyone)
    assert least < float(error[0]) < most


def test_two_answers_are_as_far_apart_as_their_corners_on_the_mean(copies: tuple[np.ndarray, np.ndarray]) -> None:
    """Not as the farthest of four: that would call free corners farther apart than their errors explain."""
    stack = stacks.prepare(congeal.open_images(copies[0][:1]), size=SIDE)
    one = torch.eye(3, dtype=torch.float64)[None]
    shift, stretch = one.clone(), one.clone()
    shift[:, 0, 2] = 0.3
    stretch[:, 0, 0] += 0.01  # about the left edge: two corners stay
    stretch[:, 0, 2] += 0.005
    assert float(finer._mean_distance(one, shift, stack)) == pytest.approx(0.3)
    assert float(finer._mean_distance(one, stretch, stack)) == pytest.approx(0.01 * SIDE / 2)


def test_a_few_images_meet_at_their_mean_in_one_step() -> None:
    """Each is compared with the mean of the others, and all move: a whole step would take every one too far."""
    assert votes.share_of_others(torch.tensor([True, True, False])).tolist() == [0.5, 0.5, 1.0]
    assert votes.share_of_others(torch.zeros(1, dtype=torch.bool)).tolist() == [1.0]
    images, truth = photograph_copies("translation", 192, 5)
    stack, keep, moved = stacks.prepare(congeal.open_images(images), size=192), torch.ones(5, dtype=torch.bool), []
    poses = torch.as_tensor(invert(truth))
    poses[:, :2, 2] += torch.tensor([[0.3, 0.0], [-0.3, 0.2], [0.0, -0.2], [0.2, 0.2], [-0.2, -0.2]])
    details = sharpen.Details(stack, PhotoEdges())
    sharpen.sharpen(details, poses, "translation", keep, passes=2, on_pass=lambda by, _: moved.append(by))
    assert moved[1] < 0.2 * moved[0], "0.3 with whole steps"


def test_an_image_that_is_lost_does_not_claim_to_be_sure(large_copies: tuple[np.ndarray, np.ndarray]) -> None:
    images = large_copies[0].copy()
    images[3] = np.random.default_rng(0).integers(0, 256, images[3].shape)
    bars = DeepCongealing(motion="similarity").fit(images).transforms_.uncertainty_px
    assert bars[3] > LARGE / 4
    assert np.delete(bars, 3).max() < 0.1
