"""A few hundred small squares of a picture that say where it is: all that a large picture is compared on.

A pose has at most eight numbers. A megapixel says nothing about them that the right fifth of it does not, so fine
levels look at *tiles*: the squares with the most structure for their noise, spread over the frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch.nn.functional import avg_pool2d

from congeal.geometry.matrix import Size
from congeal.geometry.motion import MOTIONS, n_parameters
from congeal.solvers.filters import gradient
from congeal.solvers.gaussnewton import point_motion

MOST_TILES = 256
CELLS = 4
"""Along each side: tiles are chosen in each cell of the frame by themselves, or corners would be empty."""
BLOCKS = 8
"""Along each side: errors of tiles in one block are taken to be the same error."""
_LEAST_NOISE = 0.02  # of the mean variance over the frame: no tile is quite free of noise


@dataclass(frozen=True)
class Tiles:
    """Squares of `side` pixels in a frame; corner (T, 2) are the pixels (x, y) at their top left."""

    frame: Size
    side: int
    corner: torch.Tensor

    @classmethod
    def choose(
        cls, pictures: torch.Tensor, most: int = MOST_TILES, *, frame: Size | None = None, apart: int = 1
    ) -> Tiles:
        """Of aligned pictures (B, 1, h, w) of one thing: squares where their mean has structure and they agree.

        frame: its size, if they show only some pixels of it, along each axis so far apart: a divisor of `tile_side`.
        """
        frame = frame or (pictures.shape[-2], pictures.shape[-1])
        side = tile_side(frame)
        mean = pictures.mean(0, keepdim=True) if len(pictures) > 1 else pictures
        dx, dy = gradient(mean)
        structure = avg_pool2d(dx.square() + dy.square(), side // apart)[0, 0]
        noise = torch.zeros_like(structure)
        if len(pictures) > 1:  # `var` along the first axis takes ten times as long
            noise = avg_pool2d((pictures - mean).square_().mean(0), side // apart)[0]
        worth = structure / (noise + _LEAST_NOISE * noise.mean() + 1e-9)
        rows, columns = torch.meshgrid(*(torch.arange(n) for n in worth.shape), indexing="ij")
        # Pooling leaves out what does not fill a square; the squares are set in the middle.
        rest = torch.tensor([(n % side) // 2 for n in (frame[1], frame[0])])
        cell = (rows * CELLS // worth.shape[0]) * CELLS + columns * CELLS // worth.shape[1]
        # Of each cell those worth most: sorted by worth, then by cell, and counted from where their cell begins.
        order = worth.flatten().argsort(descending=True, stable=True)
        order = order[cell.flatten()[order].argsort(stable=True)]
        own = cell.flatten()[order]
        rank = torch.arange(len(own)) - torch.searchsorted(own, own)
        chosen = order[(rank < most // CELLS**2) & (worth.flatten()[order] > 0)]
        place = torch.stack([columns.flatten()[chosen], rows.flatten()[chosen]], 1)
        return cls(frame, side, place * side + rest)

    def __len__(self) -> int:
        return len(self.corner)

    @cached_property
    def points(self) -> torch.Tensor:
        """(T · (side + 2)², 2) their pixels (x, y), with one more on every side, from which slopes are taken."""
        return (self.corner[:, None] + self.offsets).flatten(0, 1).float()

    @cached_property
    def offsets(self) -> torch.Tensor:
        """((side + 2)², 2) the same of one tile, from its corner on."""
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

    def slopes(self, values: torch.Tensor, motion: str) -> torch.Tensor:
        """(T, side², k): how a picture's values (T, side + 2, side + 2) change per unit of each motion parameter."""
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
    """Pixels along a tile: enough for a slope, small enough that some forty fit into the smallest frame."""
    longest = max(frame)
    return min(16 if longest >= 128 else 8 if longest >= 48 else 4, *frame)
