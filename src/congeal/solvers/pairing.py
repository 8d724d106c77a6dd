"""Which parts of two images belong together: mutual nearest neighbours, and the similarity that most of them agree on.

Places are complex numbers here, x + iy, so that a similarity is z·p + t.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

TRIES = 300
"""Similarities that are tried for a pair, each through two of its matches."""
TOLERANCE = 0.075
"""Of the view's side: matches this far from a similarity still speak for it, with weight e^-½."""
_APART = 0.1  # of the side: two matches nearer than this do not fix a similarity
_SCALES = (0.4, 2.5)
_STEPS = 3  # of least squares after the best try
_COUNTS = 0.05  # weights below this are noise


@dataclass(frozen=True)
class Pair:
    """Matches of image a with image b, centred: places (M,) complex in each, and the weight each has at the similarity
    b = z·a + t. score: the sum of weights."""

    a: np.ndarray
    b: np.ndarray
    weight: np.ndarray
    z: complex
    t: complex
    score: float


NOTHING = Pair(np.zeros(0, complex), np.zeros(0, complex), np.zeros(0), 1 + 0j, 0j, 0.0)


@dataclass(frozen=True)
class Rules:
    """What a pair's similarity may be: at most so much rotation (radians), a scale within (low, high); tolerance in
    pixels; reach: how far matches may be apart in the two views, in pixels, None for any distance."""

    tolerance: float
    rotation: float = np.pi / 3
    scales: tuple[float, float] = _SCALES
    reach: float | None = None


def mutual(a: torch.Tensor, b: torch.Tensor, allowed: torch.Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of a (L, K) and b (M, K) that are each other's nearest among those `allowed` (L, M), and their likeness."""
    alike = torch.where(allowed, a @ b.T, torch.full((), -1.0))
    to_b, to_a = alike.argmax(1), alike.argmax(0)
    rows = torch.nonzero(to_a[to_b] == torch.arange(len(a)))[:, 0]
    value = alike[rows, to_b[rows]]
    rows, value = rows[value > 0], value[value > 0]
    return rows.numpy(), to_b[rows].numpy(), value.numpy().astype(np.float64)


def between(
    a: torch.Tensor, b: torch.Tensor, rows: np.ndarray, columns: np.ndarray, grid: tuple[int, int]
) -> np.ndarray:
    """(M,) complex, in cells: how far the cell of a (L, K) that is most like row `columns` of b lies from `rows`.

    By a parabola through the likeness of the cells left and right of it, above and below. Half a cell at most; nothing
    along the edge of the grid.
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


def agree(a: np.ndarray, b: np.ndarray, alike: np.ndarray, rules: Rules, side: float, seed: int) -> Pair:
    """The similarity that matches a (M,) → b (M,) agree on most, by trying pairs of them; NOTHING if there is none."""
    if len(a) < 4:
        return NOTHING
    generator = np.random.default_rng(seed)
    weight = alike**2 + 1e-6
    drawn = generator.choice(len(a), (TRIES, 2), p=weight / weight.sum())
    apart = a[drawn[:, 0]] - a[drawn[:, 1]]
    drawn, apart = drawn[np.abs(apart) > _APART * side], apart[np.abs(apart) > _APART * side]
    z = (b[drawn[:, 0]] - b[drawn[:, 1]]) / apart
    sound = _sound(z, rules)
    z, first = z[sound], drawn[sound, 0]
    if not len(z):
        return NOTHING
    t = b[first] - z * a[first]
    votes = (weight * _near(z[:, None] * a + t[:, None] - b, z[:, None], rules)).sum(1)
    best = int(votes.argmax())
    one_z, one_t = complex(z[best]), complex(t[best])
    for _ in range(_STEPS):
        share = weight * _near(one_z * a + one_t - b, one_z, rules)
        total = share.sum() + 1e-9
        mean_a, mean_b = (share * a).sum() / total, (share * b).sum() / total
        spread = (share * np.abs(a - mean_a) ** 2).sum() + 1e-9
        better = complex((share * (b - mean_b) * np.conj(a - mean_a)).sum() / spread)
        if not _sound(np.array([better]), rules)[0]:
            break
        one_z, one_t = better, complex(mean_b - better * mean_a)
    share = weight * _near(one_z * a + one_t - b, one_z, rules)
    kept = share > _COUNTS
    return Pair(a[kept], b[kept], share[kept], one_z, one_t, float(share.sum()))


def _sound(z: np.ndarray, rules: Rules) -> np.ndarray:
    size = np.abs(z)
    return np.asarray(
        (size > rules.scales[0]) & (size < rules.scales[1]) & (np.abs(np.angle(z)) < rules.rotation), dtype=bool
    )


def _near(error: np.ndarray, z: np.ndarray | complex, rules: Rules) -> np.ndarray:
    """Weight of errors under a similarity: measured half-way between the two images, so that neither is favoured."""
    return np.asarray(np.exp(-0.5 * (np.abs(error) / np.sqrt(np.abs(z)) / rules.tolerance) ** 2))
