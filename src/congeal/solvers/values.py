"""The last hundredth of a pixel: poses on plain grey values, freed from light where they are compared.

    I∘H ≈ a + b T + J δ        a, b: offset and gain of an image in one block of the frame;  δ: its step

Local contrast (`contrast.py`) frees a picture from light before it is warped. Its neighbourhood has a fixed size, which
in a view of another scale holds other things, and what changes slowly is lost. That costs a hundredth of a pixel. Here
light is fitted together with the step, in the frame. It takes poses that are nearly right and images that show the
same; whether they do is for the error to say.

No light explains a highlight that is clipped: its edge is somewhere else at every exposure. Where exposures differ,
pixels that are white in some images are not compared (NaN in what tiles show and in the template).

A pass looks at every image once. What a tile's residual has in common with 1, T and J says all that is left to know.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from congeal.geometry.matrix import corners
from congeal.geometry.motion import n_parameters
from congeal.solvers.between import Between
from congeal.solvers.gauge import Gauge
from congeal.solvers.gaussnewton import GaussNewton, point_motion
from congeal.solvers.halves import Common, central_slopes, in_common
from congeal.solvers.level import Level, shown_enough, some_noise
from congeal.solvers.sharpen import Details
from congeal.solvers.spread import corner_spread, curvature_in_blocks, lengthened, motion_squares
from congeal.solvers.tiles import Tiles
from congeal.solvers.votes import DAMPING, LEAST_TILES, robust_weight, share_of_others

_PASSES = 2  # over a new image; a set has two of its own
_NEAR = 256  # tiles of the first pass, which only has to come near
_SOME = 4  # of the tiles, at most, are in the first pass
_LIGHT = 2  # numbers of light in a block: offset and gain
_ROUNDS = 4  # of solving for the steps of all images, each with the template as the others' steps leave it
_SAMPLED = 0.0015  # pixels of a standard error, times the roughness, that sampling of a shifted picture costs
_LEAST_REAL = 0.2  # of a curvature: with less of it real, there is nothing to hold on to
_SAME_WHITE = 0.02  # of exposure that images may differ by before it matters where they are clipped
_MOST_CLIPPED = 0.15  # of the images, at a pixel: with more, it is not compared
_FLAT = 1e-6  # of its own curvature that light is damped by: a flat block has no gain


@dataclass(frozen=True)
class Valued:
    """What plain values say of n images.

    Attributes
    ----------
    poses : (n, 3, 3) tensor of float64
        stack_from_frame.
    error : (n,) tensor
        Standard error of a corner's position, in frame pixels; NaN if too few tiles are covered.
    bar : (n,) tensor
        The same as it is told: noise, and what is left of sampling.
    level : Level
        What they were compared with in the end.
    brightness : (n,) tensor
        The logarithm of their gains, if they differ and highlights are compared though they are clipped; else 0.
    """

    poses: torch.Tensor
    error: torch.Tensor
    bar: torch.Tensor
    level: Level
    brightness: torch.Tensor


@torch.no_grad()
def sharpen_values(details: Details, poses: torch.Tensor, motion: str, keep: torch.Tensor, tiles: Tiles) -> Valued:
    """Two joint steps of a stack on plain values (those of `details`); the mean pose stays where it is.

    keep (n,) bool: images that match, which make the template.
    """
    found, gauge = poses.double(), Gauge(poses.double()[keep], details.stack.frame, motion)
    newton = GaussNewton(motion, details.stack.frame, damping=DAMPING)
    some = Tiles(tiles.frame, tiles.side, tiles.corner[:: max(_SOME, len(tiles) // _NEAR)])
    light = None
    for here in (some, tiles):
        seen, covered = _looked(
            details, found, here, clipped=light is None or motion == "translation" or _same_white(light[keep])
        )
        light = _own_light(here.inner(seen), covered) if light is None else light
        step = _step(here, seen, covered, keep, light, newton, found)
        found, light = gauge.fix(newton.compose(found, step.delta), None, keep), step.light
    between = Between(step.level, motion)
    alike = between.alike(found)
    error = torch.hypot(step.noise, step.level.floor * alike)
    compared = motion == "translation" and not _same_white(step.light[keep])
    brightness = step.light[:, 1].double().log() * compared
    return Valued(found, error, between.bar(step.noise, alike), step.level, brightness)


@torch.no_grad()
def values_alone(
    details: Details, part: np.ndarray, poses: torch.Tensor, level: Level, motion: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """A run of new images, each alone, towards plain values of others: poses, and their errors in frame pixels."""
    newton, nobody = GaussNewton(motion, details.stack.frame, damping=DAMPING), torch.zeros(1, dtype=torch.bool)
    found, noise = poses.double().clone(), torch.empty(len(part), dtype=torch.float64)
    for i in range(len(part)):
        one, light = slice(i, i + 1), None
        for _ in range(_PASSES):
            clipped = light is None or bool(level.template.isfinite().all())
            seen, covered = details.on_tiles(part[one], found[one], level.tiles, clipped=clipped)
            light = _own_light(level.tiles.inner(seen), covered) if light is None else light
            step = _step(level.tiles, seen, covered, nobody, light, newton, found[one], level)
            found[one], light = newton.compose(found[one], step.delta), step.light
        noise[one] = step.noise
    return found, torch.hypot(noise, level.floor * Between(level, motion).alike(found))


def _looked(details: Details, poses: torch.Tensor, tiles: Tiles, *, clipped: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """What `Details.on_tiles` gives, of all images."""
    seen = torch.empty(len(poses), len(tiles), tiles.side + 2, tiles.side + 2)
    covered = torch.empty(len(poses), len(tiles))
    for part, look in details.look(poses, tiles, clipped=clipped):
        run = slice(part[0], part[-1] + 1)
        seen[run], covered[run] = look
    return seen, covered


def _same_white(light: torch.Tensor) -> bool:
    """Whether images with this light (n, 2) are white at the same values of the template. If not, the edges of what is
    white in some of them move with their exposure, and no light explains that."""
    white = (1 - light[:, 0]) / light[:, 1]
    return len(light) < 2 or float(white.std() / white.mean()) < _SAME_WHITE


def _own_light(inner: torch.Tensor, covered: torch.Tensor) -> torch.Tensor:
    """(n, 2) offset and gain of images (n, T, P) by themselves: mean and deviation of what is covered."""
    pixels = covered.sum(1).clamp(min=1) * inner.shape[2]
    mean = (inner.sum(2) * covered).sum(1) / pixels
    square = (inner.square().sum(2) * covered).sum(1) / pixels
    return torch.stack([mean, (square - mean.square()).clamp(min=1e-12).sqrt()], 1)


@dataclass(frozen=True)
class _Step:
    """A step (n, k), what noise makes its error (n,), light (n, 2) as it is now, and what images were compared with."""

    delta: torch.Tensor
    noise: torch.Tensor
    light: torch.Tensor
    level: Level


def _step(
    tiles: Tiles,
    seen: torch.Tensor,
    covered: torch.Tensor,
    keep: torch.Tensor,
    light: torch.Tensor,
    newton: GaussNewton,
    poses: torch.Tensor,
    level: Level | None = None,
) -> _Step:
    """From what tiles show of all images (n, T, side + 2, side + 2), which is changed, and which they cover (n, T).

    level: what others have made, if images are not to be compared with each other.
    """
    seen.sub_(light[:, 0, None, None, None]).div_(light[:, 1, None, None, None])
    own = covered * keep[:, None]
    if level is None:
        count = own.sum(0)
        template = _mean(seen, own, count)
        shown = shown_enough(count, int(keep.sum()))
        common = _in_common(seen, own * shown, template)
    else:
        template, count, shown, common = level.template, level.count, level.count > 0, level.common
    basis = _basis(tiles, template, newton.motion)
    usable = basis.isfinite().all(2)
    basis.nan_to_num_().mul_(usable[..., None])
    shown = shown & usable.any(1)
    covered, own, count = (covered * shown).double(), own.double(), count.double()
    gram = (basis.transpose(1, 2) @ basis).double()
    # An image must not be its own witness: it is compared with the mean of the others.
    alone = torch.where(keep[:, None], count / (count - 1).clamp(min=1), 1.0)
    compared = torch.where(usable, tiles.inner(template), torch.nan)
    residual = tiles.inner(seen).sub_(compared).mul_(alone[..., None].float()).nan_to_num_()
    pull = torch.einsum("tpk,ntp->ntk", basis, residual).double()
    floor = _SAMPLED * float(common.roughness.mean())
    made = Level(tiles, template, torch.ones(len(tiles)), (count * shown).float(), floor, common, plain=True)
    sampling = Between(made, newton.motion).votes(poses)
    sampling -= (own[..., None] * sampling).sum(0) / count.clamp(min=1)[:, None]
    pull[..., _LIGHT:] += sampling * alone[..., None]

    light_gram, blocks = gram[:, :_LIGHT, :_LIGHT], tiles.blocks.double()
    by_block = _solved(curvature_in_blocks(tiles, covered, light_gram), _in_blocks(blocks, covered, pull[..., :_LIGHT]))
    there = blocks @ by_block  # light of a tile: that of its block
    explained = (there * (2 * pull[..., :_LIGHT] - there.transpose(0, 1).bmm(light_gram).transpose(0, 1))).sum(2)
    squares = torch.linalg.vector_norm(residual, dim=2).double().square()
    away = (squares - explained).clamp(min=0) / usable.sum(1).clamp(min=1)
    noise = some_noise((away * own).sum(0) / count.clamp(min=1), shown) if level is None else level.noise.double()
    weight = covered * robust_weight(noise, away)

    curvature = curvature_in_blocks(tiles, weight, gram)
    light_curvature, both = curvature[..., :_LIGHT, :_LIGHT], curvature[..., _LIGHT:, :_LIGHT]
    lit = _solved(light_curvature, both.transpose(-1, -2))  # how a block's light follows the motion
    free = curvature[..., _LIGHT:, _LIGHT:] - both @ lit  # curvature of the motion where light is fitted too
    whole = free.sum(1)
    inverse = newton.damped_inverse(whole)
    seen_in = covered @ blocks  # (n, blocks) tiles
    share_of = seen_in / seen_in.sum(1, keepdim=True).clamp(min=1)
    changes = torch.zeros(len(seen), gram.shape[1], dtype=torch.float64)
    for _ in range(_ROUNDS):
        pulls = _in_blocks(blocks, weight, pull)
        alight = _solved(light_curvature, pulls[..., :_LIGHT])
        votes = pulls[..., _LIGHT:] - (both @ alight[..., None])[..., 0]
        delta = (inverse @ votes.sum(1)[..., None])[..., 0]
        alight = ((alight - (lit @ delta[:, None, :, None])[..., 0]) * share_of[..., None]).sum(1)
        change = torch.cat([alight, delta], 1)
        changes += change
        # Where the others go, the template goes, tile by tile.
        along = own.T @ change / count.clamp(min=1)[:, None]
        # Products of the tiles, not of all images and tiles: large ones cost more to lay out than to multiply.
        pull += ((along - change[:, None]) * alone[..., None]).transpose(0, 1).bmm(gram).transpose(0, 1)
    left = votes - (free @ delta[:, None, :, None])[..., 0]
    # By slopes that are part noise, steps are too short.
    noisy = common.steepness * torch.einsum("nt,tkl->nkl", weight * usable.sum(1), motion_squares(tiles, newton.motion))
    longer = lengthened(whole, noisy, _LEAST_REAL)
    corner = point_motion(torch.as_tensor(corners(tiles.frame)).double(), tiles.frame, newton.motion).flatten(1)
    known = covered.sum(1) >= LEAST_TILES
    spread = corner_spread(left, free, inverse, longer.transpose(1, 2) @ corner) * share_of_others(keep)
    delta = (longer @ changes[:, _LIGHT:, None])[..., 0]
    offset, gain = light.unbind(1)
    more, factor = changes[:, :_LIGHT].float().unbind(1)
    return _Step(
        torch.where(known[:, None], delta, 0.0),
        torch.where(known, spread, torch.nan),
        torch.stack([offset + gain * more, gain * (1 + factor)], 1),
        replace(made, noise=noise.float()),
    )


def _mean(seen: torch.Tensor, own: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """(T, side + 2, side + 2) of what is seen (n, T, side + 2, side + 2) and counts (n, T), in `count` (T,) images; NaN
    where too many are clipped."""
    mean = torch.einsum("nt,ntij->tij", own, seen) / count.clamp(min=1)[:, None, None]
    tiles = torch.nonzero(mean.isnan().flatten(1).any(1))[:, 0]
    if len(tiles):
        some, own, count = seen[:, tiles], own[:, tiles], count[tiles, None, None]
        there = torch.einsum("nt,ntij->tij", own, some.isfinite().float())
        of_them = torch.einsum("nt,ntij->tij", own, some.nan_to_num()) / there.clamp(min=1)
        mean[tiles] = torch.where(there < (1 - _MOST_CLIPPED) * count, torch.nan, of_them)
    return mean


def _in_common(seen: torch.Tensor, own: torch.Tensor, mean: torch.Tensor) -> Common:
    """Of both halves of a set: seen (n, T, side + 2, side + 2), own (n, T): which of it counts; and its mean."""
    half = torch.zeros(len(own), 1)
    half[torch.nonzero(own.any(1))[::2, 0]] = 1
    halves = own * half, own * (1 - half)
    used = torch.nonzero((halves[0].sum(0) > 0) & (halves[1].sum(0) > 0))[:, 0]
    one, other = (torch.einsum("nt,ntij->tij", own, seen)[used] / own.sum(0)[used, None, None] for own in halves)
    return in_common(one, other, mean[used])


def _basis(tiles: Tiles, template: torch.Tensor, motion: str) -> torch.Tensor:
    """(T, P, 2 + k): what a small change of light or of the pose adds to the template (T, side + 2, side + 2)."""
    inner, steps = tiles.inner(template), torch.arange(tiles.side)
    y, x = torch.meshgrid(steps, steps, indexing="ij")
    points = (tiles.corner[:, None] + torch.stack([x.flatten(), y.flatten()], 1)).flatten(0, 1).float()
    dx, dy = central_slopes(template).flatten(2)
    basis = torch.empty(*inner.shape, _LIGHT + n_parameters(motion))
    basis[..., 0], basis[..., 1] = 1.0, inner
    for column, moved in enumerate(point_motion(points, tiles.frame, motion), _LIGHT):
        along_x, along_y = moved.view(*inner.shape, 2).unbind(2)
        torch.addcmul(dx * along_x, dy, along_y, out=basis[..., column])
    return basis


def _in_blocks(blocks: torch.Tensor, weight: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """(n, blocks, m): sums over the tiles of each block (T, blocks), weighed by (n, T), of vectors (n, T, m)."""
    return blocks.T @ (weight[..., None] * values)


def _solved(curvature: torch.Tensor, pull: torch.Tensor) -> torch.Tensor:
    """Light (n, blocks, 2) or (n, blocks, 2, m) of a curvature (n, blocks, 2, 2); none in blocks without tiles."""
    own = torch.diagonal(curvature, dim1=-2, dim2=-1)
    damped = curvature + torch.diag_embed(_FLAT * own + 1e-9)
    if pull.ndim == curvature.ndim:
        return torch.linalg.solve(damped, pull)
    return torch.linalg.solve(damped, pull[..., None])[..., 0]
