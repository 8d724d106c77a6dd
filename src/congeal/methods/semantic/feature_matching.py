"""Feature matching: mutual nearest neighbours, the similarity with the largest consensus (RANSAC), keypoint transfer.

Points of matches are complex numbers x + iy, so that a similarity is z·p + t.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from congeal.geometry import map_points
from congeal.geometry.warping import lookup
from congeal.methods.semantic.feature_maps import FeatureMaps

MAX_HYPOTHESES = 300
"""Similarities that are tried for a pair, each through two of its matches: with one match in eight right, five of them
go through two right ones."""
MATCH_TOLERANCE = 0.075
"""Standard deviation of matches from a similarity, as a share of the view's side: a cell and a half of lite0, and what
parts of animals move (chosen by judgement)."""
SEARCH_WIDTH = 0.1
"""Standard deviation of the search, as a share of the view's side: of 0.05 to 0.125 the one with the most points within
0.1 of the target on three birds of CUB and cars and ducks of PF-WILLOW together; a width chosen for each set by round
trips through three images reaches the same (73.6 and 73.8 %)."""


@dataclass(frozen=True)
class PairMatches:
    """Matches of image a with image b: points (M,) complex about the centre of each, their weight under the similarity
    b = z·a + t, and the sum of weights of all matches as score."""

    a: np.ndarray
    b: np.ndarray
    weight: np.ndarray
    z: complex
    t: complex
    score: float


NO_MATCHES = PairMatches(np.zeros(0, complex), np.zeros(0, complex), np.zeros(0), 1 + 0j, 0j, 0.0)


@dataclass(frozen=True)
class MatchRules:
    """Bounds of a pair's similarity: tolerance in pixels; largest rotation in radians; scales, as objects that differ
    more in size share no cells; reach: largest distance of matched points in pixels, None for any."""

    tolerance: float
    rotation: float = np.pi / 3
    scales: tuple[float, float] = (0.4, 2.5)
    reach: float | None = None


def mutual_nearest_neighbours(
    a: torch.Tensor, b: torch.Tensor, allowed: torch.Tensor
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of a (L, K) and b (M, K) that are mutual nearest neighbours among those `allowed` (L, M); their likeness."""
    alike = torch.where(allowed, a @ b.T, torch.full((), -1.0))
    to_b, to_a = alike.argmax(1), alike.argmax(0)
    rows = torch.nonzero(to_a[to_b] == torch.arange(len(a)))[:, 0]
    value = alike[rows, to_b[rows]]
    rows, value = rows[value > 0], value[value > 0]
    return rows.numpy(), to_b[rows].numpy(), value.numpy().astype(np.float64)


def subcell_offset(
    a: torch.Tensor, b: torch.Tensor, rows: np.ndarray, columns: np.ndarray, grid: tuple[int, int]
) -> np.ndarray:
    """(M,) complex, in cells: offset from `rows` of the position in a (L, K) that is most like row `columns` of b.

    By a parabola through the likeness of the neighbouring cells. Half a cell at most; zero along the edge of the grid.
    """
    along = []
    for axis, step in ((rows % grid[1], 1), (rows // grid[1], grid[1])):
        last = (grid[1] if step == 1 else grid[0]) - 1
        inside = (axis > 0) & (axis < last)
        near = [np.where(inside, rows + way * step, rows) for way in (-1, 0, 1)]
        before, here, after = ((a[one] * b[columns]).sum(1).double().numpy() for one in near)
        bend = np.minimum(before - 2 * here + after, -1e-6)
        along.append(np.where(inside, np.clip((before - after) / (2 * bend), -0.5, 0.5), 0.0))
    return np.asarray(along[0] + 1j * along[1])


def consensus_similarity(
    a: np.ndarray, b: np.ndarray, alike: np.ndarray, rules: MatchRules, side: float, seed: int
) -> PairMatches:
    """The similarity with the largest consensus of matches a (M,) → b (M,), from random pairs; NO_MATCHES if none."""
    if len(a) < 4:
        return NO_MATCHES
    generator = np.random.default_rng(seed)
    weight = alike**2 + 1e-6
    drawn = generator.choice(len(a), (MAX_HYPOTHESES, 2), p=weight / weight.sum())
    apart = a[drawn[:, 0]] - a[drawn[:, 1]]
    distant = np.abs(apart) > side / 10  # closer points do not determine a similarity
    drawn, apart = drawn[distant], apart[distant]
    z = (b[drawn[:, 0]] - b[drawn[:, 1]]) / apart
    sound = is_admissible(z, rules)
    z, first = z[sound], drawn[sound, 0]
    if not len(z):
        return NO_MATCHES
    t = b[first] - z * a[first]
    consensus = (weight * inlier_weight(z[:, None] * a + t[:, None] - b, z[:, None], rules)).sum(1)
    best = int(consensus.argmax())
    one_z, one_t = complex(z[best]), complex(t[best])
    for _ in range(3):  # reweighted least squares
        share = weight * inlier_weight(one_z * a + one_t - b, one_z, rules)
        total = share.sum() + 1e-9
        mean_a, mean_b = (share * a).sum() / total, (share * b).sum() / total
        spread = (share * np.abs(a - mean_a) ** 2).sum() + 1e-9
        better = complex((share * (b - mean_b) * np.conj(a - mean_a)).sum() / spread)
        if not is_admissible(np.array([better]), rules)[0]:
            break
        one_z, one_t = better, complex(mean_b - better * mean_a)
    share = weight * inlier_weight(one_z * a + one_t - b, one_z, rules)
    kept = share > 0.05  # the others are outliers
    return PairMatches(a[kept], b[kept], share[kept], one_z, one_t, float(share.sum()))


def is_admissible(z: np.ndarray, rules: MatchRules) -> np.ndarray:
    """Whether similarities, as complex numbers scale · exp(i · rotation), are within the rules."""
    size = np.abs(z)
    return np.asarray(
        (size > rules.scales[0]) & (size < rules.scales[1]) & (np.abs(np.angle(z)) < rules.rotation), dtype=bool
    )


def inlier_weight(error: np.ndarray, z: np.ndarray | complex, rules: MatchRules) -> np.ndarray:
    """Weight of errors under a similarity: measured at the geometric mean of the two scales, which favours none."""
    return np.asarray(np.exp(-0.5 * (np.abs(error) / np.sqrt(np.abs(z)) / rules.tolerance) ** 2))


class KeypointTransfer:
    """Locates points of one view in all others; feature maps are those under the final poses.

    Poses align images as a whole, but not a turned head or a raised tail. So a point is searched around its position in
    the common view: likeness minus a cost of the distance. The search is done twice: the mean descriptor and position
    of the first results, over all images, are better than those of one image.
    """

    def __init__(self, seen: FeatureMaps) -> None:
        self._seen, (height, width) = seen, seen.grid
        maps = [seen.of(i).T.reshape(1, -1, height, width) for i in range(len(seen.cells))]
        self._maps = maps
        fine = [functional.interpolate(m, scale_factor=2, mode="bilinear", align_corners=False) for m in maps]
        self._fine = [functional.normalize(m[0].flatten(1), dim=0) for m in fine]
        x, y = (np.arange(2 * k) / 2 - 0.25 for k in (width, height))  # two per cell along each axis
        cells = np.stack(np.meshgrid(x, y), -1).reshape(-1, 2)
        self._places = torch.from_numpy(map_points(seen.view_from_cell, cells)).float()

    def __len__(self) -> int:
        return len(self._maps)

    def descriptors_at(self, image: int, places: torch.Tensor) -> torch.Tensor:
        """(P, K) descriptors of an image at points (P, 2) in pixels of the view."""
        cells = torch.from_numpy(map_points(np.linalg.inv(self._seen.view_from_cell), places.double().numpy()))
        grid = (2 * cells + 1) / torch.tensor(self._seen.grid[::-1]) - 1  # the sampler's coordinates
        shown = lookup(self._maps[image], grid.float()[None, None], "bilinear")
        return functional.normalize(shown[0, :, 0].T, dim=1)

    def find(self, descriptors: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(n, P, 2) the points in each image, and (n, P) their likeness, for descriptors (P, K) and points (P, 2)."""
        spread = SEARCH_WIDTH * self._seen.side
        cost = ((self._places[None] - places[:, None]) ** 2).sum(-1) / (2 * spread) ** 2  # in units of likeness
        found, alike = [], []
        for fine in self._fine:
            likeness = descriptors @ fine
            best = (likeness - cost).argmax(1)
            found.append(self._places[best])
            alike.append(likeness[torch.arange(len(best)), best])
        return torch.stack(found), torch.stack(alike)

    def nearest(self, image: int, places: np.ndarray) -> np.ndarray:
        """(n, P, 2) the most similar point of each view, at any distance."""
        descriptors = self.descriptors_at(image, torch.from_numpy(np.asarray(places, dtype=np.float32)))
        return torch.stack([self._places[(descriptors @ fine).argmax(1)] for fine in self._fine]).double().numpy()

    def transfer(self, image: int, places: np.ndarray) -> np.ndarray:
        """(n, P, 2) the points (P, 2) of an image's view in the views of all images."""
        own = torch.from_numpy(np.asarray(places, dtype=np.float32))
        descriptor = self.descriptors_at(image, own)
        found, alike = self.find(descriptor, own)
        weight = alike.clamp(0, 1).square()
        weight[image] = 0
        weight = (weight / weight.sum(0).clamp(min=1e-9))[..., None]
        shown = torch.stack([self.descriptors_at(k, found[k]) for k in range(len(self))])
        typical = functional.normalize((weight * shown).sum(0), dim=1)
        if len(self) > 1:
            descriptor, own = functional.normalize(descriptor + typical, dim=1), (weight * found).sum(0)
        return self.find(descriptor, own)[0].numpy()
