"""Refinement of poses at one pyramid level: joint Gauss-Newton of a set on tiles of local contrast."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from congeal.evaluation import scales
from congeal.evaluation.thresholds import MAX_SCALE_RATIO
from congeal.execution.threads import available_threads, map_ordered
from congeal.geometry import MOTIONS, invert, warp
from congeal.geometry.warping import points_inside, sample_points
from congeal.images import Stack
from congeal.registration.batching import CHUNK_VALUES
from congeal.registration.features import ImageFeatures
from congeal.registration.gauge import Gauge, mean_motion, restricted
from congeal.registration.tiles import (
    MOST_TILES,
    REDUCTION_ERROR_PX,
    SAMPLING_ERROR_PX,
    Tiles,
    TileSolver,
    TileSteps,
    TileSums,
    TileTemplate,
    tile_side,
)

MAX_PASSES = 6
"""Gauss-Newton passes over a set at one level; two to four are usual."""
CONVERGED_PX = 0.005
"""Mean corner motion, in frame pixels, at which a level has converged: the error of bilinear sampling."""
CONVERGED_ERRORS = 0.1
"""The same in standard errors of a pose: steps below it are noise."""
TILE_SAMPLE = 8
"""Images from which tiles are chosen; more change the choice little (copies of four photographs)."""
CACHE_BYTES = 512 << 20
"""Local contrast of a level is kept in memory between passes up to this size, else computed again."""

SAMPLE_BYTES = 64 << 20
"""Samples on tiles of a whole set are kept up to this size, else made twice in a pass: for template and step."""

Sample = tuple[np.ndarray, torch.Tensor, torch.Tensor]
"""Rows of the stack, their values on tiles, and which tiles they cover."""


class LevelImages:
    """Local contrast of the images of a stack at its resolution, sampled on tiles.

    The neighbourhood of local contrast follows the size of the object in each image, else comparing two images would
    bias the scale. cached: local contrast is kept as it was made at the first poses that were asked for.
    """

    def __init__(self, stack: Stack, image_features: ImageFeatures, *, cached: bool = True) -> None:
        self.stack, self.image_features, self.batches = stack, image_features, _batches(stack)
        self._cached = cached and 4 * len(stack) * stack.size[0] * stack.size[1] <= CACHE_BYTES
        self._cache: dict[int, torch.Tensor] = {}

    def images(self, rows: np.ndarray, poses: torch.Tensor) -> torch.Tensor:
        """(B, 1, H, W) local contrast of a batch with poses (B, 3, 3)."""
        first = int(rows[0])
        if first in self._cache:
            return self._cache[first]
        enlarged = torch.nan_to_num(1 / torch.as_tensor(scales(invert(poses.numpy()), self.stack.frame)), 1.0)
        made = torch.empty(len(rows), 1, *self.stack.size, dtype=torch.float32)
        for k, factor in enumerate(enlarged.clamp(1 / MAX_SCALE_RATIO, MAX_SCALE_RATIO).tolist()):
            made[k : k + 1] = self.image_features.detail(self.stack.images(rows[k : k + 1]), factor)
        if self._cached:
            self._cache[first] = made
        return made

    def sample(self, poses: torch.Tensor, tiles: Tiles) -> Iterable[Sample]:
        """Every batch of rows with `on_tiles` of it; batches are sampled in parallel."""
        values = map_ordered(lambda rows: self.on_tiles(rows, poses[rows], tiles), self.batches, available_threads())
        for rows, (seen, covered) in zip(self.batches, values, strict=True):
            yield rows, seen, covered

    def on_tiles(self, rows: np.ndarray, poses: torch.Tensor, tiles: Tiles) -> tuple[torch.Tensor, torch.Tensor]:
        """Values on tiles (B, T, side + 2, side + 2), and which tiles each image covers (B, T)."""
        shape = (len(rows), len(tiles), tiles.side + 2, tiles.side + 2)
        values = sample_points(self.images(rows, poses), poses, tiles.points, tiles.frame)
        if self.image_features.empty_ground:  # beyond the edge there is empty ground, which counts
            values *= points_inside(poses, tiles.points, self.stack.size, tiles.frame)
            covered = torch.ones(shape[:2], dtype=torch.bool)
        else:
            covered = points_inside(poses, tiles.rim, self.stack.size, tiles.frame).view(*shape[:2], 4).all(2)
        masks = self.stack.masks(rows)
        if masks is not None:
            inside = sample_points(masks, poses, tiles.points, tiles.frame) > 0.5
            covered &= inside.view(*shape[:2], -1).all(2)
        return values.view(shape), covered.float()

    def choose_tiles(self, poses: torch.Tensor, keep: torch.Tensor, most: int = MOST_TILES) -> Tiles:
        """Tiles for the stack at its poses, from a sample of the inliers."""
        rows = torch.nonzero(keep)[:, 0]
        some = rows[torch.linspace(0, len(rows) - 1, min(len(rows), TILE_SAMPLE)).long()].tolist()
        seen = [
            warp(self.images(rows, poses[rows])[[i - int(rows[0])]], poses[[i]].float(), self.stack.frame)
            for rows in self.batches
            for i in some
            if rows[0] <= i <= rows[-1]
        ]
        return Tiles.choose(torch.cat(seen), most)


def _batches(stack: Stack) -> list[np.ndarray]:
    """Successive rows of which values on tiles stay in the processor's cache."""
    pixels = stack.size[0] * stack.size[1]
    sampled = min(pixels, MOST_TILES * tile_side(stack.frame) ** 2)
    count = max(-(-len(stack) * sampled // CHUNK_VALUES), -(-len(stack) * pixels // (16 * CHUNK_VALUES)))
    return np.array_split(np.arange(len(stack)), min(len(stack), count))


@dataclass(frozen=True)
class TileRefinement:
    """What refinement at a level gave for n images."""

    poses: torch.Tensor  # (n, 3, 3) float64 stack_from_frame at this level
    error: torch.Tensor  # (n,) standard error of a corner's position, in frame pixels
    before: torch.Tensor  # (n,) correlation with the mean of the others, at first
    after: torch.Tensor  # … and in the end
    template: TileTemplate  # what they were compared with in the end


@torch.no_grad()
def refine_tiles(
    level: LevelImages,
    poses: torch.Tensor,
    motion: str,
    keep: torch.Tensor,
    *,
    passes: int = MAX_PASSES,
    tiles: Tiles | None = None,
    on_pass: Callable[..., None] | None = None,
) -> TileRefinement:
    """Joint Gauss-Newton of a stack at its resolution; the mean pose of the inliers stays where it is.

    keep (n,) bool: inliers, which make the template. on_pass(moved=…, likeness=…) is called after every pass with
    the mean corner motion in frame pixels and the mean correlation of the inliers.
    """
    found = poses.double()
    gauge = Gauge(found[keep], level.stack.frame, motion)
    tiles = tiles or level.choose_tiles(found, keep)
    small = 4 * len(found) * len(tiles.points) <= SAMPLE_BYTES
    # All images move at once, so each goes to the mean of all, not all the way to that of the others.
    to_mean = 1 - keep.double() / keep.sum().clamp(min=1)
    before, template = None, None
    for _ in range(passes):
        kept = list(level.sample(found, tiles)) if small else None
        template = _template(level, kept or level.sample(found, tiles), keep, tiles)
        solver, moved, steps = TileSolver(template, motion), torch.empty_like(found), []
        for rows, values, covered in kept or level.sample(found, tiles):
            step = solver.solve(values, covered, keep[rows])
            moved[rows] = solver.newton.compose(found[rows], step.delta * to_mean[rows, None])
            steps.append(step)
        error = torch.cat([step.error for step in steps]) * to_mean
        after = torch.cat([step.correlation for step in steps])
        before = after if before is None else before
        moved = gauge.fix(moved, None, keep)
        change = mean_motion(found, moved, level.stack.frame)
        if on_pass is not None:
            on_pass(moved=change, likeness=float(after[keep].mean()))
        found = moved
        if change < max(CONVERGED_PX, CONVERGED_ERRORS * float(error[keep].nanmedian())):
            break
    assert before is not None
    assert template is not None
    return TileRefinement(found, error, before, after, template)


def _template(level: LevelImages, samples: Iterable[Sample], keep: torch.Tensor, tiles: Tiles) -> TileTemplate:
    """The mean of the inliers."""
    reduced = level.stack.native_size > max(level.stack.frame)
    sums = TileSums(tiles, REDUCTION_ERROR_PX if reduced else SAMPLING_ERROR_PX)
    for rows, values, covered in samples:
        sums.add(values[keep[rows]], covered[keep[rows]])
    return sums.template()


@torch.no_grad()
def register_tiles(
    level: LevelImages,
    rows: np.ndarray,
    poses: torch.Tensor,
    template: TileTemplate,
    motion: str,
    *,
    moves: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each of a batch of new images alone to a given template: poses, and their standard errors in frame pixels.

    moves: False leaves the poses as they are and only gives their errors.
    """
    solver, found, member = TileSolver(template, motion), poses.double(), torch.zeros(len(rows), dtype=torch.bool)

    def solve() -> TileSteps:
        return solver.solve(*level.on_tiles(rows, found, template.tiles), member)

    for _ in range(MAX_PASSES if moves else 0):
        found = solver.newton.compose(found, solve().delta)
    return found, solve().error


# ---- choice of the motion: nested motions are compared by the share of each image's variance that the other images
# explain, corrected for overfitting; a larger motion must win by more than chance, image by image

TRIAL_PASSES, TRIAL_TILES = 2, 64
"""Refinement passes and tiles with which each motion is tried: enough to order them (everyday.py precision)."""
MIN_GAIN = 0.01
"""Share of the unexplained variance that a larger motion must explain, however significant less would be. Under noise
and changing blur a parameter too many takes 0.3 % (the clip of docs/tutorials/lunar.md), the true motion of copies 2 %
and more (python benchmarks/golden.py)."""
GAIN_ERRORS = 2.0
"""Standard errors by which the gain must exceed zero over all images."""


@dataclass(frozen=True)
class MotionChoice:
    """The chosen motion, and the mean explained variance with every motion that was tried."""

    motion: str
    explained_variance: dict[str, float]

    def sentence(self) -> str:
        """What was chosen, and what the next larger motion, or else the next smaller one, explains."""
        share, rank = self.explained_variance, MOTIONS.index(self.motion)
        larger = [name for name in MOTIONS[rank + 1 :] if name in share]
        other = (larger or [name for name in MOTIONS[:rank][::-1] if name in share])[0]
        text = f"{self.motion} {'suffices' if larger else 'fits best'}: the other images explain"
        return f"{text} {share[self.motion]:.1%} of each image ({other}: {share[other]:.1%})."


@torch.no_grad()
def choose_motion(
    level: LevelImages, poses: torch.Tensor, start: torch.Tensor, keep: torch.Tensor, motions: Sequence[str] = MOTIONS
) -> MotionChoice:
    """The simplest sufficient motion of a stack, from poses that the largest of `motions` found.

    poses, start: stack_from_frame (n, 3, 3) at the level. keep (n,) bool: inliers.
    """
    poses, tiles = poses.double(), level.choose_tiles(poses.double(), keep, most=TRIAL_TILES)
    variance: torch.Tensor | None = None

    def explain(motion: str) -> torch.Tensor:
        nonlocal variance
        begin = restricted(poses, start, motion, level.stack.frame)
        refined = refine_tiles(level, begin, motion, keep, passes=TRIAL_PASSES, tiles=tiles)
        variance = refined.template.variance if variance is None else variance
        solver = TileSolver(refined.template, motion)
        parts = [
            solver.explained_variance(values, covered, keep[rows], variance)
            for rows, values, covered in level.sample(refined.poses, tiles)
        ]
        return torch.cat(parts)[keep]

    return simplest(explain, motions)


def simplest(explain: Callable[[str], torch.Tensor], motions: Sequence[str] = MOTIONS) -> MotionChoice:
    """The simplest sufficient motion; explain: the explained variance of n images (n,) with one motion.

    From the simplest on, a motion is compared with the next one and with the largest; the rest need not be tried.
    """
    chosen, tried = motions[-1], {motions[-1]: explain(motions[-1])}
    for motion, following in pairwise(motions):
        for other in (motion, following):
            if other not in tried:
                tried[other] = explain(other)
        if not any(_explains_more(tried[other], tried[motion]) for other in (motions[-1], following)):
            chosen = motion
            break
    return MotionChoice(chosen, {name: float(tried[name].nanmean()) for name in motions if name in tried})


def _explains_more(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether one motion explains more of the images than another, by more than chance."""
    known = one.isfinite() & other.isfinite()
    if known.sum() < 2:
        return False
    # Unexplained shares are compared by their logarithms: one image may gain far more than the rest.
    less, more = ((1 - each[known]).clamp(min=1e-6).log() for each in (other, one))
    gain = less - more
    return float(gain.mean()) > max(MIN_GAIN, GAIN_ERRORS * float(gain.std()) / len(gain) ** 0.5)
