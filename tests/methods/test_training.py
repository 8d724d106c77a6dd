"""When a network is trained, what the method is without one, and that an interrupted fit ends as if it had not been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from known_warps import Kept, align_new, digits, photograph_copies, pixels
from safetensors import safe_open

import congeal
from congeal import CongealError, DeepCongealing
from congeal.geometry import warp
from congeal.methods.deep import recipe
from congeal.methods.job import Job
from congeal.solvers.appearance import plain_appearance
from congeal.solvers.matching import random_warps

FEW = {"steps": 4, "batch_size": 16, "restarts": 4}


def strongly_warped(digit: str, n: int, reach: float) -> np.ndarray:
    """Bundled digits whose corners were moved by a share of the side."""
    warps = random_warps(torch.full((n,), reach), (28, 28), torch.Generator().manual_seed(0))
    shown = warp(torch.as_tensor(pixels(digit, 0, n)).float()[:, None], warps)
    return shown[:, 0].round().numpy().astype(np.uint8)


def with_specks(digit: str, n: int, reach: float = 0.2, side: int = 6) -> np.ndarray:
    """Warped digits, each with a bright square in a corner, so that their ink does not say where they are."""
    images, far = strongly_warped(digit, n, reach), 26 - side
    for image, (down, right) in zip(images, np.random.default_rng(0).integers(2, size=(n, 2)), strict=True):
        y, x = 1 + far * down, 1 + far * right
        image[y : y + side, x : x + side] = 255
    return images


# ---- when


def test_images_that_are_roughly_aligned_need_no_network() -> None:
    model = DeepCongealing(**FEW).fit(pixels("3", 0, 60))
    assert not model.trained_
    assert model.aligner_ is None
    assert model.autoencoder_ is None
    assert model.decisions_["training"]["sentence"].startswith("No network was trained")
    assert not any("loss" in row for row in model.history_)
    assert model.quality_.apsnr_after > model.quality_.apsnr_before + 3


def test_objects_that_start_far_away_need_no_network_either() -> None:
    model = DeepCongealing(**FEW).fit(strongly_warped("7", 60, 0.2))
    assert not model.trained_
    assert model.quality_.apsnr_after > 20, "as good as digits that nobody warped"


def test_a_few_images_that_nothing_matches_are_not_worth_a_network() -> None:
    model = DeepCongealing(**FEW | {"restarts": 16}).fit(with_specks("7", 60))
    assert not model.trained_
    told = model.decisions_["training"]
    assert told["helped"] > 0.3, "tries did help"
    assert 2 <= round(60 * told["unmatched"]) < 16, "and some are left, but few"


def test_images_that_need_tries_are_worth_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    # Of this set 33 % are helped and 16 left, a few more or less from one processor to the next.
    monkeypatch.setattr(recipe, "_MANY", 0.2)
    monkeypatch.setattr(recipe, "_WORTH_IT", 8)
    model = DeepCongealing(**FEW).fit(with_specks("3", 200, 0.3, 9))
    assert model.trained_
    assert isinstance(model.aligner_, torch.nn.Module)
    sentence = model.decisions_["training"]["sentence"]
    assert sentence.startswith("A network was trained: further tries found better poses")
    assert sum("loss" in row for row in model.history_) == 4


@pytest.mark.parametrize(
    ("helped", "unmatched", "n", "trained"),
    [(0.31, 16, 200, True), (0.31, 15, 200, False), (0.3, 16, 200, False), (0.9, 16, 49, False), (0.9, 16, 900, False)],
)
def test_how_many_have_to_need_it(helped: float, unmatched: int, n: int, trained: bool) -> None:
    appearance = plain_appearance("object")
    stages = recipe.Recipe(digits("3", 2), appearance, DeepCongealing(**FEW), Job("deep"), torch.device("cpu"))
    scores = torch.ones(n)
    scores[:unmatched] = 0.8
    assert stages._should_train(helped, scores) == trained
    assert stages.decisions["training"]["unmatched"] == pytest.approx(unmatched / n)


@pytest.mark.parametrize(("train", "steps"), [("never", 4), ("auto", 0)])
def test_a_network_that_is_not_wanted_is_not_trained(train: str, steps: int) -> None:
    model = DeepCongealing(**FEW | {"steps": steps}, train=train).fit(with_specks("7", 60))
    assert not model.trained_
    assert "as asked" in model.decisions_["training"]["sentence"]


def test_a_network_that_is_wanted_is_trained() -> None:
    model = DeepCongealing(**FEW, train="always").fit(pixels("3", 0, 20))
    assert model.trained_
    assert model.decisions_["training"]["sentence"].startswith("A network was trained: as asked")


def test_other_wishes_are_refused() -> None:
    with pytest.raises(CongealError, match="train must be one of auto, always, never, not 'sometimes'"):
        DeepCongealing(train="sometimes").fit(pixels("3", 0, 4))


# ---- the model without a network


def test_a_model_without_a_network_aligns_new_images(tmp_path: Path) -> None:
    images = pixels("7", 0, 80)
    model = DeepCongealing(**FEW, train="never").fit(images[:40])
    path = tmp_path / "model.safetensors"
    model.save(path)
    with safe_open(path, framework="pt") as file:
        assert not any("aligner" in name or "autoencoder" in name for name in file.keys())  # noqa: SIM118 (no dict)
    loaded = congeal.load(path)
    assert loaded.aligner_ is None
    found = align_new(loaded, images[40:])
    assert found.quality.apsnr_after > found.quality.apsnr_before + 3
    assert found.transforms == align_new(model, images[40:]).transforms


# ---- interrupted


@pytest.fixture(scope="module")
def copies() -> np.ndarray:
    return photograph_copies("similarity", 64, 14)[0]


@pytest.fixture
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a few images, so that there is something to save between them."""
    monkeypatch.setattr("congeal.solvers.streaming.CHUNK_VALUES", 64 * 64 * 5)


OPTIONS: dict[str, Any] = {"size": 32, "fit_sample": 8, "restarts": 0, "passes": 1, "batch_size": 8, "steps": 3}


@pytest.mark.usefixtures("short_runs")
@pytest.mark.parametrize("train", ["never", "always"])
def test_a_fit_that_is_interrupted_anywhere_ends_with_the_same(copies: np.ndarray, train: str) -> None:
    """Motion, finer levels, and images that are placed after the sample; from the middle of each stage."""
    options = OPTIONS | {"train": train}
    alone = DeepCongealing(**options).fit(copies)
    assert alone.motion_ == "similarity"
    assert alone.levels_ == (32, 64)
    kept = Kept()
    watched = DeepCongealing(**options).fit(copies, checkpoint=kept, save_every=0)
    assert watched.transforms_ == alone.transforms_
    assert watched.history_ == alone.history_, "saving changes nothing"
    stages: dict[str, bytes] = {}
    for state in kept.states:
        saved = Kept(state).load()["state"]  # type: ignore[index]
        name = next((name for name in ("sharpened", "placed", "settled") if name in saved), "training")
        stages.setdefault(name, state)
    assert list(stages) == (["training", "settled"] if train == "always" else []) + ["placed", "sharpened"]
    for state in stages.values():
        resumed = DeepCongealing(**options).fit(copies, checkpoint=Kept(state))
        assert resumed.transforms_ == alone.transforms_
        assert resumed.history_ == alone.history_
        assert resumed.decisions_ == alone.decisions_
        assert (resumed.motion_, resumed.levels_, resumed.trained_) == ("similarity", (32, 64), train == "always")


@pytest.mark.usefixtures("short_runs")
def test_placing_new_images_goes_on_where_it_was(copies: np.ndarray) -> None:
    model = DeepCongealing(**OPTIONS | {"train": "never"}).fit(copies[:6])
    kept = Kept()
    whole = align_new(model, copies[6:], checkpoint=kept, save_every=0).transforms
    assert len(kept.states) > 2
    for state in kept.states:
        assert align_new(model, copies[6:], checkpoint=Kept(state)).transforms == whole
