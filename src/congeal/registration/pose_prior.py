"""A prior on poses, estimated from the inliers of the set itself.

Initial boxes of photographs are wrong in similar ways: most are shifted a little, few are sheared. The spread of the
inliers' motion parameters regularises images with little evidence of their own (a profile, an occluded face).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from congeal.evaluation.statistics import NORMAL_MAD
from congeal.geometry import normalise, to_normalised
from congeal.geometry.matrix import Size, invert
from congeal.geometry.motion import GENERATORS

MAX_EXPONENT = 50.0
"""Bound on the exponent of the prior, beyond which every score is 0 anyway."""
MIN_DEVIATION = 0.01
"""Smallest standard deviation of a parameter, in units of the half frame: inliers may not have moved at all yet."""
_EYE = torch.eye(3, dtype=torch.float32)
_BASIS = GENERATORS.float().reshape(8, 9)
_BASIS_SQUARES = _BASIS.square().sum(1)
PIXELS_PER_OBSERVATION = 20.0
"""Neighbouring pixels are correlated: this many count as one independent observation (faces of LFW)."""


@dataclass
class PosePrior:
    """A Gaussian over the eight motion parameters of start⁻¹ · stack_from_frame."""

    centre: torch.Tensor  # (8,)
    spread: torch.Tensor  # (8,), standard deviations

    @classmethod
    def from_poses(cls, start: torch.Tensor, poses: torch.Tensor, frame: Size) -> PosePrior:
        """From poses (N, 3, 3) of inliers and their initial poses."""
        moved = parameters(start, poses, frame)
        centre = moved.median(0).values
        spread = NORMAL_MAD * (moved - centre).abs().median(0).values
        return cls(centre, (spread.square() + MIN_DEVIATION**2).sqrt())

    def tensor(self) -> torch.Tensor:
        """(2, 8), to keep it in a file."""
        return torch.stack([self.centre, self.spread])

    def wider(self, times: float) -> PosePrior:
        """The same prior with standard deviations `times` as large, for images whose initial pose may be wrong."""
        return PosePrior(self.centre, times * self.spread)

    def pull(
        self, start: torch.Tensor, poses: torch.Tensor, frame: Size, count: int, prior_width: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """For a Gauss-Newton step in `count` parameters: deviations (B, count), and their precision (B or 1, count).

        The precision is per unit of residual variance. `frame` may be a smaller picture of the same frame. looser (B,):
        factors on the standard deviations of each image.
        """
        away, spread = parameters(start, poses, frame) - self.centre, self.spread[None, :count]
        spread = spread if prior_width is None else spread * prior_width[:, None]
        return away[:, :count], PIXELS_PER_OBSERVATION / spread.square()

    def discount(
        self, scores: torch.Tensor, start: torch.Tensor, poses: torch.Tensor, window: torch.Tensor
    ) -> torch.Tensor:
        """Correlations (B,) under a window (h, w), multiplied by the prior of the pose.

        A correlation s of n observations has the likelihood (1 − s²)^(−n/2); the result is the correlation of the same
        posterior.
        """
        frame = (window.shape[0], window.shape[1])
        away = (parameters(start, poses, frame) - self.centre) / self.spread
        observations = float(window.sum().square() / window.square().sum()) / PIXELS_PER_OBSERVATION
        unexplained = (1 - scores.clamp(min=0).square()) * (away.square().sum(1) / observations).clamp(
            max=MAX_EXPONENT
        ).exp()
        return torch.where(scores > 0, (1 - unexplained).clamp(min=0).sqrt(), scores)


def parameters(start: torch.Tensor, poses: torch.Tensor, frame: Size) -> torch.Tensor:
    """(B, 8) motion parameters of start⁻¹ · pose: its logarithm to second order."""
    off = normalise(to_normalised(invert(start) @ poses, frame)) - _EYE
    log = (off - off @ off / 2).flatten(1)
    log = log - log[:, 8:] * _EYE.flatten()
    return (log @ _BASIS.T) / _BASIS_SQUARES
