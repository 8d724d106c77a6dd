"""The pyramid: poses are refined on tiles at finer and finer levels, up to the originals, while that moves them.

At working size a pose is good to a tenth of a pixel, which is a whole pixel of a large photograph; copies of a
photograph of 512² under known homographies come back to 0.02 px instead of 0.8 (benchmarks/everyday.py precision). On
faces finer levels move poses by less than their error, and are not used: fine detail differs from face to face.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from congeal.evaluation import scales
from congeal.execution import key_of
from congeal.execution.threads import single_torch_thread
from congeal.geometry.matrix import invert, normalise
from congeal.images import Stack
from congeal.images.plan import pyramid_sizes
from congeal.memmap import allocate
from congeal.methods.fit_context import FitContext
from congeal.methods.joint.fitted_model import FittedModel
from congeal.registration.batching import chunks, stack_values
from congeal.registration.features import ImageFeatures
from congeal.registration.gauge import corner_motion
from congeal.registration.tile_refinement import MAX_PASSES, LevelImages, TileRefinement, refine_tiles, register_tiles
from congeal.registration.tiles import TileTemplate
from congeal.rows import row_slices

MIN_STEP_ERRORS = 5.0
"""A level is used if it moves the corners by this many standard errors in the median. Between 2, where faces of LFW get
worse by finer levels, and 10, where copies of photographs stop too early (benchmarks/everyday.py)."""
PRECISE_PX = 0.25
"""… or if its standard error is below this: then the level resolves more than a coarser one can."""
MAX_CORRELATION_LOSS = 0.02
"""An image whose correlation with the others falls by more at a level keeps the pose it had."""
UNRELATED_CORRELATION = 0.3
"""Of the median: an image that correlates less is not aligned at all. A copy of a photograph 91 px off has 0.01, the
worst of 200 threes and of 42 photographs of one person 0.5."""


@dataclass(frozen=True)
class Pyramid:
    """What the pyramid gave.

    Attributes
    ----------
    poses : (n, 3, 3) tensor
        stack_from_frame of the stack at working size, in float64.
    error : (n,) tensor
        Standard error of a corner's position, in pixels of that stack.
    levels : tuple of TileTemplate
        Templates of the levels that moved the poses, coarse to fine.
    last : TileTemplate
        The template by which the errors are known; the last of `levels`, or of a level that was tried and not used.
    sentence : str
        Which sizes were used, and why no finer one.
    """

    poses: torch.Tensor
    error: torch.Tensor
    levels: tuple[TileTemplate, ...]
    last: TileTemplate
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
    known: LevelImages | None = None,
) -> Pyramid:
    """Joint refinement at finer and finer levels, as long as they move the poses by more than their error.

    keep (n,) bool: inliers. finest: the largest size, if not that of the originals. known: images of one of the levels,
    if they are at hand.
    """
    native, base, poses = stack.native_size, max(stack.frame), poses.double()
    levels: list[TileTemplate] = []
    error, last, why = None, None, "no finer level is available"
    for larger in _level_stacks(stack, image_features, finest):
        size = max(larger.frame)
        entry = poses_at(poses, stack, larger)
        with single_torch_thread():  # batches of images in parallel
            images = known if known is not None and known.stack is larger else LevelImages(larger, image_features)
            result = refine_tiles(images, entry, motion, keep, on_pass=partial(_report, context, size))
        used = _improves(entry, result, larger, keep)
        if used:
            worse = result.after < result.before - MAX_CORRELATION_LOSS
            poses = poses_at(torch.where(worse[:, None, None], entry, result.poses), larger, stack)
            levels.append(result.template)
        if used or error is None:
            error, last = _errors(result, entry, larger, stack, keep), result.template
        if not used:
            why = f"{size} pixels would move poses by less than their error"
            break
    if error is None or last is None:  # no level at all: errors at working size
        with single_torch_thread():
            entry = poses
            result = refine_tiles(LevelImages(stack, image_features), entry, motion, keep, passes=1)
            context.note(size=base, likeness=float(result.after[keep].mean()))
        error, last = _errors(result, entry, stack, stack, keep), result.template
    sizes = ", ".join(str(max(level.frame)) for level in levels) if levels else str(base)
    precision = float(error[keep].nanmedian()) * native / max(stack.size)
    sentence = f"Refined at {sizes} pixels ({why}); poses are known to {precision:.2g} pixels of the originals."
    return Pyramid(poses, error.float(), tuple(levels), last, sentence)


def _level_stacks(stack: Stack, image_features: ImageFeatures, finest: int | None) -> Iterator[Stack]:
    """The stack at each size above the working size, by factors of two; photographs of working size themselves."""
    base, native = max(stack.frame), stack.native_size
    sizes = [size for size in pyramid_sizes(base, min(native, finest or native)) if stack.has_room_at(size)]
    if not sizes and base >= native and not image_features.empty_ground:  # objects were refined on these very pixels
        yield stack
    for size in sizes:
        larger = stack.at(size)
        if larger is stack:
            return
        yield larger


def _improves(entry: torch.Tensor, result: TileRefinement, stack: Stack, keep: torch.Tensor) -> bool:
    """Whether a level resolves more than was known before."""
    moved = corner_motion(entry, result.poses, stack.frame) / _zoom(entry, stack)
    precise = float(result.error[keep].nanmedian()) < PRECISE_PX
    return precise or float((moved / result.error)[keep].nanmedian()) > MIN_STEP_ERRORS


def _errors(
    result: TileRefinement, entry: torch.Tensor, larger: Stack, stack: Stack, keep: torch.Tensor
) -> torch.Tensor:
    """(n,) standard errors in pixels of the working stack. Tiles of an unrelated image may agree by chance; its pose
    may be anywhere, which is an error of side / √12."""
    unrelated = result.after < UNRELATED_CORRELATION * result.after[keep].nanmedian()
    error = torch.where(unrelated, result.error.clamp(min=max(larger.frame) / 12**0.5), result.error)
    return error * _zoom(entry, larger) * max(stack.size) / max(larger.size)


def _report(context: FitContext, size: int, moved: float, correlation: float) -> None:
    context.note(size=size, moved=moved, likeness=correlation)


@torch.no_grad()
def register_on_pyramid(
    stack: Stack, poses: torch.Tensor, model: FittedModel, context: FitContext, beside: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """New images, each alone, through the levels of a fitted model: poses, and errors as in `Pyramid`.

    beside: what a checkpoint has to hold of earlier stages.
    """
    last = model.last_level
    steps = [(level, MAX_PASSES) for level in model.levels] or ([(last, 0)] if last is not None else [])
    larger = [stack.at(max(level.frame), enlarge=True) for level, _ in steps]
    found = torch.from_numpy(allocate(tuple(poses.shape), np.float64))
    error = torch.from_numpy(allocate((len(poses),), np.float32, np.nan))
    for part in row_slices(len(poses)):
        found[part] = poses[part].double()
    if not steps or any(one.frame != level.frame for one, (level, _) in zip(larger, steps, strict=True)):
        return found, error  # larger images of so large a set do not fit
    work = _RegisterBatch(stack, larger, steps, model.image_features, model.motion, poses.numpy())

    with single_torch_thread():
        batches, values = chunks(larger[-1]), stack_values(larger[-1])
        context.map_images(work, batches, found, error, state=beside, name="refined", key=work.key, values=values)
    return found, error


@dataclass
class _RegisterBatch:
    """Registration of a batch of new images on the pyramid, in this process or another."""

    stack: Stack
    larger: list[Stack]
    steps: list[tuple[TileTemplate, int]]
    image_features: ImageFeatures
    motion: str
    poses: np.ndarray

    @cached_property
    def _levels(self) -> list[LevelImages]:
        return [LevelImages(stack, self.image_features, cached=False) for stack in self.larger]

    def __call__(self, part: np.ndarray) -> tuple[torch.Tensor, ...]:
        poses, error = torch.from_numpy(self.poses[part]).double(), torch.empty(0)
        for level, (template, passes) in zip(self._levels, self.steps, strict=True):
            entry = poses_at(poses, self.stack, level.stack, part)
            entry, error = register_tiles(level, part, entry, template, self.motion, passes)
            error = error * _zoom(entry, level.stack) * max(self.stack.size) / max(level.stack.size)
            poses = poses_at(entry, level.stack, self.stack, part)
        return poses, error.float()

    def key(self) -> str:
        """What the answer depends on, besides the images."""
        levels = [
            (one.frame, one.tiles.side, one.tiles.corner, one.mean, one.variance, one.count, one.sampling_error, passes)
            for one, passes in self.steps
        ]
        return key_of("pyramid", levels, self.image_features.kind, self.motion, self.poses, self.stack.kept)


def poses_at(poses: torch.Tensor, stack: Stack, other: Stack, rows: np.ndarray | slice = slice(None)) -> torch.Tensor:
    """stack_from_frame of the same images, `rows` of the stack, between pictures of another size."""
    left, right = torch.as_tensor(other.stack_from(stack, rows)), torch.as_tensor(stack.frame_from(other))
    return normalise(left @ poses.double() @ right)


def _zoom(poses: torch.Tensor, stack: Stack) -> torch.Tensor:
    """(n,) stack pixels along one frame pixel, at the frame's centre."""
    return torch.as_tensor(1 / scales(invert(poses.numpy()), stack.frame))
