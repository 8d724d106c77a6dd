"""Joint image alignment: line up a pile of images of one kind of object, without labels.

Names are imported when they are first used, so that `import congeal` and `congeal --help` do not load torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from congeal.errors import CongealError
from congeal.methods.registry import DEEP_IS_GONE, classes

if TYPE_CHECKING:
    from congeal.comparison.compare import compare
    from congeal.images import pack
    from congeal.methods.base import load
    from congeal.methods.clustering.estimator import CongealGroups
    from congeal.methods.dprc.as_printed import PrintedDPRC
    from congeal.methods.dprc.estimator import DPRC
    from congeal.methods.ecc import ECC
    from congeal.methods.entropy.deepfeatures import DeepFeatures
    from congeal.methods.entropy.entropy import Entropy
    from congeal.methods.entropy.sift import SIFT
    from congeal.methods.joint.estimator import JointAlignment
    from congeal.methods.least_squares import LSC
    from congeal.methods.logdet import LogDet
    from congeal.methods.lowrank.rasl import PSSV, RASL
    from congeal.methods.lowrank.tgrasta import TGRASTA
    from congeal.methods.registry import methods as list_methods
    from congeal.methods.sequence.estimator import SequenceCongealing
    from congeal.opening import open_images
    from congeal.pipeline.align import align
    from congeal.pipeline.apply import apply
    from congeal.propagate import collect_points, propagate_mask, propagate_overlay, propagate_points
    from congeal.stacking.stack import stack
    from congeal.transforms import Transforms

__version__ = "0.2.0"

__all__ = [
    "DPRC",
    "ECC",
    "LSC",
    "PSSV",
    "RASL",
    "SIFT",
    "TGRASTA",
    "CongealError",
    "CongealGroups",
    "DeepFeatures",
    "Entropy",
    "JointAlignment",
    "LogDet",
    "PrintedDPRC",
    "SequenceCongealing",
    "Transforms",
    "__version__",
    "align",
    "apply",
    "collect_points",
    "compare",
    "list_methods",
    "load",
    "open_images",
    "pack",
    "propagate_mask",
    "propagate_overlay",
    "propagate_points",
    "stack",
]

# public name: where it is defined
_HOME = classes() | {
    "CongealGroups": "congeal.methods.clustering.estimator.CongealGroups",
    "PrintedDPRC": "congeal.methods.dprc.as_printed.PrintedDPRC",
    "SequenceCongealing": "congeal.methods.sequence.estimator.SequenceCongealing",
    "Transforms": "congeal.transforms.Transforms",
    "align": "congeal.pipeline.align.align",
    "apply": "congeal.pipeline.apply.apply",
    "collect_points": "congeal.propagate.collect_points",
    "compare": "congeal.comparison.compare.compare",
    "list_methods": "congeal.methods.registry.methods",
    "load": "congeal.methods.base.load",
    "open_images": "congeal.opening.open_images",
    "pack": "congeal.images.pack",
    "propagate_mask": "congeal.propagate.propagate_mask",
    "propagate_overlay": "congeal.propagate.propagate_overlay",
    "propagate_points": "congeal.propagate.propagate_points",
    "stack": "congeal.stacking.stack.stack",
}


def __getattr__(name: str) -> Any:
    if name in ("DeepCongealing", "PaperCongealing"):
        raise AttributeError(f"there is no congeal.{name} any more: {DEEP_IS_GONE}, as JointAlignment or DPRC")
    if name not in _HOME:
        raise AttributeError(f"module 'congeal' has no attribute {name!r}; it has {', '.join(__all__)}")
    module, _, attribute = _HOME[name].rpartition(".")
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
