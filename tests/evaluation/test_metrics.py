"""Metrics: definitions against NumPy and against cases whose answer is known."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from congeal import evaluation as metrics
from congeal.datasets import open_named
from congeal.errors import CongealError
from congeal.geometry import matrix
from congeal.geometry.frame_coverage import covered

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def threes() -> np.ndarray:
    return open_named("digits:3").batch(np.arange(200))[..., 0]


# ---- running statistics


@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize("parts", [1, 100])
def test_statistics_of_many_values(offset: float, parts: int) -> None:
    values = offset + np.random.default_rng(1).standard_normal(100_000)
    stats = metrics.RunningStats()
    for part in np.array_split(values, parts):
        stats.update(part)
    assert stats.count == 100_000
    assert abs(stats.mean - values.mean()) < 1e-9
    assert abs(stats.variance / values.var() - 1) < 1e-9


def test_statistics_with_batches_far_apart() -> None:
    values = np.concatenate([RNG.normal(0, 1, (500, 4)), RNG.normal(1e6, 1, (300, 4)), RNG.normal(-1e6, 1, (9, 4))])
    stats = metrics.RunningStats()
    for part in np.array_split(values, 13):
        stats.update(part)
    np.testing.assert_allclose(stats.mean, values.mean(0), rtol=1e-12)
    np.testing.assert_allclose(stats.variance, values.var(0), rtol=1e-12)
    assert stats.mse == pytest.approx(values.var(0).mean(), rel=1e-12)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.float64, "torch"])
def test_statistics_take_every_kind_of_number(dtype: Any) -> None:
    values = RNG.uniform(0, 255, (50, 3, 4, 5))
    if dtype == "torch":
        batch: Any = torch.from_numpy(values).requires_grad_()
    else:
        batch = values = values.astype(dtype)
    stats = metrics.RunningStats().update(batch)
    assert stats.mean.shape == (3, 4, 5)
    np.testing.assert_allclose(stats.mean, values.astype(np.float64).mean(0), rtol=1e-12)
    np.testing.assert_allclose(stats.variance, values.astype(np.float64).var(0), rtol=1e-9)


def test_statistics_merge_in_any_order() -> None:
    values = RNG.uniform(size=(90, 6))
    parts = [metrics.RunningStats().update(values[i::3]) for i in range(3)]
    total = metrics.RunningStats().merge(parts[2]).merge(metrics.RunningStats()).merge(parts[0]).merge(parts[1])
    assert total.count == 90
    np.testing.assert_allclose(total.mean, values.mean(0))
    np.testing.assert_allclose(total.variance, values.var(0))
    np.testing.assert_allclose(parts[2].variance, values[2::3].var(0), err_msg="merging does not change its argument")


def test_statistics_with_masks() -> None:
    values, weights = RNG.uniform(size=(40, 2, 3, 3)), RNG.uniform(size=(40, 1, 3, 3))
    weights[:, :, 0, 0] = 0
    stats = metrics.RunningStats().update(values[:10], weights[:10]).update(values[10:], weights[10:])
    w = np.broadcast_to(weights, values.shape)[..., 1:, :]
    mean = np.average(values[..., 1:, :], axis=0, weights=w)
    np.testing.assert_allclose(stats.mean[:, 1:], mean)
    np.testing.assert_allclose(stats.variance[:, 1:], np.average((values[..., 1:, :] - mean) ** 2, axis=0, weights=w))
    assert (stats.mean[:, 0, 0] == 0).all()
    assert (stats.variance[:, 0, 0] == 0).all()
    ones = metrics.RunningStats().update(values, np.ones((40, 1, 1, 1)))
    assert ones.mse == pytest.approx(metrics.RunningStats().update(values).mse)


@pytest.mark.parametrize("weighed", [[0, 1, 8], [3], [0, 9], [], list(range(10)), [4, 5]])
def test_columns_that_all_images_cover_are_summed_like_the_others(weighed: list[int]) -> None:
    rng = np.random.default_rng(0)
    values, weights = rng.integers(0, 256, (9, 6, 3, 10), dtype=np.uint8), np.ones((9, 6, 1, 10), np.float32)
    weights[..., weighed] = rng.uniform(0.1, 1, (9, 6, 1, len(weighed)))
    stats = metrics.RunningStats().update(values[:5], weights[:5]).update(values[5:], weights[5:])
    mean = np.average(values, axis=0, weights=np.broadcast_to(weights, values.shape))
    squares = np.average((values - mean) ** 2, axis=0, weights=np.broadcast_to(weights, values.shape))
    np.testing.assert_allclose(stats.mean, mean, rtol=1e-5)
    np.testing.assert_allclose(stats.variance, squares, rtol=1e-4)


@pytest.mark.parametrize("shape", [(7, 2, 5), (40,), (1,)])
def test_statistics_do_not_depend_on_how_they_are_cut(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    values = RNG.integers(0, 256, (600, *shape), dtype=np.uint8)
    weights = np.where(RNG.uniform(size=values.shape) < 0.7, 1, RNG.uniform(size=values.shape)).astype(np.float32)
    for given, rtol in ((None, 1e-12), (weights, 1e-6), (weights[:, :1], 1e-6), (np.ones_like(weights), 1e-12)):
        w = np.ones(values.shape) if given is None else np.broadcast_to(given, values.shape).astype(np.float64)
        mean = (w * values).sum(0) / w.sum(0)
        variance = (w * (values - mean) ** 2).sum(0) / w.sum(0)
        for at_once in (1, 33, 1 << 16):
            monkeypatch.setattr("congeal.evaluation.statistics.CHUNK_VALUES", at_once)
            stats = metrics.RunningStats()
            for start, stop in ((0, 1), (1, 300), (300, 600)):
                stats.update(values[start:stop], None if given is None else given[start:stop])
            np.testing.assert_allclose(stats.mean, mean, rtol=rtol)
            np.testing.assert_allclose(stats.variance, variance, rtol=rtol)
            noted = {name: array.copy() for name, array in stats.state().items()}
            back = metrics.RunningStats.restore(noted).update(values[:5])
            np.testing.assert_allclose(back.update(values[:5]).mean, stats.update(values[:10][[*range(5)] * 2]).mean)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_that_cover_a_part_of_the_frame_count_there(channels: int) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (9, 20, 26, channels), dtype=np.uint8)
    turns = np.eye(3) + rng.normal(0, 0.1, (9, 3, 3)) * [[1, 1, 40], [1, 1, 40], [0.01, 0.01, 0]]
    weights = covered(turns, (20, 26), (20, 26))[..., None]
    expected = metrics.RunningStats().update(images.astype(np.float64), weights.astype(np.float64))
    whole = metrics.RunningStats().update(images, weights)
    half = metrics.RunningStats().update(images[:5], weights[:5])
    other = metrics.RunningStats().update(images[5:], weights[5:])
    for stats in (whole, metrics.RunningStats.restore(half.state()).merge(other)):
        assert stats.count == 9
        assert stats.mse == pytest.approx(expected.mse)
        np.testing.assert_allclose(stats.mean, expected.mean, atol=1e-9)
        np.testing.assert_allclose(stats.variance, expected.variance, atol=1e-7)
        np.testing.assert_allclose(stats.rows(slice(3, 8)).variance, expected.variance[3:8], atol=1e-7)


def test_bytes_and_other_numbers_are_put_together() -> None:
    values = RNG.integers(0, 256, (12, 6, 5, 3)).astype(np.float64)
    weights = RNG.uniform(0.1, 1, (12, 6, 5, 1))
    stats = metrics.RunningStats().update(values[:4].astype(np.uint8), weights[:4])
    stats.update(values[4:9], weights[4:9]).merge(
        metrics.RunningStats().update(values[9:].astype(np.uint8), weights[9:])
    )
    expected = metrics.RunningStats().update(values, weights)
    back = metrics.RunningStats.restore(stats.state())
    for found in (stats, back):
        np.testing.assert_allclose(found.mean, expected.mean)
        np.testing.assert_allclose(found.variance, expected.variance)
        np.testing.assert_allclose(found.rows(slice(1, 4)).mean, expected.mean[1:4])


def test_bytes_in_any_order_have_the_same_sums_to_the_last_digit() -> None:
    values = RNG.integers(0, 256, (700, 3, 4), dtype=np.uint8)
    one, other = metrics.RunningStats(), metrics.RunningStats()
    for part in np.array_split(values, 5):
        one.update(part)
    for part in np.array_split(values[::-1], 90):
        other.update(part)
    np.testing.assert_array_equal(one.mean, other.mean)
    np.testing.assert_array_equal(one.variance, other.variance)


def test_statistics_say_what_is_wrong() -> None:
    stats = metrics.RunningStats()
    with pytest.raises(CongealError, match="no mean of no images"):
        _ = stats.mean
    stats.update(np.zeros((0, 2, 3))).update(np.zeros((4, 2, 3)))
    with pytest.raises(CongealError, match=r"of \(2, 3\), not an array of shape \(4, 3, 2\)"):
        stats.update(np.zeros((4, 3, 2)))
    with pytest.raises(CongealError, match="cannot merge"):
        stats.merge(metrics.RunningStats().update(np.zeros((1, 5))))


# ---- APSNR


def test_apsnr_is_the_formula(threes: np.ndarray) -> None:
    x = threes.astype(np.float64)
    mse = sum(((image - x.mean(0)) ** 2).sum() for image in x) / x.size
    assert metrics.apsnr(threes) == pytest.approx(10 * np.log10(255**2 / mse), abs=1e-10)
    assert metrics.apsnr_from_variance(x.var(0)) == pytest.approx(metrics.apsnr(threes), abs=1e-10)
    assert metrics.apsnr(np.repeat(RNG.uniform(size=(1, 5, 5)), 9, axis=0)) == float("inf")


# ---- cheating


def test_energy_and_blanks() -> None:
    assert metrics.energy_ratio([1.0, 2], [2.0, 4]) == 0.5
    assert np.isnan(metrics.energy_ratio([0.0], [0.0]))
    assert metrics.ink(torch.full((2, 1, 3, 3), 2.0)).tolist() == [18, 18]
    assert metrics.blank([100.0, 99, 101, 1, 0]).tolist() == [False, False, False, True, True]
    assert metrics.blank([0.0, 0]).all()
    assert metrics.blank([]).shape == (0,)
    assert metrics.blank([3.0, 1.0], median=100).tolist() == [False, True]


def test_mean_scale() -> None:
    turn = np.array([[0.0, -3, 1], [3, 0, 2], [0, 0, 1]])
    assert metrics.mean_scale(turn[None]) == pytest.approx(3)
    assert metrics.mean_scale(np.stack([np.diag([2.0, 8, 1]), np.eye(3)])) == pytest.approx(2.0)  # geometric
    assert metrics.mean_scale(np.stack([turn, np.full((3, 3), np.nan)])) == pytest.approx(3), (
        "skipped rows do not count"
    )
    assert metrics.mean_scale(np.stack([turn] * 2), start=np.diag([3.0, 3, 1])) == pytest.approx(1)
    assert np.isnan(metrics.mean_scale(np.full((1, 3, 3), np.nan)))
    with pytest.raises(CongealError, match="size of the aligned frame"):
        metrics.mean_scale(np.array([[[1, 0, 0], [0, 1, 0], [0.01, 0, 1.0]]]))


def test_mean_scale_of_a_homography_is_taken_at_the_frame_centre() -> None:
    m = np.array([[1.2, 0.1, 3], [0.05, 0.9, -2], [2e-3, -1e-3, 1]])
    size, step = (30, 50), 1e-4
    square = np.array([[24.5, 14.5]]) + step * np.array([[0, 0], [1, 0], [0, 1]])
    a, b, c = matrix.map_points(np.linalg.inv(m), square)
    area = abs(np.cross(np.append(b - a, 0), np.append(c - a, 0))[2]) / step**2
    assert metrics.mean_scale(m[None], size) == pytest.approx(area**-0.5, rel=1e-4)
    assert metrics.mean_scale(m[None] * -7, size) == pytest.approx(area**-0.5, rel=1e-4)


@pytest.mark.parametrize(
    ("source_from_aligned", "share"),
    [
        (np.eye(3), 0),
        (-np.eye(3), 0),
        (np.array([[1.0, 0, 10], [0, 1, 0], [0, 0, 1]]), 0.25),
        (np.array([[1.0, 0, 0], [0, 1, -20], [0, 0, 1]]), 1),
        (np.array([[2.0, 0, -19.5], [0, 2, -9.5], [0, 0, 1]]), 0.75),
        (np.diag([0.5, 0.5, 1]), 0),
        (np.array([[1.0, 0, 0], [0, 1, 0], [-1 / 19.5, 0, 1.5]]), None),  # the right quarter is behind the horizon
    ],
)
def test_out_of_frame(source_from_aligned: np.ndarray, share: float | None) -> None:
    found = metrics.out_of_frame(np.stack([source_from_aligned] * 3), (20, 40), (20, 40))
    assert found.shape == (3,)
    if share is None:
        assert 0.25 <= found[0] < 1
    else:
        np.testing.assert_allclose(found, share, atol=0.02)


def test_out_of_frame_with_mixed_sizes_and_skipped_rows() -> None:
    m = np.stack([np.eye(3), np.eye(3), np.full((3, 3), np.nan)])
    found = metrics.out_of_frame(m, [[64, 64], [32, 64], [0, 0]], (64, 64))
    np.testing.assert_allclose(found, [0, 0.5, np.nan])


def test_kind_of_set(threes: np.ndarray) -> None:
    photo = RNG.uniform(60, 200, (20, 3, 24, 24))
    assert metrics.looks_like_objects(threes) == "object"
    assert metrics.looks_like_objects(torch.from_numpy(threes)[:, None] / 255) == "object"
    assert metrics.looks_like_objects(255 - threes) == "photo"
    assert metrics.looks_like_objects(photo) == "photo"
    letterbox, mask = photo.copy(), np.zeros((20, 1, 24, 24))
    letterbox[:, :, :10], letterbox[:, :, 14:], mask[:, :, 10:14] = 0, 0, 1
    assert metrics.looks_like_objects(letterbox) == "object"
    assert metrics.looks_like_objects(letterbox, mask) == "photo", "padding is not ground"


# ---- plain numbers of a set


def fed(before: np.ndarray, after: np.ndarray, source: np.ndarray, **options: Any) -> dict[str, float]:
    meter = metrics.PixelMeter(**options)
    for start in range(0, len(before), 64):
        rows = slice(start, start + 64)
        meter.update_before(before[rows])
        meter.update_after(after[rows], torch.from_numpy(source[rows]))
    return meter.numbers()


def test_meter_equals_the_functions(threes: np.ndarray) -> None:
    before, after = threes, np.sort(threes, axis=1)
    numbers = fed(*((x / np.float32(255))[:, None] for x in (before, after, before)))
    assert numbers["apsnr_before"] == pytest.approx(metrics.apsnr(before), abs=1e-5)
    assert numbers["apsnr_after"] == pytest.approx(metrics.apsnr(after), abs=1e-5)
    assert numbers["energy_ratio"] == pytest.approx(1, abs=1e-6)
    assert numbers["blank_share"] == 0


def test_emptied_frames_are_blank_however_many(threes: np.ndarray) -> None:
    unit = (threes / np.float32(255))[:, None]
    after = unit.copy()
    after[50:] = 0
    assert fed(unit, after, unit)["blank_share"] == 0.75


def test_ink_is_compared_at_one_resolution(threes: np.ndarray) -> None:
    unit = (threes / np.float32(255))[:, None]
    after = unit.repeat(2, axis=2).repeat(2, axis=3)
    assert fed(unit, after, unit, aligned_area=4)["energy_ratio"] == pytest.approx(1)


def test_quality_is_plain_json() -> None:
    flat = np.full((5, 1, 4, 4), 0.5, np.float32)
    for numbers in (metrics.PixelMeter().numbers(), fed(flat, flat, flat), fed(flat * 0, flat * 0, flat * 0)):
        quality = metrics.Quality.judged(metrics.Evidence(**numbers)).as_dict()
        assert json.loads(json.dumps(quality, allow_nan=False)) == quality
    assert quality["verdict"] == "failed"
    assert quality["blank_share"] == 1


# ---- against a known answer


def homographies(n: int, size: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng(5)
    frame = matrix.corners((28, 28))
    return matrix.homography_from_points(frame, frame + rng.normal(0, size, (n, 4, 2)))


def test_corner_error_removes_one_gauge() -> None:
    truth, gauge = homographies(200, 3.0), homographies(1, 4.0)[0]
    np.testing.assert_allclose(metrics.corner_error(gauge @ truth, truth, (28, 28)), 0, atol=1e-6)
    other_resolution = matrix.rescale((28, 28), (280, 140)) @ truth
    np.testing.assert_allclose(metrics.corner_error(other_resolution, truth, (28, 28)), 0, atol=1e-6)


def test_corner_error_measures_in_true_pixels_whatever_the_gauge() -> None:
    truth, noise = homographies(3000, 3.0), 0.5
    frame = matrix.corners((28, 28))
    moved = frame + np.random.default_rng(6).normal(0, noise, (3000, 4, 2))
    slip = matrix.homography_from_points(frame, moved)
    wanted = np.linalg.norm(moved - frame, axis=-1).mean(-1)
    for gauge in (np.eye(3), np.diag([0.1, 0.1, 1]), homographies(1, 4.0)[0]):
        found = metrics.corner_error(gauge @ slip @ truth, truth, (28, 28))
        np.testing.assert_allclose(found, wanted, atol=0.05)


def test_corner_error_is_not_bent_by_lost_images() -> None:
    truth = homographies(300, 3.0)
    found = truth.copy()
    found[:45] = np.array([[1.0, 0, 300], [0, 1, 0], [0, 0, 1]]) @ found[:45]
    found[45], truth[46] = np.nan, np.nan
    error = metrics.corner_error(found, truth, (28, 28))
    np.testing.assert_allclose(error[:45], 300, atol=1e-3)
    assert np.isnan(error[45:47]).all()
    np.testing.assert_allclose(error[47:], 0, atol=1e-3)
    with pytest.raises(CongealError, match="300 against 299"):
        metrics.corner_error(found, truth[1:], (28, 28))


def test_landmark_error_by_hand() -> None:
    # eyes 10 px apart and still, nose jumping 1 px either side of its mean
    points = np.array([[[0, 0], [10, 0], [4, 5]], [[0, 0], [10, 0], [6, 5]]], dtype=float)
    found = metrics.landmark_error(points, 0, 1)
    assert found["eye_distance"] == 10
    np.testing.assert_allclose(found["per_landmark"], [0, 0, 10])
    assert found["mean"] == pytest.approx(10 / 3)
    scaled = metrics.landmark_error(np.concatenate([7 * points + 3, np.full((1, 3, 2), np.nan)]), 0, 1)
    assert scaled["mean"] == pytest.approx(10 / 3), "no resolution, no shift, no image without landmarks changes it"
    assert np.isnan(scaled["per_image"][2])
    with pytest.raises(CongealError, match="landmarks must be"):
        metrics.landmark_error(points[0])
