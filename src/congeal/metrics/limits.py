"""Every threshold on the numbers of an alignment, in one place.

*Ink* is the sum of an image's pixel values: what there is of an object on empty ground. The *energy ratio* is the ink
of the aligned images divided by that of the sources; 1 is right. The bands were chosen on MNIST digits and widened
until no sound alignment of any digit, clean or perturbed by up to 30 %, fell outside them.
"""

from __future__ import annotations

Band = tuple[float, float]
"""(lowest, highest) value allowed."""

# ---- which kind of set it is: objects on empty dark ground, or photographs

WHITE_QUANTILE = 0.999
"""The brightest value of a set is this quantile of its pixels: a few hot pixels must not decide."""
DARK = 0.1
"""A pixel is dark up to this share of the brightest value."""
EMPTY_BORDER = 0.75
"""Images of objects have at least this share of dark pixels along the border …"""
EMPTY_GROUND = 0.4
"""… and at least this share in the whole image."""

# ---- objects on empty ground: what a whole set may do

COLLAPSE_ENERGY: Band = (0.9, 1.1)
"""An energy ratio outside it is a collapse, and is called one."""
EMPTIED_ENERGY = 0.5
"""Below it the object was not shrunk but pushed out of the frame."""
COMPARABLE_ENERGY: Band = (0.93, 1.07)
"""Costs of two iterates may be compared while both are inside: shrinking lowers any cost, and is no progress."""
HELD_ENERGY: Band = (0.95, 1.0)
"""Where the gauge holds the set: well inside what counts as a collapse, and never larger than what came in."""
REFINED_ENERGY: Band = (0.95, 0.96)
"""Where the deep method's refinement ends, wherever it began, so that results of different sets can be compared."""

# ---- objects: what one image may do

MATCH_INK: Band = (1 / 3, 3.0)
"""Ink of one image against its own source while its pose is searched; a narrow two needs more than twice its ink."""
LOST_INK = 0.5
"""An aligned image with less of its ink than this has failed."""
BLANK_INK = 0.02
"""A source image with less than this share of the set's median ink is blank."""

OUTLIER_DEVIATIONS = 5.0
"""An image whose score is so many deviations below the median score is an outlier …"""
LEAST_DEVIATION = 0.02
"""… where a deviation is at least this: among images that all match alike, the last one is not odd yet."""

# ---- photographs, where ink means nothing

COLLAPSE_SCALE: Band = (0.85, 1.15)
"""Mean scale against the start: outside it the set was shrunk or enlarged as a whole."""
EMPTIED_RISE = 0.25
"""Rise of the mean out-of-frame share beyond which the object was pushed out of the frame."""
LOST_OUTSIDE = 0.9
"""A photograph that covers less than a tenth of the frame has failed."""

# ---- either

UNCHANGED_DECIBELS = 0.05
"""A change of APSNR smaller than this, in dB, is none."""
