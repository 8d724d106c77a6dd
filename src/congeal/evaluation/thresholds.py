"""Every threshold on the numbers of an alignment, in one place.

*Ink* is the sum of an image's pixel values: the amount of an object on empty ground. The *energy ratio* is the ink of
the aligned images divided by that of the sources; 1 is right. *Likeness* is the correlation of local contrast.

Thresholds were chosen on alignments by `lsc` and `joint` of MNIST training digits (alone, with other digits, in
mirrored and turned halves), of faces of two people (Capriati, Bush; with textures and other photographs among them), of
noise and blobs, and on known warps of a photograph (the cameraman). benchmarks/everyday_verdict.py and
benchmarks/foreign_digits.py test them on other digits, people, photographs and stacks.
"""

from __future__ import annotations

Band = tuple[float, float]
"""(lowest, highest) value allowed."""

# ---- kind of set: objects on empty dark ground, or photographs

WHITE_QUANTILE = 0.999
"""Quantile of a set's pixels that stands for its brightest value, so that a few hot pixels do not decide."""
MAX_DARK_SHARE = 0.1
"""Largest value of a dark pixel, as a share of the brightest value: dark ground is rarely exactly 0."""
MIN_DARK_BORDER = 0.75
"""Least share of dark pixels along the border of a set of objects; a stroke may touch the border."""
MIN_DARK_PIXELS = 0.4
"""Least share of dark pixels in a set of objects; large digits that fill their frame have about half."""

# ---- objects: the ink of a whole set. Bands were widened until no sound alignment of any digit, perturbed by up to
# 30 %, fell outside them.

COLLAPSE_ENERGY: Band = (0.9, 1.1)
"""Energy ratios of a set that kept its size; outside the object was shrunk, enlarged or lost."""
HELD_ENERGY: Band = (0.95, 1.0)
"""Energy ratios that the gauge keeps a set in: well inside `COLLAPSE_ENERGY`, never larger than the sources."""
REFINED_ENERGY: Band = (0.95, 0.95)
"""Energy ratio at which refinement of objects ends, so that results of different sets can be compared: 0.01 more
costs 0.04 dB of APSNR on MNIST."""

# ---- objects: the ink of one image

MATCH_INK: Band = (1 / 3, 3.0)
"""Ink of one image divided by that of its source while its pose is searched; a narrow two needs more than twice."""
LOST_INK = 0.5
"""Share of its ink below which an aligned image has failed, and a whole set at an unchanged scale was not shrunk but
pushed out of the frame."""
BLANK_INK = 0.02
"""Share of the set's median ink up to which a source image is blank."""

# ---- photographs, in which ink means nothing

COLLAPSE_SCALE: Band = (0.85, 1.15)
"""Mean scales, relative to the start, of a set that kept its size."""
MAX_OUT_OF_FRAME_RISE = 0.25
"""Largest rise of the mean out-of-frame share; beyond it the object was pushed out of the frame."""
MAX_OUT_OF_FRAME = 0.9
"""Largest out-of-frame share of one photograph; beyond it the image has failed."""
MAX_SCALE_RATIO = 3.0
"""Largest ratio of the scale of one image, objects too, to the median of the set; beyond it the image has failed."""

# ---- where likeness is measured

MIN_PIXEL_COVERAGE = 0.5
"""Least share of a pixel that has image under it, for the pixel to count; and least share of the other images that must
show a pixel, for their mean to count there (a share of 0.3 gives the same verdicts)."""
MEASURED_SIDE_PX = 192
"""Longer side of the images that likeness is measured on; larger ones change it little and take longer."""
MAX_SAMPLE_VALUES = 16_000_000
"""Pixel values of the images that are kept in memory and compared with each other (64 MB)."""
MAX_SAMPLE_IMAGES = 2_000
"""Images that are compared with each other; all further ones are compared with these, and sets with more are measured
at the size they were aligned at, to save time."""
MAX_PAIRED_IMAGES = 256
"""Images of which every two are compared."""

# ---- null model

MAX_SURROGATES = 64
"""Images that get a surrogate of noise: the mean of 64 is known to a few per cent."""
MAX_SURROGATE_SHIFT_SHARE = 0.25
"""Largest shift of a surrogate, as a share of the frame. Likeness reached by it and by `lsc` on the same noise: 0.056
and 0.053, at 28 pixels 0.114 and 0.122, blobs 0.17 and 0.20."""
MIN_NOISE_RATIO = 1.5
"""Least likeness of an aligned set, in units of what noise reaches by shifts (as Fisher's z). Noise, blobs, textures
and faces that `lsc` lost 0.9 to 1.5; right faces 2.3 and more."""
MIN_HOMOGRAPHY_NOISE_RATIO = {"photo": 1.65, "object": 2.1}
"""The same, in units of what noise reaches by homographies. Photographs: blobs, gravel and different clothes 0.9 to
1.6, faces of one person 2.2 and more. Objects: random blobs on black ground up to 2.04."""
CLEAR_OBJECT_LIKENESS = 0.6
"""Likeness from which objects are not tested against noise under homographies, of which so few independent samples as
a digit one has do not exclude anything. Random blobs on black ground end at 0.2 to 0.5, digits at 0.7 and more."""

# ---- outliers

NEAREST_SHARE = 0.25
"""Share of the inliers, those that it is most like, that an image is compared with. An eighth and a quarter find
foreign digits equally well; the mean of all finds fewer."""
TYPICAL_QUANTILE = 0.6
"""Quantile of likeness that stands for a typical image: up to a third of a set may be foreign."""
MIN_LIKENESS_SHARE = {"photo": 0.4, "object": 0.68}
"""Least likeness of an inlier, as a share of the typical one. Foreign objects are more like the others than foreign
photographs are, because both lie on empty ground. Chosen on 40 sets of MNIST training digits with 30 % foreign ones and
on the photographs of the verdict benchmark, see docs/lessons.md."""

# ---- the verdict

MAX_FAILED_SHARE = 0.5
"""Share of failed images from which the alignment as a whole has failed."""
MIN_MATCHING_SHARE = 0.85
"""Least share of images that match in a set that is not mixed."""
MIN_BETWEEN_GROUP_LIKENESS = {"photo": 0.42, "object": 0.82}
"""Least likeness between the two groups of a set of one kind, divided by the likeness inside them. Photographs: faces
of one person 0.48 and more, half of them turned 0.33 and less. Objects: 20 sets of one digit 0.90 and more, but 0.65 to
0.73 for twos, with and without a loop; two digits, or one of them mirrored or turned, 0.47 to 0.78, once 0.88."""
MIN_GROUP_IMAGES = 3
"""Least number of images in one of two groups: of fewer there is no likeness inside."""
MIN_RISE = 0.005
"""Least rise of likeness that counts, however significant."""
MIN_FALL_SHARE = 0.08
"""Least fall of likeness that counts, however significant, as a share of the likeness (verdict benchmark)."""
SIGNIFICANT_ERRORS = 3.0
"""Standard errors, over images, by which a change of likeness is significant."""

# ---- whether an image shows anything but noise

COHERENT_SHARE = 0.4
"""Least correlation of neighbouring pixels, as a share of the set's median, of an image that is not noise. MNIST
training digits 0.53 and more where 0.80 is usual, faces 0.93 and more of 0.97; noise 0.1 and less."""
COHERENT_SET = 0.3
"""Median correlation below which the whole set is noisy, and no image can be told from it by that."""
