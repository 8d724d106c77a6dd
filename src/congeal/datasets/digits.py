"""`digits:3`, `digits:all`: a small real sample that comes with the package.

`digits.npz` holds the first 200 images of each digit in the MNIST test set, grouped by digit: `images` (2000,28,28)
uint8, `labels` and `indices`, the place in the test set. It was written by `np.savez_compressed` from the original
files; a test compares the two.
"""

from __future__ import annotations

from importlib.resources import files

import numpy as np

from congeal.errors import CongealError
from congeal.images.sources.arrays import ArraySource


def open_digits(which: str) -> ArraySource:
    """The 200 bundled images of one digit, or all 2,000 of them; ids as in `mnist`."""
    with (files("congeal.datasets") / "digits.npz").open("rb") as file, np.load(file, allow_pickle=False) as stored:
        images, labels, indices = stored["images"], stored["labels"], stored["indices"]
    if which != "all":
        if which not in tuple("0123456789"):
            raise CongealError(f"'digits:{which}' is not a data set: write digits:0 … digits:9 or digits:all")
        chosen = labels == int(which)
        images, labels, indices = images[chosen], labels[chosen], indices[chosen]
    source = ArraySource(images, name=f"digits:{which}", ids=[f"test-{i:05d}" for i in indices])
    source.kind, source.labels = "object", labels
    return source
