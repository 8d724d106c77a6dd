"""`affnist-original:2`, `affnist-original:2@5000`: one digit of the original affNIST files, which you have to have.

The batches 1.mat, 2.mat, … are looked for in `$CONGEAL_DATA/affnist`, in its folders `training_batches` and
`training_and_validation_batches` too. The first N images of the digit are taken, in the order of the batches; 100,000
unless said.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from congeal.errors import CongealError
from congeal.images.formats.array_files import read_affnist
from congeal.images.sources.arrays import ArraySource
from congeal.images.sources.files import natural_key

DEFAULT_COUNT = 100_000
_FOLDERS = ("", "training_and_validation_batches", "training_batches")


def open_affnist_original(which: str) -> ArraySource:
    """`2` or `2@N`."""
    digit, _, amount = which.partition("@")
    count = DEFAULT_COUNT if not amount else int(amount) if amount.isdecimal() else 0
    if digit not in tuple("0123456789") or count < 1:
        raise CongealError(f"'affnist-original:{which}' is not a data set: write affnist-original:2 or …:2@5000")
    parts = [np.zeros((0, 40, 40), np.uint8)]
    ids: list[str] = []
    for path in batches():
        images, labels = read_affnist(path)
        rows = np.flatnonzero(labels == int(digit))[: count - len(ids)]
        parts.append(images[rows])
        ids += [f"{path.stem}-{row:05d}" for row in rows]
        if len(ids) == count:
            break
    if len(ids) < count and amount:
        raise CongealError(f"the affNIST batches at hand have {len(ids)} images of the digit {digit}, not {count:,}")
    source = ArraySource(np.concatenate(parts), name=f"affnist-original:{which}", ids=ids)
    source.kind = "object"
    return source


def batches() -> list[Path]:
    """The batch files, in the order of their numbers."""
    root = Path(os.environ.get("CONGEAL_DATA") or ".") / "affnist"
    for name in _FOLDERS:
        found = sorted((root / name).glob("*.mat"), key=lambda path: natural_key(path.name))
        if found:
            return found
    raise CongealError(
        f"there are no affNIST batches (1.mat, 2.mat, …) in {root}: put them there and set CONGEAL_DATA to the folder "
        "above, or use affnist:2, which is made in their style"
    )
