"""What images are compared with at one resolution: a template on tiles, and how far images differ from it there."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from congeal.geometry.matrix import Size
from congeal.solvers.halves import Common, in_common
from congeal.solvers.tiles import Tiles

_LEAST_NOISE = 0.02  # of the mean variance: no tile is quite free of noise
_LEAST_SHARE = 0.25  # of the images must show a tile: where an image is nearly alone, it would be its own witness
SAMPLING_ERROR = 0.005
"""Pixels of a standard error that sampling between pixels costs, however little noise there is …"""
SHRINKING_ERROR = 0.0125
"""… and what it costs if the pictures were made smaller before. Both from copies of four photographs (DEVELOP in
benchmarks/everyday_sets.py). By errors with these floors levels are left and answers weighed. The error bar that is
told of a pose has what is left of sampling instead: `Between.left`."""


@dataclass(frozen=True)
class Level:
    """A template, and what is known of it.

    Attributes
    ----------
    tiles : Tiles
    template : (T, side + 2, side + 2) tensor
        Mean of the images that made it, with a rim of one pixel; of plain values NaN where too many are clipped.
    noise : (T,) tensor
        Variance of those images about it.
    count : (T,) tensor
        How many images each tile was made of; 0 where too few show it to be a witness.
    floor : float
        The standard error that no pose can be without, in frame pixels.
    common : Common
        What of its slopes and bends is real.
    plain : bool
        Whether it is made of plain values (`values.py`), not of local contrast.
    """

    tiles: Tiles
    template: torch.Tensor
    noise: torch.Tensor
    count: torch.Tensor
    floor: float
    common: Common
    plain: bool = False

    @property
    def frame(self) -> Size:
        """(height, width) of the frame at this level."""
        return self.tiles.frame


class LevelSums:
    """Running sums over images from which a level is made."""

    def __init__(self, tiles: Tiles, floor: float) -> None:
        self.tiles, self.floor, self.images = tiles, floor, 0
        shape = len(tiles), tiles.side + 2, tiles.side + 2
        self.image, self.other = (torch.zeros(shape, dtype=torch.float64) for _ in range(2))
        self.others = torch.zeros(len(tiles), dtype=torch.float64)
        self.square, self.weight = (torch.zeros(len(tiles), dtype=torch.float64) for _ in range(2))

    def add(self, seen: torch.Tensor, covered: torch.Tensor) -> None:
        """Take in images on tiles (B, T, side + 2, side + 2), and which tiles they cover (B, T)."""
        covered = covered.double()
        half = slice(self.images % 2, None, 2)  # every other image of all
        self.other += torch.einsum("btij,bt->tij", seen[half].double(), covered[half])
        self.others += covered[half].sum(0)
        self.image += torch.einsum("btij,bt->tij", seen.double(), covered)
        self.square += (self.tiles.inner(seen).double().square().mean(2) * covered).sum(0)
        self.weight += covered.sum(0)
        self.images += len(seen)

    def level(self) -> Level:
        """The level of all images so far."""
        count = self.weight.clamp(min=1)
        mean = self.image / count[:, None, None]
        noise = (self.square / count - self.tiles.inner(mean).square().mean(1)).clamp(min=0)
        shown = shown_enough(self.weight, self.images)
        noise = some_noise(noise * count / (count - 1).clamp(min=1), shown)
        count = (self.weight * shown).float()
        return Level(self.tiles, mean.float(), noise.float(), count, self.floor, self._common(shown, mean))

    def _common(self, shown: torch.Tensor, mean: torch.Tensor) -> Common:
        rest = self.weight - self.others
        used = shown & (self.others > 0) & (rest > 0)
        sums, counts = (self.other, self.image - self.other), (self.others, rest)
        one, other = (part[used] / count[used, None, None] for part, count in zip(sums, counts, strict=True))
        return in_common(one, other, mean[used])


def shown_enough(count: torch.Tensor, images: int) -> torch.Tensor:
    """Of tiles that so many of the images show, whether that is enough to be a witness."""
    return count >= max(2, _LEAST_SHARE * images)


def some_noise(noise: torch.Tensor, shown: torch.Tensor) -> torch.Tensor:
    """The same variances (T,) and a little more; shown (T,) bool: which of them mean something."""
    return noise + _LEAST_NOISE * (noise * shown).sum() / shown.sum().clamp(min=1) + 1e-9
