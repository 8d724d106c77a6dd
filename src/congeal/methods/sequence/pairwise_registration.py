"""Pairwise registration: the pose of one picture in another by Gauss-Newton steps on tiles, with its covariance.

    r = b∘M − a      δ = A⁻¹ Σ wₜ Jₜᵀrₜ,  A = Σ wₜ JₜᵀJₜ      M ← M · exp(−δ)

M is b_from_a. In contrast to `TileSolver`, where one template is shared by all images, every pair has its own tiles,
and the noise of a tile is estimated from the pair itself. Tiles of all pictures of a size lie on one grid, so that many
pairs are registered in one batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch.nn.functional import avg_pool2d, one_hot, pad

from congeal.filters import NEIGHBOURHOOD_SHARE
from congeal.geometry.kernels import spline_at, spline_coefficients
from congeal.geometry.matrix import Size, corners
from congeal.geometry.warping import sample_at
from congeal.registration.gauss_newton import GaussNewton, point_motion
from congeal.registration.tiles import BLOCKS, CELLS, DAMPING, MIN_TILES, RESIDUAL_FREEDOM, tile_side

BLOCK_CORRELATION = 1.6
"""Factor of the variance that accounts for correlated errors of adjacent blocks."""
MIN_GRADIENT_RELIABILITY = 0.1
"""Least share of a picture's gradient that is taken as signal."""
CONVERGED_PX = 5e-3
"""Corner motion of the last step."""
MAX_COPIED_PIXELS = 4
"""Pictures with at most this many times the pixels of their tiles are copied for every pair, to be sampled at once."""
TILES, LARGE_TILES = 96, 64
"""Number of tiles of a picture, at most, and of a large one, whose tiles have 256 pixels each."""
BORDER = NEIGHBOURHOOD_SHARE
"""Border without tiles, as a share of the longer side: there local contrast depends on the position of the edge."""


@dataclass(frozen=True)
class PictureTiles:
    """T tiles of P pixels of each of B pictures.

    Attributes
    ----------
    frame : (height, width)
        Of the pictures.
    side : int
        Of a tile, in pixels.
    corner : (B, T, 2) tensor of int64
        Pixels (x, y) at their top left.
    valid : (B, T) tensor of bool
        False where a picture has less structure than tiles.
    values : (B, T, P) tensor
        Local contrast.
    jacobian : (B, T, k, P) tensor
        Its derivative by each motion parameter.
    hessian : (B, T, k, k) tensor
        J·Jᵀ.
    """

    frame: Size
    side: int
    corner: torch.Tensor
    valid: torch.Tensor
    values: torch.Tensor
    jacobian: torch.Tensor
    hessian: torch.Tensor

    @classmethod
    def of(cls, pictures: torch.Tensor, motion: str, most: int = TILES) -> PictureTiles:
        """Choose and linearise tiles of local contrast (B, h, w)."""
        frame = (pictures.shape[1], pictures.shape[2])
        grid = _grid(frame, most)
        wide = pad(pictures[:, None], (1, 1, 1, 1), mode="replicate")[:, 0]
        row, column, valid = grid.choose(wide)
        side, (left, top) = grid.side, grid.rest
        windows = wide[:, top:, left:].unfold(1, side + 2, side).unfold(2, side + 2, side)
        values = windows[torch.arange(len(pictures))[:, None], row, column]  # (B, T, side + 2, side + 2)
        dx = (values[..., 1:-1, 2:] - values[..., 1:-1, :-2]).flatten(2) / 2
        dy = (values[..., 2:, 1:-1] - values[..., :-2, 1:-1]).flatten(2) / 2
        corner = torch.stack([column * side + left, row * side + top], -1)
        points = corner[:, :, None] + _steps(side)
        along = point_motion(points.flatten(0, 2).float(), frame, motion).unflatten(1, dx.shape)  # (k, B, T, P, 2)
        jacobian = torch.addcmul(dx * along[..., 0], dy, along[..., 1]).permute(1, 2, 0, 3).contiguous()
        hessian = (jacobian @ jacobian.transpose(2, 3)).double()
        return cls(frame, side, corner, valid, values[..., 1:-1, 1:-1].flatten(2), jacobian, hessian)

    def __len__(self) -> int:
        return len(self.corner)

    def one(self, k: int) -> PictureTiles:
        """The tiles of picture k alone."""
        return PictureTiles(self.frame, self.side, *(values[k : k + 1] for values in self._arrays()))

    @classmethod
    def cat(cls, some: Sequence[PictureTiles]) -> PictureTiles:
        """Concatenate tiles of pictures of one size."""
        arrays = zip(*(tiles._arrays() for tiles in some), strict=True)
        return cls(some[0].frame, some[0].side, *(torch.cat(parts) for parts in arrays))

    def _arrays(self) -> tuple[torch.Tensor, ...]:
        return self.corner, self.valid, self.values, self.jacobian, self.hessian

    def points(self, matrices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x and y (B, T, P) of their pixels through matrices (B, 3, 3)."""
        corner, steps = self.corner.double(), _steps(self.side).double()

        def through(row: int) -> torch.Tensor:
            across, down, shift = matrices[:, row].double()[..., None].unbind(1)  # (B, 1) each
            begin = across * corner[..., 0] + down * corner[..., 1] + shift  # (B, T)
            return begin.float()[..., None] + (across * steps[:, 0] + down * steps[:, 1]).float()[:, None]

        x, y = through(0), through(1)
        if bool((matrices[:, 2, :2] == 0).all()):
            return x, y
        depth = through(2)
        return x / depth, y / depth

    def at_corners(self, values: torch.Tensor) -> torch.Tensor:
        """(B, T, 4) the values (B, T, P) at the corners of each tile."""
        last = max(1, self.side - 1)
        return values.unflatten(2, (self.side, self.side))[..., ::last, ::last].flatten(2)

    def blocks(self) -> torch.Tensor:
        """(B, T, blocks) of 0 and 1: which block of the frame a tile is in."""
        height, width = self.frame
        column, row = self.corner[..., 0] * BLOCKS // width, self.corner[..., 1] * BLOCKS // height
        return one_hot(row * BLOCKS + column, BLOCKS**2).double() * self.valid[..., None]


@lru_cache(maxsize=8)
def _steps(side: int) -> torch.Tensor:
    """(P, 2) pixels (x, y) of a tile from its corner, row by row."""
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    return torch.stack([x.flatten(), y.flatten()], 1)


class _Grid:
    """Squares side by side in a frame, and the cell of each: every cell gives the same number of tiles."""

    def __init__(self, frame: Size, most: int) -> None:
        self.side = side = tile_side(frame)
        self.columns = frame[1] // side
        rows = frame[0] // side
        # The grid is centred; pixels that do not fill a square are left out.
        self.rest = left, top = (frame[1] % side) // 2, (frame[0] % side) // 2
        margin = BORDER * max(frame)
        cells: list[list[int]] = [[] for _ in range(CELLS**2)]
        for row in range(rows):
            for column in range(self.columns):
                x, y = column * side + left, row * side + top
                if min(x, y) >= margin and x + side <= frame[1] - margin and y + side <= frame[0] - margin:
                    cells[(row * CELLS // rows) * CELLS + column * CELLS // self.columns].append(
                        row * self.columns + column
                    )
        longest = max(1, *map(len, cells))
        each = min(longest, most // CELLS**2)
        self.candidates = torch.tensor([cell + [-1] * (longest - len(cell)) for cell in cells])  # (cells, longest)
        ranks = [(cell, rank) for cell, squares in enumerate(cells) for rank in range(min(each, len(squares)))]
        # A frame without any valid square has one invalid tile.
        self.cell, self.rank = torch.tensor(ranks or [(0, 0)]).T

    def choose(self, wide: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rows, columns and validity (B, T) of tiles, for pictures padded by one pixel (B, h + 2, w + 2)."""
        dx = wide[:, 1:-1, 2:] - wide[:, 1:-1, :-2]
        dy = wide[:, 2:, 1:-1] - wide[:, :-2, 1:-1]
        structure = avg_pool2d(dx.square_().addcmul_(dy, dy)[:, None], self.side).flatten(1)
        worth = structure[:, self.candidates.clamp(min=0)].masked_fill(self.candidates < 0, -1.0)
        order = worth.sort(dim=2, descending=True, stable=True)
        place = self.candidates[self.cell, order.indices[:, self.cell, self.rank]].clamp(min=0)
        return place // self.columns, place % self.columns, order.values[:, self.cell, self.rank] > 0


_grid = lru_cache(maxsize=16)(_Grid)


@dataclass(frozen=True)
class PairPoses:
    """Registration of E pairs.

    Attributes
    ----------
    matrices : (E, 3, 3) tensor
        b_from_a, in pixels of the frame.
    information : (E, k, k) tensor
        Inverse covariance of its parameters, for steps from the right in normalised coordinates.
    error : (E,) tensor
        Standard error of a corner of the frame along an axis, in pixels; NaN if the overlap is too small.
    likeness : (E,) tensor
        Correlation on the tiles that lie in both.
    explained_variance : (E,) tensor
        Share of the second picture's variance that the first explains, corrected for overfitting (Takeuchi).
    """

    matrices: torch.Tensor
    information: torch.Tensor
    error: torch.Tensor
    likeness: torch.Tensor
    explained_variance: torch.Tensor

    @classmethod
    def cat(cls, parts: Sequence[PairPoses]) -> PairPoses:
        """Concatenate pairs."""
        names = ("matrices", "information", "error", "likeness", "explained_variance")
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


class PairSolver:
    """Registers pairs in one motion. min_error: lower bound of the standard error, in pixels, set by sampling."""

    def __init__(self, motion: str, frame: Size, min_error: float) -> None:
        self.motion, self.frame, self.min_error = motion, frame, min_error
        self.newton = GaussNewton(motion, frame, damping=DAMPING)
        self.corner_jacobian = point_motion(torch.as_tensor(corners(frame)).double(), frame, motion).flatten(
            1
        )  # (k, 8)

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
        b of each pair. tiles: those of its a, in the same motion. begin (E, 3, 3): initial b_from_a. steps: the largest
        number.
        """
        matrices, (height, width) = begin.double(), pictures.shape[1:]
        splines, masks = _SplineSampler(pictures, which, tiles), None if inside is None else inside[which]
        border = BORDER * max(height, width)
        moving = torch.ones(len(matrices), dtype=torch.bool)
        for _ in range(steps + 1):
            x, y = tiles.points(matrices)
            far_x, far_y = tiles.at_corners(x), tiles.at_corners(y)
            there = (
                (far_x >= border) & (far_x <= width - 1 - border) & (far_y >= border) & (far_y <= height - 1 - border)
            )
            covered = there.all(2) & tiles.valid
            if masks is not None:
                covered &= (sample_at(masks, torch.stack([x, y], -1))[0] > 0.5).all(2)
            enough = covered.sum(1) >= MIN_TILES
            covered = covered & enough[:, None]
            shown = splines.at(x, y)
            residual = shown - tiles.values
            squared = residual.square().mean(2)
            noise = squared.masked_fill(~covered, torch.nan).nanmedian(1, keepdim=True).values.nan_to_num(1.0)
            weight = (covered * (RESIDUAL_FREEDOM + 1) / (RESIDUAL_FREEDOM * noise + squared + 1e-9)).double()
            gradient = (tiles.jacobian @ residual[..., None])[..., 0].double() * weight[..., None]  # (E, T, k)
            hessian = torch.einsum("et,etkl->ekl", weight, tiles.hessian)
            inverse = self.newton.damped_inverse(hessian)
            delta = (inverse @ gradient.sum(1)[..., None])[..., 0]
            # The result of a pair does not depend on the number of steps of the others.
            matrices = torch.where(moving[:, None, None], self.newton.compose(matrices, delta), matrices)
            moving &= (delta @ self.corner_jacobian).abs().amax(1) >= CONVERGED_PX
            if not bool(moving.any()):
                break
        remainder = gradient - torch.einsum("et,etkl,el->etk", weight, tiles.hessian, delta)
        return self._result(tiles, matrices, hessian, inverse, weight, gradient, remainder, shown, covered)

    def _result(
        self,
        tiles: PictureTiles,
        matrices: torch.Tensor,
        hessian: torch.Tensor,
        inverse: torch.Tensor,
        weight: torch.Tensor,
        gradient: torch.Tensor,
        remainder: torch.Tensor,
        shown: torch.Tensor,
        covered: torch.Tensor,
    ) -> PairPoses:
        """Poses with their covariance, likeness and explained variance."""
        k, enough = len(self.corner_jacobian), covered.any(1)
        blocks = tiles.blocks()
        used = (blocks * covered[..., None]).amax(1).sum(1)
        scatter = (
            _block_scatter(blocks, remainder) * (BLOCK_CORRELATION * used / (used - k / 2).clamp(min=1))[:, None, None]
        )
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
        unknown = torch.full_like(error, torch.nan)
        return PairPoses(
            matrices,
            torch.where(enough[:, None, None], information, 0.0),
            torch.where(enough, error, unknown),
            torch.where(enough, likeness, unknown),
            torch.where(enough, 1 - (unexplained + overfit) / total.clamp(min=1e-9), unknown),
        )

    def _corner_variance(self, covariance: torch.Tensor) -> torch.Tensor:
        """(E,) variance of a corner along an axis, in pixels, for covariances (E, k, k) of parameters."""
        return (
            torch.einsum("kc,ekl,lc->e", self.corner_jacobian, covariance, self.corner_jacobian)
            / self.corner_jacobian.shape[1]
        )


class _SplineSampler:
    """Spline interpolation of the second picture of each pair: pictures (B, h, w), `which` (E,) ascending."""

    def __init__(self, pictures: torch.Tensor, which: torch.Tensor, tiles: PictureTiles) -> None:
        # Small pictures are copied for every pair and sampled in one call; copies of large ones would leave the cache.
        copied = pictures[0].numel() <= MAX_COPIED_PIXELS * tiles.values[0].numel()
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


def _gradient_reliability(tiles: PictureTiles, shown: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """(E,) regression coefficient of the second picture's gradient on the first's."""
    own, other = (values.unflatten(-1, (tiles.side, tiles.side)) for values in (tiles.values, shown))
    both, alone = torch.zeros_like(weight), torch.zeros_like(weight)
    for step in ((..., slice(2, None), slice(1, -1)), (..., slice(1, -1), slice(2, None))):
        back = (..., *(slice(None, -2) if part == slice(2, None) else part for part in step[1:]))
        gradient = own[step] - own[back]
        both += (gradient * (other[step] - other[back])).sum((-2, -1))
        alone += gradient.square().sum((-2, -1))
    return ((weight * both).sum(1) / (weight * alone).sum(1).clamp(min=1e-12)).clamp(MIN_GRADIENT_RELIABILITY, 1)


def _block_scatter(blocks: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """(E, k, k) scatter matrix of the gradients (E, T, k) summed over blocks (E, T, blocks of 0 and 1)."""
    together = blocks.transpose(1, 2) @ gradient
    return together.transpose(1, 2) @ together
