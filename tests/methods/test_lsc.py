"""Least-squares congealing: known warps come back, guards hold the scale, robust weights hold off occluders."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from known_warps import Kept, align_new, pixels

from congeal import LSC, CongealError, open_images
from congeal.evaluation import corner_error
from congeal.geometry import MOTIONS, from_normalised, invert, matrix_from_parameters, n_parameters, warp
from congeal.images import prepare

SIZE = (48, 48)


def perturbed(motion: str, n: int = 24, amount: float = 0.08, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """One digit under n known warps: images (n, 48, 48) uint8 and the aligned_from_source that undo them."""
    digit = open_images("digits:3").batch([0])[0, ..., 0]
    canvas = torch.zeros(1, 1, *SIZE)
    canvas[0, 0, 10:38, 10:38] = torch.from_numpy(digit.astype(np.float32))
    generator = torch.Generator().manual_seed(seed)
    parameters = amount * torch.randn(n, n_parameters(motion), generator=generator)
    source_from_shown = from_normalised(matrix_from_parameters(parameters), SIZE)
    shown = warp(canvas, source_from_shown, mode="bicubic").clamp(0, 255)
    return shown[:, 0].round().numpy().astype(np.uint8), source_from_shown.double().numpy()


def photos(n: int = 16, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A textured scene without edges, seen through shifts and turns: black means nothing here, and frames end in
    the middle of things."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:96, :96]
    scene = sum(np.sin(rng.uniform(0.08, 0.4, 2) @ (x.ravel(), y.ravel()) + rng.uniform(0, 6)) for _ in range(12))
    scene = 128 + 90 * scene.reshape(96, 96) / np.abs(scene).max()
    parameters = torch.from_numpy(rng.normal(0, 0.06, (n, 4))).float()
    scene_from_shown = from_normalised(matrix_from_parameters(parameters), SIZE)
    scene_from_shown[:, :2, 2] += 24
    shown = warp(torch.from_numpy(scene).float()[None, None], scene_from_shown, SIZE, mode="bicubic")
    return shown[:, 0].round().clamp(0, 255).numpy().astype(np.uint8), scene_from_shown.double().numpy()


@pytest.fixture(scope="module")
def digits() -> np.ndarray:
    return pixels("3", 0, 120)


# ---- it finds what is known


@pytest.mark.parametrize("reference", ["mean", "image", "stack"])
@pytest.mark.parametrize("motion", MOTIONS)
def test_known_warps_come_back_below_half_a_pixel(motion: str, reference: str) -> None:
    images, truth = perturbed(motion)
    model = LSC(motion=motion, size=48, reference=0 if reference == "image" else reference).fit(images)
    before = corner_error(np.tile(np.eye(3), (len(images), 1, 1)), truth, SIZE)
    after = corner_error(model.transforms_.matrices, truth, SIZE)
    assert before.mean() > 1.5
    assert after.mean() < 0.5
    assert np.quantile(after, 0.9) < 1
    assert model.quality_.energy_ratio == pytest.approx(1, abs=0.1)


def test_real_digits_become_alike_and_keep_their_ink(digits: np.ndarray) -> None:
    quality = LSC(size=28).fit(digits).quality_
    assert quality.apsnr_after > quality.apsnr_before + 4
    assert 0.94 < quality.energy_ratio < 1.06
    assert not quality.collapsed
    assert quality.verdict == "good"


def test_a_fixed_reference_holds_the_pose() -> None:
    """Everything is moved onto the reference image, not to a mean of poses."""
    images, truth = perturbed("similarity")
    found = LSC(motion="similarity", size=48, reference=5).fit(images).transforms_.matrices
    assert np.abs(found[5] - np.eye(3)).max() < 0.05
    assert np.abs(found[9] - invert(truth[5]) @ truth[9])[:2, 2].max() < 1


def test_reference_from_an_array_and_errors(digits: np.ndarray) -> None:
    given = LSC(size=28, reference=digits[0]).fit(digits[:20])
    by_position = LSC(size=28, reference=0).fit(digits[:20])
    assert np.allclose(given.transforms_.matrices, by_position.transforms_.matrices, atol=1e-3)
    with pytest.raises(CongealError, match="reference 99"):
        LSC(size=28, reference=99).fit(digits[:20])
    with pytest.raises(CongealError, match=r"\(1, 5, 5\)"):
        LSC(size=28, reference=np.zeros((5, 5))).fit(digits[:20])
    with pytest.raises(CongealError, match="same length"):
        LSC(blurs=(1.0,), iterations=(3, 3)).fit(digits[:20])


# ---- guards


def test_without_guards_the_set_drifts(digits: np.ndarray) -> None:
    """The freedom to move everything together is used for ill as soon as nothing forbids it."""
    effort = {"size": 28, "iterations": (10, 10, 150), "tolerance": 0.0}
    guarded, free = (LSC(guards=guards, **effort).fit(digits).quality_ for guards in (True, False))
    assert guarded.energy_ratio == pytest.approx(1, abs=0.06)
    assert not guarded.collapsed
    assert free.collapsed
    assert free.energy_ratio < 0.5
    assert free.apsnr_after > guarded.apsnr_after  # which is why APSNR alone must not be believed


def test_guards_bring_back_the_scale_of_a_set_that_starts_too_small(digits: np.ndarray) -> None:
    half = np.diag([0.8, 0.8, 1.0])
    half[:2, 2] = 13.5 * 0.2
    model = LSC(size=28).fit(digits, init=np.tile(half, (len(digits), 1, 1)))
    assert model.quality_.energy_ratio > 0.85  # it started at 0.64


# ---- robust weights, masks, coverage


def test_robust_weights_hold_off_an_occluder() -> None:
    images, truth = perturbed("similarity", amount=0.05)
    rng = np.random.default_rng(0)
    for image in images[::3]:
        x, y = rng.integers(8, 30, 2)
        image[y : y + 9, x : x + 9] = 255
    plain, robust = (
        corner_error(
            LSC(motion="similarity", size=48, robust=robust).fit(images).transforms_.matrices, truth, SIZE
        ).mean()
        for robust in (None, 0.1)
    )
    assert robust < 0.75 * plain


def test_photographs_are_weighed_by_what_they_cover() -> None:
    images, truth = photos()
    model = LSC(motion="similarity", size=48, iterations=(20, 20, 40)).fit(images)
    assert model.quality_.kind == "photo"
    before = corner_error(np.tile(np.eye(3), (len(images), 1, 1)), truth, SIZE)
    after = corner_error(model.transforms_.matrices, truth, SIZE)
    assert before.mean() > 1.5
    assert after.mean() < 0.5


# ---- new images, resuming, memory


@pytest.mark.parametrize("reference", ["mean", "stack", "medoid"])
def test_new_images_join_the_old(digits: np.ndarray, reference: str) -> None:
    model = LSC(size=28, reference=reference).fit(digits[:80])
    held_out = align_new(model, digits[80:]).quality
    assert held_out.apsnr_after > held_out.apsnr_before + 2.5
    assert held_out.apsnr_after > model.quality_.apsnr_after - 1.5
    assert not held_out.collapsed


def test_its_own_choice_of_reference_is_the_mean(digits: np.ndarray) -> None:
    auto, mean, medoid = (LSC(size=28, reference=r).fit(digits[:20]).transforms_ for r in ("auto", "mean", "medoid"))
    assert LSC().reference == "auto"
    assert auto == mean
    assert auto != medoid


def test_images_of_the_fit_are_found_again() -> None:
    images, _ = perturbed("similarity")
    model = LSC(motion="similarity", size=48).fit(images)
    again = align_new(model, images).transforms.matrices
    assert corner_error(again, model.transforms_.matrices, SIZE).mean() < 0.5


def test_resuming_after_any_step_changes_nothing(digits: np.ndarray) -> None:
    """Also after the last step of a level, and where a level ended early."""
    few, effort = digits[:12], {"size": 28, "iterations": (3, 3, 4), "tolerance": 0.7}
    kept = Kept()
    whole = LSC(**effort).fit(few, checkpoint=kept, save_every=0)
    assert len(kept.states) == len(whole.history_) < 10, "no level ended early: this test needs one that does"
    for state in kept.states:
        resumed = LSC(**effort).fit(few, checkpoint=Kept(state))
        assert resumed.transforms_ == whole.transforms_
        assert resumed.history_ == whole.history_


def test_a_stack_in_chunks_is_a_stack_at_once(digits: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    together = LSC(size=28).fit(digits).transforms_.matrices
    monkeypatch.setattr("congeal.registration.batching.CHUNK_VALUES", 28 * 28 * 7)
    in_chunks = LSC(size=28).fit(digits).transforms_.matrices
    assert np.abs(together - in_chunks).max() < 0.02  # sums in another order


MEMORY = """
import resource, sys
import numpy as np
from congeal import LSC
images = np.lib.format.open_memmap(sys.argv[1], mode="r")
for n in (3_000, 20_000):
    LSC(size=28, blurs=(0.0,), iterations=(1,)).fit(images[:n])
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def test_memory_stays_flat(digits: np.ndarray, tmp_path: Path) -> None:
    """Seven times the images, next to nothing more memory: held as float32 they would take 51 MB more."""
    path = tmp_path / "images.npy"
    images = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(20_000, 28, 28))
    images[:] = np.resize(digits, images.shape)
    images.flush()
    done = subprocess.run([sys.executable, "-c", MEMORY, str(path)], capture_output=True, text=True, check=True)
    few, many = map(float, done.stdout.split())
    mapped = 17_000 * 28 * 28 / 2**20  # pages of the file itself, which the system may take back at any time
    assert many - few < mapped + 25


def test_a_prepared_stack_is_used_as_it_is(digits: np.ndarray) -> None:
    stack = prepare(open_images(digits), size=28)
    assert LSC(size=28).fit(stack).transforms_ == LSC(size=28).fit(digits).transforms_
