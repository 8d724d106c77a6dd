"""The numbers of an alignment: quality of the set, score and status of each image.

Three looks at the set. *Pixels*: every image as the frame shows it at the size the method worked at, in one pass, for
APSNR, energy and geometry. *Likeness*: a sample (all images of a set that is not large) compared with each other at up
to 192 pixels, for everything the verdict rests on. *Scores*: all other images compared with that sample, in one pass.
Memory does not grow with the set, but for some 60 bytes an image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from congeal.distributed import Crew
from congeal.distributed.broadcast import key_of
from congeal.geometry import coverage, invert, warp
from congeal.images import Stack
from congeal.images.sharded import LEAST_SHARDS
from congeal.mapped import room, runs
from congeal.methods.glimpses import make_preview
from congeal.methods.in_pieces import likeness_in_pieces
from congeal.methods.neighbours import among_neighbours
from congeal.methods.second_look import placed_again, set_upright
from congeal.methods.views import ContrastViews, each_likeness
from congeal.metrics import Evidence, PixelMeter, Quality, blank, geometric_mean, scales
from congeal.metrics.chance import fitted_chance
from congeal.metrics.closed_in import closed_in
from congeal.metrics.foreign import Crowd
from congeal.metrics.kinds import Kinds, kinds
from congeal.metrics.likeness import Common
from congeal.metrics.limits import (
    DOUBTED_OBJECTS,
    LOST_INK,
    LOST_OUTSIDE,
    PAIRED_IMAGES,
    PIECES_SIDE,
    SAMPLE_IMAGES,
    SAMPLE_VALUES,
)
from congeal.metrics.wild import frame_scales, wild
from congeal.progress import Progress
from congeal.solvers.appearance import Appearance, plain_appearance
from congeal.solvers.filters import gradient
from congeal.solvers.gauge import can_scale
from congeal.solvers.matching import shrunk
from congeal.solvers.sight import FeatureSight
from congeal.solvers.streaming import chunks, pixel_area, shards, stack_values
from congeal.transforms import STATUSES

OK, BLANK, OUTLIER, FAILED = (STATUSES.index(word) for word in ("ok", "blank", "outlier", "failed"))


# Of each image: ink in the frame and in the source, share of the frame without image, scales.
_PER_IMAGE = {
    "ink": np.float32,
    "stack_ink": np.float32,
    "outside": np.float32,
    "scale": np.float64,
    "frame_scale": np.float64,
}


@dataclass
class Measurement:
    """Numbers of a set, and of each of its n images."""

    quality: Quality
    score: np.ndarray  # (n,) likeness to the mean of the others that match
    status: np.ndarray  # (n,) uint8, positions in `STATUSES`
    out_of_frame: np.ndarray  # (n,) share of the frame that has no image under it


def measure(
    stack: Stack,
    stack_from_frame: np.ndarray,
    kind: str,
    *,
    motion: str = "homography",
    ordered: bool = False,
    sight: FeatureSight | None = None,
    unknown: np.ndarray | None = None,
    crew: Crew | None = None,
    quiet: bool = True,
) -> Measurement:
    """Quality before and after, score and status.

    kind: "object" or "photo", which decides what counts as a collapse. motion: what the method was allowed; one that
    cannot scale is not to blame for the size that a start gives to an object. ordered: the images are a sequence, of
    which each is compared with its neighbours and may leave the frame. sight: what likeness is measured on, if that is
    not local contrast. unknown (n,): images that have failed because nothing ties them to the others. crew: who looks
    at the images; None for this process.
    """
    with torch.no_grad(), Progress(2 * len(stack), "measuring", quiet=quiet or crew is not None) as progress:
        key = "" if crew is None else key_of(stack_from_frame, stack.kept, stack.start, stack.size, stack.frame, kind)
        over = _Over(crew, key, progress)
        looked_at = _PixelPass(stack, stack_from_frame, kind, over)  # by others, while the sample is compared here
        if ordered:
            alike = _in_sequence(stack, stack_from_frame, kind, over)
        else:
            alike = _alike(stack, stack_from_frame, kind, sight, over)
        pixels = looked_at.result()
    # What is around an object is empty: the frame may go anywhere there, but a match that needs it must be a good one.
    bent = wild(pixels.frame_scale)
    lost = (pixels.lost & (not ordered)) | (bent if kind == "photo" else wild(pixels.scale))
    status = np.full(len(stack), OK, dtype=np.uint8)
    status[alike.near < np.where(bent, alike.least_if_bent, alike.least)] = OUTLIER
    if unknown is not None:
        lost |= unknown
    status[lost] = FAILED
    status[pixels.blank | (alike.flat & ~lost)] = BLANK
    matching, there = status == OK, status != BLANK
    counted = matching if matching.any() else there if there.any() else ~matching
    seen = Evidence(
        n_images=len(stack),
        kind=kind,
        **pixels.numbers,
        **alike.numbers,
        matching_share=float(matching.mean()),
        failed_share=float((status == FAILED).sum() / max(1, there.sum())),
        expected_energy=1.0 if can_scale(motion) else _start_energy(stack),
        mean_scale=geometric_mean(pixels.scale[counted]),
        out_of_frame_share=float(pixels.outside.mean()),
        sequence=ordered,
    )
    with torch.no_grad():
        preview = make_preview(stack, stack_from_frame, pixels.means, alike.score, status)
    quality = replace(Quality.judged(seen), preview=preview)
    return Measurement(quality, alike.score, status, pixels.outside)


# ---- pixels


@dataclass
class _Pixels:
    numbers: dict[str, float]
    scale: np.ndarray  # (n,) against the start, at the centre of the frame
    frame_scale: np.ndarray  # (n,) the same of the whole frame
    outside: np.ndarray  # (n,) share of the frame without image
    lost: np.ndarray  # (n,) bool: the image left the frame
    blank: np.ndarray  # (n,) bool: there is no object in the source
    means: tuple[np.ndarray, np.ndarray]  # (C,h,w) before and after, on the 0–255 scale


class _Over:
    """Goes over shards in order: in this process, or by a crew."""

    def __init__(self, crew: Crew | None, key: str, progress: Progress) -> None:
        self._crew, self._key, self.progress = crew, key, progress

    def __call__(
        self, stage: str, work: Callable[[Any], dict[str, np.ndarray]], items: Sequence[Any], counts: Sequence[int]
    ) -> Iterator[dict[str, np.ndarray]]:
        """What work says of every item; of others' work the first is under way when this returns."""
        if self._crew is not None:
            return self._crew.map(stage, key_of(self._key, items), work, items, counts)
        return self._here(work, items, counts)

    def _here(
        self, work: Callable[[Any], dict[str, np.ndarray]], items: Sequence[Any], counts: Sequence[int]
    ) -> Iterator[dict[str, np.ndarray]]:
        for item, count in zip(items, counts, strict=True):
            yield work(item)
            self.progress.update(count)


class _PixelPass:
    """The look at all pixels, begun; `result` waits for its end."""

    def __init__(self, stack: Stack, stack_from_frame: np.ndarray, kind: str, over: _Over) -> None:
        self._stack, self._kind, self._area = stack, kind, pixel_area(stack)
        look = _PixelLook(stack, stack_from_frame, kind, self._area)
        together = shards(chunks(stack), _light(stack), least=LEAST_SHARDS)
        self._items = [[(int(part[0]), int(part[-1]) + 1) for part in shard] for shard in together]
        counts = [item[-1][1] - item[0][0] for item in self._items]
        self._done = over("measuring pixels", look, self._items, counts)

    def result(self) -> _Pixels:
        """All shards together."""
        stack, appearance, area = self._stack, plain_appearance(self._kind), self._area
        meter = PixelMeter(aligned_area=1 / area)
        seen = {name: room((len(stack),), dtype) for name, dtype in _PER_IMAGE.items()}
        outside_before = 0.0
        for item, one in zip(self._items, self._done, strict=True):
            for name, values in seen.items():
                values[item[0][0] : item[-1][1]] = one.pop(name)
            outside_before += float(one.pop("outside_before"))
            meter.merge(PixelMeter().restore(one))
        ink, source_ink, outside, scale, frame_scale = seen.values()
        numbers = meter.numbers() | {"out_of_frame_before": outside_before / len(stack)}
        means = (meter.before.mean, meter.after.mean)
        if not appearance.holds_ink:
            nothing = np.zeros(len(stack), dtype=bool)
            return _Pixels(numbers, scale, frame_scale, outside, outside > LOST_OUTSIDE, nothing, means)
        lost = ink * np.float32(area) < LOST_INK * source_ink
        return _Pixels(numbers, scale, frame_scale, outside, lost, blank(source_ink), means)


def _light(stack: Stack) -> int:
    """Values by which shards are cut: looking at an image takes a tenth of the time that placing it does."""
    return max(1, stack_values(stack) // 4)


@dataclass
class _PixelLook:
    """What the pixels of a shard say, as arrays: sums of all, and some numbers of each image."""

    stack: Stack
    stack_from_frame: np.ndarray
    kind: str
    area: float

    @torch.no_grad()
    def __call__(self, runs: Sequence[tuple[int, int]]) -> dict[str, np.ndarray]:
        meter, appearance = PixelMeter(aligned_area=1 / self.area), plain_appearance(self.kind)
        origin, n = runs[0][0], runs[-1][1] - runs[0][0]
        # Filled in place: small arrays that stay between large ones that go would keep their memory.
        each = {name: np.zeros(n, dtype) for name, dtype in _PER_IMAGE.items()}
        outside_before = 0.0
        for first, stop in runs:
            here = {name: values[first - origin : stop - origin] for name, values in each.items()}
            outside_before += self._run(np.arange(first, stop), meter, appearance, here)
        return {**each, **meter.state(), "outside_before": np.array(outside_before)}

    def _run(self, part: np.ndarray, meter: PixelMeter, appearance: Appearance, each: dict[str, np.ndarray]) -> float:
        """Take in a run, fill in the numbers of its images, and give the share of the frame that was empty before."""
        stack, poses = self.stack, self.stack_from_frame[part]
        found, start = _matrices(poses), _matrices(stack.start[part])
        images, masks = stack.images(part), stack.masks(part)
        before, before_weight = _shown(images, masks, start, stack, appearance)
        after, after_weight = _shown(images, masks, found, stack, appearance)
        meter.update_before(before, before_weight)
        meter.update_after(after, images, after_weight)
        each["ink"][:], each["stack_ink"][:] = after.flatten(1).sum(1), images.flatten(1).sum(1)
        each["outside"][:] = 1 - coverage(found, stack.size, stack.frame).mean((1, 2, 3))
        frame_from_stack = invert(poses.astype(np.float64))
        each["scale"][:] = scales(frame_from_stack, stack.frame, invert(stack.start[part]))
        each["frame_scale"][:] = frame_scales(poses, stack.start[part], stack.frame)
        return float((1 - coverage(start, stack.size, stack.frame).mean((1, 2, 3))).sum())


def _start_energy(stack: Stack) -> float:
    """The energy ratio that the scale of the start gives to an object that lies inside the frame."""
    each = [scales(invert(stack.start[part]), stack.frame) for part in runs(len(stack))]
    return geometric_mean(np.concatenate(each)) ** 2 * pixel_area(stack)


def _matrices(rows: np.ndarray) -> torch.Tensor:
    return torch.as_tensor(rows).float()


def _shown(
    images: torch.Tensor, masks: torch.Tensor | None, matrices: torch.Tensor, stack: Stack, appearance: Appearance
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Images as the frame shows them, and their weights: real photographs do not end in black."""
    return warp(images, matrices, stack.frame), appearance.covered(matrices, stack.size, stack.frame, masks)


# ---- likeness


@dataclass
class _Alike:
    numbers: dict[str, float]
    score: np.ndarray  # (n,)
    near: np.ndarray  # (n,) likeness to those that it is most like
    least: float  # of which an image of the set has at least this
    least_if_bent: float  # and one in a pose that makes no sense at least this
    flat: np.ndarray  # (n,) bool: shows nothing


def _in_sequence(stack: Stack, stack_from_frame: np.ndarray, kind: str, over: _Over) -> _Alike:
    seen = among_neighbours(stack, stack_from_frame, kind)
    rise = (seen.after - seen.before)[np.isfinite(seen.after - seen.before)]
    numbers = {
        "likeness_before": _mean(seen.before),
        "likeness_after": _mean(seen.after),
        "likeness_error": float(rise.std() / max(1, len(rise) - 1) ** 0.5) if len(rise) else float("nan"),
        "improved_share": float((rise > 0).mean()) if len(rise) else float("nan"),
        "chance_likeness": seen.chance,
    }
    near = np.nan_to_num(seen.after, nan=-1.0)
    return _Alike(numbers, seen.after, near, seen.least, seen.least, seen.flat)


def _alike(stack: Stack, stack_from_frame: np.ndarray, kind: str, sight: FeatureSight | None, over: _Over) -> _Alike:
    n = len(stack)
    before, after = (ContrastViews(stack, poses, kind, sight) for poses in (stack.start, stack_from_frame))
    most = min(SAMPLE_IMAGES, max(1, SAMPLE_VALUES // (after.stack.frame[0] * after.stack.frame[1])))
    sample = np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(int))
    first = each_likeness(*before.of(sample))
    contrast, counts = after.of(sample)
    last = each_likeness(contrast, counts)
    rise = (last - first)[np.isfinite(last - first)]
    crowd = Crowd(contrast, counts)
    if kind == "object" and sight is None and len(sample) == n and n > 1:
        _look_again(stack, stack_from_frame, crowd)
    member = torch.as_tensor(crowd.near >= crowd.least)
    if member.sum() < 2:
        member = torch.ones(len(sample), dtype=torch.bool)
    common = Common(contrast[member], None if counts is None else counts[member])
    score, near, flat = room((n,), np.float64), room((n,), np.float64), np.zeros(n, dtype=bool)
    score[sample] = common.likeness(contrast, counts, member) if n > 1 else 1.0
    near[sample] = crowd.near
    flat[sample] = ~np.isfinite(last)
    found = _kinds(contrast, counts, member)
    fitted = float("nan")
    if sight is None and kind == "photo":
        fitted = fitted_chance(crowd.chance_likeness, contrast, counts)
    elif sight is None and _mean(last) < DOUBTED_OBJECTS:
        fitted = likeness_in_pieces(before)
    numbers = {
        "likeness_before": _mean(first),
        "likeness_after": _mean(last),
        "likeness_error": float(rise.std() / max(1, len(rise) - 1) ** 0.5) if len(rise) else float("nan"),
        "improved_share": float((rise > 0).mean()) if len(rise) else float("nan"),
        "chance_likeness": crowd.chance_likeness,
        "fitted_chance": round(fitted, 6),  # more digits depend on the number of threads
        "unity": found.unity,
        "distinctness": found.distinctness,
        "crowd": found.crowd,
        "group_share": found.smaller_share,
        "sharpness_before": before.sharpness.value,
        "sharpness_after": after.sharpness.value,
    }
    over.progress.update(len(sample))
    scoring = _Scoring(after, crowd, common, sample, max(1, most // 8))
    parts = scoring.parts()
    together = shards(parts, _light(stack), least=LEAST_SHARDS)
    edges = np.cumsum([0, *map(len, together)]).tolist()
    images = [sum(map(len, shard)) for shard in together]
    for shard, one in zip(together, over("measuring likeness", scoring, list(pairwise(edges)), images), strict=True):
        rows = np.concatenate(shard)
        near[rows], score[rows], flat[rows] = one["near"], one["score"], one["flat"]
    return _Alike(numbers, score, near, crowd.least, crowd.least_if_bent, flat)


def _look_again(stack: Stack, stack_from_frame: np.ndarray, crowd: Crowd) -> None:
    """Tell the crowd of objects how like it they are where they lie if they move no farther than most, and upright."""
    again = placed_again(stack, stack_from_frame, crowd.near)
    if again is not None:
        alone = _small(stack, set_upright(stack))
        contrast, counts = ContrastViews(stack, again, "object").of(np.arange(len(stack)))
        crowd.look_again(contrast, counts, _edges(_small(stack, again)), _edges(alone), closed_in(alone))


def _small(stack: Stack, stack_from_frame: np.ndarray) -> torch.Tensor:
    """(n,C,h,w) objects as the frame shows them, small enough to be compared piece by piece."""
    appearance, shrink = plain_appearance("object"), max(1, round(max(stack.frame) / PIECES_SIDE))
    parts = []
    for part in chunks(stack):
        shown, weights = _shown(
            stack.images(part), stack.masks(part), _matrices(stack_from_frame[part]), stack, appearance
        )
        parts.append(shrunk(shown if weights is None else shown * weights, shrink))
    return torch.cat(parts)


def _edges(pictures: torch.Tensor) -> torch.Tensor:
    return torch.cat(gradient(pictures), 1)


@dataclass
class _Scoring:
    """How alike to the sample the others are, a few at a time."""

    views: ContrastViews
    crowd: Crowd
    common: Common
    sample: np.ndarray
    together: int

    def parts(self) -> list[np.ndarray]:
        """Rows that are not in the sample, in runs."""
        others = np.ones(self.views.count, dtype=bool)
        others[self.sample] = False
        rest = np.flatnonzero(others)
        return list(np.array_split(rest, -(-len(rest) // self.together))) if len(rest) else []

    @cached_property
    def _parts(self) -> list[np.ndarray]:
        return self.parts()

    @torch.no_grad()
    def __call__(self, runs: tuple[int, int]) -> dict[str, np.ndarray]:
        parts = self._parts[slice(*runs)]
        n, at = sum(map(len, parts)), 0
        near, score, flat = np.zeros(n), np.zeros(n), np.zeros(n, dtype=bool)
        for part in parts:
            contrast, counts = self.views.of(part)
            here = slice(at, at + len(part))
            near[here] = self.crowd.nearness(contrast, counts)
            score[here] = self.common.likeness(contrast, counts, torch.zeros(len(part), dtype=torch.bool))
            flat[here] = ~contrast.flatten(1).any(1).numpy()
            at += len(part)
        return {"near": near, "score": score, "flat": flat}


def _mean(values: np.ndarray) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def _kinds(contrast: torch.Tensor, counts: torch.Tensor | None, member: torch.Tensor) -> Kinds:
    rows = torch.nonzero(member)[:, 0]
    rows = rows[torch.linspace(0, len(rows) - 1, min(len(rows), PAIRED_IMAGES)).round().long()]
    return kinds(contrast[rows], None if counts is None else counts[rows])
