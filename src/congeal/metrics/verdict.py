"""What the numbers of an alignment mean, in one word and one or two sentences that name the numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from congeal.metrics.limits import (
    COLLAPSE_ENERGY,
    COLLAPSE_SCALE,
    FAILED_CHANCE,
    FAILED_IMAGES,
    FITTED_CHANCE,
    LEAST_FALL,
    LEAST_FALL_SHARE,
    LEAST_RISE,
    LOST_ENERGY,
    LOST_RISE,
    MATCHING,
    OBJECT_CROWD,
    OBJECT_UNITY,
    PART,
    PHOTO_DISTINCTNESS,
    PHOTO_UNITY,
    SURE,
    UNFITTED_CHANCE,
)

VERDICTS = ("good", "unchanged", "mixed", "shrunk", "zoomed", "worse", "failed")
"""Every verdict. Only the first two say that the result can be used as it is."""
COLLAPSED = ("shrunk", "zoomed", "failed")
"""Verdicts on results in which the object is no longer there as it was."""


@dataclass(frozen=True)
class Evidence:
    """What was measured of an alignment. Shares and ratios are fractions of 1; a number that cannot be had is NaN.

    Attributes
    ----------
    n_images : int
        Images measured; skipped ones are not among them.
    kind : str
        "object" (on empty dark ground) or "photo".
    likeness_before, likeness_after : float
        Mean over images of the likeness to the mean of the others, −1…1, at the start and as aligned.
    likeness_error : float
        Standard error, over images, of the difference of the two.
    improved_share : float
        Share of images that are more like the others than at the start.
    chance_likeness : float
        The likeness that noise of the same kind reaches where it fits best.
    fitted_chance : float
        What that noise reaches if it is bent by homographies, and of objects that are little alike what their pieces
        do; NaN for others, for sequences and where features are compared.
    matching_share : float
        Share of images that match the set: not an outlier, failed or blank.
    failed_share : float
        Share of images whose pose makes no sense.
    unity, distinctness, crowd : float
        Whether the images are of one kind, see `congeal.metrics.kinds.Kinds`.
    group_share : float
        Share of the set that the smaller of its two groups is.
    sharpness_before, sharpness_after : float
        Gradient of the mean image against that of single images, at the start and as aligned; 1 for identical images.
    apsnr_before, apsnr_after : float
        Alignment peak signal-to-noise ratio, in dB, at the start and as aligned.
    energy_ratio : float
        Ink (sum of pixel values) of the aligned images divided by that of the sources; 1 is right.
    expected_energy : float
        The energy ratio that is right; not 1 only where a start zooms and the motion may not take that back.
    mean_scale : float
        Geometric mean of how much the images that match were enlarged, relative to the start; 1 is unchanged.
    blank_share : float
        Share of aligned images with next to no ink left.
    out_of_frame_share, out_of_frame_before : float
        Mean share of the aligned frame that lies outside its source image, as aligned and at the start.
    sequence : bool
        The images have an order: likeness is that to neighbours, and images may leave the frame of the result.
    """

    n_images: int = 0
    kind: str = "photo"
    likeness_before: float = float("nan")
    likeness_after: float = float("nan")
    likeness_error: float = float("nan")
    improved_share: float = float("nan")
    chance_likeness: float = float("nan")
    fitted_chance: float = float("nan")
    matching_share: float = 1.0
    failed_share: float = 0.0
    unity: float = 1.0
    distinctness: float = 0.0
    crowd: float = 1.0
    group_share: float = 0.0
    sharpness_before: float = float("nan")
    sharpness_after: float = float("nan")
    apsnr_before: float = float("nan")
    apsnr_after: float = float("nan")
    energy_ratio: float = float("nan")
    expected_energy: float = 1.0
    mean_scale: float = 1.0
    blank_share: float = 0.0
    out_of_frame_share: float = 0.0
    out_of_frame_before: float = 0.0
    sequence: bool = False

    @property
    def rise(self) -> float:
        """By how much likeness rose."""
        return self.likeness_after - self.likeness_before


def judge(seen: Evidence) -> str:
    """The verdict in one word, one of `VERDICTS`.

    In this order: is there anything to measure, is the object still there at its size, do the images look more alike
    than noise, did they get less alike, are they of one kind, do they look more alike than noise that is bent, did they
    get more alike.
    """
    if not _measurable(seen):
        return "failed"
    size = _size(seen)
    pulled_apart = size == "failed" and seen.kind == "photo" and _several_kinds(seen)  # this way and that
    if size is not None and not pulled_apart:
        return size
    if seen.failed_share >= FAILED_IMAGES or _by_chance(seen, FAILED_CHANCE * seen.chance_likeness):
        return "failed"
    least_fall = min(LEAST_FALL, LEAST_FALL_SHARE * seen.likeness_before)
    if seen.rise < -max(least_fall, SURE * seen.likeness_error):
        return "worse"
    if seen.matching_share < MATCHING or _several_kinds(seen):
        return "mixed"
    # Last, because of a mixed set some are alike, and all of it less so.
    if _by_chance(seen, FITTED_CHANCE[seen.kind] * seen.fitted_chance):
        return "failed"
    return "good" if seen.rise > max(LEAST_RISE, SURE * seen.likeness_error) else "unchanged"


def _measurable(seen: Evidence) -> bool:
    amount = seen.energy_ratio if _holds_ink(seen) else seen.mean_scale
    return bool(seen.n_images and np.isfinite([amount, seen.likeness_before, seen.likeness_after]).all())


def _holds_ink(seen: Evidence) -> bool:
    """Whether all of an object should be in the frame."""
    return seen.kind == "object" and not seen.sequence


def _size(seen: Evidence) -> str | None:
    """What became of the object as a whole, if it is not there as it was: "shrunk", "zoomed" or "failed"."""
    if _holds_ink(seen):
        energy, (low, high) = seen.energy_ratio / seen.expected_energy, COLLAPSE_ENERGY
        if energy > high:
            return "zoomed"
        if energy >= low:
            return None
        if seen.mean_scale > COLLAPSE_SCALE[1]:
            return "zoomed"
        return "failed" if energy < LOST_ENERGY and seen.mean_scale >= COLLAPSE_SCALE[0] else "shrunk"
    if not COLLAPSE_SCALE[0] <= seen.mean_scale <= COLLAPSE_SCALE[1]:
        return "shrunk" if seen.mean_scale < 1 else "zoomed"
    left = seen.out_of_frame_share - seen.out_of_frame_before > LOST_RISE
    return "failed" if left and not seen.sequence else None


def _by_chance(seen: Evidence, least: float) -> bool:
    """Whether images with nothing in common would be as alike: they are not at least so alike as aligned, and not where
    they started either, without anything that was fitted."""
    unfitted = UNFITTED_CHANCE * seen.chance_likeness
    started_alike = seen.kind == "photo" and min(seen.likeness_before, seen.likeness_after) >= unfitted
    return seen.likeness_after < least and not started_alike


def _several_kinds(seen: Evidence) -> bool:
    if seen.kind == "object":
        return (seen.unity < OBJECT_UNITY and seen.group_share >= PART) or seen.crowd < OBJECT_CROWD
    low, high = PHOTO_DISTINCTNESS
    clearly = seen.distinctness > low + (high - low) * seen.unity
    return seen.unity < PHOTO_UNITY and clearly and seen.group_share >= PART


# ---- in sentences


def advise(seen: Evidence, verdict: str) -> str:
    """What a verdict means and what to do, with the numbers it rests on."""
    return _ADVICE[verdict](seen)


def _good(seen: Evidence) -> str:
    odd = round((1 - seen.matching_share) * seen.n_images)
    flagged = f" {odd:,} of {seen.n_images:,} images do not match and are flagged." if odd else ""
    return (
        f"The images are more alike than before (likeness {_change(seen)}, {seen.improved_share:.0%} of them improved) "
        f"and the object kept its size.{flagged}"
    )


def _unchanged(seen: Evidence) -> str:
    return (
        f"The images were aligned already, or as well as this method can: likeness {_change(seen)}. If the mean looks "
        "blurred, try a richer motion, another reference or another method."
    )


def _mixed(seen: Evidence) -> str:
    odd = round((1 - seen.matching_share) * seen.n_images)
    if seen.sequence:
        return (
            f"{odd:,} of {seen.n_images:,} images of the sequence do not match those before and after them: they show "
            "too little (empty sky, a flash), or something else. Leave them out with --exclude, or align what lies "
            "between them by itself."
        )
    if seen.matching_share < MATCHING:
        what = f"{odd:,} of {seen.n_images:,} images do not match the others"
        fix = "Sort them with --groups auto"
    else:
        smaller = max(1, round(seen.group_share * seen.n_images))
        what = (
            f"The set falls apart into groups of about {smaller:,} and {seen.n_images - smaller:,} images that are "
            f"alike inside but not across (likeness across is {seen.unity:.2f} of that inside)"
        )
        fix = "Two groups explain these images far better: try --groups 2, or --groups auto"
    return (
        f"{what}: there may be several kinds of things, or some are mirrored or turned. {fix}, or leave out the images "
        "that do not belong."
    )


def _shrunk(seen: Evidence) -> str:
    if seen.kind == "object":
        what = f"only {seen.energy_ratio / seen.expected_energy:.0%} of its light is left in the frame"
    else:
        what = f"the mean scale is {seen.mean_scale:.2f} of that at the start"
    return f"The object was shrunk: {what}. Try a simpler motion, another reference or another method."


def _zoomed(seen: Evidence) -> str:
    if seen.kind == "object":
        what = f"{seen.energy_ratio / seen.expected_energy:.0%} of its light is in the frame, at a mean scale of"
    else:
        what = "it fills more of the frame than at the start, at a mean scale of"
    return (
        f"The object was enlarged: {what} {seen.mean_scale:.2f}. Try a simpler motion, another reference or another "
        "method."
    )


def _worse(seen: Evidence) -> str:
    return (
        f"The images are less alike than before: likeness {_change(seen)}, only {seen.improved_share:.0%} of them "
        "improved. Keep the start, or try a simpler motion, another reference or another method."
    )


def _failed(seen: Evidence) -> str:
    if not _measurable(seen):
        return "There is nothing to measure: no image has finite, visible content."
    if _size(seen) == "failed":
        what = f"the object left the frame, {seen.out_of_frame_share:.0%} of which is empty now"
    elif seen.failed_share >= FAILED_IMAGES:
        poses = "where nothing ties them to the others" if seen.sequence else "in poses that make no sense"
        what = f"{seen.failed_share:.0%} of the images ended {poses}"
    else:
        chance = max(seen.chance_likeness, seen.fitted_chance)
        what = (
            f"the images look hardly more alike than noise would (likeness {seen.likeness_after:.2f}, noise of the "
            f"same kind {chance:.2f})"
        )
    return (
        f"No alignment was found: {what}. Check that they show the same kind of thing, give a better start, or try "
        "another method."
    )


def _change(seen: Evidence) -> str:
    return f"{seen.likeness_before:.2f} → {seen.likeness_after:.2f}"


_ADVICE: dict[str, Callable[[Evidence], str]] = {
    "good": _good,
    "unchanged": _unchanged,
    "mixed": _mixed,
    "shrunk": _shrunk,
    "zoomed": _zoomed,
    "worse": _worse,
    "failed": _failed,
}
