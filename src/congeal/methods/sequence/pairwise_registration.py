"""Pairwise registration: the pose of one picture in another by Gauss-Newton steps on tiles, with its covariance.

    r = b∘M − a      δ = A⁻¹ Σ wₜ Jₜᵀrₜ,  A = Σ wₜ JₜᵀJₜ      M ← M · exp(−δ)

M is b_from_a. In contrast to `TileSolver`, where one template is shared by all images, every pair has its own tiles,
and the noise of a tile is estimated from the pair itself. Tiles of all pictures of a size lie on one grid, so that many
pairs are registered in one batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch.nn.functional import one_hot, pad

from congeal.filters import NEIGHBOURHOOD_SHARE
from congeal.geometry.kernels import spline_at, spline_coefficients
from congeal.geometry.matrix import Size, corners
from congeal.geometry.warping import sample_at
from congeal.registration.gauss_newton import GaussNewton, point_motion
from congeal.registration.tiles import BLOCKS, CELLS, DAMPING, MIN_TILES, RESIDUAL_FREEDOM, tile_side

TILES_PER_CELL = 4
"""Tiles with the most structure of each of 4 × 4 cells: 64 tiles determine a pose of eight parameters (chosen by
judgement: 96 tiles take half as long again)."""
BLOCK_CORRELATION = 1.6
"""Factor of the variance that accounts for correlated errors of adjacent blocks: with it errors are 0.5 to 1.4 times
the error bars on frames cut from photographs, with noise of 3 and 10 grey levels (docs/sequences.md)."""
CONVERGED_PX = 5e-3
"""Motion of the frame's corners in the last step: less than half of the error that sampling alone leaves in
pictures of reduced size (`REDUCTION_ERROR_PX`)."""


@dataclass(frozen=True)
class PictureTiles:
    """T tiles of P pixels of each of B pictures.

    frame: (height, width) of the pictures. corner (B, T, 2) int64: pixels (x, y) at the top left of a tile. valid (B,
    T) bool: False where a picture has less structure than tiles. values (B, T, P): local contrast. jacobian (B, T, k,
    P): its derivative by each motion parameter.
    """

    frame: Size
    corner: torch.Tensor
    valid: torch.Tensor
    values: torch.Tensor
    jacobian: torch.Tensor

    @classmethod
    def of(cls, pictures: torch.Tensor, motion: str) -> PictureTiles:
        """Choose and linearise tiles of local contrast (B, h, w): of a centred grid of squares, the one with the most
        structure in every cell. None lie at the border, where local contrast depends on the position of the edge."""
        frame = (pictures.shape[1], pictures.shape[2])
        side, border = tile_side(frame), NEIGHBOURHOOD_SHARE * max(frame)
        rest = [(length % side) // 2 for length in frame]
        wide = pad(pictures[:, None], (1, 1, 1, 1), mode="replicate")[:, 0, rest[0] :, rest[1] :]
        squares = wide.unfold(1, side + 2, side).unfold(2, side + 2, side)  # (B, rows, columns, side + 2, side + 2)
        # The first square inside the border, of each axis; there is at least one, which may be invalid.
        first = [min(-int(-(border - r) // side), n - 1) for r, n in zip(rest, squares.shape[1:3], strict=True)]
        count = [max(1, n - 2 * f) for f, n in zip(first, squares.shape[1:3], strict=True)]
        squares = squares[:, first[0] : first[0] + count[0], first[1] : first[1] + count[1]]
        dx = (squares[..., 1:-1, 2:] - squares[..., 1:-1, :-2]) / 2
        dy = (squares[..., 2:, 1:-1] - squares[..., :-2, 1:-1]) / 2
        structure = (dx.square() + dy.square()).mean((-2, -1))
        high, broad = (-(-n // CELLS) for n in count)
        cells = pad(structure, (0, CELLS * broad - count[1], 0, CELLS * high - count[0]))
        cells = cells.unfold(1, high, high).unfold(2, broad, broad).flatten(3)  # (B, CELLS, CELLS, squares)
        best, place = cells.topk(min(TILES_PER_CELL, high * broad), 3)
        across = torch.arange(CELLS)
        row = (place // broad + high * across[:, None, None]).flatten(1).clamp(max=count[0] - 1)
        column = (place % broad + broad * across[:, None]).flatten(1).clamp(max=count[1] - 1)
        corner = torch.stack([(column + first[1]) * side + rest[1], (row + first[0]) * side + rest[0]], -1)
        beyond = corner.new_tensor([frame[1], frame[0]]) - side - border
        valid = (best.flatten(1) > 0) & ((corner >= border) & (corner <= beyond)).all(-1)
        tiles = torch.arange(len(pictures))[:, None], row, column
        values, dx, dy = (one[tiles].flatten(2) for one in (squares[..., 1:-1, 1:-1], dx, dy))
        points = corner[:, :, None] + _steps(side)
        along = point_motion(points.flatten(0, 2).float(), frame, motion).unflatten(1, dx.shape)  # (k, B, T, P, 2)
        jacobian = torch.addcmul(dx * along[..., 0], dy, along[..., 1]).permute(1, 2, 0, 3).contiguous()
        return cls(frame, corner, valid, values, jacobian)

    def __len__(self) -> int:
        return len(self.corner)

    @property
    def side(self) -> int:
        """Of a tile, in pixels."""
        return int(self.values.shape[2] ** 0.5)

    def points(self, matrices: torch.Tensor) -> torch.Tensor:
        """(2, B, T, P) x and y of their pixels through matrices (B, 3, 3)."""
        corner, steps = self.corner.double(), _steps(self.side).double()
        rows = []
        for row in range(3):  # corners in float64; a product of matrices would take longer
            across, down, shift = matrices[:, row].double()[..., None].unbind(1)  # (B, 1) each
            begin = across * corner[..., 0] + down * corner[..., 1] + shift  # (B, T)
            rows.append(begin.float()[..., None] + (across * steps[:, 0] + down * steps[:, 1]).float()[:, None])
        places, perspective = torch.stack(rows[:2]), bool((matrices[:, 2, :2] != 0).any())
        return places / rows[2] if perspective else places

    def one(self, k: int) -> PictureTiles:
        """The tiles of picture k alone."""
        return PictureTiles(self.frame, *(values[k : k + 1] for values in self._arrays()))

    @classmethod
    def cat(cls, some: Sequence[PictureTiles]) -> PictureTiles:
        """Concatenate tiles of pictures of one size."""
        return cls(some[0].frame, *map(torch.cat, zip(*(tiles._arrays() for tiles in some), strict=True)))

    def _arrays(self) -> tuple[torch.Tensor, ...]:
        return self.corner, self.valid, self.values, self.jacobian

    def blocks(self) -> torch.Tensor:
        """(B, T, blocks) of 0 and 1: which block of the frame a tile is in."""
        height, width = self.frame
        column, row = self.corner[..., 0] * BLOCKS // width, self.corner[..., 1] * BLOCKS // height
        return one_hot(row * BLOCKS + column, BLOCKS**2).double() * self.valid[..., None]


def _steps(side: int) -> torch.Tensor:
    """(P, 2) pixels (x, y) of a tile from its corner, row by row."""
    return torch.cartesian_prod(torch.arange(side), torch.arange(side)).flip(1)


@dataclass(frozen=True)
class PairPoses:
    """Registration of E pairs.

    matrices (E, 3, 3): b_from_a, in pixels of the frame. information (E, k, k): inverse covariance of its parameters,
    for steps from the right in normalised coordinates. error (E,): standard error of a corner of the frame along an
    axis, in pixels. likeness (E,): correlation on the tiles that lie in both. explained_variance (E,): share of the
    second picture's variance that the first explains, corrected for overfitting (Takeuchi). The last three are NaN
    where the overlap is too small.
    """

    matrices: torch.Tensor
    information: torch.Tensor
    error: torch.Tensor
    likeness: torch.Tensor
    explained_variance: torch.Tensor

    @classmethod
    def cat(cls, parts: Sequence[PairPoses]) -> PairPoses:
        """Concatenate pairs."""
        return cls(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(cls)))


class PairSolver:
    """Registers pairs in one motion. min_error: lower bound of the standard error, in pixels, set by sampling."""

    def __init__(self, motion: str, frame: Size, min_error: float) -> None:
        self.motion, self.frame, self.min_error = motion, frame, min_error
        self.newton = GaussNewton(motion, frame, damping=DAMPING)
        corner = point_motion(torch.as_tensor(corners(frame)).double(), frame, motion)
        self.corner_jacobian = corner.flatten(1)  # (k, 8)

    @torch.no_grad()
    def register(
        self,
        pictures: torch.Tensor,
        inside: torch.Tensor | None,
        which: torch.Tensor,
        tiles: PictureTiles,
        begin: torch.Tensor,
        steps: int,
    ) -> PairPoses:
        """Register pictures a to pictures b, for E pairs.

        pictures (B, h, w): local contrast of every b. inside (B, h, w): their coverage; None: complete. which (E,): the
        b of each pair. tiles: those of its a, in the same motion. begin (E, 3, 3): initial b_from_a. steps:
        the largest number.
        """
        matrices, (height, width) = begin.double(), pictures.shape[1:]
        splines = torch.from_numpy(spline_coefficients(pictures[:, None].numpy()))[:, 0]
        splines = splines if len(splines) == 1 else splines[which]  # a large picture comes alone and is not copied
        border = NEIGHBOURHOOD_SHARE * max(height, width)
        allowed = torch.tensor([width, height])[:, None, None, None] - 1 - border
        side = tiles.side
        hessians = (tiles.jacobian @ tiles.jacobian.transpose(2, 3)).double()
        moving = torch.ones(len(matrices), dtype=torch.bool)
        for _ in range(steps + 1):
            places = tiles.points(matrices)
            ends = places[..., [0, side - 1, -side, -1]]
            covered = ((ends >= border) & (ends <= allowed)).all(3).all(0) & tiles.valid
            if inside is not None:
                covered &= (sample_at(inside[which], places.movedim(0, -1))[0] > 0.5).all(2)
            covered &= covered.sum(1, keepdim=True) >= MIN_TILES
            shown = spline_at(splines, *places).view_as(tiles.values)
            residual = shown - tiles.values
            squared = residual.square().mean(2)
            noise = squared.masked_fill(~covered, torch.nan).nanmedian(1, keepdim=True).values.nan_to_num(1.0)
            weight = (covered * (RESIDUAL_FREEDOM + 1) / (RESIDUAL_FREEDOM * noise + squared + 1e-9)).double()
            gradient = (tiles.jacobian @ residual[..., None])[..., 0].double() * weight[..., None]  # (E, T, k)
            hessian = torch.einsum("et,etkl->ekl", weight, hessians)
            inverse = self.newton.damped_inverse(hessian)
            delta = (inverse @ gradient.sum(1)[..., None])[..., 0]
            # The result of a pair does not depend on the number of steps of the others.
            matrices = torch.where(moving[:, None, None], self.newton.compose(matrices, delta), matrices)
            moving &= (delta @ self.corner_jacobian).abs().amax(1) >= CONVERGED_PX
            if not bool(moving.any()):
                break
        fitted = (weight, gradient, hessian, inverse)
        remainder = gradient - torch.einsum("et,etkl,el->etk", weight, hessians, delta)
        return self._result(tiles, matrices, covered, shown, fitted, remainder)

    def _result(
        self,
        tiles: PictureTiles,
        matrices: torch.Tensor,
        covered: torch.Tensor,
        shown: torch.Tensor,
        fitted: tuple[torch.Tensor, ...],
        remainder: torch.Tensor,
    ) -> PairPoses:
        """Poses with their covariance, likeness and explained variance."""
        weight, gradient, hessian, inverse = fitted
        k, blocks = len(self.corner_jacobian), tiles.blocks()
        used = (blocks * covered[..., None]).amax(1).sum(1)
        correction = BLOCK_CORRELATION * used / (used - k / 2).clamp(min=1)
        scatter = _block_scatter(blocks, remainder) * correction[:, None, None]
        # Noise inflates the gradient of a picture, so that steps and their errors look too small.
        reliability = _gradient_reliability(tiles, shown, weight)
        error = (self._corner_variance(inverse @ scatter @ inverse) / reliability.square() + self.min_error**2).sqrt()
        # The shape of the information is that of the Hessian, its size from the disagreement of blocks.
        information = hessian * (self._corner_variance(inverse) / error.square())[:, None, None]
        overfit = torch.einsum("ekl,elk->e", inverse, _block_scatter(blocks, gradient))
        residual = shown - tiles.values
        unexplained, total = ((weight * part.square().sum(2).double()).sum(1) / 2 for part in (residual, shown))
        a, b = (part.double() * covered[..., None] for part in (tiles.values, shown))
        likeness = (a * b).sum((1, 2)) / (a.square().sum((1, 2)) * b.square().sum((1, 2))).sqrt().clamp(min=1e-12)
        explained = 1 - (unexplained + overfit) / total.clamp(min=1e-9)
        enough = covered.any(1)
        known = (torch.where(enough, one, torch.nan) for one in (error, likeness, explained))
        return PairPoses(matrices, torch.where(enough[:, None, None], information, 0.0), *known)

    def _corner_variance(self, covariance: torch.Tensor) -> torch.Tensor:
        """(E,) variance of a corner along an axis, in pixels, for covariances (E, k, k) of parameters."""
        total = torch.einsum("kc,ekl,lc->e", self.corner_jacobian, covariance, self.corner_jacobian)
        return total / self.corner_jacobian.shape[1]


def _gradient_reliability(tiles: PictureTiles, shown: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """(E,) regression coefficient of the second picture's gradient on the first's."""
    square = (tiles.side, tiles.side)
    own, other = (torch.stack(torch.gradient(v.unflatten(-1, square), dim=(-2, -1))) for v in (tiles.values, shown))
    both, alone = ((weight * (own * one).sum((0, -2, -1))).sum(1) for one in (other, own))
    return (both / alone.clamp(min=1e-12)).clamp(0.1, 1)  # bounds the error of noise


def _block_scatter(blocks: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """(E, k, k) scatter matrix of the gradients (E, T, k) summed over blocks (E, T, blocks of 0 and 1)."""
    together = blocks.transpose(1, 2) @ gradient
    return together.transpose(1, 2) @ together
