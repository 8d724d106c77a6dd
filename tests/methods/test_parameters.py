"""What a parameter may be: every parameter of every method is checked, and the sentence says what is allowed."""

from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np
import pytest
import torch
from sklearn.base import clone
from test_contract import small

import congeal
from blobs import blob
from congeal import DPRC, LSC, RASL, CongealError
from congeal.errors import RunFailed
from congeal.methods.checks import Count, Factor, Range, Seed, Share, Some, accepts, describe
from congeal.methods.registry import method_class, methods
from congeal.runs.checkpoint import Checkpoint

ALL = [*methods(), "dprc-as-printed"]
UNCHECKED = {"reference"}  # text, a number, a path or an array: looked at when it is used


def wrong_values(value: Any) -> list[Any]:
    """Values of the wrong kind, for a parameter with this default."""
    if isinstance(value, bool):
        return ["yes", 2]
    if isinstance(value, int | float):
        return ["7", math.nan, [1], -(10**6) if isinstance(value, int) else 1j]
    if isinstance(value, tuple):
        return ["3", math.nan, ("a",) * len(value), (math.nan,) * len(value)]
    return [object(), b"?", math.nan]


@pytest.mark.parametrize("name", ALL)
def test_every_parameter_is_checked_and_the_sentence_names_it(name: str) -> None:
    method_class(name)().check_parameters()
    for key, value in method_class(name)().get_params().items():
        for wrong in wrong_values(value) if key not in UNCHECKED else ():
            with pytest.raises(CongealError, match=key):
                method_class(name)(**{key: wrong}).check_parameters()


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (DPRC(steps=-5), "dprc: steps must be a whole number of 1 or more, not -5"),
        (LSC(damping=-1), "lsc: damping must be a number of 0 or more, not -1"),
        (DPRC(learning_rate=math.inf), "dprc: learning_rate must be a number above 0, not inf"),
        (LSC(size=math.nan), "lsc: size must be a whole number of 2 or more, not nan"),
        (LSC(random_state=-1), "lsc: random_state must be a whole number from 0 to 4294967295 or None, not -1"),
        (LSC(blurs=()), r"lsc: blurs must be one or more values, each a number of 0 or more, not \(\)"),
        (LSC(align_on=1.5), "align_on must be a whole number or text or values, each a whole number or text or None"),
        (LSC(align_on="red"), "array has no channel 'red' to align on: it has one channel, 0"),
        (method_class("sift")(patch=5), "sift: patch must be an even number of 2 or more, not 5"),
    ],
)
def test_the_sentence_says_what_is_allowed(model: Any, sentence: str) -> None:
    with pytest.raises(CongealError, match=sentence):
        model.fit(blob())


def test_types_with_limits() -> None:
    assert accepts(Count, np.int64(3))
    assert accepts(Share, np.float32(0.5))
    assert accepts(Some[Count], [1, 2])
    assert accepts(Seed | None, None)
    assert not any(accepts(Count, value) for value in (0, True, 1.0, "1", None, np.float64(1)))
    assert not any(accepts(Share, value) for value in (-0.1, 1.1, math.nan, math.inf, "0.5"))
    assert not accepts(Some[Count], ())
    assert not accepts(Count, -(10**400))
    assert describe(Factor) == "a number above 0, up to 1"
    assert isinstance(get_args(Count)[1], Range)


@pytest.mark.parametrize("name", methods())
def test_numpy_numbers_and_fresh_seeds(name: str, tmp_path: Any) -> None:
    """As parameters NumPy's numbers give what Python's give, stay what was given, and go into the model file."""
    plain = small(name, random_state=3)
    kinds = {int: np.int64, float: np.float64}
    changed = {key: kinds[type(value)](value) for key, value in plain.get_params().items() if type(value) in kinds}
    numpy = clone(plain).set_params(**changed)
    assert numpy.fit(blob()).transforms_ == plain.fit(blob()).transforms_
    assert clone(numpy).get_params()["random_state"] is changed["random_state"]
    if numpy.can_transform():
        numpy.save(tmp_path / "model")
        loaded = congeal.load(tmp_path / "model")
        assert loaded.get_params()["size"] == numpy.size
        assert np.array_equal(loaded.transform(blob(4, seed=1)), numpy.transform(blob(4, seed=1)))


def test_without_a_seed_one_is_drawn_and_kept(tmp_path: Any) -> None:
    model = LSC(random_state=None, iterations=(1, 1, 1)).fit(blob())
    assert model.random_state is None
    assert LSC(random_state=model.random_state_, iterations=(1, 1, 1)).fit(blob()).transforms_ == model.transforms_
    assert clone(model).fit(blob()).random_state_ != model.random_state_
    model.save(tmp_path / "model")
    loaded = congeal.load(tmp_path / "model")
    assert loaded.get_params()["random_state"] is None
    assert loaded.random_state_ == model.random_state_


def test_an_interrupted_fit_without_a_seed_keeps_its_own(tmp_path: Any) -> None:
    seeds: list[int] = []

    class Kept(Checkpoint):
        def save(self, state: Any) -> None:
            seeds.append(state["random_state"])
            super().save(state)
            if len(seeds) == 2:
                raise KeyboardInterrupt

    model = RASL(size=24, random_state=None, iterations=4)
    with pytest.raises(KeyboardInterrupt):
        model.fit(blob(), checkpoint=Kept(tmp_path / "state"), save_every=0)
    model.fit(blob(), checkpoint=Kept(tmp_path / "state"), save_every=0)
    assert len(set(seeds)) == 1
    assert model.random_state_ == seeds[0]


@pytest.mark.parametrize("name", methods())
def test_whatever_torch_is_set_to(name: str) -> None:
    """No gradients, and double precision as the default: the same poses, because every type is written down."""
    expected = small(name).fit(blob()).transforms_.matrices
    with torch.no_grad():
        assert np.array_equal(small(name).fit(blob()).transforms_.matrices, expected)
    torch.set_default_dtype(torch.float64)
    try:
        found = small(name).fit(blob())
        assert np.allclose(found.transforms_.matrices, expected, atol=0.5)
        if found.can_transform():
            found.transform(blob(3, seed=1))
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("shape", [(1, 28), (28, 1), (2, 200), (200, 2), (2, 2)])
@pytest.mark.parametrize("name", methods())
def test_images_of_any_shape_are_aligned_or_refused_in_a_sentence(name: str, shape: tuple[int, int]) -> None:
    images = np.random.default_rng(0).integers(0, 255, (6, *shape), dtype=np.uint8)
    model = small(name, size=64)
    if name == "deepfeatures" or (name in ("rasl", "pssv") and shape == (2, 2)):
        with pytest.raises(CongealError, match=r"too small|lost every image"):
            model.fit(images)
        return
    model.fit(images)
    assert np.isfinite(model.transforms_.matrices).all()
    if model.can_transform():
        model.transform(images[:2])


def test_a_full_disk_is_called_so(tmp_path: Any) -> None:
    """torch makes a RuntimeError of it. The limit on the size of files stands for the disk."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(RunFailed, match=r"the disk is full: could not write .*state"):
            Checkpoint(tmp_path / "state").save({"a": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []
