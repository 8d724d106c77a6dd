"""Which images do not belong to a set: told from how like its likest images each one is.

A set may vary, so an image is not held against the mean alone but against the quarter of the set that it is most like.
Foreign is what is like them by much less than is usual, or by no more than noise of the same kind would be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from congeal.metrics.chance import doubles
from congeal.metrics.kinds import Matrix, pair_likeness
from congeal.metrics.limits import (
    BENT_SHARE,
    CENTRE,
    CHANCE_DEVIATIONS,
    CLOSED_WEIGHT,
    FOREIGN_REACH,
    FOREIGN_WEIGHT,
    LIKENESS_WEIGHT,
    MATCH_AGAIN,
    MATCH_SHARE,
    MEMBER,
    NEAREST,
    NEAREST_AGAIN,
    PAIRED_IMAGES,
    PIECES_IMAGES,
    PIECES_LEFT,
    PIECES_MISSED,
    PIECES_WEIGHT,
    ROUNDS,
    SEVERAL,
    SMALLEST_GROUP,
)
from congeal.metrics.pieces import missing

_LEAST = 1e-9  # likeness that is none


@dataclass(frozen=True)
class _Held:
    """Images held against others in one way."""

    near: Matrix  # (N,M), the larger the nearer
    others: NDArray[np.int64]  # (M,) which images the others are
    weight: float  # of all ways together
    pieces: bool = False  # near is minus the share of pieces that are missing; else a likeness

    def among(self, which: NDArray[np.bool_]) -> NDArray[np.float64]:
        """(N,) how near each image is to the nearest of some images (N,)."""
        return _nearest(self.near[:, which[self.others]], NEAREST_AGAIN)

    def reached(self, near: NDArray[np.float64], usual: float) -> NDArray[np.float64]:
        """(N,) what images reach of what is usual, times the weight.

        More than is usual does not make up for less in another way. Where nothing is usual (plates close nothing in),
        this way says nothing. Where hardly a piece is missing, a little more than that is still little.
        """
        if self.pieces:
            share = (PIECES_LEFT + max(-usual, PIECES_MISSED)) / (PIECES_LEFT - near)
        else:
            share = near / usual if usual > _LEAST else np.ones_like(near)
        return self.weight * share.clip(max=1)


class Crowd:
    """Up to `PAIRED_IMAGES` (256) images of a set, and how like them an image of the set is.

    Parameters
    ----------
    contrast, counts : (N,h,w) tensors
        Local contrast of the images, and where it counts (None: everywhere).

    Attributes
    ----------
    chance_likeness : float
        Likeness to the mean of the others that noise of the same kind reaches.
    least : float
        Nearness that an image of the set has at least.
    least_if_bent : float
        The same for an image in a pose that makes no sense: bent far enough, anything looks like anything.
    near : (N,) array
        Nearness of the images given.
    """

    def __init__(self, contrast: torch.Tensor, counts: torch.Tensor | None) -> None:
        self._rows = np.unique(np.linspace(0, len(contrast) - 1, min(len(contrast), PAIRED_IMAGES)).round().astype(int))
        self._contrast, self._counts = contrast[self._rows], None if counts is None else counts[self._rows]
        self._all = contrast, counts
        self.near = _nearest(self._likeness(contrast, counts))
        made, reached = doubles(contrast, counts)
        self.chance_likeness = round(float(reached.mean()), 6)  # more digits depend on the number of threads
        noise = _nearest(pair_likeness(made, None, (self._contrast, None)))
        usual = float(np.quantile(self.near, CENTRE))
        low, high = MATCH_SHARE
        relative = usual * (low + (high - low) * max(usual, 0.0))
        self._least_of_all = float(noise.mean() + CHANCE_DEVIATIONS * noise.std())
        self.least = max(relative, self._least_of_all)
        self.least_if_bent = max(self.least, BENT_SHARE * usual)

    def look_again(
        self,
        contrast: torch.Tensor,
        counts: torch.Tensor | None,
        edges: torch.Tensor,
        upright_edges: torch.Tensor,
        closed: torch.Tensor,
    ) -> None:
        """Judge the images that the crowd was made of by a second look too, and by one that no alignment has a part in.

        contrast, counts: (N,h,w) as there, and edges (N,C,h,w), as of `missing`, in poses held by the set.
        upright_edges, closed (N,K,h,w), as of `closed_in`: of the objects set upright, each by itself. `near` becomes
        what an image reaches of what is usual among members, in all of these together. `least` is the limit on that.
        A pose that makes no sense needs no limit of its own then.
        """
        held = [
            _Held(self._likeness(*pictures), self._rows, LIKENESS_WEIGHT)
            for pictures in (self._all, (contrast, counts))
        ]
        held += [self._pieces(edges), self._pieces(upright_edges)]
        held.append(_Held(self._likeness(closed, None), self._rows, CLOSED_WEIGHT))
        chance = self.near < self._least_of_all
        self.near = np.where(chance, -1.0, _belonging(held, chance))
        self.least = self.least_if_bent = MATCH_AGAIN

    def nearness(self, contrast: torch.Tensor, counts: torch.Tensor | None) -> NDArray[np.float64]:
        """(B,) mean likeness of other images (B,h,w) to the quarter of the crowd that they are most like."""
        return _nearest(pair_likeness(contrast, counts, (self._contrast, self._counts)))

    def _likeness(self, pictures: torch.Tensor, counts: torch.Tensor | None) -> Matrix:
        """(N,m) likeness of the images the crowd was made of to the crowd; none is its own neighbour."""
        others = pictures[self._rows], None if counts is None else counts[self._rows]
        alike = pair_likeness(pictures, counts, others)
        alike[self._rows, np.arange(len(self._rows))] = -np.inf
        return alike

    def _pieces(self, edges: torch.Tensor) -> _Held:
        """Whether the images have the pieces of some of the crowd; none is its own neighbour."""
        some = np.unique(np.linspace(0, len(self._rows) - 1, min(len(self._rows), PIECES_IMAGES)).round().astype(int))
        rows = self._rows[some]
        present = -missing(edges[rows], edges)
        present[rows, np.arange(len(rows))] = -np.inf
        return _Held(present, rows, PIECES_WEIGHT, pieces=True)


def _nearest(alike: Matrix, share: float = NEAREST) -> NDArray[np.float64]:
    """(B,) mean of the largest in each row of likeness to the crowd (B,m)."""
    m = alike.shape[1]
    if m < 2:
        return np.ones(len(alike))
    k = max(1, round(share * (m - 1)))
    return np.partition(alike, m - k, axis=1)[:, m - k :].mean(1)


def _belonging(held: Sequence[_Held], chance: NDArray[np.bool_]) -> NDArray[np.float64]:
    """(N,) what each image reaches among members, less what speaks for the foreign ones.

    chance (N,): images that are no more than noise. All may be members at first. Then those are that clearly reach
    enough, and clearly foreign ones, if they are several, count against the images that are like them: among fives one
    eight may pass for a five, but not next to another eight.
    """
    member, foreign, quantile = np.ones_like(chance), np.zeros_like(chance), CENTRE
    reached = np.ones(len(chance))
    for _ in range(ROUNDS):
        if _fewest(held, member) < 2:
            break
        near = [one.among(member) for one in held]
        usual = [float(np.quantile(values[member], quantile)) for values in near]
        reached = _reached(held, near, usual)
        if _several(foreign) and _fewest(held, foreign) > 1:
            theirs = _reached(held, [one.among(foreign) for one in held], usual)
            reached = reached - FOREIGN_WEIGHT * (theirs - FOREIGN_REACH).clip(min=0)
        member, foreign, quantile = (reached >= MEMBER) & ~chance, (reached < MATCH_AGAIN) | chance, 0.5
    return reached


def _several(foreign: NDArray[np.bool_]) -> bool:
    """Whether a set has foreign images; else what looks like them are a few odd ones of its own."""
    return bool(foreign.sum() >= max(SMALLEST_GROUP, SEVERAL * len(foreign)))


def _fewest(held: Sequence[_Held], which: NDArray[np.bool_]) -> int:
    """How many of some images the others are compared with, at least."""
    return min(int(which[one.others].sum()) for one in held)


def _reached(held: Sequence[_Held], near: Sequence[NDArray[np.float64]], usual: Sequence[float]) -> NDArray[np.float64]:
    """(N,) what each image reaches of what is usual, in all ways together."""
    each = [one.reached(values, middle) for one, values, middle in zip(held, near, usual, strict=True)]
    return np.asarray(np.sum(each, axis=0))
