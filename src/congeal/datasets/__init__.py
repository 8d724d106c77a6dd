"""Named data sets: `digits:3` is bundled, the others are made from MNIST or are photographs in `$CONGEAL_DATA`."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

from congeal.errors import CongealError, did_you_mean
from congeal.images.sources.base import ImageSource

# Family of a name `family:rest`: what to write as an example, and the module and function that open the rest.
_FAMILIES = {
    "digits": ("digits:3", "mnist", "open_digits"),
    "mnist": ("mnist:3", "mnist", "open_mnist"),
    "perspective": ("perspective:3@0.2", "synthetic", "open_perspective"),
    "perspective-baked": ("perspective-baked:3@0.2", "synthetic", "open_perspective_baked"),
    "affnist": ("affnist:2@100000", "synthetic", "open_affnist"),
    "infimnist": ("infimnist:7@1000000", "synthetic", "open_infimnist"),
    "affnist-original": ("affnist-original:2", "originals", "open_affnist_original"),
    "infimnist-original": ("infimnist-original:7@1000000", "originals", "open_infimnist_original"),
    "lfw": ("lfw:Tony_Blair@0.3", "lfw", "open_lfw"),
    "cub": ("cub:047.American_Goldfinch", "wild", "open_cub"),
    "willow": ("willow:car(G)", "wild", "open_willow"),
    "lfw-deepfunneled": ("lfw-deepfunneled:Tony_Blair", "lfw", "open_deepfunneled"),
}


def names() -> list[str]:
    """One example of each family, as a user would write it."""
    return [example for example, *_ in _FAMILIES.values()]


def open_named(name: str) -> ImageSource:
    """Open `digits:3` and the like."""
    family, _, rest = name.partition(":")
    if family not in _FAMILIES:
        raise CongealError(
            f"there is no data set '{name}'{did_you_mean(family, _FAMILIES)}: there are {', '.join(names())}"
        )
    _, module, opener = _FAMILIES[family]
    source: ImageSource = getattr(importlib.import_module(f"congeal.datasets.{module}"), opener)(rest)
    return source


def find_data(*places: str) -> Path | None:
    """The first of these files or folders that exists below the folder `$CONGEAL_DATA`."""
    root = os.environ.get("CONGEAL_DATA")
    found = (Path(root) / place for place in places) if root else ()
    return next((path for path in found if path.exists()), None)


def parse_count(family: str, which: str, example: str, *, mixed: bool = False) -> tuple[str, int | None]:
    """`2` or `2@5000` behind the name of a family: the digit (or "all" if mixed), and the number if given."""
    digit, _, amount = which.partition("@")
    known = digit in tuple("0123456789") or (mixed and digit == "all")
    if not known or (amount and not (amount.isdecimal() and int(amount))):
        raise not_a_data_set(f"{family}:{which}", example)
    return digit, int(amount) if amount else None


def not_a_data_set(name: str, examples: str) -> CongealError:
    """The error for a name of a known family that cannot be understood."""
    return CongealError(f"'{name}' is not a data set: write {examples}")
