"""Where one picture lies in another: steps on tiles of the first, and how sure the answer is.

    r = b∘M − a      δ = A⁻¹ Σ wₜ Jₜᵀrₜ,  A = Σ wₜ JₜᵀJₜ      M ← M · exp(−δ)

M is b_from_a. This is `votes.py` with one picture in place of the mean of a set: what a tile's noise is has to be
told from the pair itself, and each pair has tiles of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from congeal.geometry.interpolation import spline_at, spline_coefficients
from congeal.geometry.matrix import Size, corners
from congeal.geometry.sampling import sample_at
from congeal.solvers.gaussnewton import GaussNewton, point_motion
from congeal.solvers.patches import RIM, Patches

_FREEDOM = 4.0  # degrees of freedom of the t-distribution of a tile's residuals: a few are far off
_LEAST_TILES = 6  # that both pictures must show
_NEIGHBOURS = 1.6  # times the variance: blocks that touch err alike
_LEAST_STEEP = 0.1  # share of a picture's slopes that is no noise
_STILL = 5e-3  # pixels that a corner moves by in the last step
_DAMPING = 1e-4
_COPIED = 4  # times as many pixels as its tiles have: so large pictures are copied for every pair


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
        pictures: torch.Tensor,
        inside: torch.Tensor | None,
        which: torch.Tensor,
        them: Patches,
        begin: torch.Tensor,
        steps: int,
    ) -> Registered:
        """Where pictures a lie in pictures b, of E pairs.

        pictures (B, h, w): local contrast of every b. inside (B, h, w): where they have a picture; None: everywhere.
        which (E,): the b of each pair. them: patches of its a, made for the same motion. begin (E, 3, 3): b_from_a to
        begin with. steps: at most.
        """
        matrices, (height, width) = begin.double(), pictures.shape[1:]
        splines, masks = _Splines(pictures, which, them), None if inside is None else inside[which]
        rim = RIM * max(height, width)
        moving = torch.ones(len(matrices), dtype=torch.bool)
        for _ in range(steps + 1):
            x, y = them.places(matrices)
            far_x, far_y = them.at_corners(x), them.at_corners(y)
            there = (far_x >= rim) & (far_x <= width - 1 - rim) & (far_y >= rim) & (far_y <= height - 1 - rim)
            covered = there.all(2) & them.real
            if masks is not None:
                covered &= (sample_at(masks, torch.stack([x, y], -1))[0] > 0.5).all(2)
            enough = covered.sum(1) >= _LEAST_TILES
            covered = covered & enough[:, None]
            shown = splines.at(x, y)
            residual = shown - them.wanted
            away = residual.square().mean(2)
            noise = away.masked_fill(~covered, torch.nan).nanmedian(1, keepdim=True).values.nan_to_num(1.0)
            weight = (covered * (_FREEDOM + 1) / (_FREEDOM * noise + away + 1e-9)).double()
            votes = (them.slopes @ residual[..., None])[..., 0].double() * weight[..., None]  # (E, T, k)
            whole = torch.einsum("et,etkl->ekl", weight, them.curvature)
            inverse = self.newton.damped_inverse(whole)
            delta = (inverse @ votes.sum(1)[..., None])[..., 0]
            # What a pair comes to does not depend on how long the others take.
            matrices = torch.where(moving[:, None, None], self.newton.compose(matrices, delta), matrices)
            moving &= (delta @ self.corner).abs().amax(1) >= _STILL
            if not bool(moving.any()):
                break
        left = votes - torch.einsum("et,etkl,el->etk", weight, them.curvature, delta)
        return self._told(them, matrices, whole, inverse, weight, votes, left, shown, covered)

    def _told(
        self,
        them: Patches,
        matrices: torch.Tensor,
        whole: torch.Tensor,
        inverse: torch.Tensor,
        weight: torch.Tensor,
        votes: torch.Tensor,
        left: torch.Tensor,
        shown: torch.Tensor,
        covered: torch.Tensor,
    ) -> Registered:
        """What came out, and how sure it is."""
        k, enough = len(self.corner), covered.any(1)
        blocks = them.blocks()
        used = (blocks * covered[..., None]).amax(1).sum(1)
        spread = _agreement(blocks, left) * (_NEIGHBOURS * used / (used - k / 2).clamp(min=1))[:, None, None]
        # Slopes of a noisy picture are too steep, so that steps along them, and their errors, look too small.
        steep = _steepness(them, shown, weight)
        error = (self._at_corners(inverse @ spread @ inverse) / steep.square() + self.floor**2).sqrt()
        # The shape of the information from all tiles, its amount from how far blocks disagree: few know no shape.
        information = whole * (self._at_corners(inverse) / error.square())[:, None, None]
        amount = torch.einsum("ekl,elk->e", inverse, _agreement(blocks, votes))
        residual = shown - them.wanted
        missed, there_is = ((weight * part.square().sum(2).double()).sum(1) / 2 for part in (residual, shown))
        a, b = (part.double() * covered[..., None] for part in (them.wanted, shown))
        likeness = (a * b).sum((1, 2)) / (a.square().sum((1, 2)) * b.square().sum((1, 2))).sqrt().clamp(min=1e-12)
        unknown = torch.full_like(error, torch.nan)
        return Registered(
            matrices,
            torch.where(enough[:, None, None], information, 0.0),
            torch.where(enough, error, unknown),
            torch.where(enough, likeness, unknown),
            torch.where(enough, 1 - (missed + amount) / there_is.clamp(min=1e-9), unknown),
        )

    def _at_corners(self, covariance: torch.Tensor) -> torch.Tensor:
        """(E,) variance of a corner along an axis, in pixels, of covariances (E, k, k) of parameters."""
        return torch.einsum("kc,ekl,lc->e", self.corner, covariance, self.corner) / self.corner.shape[1]


class _Splines:
    """Values between the pixels of the second picture of each pair: of pictures (B, h, w), those of `which` (E,), in
    order."""

    def __init__(self, pictures: torch.Tensor, which: torch.Tensor, them: Patches) -> None:
        # With a picture of its own every pair is looked up in one go, but copies of large ones leave the cache.
        copied = pictures[0].numel() <= _COPIED * them.wanted[0].numel()
        parts = [pictures] if copied else pictures.split(1)
        splines = [torch.from_numpy(spline_coefficients(part[:, None].numpy()))[:, 0] for part in parts]
        self.splines = [splines[0][which]] if copied else splines
        self.counts = [len(which)] if copied else torch.bincount(which, minlength=len(pictures)).tolist()

    def at(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """At pixels x, y (E, T, P)."""
        shown = torch.empty_like(x)
        for spline, *part in zip(self.splines, *(all_.split(self.counts) for all_ in (x, y, shown)), strict=True):
            here_x, here_y, here = (one.reshape(len(spline), -1) for one in part)
            here.copy_(spline_at(spline, here_x, here_y))
        return shown


def _steepness(them: Patches, shown: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """(E,) share of the slopes of their pictures that the other one has too: noise has slopes of its own."""
    own, other = (values.unflatten(-1, (them.side, them.side)) for values in (them.wanted, shown))
    both, alone = torch.zeros_like(weight), torch.zeros_like(weight)
    for step in ((..., slice(2, None), slice(1, -1)), (..., slice(1, -1), slice(2, None))):
        back = (..., *(slice(None, -2) if part == slice(2, None) else part for part in step[1:]))
        slope = own[step] - own[back]
        both += (slope * (other[step] - other[back])).sum((-2, -1))
        alone += slope.square().sum((-2, -1))
    return ((weight * both).sum(1) / (weight * alone).sum(1).clamp(min=1e-12)).clamp(_LEAST_STEEP, 1)


def _agreement(blocks: torch.Tensor, votes: torch.Tensor) -> torch.Tensor:
    """(E, k, k) products of what the votes (E, T, k) of each block, (E, T, blocks) of 0 and 1, say together."""
    together = blocks.transpose(1, 2) @ votes
    return together.transpose(1, 2) @ together
