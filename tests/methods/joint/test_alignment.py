"""Joint alignment: known warps come back, new images are placed, an interrupted fit ends as if it had not been."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from known_warps import Kept, align_new, digit_copies, photograph_copies, pixels
from safetensors import safe_open

import congeal
from congeal import CongealError, JointAlignment
from congeal.evaluation import corner_error
from congeal.methods.joint import alignment
from congeal.methods.joint.template import Sample, State


def test_known_warps_come_back_below_a_pixel() -> None:
    images, truth = digit_copies(40, 0.05)
    model = JointAlignment(restarts=4).fit(images)
    errors = corner_error(model.transforms_.matrices, truth, (28, 28))
    assert np.median(errors) < 0.5
    assert np.mean(errors < 1) > 0.9
    assert not model.quality_.collapsed


def test_no_network_is_trained() -> None:
    model = JointAlignment(restarts=4).fit(pixels("3", 0, 60))
    assert not model.trained_
    assert not any("loss" in row for row in model.history_)
    assert model.quality_.apsnr_after > model.quality_.apsnr_before + 3


def test_held_out_images_align_as_well_as_those_of_the_fit() -> None:
    images = pixels("7", 0, 100)
    model = JointAlignment(restarts=4).fit(images[:60])
    new = align_new(model, images[60:]).quality
    assert new.apsnr_after > model.quality_.apsnr_after - 1.0  # 40 images: their own APSNR varies by that much
    assert new.apsnr_after > new.apsnr_before + 3
    assert not new.collapsed


def test_a_users_reference_colour_and_smaller_motions_work() -> None:
    colour = np.repeat(pixels("0", 0, 40)[..., None], 3, axis=3)
    model = JointAlignment(motion="affine", reference=3, restarts=4).fit(colour)
    assert model.quality_.apsnr_after > model.quality_.apsnr_before
    assert np.abs(model.transforms_.matrices[:, 2, :2]).max() < 1e-6
    assert not model.quality_.collapsed


def test_a_model_from_a_file_aligns_new_images_alike(tmp_path: Path) -> None:
    images = pixels("7", 0, 80)
    model = JointAlignment(restarts=4).fit(images[:40])
    path = tmp_path / "model.safetensors"
    model.save(path)
    with safe_open(path, framework="pt") as file:
        assert not any("aligner" in name or "autoencoder" in name for name in file.keys())  # noqa: SIM118 (no dict)
    found = align_new(congeal.load(path), images[40:])
    assert found.quality.apsnr_after > found.quality.apsnr_before + 3
    assert found.transforms == align_new(model, images[40:]).transforms


def test_a_stage_that_loses_the_object_is_rejected(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shrinking = torch.tensor([[2.0, 0.0, -13.5], [0.0, 2.0, -13.5], [0.0, 0.0, 1.0]])  # a quarter of the intensity

    def shrink(sample: Sample, state: State, *rest: object, **options: object) -> State:
        poses = torch.as_tensor(sample.stack.start.copy()).float() @ shrinking
        return replace(state, poses=poses, template=torch.zeros(1, 28, 28))

    monkeypatch.setattr(alignment, "register_jointly", shrink)
    with caplog.at_level("WARNING"):
        model = JointAlignment(restarts=4).fit(pixels("3", 0, 30))
    assert "going back" in caplog.text
    assert not model.quality_.collapsed
    assert not np.allclose(model.stack_from_frame_, np.eye(3)), "the poses of the stage before, not the initial ones"


@pytest.mark.parametrize("wrong", [{"kind": "drawing"}, {"motion": "wobbly"}, {"reference": "mean"}])
def test_settings_that_do_not_exist_are_named(wrong: dict[str, str]) -> None:
    with pytest.raises(CongealError, match=next(iter(wrong.values()))):
        JointAlignment(**wrong).fit(np.zeros((3, 8, 8), np.uint8))


# ---- interrupted


@pytest.fixture(scope="module")
def copies() -> np.ndarray:
    return photograph_copies("similarity", 64, 14)[0]


@pytest.fixture
def short_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of a few images, so that there is something to save between them."""
    monkeypatch.setattr("congeal.registration.batching.CHUNK_VALUES", 64 * 64)


OPTIONS: dict[str, Any] = {"size": 32, "fit_sample": 8, "restarts": 0}


@pytest.mark.usefixtures("short_batches")
def test_a_fit_that_is_interrupted_anywhere_ends_with_the_same(copies: np.ndarray) -> None:
    """Motion, finer levels, and images that are placed after the sample; from the middle of each stage."""
    alone = JointAlignment(**OPTIONS).fit(copies)
    assert alone.motion_ == "similarity"
    assert alone.levels_ == (32, 64)
    kept = Kept()
    watched = JointAlignment(**OPTIONS).fit(copies, checkpoint=kept, save_every=0)
    assert watched.transforms_ == alone.transforms_
    assert watched.history_ == alone.history_, "saving changes nothing"
    stages: dict[str, bytes] = {}
    for state in kept.states:
        saved = Kept(state).load()["state"]  # type: ignore[index]
        stages.setdefault("placed" if "placed" in saved else "sample", state)
    assert list(stages) == ["sample", "placed"]
    for state in stages.values():
        resumed = JointAlignment(**OPTIONS).fit(copies, checkpoint=Kept(state))
        assert resumed.transforms_ == alone.transforms_
        assert resumed.history_ == alone.history_
        assert resumed.decisions_ == alone.decisions_
        assert (resumed.motion_, resumed.levels_) == ("similarity", (32, 64))


@pytest.mark.usefixtures("short_batches")
def test_placing_new_images_goes_on_where_it_was(copies: np.ndarray) -> None:
    model = JointAlignment(**OPTIONS).fit(copies[:6])
    kept = Kept()
    whole = align_new(model, copies[6:], checkpoint=kept, save_every=0).transforms
    assert len(kept.states) > 2
    for state in kept.states:
        assert align_new(model, copies[6:], checkpoint=Kept(state)).transforms == whole
