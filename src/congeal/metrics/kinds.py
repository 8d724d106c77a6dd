"""One kind of thing or several? Told from how alike every two images of a set are.

Groups that are found in a set always look more alike inside than across, even groups of noise. So the frame is cut
into a chessboard: groups are found on the black squares and compared on the white ones, and the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from congeal.metrics.limits import CHESSBOARD, NEIGHBOURS, NEIGHBOURS_AT_LEAST, SMALLEST_GROUP

Matrix = NDArray[np.float64]
Pictures = tuple[torch.Tensor, torch.Tensor | None]
"""Local contrast (N,h,w), and where it counts."""
_ROUNDS = 20
_POWERS = 50
_LEAST = 1e-4  # a correlation inside a group that is smaller is noise


@dataclass(frozen=True)
class Kinds:
    """How much a set is of one kind.

    Attributes
    ----------
    unity : float
        Likeness of images across the two groups that differ most, against likeness inside them: 1 is one kind.
    distinctness : float
        How clearly single images belong to one of the two groups: mean over deviation of (likeness to the own group −
        likeness to the other).
    crowd : float
        Likeness of images to all, against likeness to their nearest neighbours: 1 is one kind, less is several.
    smaller_share : float
        Share of the images that is in the smaller group.
    """

    unity: float = 1.0
    distinctness: float = 0.0
    crowd: float = 1.0
    smaller_share: float = 0.0


def pair_likeness(contrast: torch.Tensor, counts: torch.Tensor | None, others: Pictures | None = None) -> Matrix:
    """(N,M) correlation of images (N,h,w) with other images (M,h,w), or with each other, where both count."""
    other, other_counts = others or (contrast, counts)
    a, b = contrast.flatten(1), other.flatten(1)
    product = a @ b.T
    if counts is None or other_counts is None:
        norms = a.square().sum(1)[:, None] * b.square().sum(1)
    else:
        norms = (a.square() @ other_counts.flatten(1).T) * (counts.flatten(1) @ b.square().T)
    return (product / norms.sqrt().clamp(min=1e-9)).double().numpy()


def kinds(contrast: torch.Tensor, counts: torch.Tensor | None = None) -> Kinds:
    """Whether images, local contrast (N,h,w), are of one kind; sets of fewer than 2 × `SMALLEST_GROUP` always are."""
    n, height, width = contrast.shape
    if n < 2 * SMALLEST_GROUP:
        return Kinds()
    black = _chessboard(height, width)
    halves = [pair_likeness(contrast * part, None if counts is None else counts * part) for part in (black, 1 - black)]
    found = [_compared(*pair) for pair in ((halves[0], halves[1]), (halves[1], halves[0]))]
    return Kinds(*np.mean(found, axis=0).tolist())


def _chessboard(height: int, width: int) -> torch.Tensor:
    square = max(1, max(height, width) // CHESSBOARD)
    rows, columns = torch.arange(height) // square, torch.arange(width) // square
    return ((rows[:, None] + columns) % 2).float()


def _compared(seen: Matrix, hidden: Matrix) -> tuple[float, float, float, float]:
    """Unity, distinctness, crowd and share of the smaller group: found in one matrix, measured in the other."""
    n = len(seen)
    group = two_groups(seen)
    own = group[:, None] == group
    alone = own & ~np.eye(n, dtype=bool)
    inside = np.array([hidden[alone & side[:, None]].mean() for side in (group, ~group)])
    unity = hidden[~own].mean() / np.sqrt(np.maximum(inside, _LEAST).prod())
    margin = (hidden * alone).sum(1) / np.maximum(alone.sum(1), 1) - (hidden * ~own).sum(1) / (~own).sum(1)
    nearest = np.argsort(-(seen - 2 * np.eye(n)), axis=1)[:, : max(NEIGHBOURS_AT_LEAST, round(NEIGHBOURS * n))]
    near = np.take_along_axis(hidden, nearest, axis=1).mean()
    everyone = hidden[~np.eye(n, dtype=bool)].mean()
    crowd = everyone / near if near > _LEAST else 1.0
    return unity, margin.mean() / max(margin.std(), 1e-9), crowd, min(group.mean(), 1 - group.mean())


def two_groups(alike: Matrix) -> NDArray[np.bool_]:
    """(N,) bool: the two groups that images fall into, given how alike every two are (N,N).

    Cut along the first principal component where the parts vary least, then k-means from there.
    """
    n = len(alike)
    centred = alike - alike.mean(0) - alike.mean(1)[:, None] + alike.mean()
    along = centred[np.argmax(np.diag(centred @ centred))]  # by power iteration, which is enough for a first cut
    for _ in range(_POWERS):
        along = centred @ along
        along = along / max(float(np.linalg.norm(along)), 1e-12)
    order = np.argsort(along, kind="stable")
    line, least = along[order], max(SMALLEST_GROUP, n // 10)
    cut = min(range(least, n - least + 1), key=lambda i: i * line[:i].var() + (n - i) * line[i:].var())
    group = np.zeros(n, dtype=bool)
    group[order[cut:]] = True
    for _ in range(_ROUNDS):
        far = [alike[np.ix_(side, side)].mean() - 2 * alike[:, side].mean(1) for side in (group, ~group)]
        moved = far[0] < far[1]
        if min(moved.sum(), n - moved.sum()) < SMALLEST_GROUP or (moved == group).all():
            break
        group = moved
    return group
