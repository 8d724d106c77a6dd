"""Votes of tiles on a pose: which way an image should move, how sure that is, and what the others foretell of it.

    r = I∘H − T      δ = A⁻¹ Σ wₜ Jₜᵀrₜ,  A = Σ wₜ JₜᵀJₜ      cov δ = A⁻¹ B A⁻¹,  B = Σ_blocks g gᵀ

T is the mean of the *other* images: an image must not be its own witness. A tile weighs as much as the set agrees
there: a face counts more than what is behind it. In one image it weighs less if it is far off: a hand before the face.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from congeal.geometry.matrix import Size, corners
from congeal.solvers.gaussnewton import GaussNewton, point_motion
from congeal.solvers.tiles import Tiles

_FREEDOM = 4.0  # degrees of freedom of the t-distribution of a tile's residuals: a few are far off
_LEAST_NOISE = 0.02  # of the mean variance: no tile is quite free of noise
LEAST_TILES = 6  # that an image must cover before it is moved or its error is known
_LEAST_SHARE = 0.25  # of the images must show a tile: where an image is nearly alone, it would be its own witness
DAMPING = 1e-4
SAMPLING_ERROR = 0.004
"""Pixels along an axis: what sampling between pixels costs a pose, however little noise there is …"""
SHRINKING_ERROR = 0.01
"""… and what it costs if the pictures were made smaller before. Both from copies of four photographs (DEVELOP in
benchmarks/everyday_sets.py). By errors with these floors levels are left and answers weighed. The error bar that is
told of a pose has what is left of sampling instead: `Level.sampling_left`."""
_LEFT = 0.0005, 0.0012  # pixels along an axis, and as much times the roughness: what is left of the bias of sampling
# once it is taken off. Chosen on shifted copies and stacks of DEVELOP
_ROOT_SERIES = 1 / 2, 3 / 8, 5 / 16, 35 / 128  # of (1 − x)^−½
_95_OF_100 = 1.645  # standard deviations, on one side


@dataclass(frozen=True)
class Level:
    """What images are compared with at one resolution: a template on tiles, and how far images differ from it there.

    Attributes
    ----------
    tiles : Tiles
    template : (T, side + 2, side + 2) tensor
        Mean of the images that made it, with a rim of one pixel; of plain values NaN where too many are clipped.
    noise : (T,) tensor
        Variance of those images about it.
    count : (T,) tensor
        How many images each tile was made of; 0 where too few show it to be a witness.
    floor : float
        The error that no pose can be without, in pixels along an axis.
    plain : (3,) tensor or None
        If it is made of plain values (`values.py`): the share of its squared slopes that is not noise, and the mean
        square frequency of what is not, along x and y.
    """

    tiles: Tiles
    template: torch.Tensor
    noise: torch.Tensor
    count: torch.Tensor
    floor: float
    plain: torch.Tensor | None = None

    @property
    def frame(self) -> Size:
        """(height, width) of the frame at this level."""
        return self.tiles.frame

    @property
    def roughness(self) -> torch.Tensor:
        """(2,) mean square frequency of the template's slopes along x and y, in (radians per pixel)²."""
        if self.plain is not None:
            return self.plain[1:]
        template = self.template.double()[self.count > 0]
        bends, slopes = bending(template, template)
        return bends / slopes.clamp(min=1e-12)

    @property
    def sampling_left(self) -> float:
        """Pixels along an axis that sampling moves a picture that is only shifted by, once its bias is taken off. It is
        a largest value, with no tails to allow for."""
        return _LEFT[0] + _LEFT[1] * float(self.roughness.double().mean())


class LevelSums:
    """Running sums over images from which a level is made."""

    def __init__(self, tiles: Tiles, floor: float) -> None:
        self.tiles, self.floor, self.images = tiles, floor, 0
        self.image = torch.zeros(len(tiles), tiles.side + 2, tiles.side + 2, dtype=torch.float64)
        self.square, self.weight = (torch.zeros(len(tiles), dtype=torch.float64) for _ in range(2))

    def add(self, seen: torch.Tensor, covered: torch.Tensor) -> None:
        """Take in images on tiles (B, T, side + 2, side + 2), and which tiles they cover (B, T)."""
        covered = covered.double()
        self.image += torch.einsum("btij,bt->tij", seen.double(), covered)
        self.square += (self.tiles.inner(seen).double().square().mean(2) * covered).sum(0)
        self.weight += covered.sum(0)
        self.images += len(seen)

    def level(self) -> Level:
        """The level of all images so far."""
        count = self.weight.clamp(min=1)
        mean = self.image / count[:, None, None]
        noise = (self.square / count - self.tiles.inner(mean).square().mean(1)).clamp(min=0)
        shown = shown_enough(self.weight, self.images)
        noise = some_noise(noise * count / (count - 1).clamp(min=1), shown)
        return Level(self.tiles, mean.float(), noise.float(), (self.weight * shown).float(), self.floor)


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
        self.inner = self.tiles.inner(level.template)
        corner = point_motion(torch.as_tensor(corners(level.frame)).double(), level.frame, motion)
        self.corner = corner.flatten(1)  # (k, 8)

    def ask(self, seen: torch.Tensor, covered: torch.Tensor, own: torch.Tensor) -> Votes:
        """seen (B, T, side + 2, side + 2), covered (B, T); own (B,) bool: which images are part of the template."""
        shown, residual = self._residual(seen, own)
        covered = covered * (self.level.count > 0)
        away = residual.square().mean(2)
        weight = (covered * robust_weight(self.level.noise, away)).double()
        votes, inverse = self._votes(residual, weight)
        delta = (inverse @ votes.sum(1)[..., None])[..., 0]
        # At the optimum the votes cancel; what a block adds beyond its share of the step is noise.
        curvature = curvature_in_blocks(self.tiles, weight, self.curvature)
        left = self._in_blocks(votes) - (curvature @ delta[:, None, :, None])[..., 0]
        known = covered.sum(1) >= LEAST_TILES
        both = corner_spread(left, curvature, inverse, self.corner, self.level.floor)
        error, noise = (torch.where(known, one, torch.nan) for one in both)
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
        count, shown = self.level.count, self.tiles.inner(seen)
        without_itself = torch.where(own[:, None], count / (count - 1).clamp(min=1), 1.0)
        return shown, (shown - self.inner) * without_itself[..., None]

    def _votes(self, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What each tile pulls with (B, T, k), and the inverse of the curvature (B, k, k)."""
        pulls = torch.einsum("tpk,btp->btk", self.slopes, residual.double())
        inverse = self.newton.damped_inverse(torch.einsum("bt,tkl->bkl", weight, self.curvature))
        return pulls * weight[..., None], inverse

    def _in_blocks(self, votes: torch.Tensor) -> torch.Tensor:
        """(B, blocks, k): the votes of each block's tiles together."""
        return torch.einsum("btk,tc->bck", votes, self.tiles.blocks.double())


def curvature_in_blocks(tiles: Tiles, weight: torch.Tensor, curvature: torch.Tensor) -> torch.Tensor:
    """(B, blocks, k, k): curvatures (T, k, k) of each block's tiles together, weighed by (B, T)."""
    flat, members = curvature.flatten(1), tiles.blocks.T > 0
    return torch.stack([weight[:, own] @ flat[own] for own in members], 1).unflatten(2, curvature.shape[1:])


def bending(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What two pictures on tiles (T, side + 2, side + 2) have in common of their bends and of their slopes, along x and
    y, (2,) each; of waves of frequency w one by the other is w².

    Differences between two pixels make a slope of w² come out as sin² w, those between neighbours as 4 sin²(w/2), bends
    of w⁴ as 16 sin⁴(w/2). A third of the first and two thirds of the second lack as much as the bends do.
    """
    near, far, bends = [], [], []
    for axis in (2, 1):
        a, b = (tiles.narrow(3 - axis, 1, tiles.shape[1] - 2).diff(dim=axis) for tiles in (one, other))
        steps = a.shape[axis] - 1
        (a0, a1), (b0, b1) = ((x.narrow(axis, 0, steps), x.narrow(axis, 1, steps)) for x in (a, b))
        near.append((a0 * b0 + a1 * b1).nansum(dtype=torch.float64) / 2)
        far.append(((a0 + a1) * (b0 + b1)).nansum(dtype=torch.float64) / 4)
        bends.append(((a1 - a0) * (b1 - b0)).nansum(dtype=torch.float64))
    return torch.stack(bends), (torch.stack(far) + 2 * torch.stack(near)) / 3


def shown_enough(count: torch.Tensor, images: int) -> torch.Tensor:
    """Of tiles that so many of the images show, whether that is enough to be a witness."""
    return count >= max(2, _LEAST_SHARE * images)


def some_noise(noise: torch.Tensor, shown: torch.Tensor) -> torch.Tensor:
    """The same variances (T,) and a little more; shown (T,) bool: which of them mean something."""
    return noise + _LEAST_NOISE * (noise * shown).sum() / shown.sum().clamp(min=1) + 1e-9


def robust_weight(noise: torch.Tensor, away: torch.Tensor) -> torch.Tensor:
    """What tiles weigh, by their variance in the set (T,) and how far off an image is there (B, T)."""
    return (_FREEDOM + 1) / (_FREEDOM * noise + away)


def share_of_others(keep: torch.Tensor) -> torch.Tensor:
    """(n,) of the way from an image to the mean of the others, how far it is to the mean of all; keep (n,) bool: which
    images make these. All take that step at once, and it is what noise of the others counts for."""
    return 1 - keep.double() / keep.sum().clamp(min=1)


def corner_spread(
    left: torch.Tensor,
    curvature: torch.Tensor,
    inverse: torch.Tensor,
    corner: torch.Tensor,
    floor: float | torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B,) standard error of where corners lie, in frame pixels: half of what their mean distance stays below in 95 of
    100 cases; and what it would be without the floor.

    left (B, blocks, k): what blocks vote for once the step is taken; curvature (B, blocks, k, k) of each; inverse
    (B, k, k) of the curvature of all; corner (k, 8): how corners move with each parameter.
    """
    # The step was fitted to these very blocks, most to those that know most of it (Bell and McCaffrey's CR2): what a
    # block with a share L of the curvature has left is (I − L)^½ of what it had. By its series.
    share = curvature @ inverse[:, None]
    more, had = left, left.clone()
    for factor in _ROOT_SERIES:
        more = (share @ more[..., None])[..., 0]
        had += factor * more
    squares = torch.einsum("bck,bcl->bkl", had, had)
    spread = corner.T @ inverse @ squares @ inverse @ corner
    along = torch.diagonal(spread, dim1=-2, dim2=-1).mean(-1)
    # Corners of a translation err all alike, in two directions; those of a homography in up to eight, of which large
    # ones and small ones make up for each other. χ² with as many freedoms as there are (Satterthwaite), its quantile
    # by Wilson and Hilferty.
    freedoms = (64 * along.square() / spread.square().sum((1, 2)).clamp(min=1e-30)).clamp(2.0, 8.0)
    width = 2 / (9 * freedoms)
    quantile = (1 - width + _95_OF_100 * width.sqrt()) ** 3  # of the mean square
    square = _mean_distance_squared(spread) / 2
    return (quantile / 2 * (square + floor**2)).sqrt(), (quantile / 2 * square).sqrt()


def _mean_distance_squared(spread: torch.Tensor) -> torch.Tensor:
    """(B,) expected square of the mean distance of four corners with a covariance (B, 8, 8).

    It is less than their mean square distance, unless all go the same way: of two corners that err each by itself the
    mean product of their distances is π/4 of what it is if they err alike.
    """
    pairs = spread.view(-1, 4, 2, 4, 2).transpose(2, 3)
    shared = pairs.square().sum((3, 4))
    own = torch.diagonal(shared, dim1=1, dim2=2).clamp(min=1e-30)
    lengths = torch.diagonal(spread, dim1=1, dim2=2).view(-1, 4, 2).sum(2).sqrt()
    alike = shared / (own[:, :, None] * own[:, None]).sqrt()
    products = lengths[:, :, None] * lengths[:, None] * (alike + math.pi / 4 * (1 - alike))
    return products.mean((1, 2))


def _correlation(a: torch.Tensor, b: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """(B,) of pictures (B, T, P), tiles weighed by (B, T)."""
    both, own_a, own_b = ((weight * (x * y).sum(2)).sum(1) for x, y in ((a, b), (a, a), (b, b)))
    return both / (own_a * own_b).sqrt().clamp(min=1e-9)
