"""Which methods there are. A new method is one file and one line here."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from congeal.errors import CongealError, meant

if TYPE_CHECKING:
    from congeal.methods.base import Method

# name on the command line: (module, class, one sentence)
_METHODS = {
    "deep": (
        "congeal.methods.deep.congealing",
        "DeepCongealing",
        "a spatial transformer trained on the set, then refined: reaches images that start far apart",
    ),
    "lsc": (
        "congeal.methods.lsc",
        "LSC",
        "least squares to a reference, by Gauss-Newton: fast and sharp on roughly aligned input",
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
        "entropy of visual words: for photographs whose pixel values mean little, aligns new images by a funnel",
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

# Known by name, but not among the methods that are listed and compared: the paper's own trains for hours and collapses,
# and what --features asks for needs a network that was trained elsewhere.
_PRINTED = {
    "paper": ("congeal.methods.deep.paper", "PaperCongealing"),
    "semantic": ("congeal.methods.semantic", "SemanticCongealing"),
}

# Neither: it sorts a pile, and another method aligns each group. The command line asks for it by --groups.
_GROUPS = {"groups": ("congeal.methods.groups.estimator", "CongealGroups")}

# Nor this one, which is for images in an order. The command line asks for it by --sequence.
_ORDERED = {"sequence": ("congeal.methods.sequence", "SequenceCongealing")}

# name on the command line: (method, name of its parameters in congeal.methods.deep.congealing)
PRESETS = {"paper-mnist": ("paper", "PAPER_MNIST"), "paper-lfw": ("paper", "PAPER_LFW")}


def methods() -> dict[str, str]:
    """Every method's name and what it does, in one sentence."""
    return {name: what for name, (_, _, what) in _METHODS.items()}


def classes() -> dict[str, str]:
    """Every method's class and where it is defined, for the package's public names."""
    return {cls: f"{module}.{cls}" for module, cls, _ in _METHODS.values()}


def method_name(word: str) -> str:
    """A method's own name, however it is written: "LSC" is "lsc"."""
    name = word.lower() if isinstance(word, str) else word
    if name in _METHODS or name in _PRINTED | _GROUPS | _ORDERED:
        return name
    raise CongealError(f"unknown method '{word}'{meant(str(word), _METHODS)}: choose one of {', '.join(_METHODS)}")


def method_class(name: str) -> type[Method]:
    """The class behind a method's name."""
    name = method_name(name)
    unlisted = _PRINTED | _GROUPS | _ORDERED
    module, cls = unlisted[name] if name in unlisted else _METHODS[name][:2]
    return getattr(importlib.import_module(module), cls)


def preset(name: str) -> tuple[str, dict[str, Any]]:
    """The method and the parameters behind a preset: "paper-mnist" or "paper-lfw"."""
    if name not in PRESETS:
        raise CongealError(f"unknown preset '{name}'{meant(name, PRESETS)}: choose one of {', '.join(PRESETS)}")
    method, parameters = PRESETS[name]
    return method, dict(getattr(importlib.import_module("congeal.methods.deep.congealing"), parameters))
