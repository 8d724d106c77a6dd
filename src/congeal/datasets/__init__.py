"""Named data sets: `digits:3` is bundled, the others are made from MNIST or are photographs in `$CONGEAL_DATA`."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
    "affnist-original": ("affnist-original:2", "synthetic", "open_affnist_original"),
    "infimnist-original": ("infimnist-original:7@1000000", "synthetic", "open_infimnist_original"),
    "lfw": ("lfw:Tony_Blair@0.3", "photographs", "open_lfw"),
    "cub": ("cub:047.American_Goldfinch", "photographs", "open_cub"),
    "willow": ("willow:car(G)", "photographs", "open_willow"),
    "lfw-deepfunneled": ("lfw-deepfunneled:Tony_Blair", "photographs", "open_deepfunneled"),
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


def cache_folder() -> Path:
    """Where downloaded files are kept: the user's cache."""
    import pooch

    return Path(pooch.os_cache("congeal"))


def download(what: str, addresses: Sequence[str], sha256: str, path: Path, advice: str, **options: Any) -> Path:
    """A file, if its checksum is right, or else fetched from the first address that answers."""
    import pooch

    pooch.get_logger().setLevel("WARNING")
    fetch, reason = pooch.HTTPDownloader(timeout=30, progressbar=False), ""
    for address in addresses:
        try:
            pooch.retrieve(address, sha256, fname=path.name, path=path.parent, downloader=fetch, **options)
            return path
        except (OSError, ValueError) as error:  # not reachable, or not the file it should be: ask the next address
            reason = type(error).__name__
    raise CongealError(f"{what} is neither on this machine nor could it be downloaded ({reason}): {advice}")


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
