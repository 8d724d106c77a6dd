"""Tiles: a few hundred small squares with the most structure, on which large images are registered.

A pose has at most eight parameters. The best fifth of a megapixel determines them nearly as well as all of it, so fine
pyramid levels are compared on tiles only, spread over the frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch.nn.functional import avg_pool2d

from congeal.geometry.matrix import Size
from congeal.geometry.motion import MOTIONS, n_parameters
from congeal.registration.filters import gradient
from congeal.registration.gauss_newton import point_motion

MOST_TILES = 256
"""Tiles at a level: with 1,024 the error of copies of photographs falls by a tenth and the time doubles."""
CELLS = 4
"""Along each side: tiles are chosen in each cell of the frame separately, so that they cover all of it."""
BLOCKS = 8
"""Along each side: errors of tiles in one block count as one error, because neighbours err alike."""
MIN_VARIANCE_SHARE = 0.02
"""Of the mean variance over the frame, added to each tile's, so that flat tiles without noise are not chosen."""


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
