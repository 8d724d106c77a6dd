"""What sampling between pixels does to poses, and what votes are free of it.

A value between two pixels, at the share x of the way, shows what is at x − w² x (1 − x) (1 − 2x) / 6, w being the
frequency of what is there: the third cumulant of the two weights of bilinear sampling. Steps end where that looks
right. If a picture is turned, x differs from tile to tile and little is left of it; if it is only shifted, all tiles
err alike. Along x it also depends on y, where what is seen is slanted. And such a value is blurred, by the second
cumulant, x (1 − x): that moves nothing, unless only one side of an edge is compared.
"""

from __future__ import annotations

import math

import torch
from torch.nn.functional import pad

from congeal.geometry import map_points
from congeal.geometry.matrix import corners
from congeal.solvers.gaussnewton import point_motion
from congeal.solvers.level import Level

_FIFTH = 10.5  # of x (1 − x), in the fifth cumulant: 12 for one wave. Of many, those that are blurred count for less
_LEFT = 0.0003  # pixels along an axis: what is left of the bias at most, once it is taken off, …
_LEFT_OF_ROUGH = {False: 0.002, True: 0.0005}  # … and more, times the square of the roughness; plain values: True.
# Chosen on shifted copies of nine photographs (docs/experiments.md).


class Between:
    """How sampling between pixels moves poses towards a level in one motion."""

    def __init__(self, level: Level, motion: str) -> None:
        self.level, tiles = level, level.tiles
        self.pixel = tiles.corner.double() + tiles.side // 2  # one in each tile stands for all
        self.left = _LEFT + _LEFT_OF_ROUGH[level.plain] * float(level.common.roughness.mean()) ** 2
        """Pixels along an axis that a picture which is only shifted may still err by; a largest value, without
        tails."""
        slopes, bends, ends, blurs = _by_tile(level.template)
        # Noise bends a template as well …
        scale = level.common.slopes / bends[level.count > 0].diagonal(dim1=1, dim2=2).sum(0).clamp(min=1e-12)
        # … and slopes over two pixels miss some of what is there.
        wave = level.common.frequency
        bend = 2 - 2 * wave.cos()
        missed = 3 * wave * bend / (wave.sin() * (wave.sin().square() + 2 * bend))
        bends = (bends * torch.where(torch.eye(2, dtype=torch.bool), 1.0, missed) - ends * missed) * scale
        self._fields = point_motion(self.pixel, tiles.frame, motion)  # (k, T, 2)
        self._slopes, self._bends, self._blurs = (
            torch.einsum("kti,tij->tkj", self._fields, one) for one in (slopes, bends, blurs * wave.square() / bend)
        )
        self._corner = point_motion(torch.as_tensor(corners(tiles.frame)).double(), tiles.frame, motion).flatten(1)

    def votes(self, poses: torch.Tensor) -> torch.Tensor:
        """(n, T, k): what tiles have to vote for besides what they see at poses (n, 3, 3), to be free of it."""
        where = map_points(poses, self.pixel)  # (n, T, 2)
        share = where - where.floor()
        both, common = share * (1 - share), self.level.common
        squares = common.roughness + (_FIFTH * both - 1) / 20 * common.fourth
        lasting = self._lasting(poses, where)
        bias = both * (1 - 2 * share) / 6 * squares * lasting
        blur = (both - 1 / 6) / 2 * lasting
        return torch.einsum("tkj,ntj->ntk", self._bends, bias) - torch.einsum("tkj,ntj->ntk", self._blurs, blur)

    def _lasting(self, poses: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        """(n, T, 2): of what one pixel of a tile says of it, how much is left in the mean of all its pixels, which are
        not at the same place between pixels if a picture is turned or scaled."""
        lasting = torch.ones_like(where)
        for step in torch.eye(2, dtype=torch.float64):
            lasting *= torch.sinc((map_points(poses, self.pixel + step) - where - step) * self.level.tiles.side)
        return lasting

    def bar(self, noise: torch.Tensor, alike: torch.Tensor, least: float | None = None) -> torch.Tensor:
        """(n,) error bars of poses, from what of their errors is noise (n,) and what `alike` says of them (n,). least:
        pixels that shifted pictures err by, if not by what is left of sampling."""
        # Steps of a rough picture are too long, because it is steeper than slopes over two pixels say; where they end,
        # noise counts for less by as much. If a picture is turned, what sampling does to each tile takes its place.
        noise = noise * torch.lerp(torch.ones_like(alike), alike.new_tensor(1 / self.level.common.gain), alike)
        return torch.hypot(noise, alike * (self.left if least is None else least))

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


def _by_tile(template: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(T, 2, 2) each, of slopes along x and y with: themselves; what bends along x and y change by, as the product of
    bends that it is by parts; what that leaves where usable pixels end; and bends."""
    middle, before, after = slice(1, -1), slice(None, -2), slice(2, None)
    here, left, right = (template[:, middle, columns] for columns in (middle, before, after))
    above, below = (template[:, rows, middle] for rows in (before, after))
    x, y, xx, yy = (right - left) / 2, (below - above) / 2, left - 2 * here + right, above - 2 * here + below
    xy = template[:, after, after] - template[:, after, before] - template[:, before, after]
    xy = (xy + template[:, before, before]) / 4
    usable = (xx + yy).isfinite()
    x, y, xx, yy, xy = (one.where(usable, 0.0).nan_to_num() for one in (x, y, xx, yy, xy))
    products = (x * x, x * y, x * y, y * y), (xx * xx, xy * yy, xy * xx, yy * yy), (x * xx, x * yy, y * xx, y * yy)
    slopes, bends, blurs = (torch.stack([one.sum((1, 2), dtype=torch.float64) for one in four], 1) for four in products)
    ends = torch.zeros_like(blurs)
    if not usable.all():
        by_axis = zip(products[2], (2, 1, 2, 1), strict=True)
        ends = torch.stack([_at_ends(one, usable, axis) for one, axis in by_axis], 1)
    return slopes.view(-1, 2, 2), bends.view(-1, 2, 2), ends.view(-1, 2, 2), blurs.view(-1, 2, 2)


def _at_ends(values: torch.Tensor, usable: torch.Tensor, axis: int) -> torch.Tensor:
    """(T,) sums of values (T, side, side) half a pixel beyond where usable pixels end along an axis, less those where
    they begin. The edges of tiles, beyond which there are more, are neither."""
    values, usable = values.movedim(axis, 2), usable.movedim(axis, 2)
    step = values.diff(dim=2) * (usable[..., 1:] & usable[..., :-1]) / 2
    ends, begins = values[..., :-1] + pad(step[..., :-1], (1, 0)), values[..., 1:] - pad(step[..., 1:], (0, 1))
    ends, begins = ends * (usable[..., :-1] & ~usable[..., 1:]), begins * (usable[..., 1:] & ~usable[..., :-1])
    return (ends - begins).sum((1, 2), dtype=torch.float64)
