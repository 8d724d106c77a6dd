"""t-GRASTA: learning a subspace on the set, on part of it, in one pass; and new images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import congeal
from congeal.datasets import open_named
from congeal.errors import CongealError
from congeal.geometry import from_normalised, matrix_from_parameters, warp
from congeal.geometry.matrix import invert
from congeal.images import Stack, prepare
from congeal.methods.tgrasta import TGRASTA, Tracker, solve
from congeal.metrics import corner_error
from congeal.solvers.lowrank import linearise


def digits(name: str, count: int) -> Stack:
    return prepare(open_named(name).limit(count), size=28)


def pixels(name: str, start: int, stop: int) -> np.ndarray:
    return np.asarray(open_named(name).batch(np.arange(start, stop))[..., 0])


def test_solver_splits_image_into_subspace_and_errors() -> None:
    stack = digits("digits:3", 10)
    line = linearise(stack, torch.as_tensor(stack.start.copy()), "rigid", 0.4, "object")
    subspace = torch.linalg.svd(line.data, full_matrices=False)[2][:3].T
    fit = solve(line, torch.arange(10), subspace, 30)
    torch.testing.assert_close(fit.weights @ subspace.T + fit.errors, fit.moved, atol=1e-5, rtol=0)
    none = line.data - (line.data @ subspace) @ subspace.T
    assert (fit.errors.abs().sum(1) <= none.abs().sum(1) + 1e-6).all()


def test_tracker_finds_a_subspace_and_stays_orthonormal() -> None:
    stack = digits("digits:1", 40)
    line = linearise(stack, torch.as_tensor(stack.start.copy()), "rigid", 0.4, "object")
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randn(5, 40, generator=generator, dtype=torch.float64) @ line.data
    tracker = Tracker(torch.linalg.qr(mixed.T)[0])
    everything = torch.arange(40)
    before = solve(line, everything, tracker.subspace, 20).errors.abs().sum()
    for _ in range(4):
        for one in torch.randperm(40, generator=generator).split(1):
            tracker.update(solve(line, one, tracker.subspace, 20))
    assert solve(line, everything, tracker.subspace, 20).errors.abs().sum() < 0.9 * before
    torch.testing.assert_close(tracker.subspace.T @ tracker.subspace, torch.eye(5).double(), atol=1e-8, rtol=0)


@pytest.mark.parametrize("mode", ["batch", "online", "frozen"])
def test_modes_align_and_keep_the_ink(mode: str) -> None:
    method = TGRASTA(motion="affine", size=28, mode=mode, linearisations=5, sweeps=3).fit(digits("digits:3", 60))
    assert method.quality_.apsnr_after > method.quality_.apsnr_before + 0.3
    assert 0.9 < method.quality_.energy_ratio < 1.1


@pytest.mark.slow
def test_ink_of_followers_stays_in_its_band() -> None:
    method = TGRASTA(motion="affine", size=28, mode="online").fit(digits("digits:4", 100))  # grew to 1.13 once
    assert 0.9 < method.quality_.energy_ratio < 1.1


def test_recovers_known_warps() -> None:
    rng = np.random.default_rng(5)
    parameters = np.concatenate(
        [rng.uniform(-2, 2, (25, 2)) / 14, rng.uniform(-0.08, 0.08, (25, 1)), rng.uniform(-0.05, 0.05, (25, 1))], 1
    )
    truth = invert(from_normalised(matrix_from_parameters(torch.as_tensor(parameters)), (28, 28)))
    image = digits("digits:3", 1).images([0]).expand(25, -1, -1, -1)
    copies = (warp(image, truth.float(), mode="bicubic")[:, 0].clamp(0, 1) * 255).round().byte().numpy()
    found = TGRASTA(motion="similarity", size=28, dimension=1).fit(copies).transforms_.matrices
    assert corner_error(found, truth.numpy(), (28, 28)).mean() < 0.5


def test_new_images_are_aligned_to_the_frozen_subspace(tmp_path: Path) -> None:
    method = TGRASTA(motion="rigid", size=28, mode="frozen", linearisations=6).fit(pixels("digits:1", 0, 100))
    subspace = method._tracker.subspace.clone()
    new = pixels("digits:1", 100, 140)
    aligned = method.transform(new)
    assert aligned.shape == new.shape
    assert method.quality_.apsnr_after > method.quality_.apsnr_before + 1.0
    torch.testing.assert_close(method._tracker.subspace, subspace, atol=0, rtol=0)
    alone = method.transform(new[:1])  # an image is aligned by itself, whatever else comes along
    np.testing.assert_array_equal(alone[0], aligned[0])
    method.save(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(congeal.load(tmp_path / "model.safetensors").transform(new), aligned)


def test_same_seed_same_answer_and_another_seed_another() -> None:
    stack = digits("digits:2", 30)
    runs = [TGRASTA(size=28, linearisations=2, sweeps=2, random_state=seed).fit(stack) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(runs[0].stack_from_frame_, runs[1].stack_from_frame_)
    assert np.abs(runs[0].stack_from_frame_ - runs[2].stack_from_frame_).max() > 1e-6


class Kept:
    """A checkpoint in memory."""

    def __init__(self) -> None:
        self.states: list[dict[str, Any]] = []

    def save(self, state: dict[str, Any]) -> None:
        import copy

        self.states.append(copy.deepcopy(state))

    def load(self) -> dict[str, Any] | None:
        return self.states[-1] if self.states else None


@pytest.mark.parametrize("mode", ["batch", "online", "frozen"])
def test_resume_equals_uninterrupted(mode: str) -> None:
    def fresh() -> TGRASTA:
        return TGRASTA(size=28, mode=mode, linearisations=3, sweeps=2)

    stack, kept = digits("digits:5", 40), Kept()
    whole = fresh().fit(stack, checkpoint=kept, save_every=0.0)
    for state in list(kept.states):
        part = Kept()
        part.states = [state]
        resumed = fresh().fit(stack, checkpoint=part, save_every=0.0)
        np.testing.assert_array_equal(whole.stack_from_frame_, resumed.stack_from_frame_)
        torch.testing.assert_close(whole._tracker.subspace, resumed._tracker.subspace, atol=0, rtol=0)


def test_unknown_mode_is_named() -> None:
    with pytest.raises(CongealError, match="streaming"):
        TGRASTA(mode="streaming").fit(digits("digits:3", 5))
