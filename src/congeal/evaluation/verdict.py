"""What the numbers of an alignment mean, in one word and one or two sentences that name the numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from congeal.evaluation.thresholds import (
    CLEAR_OBJECT_LIKENESS,
    COLLAPSE_ENERGY,
    COLLAPSE_SCALE,
    LOST_INK,
    MAX_FAILED_SHARE,
    MAX_OUT_OF_FRAME_RISE,
    MIN_BETWEEN_GROUP_LIKENESS,
    MIN_FALL_SHARE,
    MIN_HOMOGRAPHY_NOISE_RATIO,
    MIN_MATCHING_SHARE,
    MIN_NOISE_RATIO,
    MIN_RISE,
    SIGNIFICANT_ERRORS,
)

VERDICTS = ("good", "unchanged", "mixed", "shrunk", "zoomed", "worse", "failed")
"""Every verdict. Only the first two say that the result can be used as it is."""
COLLAPSED = ("shrunk", "zoomed", "failed")
"""Verdicts on results in which the object is no longer there as it was."""
MAX_CORRELATION = 1 - 1e-6
"""Correlations are bounded by this, so that their Fisher transform is finite."""


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
    likeness_change_error : float
        Standard error, over images, of the difference of the two.
    improved_share : float
        Share of images that are more like the others than at the start.
    noise_likeness : float
        Likeness that noise of the same spectrum reaches if it is shifted to where it fits best.
    noise_likeness_homography : float
        Likeness that such noise reaches by a homography; NaN for sequences and where features are compared.
    matching_share : float
        Share of images that match the set: not an outlier, failed or blank.
    failed_share : float
        Share of images whose pose is implausible.
    between_group_likeness : float
        Likeness between the two groups of images that differ most, divided by that inside them; 1 for one kind.
    smaller_group_share : float
        Share of the set that the smaller of these groups is.
    sharpness_before, sharpness_after : float
        Gradient of the mean image against that of single images, at the start and as aligned; 1 for identical images.
    apsnr_before, apsnr_after : float
        Alignment peak signal-to-noise ratio, in dB, at the start and as aligned.
    energy_ratio : float
        Ink (sum of pixel values) of the aligned images divided by that of the sources; 1 is right.
    expected_energy_ratio : float
        The energy ratio that is right; not 1 only where a start zooms and the motion cannot undo that.
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
    likeness_change_error: float = float("nan")
    improved_share: float = float("nan")
    noise_likeness: float = float("nan")
    noise_likeness_homography: float = float("nan")
    matching_share: float = 1.0
    failed_share: float = 0.0
    between_group_likeness: float = 1.0
    smaller_group_share: float = 0.0
    sharpness_before: float = float("nan")
    sharpness_after: float = float("nan")
    apsnr_before: float = float("nan")
    apsnr_after: float = float("nan")
    energy_ratio: float = float("nan")
    expected_energy_ratio: float = 1.0
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

    In this order: is there anything to measure, is the object still there at its size, are the images more alike than
    shifted noise, did they get less alike, are they of one kind, are they more alike than noise under homographies, did
    they get more alike. The second test against noise comes after that for several kinds, because images of different
    kinds are less alike than those of one.
    """
    if not _measurable(seen):
        return "failed"
    size = _size(seen)
    pulled_apart = size == "failed" and seen.kind == "photo" and _several_kinds(seen)
    if size is not None and not pulled_apart:
        return size
    if seen.failed_share >= MAX_FAILED_SHARE or _like_noise(seen, seen.noise_likeness, MIN_NOISE_RATIO):
        return "failed"
    significant = SIGNIFICANT_ERRORS * seen.likeness_change_error
    if seen.rise < -max(MIN_FALL_SHARE * seen.likeness_before, significant):
        return "worse"
    if seen.matching_share < MIN_MATCHING_SHARE or _several_kinds(seen):
        return "mixed"
    clear = seen.kind == "object" and seen.likeness_after >= CLEAR_OBJECT_LIKENESS
    if not clear and _like_noise(seen, seen.noise_likeness_homography, MIN_HOMOGRAPHY_NOISE_RATIO[seen.kind]):
        return "failed"
    return "good" if seen.rise > max(MIN_RISE, significant) else "unchanged"


def _measurable(seen: Evidence) -> bool:
    amount = seen.energy_ratio if _holds_ink(seen) else seen.mean_scale
    return bool(seen.n_images and np.isfinite([amount, seen.likeness_before, seen.likeness_after]).all())


def _holds_ink(seen: Evidence) -> bool:
    """Whether all of an object should be in the frame."""
    return seen.kind == "object" and not seen.sequence


def _size(seen: Evidence) -> str | None:
    """What became of the object as a whole, if it is not there as it was: "shrunk", "zoomed" or "failed"."""
    if _holds_ink(seen):
        energy, (low, high) = seen.energy_ratio / seen.expected_energy_ratio, COLLAPSE_ENERGY
        if energy > high:
            return "zoomed"
        if energy >= low:
            return None
        if seen.mean_scale > COLLAPSE_SCALE[1]:
            return "zoomed"
        return "failed" if energy < LOST_INK and seen.mean_scale >= COLLAPSE_SCALE[0] else "shrunk"
    if not COLLAPSE_SCALE[0] <= seen.mean_scale <= COLLAPSE_SCALE[1]:
        return "shrunk" if seen.mean_scale < 1 else "zoomed"
    left = seen.out_of_frame_share - seen.out_of_frame_before > MAX_OUT_OF_FRAME_RISE
    return "failed" if left and not seen.sequence else None


def _like_noise(seen: Evidence, noise: float, min_ratio: float) -> bool:
    """Whether images with nothing in common would be as alike: less than `min_ratio` times the likeness of noise, as
    Fisher's z, and photographs not more alike than noise at the start, where nothing was fitted (noise, gravel and
    clothes reach half of it there, small faces of many people 1.3 times)."""
    if seen.kind == "photo" and min(seen.likeness_before, seen.likeness_after) >= seen.noise_likeness:
        return False
    likeness, limit = np.arctanh(np.clip([seen.likeness_after, noise], -MAX_CORRELATION, MAX_CORRELATION))
    return bool(likeness < min_ratio * limit)


def _several_kinds(seen: Evidence) -> bool:
    differ = seen.between_group_likeness < MIN_BETWEEN_GROUP_LIKENESS[seen.kind]
    return differ and seen.smaller_group_share >= 1 - MIN_MATCHING_SHARE  # fewer are a few outliers


# ---- in sentences


def advise(seen: Evidence, verdict: str) -> str:
    """What a verdict means and what to do, with the numbers it rests on."""
    change = f"likeness {seen.likeness_before:.2f} → {seen.likeness_after:.2f}"
    energy = f"{seen.energy_ratio / seen.expected_energy_ratio:.0%} of its light is"
    another = "Try a simpler motion, another reference or another method."
    if verdict == "good":
        odd = round((1 - seen.matching_share) * seen.n_images)
        flagged = f" {odd:,} of {seen.n_images:,} images do not match and are flagged." if odd else ""
        return (
            f"The images are more alike than before ({change}, {seen.improved_share:.0%} of them improved) "
            f"and the object kept its size.{flagged}"
        )
    if verdict == "unchanged":
        return (
            f"The images were aligned already, or as well as this method can: {change}. If the mean looks "
            "blurred, try a richer motion, another reference or another method."
        )
    if verdict == "shrunk":
        what = f"the mean scale is {seen.mean_scale:.2f} of that at the start"
        if seen.kind == "object":
            what = f"only {energy} left in the frame"
        return f"The object was shrunk: {what}. {another}"
    if verdict == "zoomed":
        what = f"{energy} in the frame," if seen.kind == "object" else "it fills more of the frame than at the start,"
        return f"The object was enlarged: {what} at a mean scale of {seen.mean_scale:.2f}. {another}"
    if verdict == "worse":
        return (
            f"The images are less alike than before: {change}, only {seen.improved_share:.0%} of them "
            "improved. Keep the start, or try a simpler motion, another reference or another method."
        )
    return _mixed(seen) if verdict == "mixed" else _failed(seen)


def _mixed(seen: Evidence) -> str:
    odd = round((1 - seen.matching_share) * seen.n_images)
    if seen.sequence:
        return (
            f"{odd:,} of {seen.n_images:,} images of the sequence do not match those before and after them: they show "
            "too little (empty sky, a flash), or something else. Leave them out with --exclude, or align what lies "
            "between them by itself."
        )
    if seen.matching_share < MIN_MATCHING_SHARE:
        what = f"{odd:,} of {seen.n_images:,} images do not match the others"
        fix = "Sort them with --groups auto"
    else:
        smaller = max(1, round(seen.smaller_group_share * seen.n_images))
        what = (
            f"The set falls apart into groups of about {smaller:,} and {seen.n_images - smaller:,} images that are "
            f"alike inside but not across (likeness across is {seen.between_group_likeness:.2f} of that inside)"
        )
        fix = "Two groups explain these images far better: try --groups 2, or --groups auto"
    return (
        f"{what}: there may be several kinds of things, or some are mirrored or turned. {fix}, or leave out the images "
        "that do not belong."
    )


def _failed(seen: Evidence) -> str:
    if not _measurable(seen):
        return "There is nothing to measure: no image has finite, visible content."
    if _size(seen) == "failed":
        what = f"the object left the frame, {seen.out_of_frame_share:.0%} of which is empty now"
    elif seen.failed_share >= MAX_FAILED_SHARE:
        poses = "where nothing ties them to the others" if seen.sequence else "in poses that make no sense"
        what = f"{seen.failed_share:.0%} of the images ended {poses}"
    else:
        noise = float(np.fmax(seen.noise_likeness, seen.noise_likeness_homography))
        what = (
            f"the images look hardly more alike than noise would (likeness {seen.likeness_after:.2f}, noise of the "
            f"same kind {noise:.2f})"
        )
    return (
        f"No alignment was found: {what}. Check that they show the same kind of thing, give a better start, or try "
        "another method."
    )
