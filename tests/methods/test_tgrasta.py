"""t-GRASTA: learning a subspace on the set, on part of it, in one pass; and new images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from known_warps import Kept, align_new, digits, errors, pixels, warped_digit

from congeal.errors import CongealError
from congeal.methods.lowrank.decomposition import linearise
from congeal.methods.lowrank.tgrasta import TGRASTA, Tracker, solve
from congeal.registration.features import ObjectPixels


def test_solver_splits_image_into_subspace_and_errors() -> None:
    stack = digits("3", 10)
    line = linearise(stack, torch.as_tensor(stack.start.copy()), "rigid", 0.4, ObjectPixels())
    subspace = torch.linalg.svd(line.data, full_matrices=False)[2][:3].T
    fit = solve(line, torch.arange(10), subspace, 30)
    torch.testing.assert_close(fit.weights @ subspace.T + fit.errors, fit.moved, atol=1e-5, rtol=0)
    none = line.data - (line.data @ subspace) @ subspace.T
    assert (fit.errors.abs().sum(1) <= none.abs().sum(1) + 1e-6).all()


def test_tracker_finds_a_subspace_and_stays_orthonormal() -> None:
    stack = digits("1", 40)
    line = linearise(stack, torch.as_tensor(stack.start.copy()), "rigid", 0.4, ObjectPixels())
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
    """Of fours that follow a subspace the ink once grew to 1.13."""
    method = TGRASTA(motion="affine", size=28, mode=mode).fit(digits("4", 60))
    assert method.quality_.apsnr_after > method.quality_.apsnr_before + 0.3
    assert 0.9 < method.quality_.energy_ratio < 1.1


def test_recovers_known_warps() -> None:
    images, truth = warped_digit("similarity")
    before, after = errors(TGRASTA(motion="similarity", size=28, dimension=1).fit(images), truth)
    assert before > 1
    assert after < 0.5


def test_new_images_are_aligned_to_the_frozen_subspace() -> None:
    method = TGRASTA(motion="rigid", size=28, mode="frozen", linearisations=6).fit(pixels("1", 0, 60))
    subspace = method._tracker.subspace.clone()
    quality = align_new(method, pixels("1", 60, 100)).quality
    assert quality.apsnr_after > quality.apsnr_before + 1.0
    torch.testing.assert_close(method._tracker.subspace, subspace, atol=0, rtol=0)


def test_another_seed_is_another_answer() -> None:
    stack = digits("2", 20)
    one, other = (TGRASTA(size=28, linearisations=2, sweeps=1, random_state=seed).fit(stack) for seed in (0, 1))
    assert np.abs(one.stack_from_frame_ - other.stack_from_frame_).max() > 1e-6


@pytest.mark.parametrize("mode", ["batch", "online", "frozen"])
def test_resume_equals_uninterrupted(mode: str) -> None:
    def fresh() -> TGRASTA:
        return TGRASTA(size=28, mode=mode, linearisations=3, sweeps=1)

    stack, kept = digits("5", 26), Kept()
    whole = fresh().fit(stack, checkpoint=kept, save_every=0.0)
    for state in kept.states:
        resumed = fresh().fit(stack, checkpoint=Kept(state))
        np.testing.assert_array_equal(whole.stack_from_frame_, resumed.stack_from_frame_)
        torch.testing.assert_close(whole._tracker.subspace, resumed._tracker.subspace, atol=0, rtol=0)


def test_unknown_mode_is_named() -> None:
    with pytest.raises(CongealError, match="streaming"):
        TGRASTA(mode="streaming").fit(digits("3", 5))
