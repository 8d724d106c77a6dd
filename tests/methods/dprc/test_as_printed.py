"""DPRC as printed: the paper's preprocessing, losses, networks and settings, without any of our additions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import congeal
from congeal import DPRC
from congeal.datasets import open_named
from congeal.errors import CongealError
from congeal.methods.dprc.networks import AutoEncoder, DeSTNet
from congeal.methods.registry import method_class, preset
from congeal.runs.checkpoint import Checkpoint


def test_constructors_and_presets_have_the_printed_settings() -> None:
    printed = congeal.DPRC.as_printed_mnist(steps=600).get_params()
    assert (printed["steps"], printed["learning_rate"], printed["batch_size"]) == (600, 1e-5, 64)
    assert (printed["complexity_weight"], printed["capacity_penalty"], printed["penalty_power"]) == (1, 1, 1)
    assert not {"refine_steps", "self_supervision", "fit_sample"} & set(printed), "the paper has none of our additions"
    assert congeal.DPRC.as_printed_lfw().get_params()["size"] == 250
    for name in ("mnist", "lfw"):
        method, parameters = preset(f"paper-{name}")
        assert method == "dprc-as-printed"
        assert parameters["networks"] == name
        made = getattr(DPRC, f"as_printed_{name}")()
        assert method_class(method)(**parameters).get_params() == made.get_params()
    with pytest.raises(CongealError, match="unknown preset 'papr'"):
        preset("papr")
    with pytest.raises(TypeError, match="restarts"):
        congeal.DPRC.as_printed_mnist(restarts=3)


def test_training_runs_for_the_requested_number_of_steps() -> None:
    images = open_named("digits:1").batch(np.arange(12))[..., 0]
    model = DPRC.as_printed_mnist(steps=3, batch_size=4).fit(images)
    assert [row["step"] for row in model.history_] == [1, 2, 3]
    assert model.get_params()["steps"] == 3


def test_training_sees_colour_pixels_of_photographs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Input are unweighted pixels, the loss is D + λC summed over pixels, the networks are the paper's."""
    generator = np.random.default_rng(0)
    photos = generator.integers(20, 255, (6, 32, 32, 3), dtype=np.uint8)
    seen: list[torch.Tensor] = []
    forward = DeSTNet.forward

    def recording(self: DeSTNet, images: torch.Tensor, start: torch.Tensor) -> list[torch.Tensor]:
        seen.append(images.detach().clone())
        return forward(self, images, start)

    monkeypatch.setattr(DeSTNet, "forward", recording)
    model = DPRC.as_printed_lfw(steps=2, batch_size=4, size=32, reference=0, complexity_weight=0.5).fit(photos)
    assert model.quality_.kind == "photo"
    batch = seen[0]
    assert batch.shape == (4, 3, 32, 32)
    known = torch.as_tensor(photos).movedim(-1, 1).float() / 255
    assert all(any(torch.equal(image, own) for own in known) for image in batch)
    assert isinstance(model.aligner_, DeSTNet)
    assert len(model.aligner_.localisers) == 5
    assert isinstance(model.autoencoder_, AutoEncoder)
    first = model.history_[0]
    # At the identity, before the first step: the plain sum of differences from image 0, over every pixel and channel.
    expected = float((batch - known[0]).abs().sum((1, 2, 3)).mean())
    assert first["distortion"] == pytest.approx(expected, rel=1e-4)
    assert first["loss"] == pytest.approx(first["distortion"] + 0.5 * first["complexity"], rel=1e-5)


def test_an_interrupted_fit_resumes_and_a_model_file_predicts_the_same(tmp_path: Path) -> None:
    images = open_named("digits:1").batch(np.arange(12))[..., 0]
    options = {"steps": 4, "batch_size": 4, "learning_rate": 1e-3}
    whole = DPRC.as_printed_mnist(**options).fit(images)

    class Ends(Checkpoint):
        def save(self, state: dict[str, object]) -> None:
            super().save(state)
            if state["state"]["step"] == 2:  # type: ignore[index]
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        DPRC.as_printed_mnist(**options).fit(images, checkpoint=Ends(tmp_path / "c.pt"), save_every=0)
    resumed = DPRC.as_printed_mnist(**options).fit(images, checkpoint=Checkpoint(tmp_path / "c.pt"))
    assert resumed.transforms_ == whole.transforms_
    whole.save(tmp_path / "m.safetensors")
    again = congeal.load(tmp_path / "m.safetensors")
    assert np.array_equal(again.transform(images), whole.transform(images))


def test_an_array_may_be_the_reference() -> None:
    images = open_named("digits:1").batch(np.arange(6))[..., 0]
    given = images[2].astype(np.float32) / 255
    by_array, by_place = (
        DPRC.as_printed_mnist(steps=1, batch_size=4, reference=one).fit(images).history_[0]["distortion"]
        for one in (given, 2)
    )
    assert by_array == pytest.approx(by_place, rel=1e-5)


def test_faces_are_compared_at_250_pixels() -> None:
    photos = np.random.default_rng(0).integers(0, 255, (2, 250, 250, 3), dtype=np.uint8)
    assert DPRC.as_printed_lfw()._prepare(photos, None).frame == (250, 250)
    assert DPRC()._prepare(photos, None).frame == (64, 64)
