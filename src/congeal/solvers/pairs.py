"""Where one picture lies in another: steps on tiles of the first, and how sure the answer is.

    r = b∘M − a      δ = A⁻¹ Σ wₜ Jₜᵀrₜ,  A = Σ wₜ JₜᵀJₜ      M ← M · exp(−δ)

M is b_from_a. This is `votes.py` with one picture in place of the mean of a set: what a tile's noise is has to be
told from the pair itself, and each pair has tiles of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from congeal.geometry import map_points
from congeal.geometry.matrix import Size, corners
from congeal.geometry.sampling import sample_at
from congeal.solvers.gaussnewton import GaussNewton, point_motion
from congeal.solvers.tiles import Tiles

TILES = 96
"""Of a picture, at most, that others are compared with."""
_FREEDOM = 4.0  # degrees of freedom of the t-distribution of a tile's residuals: a few are far off
_LEAST_TILES = 6  # that both pictures must show
_BLOCKS = 8  # along each side of the frame: tiles of one block err alike
_NEIGHBOURS = 1.6  # times the variance: blocks that touch err alike
_DAMPING = 1e-4


@dataclass(frozen=True)
class Patches:
    """What is kept of a picture that others are registered to: its tiles, with a rim of one pixel."""

    tiles: Tiles
    values: torch.Tensor  # (T, side + 2, side + 2)

    @classmethod
    def of(cls, picture: torch.Tensor, most: int = TILES) -> Patches:
        """Of local contrast (h, w)."""
        tiles = Tiles.choose(picture[None, None], most)
        if not len(tiles):
            return cls(tiles, picture.new_zeros(0, tiles.side + 2, tiles.side + 2))
        values, _ = sample_at(picture, tiles.points)
        return cls(tiles, values.view(len(tiles), tiles.side + 2, tiles.side + 2))


@dataclass(frozen=True)
class Registered:
    """What was found of E pairs.

    Attributes
    ----------
    matrices : (E, 3, 3) tensor
        b_from_a, in pixels of the frame.
    information : (E, k, k) tensor
        Inverse covariance of its parameters, of steps from the right in normalised coordinates.
    error : (E,) tensor
        Standard error of a corner of the frame along an axis, in pixels; NaN if too little is shown by both.
    likeness : (E,) tensor
        Correlation on the tiles that both show.
    foretold : (E,) tensor
        Share of what the second picture shows that the first foretells, as it would be on pixels that M was not fitted
        to.
    """

    matrices: torch.Tensor
    information: torch.Tensor
    error: torch.Tensor
    likeness: torch.Tensor
    foretold: torch.Tensor

    @classmethod
    def joined(cls, parts: Sequence[Registered]) -> Registered:
        """All pairs of several answers."""
        names = ("matrices", "information", "error", "likeness", "foretold")
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


class PairSolver:
    """Registers pairs in one motion. floor: the error, in pixels, that no pose is without."""

    def __init__(self, motion: str, frame: Size, floor: float) -> None:
        self.motion, self.frame, self.floor = motion, frame, floor
        self.newton = GaussNewton(motion, frame, damping=_DAMPING)
        self.corner = point_motion(torch.as_tensor(corners(frame)).double(), frame, motion).flatten(1)  # (k, 8)

    @torch.no_grad()
    def register(
        self,
        picture: torch.Tensor,
        inside: torch.Tensor | None,
        others: Sequence[Patches],
        begin: torch.Tensor,
        steps: int,
    ) -> Registered:
        """Where each of several pictures lies in this one.

        picture (h, w): local contrast of b. inside (h, w): where it has a picture; None: everywhere. others: patches of
        the pictures a. begin (E, 3, 3): b_from_a to begin with.
        """
        found = [
            self._one(picture, inside, patches, matrix, steps) for patches, matrix in zip(others, begin, strict=True)
        ]
        return Registered.joined(found)

    def _one(
        self, picture: torch.Tensor, inside: torch.Tensor | None, patches: Patches, begin: torch.Tensor, steps: int
    ) -> Registered:
        k, matrix = len(self.corner), begin.double()[None]
        if len(patches.tiles) < _LEAST_TILES:
            return self._nothing(matrix)
        tiles = patches.tiles
        slopes = tiles.slopes(patches.values, self.motion)  # (T, P, k)
        curvature = (slopes.transpose(1, 2) @ slopes).double()
        wanted = tiles.inner(patches.values)  # (T, P)
        points = tiles.points.view(len(tiles), tiles.side + 2, tiles.side + 2, 2)[:, 1:-1, 1:-1].reshape(-1, 2).double()
        for step in range(steps + 1):
            places = map_points(matrix, points)[0]
            shown, there = sample_at(picture, places)
            if inside is not None:
                there = there & (sample_at(inside, places)[0] > 0.5)
            shown, covered = shown.view_as(wanted), there.view_as(wanted).all(1)
            if int(covered.sum()) < _LEAST_TILES:
                return self._nothing(matrix)
            residual = shown - wanted
            away = residual.square().mean(1)
            noise = float(away[covered].median())
            weight = (covered * (_FREEDOM + 1) / (_FREEDOM * noise + away + 1e-9)).double()
            votes = (slopes.transpose(1, 2) @ residual[..., None])[..., 0].double() * weight[:, None]  # (T, k)
            whole = torch.einsum("t,tkl->kl", weight, curvature)
            inverse = self.newton.damped_inverse(whole)
            delta = inverse @ votes.sum(0)
            if step < steps:
                matrix = self.newton.compose(matrix, delta[None])
        left = votes - torch.einsum("t,tkl,l->tk", weight, curvature, delta)
        blocks = self._blocks(tiles, left)
        used = len(tiles.blocks[covered].any(0).nonzero())
        blocks = blocks * _NEIGHBOURS * used / max(1.0, used - k / 2)
        spread = self.corner.T @ inverse @ blocks @ inverse @ self.corner
        error = (float(torch.diagonal(spread).mean()) + self.floor**2) ** 0.5
        # The shape of the information from all tiles, its amount from how far blocks disagree: few know no shape.
        plain = float(torch.diagonal(self.corner.T @ inverse @ self.corner).mean())
        amount = torch.einsum("kl,lk->", inverse, self._blocks(tiles, votes))
        missed, there_is = ((weight * part.double().square().sum(1)).sum() / 2 for part in (residual, shown))
        foretold = 1 - (missed + amount) / there_is.clamp(min=1e-9)
        a, b, w = wanted[covered].flatten().double(), shown[covered].flatten().double(), 1e-12
        likeness = (a * b).sum() / ((a * a).sum() * (b * b).sum()).sqrt().clamp(min=w)
        return Registered(
            matrix,
            (whole * plain / error**2)[None],
            torch.tensor([error], dtype=torch.float64),
            likeness[None],
            foretold[None],
        )

    def _blocks(self, tiles: Tiles, votes: torch.Tensor) -> torch.Tensor:
        together = tiles.blocks.double().T @ votes  # (blocks, k)
        return together.T @ together

    def _nothing(self, matrix: torch.Tensor) -> Registered:
        k, unknown = len(self.corner), torch.full((1,), torch.nan, dtype=torch.float64)
        return Registered(matrix, torch.zeros(1, k, k, dtype=torch.float64), unknown, unknown - unknown, unknown)
