"""Numbers that say how well a set is aligned, and the verdict on them. Nothing here aligns anything.

arrays.py           arguments: NumPy arrays or torch tensors, image index first
statistics.py       mean and variance of a stream of images (byte_sums.py: exact sums of 8-bit images)
apsnr.py            alignment peak signal-to-noise ratio to the mean image
total_intensity.py  ink of an object on empty ground, and the energy ratio
poses.py            scale, plausibility of a pose, and the share of the frame outside the source image
likeness.py         correlation of local contrast with the mean of the others, or with every other image
null_model.py       likeness that noise of the same spectrum reaches
outliers.py         images that do not belong to the set
bimodality.py       whether a set has two kinds of images
coherence.py        whether an image shows anything but noise
sharpness.py        gradient of the mean image, relative to that of single images
truth.py            errors against known transforms or landmarks
grouping.py         agreement of groups with labels
verdict.py          the verdict, and advice in sentences
quality.py          all numbers of one alignment; preview.py shows them in a notebook
thresholds.py       every threshold
"""

from congeal.evaluation.apsnr import apsnr, apsnr_from_variance
from congeal.evaluation.arrays import as_numpy
from congeal.evaluation.poses import geometric_mean, mean_scale, out_of_frame, scales
from congeal.evaluation.quality import PixelMeter, Quality
from congeal.evaluation.statistics import RunningStats
from congeal.evaluation.total_intensity import blank, energy_ratio, ink, looks_like_objects
from congeal.evaluation.truth import corner_error, landmark_error
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
