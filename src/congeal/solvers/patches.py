"""What is kept of pictures that others are registered to: tiles of each, where it has the most structure.

Tiles lie on one grid for all pictures of a size, so that those of several pictures are found, cut out and compared in
one go: at working size an operation on one picture takes no longer than the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch.nn.functional import avg_pool2d, one_hot, pad

from congeal.geometry.matrix import Size
from congeal.solvers.contrast import REACH
from congeal.solvers.gaussnewton import point_motion
from congeal.solvers.tiles import BLOCKS, CELLS, tile_side

TILES, LARGE_TILES = 96, 64
"""Of a picture, at most, that others are compared with; of a large one, whose tiles have 256 pixels each."""
RIM = REACH
"""Of the longer side: so near to an edge local contrast depends on where the edge is, which does not move."""


@dataclass(frozen=True)
class Patches:
    """T tiles of P pixels of each of B pictures.

    Attributes
    ----------
    frame : (height, width)
        Of the pictures.
    side : int
        Of a tile, in pixels.
    corner : (B, T, 2) tensor of int64
        Pixels (x, y) at their top left.
    real : (B, T) tensor of bool
        False where a picture has less structure than tiles.
    wanted : (B, T, P) tensor
        What they show.
    slopes : (B, T, k, P) tensor
        How that changes per unit of each parameter.
    curvature : (B, T, k, k) tensor
        Their products.
    """

    frame: Size
    side: int
    corner: torch.Tensor
    real: torch.Tensor
    wanted: torch.Tensor
    slopes: torch.Tensor
    curvature: torch.Tensor

    @classmethod
    def of(cls, pictures: torch.Tensor, motion: str, most: int = TILES) -> Patches:
        """Of local contrast (B, h, w)."""
        frame = (pictures.shape[1], pictures.shape[2])
        grid = _grid(frame, most)
        wide = pad(pictures[:, None], (1, 1, 1, 1), mode="replicate")[:, 0]
        row, column, real = grid.choose(wide)
        side, (left, top) = grid.side, grid.rest
        windows = wide[:, top:, left:].unfold(1, side + 2, side).unfold(2, side + 2, side)
        values = windows[torch.arange(len(pictures))[:, None], row, column]  # (B, T, side + 2, side + 2)
        dx = (values[..., 1:-1, 2:] - values[..., 1:-1, :-2]).flatten(2) / 2
        dy = (values[..., 2:, 1:-1] - values[..., :-2, 1:-1]).flatten(2) / 2
        corner = torch.stack([column * side + left, row * side + top], -1)
        points = corner[:, :, None] + _steps(side)
        along = point_motion(points.flatten(0, 2).float(), frame, motion).unflatten(1, dx.shape)  # (k, B, T, P, 2)
        slopes = torch.addcmul(dx * along[..., 0], dy, along[..., 1]).permute(1, 2, 0, 3).contiguous()
        curvature = (slopes @ slopes.transpose(2, 3)).double()
        return cls(frame, side, corner, real, values[..., 1:-1, 1:-1].flatten(2), slopes, curvature)

    def __len__(self) -> int:
        return len(self.corner)

    def one(self, k: int) -> Patches:
        """Those of picture k alone."""
        return Patches(self.frame, self.side, *(values[k : k + 1] for values in self._arrays()))

    @classmethod
    def joined(cls, some: Sequence[Patches]) -> Patches:
        """Those of all of these, of pictures of one size."""
        arrays = zip(*(patches._arrays() for patches in some), strict=True)
        return cls(some[0].frame, some[0].side, *(torch.cat(parts) for parts in arrays))

    def _arrays(self) -> tuple[torch.Tensor, ...]:
        return self.corner, self.real, self.wanted, self.slopes, self.curvature

    def places(self, matrices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
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
        """Of values (B, T, P) those at the corners of each tile, (B, T, 4)."""
        last = max(1, self.side - 1)
        return values.unflatten(2, (self.side, self.side))[..., ::last, ::last].flatten(2)

    def blocks(self) -> torch.Tensor:
        """(B, T, blocks) of 0 and 1: which block of the frame a tile is in."""
        height, width = self.frame
        column, row = self.corner[..., 0] * BLOCKS // width, self.corner[..., 1] * BLOCKS // height
        return one_hot(row * BLOCKS + column, BLOCKS**2).double() * self.real[..., None]


@lru_cache(maxsize=8)
def _steps(side: int) -> torch.Tensor:
    """(P, 2) pixels (x, y) of a tile from its corner, row by row."""
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    return torch.stack([x.flatten(), y.flatten()], 1)


class _Grid:
    """Squares side by side in a frame, in cells of which each gives as many tiles: else corners would be empty."""

    def __init__(self, frame: Size, most: int) -> None:
        self.side = side = tile_side(frame)
        self.columns = frame[1] // side
        rows = frame[0] // side
        # What does not fill a square is left out; the squares are set in the middle.
        self.rest = left, top = (frame[1] % side) // 2, (frame[0] % side) // 2
        margin = RIM * max(frame)
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
        # A frame without any square that counts has one that does not.
        self.cell, self.rank = torch.tensor(ranks or [(0, 0)]).T

    def choose(self, wide: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rows, columns and which are real (B, T), of pictures with a rim of one pixel (B, h + 2, w + 2)."""
        dx = wide[:, 1:-1, 2:] - wide[:, 1:-1, :-2]
        dy = wide[:, 2:, 1:-1] - wide[:, :-2, 1:-1]
        structure = avg_pool2d(dx.square_().addcmul_(dy, dy)[:, None], self.side).flatten(1)
        worth = structure[:, self.candidates.clamp(min=0)].masked_fill(self.candidates < 0, -1.0)
        order = worth.sort(dim=2, descending=True, stable=True)
        place = self.candidates[self.cell, order.indices[:, self.cell, self.rank]].clamp(min=0)
        return place // self.columns, place % self.columns, order.values[:, self.cell, self.rank] > 0


_grid = lru_cache(maxsize=16)(_Grid)
