"""Likeness, chance, kinds, foreign images, and the verdict that rests on them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter

from congeal import LSC, JointAlignment, open_images
from congeal.datasets import open_named
from congeal.evaluation import Evidence, Quality, advise, judge
from congeal.evaluation.grouping import compare_groups, two_groups
from congeal.evaluation.likeness import MeanContrast, Sharpness, likeness_to_others, pair_likeness, visible_contrast
from congeal.evaluation.outliers import InlierModel, effective_samples, homography_noise_likeness, surrogates_of_set
from congeal.evaluation.poses import frame_scales, implausible_scales
from congeal.evaluation.verdict import COLLAPSED, VERDICTS
from congeal.geometry import from_normalised, matrix_from_parameters, normalise, warp
from congeal.images import Stack, prepare
from congeal.methods.base import Method
from congeal.methods.measure import Measurement, measure
from congeal.methods.views import ContrastViews, NormalisedViews
from congeal.transforms import STATUSES

# ---- what the numbers mean

FINE = Evidence(
    n_images=40,
    likeness_before=0.2,
    likeness_after=0.4,
    likeness_change_error=0.01,
    improved_share=0.9,
    noise_likeness=0.1,
    energy_ratio=1.0,
)


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, "good"),
        ({"kind": "object", "energy_ratio": 0.91}, "good"),
        ({"kind": "object", "energy_ratio": 0.89}, "shrunk"),
        ({"kind": "object", "energy_ratio": 0.49, "expected_energy_ratio": 0.5}, "good"),
        ({"kind": "object", "energy_ratio": 1.11}, "zoomed"),
        ({"kind": "object", "energy_ratio": 0.6, "mean_scale": 1.7}, "zoomed"),
        ({"kind": "object", "energy_ratio": 0.02}, "failed"),
        ({"kind": "object", "energy_ratio": 0.1, "mean_scale": 0.3}, "shrunk"),
        ({"kind": "object", "energy_ratio": float("nan")}, "failed"),
        ({"energy_ratio": 0.2}, "good"),
        ({"mean_scale": 0.84}, "shrunk"),
        ({"mean_scale": 1.16}, "zoomed"),
        ({"out_of_frame_share": 0.36, "out_of_frame_before": 0.1}, "failed"),
        ({"out_of_frame_share": 0.34, "out_of_frame_before": 0.1}, "good"),
        ({"out_of_frame_share": 0.36, "between_group_likeness": 0.4, "smaller_group_share": 0.4}, "mixed"),
        (
            {
                "out_of_frame_share": 0.36,
                "between_group_likeness": 0.4,
                "smaller_group_share": 0.4,
                "failed_share": 0.6,
            },
            "failed",
        ),
        ({"failed_share": 0.6}, "failed"),
        ({"likeness_after": float("nan")}, "failed"),
        ({"n_images": 0}, "failed"),
        ({"likeness_after": 0.14}, "worse"),
        ({"likeness_after": 0.14, "likeness_before": 0.05}, "failed"),
        ({"likeness_after": 0.14, "likeness_before": 0.13}, "unchanged"),
        ({"kind": "object", "likeness_after": 0.14, "likeness_before": 0.13}, "failed"),
        ({"noise_likeness_homography": 0.26, "likeness_before": 0.05}, "failed"),
        ({"noise_likeness_homography": 0.23, "likeness_before": 0.05}, "good"),
        ({"noise_likeness_homography": 0.25}, "good"),
        ({"kind": "object", "noise_likeness_homography": 0.27}, "failed"),
        ({"noise_likeness_homography": 0.25, "likeness_before": 0.05, "matching_share": 0.8}, "mixed"),
        ({"likeness_before": 0.5}, "worse"),
        ({"likeness_before": 0.5, "likeness_change_error": 0.05}, "unchanged"),
        ({"likeness_before": 0.41}, "unchanged"),
        ({"likeness_before": 0.17, "likeness_after": 0.155, "likeness_change_error": 0.001}, "worse"),
        ({"likeness_before": 0.38}, "unchanged"),
        ({"likeness_before": 0.38, "likeness_change_error": 0.005}, "good"),
        ({"likeness_before": 0.396, "likeness_change_error": 0.0}, "unchanged"),
        ({"matching_share": 0.84}, "mixed"),
        ({"matching_share": 0.86}, "good"),
        ({"kind": "object", "between_group_likeness": 0.7, "smaller_group_share": 0.4}, "mixed"),
        ({"kind": "object", "between_group_likeness": 0.7, "smaller_group_share": 0.1}, "good"),
        ({"between_group_likeness": 0.4, "smaller_group_share": 0.4}, "mixed"),
        ({"between_group_likeness": 0.5, "smaller_group_share": 0.4}, "good"),
        ({"between_group_likeness": 0.4, "smaller_group_share": 0.1}, "good"),
    ],
)
def test_verdicts(change: dict[str, float], verdict: str) -> None:
    seen = dataclasses.replace(FINE, **change)  # type: ignore[arg-type]
    assert judge(seen) == verdict
    quality = Quality.judged(seen)
    assert (quality.verdict, quality.collapsed) == (verdict, verdict in COLLAPSED)
    assert quality.advice.endswith(".")


def test_advice_names_the_numbers() -> None:
    assert "0.20 → 0.40" in advise(FINE, "good")
    assert "4 of 40 images do not match" in advise(dataclasses.replace(FINE, matching_share=0.9), "good")
    assert "12 of 40" in advise(dataclasses.replace(FINE, matching_share=0.7), "mixed")
    assert "about 16 and 24 images" in advise(dataclasses.replace(FINE, smaller_group_share=0.4), "mixed")
    assert "1.60" in advise(dataclasses.replace(FINE, mean_scale=1.6), "zoomed")
    assert "noise of the same kind 0.30" in advise(dataclasses.replace(FINE, noise_likeness=0.3), "failed")
    assert all(advise(FINE, verdict) for verdict in VERDICTS)


# ---- the measures themselves


def random_pictures(n: int, size: int = 48, smooth: float = 0.0, seed: int = 0) -> torch.Tensor:
    """(n,1,size,size) noise in [0, 1], smoothed."""
    noise = torch.rand(n, 1, size, size, generator=torch.Generator().manual_seed(seed))
    k = int(smooth)
    return noise if not k else torch.nn.functional.avg_pool2d(noise, 2 * k + 1, 1, k, count_include_pad=False)


def test_light_does_not_change_local_contrast() -> None:
    image = random_pictures(1, smooth=1)
    y = torch.linspace(0.5, 1, 48)[:, None]
    plain, everywhere = visible_contrast(image)
    lit, _ = visible_contrast(0.2 + 0.5 * image * y)
    assert everywhere is None
    assert float(torch.corrcoef(torch.stack([plain.flatten(), lit.flatten()]))[0, 1]) > 0.98


def test_flat_places_stay_flat_and_padding_does_not_count() -> None:
    image = torch.zeros(1, 1, 40, 40)
    image[..., 10:30, 10:30] = random_pictures(1, 20)
    image[..., 2, 2] = 0.001
    contrast, _ = visible_contrast(image)
    assert contrast[0, :5, :5].abs().max() < 0.1
    mask = torch.ones(1, 1, 40, 40)
    mask[..., 20:] = 0
    contrast, counts = visible_contrast(image, mask)
    assert counts is not None
    assert not contrast[..., 20:].any()
    assert not counts[..., 20:].any()
    assert counts[..., :20].all()
    spoilt = image.clone()
    spoilt[..., 20:] = 1
    np.testing.assert_allclose(visible_contrast(spoilt, mask)[0], contrast, atol=1e-5)


def test_wide_surroundings_are_measured_on_a_smaller_picture_just_as_well() -> None:
    """256 pixels wide: sigma 6, computed at half the size."""
    image = random_pictures(1, 256, smooth=2)
    contrast, _ = visible_contrast(image)
    smooth = gaussian_filter(image[0, 0], 0.8)
    plain = torch.from_numpy((smooth - gaussian_filter(smooth, 6.0))[40:-40, 40:-40].flatten())
    made = contrast[0, 40:-40, 40:-40].flatten()
    assert float(torch.corrcoef(torch.stack([plain, made]))[0, 1]) > 0.97


def test_likeness_leaves_the_image_itself_out() -> None:
    noise, _ = visible_contrast(random_pictures(5))
    assert abs(float(likeness_to_others(noise).mean())) < 0.05
    same = noise[:1].repeat(3, 1, 1)
    np.testing.assert_allclose(likeness_to_others(same), 1, atol=1e-5)
    np.testing.assert_allclose(
        likeness_to_others(torch.cat([same, -same[:1], 0 * same[:1]]))[3:], [-1, np.nan], atol=1e-5
    )


def test_likeness_is_a_correlation_with_the_mean_of_the_others_where_both_show_something() -> None:
    generator = torch.Generator().manual_seed(3)
    contrast = torch.randn(6, 8, 8, generator=generator)
    counts = (torch.rand(6, 8, 8, generator=generator) > 0.3).float()
    contrast = contrast * counts
    found = likeness_to_others(contrast, counts)
    others = [j for j in range(6) if j != 2]
    seen = counts[others].sum(0)
    mean = contrast[others].sum(0) / seen.clamp(min=1)
    both = (counts[2] > 0) & (seen >= 0.5 * 5)
    a, b = contrast[2][both], mean[both]
    assert float(found[2]) == pytest.approx(float((a @ b) / (a.norm() * b.norm())), abs=1e-5)
    outside = MeanContrast(contrast[others], counts[others]).likeness(contrast[2:3], counts[2:3], torch.tensor([False]))
    assert float(outside[0]) == pytest.approx(float(found[2]), abs=1e-5)


def test_chance_is_what_noise_reaches_when_it_is_moved_to_where_it_fits() -> None:
    """Twelve noises, each moved to where it fits the mean of the others best, three times over."""
    for smooth in (0, 2):
        noise = random_pictures(12, 48, smooth, seed=5)
        moved = noise[:, 0] - noise.mean()
        for _ in range(3):
            for i in range(12):
                mean = (moved.sum(0) - moved[i]) / 11
                match = torch.fft.irfft2(torch.fft.rfft2(moved[i]).conj() * torch.fft.rfft2(mean), s=(48, 48))
                y, x = divmod(int(match.argmax()), 48)
                moved[i] = torch.roll(moved[i], (y, x), (0, 1))
        contrast, _ = visible_contrast(moved[:, None])
        reached = float(surrogates_of_set(contrast, None)[1].mean())
        assert 0.6 < float(likeness_to_others(contrast).mean()) / reached < 1.5


def test_two_kinds_are_told_from_one() -> None:
    patterns = visible_contrast(random_pictures(2, 32, 1, seed=1))[0]
    noise = torch.randn(24, 32, 32, generator=torch.Generator().manual_seed(0))
    one = patterns[:1] + 0.7 * noise
    two = torch.cat([patterns[:1].repeat(14, 1, 1), patterns[1:].repeat(10, 1, 1)]) + 0.7 * noise
    assert two_groups(pair_likeness((two, None))).sum() in (10, 14)
    alone, both = compare_groups((one, None)), compare_groups((two, None))
    assert alone.between_likeness > 0.9
    assert abs(both.between_likeness) < 0.2
    assert both.smaller_share == pytest.approx(10 / 24)
    assert compare_groups((two[:4], None)).between_likeness == 1, "too few to tell"


def test_foreign_images_are_found_by_absolute_evidence() -> None:
    pattern = visible_contrast(random_pictures(1, 64, seed=1))[0]
    noise = torch.randn(30, 64, 64, generator=torch.Generator().manual_seed(0))
    contrast = noise.clone()
    contrast[:20] += 0.7 * pattern
    model = InlierModel([(contrast, None)], "photo")
    np.testing.assert_array_equal(model.likeness >= model.min_likeness, np.arange(30) < 20)
    new = [(noise[:5] + 0.7 * pattern, None)]
    np.testing.assert_array_equal(model.likeness_to_inliers(new) >= model.min_likeness, True)
    nothing = InlierModel([(noise, None)], "photo")
    assert (nothing.likeness < nothing.min_likeness).mean() > 0.9


def test_an_object_that_was_bent_to_fit_is_an_outlier_by_its_normalised_view() -> None:
    own, other = visible_contrast(random_pictures(2, 28, seed=1))[0]
    noise = 0.3 * torch.randn(16, 28, 28, generator=torch.Generator().manual_seed(0))
    normalised, bent = own + noise, own + noise
    normalised[15], bent[15] = other, 0.7 * own + 0.3 * other + noise[15]
    for second, outliers in ((bent, []), (normalised, [15])):
        model = InlierModel([(bent, None), (second, None)], "object")
        np.testing.assert_array_equal(np.flatnonzero(model.likeness < model.min_likeness), outliers)


def test_sharpness_of_the_mean() -> None:
    picture = random_pictures(1)
    same, apart = Sharpness(), Sharpness()
    for _ in range(4):
        same.update(picture, None)
    apart.update(random_pictures(16), None)
    assert same.value == pytest.approx(1, abs=1e-5)
    assert apart.value == pytest.approx(0.25, abs=0.02)
    assert np.isnan(Sharpness().value)


def test_wild_poses() -> None:
    start = np.broadcast_to(np.eye(3), (6, 3, 3)).copy()
    found = start.copy()
    found[1] = np.diag([0.5, 0.5, 1])
    found[2] = np.diag([8.0, 8.0, 1])
    found[3, 2, 0] = -0.1  # the horizon crosses the frame
    found[4] = [[0, -1, 27], [1, 0, 0], [0, 0, 1]]
    found[5] = np.nan
    scales = frame_scales(found, start, (28, 28))
    np.testing.assert_allclose(scales[[0, 1, 2, 4]], [1, 2, 1 / 8, 1])
    np.testing.assert_array_equal(implausible_scales(scales), [False, False, True, True, False, True])
    assert implausible_scales(np.full(3, np.nan)).all()


# ---- whole alignments of known quality


def photographs(n: int = 16, side: int = 64, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(n,side,side) uint8 of one made-up scene under known similarities, with noise and other light; and the
    aligned_from_source (n,3,3) that undo them."""
    scene = random_pictures(1, side, 1, seed=9) + 0.5 * random_pictures(1, side, 4, seed=8)
    scene = (scene - scene.min()) / (scene.max() - scene.min())
    rng = np.random.default_rng(seed)
    draws = torch.as_tensor(rng.uniform(-1, 1, (n, 4)) * [0.12, 0.12, 0.1, 0.08]).float()
    truth = from_normalised(matrix_from_parameters(draws), (side, side))
    shown = warp(scene.expand(n, -1, -1, -1), truth, padding="border")[:, 0].numpy()
    light = rng.uniform(0.7, 1, (n, 1, 1))
    return (255 * np.clip(shown * light + rng.normal(0, 0.02, shown.shape), 0, 1)).astype(
        np.uint8
    ), truth.double().numpy()


def judged(images: np.ndarray, aligned_from_source: np.ndarray) -> Measurement:
    stack = prepare(open_images(images), size=64)
    return measure(stack, poses(stack, aligned_from_source), stack.kind)


def poses(stack: Stack, aligned_from_source: np.ndarray) -> np.ndarray:
    back = np.linalg.inv(aligned_from_source) @ stack.aligned_from_frame
    return normalise(stack.stack_from_source @ back).astype(np.float32)


def zoom(factor: float, side: int = 64) -> np.ndarray:
    middle = (side - 1) / 2
    return np.array([[factor, 0, middle * (1 - factor)], [0, factor, middle * (1 - factor)], [0, 0, 1]])


def test_a_right_alignment_of_photographs_is_good_and_no_more_words_are_needed() -> None:
    images, truth = photographs()
    right = judged(images, truth)
    assert right.quality.verdict == "good"
    assert right.quality.improved_share == 1
    assert right.quality.likeness_after > 0.8
    assert right.quality.sharpness_after > right.quality.sharpness_before
    assert not right.status.any()
    assert judged(images, zoom(1.4) @ truth).quality.verdict == "zoomed"
    assert judged(images, zoom(0.7) @ truth).quality.verdict == "shrunk"
    assert judged(images, np.broadcast_to(np.eye(3), truth.shape)).quality.verdict == "failed", "nothing was aligned"


def test_what_was_aligned_already_is_unchanged_and_spoiling_it_is_worse() -> None:
    images, truth = photographs()
    stack = prepare(open_images(images), size=64, init=truth, init_size=(64, 64))
    assert measure(stack, stack.start.astype(np.float32), "photo").quality.verdict == "unchanged"
    jitter = matrix_from_parameters(torch.randn(16, 2, generator=torch.Generator().manual_seed(0)) * 0.04)
    off = from_normalised(jitter, (64, 64)).double().numpy()
    spoilt = measure(stack, (stack.start @ off).astype(np.float32), "photo").quality
    assert spoilt.verdict == "worse"
    assert spoilt.improved_share < 0.2
    same = np.repeat(images[:1], 6, axis=0)
    assert judged(same, np.broadcast_to(np.eye(3), (6, 3, 3))).quality.verdict == "unchanged"
    alone = judged(images[:1], np.eye(3)[None])
    assert alone.quality.verdict == "unchanged"
    np.testing.assert_array_equal(alone.score, 1)


def test_averaging_noise_between_pixels_is_no_improvement() -> None:
    """Frames that lie right, moved by parts of a pixel: sampling takes out noise, and still it is worse."""
    scene = random_pictures(1, 64, 1, seed=9)[0, 0]
    noise = torch.randn(12, 64, 64, generator=torch.Generator().manual_seed(0))
    frames = (255 * (0.5 * scene + 0.25 + 0.1 * noise).clamp(0, 1)).byte().numpy()
    shifts = np.broadcast_to(np.eye(3), (12, 3, 3)).copy()
    shifts[:, :2, 2] = np.random.default_rng(0).normal(0, 0.5, (12, 2))
    found = judged(frames, shifts).quality
    assert found.likeness_after < found.likeness_before
    assert found.verdict in ("unchanged", "worse")


def test_turned_halves_foreign_images_and_blanks() -> None:
    images, truth = photographs(20)
    half = truth.copy()
    half[::2] = np.array([[-1, 0, 63], [0, -1, 63], [0, 0, 1.0]]) @ half[::2]
    turned = judged(images, half).quality
    assert turned.verdict == "mixed"
    assert turned.smaller_group_share == pytest.approx(0.5)
    strange = images.copy()
    strange[14:] = (255 * random_pictures(6, 64, 1, seed=77)[:, 0].numpy()).astype(np.uint8)
    mixed = judged(strange, truth)
    assert mixed.quality.verdict == "mixed"
    assert [STATUSES[i] for i in mixed.status] == 14 * ["ok"] + 6 * ["outlier"]
    dark = images.copy()
    dark[3] = 128
    blank = judged(dark, truth)
    assert blank.quality.verdict == "good"
    assert [STATUSES[i] for i in blank.status[:5]] == ["ok", "ok", "ok", "blank", "ok"]


def test_one_wild_image_does_not_spoil_the_mean_scale() -> None:
    images, truth = photographs(12)
    truth[4] = zoom(13) @ truth[4]
    found = judged(images, truth)
    assert STATUSES[found.status[4]] == "failed"
    assert found.quality.verdict == "good"
    assert found.quality.mean_scale == pytest.approx(1, abs=0.1)


def test_noise_that_was_made_to_look_alike_is_called_failed() -> None:
    noise = random_pictures(12, 48)[:, 0]
    shifts = np.broadcast_to(np.eye(3), (12, 3, 3)).copy()
    for i in range(1, 12):
        mean = (noise - 0.5)[:i].mean(0)
        match = torch.fft.irfft2(torch.fft.rfft2(noise[i] - 0.5).conj() * torch.fft.rfft2(mean), s=(48, 48))
        y, x = divmod(int(torch.roll(match, (8, 8), (0, 1))[:17, :17].argmax()), 17)
        shifts[i, :2, 2] = x - 8, y - 8
        noise[i] = torch.roll(noise[i], (y - 8, x - 8), (0, 1))
    found = judged((255 * random_pictures(12, 48)[:, 0].numpy()).astype(np.uint8), shifts).quality
    assert found.likeness_after > found.likeness_before
    assert found.improved_share > 0.9
    assert found.verdict == "failed"


def waves(n: int, size: int, sigma: float, seed: int) -> np.ndarray:
    """(n,size,size) smooth noise, mean 0 and deviation 1."""
    smooth = gaussian_filter(np.random.default_rng(seed).standard_normal((n, size, size)), (0, sigma, sigma))
    return (smooth - smooth.mean()) / smooth.std()


@pytest.mark.parametrize(("method", "ground", "sigma"), [(JointAlignment, "grey", 3.0), (LSC, "black", 1.5)])
def test_random_blobs_that_were_bent_to_look_alike(method: type[Method], ground: str, sigma: float) -> None:
    """Nothing in common but that they are blobs."""
    blobs = waves(40, 64, sigma, seed=2)
    values = 127 + 50 * blobs if ground == "grey" else 120 * (blobs - 1)
    found = method(random_state=0).fit(values.clip(0, 255).astype(np.uint8)).quality_
    assert judge(dataclasses.replace(found, noise_likeness_homography=float("nan"))) == "good", (
        "by noise of the same spectrum"
    )
    assert found.verdict == "failed"
    assert f"noise of the same kind {found.noise_likeness_homography:.2f}" in found.advice


def test_places_in_which_pictures_can_differ() -> None:
    noise = random_pictures(20, 96, 0, seed=4)[:, 0] - 0.5
    assert effective_samples(noise) == pytest.approx(96**2, rel=0.1)
    smooth = torch.from_numpy(waves(20, 96, 3.0, seed=4))
    assert effective_samples(smooth) == pytest.approx(96**2 / (2 * np.pi * 3**2), rel=0.2)
    assert homography_noise_likeness(0.2, noise) == pytest.approx(0.2, abs=0.002), "six freedoms explain nothing of it"
    assert homography_noise_likeness(0.2, smooth) > 0.25
    assert homography_noise_likeness(0.2, torch.zeros(3, 8, 8)) <= 1


@pytest.mark.parametrize(("part", "verdict"), [(15, "shrunk"), (8, "failed")])
def test_objects_that_lost_their_ink(part: int, verdict: str) -> None:
    threes = open_named("digits:3").batch(np.arange(40))[..., 0]
    moved = np.broadcast_to([[1.0, 0, 28 - part - 4], [0, 1, 0], [0, 0, 1]], (40, 3, 3))
    found = judged(threes, moved).quality
    assert found.verdict == verdict
    assert found.collapsed


def test_objects_bent_to_look_alike_are_flagged() -> None:
    images = open_named("digits:3").batch(np.arange(40))[..., 0].copy()
    others = [number for number in range(10) if number != 3]
    for k in range(12):
        images[28 + k] = open_named(f"digits:{others[k % 9]}").batch(np.arange(k, k + 1))[0, ..., 0]
    stack = prepare(open_images(images), size=64)
    found = LSC(random_state=0).fit(images).stack_from_frame_
    flagged = measure(stack, found, "object").status != STATUSES.index("ok")
    assert flagged[28:].sum() >= 11
    assert flagged[:28].sum() <= 2


def test_normalised_views_do_not_depend_on_position_and_slant() -> None:
    threes = np.zeros((3, 40, 40), np.uint8)
    threes[:, 6:34, 6:34] = open_named("digits:3").batch(np.arange(1))[0, ..., 0]
    threes[1] = np.roll(threes[1], (5, -4), (0, 1))
    for row in range(40):
        threes[2, row] = np.roll(threes[2, row], (20 - row) // 2)
    stack = prepare(open_images(threes))
    start, normalised = ContrastViews(stack, stack.start, "object"), NormalisedViews(stack)
    apart, alike = (pair_likeness(view.pictures(np.arange(3)))[0, 1:] for view in (start, normalised))
    assert apart.max() < 0.7
    assert alike.min() > 0.95


def test_large_sets_are_judged_by_a_sample_and_every_image_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    images, truth = photographs(20)
    images[7] = (255 * random_pictures(1, 64, 1, seed=77)[0, 0].numpy()).astype(np.uint8)
    whole = judged(images, truth)
    monkeypatch.setattr("congeal.methods.measure.MAX_SAMPLE_IMAGES", 8)
    part = judged(images, truth)
    assert part.quality.verdict == whole.quality.verdict == "good"
    assert part.quality.n_images == 20
    assert [STATUSES[i] for i in part.status] == [STATUSES[i] for i in whole.status]
    np.testing.assert_allclose(part.score, whole.score, atol=0.1)
    assert part.status[7] == STATUSES.index("outlier")
