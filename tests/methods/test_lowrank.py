"""Shrinkage, singular values and Jacobians against plain linear algebra and finite differences."""

from __future__ import annotations

import pytest
import torch
from known_warps import digits

import congeal.methods.lowrank.decomposition as lowrank
from congeal.geometry import from_normalised, matrix_from_parameters
from congeal.methods.lowrank.decomposition import Linear, Spectrum, decompose, linearise, soft
from congeal.registration.features import ObjectPixels


def random_matrix(n: int, m: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    left, right = (torch.randn(size, rank, generator=generator, dtype=torch.float64) for size in (n, m))
    return left @ right.T + 0.05 * torch.randn(n, m, generator=generator, dtype=torch.float64)


def shrunk_by_svd(matrix: torch.Tensor, threshold: float, keep: int) -> tuple[torch.Tensor, float]:
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    reduced = (s - threshold).clamp(min=0)
    reduced[:keep] = s[:keep]
    return (u * reduced) @ v, float(reduced[keep:].sum())


@pytest.mark.parametrize("shape", [(30, 80), (80, 30)])
@pytest.mark.parametrize("threshold", [0.01, 5.0, 1e6])
@pytest.mark.parametrize("keep", [0, 2])
def test_shrink_equals_svd(shape: tuple[int, int], threshold: float, keep: int) -> None:
    matrix = random_matrix(*shape, 6)
    found, total = Spectrum(shape, keep).shrink(matrix, threshold)
    expected, expected_total = shrunk_by_svd(matrix, threshold, keep)
    torch.testing.assert_close(found, expected, atol=1e-7, rtol=0)
    assert total == pytest.approx(expected_total, abs=1e-6)


def test_warm_start_of_the_solver_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = digits("3", 120)
    line = linearise(stack, torch.as_tensor(stack.start.copy()), "rigid", 0.0, ObjectPixels())
    quick = decompose(line, 1 / 28, Spectrum((120, 784)))
    monkeypatch.setattr(lowrank, "MAX_PARTIAL_SHARE", 0.0)
    exact = decompose(line, 1 / 28, Spectrum((120, 784)))
    assert quick.objective == pytest.approx(exact.objective, rel=1e-6)
    torch.testing.assert_close(quick.step, exact.step, atol=2e-3, rtol=0)


def test_decompose_separates_low_rank_from_sparse() -> None:
    generator = torch.Generator().manual_seed(1)
    clean = torch.randn(60, 4, generator=generator).double() @ torch.randn(4, 90, generator=generator).double()
    spikes = torch.zeros_like(clean)
    chosen = torch.rand(clean.shape, generator=generator) < 0.05
    spikes[chosen] = 10 * torch.randn(int(chosen.sum()), generator=generator).double()
    line = Linear(clean + spikes, torch.zeros(60, 1, 90).double(), torch.zeros(60, 1, 1).double(), 0.0)
    found = decompose(line, 90**-0.5, Spectrum((60, 90)))
    truth = float(torch.linalg.matrix_norm(clean, "nuc") + 90**-0.5 * spikes.abs().sum())
    assert found.objective == pytest.approx(truth, rel=1e-3)


def test_soft_threshold() -> None:
    assert soft(torch.tensor([-2.0, -0.5, 0.0, 3.0]), 1.0).tolist() == [-1.0, 0.0, 0.0, 2.0]


@pytest.mark.parametrize("motion", ["similarity", "homography"])
def test_jacobian_predicts_a_small_motion(motion: str) -> None:
    stack = digits("3", 6)
    generator = torch.Generator().manual_seed(0)
    k = {"similarity": 4, "homography": 8}[motion]
    around = 0.05 * torch.randn(6, k, generator=generator, dtype=torch.float64)
    found = torch.as_tensor(stack.start.copy()) @ from_normalised(matrix_from_parameters(around), stack.frame)
    line = linearise(stack, found, motion, 1.0, ObjectPixels())
    gram = line.basis @ line.basis.transpose(1, 2)
    torch.testing.assert_close(gram, torch.eye(k, dtype=torch.float64).expand(6, k, k), atol=1e-6, rtol=0)
    d = 0.02 * torch.randn(6, k, generator=generator, dtype=torch.float64)
    moved = lowrank.move(found, line, d, motion, stack.frame, float("inf"))
    change = linearise(stack, moved, motion, 1.0, ObjectPixels()).data - line.data
    predicted = torch.bmm(d[:, None], line.basis)[:, 0]
    cosine = (change * predicted).sum(1) / (change.norm(dim=1) * predicted.norm(dim=1))
    assert cosine.min() > 0.9  # Sobel's gradients are blunter than the image
