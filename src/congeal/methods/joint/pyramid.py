"""The pyramid: poses are refined on tiles at finer and finer levels, up to the originals.

A level is used if it moves the inliers' poses by more than five standard errors in the median, or if their median
standard error is below 0.25 pixels of that level. The first level that is not used ends the pyramid.

At working size a pose is good to a tenth of a pixel, which is a whole pixel of a large photograph; copies of a
photograph of 512² under known homographies come back to 0.02 px instead of 0.8 (benchmarks/everyday.py precision). On
faces finer levels move poses by fewer standard errors, and are not used: fine detail differs from face to face.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from congeal.evaluation import scales
from congeal.execution.threads import single_torch_thread
from congeal.geometry.matrix import invert, normalise
from congeal.images import Stack
from congeal.images.plan import pyramid_sizes
from congeal.memmap import allocate
from congeal.methods.fit_context import FitContext
from congeal.methods.joint.model import FittedModel
from congeal.methods.joint.multistart import Multistart, register_batches
from congeal.registration.batching import CHUNK_VALUES, stack_values
from congeal.registration.features import ImageFeatures
from congeal.registration.gauge import corner_motion
from congeal.registration.tile_refinement import LevelImages, TileRefinement, refine_tiles, register_tiles
from congeal.registration.tiles import TileTemplate

MIN_STEP_ERRORS = 5.0
"""A level is used if it moves the corners by this many standard errors in the median. Between 2, where faces of LFW get
worse by finer levels, and 10, where copies of photographs stop too early (benchmarks/everyday.py)."""
PRECISE_PX = 0.25
"""… or if the median standard error is below this, in pixels of the level's own frame: then the level resolves more
than a coarser one can."""
MAX_CORRELATION_LOSS = 0.02
"""An image whose correlation with the others falls by more at a level keeps the pose it had."""
UNRELATED_CORRELATION = 0.3
"""Of the median: an image that correlates less is not aligned at all. A copy of a photograph 91 px off has 0.01, the
worst of 200 threes and of 42 photographs of one person 0.5."""


@dataclass(frozen=True)
class Pyramid:
    """What the pyramid gave.

    levels: templates of the levels that moved the poses, coarse to fine; if none did (`refines`), that of the level by
    which the errors are known. sentence: which sizes were used, and why no finer one.
    """

    poses: torch.Tensor  # (n, 3, 3) float64 stack_from_frame of the stack at working size
    # (n,) uncertainty of a corner's position, in pixels of that stack: 95 % of the mean corner displacements are below
    # twice this (`BAR_FACTOR` in registration/tiles.py)
    error: torch.Tensor
    levels: tuple[TileTemplate, ...]
    refines: bool
    sentence: str


@torch.no_grad()
def refine_on_pyramid(
    stack: Stack,
    poses: torch.Tensor,
    image_features: ImageFeatures,
    motion: str,
    keep: torch.Tensor,
    finest: int | None,
    context: FitContext,
) -> Pyramid:
    """Joint refinement at finer and finer levels, as long as they are used (`MIN_STEP_ERRORS`, `PRECISE_PX`).

    keep (n,) bool: inliers. finest: the largest size, if not that of the originals.
    """
    base, poses = max(stack.frame), poses.double()
    levels: list[TileTemplate] = []
    error, tried, why = None, None, "no finer level is available"
    for larger in _level_stacks(stack, image_features, finest):
        entry, size = poses_at(poses, stack, larger), max(larger.frame)
        with single_torch_thread():  # batches of images in parallel
            note = partial(context.note, size=size)
            result = refine_tiles(LevelImages(larger, image_features), entry, motion, keep, on_pass=note)
        steps = corner_motion(entry, result.poses, larger.frame) / _zoom(entry, larger) / result.error
        used = float(result.error[keep].nanmedian()) < PRECISE_PX or float(steps[keep].nanmedian()) > MIN_STEP_ERRORS
        if used or tried is None:
            error, tried = _errors(result, entry, larger, stack, keep), result.template
        if not used:
            why = f"{size} pixels would move poses by less than {MIN_STEP_ERRORS:g} standard errors"
            break
        worse = result.after < result.before - MAX_CORRELATION_LOSS
        poses = poses_at(torch.where(worse[:, None, None], entry, result.poses), larger, stack)
        levels.append(result.template)
    if error is None or tried is None:  # no level at all: errors at working size
        with single_torch_thread():
            result = refine_tiles(LevelImages(stack, image_features), poses, motion, keep, passes=1)
        context.note(size=base, likeness=float(result.after[keep].mean()))
        error, tried = _errors(result, poses, stack, stack, keep), result.template
    sizes = ", ".join(str(max(level.frame)) for level in levels) or str(base)
    sentence = f"Refined at {sizes} pixels ({why})."
    return Pyramid(poses, error.float(), tuple(levels) or (tried,), bool(levels), sentence)


def _level_stacks(stack: Stack, image_features: ImageFeatures, finest: int | None) -> Iterator[Stack]:
    """The stack at each size above the working size, by factors of three, the last by up to four. Photographs that have
    no larger originals are refined at working size."""
    base, native = max(stack.frame), stack.native_size
    sizes = [size for size in pyramid_sizes(base, min(native, finest or native)) if stack.has_room_at(size)]
    if not sizes and base >= native and not image_features.empty_ground:  # objects were refined on these very pixels
        yield stack
    for size in sizes:
        larger = stack.at(size)
        if larger is stack:
            return
        yield larger


def _errors(
    result: TileRefinement, entry: torch.Tensor, larger: Stack, stack: Stack, keep: torch.Tensor
) -> torch.Tensor:
    """(n,) standard errors in pixels of the working stack. Tiles of an unrelated image may agree by chance; its pose
    may be anywhere, which is an error of side / √12."""
    unrelated = result.after < UNRELATED_CORRELATION * result.after[keep].nanmedian()
    error = torch.where(unrelated, result.error.clamp(min=max(larger.frame) / 12**0.5), result.error)
    return error * _zoom(entry, larger) * max(stack.size) / max(larger.size)


@torch.no_grad()
def place_images(
    stack: Stack,
    model: FittedModel,
    restarts: int,
    random_state: int,
    context: FitContext,
    beside: dict[str, Any] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of a stack, each alone, to the template and the levels of a model: poses, and errors as in `Pyramid`.

    Unlike `refine_on_pyramid` it does not raise the error of unrelated images, and an image whose correlation falls at
    a level keeps its new pose. Where larger images of the set do not fit, all levels are dropped and errors are NaN.

    Continues where an interrupted context was saved. beside: what a checkpoint has to hold of earlier stages.
    """
    larger = [stack.at(max(level.frame), enlarge=True) for level in model.levels]
    if any(one.frame != level.frame for one, level in zip(larger, model.levels, strict=True)):
        larger = []  # larger images of so large a set do not fit
    work = _PlaceBatch(larger, stack, model, torch.as_tensor(stack.start).float().numpy(), restarts, random_state)
    poses = torch.from_numpy(allocate((len(stack), 3, 3), np.float64))
    error = torch.from_numpy(allocate((len(stack),), np.float32, np.nan))
    with single_torch_thread() as threads:
        finest = larger[-1] if larger else stack
        batches, values = register_batches(finest), stack_values(finest)
        context.map_images(
            work, batches, poses, error, state=beside, name="placed", key=work.key, values=values, threads=threads
        )
    return poses, error


class _PlaceBatch(Multistart):
    """Registration of batches of images to the template and then on the levels of the pyramid."""

    def __init__(self, larger: list[Stack], *options: Any) -> None:
        super().__init__(*options)
        self.larger = larger
        self._levels = [LevelImages(stack, self.model.image_features, cached=False) for stack in larger]

    @torch.no_grad()
    def __call__(self, part: np.ndarray) -> tuple[torch.Tensor, ...]:
        """Poses and errors of a batch of rows."""
        poses, error = super().__call__(part)[0].double(), torch.full((len(part),), torch.nan, dtype=torch.float32)
        if not self.larger:
            return poses, error
        count = -(-len(part) * stack_values(self.larger[-1]) // CHUNK_VALUES)
        for rows in np.array_split(np.arange(len(part)), min(len(part), count)):
            poses[rows], error[rows] = self._refine(part[rows], poses[rows])
        return poses, error

    def _refine(self, rows: np.ndarray, poses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A few images through all levels."""
        error = torch.empty(0)
        for level, template in zip(self._levels, self.model.levels, strict=True):
            entry = poses_at(poses, self.stack, level.stack, rows)
            entry, error = register_tiles(level, rows, entry, template, self.model.motion, moves=self.model.refines)
            error = error * _zoom(entry, level.stack) * max(self.stack.size) / max(level.stack.size)
            poses = poses_at(entry, level.stack, self.stack, rows)
        return poses, error.float()


def poses_at(poses: torch.Tensor, stack: Stack, other: Stack, rows: np.ndarray | slice = slice(None)) -> torch.Tensor:
    """stack_from_frame of the same images, `rows` of the stack, between pictures of another size."""
    left, right = torch.as_tensor(other.stack_from(stack, rows)), torch.as_tensor(stack.frame_from(other))
    return normalise(left @ poses.double() @ right)


def _zoom(poses: torch.Tensor, stack: Stack) -> torch.Tensor:
    """(n,) stack pixels along one frame pixel, at the frame's centre."""
    return torch.as_tensor(1 / scales(invert(poses.numpy()), stack.frame))
