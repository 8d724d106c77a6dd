"""Named data sets: `digits:3` is bundled, the others are made from MNIST or are faces of LFW.

A name is `family:rest`; each family has its own file. Openers give an `ImageSource`.
"""

from __future__ import annotations

from collections.abc import Callable

from congeal.errors import CongealError, did_you_mean
from congeal.images.sources.base import ImageSource


def _digits(rest: str) -> ImageSource:
    from congeal.datasets.digits import open_digits

    return open_digits(rest)


def _mnist(rest: str) -> ImageSource:
    from congeal.datasets.mnist import open_mnist

    return open_mnist(rest)


def _perspective(rest: str) -> ImageSource:
    from congeal.datasets.perspective import open_perspective

    return open_perspective(rest)


def _perspective_baked(rest: str) -> ImageSource:
    from congeal.datasets.perspective import open_perspective

    return open_perspective(rest, baked=True)


def _affnist(rest: str) -> ImageSource:
    from congeal.datasets.affnist import open_affnist

    return open_affnist(rest)


def _affnist_original(rest: str) -> ImageSource:
    from congeal.datasets.affnist_original import open_affnist_original

    return open_affnist_original(rest)


def _infimnist_original(rest: str) -> ImageSource:
    from congeal.datasets.infimnist_original import open_infimnist_original

    return open_infimnist_original(rest)


def _infimnist(rest: str) -> ImageSource:
    from congeal.datasets.infimnist import open_infimnist

    return open_infimnist(rest)


def _lfw(rest: str) -> ImageSource:
    from congeal.datasets.lfw import open_lfw

    return open_lfw(rest)


def _lfw_deepfunneled(rest: str) -> ImageSource:
    from congeal.datasets.lfw import open_deepfunneled

    return open_deepfunneled(rest)


def _cub(rest: str) -> ImageSource:
    from congeal.datasets.wild import open_cub

    return open_cub(rest)


def _willow(rest: str) -> ImageSource:
    from congeal.datasets.wild import open_willow

    return open_willow(rest)


# family → what to write, and the opener
_FAMILIES: dict[str, tuple[str, Callable[[str], ImageSource]]] = {
    "digits": ("digits:3", _digits),
    "mnist": ("mnist:3", _mnist),
    "perspective": ("perspective:3@0.2", _perspective),
    "perspective-baked": ("perspective-baked:3@0.2", _perspective_baked),
    "affnist": ("affnist:2@100000", _affnist),
    "infimnist": ("infimnist:7@1000000", _infimnist),
    "affnist-original": ("affnist-original:2", _affnist_original),
    "infimnist-original": ("infimnist-original:7@1000000", _infimnist_original),
    "lfw": ("lfw:Tony_Blair@0.3", _lfw),
    "cub": ("cub:047.American_Goldfinch", _cub),
    "willow": ("willow:car(G)", _willow),
    "lfw-deepfunneled": ("lfw-deepfunneled:Tony_Blair", _lfw_deepfunneled),
}


def names() -> list[str]:
    """One example of each family, as a user would write it."""
    return [example for example, _ in _FAMILIES.values()]


def open_named(name: str) -> ImageSource:
    """Open `digits:3` and the like."""
    family, _, rest = name.partition(":")
    if family not in _FAMILIES:
        raise CongealError(
            f"there is no data set '{name}'{did_you_mean(family, _FAMILIES)}: there are {', '.join(names())}"
        )
    return _FAMILIES[family][1](rest)
