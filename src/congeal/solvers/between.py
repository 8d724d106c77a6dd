"""What sampling between pixels does to poses, and what votes are free of it.

A value between two pixels, at the share x of the way, shows what is at x − w² x (1 − x) (1 − 2x) / 6, w being the
frequency of what is there: the third cumulant of the two weights of bilinear sampling. Steps end where that looks
right. If a picture is turned, x differs from tile to tile and little is left of it; if it is only shifted, all tiles
err alike.
"""

from __future__ import annotations

import math

import torch

from congeal.geometry import map_points
from congeal.geometry.matrix import corners
from congeal.solvers.gaussnewton import point_motion
from congeal.solvers.level import Level

_FIFTH = 0.054  # of w⁴ that w² has to be more by, for the fifth cumulant: 1/20, and what a sine of x has of it
_LEFT = 0.0002, 0.0011  # pixels along an axis, and as much times the square of the roughness: what is left of the bias
# at most, once it is taken off. Chosen on shifted copies and stacks of DEVELOP in benchmarks/everyday_sets.py


class Between:
    """How sampling between pixels moves poses towards a level in one motion."""

    def __init__(self, level: Level, motion: str) -> None:
        self.level, tiles = level, level.tiles
        self.pixel = tiles.corner.double() + tiles.side // 2  # one in each tile stands for all
        template = level.template[level.count > 0]
        bends, more, slopes = bending(template, template)
        common = level.plain
        if common is None:
            common = torch.cat([bends.new_ones(1), roughness(bends, more, slopes)])
        self.left = _LEFT[0] + _LEFT[1] * float(common[1:].mean()) ** 2
        """Pixels along an axis that a picture which is only shifted may still err by; a largest value, without
        tails."""
        by_slopes, by_bends = _by_tile(level.template)
        # Noise bends a template as well.
        by_bends *= common[0] * common[1:] * slopes / bends.clamp(min=1e-12)
        self._fields = point_motion(self.pixel, tiles.frame, motion)  # (k, T, 2)
        self._slopes, self._bends = (torch.einsum("kti,tij->tkj", self._fields, one) for one in (by_slopes, by_bends))
        self._corner = point_motion(torch.as_tensor(corners(tiles.frame)).double(), tiles.frame, motion).flatten(1)

    def votes(self, poses: torch.Tensor) -> torch.Tensor:
        """(n, T, k): what tiles have to vote for besides what they see at poses (n, 3, 3), to be free of it."""
        where = map_points(poses, self.pixel)  # (n, T, 2)
        share = where - where.floor()
        bias = share * (1 - share) * (1 - 2 * share) / 6 * self._lasting(poses, where)
        return torch.einsum("tkj,ntj->ntk", self._bends, bias)

    def _lasting(self, poses: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        """(n, T, 2): of what one pixel of a tile says of it, how much is left in the mean of all its pixels, which are
        not at the same place between pixels if a picture is turned or scaled."""
        lasting = torch.ones_like(where)
        for step in torch.eye(2, dtype=torch.float64):
            lasting *= torch.sinc((map_points(poses, self.pixel + step) - where - step) * self.level.tiles.side)
        return lasting

    def alike(self, poses: torch.Tensor) -> torch.Tensor:
        """(n,) how far it looks like a motion of the frame's corners: 1 if a picture is only shifted and all tiles err
        alike, next to nothing if it is turned or scaled by much."""
        weight = ((self.level.count > 0) / self.level.noise).double()
        inverse = torch.linalg.pinv(torch.einsum("t,tkj,ltj->kl", weight, self._slopes, self._fields))
        where = map_points(poses, self.pixel)
        turns, lasting = 2 * math.pi * where, self._lasting(poses, where)  # where between pixels, as a phase
        phases = torch.stack([turns.cos(), turns.sin()]) * lasting
        pulls = torch.einsum("t,tkj,pntj->pnk", weight, self._slopes, phases)
        return (pulls @ inverse @ self._corner).square().sum(0).mean(1).sqrt()


def roughness(bends: torch.Tensor, more: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    """(2,) mean square frequency along x and y, in (radians per pixel)², and a little more for the fifth cumulant, of
    what `bending` gives."""
    return (bends + _FIFTH * more).clamp(min=0) / slopes.clamp(min=1e-12)


def bending(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What two pictures on tiles (T, side + 2, side + 2) have in common of their bends, of how these change, and of
    their slopes, along x and y, (2,) each. Of waves of frequency w the first two by the last are w² and w⁴.

    A slope's w² comes out as sin² w if its ends are two pixels apart, as 4 sin²(w/2) between neighbours; the w⁴ of
    bends as 16 sin⁴(w/2). A third of the first and two thirds of the second lack as much of it as bends do.
    """
    both = []
    for axis in (2, 1):
        a, b = (tiles.narrow(3 - axis, 1, tiles.shape[1] - 2).diff(dim=axis) for tiles in (one, other))
        last = a.shape[axis] - 1
        (a0, a1), (b0, b1) = ((x.narrow(axis, 0, last), x.narrow(axis, 1, last)) for x in (a, b))
        near, far = _common(a0, b0) + _common(a1, b1), _common(a0 + a1, b0 + b1)
        bent = a1 - a0, b1 - b0
        more = _common(*(x.diff(dim=axis) for x in bent))
        both.append(torch.stack([_common(*bent), more, far / 12 + near / 3]))
    bends, more, slopes = torch.stack(both, 1)
    return bends, more, slopes


def _common(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a * b).nansum(dtype=torch.float64)


def _by_tile(template: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(T, 2, 2) each: products of slopes along x and y, and what bends along x and y pull with at these slopes."""
    middle, before, after = slice(1, -1), slice(None, -2), slice(2, None)
    here, left, right = (template[:, middle, columns] for columns in (middle, before, after))
    above, below = (template[:, rows, middle] for rows in (before, after))
    x, y, xx, yy = (right - left) / 2, (below - above) / 2, left - 2 * here + right, above - 2 * here + below
    xy = template[:, after, after] - template[:, after, before] - template[:, before, after]
    xy = (xy + template[:, before, before]) / 4
    usable = (xx + yy).isfinite()
    x, y, xx, yy, xy = (one.where(usable, 0.0).nan_to_num() for one in (x, y, xx, yy, xy))
    slopes, bends = ((x, x), (x, y), (x, y), (y, y)), ((xx, xx), (xy, yy), (xy, xx), (yy, yy))
    products = [[(a * b).sum((1, 2), dtype=torch.float64) for a, b in pairs] for pairs in (slopes, bends)]
    by_slopes, by_bends = (torch.stack(one, 1).view(-1, 2, 2) for one in products)
    return by_slopes, by_bends
