"""The last fraction of a pixel: poses at one finer resolution, and how sure they are."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch

from congeal.geometry import invert, map_points, warp
from congeal.geometry.sampling import points_inside, sample_points
from congeal.images import Stack
from congeal.metrics import scales
from congeal.solvers.appearance import Appearance
from congeal.solvers.gauge import Gauge, mean_motion
from congeal.solvers.level import SAMPLING_ERROR, SHRINKING_ERROR, Level, LevelSums
from congeal.solvers.streaming import CHUNK_VALUES, stack_values
from congeal.solvers.threads import in_order, side_by_side
from congeal.solvers.tiles import MOST_TILES, Tiles, tile_side
from congeal.solvers.votes import Poll, Votes, share_of_others

PASSES = 6
"""At most, over a set at one level; two to four are usual."""
_LOOKED_AT = 8  # images from which tiles are chosen …
_LOOKED_AT_PLAIN = 3  # … and of plain values, which are compared in the largest pictures only …
_APART = 2  # … on every second pixel along each axis, if they are large
_KEPT_BYTES = 512 << 20  # of pictures that are kept between passes
_RUN_PIXELS = 4 << 20  # of pictures that are looked at together
_SAME_SIZE = (
    0.002  # steps in the logarithm of the size that an image shows a thing at: a neighbourhood that is wrong by
)
# so much changes sizes by a tenth of that
_MOST_STEPS = 1000  # of them, so that a wild pose asks for no endless neighbourhood
_REMEMBERED = 64 << 20  # bytes of what tiles show, up to which all images are looked at before any is moved
STILL = 0.005
"""Pixels of mean corner motion at which a level has settled …"""
_STILL_ERRORS = 0.1  # … or so many standard errors

OnPass = Callable[[float, float], None]
Look = tuple[np.ndarray, tuple[torch.Tensor, torch.Tensor]]
"""A run of positions, what tiles show of it, and which tiles it covers."""


class Details:
    """What is compared of a stack's images at its resolution, run by run.

    keep: kept between passes while there is room. plain: grey values, whatever the appearance compares; tiles are cut
    out of large pictures, and the rest of these is left alone.
    """

    def __init__(self, stack: Stack, appearance: Appearance, *, keep: bool = True, plain: bool = False) -> None:
        self.stack, self.appearance, self.parts, self.plain = stack, appearance, _runs(stack), plain
        pixels = stack.size[0] * stack.size[1]
        self._cuts = plain and not appearance.empty_ground and pixels > CHUNK_VALUES
        self._room = keep and not self._cuts and 4 * len(stack) * pixels <= _KEPT_BYTES
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # what was made, and at which sizes

    def of(self, part: np.ndarray, poses: torch.Tensor) -> torch.Tensor:
        """(B, 1, H, W) of a run of positions with poses (B, 3, 3)."""
        first, larger = int(part[0]), self._larger(part, poses)
        made, before = self._kept.get(first, (None, larger))
        if made is None:
            made, rows = torch.empty(len(part), 1, *self.stack.size, dtype=torch.float32), torch.arange(len(part))
        else:  # of another size than when it was made
            rows = torch.nonzero((before - larger).abs() > 1)[:, 0]
        at_once = max(1, CHUNK_VALUES // stack_values(self.stack))
        for size in larger[rows].unique():
            for few in rows[larger[rows] == size].split(at_once):  # in pieces that stay in cache
                made[few] = self._made(part[few.numpy()], wider=math.exp(_SAME_SIZE * int(size)))
        if self._room:
            self._kept[first] = made, before.index_copy(0, rows, larger[rows])
        return made

    def keeping(self) -> Details:
        """The same, but what is made for a run is kept."""
        kept = copy.copy(self)
        kept._room, kept._kept = not self._cuts, {}
        return kept

    def _larger(self, part: np.ndarray, poses: torch.Tensor) -> torch.Tensor:
        """(B,) by how much larger than in the frame the thing is in each image, as a logarithm, in steps."""
        if self.plain or self.appearance.empty_ground:
            return torch.zeros(len(part), dtype=torch.int64)
        larger = -torch.as_tensor(scales(invert(poses.numpy()), self.stack.frame)).double().log()
        return (larger / _SAME_SIZE).nan_to_num(0).round().clamp(-_MOST_STEPS, _MOST_STEPS).long()

    def _made(self, rows: np.ndarray | list[int], *, clipped: bool = True, wider: float = 1.0) -> torch.Tensor:
        images = self.stack.images(rows)
        return _grey(images, clipped) if self.plain else self.appearance.detail(images, wider)

    def look(self, poses: torch.Tensor, tiles: Tiles, *, clipped: bool = True) -> Iterable[Look]:
        """Every run, and what tiles show of it: see `on_tiles`. Of large pictures several runs are looked at side by
        side, as an operation on one is too small to be shared by threads."""

        def seen(part: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
            return self.on_tiles(part, poses[part], tiles, clipped=clipped)

        return zip(self.parts, in_order(seen, self.parts, side_by_side()), strict=True)

    def on_tiles(
        self, part: np.ndarray, poses: torch.Tensor, tiles: Tiles, *, clipped: bool = True
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What tiles show of a run of images, (B, T, side + 2, side + 2), and which of them they cover, (B, T).

        clipped: whether plain values that are white, and may have been brighter, count; if not, what touches them is
        NaN.
        """
        shape = (len(part), len(tiles), tiles.side + 2, tiles.side + 2)
        if self.appearance.empty_ground:  # beyond the edge there is nothing, and that is seen
            covered = torch.ones(shape[:2], dtype=torch.bool)
        else:
            covered = points_inside(poses, tiles.rim, self.stack.size, tiles.frame).view(*shape[:2], 4).all(2)
        if self._cuts:
            each = zip(part.tolist(), poses, covered, strict=True)
            values = torch.stack([self._cut_out(*one, tiles, clipped) for one in each])
        else:
            pictures = self.of(part, poses) if clipped else self._made(part, clipped=False)
            values = sample_points(pictures, poses, tiles.points, tiles.frame)
        if self.appearance.empty_ground:
            values *= points_inside(poses, tiles.points, self.stack.size, tiles.frame)
        masks = self.stack.masks(part)
        if masks is not None:
            meant = sample_points(masks, poses, tiles.points, tiles.frame) > 0.5
            covered &= meant.view(*shape[:2], -1).all(2)
        return values.view(shape), covered.float()

    def _cut_out(self, i: int, pose: torch.Tensor, covered: torch.Tensor, tiles: Tiles, clipped: bool) -> torch.Tensor:
        """(T, (side + 2)²) grey values of one image on the tiles that it covers, from squares around these alone; 0 on
        the others."""
        values = torch.zeros(len(tiles), (tiles.side + 2) ** 2)
        if not covered.any():
            return values
        (height, width), rim = self.stack.size, map_points(pose.double(), tiles.rim.view(-1, 4, 2)[covered].double())
        low = rim.amin(1).floor()
        side = int((rim.amax(1).ceil() - low).max()) + 1
        if len(low) * side**2 > height * width:  # that would be more than the whole picture
            points = tiles.points.view(len(tiles), -1, 2)[covered].flatten(0, 1)
            picture = self._made([i], clipped=clipped)
            values[covered] = sample_points(picture, pose[None], points, tiles.frame).view(len(low), -1)
            return values
        corner = torch.minimum(low, torch.tensor([width - side, height - side]))
        squares = _grey(self.stack.squares(i, corner.long().numpy(), side), clipped)
        square_from_tile = _shift(-corner) @ pose.double() @ _shift(tiles.corner[covered].double())
        one_tile = tiles.side + 2, tiles.side + 2
        values[covered] = sample_points(squares, square_from_tile, tiles.offsets, one_tile)
        return values

    def tiles(self, poses: torch.Tensor, keep: torch.Tensor, most: int = MOST_TILES) -> Tiles:
        """Where to compare the stack at the poses it has, from a few of the images that match."""
        if self._room and not self._kept:  # all will be looked at: made side by side
            for _ in in_order(lambda part: self.of(part, poses[part]), self.parts, side_by_side()):
                pass
        rows, few = torch.nonzero(keep)[:, 0], _LOOKED_AT_PLAIN if self.plain else _LOOKED_AT
        some = rows[torch.linspace(0, len(rows) - 1, min(len(rows), few)).long()].tolist()
        frame = self.stack.frame
        apart = _APART if self._cuts and tile_side(frame) % _APART == 0 else 1
        shown = frame[0] // apart, frame[1] // apart
        from_shown = torch.diag(torch.tensor([apart, apart, 1.0], dtype=poses.dtype))
        seen = torch.cat([warp(self._one(i, poses), (poses[[i]] @ from_shown).float(), shown) for i in some])
        if self.plain:  # images differ in exposure, which is not what they disagree in
            deviation, mean = torch.std_mean(seen, (1, 2, 3), keepdim=True)
            seen = seen.sub_(mean).div_(deviation.clamp(min=1e-6))
        return Tiles.choose(seen, most, frame=frame, apart=apart)

    def _one(self, i: int, poses: torch.Tensor) -> torch.Tensor:
        """(1, 1, H, W) of one image, from its run if that is kept anyway."""
        part = next(part for part in self.parts if part[-1] >= i) if self._room else np.array([i])
        return self.of(part, poses[part])[i - int(part[0])][None]

    def sums(self, tiles: Tiles) -> LevelSums:
        """Empty sums for a level of this stack."""
        shrunk = self.stack.native_size > max(self.stack.frame)
        return LevelSums(tiles, SHRINKING_ERROR if shrunk else SAMPLING_ERROR)

    def level(self, poses: torch.Tensor, keep: torch.Tensor, tiles: Tiles) -> Level:
        """What the images that match make where they are."""
        return self.summed(self.look(poses, tiles), keep, tiles)

    def summed(self, looks: Iterable[Look], keep: torch.Tensor, tiles: Tiles) -> Level:
        """The same, of images that were looked at already."""
        sums = self.sums(tiles)
        for part, (seen, covered) in looks:
            sums.add(seen[keep[part]], covered[keep[part]])
        return sums.level()


def _grey(images: torch.Tensor, clipped: bool) -> torch.Tensor:
    """(B, 1, H, W) mean of the channels (B, C, H, W) of values in [0, 1]; not clipped: NaN where one is white."""
    grey = images.mean(1, keepdim=True)
    return grey if clipped else grey.masked_fill_(images.amax(1, keepdim=True) >= 1, torch.nan)


def _shift(by: torch.Tensor) -> torch.Tensor:
    """(n, 3, 3) translations by (n, 2)."""
    shift = torch.eye(3, dtype=by.dtype).repeat(len(by), 1, 1)
    shift[:, :2, 2] = by
    return shift


def _runs(stack: Stack) -> list[np.ndarray]:
    """Positions in the stack, in runs of which what tiles show stays in cache."""
    pixels = stack.size[0] * stack.size[1]
    shown = min(pixels, MOST_TILES * tile_side(stack.frame) ** 2)
    count = max(-(-len(stack) * shown // CHUNK_VALUES), -(-len(stack) * pixels // _RUN_PIXELS))
    return np.array_split(np.arange(len(stack)), min(len(stack), count))


@dataclass(frozen=True)
class Sharpened:
    """What a level did for n images.

    Attributes
    ----------
    poses : (n, 3, 3) tensor of float64
        stack_from_frame at this level.
    error : (n,) tensor
        Standard error of a corner's position, in frame pixels.
    noise : (n,) tensor
        What of it is noise.
    before, after : (n,) tensor
        Likeness to the mean of the others.
    level : Level
        What they were compared with in the end.
    """

    poses: torch.Tensor
    error: torch.Tensor
    noise: torch.Tensor
    before: torch.Tensor
    after: torch.Tensor
    level: Level


@torch.no_grad()
def sharpen(
    details: Details,
    poses: torch.Tensor,
    motion: str,
    keep: torch.Tensor,
    *,
    passes: int = PASSES,
    tiles: Tiles | None = None,
    still: Callable[[float], float] = lambda _: STILL,
    on_pass: OnPass | None = None,
) -> Sharpened:
    """Joint steps of a whole stack at its resolution; the mean pose stays where it is.

    keep (n,) bool: images that match, which make the template. still: the mean corner motion at which it has settled,
    given the median error, both in frame pixels. on_pass(moved, likeness) is told of every pass: mean corner motion in
    frame pixels, and mean likeness of the kept.
    """
    found = poses.double()
    gauge = Gauge(found[keep], details.stack.frame, motion)
    tiles = tiles or details.tiles(found, keep)
    # Each of a few images is a large part of the template, and has to be in it where it is now. Of many, the template
    # is made of where they were a pass ago, so that nothing but sums is kept.
    few = 4 * len(found) * len(tiles.points) <= _REMEMBERED
    level = None if few else details.level(found, keep, tiles)
    before, to_mean = None, share_of_others(keep)
    for _ in range(passes):
        looks, sums = details.look(found, tiles), details.sums(tiles)
        if few:
            looks = list(looks)
            level = details.summed(looks, keep, tiles)
        assert level is not None
        poll, answers, moved = Poll(level, motion), [], torch.empty_like(found)
        for part, (seen, covered) in looks:
            votes = poll.ask(seen, covered, keep[part], found[part])
            moved[part] = poll.newton.compose(found[part], votes.delta * to_mean[part, None])
            answers.append(votes)
            if not few:
                sums.add(seen[keep[part]], covered[keep[part]])
        names = "likeness", "error", "noise"
        likeness, error, noise = (torch.cat([getattr(one, name) for one in answers]) for name in names)
        before, level = likeness if before is None else before, level if few else sums.level()
        moved = gauge.fix(moved, None, keep)
        change = mean_motion(found, moved, details.stack.frame)
        if on_pass is not None:
            on_pass(change, float(likeness[keep].mean()))
        error, noise = error * to_mean, noise * to_mean
        found, unsure = moved, float(error[keep].nanmedian())
        if change < max(still(unsure), _STILL_ERRORS * unsure):
            break
    assert before is not None
    assert level is not None
    return Sharpened(found, error, noise, before, likeness, level)


@torch.no_grad()
def sharpen_alone(
    details: Details, part: np.ndarray, poses: torch.Tensor, level: Level, motion: str, passes: int = PASSES
) -> tuple[torch.Tensor, torch.Tensor]:
    """A run of new images, each alone, towards a level that others made: poses, and their errors in frame pixels.

    passes: 0 leaves the poses as they are, and only says how sure they are.
    """
    poll, found, alone = Poll(level, motion), poses.double(), torch.zeros(len(part), dtype=torch.bool)
    details = details.keeping()

    def ask() -> Votes:
        return poll.ask(*details.on_tiles(part, found, level.tiles), alone, found)

    for _ in range(passes):
        found = poll.newton.compose(found, ask().delta)
    error = ask().error
    return found, error
