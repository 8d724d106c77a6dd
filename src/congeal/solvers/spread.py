"""How sure a pose is, by what is left of the votes of blocks once the step is taken."""

from __future__ import annotations

import math

import torch

from congeal.solvers.gaussnewton import point_motion
from congeal.solvers.tiles import Tiles

_LEAST_BLOCKS = 4.0  # that a spread is known from; with fewer its quantiles mean nothing
_ROOT_SERIES = 1 / 2, 3 / 8, 5 / 16, 35 / 128  # of (1 − x)^−½
_95_OF_100 = 1.645  # standard deviations, on one side


def corner_spread(
    left: torch.Tensor, curvature: torch.Tensor, inverse: torch.Tensor, corner: torch.Tensor
) -> torch.Tensor:
    """(B,) standard error of where corners lie, in frame pixels: half of what their mean distance stays below in 95 of
    100 cases.

    left (B, blocks, k): what blocks vote for once the step is taken; curvature (B, blocks, k, k) of each; inverse
    (B, k, k) of the curvature of all; corner (k, 8) or (B, k, 8): how corners move with each parameter.
    """
    # The step was fitted to these very blocks, most to those that know most of it: what a block with a share L of the
    # curvature has left is (I − L)^½ of what it had (CR2 of Bell and McCaffrey). By its series.
    share = curvature @ inverse[:, None]
    more, had = left, left.clone()
    for factor in _ROOT_SERIES:
        more = (share @ more[..., None])[..., 0]
        had += factor * more
    spread = corner.transpose(-1, -2) @ inverse @ torch.einsum("bck,bcl->bkl", had, had) @ inverse @ corner
    # Corners of a translation err all alike, in two directions; those of a homography in up to eight, of which large
    # ones and small ones make up for each other. χ² with as many freedoms as there are (Satterthwaite), its quantile
    # by Wilson and Hilferty.
    along = torch.diagonal(spread, dim1=-2, dim2=-1).mean(-1)
    freedoms = (64 * along.square() / spread.square().sum((1, 2)).clamp(min=1e-30)).clamp(1.0, 8.0)
    width = 2 / (9 * freedoms)
    quantile = (1 - width + _95_OF_100 * width.sqrt()) ** 3  # of the mean square
    # The spread itself is known from so many blocks only: F instead of χ², to the first order.
    squares = (corner @ corner.transpose(-1, -2)).expand_as(inverse)
    says = torch.einsum("bkl,bclm,bmk->bc", inverse, share, squares)
    blocks = (says.sum(1).square() / says.square().sum(1).clamp(min=1e-30)).clamp(min=_LEAST_BLOCKS)
    quantile = quantile * (1 + (freedoms * (quantile - 1) + 2) / (2 * blocks))
    return (quantile / 4 * _mean_distance_squared(spread)).sqrt()


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


def curvature_in_blocks(tiles: Tiles, weight: torch.Tensor, curvature: torch.Tensor) -> torch.Tensor:
    """(B, blocks, k, k): curvatures (T, k, k) of each block's tiles together, weighed by (B, T)."""
    flat, members = curvature.flatten(1), tiles.blocks.T > 0
    return torch.stack([weight[:, own] @ flat[own] for own in members], 1).unflatten(2, curvature.shape[1:])


def motion_squares(tiles: Tiles, motion: str) -> torch.Tensor:
    """(T, k, k): products of how a pixel in the middle of each tile moves with two parameters."""
    fields = point_motion(tiles.corner.double() + (tiles.side - 1) / 2, tiles.frame, motion)
    return torch.einsum("kti,lti->tkl", fields, fields)


def lengthened(curvature: torch.Tensor, noise: torch.Tensor, least: float) -> torch.Tensor:
    """(n, k, k): what makes steps by curvatures (n, k, k), which are part noise and so too short, as long as by what is
    real of them; least: as `real_enough`. Where an image shows too little to be held in every direction, nothing."""
    held = (torch.linalg.cholesky_ex(_damped(curvature)).info == 0)[:, None, None]
    some = torch.where(held, curvature, torch.eye(curvature.shape[-1], dtype=curvature.dtype))
    return torch.linalg.solve(real_enough(some, noise * held, least), some)


def _damped(curvature: torch.Tensor) -> torch.Tensor:
    own = torch.diagonal(curvature, dim1=-2, dim2=-1)
    return curvature + torch.diag_embed(1e-9 * own + 1e-12)


def real_enough(curvature: torch.Tensor, noise: torch.Tensor, least: float) -> torch.Tensor:
    """What is real of curvatures (n, k, k), given what of them is noise; in no direction less than a share of it."""
    root = torch.linalg.cholesky(_damped(curvature))
    relative = torch.linalg.solve_triangular(root, noise, upper=False)
    relative = torch.linalg.solve_triangular(root, relative.transpose(-1, -2), upper=False)
    share, ways = torch.linalg.eigh((relative + relative.transpose(-1, -2)) / 2)
    ways = root @ ways
    return (ways * (1 - share).clamp(min=least)[..., None, :]) @ ways.transpose(-1, -2)
