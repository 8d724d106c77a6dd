"""What the paper prints, as data: tables set it beside ours, in a column of its own.

APSNR in dB, means over digits or subjects, by the names our methods have; "dprc" is the paper's own method.
"""

from __future__ import annotations

MNIST = {"rasl": 31.74, "tgrasta": 31.78, "pssv": 31.13, "dprc": 33.30}
"""6,000 images per digit."""

PERSPECTIVE = {
    0.1: {"rasl": 31.91, "tgrasta": 32.01, "pssv": 31.40, "dprc": 33.28},
    0.2: {"rasl": 31.66, "tgrasta": 30.64, "pssv": 30.48, "dprc": 33.20},
    0.3: {"rasl": 29.80, "tgrasta": 29.36, "pssv": 29.47, "dprc": 32.96},
}
"""By σ, as a share of the side."""

AFFNIST = (33.19, 33.29, 34.44, 32.59)
"""100,000 images of each of four digits; the text does not name them."""

INFIMNIST = (32.20, 32.63, 31.93)
"""1,000,000 images of each of three digits; the text does not name them."""

LFW = {
    0.0: {"rasl": 29.90, "pssv": 29.74, "deep-funneled": 30.31, "dprc": 30.73},
    0.15: {"rasl": 29.75, "pssv": 29.25, "dprc": 30.43},
    0.3: {"rasl": 29.14, "pssv": 28.67, "dprc": 30.29},
}
"""By how much the Viola-Jones box is grown; "deep-funneled" are the images as aligned by Deep Congealing."""

LFW_SUBJECTS = ("George_W_Bush", "Jennifer_Capriati", "Serena_Williams", "Tony_Blair")
LFW_LANDMARKS = {
    0.0: {
        "rasl": (2.88, 2.45, 3.32, 3.24),
        "deep-funneled": (3.97, 3.48, 3.48, 3.27),
        "dprc": (2.67, 1.86, 2.24, 2.39),
    },
    0.15: {"rasl": (3.24, 6.40, 5.02, 3.65), "dprc": (3.84, 2.12, 4.34, 2.04)},
    0.3: {"rasl": (6.29, 6.77, 7.08, 6.87), "dprc": (4.27, 1.92, 3.69, 2.55)},
}
"""Landmark error in % of the distance between the eyes, in the order of the subjects."""

CAVEAT = (
    "APSNR is the paper's printed formula in float64. The values the paper prints do not follow from that formula: by "
    "it, raw MNIST scores 12.8 dB and a good homography alignment 18–20. Squaring in wrapping uint8 (“uint8 wrap”: raw "
    "31.4, well aligned 33.3) lands in the printed range, but that they came about so is a guess. Compare methods "
    "within one run, and the paper's column with nothing but “uint8 wrap”."
)
HONEST = (
    "APSNR alone rewards shrinking or losing the object: an energy ratio outside 0.9–1.1 is a collapse, and the APSNR "
    "of a collapsed alignment is struck out, and so is a mean that has one in it."
)
