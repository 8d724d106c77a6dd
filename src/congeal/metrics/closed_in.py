"""On which sides is a place closed in by ink?

An eight has every piece of a three, and bent a little it is like one pixel by pixel. But the bays of a three are open
to the left, and those of an eight are closed. Hands differ in how they draw a stroke, less in what it encloses.
"""

from __future__ import annotations

from itertools import product

import torch
from torch.nn.functional import avg_pool2d

from congeal.metrics.limits import CLOSED_CELL, CLOSED_SIDES, FULL_INK

_LEAST = 1e-6


def closed_in(pictures: torch.Tensor) -> torch.Tensor:
    """(N,11,h',w') of objects (N,C,h,w): for each way of being closed in on several of four sides, how much cells are.

    A place counts as far as it has no ink of its own. Cells overlap, so that a stroke may lie a pixel elsewhere.
    """
    grey = pictures.mean(1)
    full = grey.flatten(1).quantile(FULL_INK, dim=1).clamp(min=_LEAST)[:, None, None]
    ink = (grey / full).clamp(0, 1)
    behind = [_up_to(ink, axis, back) for axis in (1, 2) for back in (False, True)]
    cell = [min(CLOSED_CELL, side) for side in ink.shape[1:]]
    ways = []
    for sides in product((False, True), repeat=4):
        if sum(sides) >= CLOSED_SIDES:
            way = 1 - ink
            for closed, most in zip(sides, behind, strict=True):
                way = way * (most if closed else 1 - most)
            ways.append(avg_pool2d(way, cell, [max(1, side // 2) for side in cell]))
    return torch.stack(ways, 1)


def _up_to(ink: torch.Tensor, axis: int, back: bool) -> torch.Tensor:
    """The most ink (N,h,w) from each place to the border in one direction, its own included."""
    if back:
        return _up_to(ink.flip(axis), axis, back=False).flip(axis)
    return ink.cummax(axis).values
