"""What every method promises, of the one that needs a network: a small one stands in, which sees colours around a cell.

Other methods are held to the same by test_contract.py, on digits, in which no network sees anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from known_warps import Kept, align_new
from sklearn.base import clone

import congeal
from congeal import CongealError
from congeal.geometry.orientation import mirrored
from congeal.methods.semantic.estimator import SemanticCongealing
from congeal.pipeline.align import align
from congeal.runs.checkpoint import Checkpoint
from killed import run_killed
from made_birds import made_birds

FITTED, KNOWN, NEW = 10, 6, 3


class _Colours(torch.nn.Module):
    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        cells = torch.nn.functional.avg_pool2d(picture, 16)
        parts = [cells]
        for down in (-2, 0, 2):
            for right in (-2, 0, 2):
                parts.append(torch.roll(cells, [down, right], [2, 3]))
        return torch.cat(parts, 1) - 0.5


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("network") / "colours.pt"
    torch.jit.script(_Colours()).save(str(path))
    return str(path)


@pytest.fixture(scope="module")
def birds() -> tuple[np.ndarray, np.ndarray]:
    pictures, flips, _ = made_birds(FITTED + NEW, seed=5, side=96)
    return pictures, flips


def model(network: str, **params: Any) -> SemanticCongealing:
    return SemanticCongealing(features=network, mirror=True, fit_sample=KNOWN, random_state=3, **params)


@pytest.fixture(scope="module")
def fitted(network: str, birds: tuple[np.ndarray, np.ndarray]) -> tuple[SemanticCongealing, Kept]:
    kept = Kept()
    options: dict[str, Any] = {"checkpoint": kept, "save_every": 0}
    return model(network).fit(birds[0][:FITTED], **options), kept


def test_the_network_that_stands_in_is_good_enough(
    fitted: tuple[SemanticCongealing, Kept], birds: tuple[np.ndarray, np.ndarray]
) -> None:
    found = mirrored(fitted[0].transforms_.matrices)
    assert (found == birds[1][:FITTED]).all() or (found == ~birds[1][:FITTED]).all()


def test_it_is_an_estimator(network: str, fitted: tuple[SemanticCongealing, Kept]) -> None:
    again = clone(fitted[0])
    assert again.get_params() == fitted[0].get_params()
    assert not hasattr(again, "transforms_")


def test_input_stays_as_it_is_and_a_seed_repeats(
    network: str, fitted: tuple[SemanticCongealing, Kept], birds: tuple[np.ndarray, np.ndarray]
) -> None:
    before = birds[0].copy()
    threads = torch.get_num_threads()
    torch.set_num_threads(2 if threads == 1 else 1)  # another number of threads, the same answer
    try:
        again = model(network).fit(birds[0][:FITTED])
    finally:
        torch.set_num_threads(threads)
    assert (before == birds[0]).all()
    assert again.transforms_ == fitted[0].transforms_
    assert again.history_ == fitted[0].history_


@pytest.mark.parametrize("state", [0, -1])
def test_resumed_equals_uninterrupted(
    network: str,
    fitted: tuple[SemanticCongealing, Kept],
    birds: tuple[np.ndarray, np.ndarray],
    tmp_path: Path,
    state: int,
) -> None:
    assert len(fitted[1].states) > 1
    checkpoint = Checkpoint(tmp_path / "checkpoint.pt")
    checkpoint.save(Kept(fitted[1].states[state]).load() or {})
    again = model(network).fit(birds[0][:FITTED], checkpoint=checkpoint)
    assert again.transforms_ == fitted[0].transforms_
    assert again.history_ == fitted[0].history_


def test_new_images_one_by_one_from_a_file(
    network: str, fitted: tuple[SemanticCongealing, Kept], birds: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    fitted[0].save(tmp_path / "model.safetensors")
    loaded = congeal.load(tmp_path / "model.safetensors")
    with pytest.raises(CongealError, match="must not choose"):
        align_new(loaded, birds[0][FITTED:])
    loaded.set_params(features=network)
    together = align_new(fitted[0], birds[0][FITTED:]).stack_from_frame
    assert np.array_equal(align_new(loaded, birds[0][FITTED:]).stack_from_frame, together)
    alone = align_new(loaded, birds[0][FITTED + 1 : FITTED + 2]).stack_from_frame
    assert np.array_equal(alone[0], together[1])


@pytest.mark.parametrize("moment", [10, 28])
def test_a_run_that_was_killed_ends_the_same(
    network: str, birds: tuple[np.ndarray, np.ndarray], tmp_path: Path, moment: int
) -> None:
    np.save(tmp_path / "birds.npy", birds[0][:5])
    options: dict[str, Any] = {"features": network, "mirror": True, "write_aligned": False, "quiet": True}
    whole = align(tmp_path / "birds.npy", tmp_path / "whole", **options)
    assert not run_killed(lambda: align(tmp_path / "birds.npy", tmp_path / "killed", **options), moment)
    again = align(tmp_path / "birds.npy", tmp_path / "killed", **options)
    assert again.transforms == whole.transforms
    for name in ("transforms.csv", "model.safetensors", "mean.png", ".work/lines/lines.json"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"motion": "rigid"}, "motion"),
        ({"fit_sample": 2}, "fit_sample"),
        ({"features": "edges"}, "compares features of a network"),
    ],
)
def test_parameters_that_make_no_sense(
    params: dict[str, Any], words: str, birds: tuple[np.ndarray, np.ndarray], network: str
) -> None:
    with pytest.raises(CongealError, match=words):
        SemanticCongealing(**{"features": network, **params}).fit(birds[0][:4])
