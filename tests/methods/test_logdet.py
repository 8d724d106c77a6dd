"""Log-det congealing: known warps come back, the code is a projection, nothing is won by shrinking."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from known_warps import align_new, digits, errors, warped_digit

from congeal import CongealError
from congeal.evaluation import corner_error
from congeal.geometry import MOTIONS
from congeal.methods.logdet import LogDet, _Level
from congeal.registration.features import ObjectPixels


@pytest.mark.parametrize("motion", MOTIONS)
def test_known_warps_come_back(motion: str) -> None:
    images, truth = warped_digit(motion)
    before, after = errors(LogDet(motion=motion).fit(images), truth)
    assert before > 1
    assert after < 0.5


def test_new_images_reach_the_same_pose() -> None:
    images, truth = warped_digit("similarity", n=24)
    model = LogDet(motion="similarity").fit(images[:16])
    together = np.concatenate([model.transforms_.matrices, align_new(model, images[16:]).transforms.matrices])
    assert corner_error(together, truth, (28, 28))[16:].mean() < 0.5


def test_the_streamed_pca_is_the_pca() -> None:
    stack = digits("3", 60)
    level = _Level(LogDet(rank=8, distortion=1e-9, noise=1e-6)._worker(0), stack, 0.0, ObjectPixels())
    found = torch.eye(3).repeat(60, 1, 1)
    code = level.learn(found, None)
    for _ in range(30):
        code = level.learn(found, code.basis)
    shown = stack.images(np.arange(60))
    flat = shown.flatten(1).double()
    variances = torch.linalg.svdvals(flat - flat.mean(0)).square()
    lost = (code.project(shown).flatten(1).double() - flat).square().sum()
    assert torch.allclose(code.mean.double(), flat.mean(0), atol=1e-5)
    assert torch.allclose(code.basis.T @ code.basis, torch.eye(8), atol=1e-5)
    assert float(lost) == pytest.approx(float(variances[8:].sum()), rel=1e-3)


def test_much_distortion_leaves_the_mean() -> None:
    stack = digits("3", 30)
    code = _Level(LogDet(distortion=1e9)._worker(0), stack, 0.0, ObjectPixels()).learn(
        torch.eye(3).repeat(30, 1, 1), None
    )
    shown = stack.images(np.arange(30))
    assert torch.allclose(code.project(shown), shown.mean(0).expand_as(shown), atol=1e-4)


def test_levels_need_one_length() -> None:
    with pytest.raises(CongealError, match="same length"):
        LogDet(blurs=(1.0,)).fit(warped_digit()[0])
