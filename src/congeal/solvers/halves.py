"""What the means of two halves of a set have in common is real; what they do not is noise.

Noise is as steep along x as along y and bends more than any picture does. Slopes and bends of the mean of all images
have it in them, so that a picture with little to see along an axis knows far less of it than it seems.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_SLOWEST, _FASTEST = 0.01, 2.5  # radians per pixel: one wave stands for all, and not for what is near two pixels


@dataclass(frozen=True)
class Common:
    """What halves of a set have in common on tiles.

    Attributes
    ----------
    slopes : (2,) tensor
        Squared slopes along x and y, of all pixels together.
    roughness, fourth : (2,) tensor
        Mean square and mean fourth power of the frequency along x and y, in radians per pixel.
    steeper : (2,) tensor
        How much larger squared slopes along x and y are between neighbours than between pixels two apart.
    steepness : float
        Variance of the slopes of the mean of all images that is noise, along one axis.
    """

    slopes: torch.Tensor
    roughness: torch.Tensor
    fourth: torch.Tensor
    steeper: torch.Tensor
    steepness: float = 0.0

    @property
    def frequency(self) -> torch.Tensor:
        """(2,) along x and y, in radians per pixel: that of one wave which bends, and changes its bends, as all of them
        together do."""
        squared = self.fourth / self.roughness.clamp(min=1e-12)  # as 4 sin²(w/2)
        return 2 * (squared.sqrt() / 2).clamp(_SLOWEST / 2, 1).asin().clamp(max=_FASTEST)

    @property
    def gain(self) -> float:
        """By how much pictures are steeper than slopes between pixels two apart say: w by sin w, for waves of frequency
        w. Slopes squared say 1 / cos²(w/2), of which it is the power that begins alike."""
        return float(self.steeper.mean()) ** (2 / 3)

    def tensor(self) -> torch.Tensor:
        """All of it, (9,)."""
        return torch.cat(
            [self.slopes, self.roughness, self.fourth, self.steeper, self.slopes.new_tensor([self.steepness])]
        )

    @classmethod
    def of(cls, numbers: torch.Tensor) -> Common:
        """From what `tensor` gave."""
        slopes, roughness, fourth, steeper = numbers[:8].view(4, 2)
        return cls(slopes, roughness, fourth, steeper, float(numbers[8]))


def in_common(one: torch.Tensor, other: torch.Tensor, mean: torch.Tensor | None = None) -> Common:
    """Of the means of two halves and of all images, (T, side + 2, side + 2) each; pixels that are NaN do not count.

    Of waves of frequency w, squared slopes come out as sin² w if their ends are two pixels apart, as 4 sin²(w/2)
    between neighbours; the w⁴ of bends as 16 sin⁴(w/2). A third of the first and two thirds of the second lack as much
    of w² as bends lack of w⁴.
    """
    by_axis = []
    for axis in (2, 1):
        a, b = (tiles.narrow(3 - axis, 1, tiles.shape[1] - 2).diff(dim=axis) for tiles in (one, other))
        last = a.shape[axis] - 1
        (a0, a1), (b0, b1) = ((x.narrow(axis, 0, last), x.narrow(axis, 1, last)) for x in (a, b))
        bent = a1 - a0, b1 - b0
        change = _product(*(x.diff(dim=axis) for x in bent))
        near, far = (_product(a0, b0) + _product(a1, b1)) / 2, _product(a0 + a1, b0 + b1) / 4
        by_axis.append(torch.stack([_product(*bent), change, near, far]))
    bends, change, near, far = torch.stack(by_axis, 1)
    slopes = (far / 3 + near * 2 / 3).clamp(min=1e-12)
    roughness, fourth = (one.clamp(min=0) / slopes for one in (bends, change))
    steeper = (near / far.clamp(min=1e-12)).clamp(min=1)
    return Common(slopes, roughness, fourth, steeper, 0.0 if mean is None else _steepness(one, other, mean))


def _steepness(one: torch.Tensor, other: torch.Tensor, mean: torch.Tensor) -> float:
    excess = central_slopes(mean).square() - central_slopes(one) * central_slopes(other)
    return max(float(excess.nanmean(dtype=torch.float64)), 0.0) if excess.numel() else 0.0


def central_slopes(tiles: torch.Tensor) -> torch.Tensor:
    """(2, T, side, side) along x and y, of pictures on tiles (T, side + 2, side + 2)."""
    return torch.stack([tiles[:, 1:-1, 2:] - tiles[:, 1:-1, :-2], tiles[:, 2:, 1:-1] - tiles[:, :-2, 1:-1]]) / 2


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a * b).nansum(dtype=torch.float64)
