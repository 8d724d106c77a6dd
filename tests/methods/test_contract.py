"""What every method promises. A new line in the registry is picked up here by itself.

Each method is fitted once, by `fitted`, and most promises are checked on that one model.
"""

from __future__ import annotations

import copy
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from known_warps import Kept, align_new, photograph_copies, pixels
from PIL import Image
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

import congeal
from congeal import CongealError
from congeal.evaluation import corner_error
from congeal.execution.threads import single_torch_thread
from congeal.geometry import map_points
from congeal.geometry.matrix import corners
from congeal.methods.base import Method
from congeal.methods.dprc.networks import seeded
from congeal.methods.fit_context import Event
from congeal.methods.registry import method_class, methods
from congeal.runs.checkpoint import Checkpoint

# How much work a method does, by the names methods give it: enough to exercise everything, little enough to be quick.
EFFORT = {
    "iterations": 3,
    "coarse_iterations": 2,
    "inner_iterations": 40,
    "linearisations": 4,
    "rounds": 3,
    "sweeps": 1,
    "clusters": 4,
    "units": 8,
    "steps": 5,
    "refine_steps": 6,
    "restarts": 2,
    "batch_size": 16,
    "passes": 2,
    "epochs": 2,
}
FRAME = (28, 28)
LEARNT, NEW = 24, 8  # images that models are fitted on, and that they have not seen


def small(name: str, **params: Any) -> Method:
    """The method with little to do: whole numbers and tuples of them are lowered."""
    model = method_class(name)(size=28)
    for key, value in model.get_params().items():
        if key in EFFORT and isinstance(value, int) and not isinstance(value, bool):
            model.set_params(**{key: min(value, EFFORT[key])})
        elif key in EFFORT and isinstance(value, tuple) and all(isinstance(v, int) for v in value):
            model.set_params(**{key: tuple(min(v, EFFORT[key]) for v in value)})
    return model.set_params(**params)


@pytest.fixture(params=list(methods()))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def digits() -> np.ndarray:
    return pixels("3", 0, LEARNT + NEW)


@dataclass
class Fitted:
    """A fitted model and what was seen while it was fitted."""

    model: Method
    aligned: np.ndarray
    events: list[Event]
    states: list[bytes]


@pytest.fixture(scope="module")
def models() -> dict[str, Fitted]:
    return {}


@pytest.fixture
def fitted(name: str, digits: np.ndarray, models: dict[str, Fitted]) -> Fitted:
    """One model per method, fitted on the first 24 digits; tests must leave it as it is."""
    if name not in models:
        events: list[Event] = []
        kept, model = Kept(), small(name, random_state=5)
        options: dict[str, Any] = {"checkpoint": kept, "save_every": 0, "callbacks": [events.append]}
        aligned = model.fit_transform(digits[:LEARNT], **options)
        models[name] = Fitted(model, aligned, events, kept.states)
    return models[name]


@pytest.fixture
def placing(fitted: Fitted) -> Method:
    """The fitted model, if it can align new images."""
    if not fitted.model.can_transform():
        pytest.skip(f"{fitted.model.name} has no step for new images")
    return fitted.model


def apart(some: np.ndarray, others: np.ndarray) -> float:
    """The largest distance of a corner between two sets of poses, in pixels."""
    frame = corners(FRAME)
    return float(np.abs(map_points(some.astype(float), frame) - map_points(others.astype(float), frame)).max())


# ---- the scikit-learn API


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


def test_parameters_and_what_is_learnt_are_documented(name: str) -> None:
    """In the class or in a base that several methods share, which the API reference shows too."""
    own = [base for base in method_class(name).__mro__ if issubclass(base, Method) and base is not Method]
    parts = [(inspect.getdoc(base) or "").partition("Attributes\n") for base in own]
    parameters, attributes = "\n".join(part[0] for part in parts), parts[0][2]
    assert "Parameters\n----------" in parts[0][0]
    shared = {field.name for field in fields(Method)}
    missing = [key for key in method_class(name)().get_params() if key not in parameters and key not in shared]
    assert not missing, f"no word about {missing}"
    assert "transforms_" in attributes
    assert "quality_" in attributes


def test_clone_is_unfitted_and_equal(fitted: Fitted) -> None:
    copied = clone(fitted.model)
    assert copied.get_params() == fitted.model.get_params()
    assert not hasattr(copied, "transforms_")
    assert not hasattr(copied, "layout_")


def test_works_in_a_pipeline(name: str, digits: np.ndarray) -> None:
    flatten = FunctionTransformer(lambda images: images.reshape(len(images), -1).astype(float))
    model = small(name)
    if not model.can_transform():
        assert not hasattr(model, "transform")
        with pytest.raises(CongealError, match=f"{name} has no step for new images"):
            model.transform(digits)
        return
    line = Pipeline([("align", model), ("flatten", flatten), ("components", PCA(2, random_state=0))])
    assert line.fit_transform(digits[:6]).shape == (6, 2)
    assert line.transform(digits[6:10]).shape == (4, 2)


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


def test_fit_gives_one_transform_per_image_and_numbers(fitted: Fitted, digits: np.ndarray) -> None:
    model, events = fitted.model, fitted.events
    assert np.array_equal(digits, pixels("3", 0, LEARNT + NEW)), "the input was changed"
    assert fitted.aligned.dtype == digits.dtype
    assert fitted.aligned.shape == (LEARNT, *FRAME)
    assert model.transforms_.matrices.shape == (LEARNT, 3, 3)
    assert np.isfinite(model.transforms_.matrices).all()
    assert model.transforms_.ids == tuple(str(i) for i in range(LEARNT))
    assert model.quality_.n_images == LEARNT
    assert model.stack_from_frame_.shape == (LEARNT, 3, 3)
    assert [e.step for e in events] == sorted({e.step for e in events})
    assert events[-1].step <= events[-1].total
    assert len(model.history_) == len(events) > 0


ZOOMED = np.array([[1.25, 0, -0.25 * 13.5], [0, 1.25, -0.25 * 13.5], [0, 0, 1]])


@pytest.mark.parametrize("motion", ["translation", "rigid", "similarity", "affine"])
def test_only_the_motion_asked_for(name: str, digits: np.ndarray, motion: str) -> None:
    """What holds the common pose is a member of the motion too: a rigid set is not scaled as a whole."""
    if motion not in method_class(name).motions:
        pytest.skip(f"{name} has no {motion}")
    init = np.tile(ZOOMED, (LEARNT, 1, 1)) if motion == "translation" else None
    model = small(name, motion=motion).fit(digits[:LEARNT], init=init)
    found = model.transforms_.matrices
    assert not model.quality_.collapsed, "a motion that cannot scale is not to blame for a start that zooms"
    assert np.abs(found[:, 2] - [0, 0, 1]).max() < 1e-6
    assert np.abs(found - found[0]).max() > 0.1, "nothing moved"
    if motion == "translation":
        assert np.abs(found[:, :2, :2] - ZOOMED[:2, :2]).max() < 1e-6
    if motion == "rigid":
        assert np.abs(np.linalg.det(found[:, :2, :2]) - 1).max() < 1e-6
    if motion in ("rigid", "similarity"):
        assert np.abs(found[:, 0, 0] - found[:, 1, 1]).max() < 1e-6
        assert np.abs(found[:, 0, 1] + found[:, 1, 0]).max() < 1e-6


def test_same_seed_same_answer_and_no_global_random_state(fitted: Fitted, name: str, digits: np.ndarray) -> None:
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002 — the very thing under test
    expected_torch, expected_numpy = torch.rand(3), np.random.rand(3)  # noqa: NPY002
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    again = small(name, random_state=5).fit(digits[:LEARNT])
    assert again.transforms_ == fitted.model.transforms_, "bit for bit"
    assert again.history_ == fitted.model.history_
    assert torch.equal(torch.rand(3), expected_torch)
    assert np.array_equal(np.random.rand(3), expected_numpy)  # noqa: NPY002


@pytest.mark.parametrize("share", [0.4, 0.9])
def test_resumed_equals_uninterrupted_bit_for_bit(
    fitted: Fitted, name: str, digits: np.ndarray, tmp_path: Path, share: float
) -> None:
    assert fitted.states, "nothing was saved"
    state = fitted.states[min(len(fitted.states) - 1, round(share * len(fitted.states)))]
    checkpoint = Checkpoint(tmp_path / "checkpoint.pt")
    checkpoint.save(Kept(state).load() or {})
    seen: list[int] = []
    resumed = small(name, random_state=5)
    resumed.fit(digits[:LEARNT], checkpoint=checkpoint, callbacks=[lambda event: seen.append(event.step)])
    assert resumed.transforms_ == fitted.model.transforms_
    assert resumed.history_ == fitted.model.history_
    assert len(seen) < len(fitted.events), "it started again instead of going on"
    if resumed.can_transform():
        new = digits[LEARNT : LEARNT + 2]
        assert np.array_equal(resumed.transform(new), fitted.model.transform(new))


def test_starting_warps_are_where_it_starts(name: str, digits: np.ndarray) -> None:
    """Shifts far beyond what a few steps could find, given: the images must stay where they were put."""
    moves = np.random.default_rng(0).integers(-12, 13, (6, 2))
    images, truth = np.zeros((6, 56, 56), np.uint8), np.tile(np.eye(3), (6, 1, 1))
    for image, (x, y), matrix in zip(images, moves, truth, strict=True):
        image[14 + y : 42 + y, 14 + x : 42 + x] = digits[0]
        matrix[:2, 2] = -x, -y
    model = small(name, motion=method_class(name).motions[0], size=56).fit(images, init=truth)
    assert corner_error(model.transforms_.matrices, truth, (56, 56)).mean() < 0.7


# ---- what comes in


def test_one_image_is_not_a_set(name: str, digits: np.ndarray) -> None:
    with pytest.raises(CongealError, match="at least two"):
        small(name).fit(digits[:1])


def test_two_images_are(name: str, digits: np.ndarray) -> None:
    assert np.isfinite(small(name).fit(digits[:2]).transforms_.matrices).all()


@pytest.mark.parametrize("kind", ["colour", "mixed sizes", "uint16", "float"])
@pytest.mark.parametrize("method", ["lsc", "deepfeatures"])
def test_any_pixels_are_accepted(method: str, digits: np.ndarray, kind: str) -> None:
    """How pixels are read is no matter of the method, so two of them stand for all."""
    model, grey = small(method), digits[:6]
    if kind == "colour":
        images: Any = np.stack([grey, grey // 2, 255 - grey], -1)
    elif kind == "mixed sizes":
        images = [Image.fromarray(g).resize((28 + 4 * i, 28 + 2 * i)) for i, g in enumerate(grey)]
    else:
        images = grey.astype(np.uint16) * 16 if kind == "uint16" else grey / 255
    aligned = model.fit_transform(images)
    assert np.isfinite(model.transforms_.matrices).all()
    assert len(aligned) == 6
    assert aligned[0].dtype == (np.uint8 if kind in ("colour", "mixed sizes") else images.dtype)


def test_masks_and_colours_are_accepted(name: str, digits: np.ndarray) -> None:
    """Every method has its own way with what is transparent."""
    opaque = np.full(FRAME, 255, np.uint8)
    opaque[:8, :8] = 0
    images = [Image.fromarray(np.dstack([g, g // 2, g, opaque])) for g in digits[:6]]
    model = small(name).fit(images[:4])
    assert np.isfinite(model.transforms_.matrices).all()
    if model.can_transform():
        assert [one.shape for one in model.transform(images[4:])] == [(*FRAME, 3)] * 2


def test_blank_images_among_the_others_do_no_harm(name: str, digits: np.ndarray) -> None:
    images = digits[:6].copy()
    images[3] = 0
    model = small(name).fit(images)
    assert np.isfinite(model.transforms_.matrices).all()
    assert model.transforms_.status[3] == "blank"


# ---- new images


def test_saved_and_loaded_is_the_same_model(fitted: Fitted, name: str, digits: np.ndarray, tmp_path: Path) -> None:
    model = fitted.model
    if not model.can_transform():
        with pytest.raises(CongealError, match=name):
            model.save(tmp_path / "model.safetensors")
        return
    model.save(tmp_path / "model.safetensors")
    loaded = congeal.load(tmp_path / "model.safetensors")
    assert type(loaded) is type(model)
    assert loaded.get_params() == model.get_params()
    assert loaded.layout_ == model.layout_
    new = digits[LEARNT : LEARNT + 3]
    assert np.array_equal(align_new(loaded, new).stack_from_frame, align_new(model, new).stack_from_frame)


def test_transform_changes_nothing_on_the_model(placing: Method, digits: np.ndarray, tmp_path: Path) -> None:
    def seen(model: Method) -> list[Any]:
        model.save(tmp_path / "model.safetensors")
        learnt = [model.transforms_, model.quality_, model.history_, model.layout_, model.stack_from_frame_.tobytes()]
        return [*learnt, model.get_params(), sorted(vars(model)), (tmp_path / "model.safetensors").read_bytes()]

    before = copy.deepcopy(seen(placing))
    placing.transform(digits[LEARNT : LEARNT + 3])
    assert seen(placing) == before


def test_a_new_image_does_not_depend_on_its_neighbours(placing: Method, digits: np.ndarray) -> None:
    model = copy.copy(placing)
    if hasattr(model, "tolerance"):  # so that images stop at different times
        model.set_params(tolerance=1.0)
    new = digits[LEARNT:]
    together = align_new(model, new).stack_from_frame
    order = np.random.default_rng(0).permutation(len(new))
    assert apart(align_new(model, new[order]).stack_from_frame, together[order]) < 1e-4
    assert apart(align_new(model, new[:3]).stack_from_frame, together[:3]) < 1e-4
    for i in range(3):
        assert apart(align_new(model, new[i : i + 1]).stack_from_frame, together[i : i + 1]) < 1e-4


def test_several_threads_may_ask_at_once(placing: Method, digits: np.ndarray) -> None:
    parts = [digits[LEARNT + i : LEARNT + i + 1] for i in range(NEW)]
    one_by_one = [placing.transform(part) for part in parts]
    with ThreadPoolExecutor(4) as pool:
        at_once = list(pool.map(placing.transform, parts))
    for some, others in zip(at_once, one_by_one, strict=True):
        assert np.abs(some.astype(int) - others).max() <= 1  # rounding to whole grey values


def test_an_interrupted_pass_over_new_images_goes_on(
    placing: Method, digits: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("congeal.registration.batching.CHUNK_VALUES", 1)  # every image is a run by itself
    new, whole, stopped = digits[LEARNT : LEARNT + 4], Kept(), Kept(stop_after=1)
    expected = align_new(placing, new, checkpoint=whole, save_every=0).stack_from_frame
    with pytest.raises(KeyboardInterrupt):
        align_new(placing, new, checkpoint=stopped, save_every=0)
    resumed = Kept(*stopped.states)
    found = align_new(placing, new, checkpoint=resumed, save_every=0).stack_from_frame
    assert apart(found, expected) < 1e-4
    assert len(resumed.states) == len(whole.states) > 1, "it started again instead of going on"


# ---- what several fits share


def test_one_thread_inside_one_thread_stays_one() -> None:
    """Sums over many images differ in their last bits with the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with single_torch_thread():
            with single_torch_thread() as side_by_side:
                assert side_by_side == 3
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("name", "more"), [("lsc", {"size": 28}), ("joint", {"size": 128})])
def test_the_answer_does_not_depend_on_the_number_of_threads(name: str, more: dict[str, Any]) -> None:
    """Workers of a cluster have one each, and a run that they share ends with the same bytes as one without them."""
    images = pixels("3", 0, 80) if name == "lsc" else np.asarray(photograph_copies("similarity", n=12)[0])
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            model = small(name, **more).fit(images)
            found.append((model.transforms_.matrices, align_new(model, images).transforms.matrices))
    finally:
        torch.set_num_threads(before)
    assert all(map(np.array_equal, *found))


def test_threads_are_given_back_whoever_ends_last() -> None:
    """Torch keeps one number for threads to come and one for each that runs; both are as they were in the end."""
    before = torch.get_num_threads()
    entered, left, free = threading.Barrier(2), threading.Event(), []

    def first() -> None:
        with single_torch_thread() as side_by_side:
            free.append(side_by_side)
            entered.wait(60)
        left.set()

    def second() -> None:
        with single_torch_thread() as side_by_side:
            free.append(side_by_side)
            entered.wait(60)
            left.wait(60)

    torch.set_num_threads(3)
    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda work: work(), (first, second)))
        with ThreadPoolExecutor(1) as later:
            assert later.submit(torch.get_num_threads).result() == 3
        assert torch.get_num_threads() == 3
        assert free == [3, 3]
    finally:
        torch.set_num_threads(before)


def test_inference_mode_leaves_nothing_behind(digits: np.ndarray) -> None:
    """Tensors made in it cannot be learnt with, so none may be kept for later."""
    with torch.inference_mode():
        few = digits[:6, 2:25, 2:24]  # a size that no other test uses
        model = small("dprc", size=23, steps=2).fit(few)
        aligned = model.transform(few)
    assert np.array_equal(small("dprc", size=23, steps=2).fit(few).transform(few), aligned)


def test_first_weights_do_not_depend_on_what_other_threads_draw() -> None:
    def weights(drawn: int) -> torch.Tensor:
        def make() -> tuple[torch.nn.Linear, ...]:
            other = threading.Thread(target=torch.rand, args=(drawn,))
            other.start()
            other.join()
            return (torch.nn.Linear(5, 4),)

        return seeded(make, 7)[0].weight

    assert torch.equal(weights(drawn=1), weights(drawn=2))
