"""Numbers that say how well a set is aligned, and whether the alignment cheated.

arrays.py       what is taken: NumPy arrays or torch tensors, image index first
statistics.py   mean and variance of a stream of images
decibels.py     APSNR, the alignment peak signal-to-noise ratio to the mean image
energy.py       what there is of an object on empty ground (ink), and the energy ratio
poses.py        scale, and the share of the frame outside the source image
wild.py         poses that make no sense
contrast.py     images without their light
likeness.py     one image against the mean of the others
chance.py       the likeness that noise reaches
coherence.py    whether an image shows anything but noise
foreign.py      images that do not belong to the set
kinds.py        one kind of thing or several
sharpness.py    how much of the edges survives in the mean
truth.py        errors against known transforms or landmarks
verdict.py      what the numbers mean
quality.py      all of it for one alignment
limits.py       every threshold
"""

from congeal.metrics.arrays import as_numpy
from congeal.metrics.decibels import apsnr, apsnr_from_variance
from congeal.metrics.energy import blank, energy_ratio, ink, looks_like_objects
from congeal.metrics.poses import geometric_mean, mean_scale, out_of_frame, scales
from congeal.metrics.quality import PixelMeter, Quality
from congeal.metrics.statistics import RunningStats
from congeal.metrics.truth import corner_error, landmark_error
from congeal.metrics.verdict import Evidence, advise, judge

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
