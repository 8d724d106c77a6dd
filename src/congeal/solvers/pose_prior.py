"""Which poses are to be expected: a prior that a set of images gives itself.

Photographs of one kind start from boxes that are wrong in similar ways: most are a little shifted, few are sheared.
How far the images that match have moved from their start says what to expect of the others, so an image with little
evidence of its own (a profile, a hand before the face) is not bent until it fits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from congeal.geometry import normalise, to_normalised
from congeal.geometry.matrix import Size, invert
from congeal.geometry.motion import GENERATORS
from congeal.metrics.statistics import NORMAL_MAD

_MOST_ODD = 50.0  # the exponent of an odd pose's cost: beyond it nothing is left of any score
_LEAST = 0.01  # standard deviation of a parameter that nothing has moved yet
_EYE = torch.eye(3, dtype=torch.float32)
_BASIS = GENERATORS.float().reshape(8, 9)
_BASIS_SQUARES = _BASIS.square().sum(1)
_PIXELS_PER_FACT = 20.0  # neighbouring pixels say the same: this many of them count as one observation


@dataclass
class PosePrior:
    """A Gaussian over the eight motion parameters of start⁻¹ · stack_from_frame."""

    centre: torch.Tensor  # (8,)
    spread: torch.Tensor  # (8,), standard deviations

    @classmethod
    def from_poses(cls, start: torch.Tensor, poses: torch.Tensor, frame: Size) -> PosePrior:
        """From (N, 3, 3) poses that are trusted, and where they started."""
        moved = parameters(start, poses, frame)
        centre = moved.median(0).values
        spread = NORMAL_MAD * (moved - centre).abs().median(0).values
        return cls(centre, (spread.square() + _LEAST**2).sqrt())

    def tensor(self) -> torch.Tensor:
        """(2, 8), to keep it in a file."""
        return torch.stack([self.centre, self.spread])

    def wider(self, times: float) -> PosePrior:
        """For images that did not start as the others did: so many times as far from the usual is as likely."""
        return PosePrior(self.centre, times * self.spread)

    def pull(
        self, start: torch.Tensor, poses: torch.Tensor, frame: Size, count: int, looser: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """For a Gauss-Newton step in `count` parameters: deviations (B, count), and their precision (B or 1, count).

        The precision is per unit of residual variance. `frame` may be a smaller picture of the same frame. looser (B,):
        how many times as far from the usual each image may be.
        """
        away, spread = parameters(start, poses, frame) - self.centre, self.spread[None, :count]
        spread = spread if looser is None else spread * looser[:, None]
        return away[:, :count], _PIXELS_PER_FACT / spread.square()

    def discount(
        self, scores: torch.Tensor, start: torch.Tensor, poses: torch.Tensor, window: torch.Tensor
    ) -> torch.Tensor:
        """Correlations (B,) under a window (h, w), as they would be with residuals grown by what an odd pose costs.

        A correlation s of n facts has the likelihood (1 − s²)^(−n/2), to be multiplied by the pose's own.
        """
        frame = (window.shape[0], window.shape[1])
        away = (parameters(start, poses, frame) - self.centre) / self.spread
        facts = float(window.sum().square() / window.square().sum()) / _PIXELS_PER_FACT
        unexplained = (1 - scores.clamp(min=0).square()) * (away.square().sum(1) / facts).clamp(max=_MOST_ODD).exp()
        return torch.where(scores > 0, (1 - unexplained).clamp(min=0).sqrt(), scores)


def parameters(start: torch.Tensor, poses: torch.Tensor, frame: Size) -> torch.Tensor:
    """(B, 8) of start⁻¹ · pose: its logarithm to second order, which is enough to say how far it went."""
    off = normalise(to_normalised(invert(start) @ poses, frame)) - _EYE
    log = (off - off @ off / 2).flatten(1)
    log = log - log[:, 8:] * _EYE.flatten()
    return (log @ _BASIS.T) / _BASIS_SQUARES
