"""Which methods there are. A new method is one file and one line here."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from congeal.errors import CongealError, did_you_mean

if TYPE_CHECKING:
    from congeal.methods.base import Method

# name on the command line: (module, class, one sentence)
_METHODS = {
    "joint": (
        "congeal.methods.joint.alignment",
        "JointAlignment",
        "direct optimisation of all poses, coarse to fine: reaches images that start far apart, trains nothing",
    ),
    "dprc": (
        "congeal.methods.dprc.estimator",
        "DPRC",
        "the paper's network, trained on the set: places new images in one forward pass, exports to ONNX",
    ),
    "lsc": (
        "congeal.methods.least_squares",
        "LSC",
        "least squares to a reference, by Gauss-Newton: fast and sharp on roughly aligned input",
    ),
    "rasl": (
        "congeal.methods.lowrank.rasl",
        "RASL",
        "low rank plus sparse errors: for sets with occlusions or changing light, all images in memory",
    ),
    "pssv": (
        "congeal.methods.lowrank.rasl",
        "PSSV",
        "RASL whose largest singular values are free: for few images, or a known rank",
    ),
    "tgrasta": (
        "congeal.methods.lowrank.tgrasta",
        "TGRASTA",
        "a subspace and sparse errors, learnt image by image: aligns new images to the subspace",
    ),
    "ecc": (
        "congeal.methods.ecc",
        "ECC",
        "correlation with the running mean, by OpenCV: the floor to beat (needs the extra 'faces')",
    ),
    "entropy": (
        "congeal.methods.entropy.entropy",
        "Entropy",
        "makes the values at each pixel predictable, by trial steps: needs no gradients, aligns new images by a funnel",
    ),
    "sift": (
        "congeal.methods.entropy.sift",
        "SIFT",
        "entropy of visual words: for photographs whose pixel values mean little, aligns new images by a funnel",
    ),
    "deepfeatures": (
        "congeal.methods.entropy.deepfeatures",
        "DeepFeatures",
        "entropy of features learnt from the set, deep layer first: forgives much, aligns new images by a funnel",
    ),
    "logdet": (
        "congeal.methods.logdet",
        "LogDet",
        "a simple code for the aligned set that gives every source image back: sharp, and cannot win by shrinking",
    ),
}

# Known by name, but not among the methods that are listed and compared: the method as printed trains for hours and
# collapses; what --features asks for needs a network that was trained elsewhere; `groups` sorts a pile, of which
# another method aligns each group (--groups); and `sequence` is for images in an order (--sequence).
_UNLISTED = {
    "dprc-as-printed": ("congeal.methods.dprc.as_printed", "PrintedDPRC"),
    "semantic": ("congeal.methods.semantic.estimator", "SemanticCongealing"),
    "groups": ("congeal.methods.clustering.estimator", "CongealGroups"),
    "sequence": ("congeal.methods.sequence.estimator", "SequenceCongealing"),
}

# name on the command line: (method, name of its parameters in congeal.methods.dprc.as_printed)
PRESETS = {"paper-mnist": ("dprc-as-printed", "PRINTED_MNIST"), "paper-lfw": ("dprc-as-printed", "PRINTED_LFW")}

DEEP_IS_GONE = "use joint (direct optimisation, the default, trains nothing) or dprc (the paper's trained network)"
"""The sentence for names of versions before 0.3, in which one method did both."""


def methods() -> dict[str, str]:
    """Every method's name and what it does, in one sentence."""
    return {name: what for name, (_, _, what) in _METHODS.items()}


def classes() -> dict[str, str]:
    """Every method's class and where it is defined, for the package's public names."""
    return {cls: f"{module}.{cls}" for module, cls, _ in _METHODS.values()}


def method_name(word: str) -> str:
    """A method's own name, however it is written: "LSC" is "lsc"."""
    name = word.lower() if isinstance(word, str) else word
    if name in _METHODS or name in _UNLISTED:
        return name
    if name == "deep":
        raise CongealError(f"there is no method 'deep' any more: {DEEP_IS_GONE}")
    raise CongealError(
        f"unknown method '{word}'{did_you_mean(str(word), _METHODS)}: choose one of {', '.join(_METHODS)}"
    )


def method_class(name: str) -> type[Method]:
    """The class behind a method's name."""
    name = method_name(name)
    module, cls = _UNLISTED[name] if name in _UNLISTED else _METHODS[name][:2]
    return getattr(importlib.import_module(module), cls)


def preset(name: str) -> tuple[str, dict[str, Any]]:
    """The method and the parameters behind a preset: "paper-mnist" or "paper-lfw"."""
    if name not in PRESETS:
        raise CongealError(f"unknown preset '{name}'{did_you_mean(name, PRESETS)}: choose one of {', '.join(PRESETS)}")
    method, parameters = PRESETS[name]
    return method, dict(getattr(importlib.import_module("congeal.methods.dprc.as_printed"), parameters))
