"""What every method promises. A new line in the registry is picked up here by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

import congeal
from congeal import CongealError, open_images
from congeal.methods.base import Method
from congeal.methods.job import Event
from congeal.methods.registry import method_class, methods
from congeal.metrics import corner_error
from congeal.runs.folder import Checkpoint

# How much work a method does, by the names methods give it: enough to exercise everything, little enough to be quick.
EFFORT = {
    "iterations": 4,
    "inner_iterations": 60,
    "rounds": 3,
    "sweeps": 2,
    "steps": 24,
    "refine_steps": 6,
    "restarts": 2,
    "batch_size": 16,
    "passes": 2,
    "epochs": 2,
}


def small(name: str, **params: Any) -> Method:
    """The method with little to do; whole numbers and tuples of them are lowered, nothing else is touched."""
    model = method_class(name)(size=28)
    for key, value in model.get_params().items():
        if key in EFFORT and isinstance(value, int) and not isinstance(value, bool):
            model.set_params(**{key: min(value, EFFORT[key])})
        elif key in EFFORT and isinstance(value, tuple) and all(isinstance(v, int) for v in value):
            model.set_params(**{key: tuple(min(v, EFFORT[key]) for v in value)})
    return model.set_params(**params)


def first_motion(name: str) -> str:
    return method_class(name).motions[0]


@pytest.fixture(params=list(methods()))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def digits() -> np.ndarray:
    source = open_images("digits:3", limit=24)
    return np.ascontiguousarray(source.batch(np.arange(24))[..., 0])


def shifted(digit: np.ndarray, n: int, reach: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    """One picture at n places of a larger canvas, and the shifts (N,3,3) aligned_from_source that undo it."""
    moves = np.random.default_rng(0).integers(-reach, reach + 1, (n, 2))
    images, undo = np.zeros((n, side, side), np.uint8), np.tile(np.eye(3), (n, 1, 1))
    corner = (side - 28) // 2
    for image, (x, y), matrix in zip(images, moves, undo, strict=True):
        image[corner + y : corner + y + 28, corner + x : corner + x + 28] = digit
        matrix[:2, 2] = -x, -y
    return images, undo


# ---- scikit-learn's manners


def test_parameters_are_stored_read_and_changed(name: str) -> None:
    model = method_class(name)(size=31, random_state=7)
    params = model.get_params()
    assert params["size"] == 31
    assert params["random_state"] == 7
    assert type(model)(**params).get_params() == params
    assert model.set_params(size=40) is model
    assert model.get_params()["size"] == 40
    with pytest.raises(CongealError, match=r"has no parameter 'sise'.*size"):
        model.set_params(sise=3)


def test_clone_is_unfitted_and_equal(name: str, digits: np.ndarray) -> None:
    model = small(name, random_state=3).fit(digits[:6])
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert not hasattr(copy, "transforms_")
    assert not hasattr(copy, "layout_")


def test_works_in_a_pipeline(name: str, digits: np.ndarray) -> None:
    flatten = FunctionTransformer(lambda images: images.reshape(len(images), -1).astype(float))
    model = small(name)
    if not model.can_transform():
        assert not hasattr(model, "transform")
        with pytest.raises(CongealError, match=f"{name} has no step for new images"):
            model.transform(digits)
        assert model.fit_transform(digits[:8]).shape == (8, 28, 28)
        return
    line = Pipeline([("align", model), ("flatten", flatten), ("components", PCA(2, random_state=0))])
    assert line.fit_transform(digits[:8]).shape == (8, 2)
    assert line.transform(digits[8:14]).shape == (6, 2)


def test_unfitted_models_say_so(name: str, digits: np.ndarray, tmp_path: Path) -> None:
    model = method_class(name)()
    with pytest.raises(CongealError, match="not fitted"):
        model.save(tmp_path / "model.safetensors")
    if model.can_transform():
        with pytest.raises(CongealError, match="not fitted"):
            model.transform(digits)


def test_impossible_motion_is_an_error_that_lists_the_possible(name: str, digits: np.ndarray) -> None:
    with pytest.raises(CongealError, match=r"no motion 'wobble': choose one of .*"):
        small(name, motion="wobble").fit(digits)


# ---- fitting


def test_fit_gives_one_transform_per_image_and_numbers(name: str, digits: np.ndarray) -> None:
    before = digits.copy()
    events: list[Event] = []
    model = small(name)
    aligned = model.fit_transform(digits, callbacks=[events.append])
    assert np.array_equal(digits, before), "the input was changed"
    assert aligned.dtype == digits.dtype
    assert aligned.shape == digits.shape
    assert model.transforms_.matrices.shape == (24, 3, 3)
    assert np.isfinite(model.transforms_.matrices).all()
    assert model.transforms_.ids == tuple(str(i) for i in range(24))
    assert model.quality_.n_images == 24
    assert model.stack_from_frame_.shape == (24, 3, 3)
    assert [e.step for e in events] == sorted({e.step for e in events})
    assert events[-1].step <= events[-1].total
    assert len(model.history_) == len(events) > 0


@pytest.mark.parametrize("which", ["first", "last"])
def test_only_the_motion_asked_for(name: str, digits: np.ndarray, which: str) -> None:
    """A translation has no rotation, an affine no perspective: the nested family, kept by what is found."""
    motion = method_class(name).motions[0 if which == "first" else -1]
    found = small(name, motion=motion).fit(digits[:8]).transforms_.matrices
    if motion == "translation":
        assert np.allclose(found[:, :2, :2] - found[:1, :2, :2], 0, atol=1e-4)
    if motion in ("rigid", "similarity"):
        assert np.allclose(found[:, 0, 0], found[:, 1, 1], atol=1e-4)
        assert np.allclose(found[:, 0, 1], -found[:, 1, 0], atol=1e-4)
    if motion != "homography":
        assert np.allclose(found[:, 2], [0, 0, 1], atol=1e-6)


def test_same_seed_same_answer_bit_for_bit(name: str, digits: np.ndarray) -> None:
    first, second = (small(name, random_state=5).fit(digits) for _ in range(2))
    assert first.transforms_ == second.transforms_
    assert first.history_ == second.history_


def test_global_random_state_is_neither_used_nor_moved(name: str, digits: np.ndarray) -> None:
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002 — the very thing under test
    expected_torch, expected_numpy = torch.rand(3), np.random.rand(3)  # noqa: NPY002
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    small(name).fit(digits[:6])
    assert torch.equal(torch.rand(3), expected_torch)
    assert np.array_equal(np.random.rand(3), expected_numpy)  # noqa: NPY002


class Stop:
    """A callback that ends the fit as Ctrl-C would, at a given step."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __call__(self, event: Event) -> None:
        if event.step == self.at:
            raise KeyboardInterrupt


@pytest.mark.parametrize("share", [0.4, 0.9])
def test_resumed_equals_uninterrupted_bit_for_bit(name: str, digits: np.ndarray, tmp_path: Path, share: float) -> None:
    whole = small(name).fit(digits)
    steps = [int(row["step"]) for row in whole.history_]
    stop = Stop(steps[min(len(steps) - 1, max(1, round(share * len(steps))))] if len(steps) > 1 else steps[0])
    checkpoint = Checkpoint(tmp_path / "checkpoint.pt")
    with pytest.raises(KeyboardInterrupt):
        small(name).fit(digits, checkpoint=checkpoint, save_every=0, callbacks=[stop])
    if len(steps) > 1:
        assert checkpoint.path.exists(), "nothing was saved"
    seen: list[int] = []
    resumed = small(name)
    resumed.fit(digits, checkpoint=checkpoint, save_every=0, callbacks=[lambda event: seen.append(event.step)])
    assert resumed.transforms_ == whole.transforms_
    assert resumed.history_ == whole.history_
    if len(steps) > 1:
        assert seen[0] > 1, "it started again instead of going on"
    if whole.can_transform():
        assert np.array_equal(resumed.transform(digits[:4]), whole.transform(digits[:4]))


def test_shifts_are_found(name: str, digits: np.ndarray) -> None:
    # A soft picture: from ±2 pixels even the most local method sees where to go.
    soft = np.asarray(Image.fromarray(digits[0]).filter(ImageFilter.GaussianBlur(1.5)))
    images, truth = shifted(soft, 12, reach=2, side=36)
    model = small(name, motion=first_motion(name), size=36)
    own = method_class(name)().get_params()
    model.set_params(**{key: own[key] for key in ("iterations", "inner_iterations", "sweeps") if key in own})
    error = corner_error(model.fit(images).transforms_.matrices, truth, (36, 36))
    start = corner_error(np.tile(np.eye(3), (12, 1, 1)), truth, (36, 36))
    assert start.mean() > 1.2
    assert error.mean() < 0.5


def test_starting_warps_are_where_it_starts(name: str, digits: np.ndarray) -> None:
    """Shifts far beyond what a few steps could find, given: the images must stay where they were put."""
    images, truth = shifted(digits[0], 10, reach=12, side=56)
    model = small(name, motion=first_motion(name), size=56).fit(images, init=truth)
    error = corner_error(model.transforms_.matrices, truth, (56, 56))
    assert error.mean() < 0.7


# ---- what comes in


def test_one_image_is_not_a_set(name: str, digits: np.ndarray) -> None:
    with pytest.raises(CongealError, match="at least two"):
        small(name).fit(digits[:1])


def test_two_images_are(name: str, digits: np.ndarray) -> None:
    assert np.isfinite(small(name).fit(digits[:2]).transforms_.matrices).all()


@pytest.mark.parametrize("kind", ["colour", "alpha", "mixed sizes", "uint16", "float"])
def test_any_pixels_are_accepted(name: str, digits: np.ndarray, kind: str) -> None:
    model = small(name)
    grey = digits[:6]
    if kind == "colour":
        images: Any = np.stack([grey, grey // 2, 255 - grey], -1)
    elif kind == "alpha":
        opaque = np.full((28, 28), 255, np.uint8)
        opaque[:8, :8] = 0
        images = [Image.fromarray(np.dstack([g, g, g, opaque])) for g in grey]
    elif kind == "mixed sizes":
        images = [Image.fromarray(g).resize((28 + 4 * i, 28 + 2 * i)) for i, g in enumerate(grey)]
    else:
        images = grey.astype(np.uint16) * 16 if kind == "uint16" else grey / 255
    aligned = model.fit_transform(images)
    assert np.isfinite(model.transforms_.matrices).all()
    assert len(aligned) == 6
    assert aligned[0].dtype == (np.uint8 if kind in ("colour", "alpha", "mixed sizes") else images.dtype)


def test_blank_images_among_the_others_do_no_harm(name: str, digits: np.ndarray) -> None:
    images = digits[:8].copy()
    images[3] = 0
    model = small(name).fit(images)
    assert np.isfinite(model.transforms_.matrices).all()
    assert model.transforms_.status[3] == "blank"


# ---- new images


def test_saved_and_loaded_is_the_same_model(name: str, digits: np.ndarray, tmp_path: Path) -> None:
    model = small(name, random_state=2).fit(digits[:16])
    if not model.can_transform():
        with pytest.raises(CongealError, match=name):
            model.save(tmp_path / "model.safetensors")
        return
    model.save(tmp_path / "model.safetensors")
    loaded = congeal.load(tmp_path / "model.safetensors")
    assert type(loaded) is type(model)
    assert loaded.get_params() == model.get_params()
    assert loaded.layout_ == model.layout_
    assert np.array_equal(loaded.transform(digits[16:]), model.transform(digits[16:]))
    assert loaded.transforms_ == model.transforms_


def test_transform_does_not_change_the_model(name: str, digits: np.ndarray) -> None:
    model = small(name)
    if not model.can_transform():
        pytest.skip(f"{name} has no step for new images")
    model.fit(digits[:12])
    first = model.transform(digits[12:16])
    model.transform(digits[16:20])
    assert np.array_equal(model.transform(digits[12:16]), first)
