"""A point of one image, found in all the others: where its pose says, corrected by what features say near there.

Poses bring images together as a whole; a head that is turned or a tail that is raised stays where it is. So a point is
looked for around its place in the common view: likeness of features, less what the distance costs. That is done
twice. The places found first, in all images, say better than one image can what the point looks like and where in the
common view it belongs; from that it is looked for again.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from congeal.solvers.looks import Look

WIDTHS = (0.05, 0.075, 0.1, 0.125, 0.15, 0.2)
"""Of the view's side: how far parts may usually be from their place in the common view; the set itself says which."""
RETURNED, WITHIN = 0.9, 0.1
"""The widest search is taken with which so many points, carried to another image, from there to a third and back, come
home within so much of the view's side. No point that anybody marked has a say in it."""
_ROUND_TRIPS, _POINTS = 12, 32  # of three images each, and the points that make them
_COST = 0.5  # of likeness, at a distance of √2 spreads
_FINER = 2  # places between two cells


class Marks:
    """Finds points of the views of a look, all made under final poses, in all of its images.

    spread : float
        Of the view's side: how far parts usually are from their place in the common view.
    """

    def __init__(self, seen: Look, spread: float = WIDTHS[0]) -> None:
        self.spread = spread
        self._seen, (height, width) = seen, seen.grid
        maps = [seen.of(i).T.reshape(1, -1, height, width) for i in range(len(seen.cells))]
        self._maps = maps
        fine = [functional.interpolate(m, scale_factor=_FINER, mode="bilinear", align_corners=False) for m in maps]
        self._fine = [functional.normalize(m[0].flatten(1), dim=0) for m in fine]
        first, last = seen.places[0], seen.places[-1]
        self._cell = (last - first) / np.maximum(1, [width - 1, height - 1])
        x, y = ((np.arange(_FINER * k) + 0.5) / _FINER - 0.5 for k in (width, height))
        grid = np.stack(np.meshgrid(first[0] + x * self._cell[0], first[1] + y * self._cell[1]), -1)
        self._places = torch.from_numpy(grid.reshape(-1, 2)).float()

    def __len__(self) -> int:
        return len(self._maps)

    def look_of(self, image: int, places: torch.Tensor) -> torch.Tensor:
        """(P, K) what an image shows at places (P, 2) in pixels of the view."""
        height, width = self._seen.grid
        at = (places.numpy() - self._seen.places[0]) / self._cell
        x, y = np.clip(at[:, 0], 0, width - 1), np.clip(at[:, 1], 0, height - 1)
        left, top = np.floor(x).astype(int), np.floor(y).astype(int)
        right, below = np.minimum(left + 1, width - 1), np.minimum(top + 1, height - 1)
        dx, dy = (torch.from_numpy(v).float()[:, None] for v in (x - left, y - top))
        m = self._maps[image][0].permute(1, 2, 0)
        upper = m[top, left] * (1 - dx) + m[top, right] * dx
        lower = m[below, left] * (1 - dx) + m[below, right] * dx
        return functional.normalize(upper * (1 - dy) + lower * dy, dim=1)

    def find(self, looks: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(n, P, 2) where the points are in each image, and (n, P) how alike, from looks (P, K) and places (P, 2)."""
        spread = self.spread * self._seen.side
        far = ((self._places[None] - places[:, None]) ** 2).sum(-1) / (2 * spread**2)
        found, alike = [], []
        for fine in self._fine:
            likeness = looks @ fine
            best = (likeness - _COST * far).argmax(1)
            found.append(self._places[best])
            alike.append(likeness[torch.arange(len(best)), best])
        return torch.stack(found), torch.stack(alike)

    def nearest(self, image: int, places: np.ndarray) -> np.ndarray:
        """(n, P, 2) the place of each view that is most alike, wherever it is."""
        looks = self.look_of(image, torch.from_numpy(np.asarray(places, dtype=np.float32)))
        return np.stack([self._places[(looks @ fine).argmax(1)].numpy() for fine in self._fine]).astype(np.float64)

    def follow(self, image: int, places: np.ndarray) -> np.ndarray:
        """(n, P, 2) the points (P, 2) of an image's view in the views of all images."""
        own = torch.from_numpy(np.asarray(places, dtype=np.float32))
        look = self.look_of(image, own)
        found, alike = self.find(look, own)
        weight = alike.clamp(0, 1).square()
        weight[image] = 0
        weight = (weight / weight.sum(0).clamp(min=1e-9))[..., None]
        shown = torch.stack([self.look_of(k, found[k]) for k in range(len(self))])
        typical = functional.normalize((weight * shown).sum(0), dim=1)
        if len(self) > 1:
            look, own = functional.normalize(look + typical, dim=1), (weight * found).sum(0)
        return self.find(look, own)[0].numpy()


def returned(marks: Marks, places: np.ndarray, side: int) -> float:
    """The share of points (P, 2) that come home from two other images, over a few round trips."""
    generator, home = np.random.default_rng(0), []
    for _ in range(_ROUND_TRIPS):
        a, b, c = generator.choice(len(marks), 3, replace=False).tolist()
        there = marks.follow(a, places)[b]
        back = marks.follow(c, marks.follow(b, there)[c])[a]
        home.append(np.linalg.norm(back - places, axis=1) < WITHIN * side)
    return float(np.mean(home))


def consistent_width(marks: Marks, places: np.ndarray, side: int) -> float:
    """The widest of WIDTHS with which points on the object, (P, 2) in pixels of the view, come home; the narrowest at
    least. Narrower ones always do: without a search, poses alone carry every point home."""
    widest, before = WIDTHS[0], marks.spread
    some = places[np.unique(np.linspace(0, len(places) - 1, min(len(places), _POINTS)).round().astype(int))]
    if len(marks) >= 3 and len(some):
        for width in WIDTHS:
            marks.spread = width
            if returned(marks, some, side) < RETURNED:
                break
            widest = width
    marks.spread = before
    return widest
