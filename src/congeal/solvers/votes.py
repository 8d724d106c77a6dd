"""Votes of tiles on a pose: which way an image should move, how sure that is, and what the others foretell of it.

    r = I∘H − T      δ = A⁻¹ Σ wₜ Jₜᵀrₜ,  A = Σ wₜ JₜᵀJₜ      cov δ = A⁻¹ B A⁻¹,  B = Σ_blocks g gᵀ

T is the mean of the *other* images: an image must not be its own witness. A tile weighs as much as the set agrees
there: a face counts more than what is behind it. In one image it weighs less if it is far off: a hand before the face.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from congeal.geometry.matrix import corners
from congeal.solvers.between import Between
from congeal.solvers.gaussnewton import GaussNewton, point_motion
from congeal.solvers.level import Level
from congeal.solvers.spread import corner_spread, curvature_in_blocks, lengthened, motion_squares

_FREEDOM = 4.0  # degrees of freedom of the t-distribution of a tile's residuals: a few are far off
_LEAST_REAL = 0.5  # of a curvature: after a few steps an error is at most a few times larger than one step says
LEAST_TILES = 6  # that an image must cover before it is moved or its error is known
DAMPING = 1e-4


@dataclass(frozen=True)
class Votes:
    """What the tiles say of B images.

    Attributes
    ----------
    delta : (B, k) tensor
        The step, in motion parameters.
    error : (B,) tensor
        Its standard error: of where the corners of the frame lie, as `corner_spread` says, in frame pixels; NaN if too
        few tiles are covered.
    noise : (B,) tensor
        What of it is noise: the error if nothing but that were wrong.
    likeness : (B,) tensor
        Correlation with the mean of the others.
    """

    delta: torch.Tensor
    error: torch.Tensor
    noise: torch.Tensor
    likeness: torch.Tensor


class Poll:
    """Compares images with a level in one motion."""

    def __init__(self, level: Level, motion: str) -> None:
        self.level, self.tiles = level, level.tiles
        self.newton = GaussNewton(motion, level.frame, damping=DAMPING)
        # In float64, so that an image gets the same answer in any batch.
        self.slopes = self.tiles.slopes(level.template, motion).double()  # (T, P, k)
        self.curvature = self.slopes.transpose(1, 2) @ self.slopes  # (T, k, k)
        # How much of it is noise in the template's slopes.
        self.noisy = level.common.steepness * self.tiles.side**2 * motion_squares(self.tiles, motion)
        self.inner = self.tiles.inner(level.template)
        corner = point_motion(torch.as_tensor(corners(level.frame)).double(), level.frame, motion)
        self.corner = corner.flatten(1)  # (k, 8)

    @cached_property
    def _between(self) -> Between:
        return Between(self.level, self.newton.motion)  # `foretold` does without

    def ask(self, seen: torch.Tensor, covered: torch.Tensor, own: torch.Tensor, poses: torch.Tensor) -> Votes:
        """seen (B, T, side + 2, side + 2), covered (B, T); own (B,) bool: which images are part of the template; poses
        (B, 3, 3) at which they were seen."""
        shown, residual = self._residual(seen, own)
        covered = covered * (self.level.count > 0)
        away = residual.square().mean(2)
        weight = (covered * robust_weight(self.level.noise, away)).double()
        votes, inverse = self._votes(residual, weight)
        votes += self._between.votes(poses) * (weight * self._without_itself(own))[..., None]
        delta = (inverse @ votes.sum(1)[..., None])[..., 0]
        # At the optimum the votes cancel; what a block adds beyond its share of the step is noise.
        curvature = curvature_in_blocks(self.tiles, weight, self.curvature)
        left = self._in_blocks(votes) - (curvature @ delta[:, None, :, None])[..., 0]
        # By slopes that are part noise, steps are too short and look too sure.
        noisy = torch.einsum("bt,tkl->bkl", weight, self.noisy)
        corner = lengthened(curvature.sum(1), noisy, _LEAST_REAL).transpose(1, 2) @ self.corner
        known = covered.sum(1) >= LEAST_TILES
        noise = torch.where(known, corner_spread(left, curvature, inverse, corner), torch.nan)
        error = noise.square().add(self.level.floor**2).sqrt()
        likeness = _correlation(shown, shown - residual, covered / self.level.noise)
        return Votes(torch.where(known[:, None], delta, 0.0), error, noise, likeness)

    def foretold(
        self, seen: torch.Tensor, covered: torch.Tensor, own: torch.Tensor, noise: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(B,) share of what an image shows that the others foretell, as it would be on pixels it was not fitted to;
        and what it misses in each block, (B, blocks).

        More freedom always fits the pixels at hand better. By Takeuchi's criterion it fits other pixels worse by
        tr(A⁻¹B). noise (T,): the same for all motions that are compared.
        """
        shown, residual = self._residual(seen, own)
        weight = (covered * (self.level.count > 0) / noise).double()
        votes, inverse = self._votes(residual, weight)
        blocks = self._in_blocks(votes)
        squares = torch.einsum("bck,bcl->bkl", blocks, blocks)
        optimism = torch.einsum("bkl,blk->b", inverse, squares)
        missed, there = (weight * part.double().square().sum(2) / 2 for part in (residual, shown))
        all_there = there.sum(1).clamp(min=1e-9)
        by_block = missed @ self.tiles.blocks.double() / all_there[:, None]
        return 1 - (missed.sum(1) + optimism) / all_there, by_block

    def _residual(self, seen: torch.Tensor, own: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What tiles show (B, T, P), and how far it is from the mean of the others."""
        shown = self.tiles.inner(seen)
        return shown, (shown - self.inner) * self._without_itself(own)[..., None]

    def _without_itself(self, own: torch.Tensor) -> torch.Tensor:
        """(B, T) how much farther it is to the mean of the others than to that of all."""
        count = self.level.count
        return torch.where(own[:, None], count / (count - 1).clamp(min=1), 1.0)

    def _votes(self, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What each tile pulls with (B, T, k), and the inverse of the curvature (B, k, k)."""
        pulls = torch.einsum("tpk,btp->btk", self.slopes, residual.double())
        inverse = self.newton.damped_inverse(torch.einsum("bt,tkl->bkl", weight, self.curvature))
        return pulls * weight[..., None], inverse

    def _in_blocks(self, votes: torch.Tensor) -> torch.Tensor:
        """(B, blocks, k): the votes of each block's tiles together."""
        return torch.einsum("btk,tc->bck", votes, self.tiles.blocks.double())


def robust_weight(noise: torch.Tensor, away: torch.Tensor) -> torch.Tensor:
    """What tiles weigh, by their variance in the set (T,) and how far off an image is there (B, T)."""
    return (_FREEDOM + 1) / (_FREEDOM * noise + away)


def share_of_others(keep: torch.Tensor) -> torch.Tensor:
    """(n,) of the way from an image to the mean of the others, how far it is to the mean of all; keep (n,) bool: which
    images make these. All take that step at once, and it is what noise of the others counts for."""
    return 1 - keep.double() / keep.sum().clamp(min=1)


def _correlation(a: torch.Tensor, b: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """(B,) of pictures (B, T, P), tiles weighed by (B, T)."""
    both, own_a, own_b = ((weight * (x * y).sum(2)).sum(1) for x, y in ((a, b), (a, a), (b, b)))
    return both / (own_a * own_b).sqrt().clamp(min=1e-9)
