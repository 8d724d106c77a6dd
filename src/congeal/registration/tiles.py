"""Tiles: a few hundred small squares with the most structure, on which large images are registered.

A pose has at most eight parameters. The best fifth of a megapixel determines them nearly as well as all of it, so fine
pyramid levels are compared on tiles only, spread over the frame.

    r = I∘H − T      δ = A⁻¹ Σ wₜ Jₜᵀrₜ,  A = Σ wₜ JₜᵀJₜ      cov δ = A⁻¹ B A⁻¹,  B = Σ_blocks g gᵀ

T is the mean of the *other* images (leave-one-out), so that no image is compared with itself. A tile weighs by the
inverse of the variance of the set there, and less where the residual of one image is an outlier (Student's t).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch.nn.functional import avg_pool2d

from congeal.filters import gradient
from congeal.geometry.matrix import Size, corners
from congeal.geometry.motion import MOTIONS, n_parameters
from congeal.registration.gauss_newton import GaussNewton, point_motion

MOST_TILES = 256
"""Tiles at a level: with 1,024 the error of copies of photographs falls by a tenth and the time doubles."""
CELLS = 4
"""Along each side: tiles are chosen in each cell of the frame separately, so that they cover all of it."""
BLOCKS = 8
"""Along each side: errors of tiles in one block count as one error, because neighbours err alike."""
MIN_VARIANCE_SHARE = 0.02
"""Of the mean variance over the frame, added to each tile's: no flat tile without noise is chosen, nor outweighs all
others."""
RESIDUAL_FREEDOM = 4.0
"""Degrees of freedom of Student's t-distribution of a tile's residuals, a usual value for heavy tails."""
MIN_TILES = 6
"""An image that covers fewer tiles is not moved: a homography needs four points, and two more to tell its error."""
DAMPING = 1e-4
"""Relative damping of the Hessian, which keeps it invertible where an image has structure along one axis only."""
MIN_COVERAGE = 0.25
"""Share of the images that must cover a tile; with fewer the leave-one-out mean is made of too few images."""
SAMPLING_ERROR_PX = 0.005
"""Standard error that bilinear sampling leaves without any noise, from copies of four photographs (DEVELOP in
benchmarks/everyday_sets.py) at the resolution of the originals."""
REDUCTION_ERROR_PX = 0.0125
"""The same at a level whose images are reduced ones, from the same copies."""
BAR_FACTOR = 0.75
"""From the root mean square displacement of the corners to the stated uncertainty, twice which 95 % of the mean corner
displacements stay below: 0.87 for two degrees of freedom, 0.65 for eight; one value for all motions."""


@dataclass(frozen=True)
class Tiles:
    """Squares of `side` pixels in a frame; corner (T, 2) are the pixels (x, y) at their top left."""

    frame: Size
    side: int
    corner: torch.Tensor

    @classmethod
    def choose(cls, pictures: torch.Tensor, most: int = MOST_TILES) -> Tiles:
        """Tiles of aligned pictures (B, 1, h, w) of one object: where their mean has structure and they agree."""
        frame = (pictures.shape[-2], pictures.shape[-1])
        side = tile_side(frame)
        mean = pictures.mean(0, keepdim=True) if len(pictures) > 1 else pictures
        dx, dy = gradient(mean)
        structure = avg_pool2d(dx.square() + dy.square(), side)[0, 0]
        noise = torch.zeros_like(structure)
        if len(pictures) > 1:  # `var` along the first axis takes ten times as long
            noise = avg_pool2d((pictures - mean).square_().mean(0), side)[0]
        worth = structure / (noise + MIN_VARIANCE_SHARE * noise.mean() + 1e-9)
        rows, columns = torch.meshgrid(*(torch.arange(n) for n in worth.shape), indexing="ij")
        # Pooling drops incomplete squares; the grid of squares is centred.
        margin = torch.tensor([(n % side) // 2 for n in (frame[1], frame[0])])
        cell = (rows * CELLS // worth.shape[0]) * CELLS + columns * CELLS // worth.shape[1]
        # The best squares of each cell: sorted by worth, then by cell, and ranked from the start of their cell.
        order = worth.flatten().argsort(descending=True, stable=True)
        order = order[cell.flatten()[order].argsort(stable=True)]
        own = cell.flatten()[order]
        rank = torch.arange(len(own)) - torch.searchsorted(own, own)
        chosen = order[(rank < most // CELLS**2) & (worth.flatten()[order] > 0)]
        place = torch.stack([columns.flatten()[chosen], rows.flatten()[chosen]], 1)
        return cls(frame, side, place * side + margin)

    def __len__(self) -> int:
        return len(self.corner)

    @cached_property
    def points(self) -> torch.Tensor:
        """(T · (side + 2)², 2) their pixels (x, y), with a rim of one pixel, for gradients."""
        return (self.corner[:, None] + self.offsets).flatten(0, 1).float()

    @cached_property
    def offsets(self) -> torch.Tensor:
        """((side + 2)², 2) the same of one tile, relative to its corner."""
        steps = torch.arange(-1, self.side + 1)
        y, x = torch.meshgrid(steps, steps, indexing="ij")
        return torch.stack([x.flatten(), y.flatten()], 1)

    @cached_property
    def rim(self) -> torch.Tensor:
        """(T · 4, 2) the outermost of these pixels, at the corners."""
        last = self.side
        offsets = torch.tensor([[-1, -1], [last, -1], [-1, last], [last, last]])
        return (self.corner[:, None] + offsets).flatten(0, 1).float()

    def inner(self, values: torch.Tensor) -> torch.Tensor:
        """(..., T, side + 2, side + 2) without the rim → (..., T, side²)."""
        return values[..., 1:-1, 1:-1].flatten(-2)

    def jacobian(self, values: torch.Tensor, motion: str) -> torch.Tensor:
        """(T, side², k) derivatives of values (T, side + 2, side + 2) by the motion parameters."""
        dx = (values[:, 1:-1, 2:] - values[:, 1:-1, :-2]).flatten(1) / 2
        dy = (values[:, 2:, 1:-1] - values[:, :-2, 1:-1]).flatten(1) / 2
        along_x, along_y = self._fields[:, : n_parameters(motion)]
        change = torch.addcmul(dx.flatten() * along_x, dy.flatten(), along_y)
        return change.view(len(change), len(self), self.side**2).permute(1, 2, 0).contiguous()

    @cached_property
    def _fields(self) -> torch.Tensor:
        """(2, 8, T · side²): how their pixels move along x and y per unit of each parameter, in the largest motion.

        The parameters of smaller motions come first.
        """
        rim = self.points.view(len(self), self.side + 2, self.side + 2, 2)
        return point_motion(rim[:, 1:-1, 1:-1].flatten(0, 2), self.frame, MOTIONS[-1]).permute(2, 0, 1).contiguous()

    @cached_property
    def blocks(self) -> torch.Tensor:
        """(T, blocks) of 0 and 1: which block of the frame a tile is in."""
        height, width = self.frame
        column = self.corner[:, 0] * BLOCKS // width
        row = self.corner[:, 1] * BLOCKS // height
        return torch.nn.functional.one_hot(row * BLOCKS + column, BLOCKS**2).float()


def tile_side(frame: Size) -> int:
    """Pixels along a tile: enough for a gradient, small enough that some forty fit into the smallest frame."""
    longest = max(frame)
    return min(16 if longest >= 128 else 8 if longest >= 48 else 4, *frame)


@dataclass(frozen=True)
class TileTemplate:
    """The mean of a set on tiles at one pyramid level."""

    tiles: Tiles
    mean: torch.Tensor  # (T, side + 2, side + 2), with a rim of one pixel, for gradients
    variance: torch.Tensor  # (T,) mean variance of the images about it
    count: torch.Tensor  # (T,) how many images each tile was made of; 0 where too few cover it
    sampling_error: float  # standard error that no pose can be without, in frame pixels

    @property
    def frame(self) -> Size:
        """(height, width) of the frame at this level."""
        return self.tiles.frame


class TileSums:
    """Running sums over images from which a `TileTemplate` is made."""

    def __init__(self, tiles: Tiles, sampling_error: float) -> None:
        self.tiles, self.sampling_error, self.images = tiles, sampling_error, 0
        self.sum = torch.zeros(len(tiles), tiles.side + 2, tiles.side + 2, dtype=torch.float64)
        self.squares, self.weight = (torch.zeros(len(tiles), dtype=torch.float64) for _ in range(2))

    def add(self, values: torch.Tensor, covered: torch.Tensor) -> None:
        """Add images on tiles (B, T, side + 2, side + 2), and which tiles they cover (B, T)."""
        covered = covered.double()
        self.sum += torch.einsum("btij,bt->tij", values.double(), covered)
        self.squares += (self.tiles.inner(values).double().square().mean(2) * covered).sum(0)
        self.weight += covered.sum(0)
        self.images += len(values)

    def template(self) -> TileTemplate:
        """The template of all images so far."""
        count = self.weight.clamp(min=1)
        mean = self.sum / count[:, None, None]
        used = self.weight >= max(2, MIN_COVERAGE * self.images)
        variance = (self.squares / count - self.tiles.inner(mean).square().mean(1)).clamp(min=0)
        variance = variance * count / (count - 1).clamp(min=1)
        usual = (variance * used).sum() / used.sum().clamp(min=1)
        variance = variance + MIN_VARIANCE_SHARE * usual + 1e-9
        return TileTemplate(
            self.tiles, mean.float(), variance.float(), (self.weight * used).float(), self.sampling_error
        )


@dataclass(frozen=True)
class TileSteps:
    """Gauss-Newton steps of B images. Images that cover too few tiles have a step of 0 and an error of NaN."""

    delta: torch.Tensor  # (B, k) the step, in motion parameters
    error: torch.Tensor  # (B,) standard error of the position of the frame's corners, in frame pixels
    correlation: torch.Tensor  # (B,) normalised correlation with the mean of the others


class TileSolver:
    """Registers images to a `TileTemplate` in one motion."""

    def __init__(self, template: TileTemplate, motion: str) -> None:
        self.template, self.tiles = template, template.tiles
        self.newton = GaussNewton(motion, template.frame, damping=DAMPING)
        # In float64, so that an image gets the same step in any batch.
        self.jacobian = self.tiles.jacobian(template.mean, motion).double()  # (T, P, k)
        self.hessian = self.jacobian.transpose(1, 2) @ self.jacobian  # (T, k, k)
        self.inner = self.tiles.inner(template.mean)
        corner = point_motion(torch.as_tensor(corners(template.frame)).double(), template.frame, motion)
        self.corner_jacobian = corner.flatten(1)  # (k, 8)

    def solve(self, values: torch.Tensor, covered: torch.Tensor, member: torch.Tensor) -> TileSteps:
        """One step for images on tiles (B, T, side + 2, side + 2) that cover (B, T) of them; member (B,) bool: which
        images are part of the template."""
        shown, residual = self._residual(values, member)
        covered = covered * (self.template.count > 0)
        squared = residual.square().mean(2)
        weight = covered * (RESIDUAL_FREEDOM + 1) / (RESIDUAL_FREEDOM * self.template.variance + squared)
        weight = weight.double()
        gradient, inverse = self._gradient(residual, weight)
        delta = (inverse @ gradient.sum(1)[..., None])[..., 0]
        known = covered.sum(1) >= MIN_TILES
        error = self._corner_error(gradient, weight, inverse, delta)
        error = torch.where(known, error.square().add(self.template.sampling_error**2).sqrt(), torch.nan)
        likeness = _correlation(shown, shown - residual, covered / self.template.variance)
        return TileSteps(torch.where(known[:, None], delta, 0.0), error, likeness)

    def _corner_error(
        self, gradient: torch.Tensor, weight: torch.Tensor, inverse: torch.Tensor, delta: torch.Tensor
    ) -> torch.Tensor:
        """(B,) standard error of a corner's position: sandwich covariance over blocks of tiles, as by the jackknife."""
        blocks = self.tiles.blocks.double()
        hessian = torch.einsum("bt,tkl,tc->bckl", weight, self.hessian, blocks)
        remainder = torch.einsum("btk,tc->bck", gradient, blocks) - (hessian @ delta[:, None, :, None])[..., 0]
        # A block that determines much of the step hides as much of its own residual (CR3).
        leverage = torch.eye(hessian.shape[-1], dtype=torch.float64) - hessian @ inverse[:, None]
        remainder = torch.linalg.solve(leverage + 1e-9 * torch.eye(hessian.shape[-1]).double(), remainder)
        middle = torch.einsum("bck,bcl->bkl", remainder, remainder)
        covariance = self.corner_jacobian.T @ inverse @ middle @ inverse @ self.corner_jacobian
        return BAR_FACTOR * (covariance.diagonal(dim1=1, dim2=2).sum(1) / 4).clamp(min=0).sqrt()

    def explained_variance(
        self, values: torch.Tensor, covered: torch.Tensor, member: torch.Tensor, variance: torch.Tensor
    ) -> torch.Tensor:
        """(B,) share of each image's variance that the others explain, corrected for overfitting.

        More parameters always fit the pixels at hand better; by Takeuchi's criterion they fit other pixels worse by
        tr(A⁻¹B). variance (T,): the same for all motions that are compared.
        """
        shown, residual = self._residual(values, member)
        weight = (covered * (self.template.count > 0) / variance).double()
        gradient, inverse = self._gradient(residual, weight)
        blocks = torch.einsum("btk,tc->bck", gradient, self.tiles.blocks.double())
        overfit = torch.einsum("bkl,blk->b", inverse, torch.einsum("bck,bcl->bkl", blocks, blocks))
        unexplained, total = (weight * part.double().square().sum(2) / 2 for part in (residual, shown))
        everything = total.sum(1).clamp(min=1e-9)
        return 1 - (unexplained.sum(1) + overfit) / everything

    def _residual(self, values: torch.Tensor, member: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Values without the rim (B, T, P), and their difference to the mean of the other images."""
        shown, count = self.tiles.inner(values), self.template.count
        leave_one_out = torch.where(member[:, None], count / (count - 1).clamp(min=1), 1.0)
        return shown, (shown - self.inner) * leave_one_out[..., None]

    def _gradient(self, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradient of each tile (B, T, k), and the inverse of the Hessian (B, k, k)."""
        gradient = torch.einsum("tpk,btp->btk", self.jacobian, residual.double())
        inverse = self.newton.damped_inverse(torch.einsum("bt,tkl->bkl", weight, self.hessian))
        return gradient * weight[..., None], inverse


def _correlation(a: torch.Tensor, b: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """(B,) of pictures (B, T, P), tiles weighed by (B, T)."""
    both, own_a, own_b = ((weight * (x * y).sum(2)).sum(1) for x, y in ((a, b), (a, a), (b, b)))
    return both / (own_a * own_b).sqrt().clamp(min=1e-9)
