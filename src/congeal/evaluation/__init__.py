"""Numbers that say how well a set is aligned, and the verdict on them. Nothing here aligns anything.

statistics.py   mean and variance of a stream of images
pixels.py       APSNR, total intensity (ink) of objects on empty ground, kind of a set
poses.py        scale and plausibility of a pose, share of the frame outside the source, errors against known answers
likeness.py     correlation of local contrast with other images; sharpness of the mean, coherence of an image
outliers.py     images that do not belong to the set; the null model: likeness that noise reaches
grouping.py     whether a set has two kinds of images; agreement of groups with labels
verdict.py      the verdict, and advice in sentences
quality.py      all numbers of one alignment, and their notebook view
thresholds.py   every threshold
"""

from congeal.evaluation.pixels import (
    PixelMeter,
    apsnr,
    apsnr_from_variance,
    blank,
    energy_ratio,
    ink,
    looks_like_objects,
)
from congeal.evaluation.poses import corner_error, geometric_mean, landmark_error, mean_scale, out_of_frame, scales
from congeal.evaluation.quality import Quality
from congeal.evaluation.statistics import RunningStats, as_numpy
from congeal.evaluation.verdict import Evidence, advise, judge

__all__ = [
    "Evidence",
    "PixelMeter",
    "Quality",
    "RunningStats",
    "advise",
    "apsnr",
    "apsnr_from_variance",
    "as_numpy",
    "blank",
    "corner_error",
    "energy_ratio",
    "geometric_mean",
    "ink",
    "judge",
    "landmark_error",
    "looks_like_objects",
    "mean_scale",
    "out_of_frame",
    "scales",
]
