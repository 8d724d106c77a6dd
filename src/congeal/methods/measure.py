"""The numbers of an alignment: quality of the set, score and status of each image.

Three passes. *Pixels*: every image in the frame, at the size the method worked at, for APSNR, energy and geometry.
*Likeness*: a sample (all images of a set that is not large) compared with each other at up to 192 pixels, for the
verdict. *Scores*: all other images compared with that sample. Memory grows by some 60 bytes an image only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from congeal.evaluation import Evidence, PixelMeter, Quality, blank, geometric_mean, scales
from congeal.evaluation.grouping import compare_groups
from congeal.evaluation.likeness import MeanContrast, Pictures, likeness_to_others
from congeal.evaluation.outliers import InlierModel, homography_noise_likeness
from congeal.evaluation.poses import frame_scales, implausible_scales
from congeal.evaluation.thresholds import (
    LOST_INK,
    MAX_OUT_OF_FRAME,
    MAX_PAIRED_IMAGES,
    MAX_SAMPLE_IMAGES,
    MAX_SAMPLE_VALUES,
)
from congeal.execution import Result, group_batches, key_of, map_shards
from congeal.geometry import coverage, invert, warp
from congeal.images import Stack
from congeal.memmap import allocate
from congeal.methods.semantic.feature_maps import FeatureSimilarity
from congeal.methods.sequence.temporal_likeness import temporal_likeness
from congeal.methods.views import ContrastViews, NormalisedViews, make_preview
from congeal.registration.batching import chunks, pixel_area, stack_values
from congeal.registration.features import pixel_features
from congeal.registration.gauge import can_scale
from congeal.rows import evenly_spaced_rows, row_slices
from congeal.transforms import STATUSES

OK, BLANK, OUTLIER, FAILED = (STATUSES.index(word) for word in ("ok", "blank", "outlier", "failed"))


# Of each image: total intensity in the frame and in the source, share of the frame without image, scales.
_PER_IMAGE = {
    "ink": np.float32,
    "stack_ink": np.float32,
    "outside": np.float32,
    "scale": np.float64,
    "frame_scale": np.float64,
}
# Of each image: likeness to the inliers that it is most like, likeness to their mean, whether it shows nothing.
_PER_SCORED_IMAGE = {"likeness": np.float64, "score": np.float64, "flat": np.bool_}
Runs = Sequence[tuple[int, int]]
"""The images of a shard, as (first, stop) of the runs that are read at once."""


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
    sight: FeatureSimilarity | None = None,
    unknown: np.ndarray | None = None,
    quiet: bool = True,
) -> Measurement:
    """Quality before and after, score and status.

    kind: "object" or "photo", which decides what counts as a collapse. motion: what the method was allowed; one that
    cannot scale is not to blame for the size that a start gives to an object. ordered: the images are a sequence, of
    which each is compared with its neighbours and may leave the frame. sight: what likeness is measured on, if that is
    not local contrast. unknown (n,): images that have failed because nothing ties them to the others.
    """
    with torch.no_grad():
        shards = _Shards(stack, stack_from_frame, kind, show=not quiet)
        started = shards.map("measuring pixels", _PixelTask(stack, stack_from_frame, kind))
        if ordered:  # an executor looks at pixels while images are compared here
            seen = temporal_likeness(stack, stack_from_frame, kind)
            matching = np.nan_to_num(seen.after, nan=-1.0) >= seen.least
            numbers = _change(seen.before, seen.after) | {"noise_likeness": seen.chance}
            alike = _Likeness(numbers, seen.after, matching, seen.flat)
        else:
            alike = _likeness_in_set(stack, stack_from_frame, kind, sight, shards)
        meter, each, outside_before = _collect_pixels(stack, shards, started)
    # Around an object is empty ground, where the frame may go anywhere; so the scale at its centre decides.
    lost = implausible_scales(each["frame_scale"] if kind == "photo" else each["scale"])
    nothing = np.zeros(len(stack), dtype=bool)
    if pixel_features(kind).keeps_intensity:
        left, nothing = (
            each["ink"] * np.float32(pixel_area(stack)) < LOST_INK * each["stack_ink"],
            blank(each["stack_ink"]),
        )
    else:
        left = each["outside"] > MAX_OUT_OF_FRAME
    lost |= left & (not ordered)
    status = np.where(alike.inlier, OK, OUTLIER).astype(np.uint8)
    if unknown is not None:
        lost |= unknown
    status[lost] = FAILED
    status[nothing | (alike.flat & ~lost)] = BLANK
    matching, there = status == OK, status != BLANK
    counted = matching if matching.any() else there if there.any() else ~matching
    evidence = Evidence(
        n_images=len(stack),
        kind=kind,
        **meter.numbers(),
        out_of_frame_before=outside_before,
        **alike.numbers,
        matching_share=float(matching.mean()),
        failed_share=float((status == FAILED).sum() / max(1, there.sum())),
        expected_energy_ratio=1.0 if can_scale(motion) else _start_energy(stack),
        mean_scale=geometric_mean(each["scale"][counted]),
        out_of_frame_share=float(each["outside"].mean()),
        sequence=ordered,
    )
    with torch.no_grad():
        means = (meter.before.mean, meter.after.mean)
        preview = make_preview(stack, stack_from_frame, means, alike.score, status)
    quality = replace(Quality.judged(evidence), preview=preview)
    return Measurement(quality, alike.score, status, each["outside"])


class _Shards:
    """The passes over all images: the same shards for each, by an executor if there is one."""

    def __init__(self, stack: Stack, stack_from_frame: np.ndarray, kind: str, *, show: bool) -> None:
        # Looking at an image takes a tenth of the time that placing it does, so shards are larger.
        together = group_batches(chunks(stack), max(1, stack_values(stack) // 4))
        self.runs: list[Runs] = [[(int(part[0]), int(part[-1]) + 1) for part in shard] for shard in together]
        self.ranges = [(shard[0][0], shard[-1][1]) for shard in self.runs]
        self._inputs = (stack_from_frame, stack.kept, stack.start, stack.size, stack.frame, kind)
        self._show = show

    def map(self, stage: str, work: Callable[[Runs], Result]) -> Iterator[Result]:
        """The results of all shards, in order."""
        counts = [stop - first for first, stop in self.ranges]
        return map_shards(work, self.runs, counts, stage=stage, key=lambda: key_of(*self._inputs), show=self._show)


# ---- pixels


def _collect_pixels(
    stack: Stack, shards: _Shards, results: Iterator[Result]
) -> tuple[PixelMeter, dict[str, np.ndarray], float]:
    """All shards together: sums over pixels, numbers of each image, and the share of the frame empty at the start."""
    meter, outside_before = PixelMeter(aligned_area=1 / pixel_area(stack)), 0.0
    each = {name: allocate((len(stack),), dtype) for name, dtype in _PER_IMAGE.items()}
    for rows, one in zip(shards.ranges, results, strict=True):
        for name, values in each.items():
            values[slice(*rows)] = one.pop(name)
        outside_before += float(one.pop("outside_before"))
        meter.merge(PixelMeter().restore(one))
    return meter, each, outside_before / len(stack)


@dataclass
class _PixelTask:
    """Sums over the pixels of a shard, and some numbers of each image."""

    stack: Stack
    stack_from_frame: np.ndarray
    kind: str

    @torch.no_grad()
    def __call__(self, runs: Runs) -> Result:
        meter, outside_before = PixelMeter(aligned_area=1 / pixel_area(self.stack)), 0.0
        # Filled in place: small arrays that stay between large ones that go would keep their memory.
        origin, n = runs[0][0], runs[-1][1] - runs[0][0]
        each = {name: np.zeros(n, dtype) for name, dtype in _PER_IMAGE.items()}
        stack, features = self.stack, pixel_features(self.kind)
        for first, stop in runs:
            rows, here = np.arange(first, stop), slice(first - origin, stop - origin)
            poses = self.stack_from_frame[rows]
            found, start = (torch.as_tensor(matrices).float() for matrices in (poses, stack.start[rows]))
            images, masks = stack.images(rows), stack.masks(rows)
            # Real photographs do not end in black, so what is not covered has no weight.
            (before, before_weight), (after, after_weight) = (
                (warp(images, matrices, stack.frame), features.covered(matrices, stack.size, stack.frame, masks))
                for matrices in (start, found)
            )
            meter.update_before(before, before_weight)
            meter.update_after(after, images, after_weight)
            frame_from_stack = invert(poses.astype(np.float64))
            each["ink"][here], each["stack_ink"][here] = after.flatten(1).sum(1), images.flatten(1).sum(1)
            each["outside"][here] = 1 - coverage(found, stack.size, stack.frame).mean((1, 2, 3))
            each["scale"][here] = scales(frame_from_stack, stack.frame, invert(stack.start[rows]))
            each["frame_scale"][here] = frame_scales(poses, stack.start[rows], stack.frame)
            outside_before += float((1 - coverage(start, stack.size, stack.frame).mean((1, 2, 3))).sum())
        return {**each, **meter.state(), "outside_before": np.array(outside_before)}


def _start_energy(stack: Stack) -> float:
    """The energy ratio that the scale of the start gives to an object that lies inside the frame."""
    each = [scales(invert(stack.start[part]), stack.frame) for part in row_slices(len(stack))]
    return geometric_mean(np.concatenate(each)) ** 2 * pixel_area(stack)


# ---- likeness


@dataclass
class _Likeness:
    numbers: dict[str, float]
    score: np.ndarray  # (n,) likeness to the mean of the other inliers
    inlier: np.ndarray  # (n,) bool
    flat: np.ndarray  # (n,) bool: shows nothing


def _likeness_in_set(
    stack: Stack, stack_from_frame: np.ndarray, kind: str, sight: FeatureSimilarity | None, shards: _Shards
) -> _Likeness:
    """Likeness of a sample of the images to each other, and of all other images to the sample."""
    n = len(stack)
    start, aligned = (ContrastViews(stack, poses, kind, sight) for poses in (stack.start, stack_from_frame))
    views = [aligned, NormalisedViews(stack)] if kind == "object" and sight is None else [aligned]
    most = min(MAX_SAMPLE_IMAGES, max(1, MAX_SAMPLE_VALUES // (aligned.stack.frame[0] * aligned.stack.frame[1])))
    sample = evenly_spaced_rows(n, most)
    before = likeness_to_others(*start.pictures(sample))
    pictures = [view.pictures(sample) for view in views]
    after = likeness_to_others(*pictures[0])
    model = InlierModel(pictures, kind)
    inlier = model.likeness >= model.min_likeness
    if inlier.sum() < 2:
        inlier[:] = True
    members = _select(pictures[0], np.flatnonzero(inlier))
    mean = MeanContrast(*members)
    groups = compare_groups(_select(members, evenly_spaced_rows(mean.n, MAX_PAIRED_IMAGES)))
    homography_noise = float("nan")
    if sight is None:
        homography_noise = homography_noise_likeness(model.noise_likeness, *pictures[0])
    numbers = _change(before, after) | {
        "noise_likeness": model.noise_likeness,
        "noise_likeness_homography": round(homography_noise, 6),  # more digits depend on the number of threads
        "between_group_likeness": groups.between_likeness,
        "smaller_group_share": groups.smaller_share,
        "sharpness_before": start.sharpness.value,
        "sharpness_after": aligned.sharpness.value,
    }
    each = {name: allocate((n,), dtype) for name, dtype in _PER_SCORED_IMAGE.items()}
    each["likeness"][sample], each["flat"][sample] = model.likeness, ~np.isfinite(after)
    each["score"][sample] = mean.likeness(*pictures[0], torch.as_tensor(inlier)) if n > 1 else 1.0
    if len(sample) < n:
        scoring = _ScoringTask(views, model, mean, sample, max(1, most // 8))
        for rows, one in zip(shards.ranges, shards.map("measuring likeness", scoring), strict=True):
            for name, values in each.items():
                values[scoring.others(*rows)] = one[name]
    return _Likeness(numbers, each["score"], each["likeness"] >= model.min_likeness, each["flat"])


def _change(before: np.ndarray, after: np.ndarray) -> dict[str, float]:
    """How likeness changed; NaN where an image shows nothing."""
    rise = (after - before)[np.isfinite(after - before)]
    means = [float(np.nanmean(values)) if np.isfinite(values).any() else float("nan") for values in (before, after)]
    return {
        "likeness_before": means[0],
        "likeness_after": means[1],
        "likeness_change_error": float(rise.std() / max(1, len(rise) - 1) ** 0.5) if len(rise) else float("nan"),
        "improved_share": float((rise > 0).mean()) if len(rise) else float("nan"),
    }


def _select(pictures: Pictures, rows: np.ndarray) -> Pictures:
    contrast, counts = pictures
    return contrast[rows], None if counts is None else counts[rows]


@dataclass
class _ScoringTask:
    """Likeness of the images of a shard to those of the sample, a few at a time."""

    views: Sequence[ContrastViews]
    model: InlierModel
    mean: MeanContrast
    sample: np.ndarray
    together: int

    def others(self, first: int, stop: int) -> np.ndarray:
        """Rows that are not in the sample."""
        return np.setdiff1d(np.arange(first, stop), self.sample)

    @torch.no_grad()
    def __call__(self, runs: Runs) -> Result:
        rows = self.others(runs[0][0], runs[-1][1])
        each: dict[str, np.ndarray] = {name: np.zeros(len(rows), dtype) for name, dtype in _PER_SCORED_IMAGE.items()}
        for at in range(0, len(rows), self.together):
            here = slice(at, at + self.together)
            pictures = [view.pictures(rows[here]) for view in self.views]
            contrast = pictures[0][0]
            each["likeness"][here] = self.model.likeness_to_inliers(pictures)
            each["score"][here] = self.mean.likeness(*pictures[0], torch.zeros(len(contrast), dtype=torch.bool))
            each["flat"][here] = ~contrast.flatten(1).any(1).numpy()
        return each
