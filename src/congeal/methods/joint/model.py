"""What a fitted model keeps to place any image; the mixture of inliers and outliers fitted to the scores of a set."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass

import torch

from congeal.evaluation.statistics import NORMAL_MAD
from congeal.execution import key_of
from congeal.geometry import MOTIONS
from congeal.registration.features import ImageFeatures
from congeal.registration.template_registration import PosePrior
from congeal.registration.tiles import Tiles, TileTemplate

EM_STEPS = 30
"""Steps of expectation maximisation; the share of inliers changes by less than 0.001 after fifteen (LFW, digits)."""
MIN_DEVIATION = 0.005
"""Scores of inliers are taken to vary by at least this much: copies without noise score 1 up to rounding."""
MIN_INLIER_SHARE = 0.5
"""Smallest share of the mixture that inliers have: more than half of a set cannot be outliers of it. The number of
images that `ScoreModel.inliers` accepts is not bounded."""


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


@dataclass(frozen=True)
class FittedModel:
    """What a fitted joint alignment keeps to place any image."""

    motion: str
    template: torch.Tensor  # (C, h, w) what images are registered to at working size
    image_features: ImageFeatures
    scores: ScoreModel
    prior: PosePrior | None
    levels: tuple[TileTemplate, ...] = ()  # of finer pyramid levels, coarse to fine; the last one tells the errors
    refines: bool = False  # whether images are moved on these levels; else the only one just tells their errors

    def key(self) -> str:
        """Identifies what registration depends on."""
        return key_of("model", self.tensors(), self.image_features.kind)

    def tensors(self) -> dict[str, torch.Tensor]:
        """All of it by name, for a file."""
        tensors = {"template": self.template, "motion": torch.tensor(MOTIONS.index(self.motion))}
        tensors["scores"] = torch.tensor(astuple(self.scores), dtype=torch.float64)
        if self.prior is not None:
            tensors["prior"] = self.prior.tensor()
        for number, level in enumerate(self.levels):
            about = [*level.frame, level.tiles.side, self.refines]
            tensors |= {
                f"level{number}.about": torch.tensor(about, dtype=torch.int64),
                f"level{number}.corner": level.tiles.corner,
                f"level{number}.mean": level.mean,
                f"level{number}.variance": level.variance,
                f"level{number}.count": level.count,
                f"level{number}.sampling_error": torch.tensor(level.sampling_error, dtype=torch.float64),
            }
        return tensors

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor], image_features: ImageFeatures) -> FittedModel:
        """The inverse of `tensors`."""
        levels: list[TileTemplate] = []
        refines = False
        while (name := f"level{len(levels)}") + ".about" in tensors:
            height, width, side, refines = tensors[f"{name}.about"].tolist()
            tiles = Tiles((height, width), side, tensors[f"{name}.corner"])
            mean, variance, count = (tensors[f"{name}.{part}"] for part in ("mean", "variance", "count"))
            levels.append(TileTemplate(tiles, mean, variance, count, float(tensors[f"{name}.sampling_error"])))
        prior = tensors.get("prior")
        return cls(
            MOTIONS[int(tensors["motion"])],
            tensors["template"],
            image_features,
            ScoreModel(*tensors["scores"].tolist()),
            None if prior is None else PosePrior(*prior),
            tuple(levels),
            bool(refines),
        )
