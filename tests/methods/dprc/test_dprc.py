"""DPRC as an estimator: training, prediction, refinement, interrupted fits, new images and the model file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from known_warps import Kept, align_new, digit_copies, photograph_copies, pixels
from safetensors import safe_open

import congeal
from congeal import DPRC, CongealError
from congeal.evaluation import corner_error
from congeal.execution.threads import map_ordered
from congeal.methods.dprc.networks import DeSTNet, SmallAutoEncoder
from congeal.methods.dprc.training import Trainer
from congeal.registration import batching

QUICK: dict[str, Any] = {"steps": 60, "batch_size": 64, "refreshes": 3}
FEW_STEPS: dict[str, Any] = {"steps": 4, "batch_size": 16, "refine_steps": 6}


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images are read in chunks of a few, so that checkpoints are written between them."""
    monkeypatch.setattr(batching, "CHUNK_VALUES", 28 * 28 * 8)


# ---- training


def test_every_fit_trains_both_networks() -> None:
    model = DPRC(**FEW_STEPS).fit(pixels("3", 0, 20))
    assert isinstance(model.aligner_, DeSTNet)
    assert isinstance(model.autoencoder_, SmallAutoEncoder)
    assert model.trained_
    assert model.motion_ == "homography"
    assert [row["step"] for row in model.history_] == [1, 2, 3, 4]
    assert {"loss", "distortion", "complexity", "self_supervision"} <= set(model.history_[-1])


def test_known_warps_come_back_below_a_pixel() -> None:
    images, truth = digit_copies(40, 0.05)
    model = DPRC(**QUICK).fit(images)
    errors = corner_error(model.transforms_.matrices, truth, (28, 28))
    assert np.median(errors) < 0.5
    assert np.mean(errors < 1) > 0.9
    assert not model.quality_.collapsed


def test_refinement_improves_on_the_prediction_of_the_network() -> None:
    images, truth = digit_copies(40, 0.1)
    raw, refined = (
        np.median(corner_error(DPRC(**QUICK, refine_steps=steps).fit(images).transforms_.matrices, truth, (28, 28)))
        for steps in (0, 40)
    )
    assert refined < 0.5 * raw


def test_self_supervision_teaches_the_network_what_distortion_alone_does_not() -> None:
    images, truth = digit_copies(40, 0.15, seed=3)
    start = np.median(corner_error(np.broadcast_to(np.eye(3), truth.shape), truth, (28, 28)))

    def predicted(weight: float) -> float:
        model = DPRC(**QUICK | {"steps": 70}, self_supervision=weight, refine_steps=0).fit(images)
        return float(np.median(corner_error(model.transforms_.matrices, truth, (28, 28))))

    taught = predicted(1.0)
    assert taught < 0.7 * start
    assert taught < 0.95 * predicted(0.0)


@pytest.mark.parametrize("off", ["distortion", "complexity"])
def test_each_term_can_be_switched_off(off: str) -> None:
    options = {"steps": 3, "batch_size": 8, "refine_steps": 0, "self_supervision": 0.0}
    model = DPRC(**options, complexity_ramp=(0.0, 0.0), **{f"{off}_weight": 0.0}).fit(pixels("1", 0, 20))
    (left,) = {"distortion", "complexity"} - {off}
    assert model.history_[-1]["loss"] == pytest.approx(model.history_[-1][left], rel=1e-5)


def test_a_reference_colour_and_a_smaller_motion_may_be_chosen() -> None:
    colour = np.repeat(pixels("0", 0, 40)[..., None], 3, axis=3)
    model = DPRC(**QUICK | {"steps": 40}, motion="affine", reference=3).fit(colour)
    assert model.quality_.apsnr_after > model.quality_.apsnr_before
    assert np.abs(model.transforms_.matrices[:, 2, :2]).max() < 1e-6
    assert not model.quality_.collapsed


def test_a_fixed_reference_stays_the_template_of_the_training() -> None:
    model = DPRC(**FEW_STEPS, reference=3, running_reference=False).fit(pixels("0", 0, 20))
    assert not model.quality_.collapsed
    assert model.quality_.apsnr_after > model.quality_.apsnr_before


def test_guards_keep_refinement_from_shrinking_the_object() -> None:
    images = pixels("0", 0, 60)
    guarded, free = (
        DPRC(**QUICK | {"steps": 20}, guards=flag, refine_steps=60).fit(images).quality_.energy_ratio
        for flag in (True, False)
    )
    assert 0.9 <= guarded <= 1.07
    assert abs(free - 1) > abs(guarded - 1)


def test_photographs_are_aligned_by_their_edges() -> None:
    images, truth = photograph_copies("similarity", 64, 14)
    model = DPRC(**FEW_STEPS, motion="similarity").fit(images)
    errors = corner_error(model.transforms_.matrices, truth, (64, 64))
    assert model.quality_.kind == "photo"
    assert np.median(errors) < 0.5


def test_transparent_pixels_are_not_compared() -> None:
    """A third of each picture is opaque; pixels under the rest hardly matter (the network does see them)."""
    scenes, _ = photograph_copies("translation", 48, 9)
    alpha = np.zeros((9, 48, 48, 1), np.uint8)
    alpha[:, 10:38, 10:38] = 255
    hidden = np.where(alpha > 0, scenes[..., None], np.random.default_rng(0).integers(0, 255, (9, 48, 48, 1)))
    found = [
        DPRC(**FEW_STEPS, motion="translation")
        .fit(np.concatenate([np.repeat(colours.astype(np.uint8), 3, 3), alpha], 3))
        .transforms_
        for colours in (scenes[..., None], hidden)
    ]
    assert np.isfinite(found[0].matrices).all()
    assert set(found[0].status) <= {"ok", "outlier"}
    np.testing.assert_allclose(found[0].matrices, found[1].matrices, atol=0.15)


@pytest.mark.parametrize("wrong", [{"device": "gpu"}, {"kind": "drawing"}, {"motion": "wobbly"}, {"reference": "mean"}])
def test_settings_that_do_not_exist_are_named(wrong: dict[str, str]) -> None:
    with pytest.raises(CongealError, match=next(iter(wrong.values()))):
        DPRC(**wrong).fit(np.zeros((3, 8, 8), np.uint8))


@pytest.mark.parametrize("gone", ["train", "restarts", "features", "finest", "refine"])
def test_parameters_of_joint_alignment_are_refused(gone: str) -> None:
    with pytest.raises(TypeError, match=gone):
        DPRC(**{gone: 1})


def test_tensorboard_has_every_step_of_a_fit_that_stopped_early(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from congeal.methods.fit_context import TensorBoard

    options = {"steps": 60, "batch_size": 8, "refine_steps": 0, "tolerance": 1.0}
    model = DPRC(**options).fit(pixels("1", 0, 20), callbacks=[TensorBoard(tmp_path)])
    written = EventAccumulator(str(tmp_path)).Reload()
    steps = [event.step for event in written.Scalars("dprc/loss")]
    assert steps == [row["step"] for row in model.history_]
    assert len(steps) < 60


# ---- the same answer


def test_fits_with_one_seed_in_several_threads_agree() -> None:
    images = pixels("1", 0, 12)
    found = list(map_ordered(lambda _: DPRC(steps=3).fit(images).transforms_, range(3), 3))
    assert found[0] == found[1] == found[2]


def test_the_number_of_threads_does_not_change_a_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    images = pixels("3", 0, 40)
    model = DPRC(**FEW_STEPS).fit(images)
    monkeypatch.setattr(batching, "CHUNK_VALUES", 2500)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(align_new(model, images).stack_from_frame)
    finally:
        torch.set_num_threads(before)
    assert np.array_equal(*found)


@pytest.mark.parametrize("apart", [True, False])
def test_the_auto_encoder_learns_by_itself_or_together_with_the_aligner(apart: bool) -> None:
    images = pixels("1", 0, 20)
    options = FEW_STEPS | {"refine_steps": 0, "complexity_ramp": (0.0, 0.0), "train_apart": apart}
    few, more = (DPRC(**options | {"steps": steps}).fit(images).autoencoder_ for steps in (1, 3))
    assert not torch.equal(few.template, more.template)


# ---- a sample smaller than the set, and interrupted fits


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("tolerance", [0.0, 1.0], ids=["all steps", "stopped early"])
def test_a_set_larger_than_the_sample_resumes_within_the_prediction(
    monkeypatch: pytest.MonkeyPatch, tolerance: float
) -> None:
    options = QUICK | {"steps": 12, "batch_size": 16, "refine_steps": 8, "refreshes": 5, "tolerance": tolerance}
    options["fit_sample"] = 30
    images, kept = pixels("3", 0, 80), Kept()
    whole = DPRC(**options).fit(images, checkpoint=kept, save_every=0)
    assert (len(whole.history_) < 12) == (tolerance == 1.0)
    assert whole.quality_.apsnr_after > whole.quality_.apsnr_before + 3
    assert not whole.quality_.collapsed
    states = [state for state in kept.states if "placed" in Kept(state).load()["state"]]  # type: ignore[index]
    done = Kept(states[0]).load()["state"]["placed"][0]  # type: ignore[index]
    assert 0 < done < 80
    predicted, predict = [], DeSTNet.predict

    def counting(self: DeSTNet, images: torch.Tensor, *more: Any) -> torch.Tensor:
        predicted.append(len(images))
        return predict(self, images, *more)

    monkeypatch.setattr(DeSTNet, "predict", counting)
    monkeypatch.setattr(Trainer, "step", lambda _: pytest.fail("trained again"))
    resumed = DPRC(**options).fit(images, checkpoint=Kept(states[0]), save_every=0)
    assert sum(predicted) == 80 - done, "only images that had no prediction yet"
    assert resumed.transforms_ == whole.transforms_
    assert resumed.history_ == whole.history_


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("refine_steps", [0, 6])
@pytest.mark.parametrize("fit_sample", [12, 6000], ids=["sample", "all"])
def test_a_fit_interrupted_at_any_checkpoint_ends_the_same(refine_steps: int, fit_sample: int) -> None:
    images = pixels("7", 0, 32)
    options = FEW_STEPS | {"refine_steps": refine_steps, "fit_sample": fit_sample, "refreshes": 2}
    alone, kept = DPRC(**options).fit(images), Kept()
    watched = DPRC(**options).fit(images, checkpoint=kept, save_every=0)
    assert watched.transforms_ == alone.transforms_
    assert watched.history_ == alone.history_, "writing checkpoints changed the fit"
    stages = ["placed" in Kept(state).load()["state"] for state in kept.states]  # type: ignore[index]
    assert stages.count(False) >= 4, "during training"
    assert stages.count(True) >= 2, "during prediction"
    new = pixels("7", 32, 36)
    for state in kept.states:
        resumed = DPRC(**options).fit(images, checkpoint=Kept(state))
        assert resumed.transforms_ == alone.transforms_
        assert resumed.history_ == alone.history_
        assert align_new(resumed, new).transforms == align_new(alone, new).transforms


# ---- new images and the model file


@pytest.mark.parametrize("refine_steps", [0, 40])
def test_held_out_images_align_as_well_as_those_of_the_fit(refine_steps: int) -> None:
    images = pixels("7", 0, 100)
    model = DPRC(**QUICK | {"steps": 150 if refine_steps == 0 else 60}, refine_steps=refine_steps).fit(images[:60])
    new = align_new(model, images[60:]).quality
    assert new.apsnr_after > model.quality_.apsnr_after - 1.0  # 40 images: their own APSNR varies by that much
    assert new.apsnr_after > new.apsnr_before + (3 if refine_steps else 1)
    assert not new.collapsed


def test_without_refinement_new_images_get_the_answer_of_the_network() -> None:
    images = pixels("7", 0, 24)
    model = DPRC(**FEW_STEPS | {"refine_steps": 0}).fit(images)
    found = align_new(model, images)
    shown = torch.as_tensor(images)[:, None].double() / 255
    with torch.no_grad():
        start = torch.eye(3, dtype=torch.float64).repeat(24, 1, 1)
        expected = model.aligner_.double().predict(shown, start, model.passes)
    np.testing.assert_allclose(found.stack_from_frame, expected.numpy(), atol=1e-4)


@pytest.mark.usefixtures("small_chunks")
def test_a_model_file_has_the_networks_and_predicts_the_same(tmp_path: Path) -> None:
    images = pixels("7", 0, 60)
    model = DPRC(**FEW_STEPS, motion="affine", code_size=5, fit_sample=30).fit(images[:40])
    path = tmp_path / "model.safetensors"
    model.save(path)
    with safe_open(path, framework="pt") as file:
        names = set(file.keys())
    assert {name.partition(".")[0] for name in names} >= {"aligner", "autoencoder", "template"}
    loaded = congeal.load(path)
    assert isinstance(loaded, DPRC)
    for name in ("aligner_", "autoencoder_"):
        saved, read = (getattr(one, name).state_dict() for one in (model, loaded))
        assert saved.keys() == read.keys()
        assert all(torch.equal(saved[key], read[key]) for key in saved)
    assert align_new(loaded, images[40:]).transforms == align_new(model, images[40:]).transforms


@pytest.mark.usefixtures("small_chunks")
def test_an_interrupted_alignment_of_new_images_resumes() -> None:
    images, kept = pixels("7", 0, 60), Kept()
    model = DPRC(**FEW_STEPS).fit(images[:20])
    whole = align_new(model, images[20:], checkpoint=kept, save_every=0).transforms
    assert len(kept.states) > 2
    for state in kept.states:
        assert align_new(model, images[20:], checkpoint=Kept(state)).transforms == whole


def test_prediction_leaves_the_networks_in_single_precision() -> None:
    images = pixels("7", 0, 12)
    model = DPRC(**FEW_STEPS).fit(images)
    with pytest.raises(KeyboardInterrupt):
        align_new(model, images, checkpoint=Kept(stop_after=1), save_every=0)
    assert all(weight.dtype == torch.float32 for weight in model.aligner_.parameters())
