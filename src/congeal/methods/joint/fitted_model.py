"""What a fitted joint alignment keeps to place any image, in memory and as named tensors of a model file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass

import torch

from congeal.evaluation.inliers import ScoreModel
from congeal.execution import key_of
from congeal.registration.features import ImageFeatures
from congeal.registration.template_registration import PosePrior
from congeal.registration.tiles import Tiles, TileTemplate


@dataclass(frozen=True)
class FittedModel:
    """What a fitted model keeps.

    Attributes
    ----------
    motion : str
        The motion of the poses.
    template : (C, h, w) tensor
        What images are registered to at working size.
    image_features : ImageFeatures
        What is compared.
    scores : ScoreModel
        Scores of inliers and outliers against the template.
    prior : PosePrior or None
    levels : tuple of TileTemplate
        Templates of finer pyramid levels, coarse to fine.
    last_level : TileTemplate or None
        The template by which errors are known: the last of `levels`, or of a level that was tried and not used.
    """

    motion: str
    template: torch.Tensor
    image_features: ImageFeatures
    scores: ScoreModel
    prior: PosePrior | None
    levels: tuple[TileTemplate, ...] = ()
    last_level: TileTemplate | None = None

    def key(self) -> str:
        """Identifies what registration at working size depends on."""
        prior = None if self.prior is None else self.prior.tensor()
        return key_of("model", self.motion, self.template, self.scores, prior, self.image_features.kind)

    def tensors(self) -> dict[str, torch.Tensor]:
        """All of it by name, for a file."""
        tensors = {"template": self.template, "scores": torch.tensor(astuple(self.scores), dtype=torch.float64)}
        if self.prior is not None:
            tensors["prior"] = self.prior.tensor()
        levels = [*self.levels] or ([self.last_level] if self.last_level is not None else [])
        for number, level in enumerate(levels):
            about = [*level.frame, level.tiles.side, bool(self.levels)]
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
    def from_tensors(
        cls, tensors: Mapping[str, torch.Tensor], motion: str, image_features: ImageFeatures
    ) -> FittedModel:
        """The inverse of `tensors`."""
        levels: list[TileTemplate] = []
        used = True
        while (name := f"level{len(levels)}") + ".about" in tensors:
            height, width, side, used = tensors[f"{name}.about"].tolist()
            tiles = Tiles((height, width), side, tensors[f"{name}.corner"])
            mean, variance, count = (tensors[f"{name}.{part}"] for part in ("mean", "variance", "count"))
            levels.append(TileTemplate(tiles, mean, variance, count, float(tensors[f"{name}.sampling_error"])))
        prior = tensors.get("prior")
        return cls(
            motion,
            tensors["template"],
            image_features,
            ScoreModel(*tensors["scores"].tolist()),
            None if prior is None else PosePrior(*prior),
            tuple(levels) if used else (),
            levels[-1] if levels else None,
        )
