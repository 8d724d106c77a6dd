"""Which methods there are. A new method is one file and one line here."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from congeal.errors import CongealError

if TYPE_CHECKING:
    from congeal.methods.base import Method

# name on the command line: (module, class, one sentence)
_METHODS = {
    "deep": (
        "congeal.methods.deep.congealing",
        "DeepCongealing",
        "a spatial transformer trained on the set, then refined: reaches images that start far away, aligns new ones",
    ),
    "lsc": (
        "congeal.methods.lsc",
        "LSC",
        "least squares to a reference, by Gauss-Newton: fast and sharp from a fair start",
    ),
    "rasl": (
        "congeal.methods.rasl",
        "RASL",
        "low rank plus sparse errors: for sets with occlusions or changing light, all images in memory",
    ),
    "pssv": (
        "congeal.methods.pssv",
        "PSSV",
        "RASL whose largest singular values are free: for few images, or a known rank",
    ),
    "tgrasta": (
        "congeal.methods.tgrasta",
        "TGRASTA",
        "a subspace and sparse errors, learnt image by image: aligns new images to the subspace",
    ),
    "ecc": (
        "congeal.methods.ecc",
        "ECC",
        "correlation with the running mean, by OpenCV: the floor to beat (needs the extra 'faces')",
    ),
    "entropy": (
        "congeal.methods.entropy",
        "Entropy",
        "makes the values at each pixel predictable, by trial steps: needs no gradients, aligns new images by a funnel",
    ),
    "sift": (
        "congeal.methods.sift",
        "SIFT",
        "entropy of visual words: for photographs whose raw values mean little, aligns new images by a funnel",
    ),
    "deepfeatures": (
        "congeal.methods.deepfeatures",
        "DeepFeatures",
        "entropy of features learnt from the set, deep layer first: forgives much, aligns new images by a funnel",
    ),
    "logdet": (
        "congeal.methods.logdet",
        "LogDet",
        "a simple code for the aligned set that gives every source image back: sharp, and cannot win by shrinking",
    ),
}


def methods() -> dict[str, str]:
    """Every method's name and what it does, in one sentence."""
    return {name: what for name, (_, _, what) in _METHODS.items()}


def classes() -> dict[str, str]:
    """Every method's class and where it is defined, for the package's public names."""
    return {cls: f"{module}.{cls}" for module, cls, _ in _METHODS.values()}


def method_class(name: str) -> type[Method]:
    """The class behind a method's name."""
    if name not in _METHODS:
        raise CongealError(f"unknown method '{name}': choose one of {', '.join(_METHODS)}")
    module, cls, _ = _METHODS[name]
    return getattr(importlib.import_module(module), cls)
