"""Which images of a set match the others: a mixture of inliers and outliers fitted to the scores of the set."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from congeal.evaluation.statistics import NORMAL_MAD

EM_STEPS = 30
"""Steps of expectation maximisation; the share of inliers changes by less than 0.001 after fifteen (LFW, digits)."""
MIN_DEVIATION = 0.005
"""Scores of inliers are taken to vary by at least this much: copies without noise score 1 up to rounding."""
MIN_INLIER_SHARE = 0.5
"""More than half of a set cannot be outliers of it."""


@dataclass(frozen=True)
class ScoreModel:
    """Scores of inliers are N(mean, deviation²), where more than the mean counts as the mean; outliers score anything
    between −1 and 1 alike. Scores are normalised correlations."""

    mean: float
    deviation: float
    inlier_share: float

    @classmethod
    def fit(cls, scores: torch.Tensor) -> ScoreModel:
        """By expectation maximisation from the median and the median absolute deviation of scores (n,)."""
        scores = scores.double()
        middle = float(scores.median())
        spread = NORMAL_MAD * float((scores - middle).abs().median())
        model = cls(middle, max(MIN_DEVIATION, spread), (1 + MIN_INLIER_SHARE) / 2)
        for _ in range(EM_STEPS):
            weight = model.probability(scores)
            total = weight.sum().clamp(min=1e-9)
            mean = float((weight * scores).sum() / total)
            deviation = float((weight * (scores - mean).square()).sum() / total) ** 0.5
            share = min(max(float(weight.mean()), MIN_INLIER_SHARE), 1 - 1 / (2 * len(scores)))
            model = cls(mean, max(MIN_DEVIATION, deviation), share)
        return model

    def probability(self, scores: torch.Tensor) -> torch.Tensor:
        """(n,) probability that an image with this score is an inlier."""
        below = ((self.mean - scores.double()) / self.deviation).clamp(min=0)
        inlier = self.inlier_share / (self.deviation * math.sqrt(2 * math.pi)) * (-0.5 * below.square()).exp()
        return inlier / (inlier + (1 - self.inlier_share) * 0.5)  # outliers: density ½ on [−1, 1]

    def inliers(self, scores: torch.Tensor) -> torch.Tensor:
        """(n,) bool: which images are more probably inliers than not; those that score the mean always are."""
        typical = float(self.probability(torch.tensor([self.mean]))[0])
        return self.probability(scores) >= min(0.5, typical)

    @property
    def low_score(self) -> float:
        """One deviation below the mean: an inlier that scores less may well be at a local optimum."""
        return self.mean - self.deviation
