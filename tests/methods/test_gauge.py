"""What holds the common pose: the mean goes back to the start, inside the motion, and objects keep their ink."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from known_warps import digits

from congeal.evaluation.thresholds import REFINED_ENERGY
from congeal.geometry import MOTIONS, from_normalised, matrix_from_parameters, mean_matrix, n_parameters, warp
from congeal.registration.batching import total_intensity
from congeal.registration.gauge import Gauge, restricted, within_motion

FRAME = (28, 28)


def moved(motion: str, n: int = 8) -> torch.Tensor:
    """(n, 3, 3) poses that share a shift, and a turn and a scale if the motion has them."""
    generator = torch.Generator().manual_seed(0)
    common = torch.tensor([0.2, -0.1, 0.4, 0.1, 0.05, 0.05, 0.02, 0.02], dtype=torch.float64)
    draws = common + 0.1 * torch.randn(n, 8, generator=generator, dtype=torch.float64)
    return from_normalised(matrix_from_parameters(draws[:, : n_parameters(motion)]), FRAME)


@pytest.mark.parametrize("motion", MOTIONS)
def test_the_mean_is_that_of_the_start_again_and_the_correction_a_member_of_the_motion(motion: str) -> None:
    found = moved(motion)
    gauge = Gauge(torch.eye(3).repeat(8, 1, 1), FRAME, motion)
    correction = gauge.correction(found)
    torch.testing.assert_close(within_motion(correction[None], motion, FRAME)[0], correction, atol=1e-12, rtol=0)
    fixed = gauge.fix(found)
    mean = mean_matrix(fixed, FRAME)
    if motion == "rigid":  # the mean of rotations is no rotation: its angle and its shift are what can be put right
        torch.testing.assert_close(torch.linalg.det(fixed[:, :2, :2]), torch.ones(8).double(), atol=1e-12, rtol=0)
        assert abs(float(torch.atan2(mean[1, 0], mean[0, 0]))) < 1e-9
    else:
        # With perspective a mean of entries does not quite follow what is done to all; the next step takes the rest.
        exact = 0.02 if motion == "homography" else 1e-9
        torch.testing.assert_close(mean, torch.eye(3).double(), atol=exact, rtol=0)


def test_only_what_counts_makes_the_mean() -> None:
    found, keep = moved("translation"), torch.tensor([True] * 7 + [False])
    found[7, 0, 2] = 1000.0
    fixed = Gauge(torch.eye(3).repeat(8, 1, 1), FRAME, "translation").fix(found, keep=keep)
    assert float(fixed[:7, 0, 2].mean().abs()) < 1e-9


@pytest.mark.parametrize("scale", [0.8, 1.25])
def test_ink_is_brought_back_a_little_at_a_time(scale: float) -> None:
    stack = digits("3", 6)
    small = from_normalised(torch.diag(torch.tensor([scale, scale, 1.0])), FRAME).repeat(6, 1, 1)
    gauge, found, energies = Gauge.of_stack(stack, "similarity", keeps_intensity=True), small, []
    for _ in range(25):
        ink = float(warp(stack.images(np.arange(6)), found, FRAME).sum())
        energies.append(gauge.energy(ink))
        found = gauge.fix(found, ink)
    assert np.abs(np.diff(np.log(energies[1:]))).max() < 0.06
    assert 0.93 < energies[-1] < 1.02


@pytest.mark.parametrize("motion", ["translation", "rigid"])
def test_ink_says_nothing_where_the_motion_cannot_scale(motion: str) -> None:
    stack = digits("3", 6)
    gauge = Gauge.of_stack(stack, motion, keeps_intensity=True)
    assert gauge.energy(total_intensity(stack) / 2) is None
    gauge.follow_intensity(total_intensity(stack) / 2)
    determinant = torch.linalg.det(gauge.correction(moved(motion))[:2, :2])
    assert float(determinant) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("motion", MOTIONS[:-1])
def test_poses_are_put_on_the_motion_relative_to_their_start(motion: str) -> None:
    start = from_normalised(matrix_from_parameters(torch.full((8, 8), 0.1, dtype=torch.float64)), FRAME)
    exact = start @ moved(motion)
    rounded = exact.float().numpy()
    found = restricted(torch.as_tensor(rounded), start, motion, FRAME).numpy()
    assert np.abs(found - (exact / exact[:, 2:, 2:]).numpy()).max() < 1e-4
    off = torch.linalg.inv(start) @ torch.as_tensor(found).double()
    torch.testing.assert_close(within_motion(off, motion, FRAME), off / off[:, 2:, 2:], atol=1e-6, rtol=0)


def test_refined_objects_end_at_one_size() -> None:
    for ink in (90.0, 95.8, 99.0, 130.0):  # of the set as it would be without any zoom
        gauge = Gauge(torch.eye(3).repeat(8, 1, 1), FRAME, "homography", source_ink=100.0, band=REFINED_ENERGY)
        for _ in range(20):
            gauge.follow_intensity(ink / gauge.zoom**2)
        assert ink / gauge.zoom**2 / 100 == pytest.approx(0.95, abs=1e-6), "decibels depend on it"
