"""The mixture of scores: who is an inlier of a set."""

from __future__ import annotations

import pytest
import torch

from congeal.methods.joint.model import ScoreModel


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3])
def test_outliers_are_told_from_inliers(share: float) -> None:
    generator = torch.Generator().manual_seed(0)
    wrong = int(200 * share)
    scores = torch.cat([0.8 + 0.04 * torch.randn(200 - wrong, generator=generator), torch.rand(wrong) * 0.5])
    inliers = ScoreModel.fit(scores).inliers(scores)
    assert inliers[: 200 - wrong].float().mean() > 0.97
    assert not inliers[200 - wrong :].any()


def test_copies_that_all_match_are_all_inliers() -> None:
    assert ScoreModel.fit(torch.ones(12)).inliers(torch.ones(12)).all()


def test_a_set_without_agreement_still_has_inliers() -> None:
    scores = torch.linspace(-0.2, 0.2, 24)
    assert ScoreModel.fit(scores).inliers(scores).float().mean() >= 0.4


def test_a_higher_score_is_never_less_probable() -> None:
    scores = torch.tensor([0.2, 0.5, 0.7, 0.72, 0.75, 0.8, 0.9])
    probability = ScoreModel.fit(scores).probability(scores)
    assert (probability.diff() >= 0).all()
