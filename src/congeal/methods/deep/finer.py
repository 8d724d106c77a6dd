"""Stage 5, finer: poses in larger and larger pictures, up to the originals, for as long as that moves them by more
than they are uncertain; and an error bar for every pose.

Why: at working size a pose is good to a tenth of a pixel, which is a whole pixel of a large photograph. What it buys:
copies of a photograph of 512² under known homographies come back to 0.02 px instead of 0.8 (benchmarks/everyday.py
precision). On faces finer pictures move poses by less than their error, and then they are left alone: what is sharp
differs from one face to the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import inf
from typing import Any

import numpy as np
import torch

from congeal.distributed.broadcast import key_of
from congeal.geometry.matrix import corners, invert, map_points, normalise
from congeal.images import Stack
from congeal.images.levels import finer_sizes
from congeal.mapped import room, runs
from congeal.methods.job import Job, Spread
from congeal.metrics import scales
from congeal.solvers.appearance import Appearance
from congeal.solvers.between import Between
from congeal.solvers.gauge import corner_motion
from congeal.solvers.level import Level
from congeal.solvers.sharpen import PASSES, STILL, Details, Sharpened, sharpen, sharpen_alone
from congeal.solvers.streaming import chunks, stack_values
from congeal.solvers.threads import one_thread
from congeal.solvers.values import Valued, sharpen_values, values_alone

_FINE_ENOUGH = 0.02  # pixels of the originals: a pose this sure is sure enough for every use
_SHARP = 0.25  # pixels of a level: poses that are surer than this are better than those of a coarser level; others …
_WORTH = 5.0  # … must move a corner by so many standard errors, in the median, or the coarser level knew better
_ALL_TILES, _POLISH = 1024, 1  # tiles and passes of the last look: few tiles bring a pose near, all make it sharp
_NEAR = 0.05  # pixels of corner motion at which a level has settled if a finer look follows, which settles the rest
_MOST_LOOKED_AT = 24_000  # tiles of all images together in the last look on plain values, so that it costs little …
_MORE = 3  # times as many tiles for motions that have more parameters to know by them
_LEAST_LOOKED_AT = 128  # … and of one image: larger sets do without
_MOST_PIXELS = 64_000_000  # of all originals together that it is taken at; of more, at the size of the last level
_IN_REACH = 0.25  # pixels of the originals: poses that are so sure by a smaller level go on on plain values at once
_CONTRADICTED = 5.0  # standard errors of a pose by local contrast that plain values may move a corner by, …
_MOST = 0.8  # … of these images at least; of all, if levels of local contrast are left out for them
_APART = 1.15  # of the error bar: rms of the corners' mean distance, with 2 to 4 freedoms and 30 blocks 1.11 to 1.22
_ALIKE = 0.3  # of their errors that two ways to look at the same pixels share at least
_UNLIKE = 0.3  # of the usual likeness: with less, an image is lost. A copy of china that is 91 pixels off has 0.01, the
# least alike of 200 threes and of 42 photographs of Jennifer Capriati 0.5
_ANYWHERE = 12**-0.5  # of the frame's side: how far from its place an image is that may have any
_LESS_ALIKE = 0.02  # likeness that an image may lose to a finer level before it is put back


@dataclass(frozen=True)
class Finer:
    """What finer levels did.

    Attributes
    ----------
    poses : (n, 3, 3) tensor
        stack_from_frame of the stack at working size, in float64.
    error : (n,) tensor
        Standard error of a corner's position, in pixels of that stack.
    levels : tuple of Level
        Those that moved the poses, coarse to fine.
    judge : Level
        The one that says how sure the poses are.
    sentence : str
        Which sizes were worked at, and why no finer one.
    """

    poses: torch.Tensor
    error: torch.Tensor
    levels: tuple[Level, ...]
    judge: Level
    sentence: str

    @property
    def sizes(self) -> tuple[int, ...]:
        """Longer sides of the frames of the levels."""
        return tuple(max(level.frame) for level in self.levels)


@dataclass
class _Climb:
    """Where the poses of a stack are by now. finest: the largest size that it may be looked at."""

    stack: Stack
    poses: torch.Tensor
    finest: int
    levels: list[Level] = field(default_factory=list)
    last: tuple[Sharpened, Details] | None = None

    def at(self, larger: Stack) -> torch.Tensor:
        """The poses between the pictures of a larger stack."""
        return poses_at(self.poses, self.stack, larger)

    def take(self, done: Sharpened, details: Details) -> None:
        """Take over what a level found, but for images that it made less alike."""
        larger = details.stack
        worse = done.after < done.before - _LESS_ALIKE
        self.poses = poses_at(torch.where(worse[:, None, None], self.at(larger), done.poses), larger, self.stack)
        self.levels.append(done.level)
        self.last = done, details


@torch.no_grad()
def go_finer(
    stack: Stack,
    poses: torch.Tensor,
    appearance: Appearance,
    motion: str,
    keep: torch.Tensor,
    finest: int | None,
    job: Job,
    known: Details | None = None,
) -> Finer:
    """Joint steps at finer and finer levels.

    keep (n,) bool: images that match. finest: the largest size, if not that of the originals. known: what was already
    made of one of the larger stacks.
    """
    native, base = stack.native_size, max(stack.frame)
    climb = _Climb(stack, poses.double(), min(native, finest or native))
    values_follow = _value_tiles(stack, appearance, motion) > 0
    sizes = [size for size in finer_sizes(base, climb.finest) if stack.has_room_at(size)]
    for size in sizes:
        larger = stack.at(size)
        if larger is stack:  # not to be had
            break
        entry = climb.at(larger)
        still = partial(_still, inf if values_follow else 0.0 if size == sizes[-1] else native / size)
        with one_thread():  # runs of images side by side
            details = known if known is not None and known.stack is larger else Details(larger, appearance)
            done = sharpen(details, entry, motion, keep, still=still, on_pass=partial(_note, job, size))
        unsure, known_better = float(done.error[keep].nanmedian()), _better(entry, done, larger, keep)
        if not climb.levels and not known_better:
            why = f"Pictures of {size} pixels would move poses by less than their error; those of {base} decided."
            return _finish(climb, larger, done, _bar(done, details, motion, keep), why)
        climb.take(done, details)
        if unsure * native / size <= _FINE_ENOUGH or not known_better:
            break
        # Pictures between these and the originals would only lead there. Local contrast of the originals themselves is
        # worth its time: it knows nearly as much as plain values, and errs in other ways.
        if size not in sizes[-2:] and unsure * climb.finest / size <= _IN_REACH and _has_time(climb, climb.finest):
            by_values = _on_values(climb, motion, keep, all_agree=True)
            if by_values is not None:
                return by_values
    if climb.levels:
        return _polished(climb, motion, keep, job)
    with one_thread():
        details = Details(stack, appearance)
        if base >= native and not appearance.empty_ground:  # objects were refined on these very pixels
            done = sharpen(details, climb.poses, motion, keep, on_pass=partial(_note, job, base))
            if _better(climb.poses, done, stack, keep):
                climb.take(done, details)
                return _polished(climb, motion, keep, job)

        def judged(_: float, likeness: float) -> None:
            job.note(size=base, likeness=likeness)  # nothing is moved

        done = sharpen(details, climb.poses, motion, keep, passes=1, on_pass=judged)
    why = "as fine as the images are" if base >= native else "larger pictures were not asked for or not to be had"
    return _finish(climb, stack, done, _bar(done, details, motion, keep), f"Worked at {base} pixels: {why}.")


def _better(entry: torch.Tensor, done: Sharpened, stack: Stack, keep: torch.Tensor) -> bool:
    """Whether a level knows better than what was known before."""
    moved = corner_motion(entry, done.poses, stack.frame) / _zoom(entry, stack)
    return float(done.error[keep].nanmedian()) < _SHARP or float((moved / done.error)[keep].nanmedian()) > _WORTH


def _polished(climb: _Climb, motion: str, keep: torch.Tensor, job: Job) -> Finer:
    """The last level once more with every tile there is, if poses are sure enough for that to show: on plain values,
    or on local contrast where these know less."""
    assert climb.last is not None
    done, details = climb.last
    stack, larger = climb.stack, details.stack
    by_values = _on_values(climb, motion, keep)
    if by_values is not None:
        return by_values
    with one_thread():
        unsure = float(done.error[keep].nanmedian())
        # More tiles lower what noise adds to the error, not what sampling does.
        helps = 2 * done.level.floor < unsure < _SHARP
        tiles = details.tiles(done.poses, keep, most=_ALL_TILES) if helps else done.level.tiles
        unsettled = _value_tiles(stack, details.appearance, motion) > 0
        if unsettled or len(tiles) > len(done.level.tiles):
            climb.levels.pop()
            passes, told = PASSES if unsettled else _POLISH, partial(_note, job, max(larger.frame))
            done = sharpen(details, climb.at(larger), motion, keep, passes=passes, tiles=tiles, on_pass=told)
            climb.take(done, details)
    bar = _bar(done, details, motion, keep)
    sure = float(bar[keep].nanmedian()) * stack.native_size / max(larger.frame)
    why = f"{_worked_at(climb)}: poses are known to {sure:.2g} pixels of the originals."
    return _finish(climb, larger, done, bar, why)


def _worked_at(climb: _Climb) -> str:
    """Which sizes, in words."""
    finer = ", ".join(str(max(level.frame)) for level in climb.levels if level.frame != climb.stack.frame)
    return f"Worked at {max(climb.stack.frame)} pixels" + (f", then {finer}" if finer else "")


def _on_values(climb: _Climb, motion: str, keep: torch.Tensor, *, all_agree: bool = False) -> Finer | None:
    """Poses on plain values and those on local contrast, weighed by their variances; None where plain values know less
    or contradict local contrast, which no light misleads. all_agree: they take the place of levels that are left out,
    for new images too, and may contradict it in no image."""
    assert climb.last is not None
    done, details = climb.last
    stack, larger, most = climb.stack, details.stack, _value_tiles(climb.stack, details.appearance, motion)
    if not most or float(done.error[keep].nanmedian()) > _SHARP:
        return None
    finest = stack.at(climb.finest) if _has_time(climb, climb.finest) else larger
    finest = larger if finest is stack else finest
    values, entry = Details(finest, details.appearance, plain=True), climb.at(finest)
    found = sharpen_values(values, entry, motion, keep, values.tiles(entry, keep, most=most))
    larger_by = max(finest.frame) / max(larger.frame)
    theirs = done.error * larger_by
    error = torch.where(keep, found.error, torch.nan)
    poses, weight, agree = _weighed(entry, theirs, found.poses, error, finest)
    surer = float(found.error[keep].nanmedian()) <= float(theirs[keep].nanmedian())
    if not surer or float(agree[keep].double().mean()) < (1.0 if all_agree else _MOST):
        return None
    bars = _bar(done, details, motion, keep) * larger_by, found.bar
    bar = _joined(_mean_distance(entry, found.poses, finest) / _APART, *bars, weight, agree)
    bar = torch.hypot(bar, _parted_by_exposure(entry, found, finest, agree & keep) / _APART)
    climb.poses = poses_at(poses, finest, stack)
    sure = float(bar[keep].nanmedian()) * stack.native_size / max(finest.frame)
    done_at = f"{_worked_at(climb)}, at last on plain values of {max(finest.frame)} pixels"
    why = f"{done_at}: poses are known to {sure:.2g} pixels of the originals."
    levels = (*climb.levels, found.level) if all_agree else tuple(climb.levels)
    return Finer(climb.poses, _in_stack(bar, climb, finest).float(), levels, levels[-1], why)


def _weighed(
    entry: torch.Tensor, theirs: torch.Tensor, found: torch.Tensor, error: torch.Tensor, stack: Stack
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Poses by local contrast (entry, and `theirs`, their errors) and by plain values together; what the latter weigh;
    and where both agree. Where they do not, or plain values know nothing, it is as local contrast says."""
    away = corner_motion(entry, found, stack.frame) / _zoom(entry, stack)
    agree = (away < _CONTRADICTED * theirs) & error.isfinite()
    weight = torch.where(agree, theirs**2 / (theirs**2 + error**2), 0.0)
    both = torch.lerp(normalise(entry), normalise(found), weight[:, None, None])
    return torch.where(agree[:, None, None], both, entry), weight, agree


def _mean_distance(one: torch.Tensor, other: torch.Tensor, stack: Stack) -> torch.Tensor:
    """(n,) mean distance of the frame's corners between two sets of poses, in frame pixels."""
    return _corners_apart(one, other, stack).norm(dim=-1).mean(-1)


def _corners_apart(one: torch.Tensor, other: torch.Tensor, stack: Stack) -> torch.Tensor:
    """(n, 4, 2) from the frame's corners by one set of poses to those by another, in frame pixels."""
    frame = torch.as_tensor(corners(stack.frame))
    return (map_points(other, frame) - map_points(one, frame)) / _zoom(one, stack)[:, None, None]


def _parted_by_exposure(entry: torch.Tensor, found: Valued, stack: Stack, agree: torch.Tensor) -> torch.Tensor:
    """(n,) mean distance of corners, in frame pixels, by which local contrast and plain values part with the exposure:
    where light misleads one of them, by a highlight that is clipped on one side, it may mislead both."""
    apart = _corners_apart(entry, found.poses, stack).flatten(1)
    brighter = found.brightness - found.brightness[agree].mean()
    apart = apart - apart[agree].mean(0)
    spread = brighter[agree].square().sum()
    if not spread > 0:
        return torch.zeros_like(brighter)
    by_exposure = brighter[agree] @ apart[agree] / spread
    return (brighter[:, None] * by_exposure).view(-1, 4, 2).norm(dim=2).mean(1)


def _joined(
    away: torch.Tensor, one: torch.Tensor, other: torch.Tensor, weight: torch.Tensor, agree: torch.Tensor
) -> torch.Tensor:
    """(n,) error of what lies by `weight` between two answers with an error each, which are `away` from each other; as
    that of the first where they do not agree.

    How far apart they are, over all images where they agree, says how far they err alike: if not at all, by the root of
    the sum of their squares. If they are farther apart than that, both are less sure than they think.
    """
    apart = away[agree].square().mean()
    squares, product = (one.square() + other.square())[agree].mean(), (one * other)[agree].mean()
    alike = ((squares - apart) / (2 * product)).clamp(_ALIKE, 1).nan_to_num(1.0)
    mine, theirs = weight * other, (1 - weight) * one
    both = (mine.square() + theirs.square() + 2 * alike * mine * theirs).sqrt()
    return torch.where(agree, both * (apart / squares).sqrt().clamp(min=1).nan_to_num(1.0), one)


def _bar(done: Sharpened, details: Details, motion: str, keep: torch.Tensor) -> torch.Tensor:
    """(n,) error bars of poses by local contrast, in frame pixels of the level.

    Tiles of an image that shows something else, or is lost, vote as well, and may even agree. They know nothing.
    """
    level, shrunk = done.level, details.stack.native_size > max(details.stack.frame)
    bar, between, least = torch.empty_like(done.noise), Between(level, motion), level.floor if shrunk else None
    for part in runs(len(bar)):
        bar[part] = between.bar(done.noise[part], between.alike(done.poses[part]), least)
    lost = done.after < _UNLIKE * done.after[keep].nanmedian()
    return torch.where(lost, bar.clamp(min=_ANYWHERE * max(level.frame)), bar)


def _has_time(climb: _Climb, size: int) -> bool:
    """Whether the stack may be looked at in pictures of this size once more, for plain values."""
    return len(climb.stack) * size**2 <= _MOST_PIXELS


def _value_tiles(stack: Stack, appearance: Appearance, motion: str) -> int:
    """How many tiles of plain values there is time for; 0: none."""
    most = min(_ALL_TILES, _MOST_LOOKED_AT // len(stack))
    if appearance.empty_ground or most < _LEAST_LOOKED_AT:
        return 0
    return most * _MORE if motion in ("affine", "homography") else most


def _still(originals: float, unsure: float) -> float:
    """Corner motion at which a level has settled. originals: of their pixels so many are one of the level; 0 for the
    last, and without end if plain values are to follow."""
    return _NEAR if originals * unsure > _FINE_ENOUGH else STILL


def _note(job: Job, size: int, moved: float, likeness: float) -> None:
    job.note(size=size, moved=moved, likeness=likeness)


def _finish(climb: _Climb, judged_at: Stack, done: Sharpened, bar: torch.Tensor, sentence: str) -> Finer:
    error = _in_stack(bar, climb, judged_at)
    return Finer(climb.poses, error.float(), tuple(climb.levels), done.level, sentence)


def _in_stack(error: torch.Tensor, climb: _Climb, judged_at: Stack) -> torch.Tensor:
    """Errors in frame pixels of one stack, in pixels of the stack that was begun with."""
    return error * _zoom(climb.at(judged_at), judged_at) * max(climb.stack.size) / max(judged_at.size)


@torch.no_grad()
def finer_alone(
    stack: Stack,
    poses: torch.Tensor,
    appearance: Appearance,
    motion: str,
    levels: Sequence[Level],
    judge: Level | None,
    job: Job,
    beside: Mapping[str, Any],
) -> tuple[torch.Tensor, torch.Tensor]:
    """New images, each alone, through the levels of a fitted model: poses, and errors as in `Finer`.

    beside: what a checkpoint has to hold of what came before.
    """
    steps = [(level, PASSES) for level in levels] or ([(judge, 0)] if judge is not None else [])
    larger = [stack.at(max(level.frame), enlarge=True) for level, _ in steps]
    found, error = torch.from_numpy(room(tuple(poses.shape), np.float64)), room((len(poses),), np.float32, np.nan)
    for part in runs(len(poses)):
        found[part] = poses[part].double()
    if not steps or any(one.frame != level.frame for one, (level, _) in zip(larger, steps, strict=True)):
        return found, torch.from_numpy(error)  # larger pictures of so many images were not to be had
    alone = _Alone(stack, larger, steps, appearance, motion, poses.numpy())

    def work(parts: Sequence[np.ndarray]) -> Iterator[tuple[torch.Tensor, ...]]:
        with one_thread():
            yield from map(alone, parts)

    spread = Spread(alone, alone.key(), stack_values(larger[-1])) if job.crew is not None else None
    job.place(chunks(larger[-1]), work, found, torch.from_numpy(error), beside=beside, name="sharpened", spread=spread)
    return found, torch.from_numpy(error)


@dataclass
class _Alone:
    """What finer levels do with a run of new images, in this process or another."""

    stack: Stack
    larger: list[Stack]
    steps: list[tuple[Level, int]]
    appearance: Appearance
    motion: str
    poses: np.ndarray

    @cached_property
    def _details(self) -> list[Details]:
        plain = [level.plain for level, _ in self.steps]
        both = zip(self.larger, plain, strict=True)
        return [Details(stack, self.appearance, keep=False, plain=values) for stack, values in both]

    def __call__(self, part: np.ndarray) -> tuple[torch.Tensor, ...]:
        here, unsure, before = torch.from_numpy(self.poses[part]).double(), torch.empty(0), self.stack.frame
        for detail, (level, passes) in zip(self._details, self.steps, strict=True):
            entry = poses_at(here, self.stack, detail.stack, part)
            if not level.plain:
                there, unsure = sharpen_alone(detail, part, entry, level, self.motion, passes)
            else:
                theirs = unsure * max(detail.stack.frame) / max(before)
                found = values_alone(detail, part, entry, level, self.motion)
                there, weight, _ = _weighed(entry, theirs, *found, detail.stack)
                unsure = torch.lerp(theirs, found[1].nan_to_num(), weight)  # no set says how far both err alike
            before = level.frame
            here = poses_at(there, detail.stack, self.stack, part)
        scale = _zoom(there, detail.stack) * max(self.stack.size) / max(detail.stack.size)
        return here, (unsure * scale).float()

    def key(self) -> str:
        """What the answer depends on, besides the images."""
        levels = [
            (level.tiles.frame, level.tiles.side, level.tiles.corner, level.template, level.noise, level.count, passes)
            for level, passes in self.steps
        ]
        more = [(level.floor, level.common.tensor(), level.plain) for level, _ in self.steps]
        return key_of("finer", levels, more, self.appearance.kind, self.motion, self.poses, self.stack.kept)


def poses_at(poses: torch.Tensor, stack: Stack, other: Stack, rows: np.ndarray | slice = slice(None)) -> torch.Tensor:
    """stack_from_frame of the same images, `rows` of the stack, between pictures of another size."""
    left, right = torch.as_tensor(other.stack_from(stack, rows)), torch.as_tensor(stack.frame_from(other))
    return normalise(left @ poses.double() @ right)


def _zoom(poses: torch.Tensor, stack: Stack) -> torch.Tensor:
    """(n,) stack pixels along one frame pixel, at the frame's centre."""
    return torch.as_tensor(1 / scales(invert(poses.numpy()), stack.frame))
