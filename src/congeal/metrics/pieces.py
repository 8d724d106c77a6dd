"""Is every piece of one object there in another, near the same place?

Two threes by different hands are alike piece by piece, each a little elsewhere; likeness pixel by pixel does not see
that. A three has nothing where a five begins, however it is bent: some pieces of the five have nothing to go with.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import pad, unfold

from congeal.metrics.limits import PIECE, PIECE_REACH, PIECE_STRIDE

_VALUES = 1 << 21  # compared at a time: they stay in the cache
_LEAST = 1e-9


def missing(members: torch.Tensor, images: torch.Tensor) -> NDArray[np.float64]:
    """(N,M) share of what member j (M,C,h,w) shows that image i (N,C,h,w) does not, 0 for an image that has it all.

    Both are edges, of objects about `PIECES_SIDE` pixels wide. Every piece of the member is held against the pieces of
    the image around the same place, and the one that is most like it counts. What else the image shows does not.
    """
    pieces = _pieces(members)
    energy = pieces.square().sum(2)
    whole = energy.sum(0).double().clamp(min=_LEAST)
    few = max(1, _VALUES // max(1, energy.numel()))
    left = [_left(pieces, energy, part) for part in images.split(few)]
    return (torch.cat(left, 1).double() / whole[:, None]).T.numpy()


def _left(pieces: torch.Tensor, energy: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """(M,N) squares of the pieces of M members that are left when those of N images are taken away."""
    height, width = images.shape[-2:]
    around = pad(images, (PIECE_REACH,) * 4)
    least = None
    for y in range(2 * PIECE_REACH + 1):
        for x in range(2 * PIECE_REACH + 1):
            moved = _pieces(around[..., y : y + height, x : x + width])
            theirs = moved.square().sum(2)[:, None]
            squares = torch.baddbmm(theirs, pieces, moved.transpose(1, 2), alpha=-2)
            least = squares if least is None else torch.minimum(least, squares, out=least)
    assert least is not None
    return (least + energy[..., None]).clamp_(min=0).sum(0)


def _pieces(images: torch.Tensor) -> torch.Tensor:
    """(X,N,C·9): at each of X places the pixels of images (N,C,h,w) around it."""
    return unfold(images, PIECE, padding=PIECE // 2, stride=PIECE_STRIDE).permute(2, 0, 1).contiguous()
