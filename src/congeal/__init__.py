"""Joint image alignment: line up a pile of images of one kind of object, without labels.

Names are imported when they are first used, so that `import congeal` and `congeal --help` do not load torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from congeal.errors import CongealError as CongealError
from congeal.methods.registry import DEEP_IS_GONE, classes
from congeal.methods.registry import methods as _methods

if TYPE_CHECKING:
    from congeal.comparison.compare import compare as compare
    from congeal.images import pack as pack
    from congeal.methods.base import load as load
    from congeal.methods.clustering.estimator import CongealGroups as CongealGroups
    from congeal.methods.dprc.as_printed import PrintedDPRC as PrintedDPRC
    from congeal.methods.dprc.estimator import DPRC as DPRC
    from congeal.methods.ecc import ECC as ECC
    from congeal.methods.entropy.deepfeatures import DeepFeatures as DeepFeatures
    from congeal.methods.entropy.entropy import Entropy as Entropy
    from congeal.methods.entropy.sift import SIFT as SIFT
    from congeal.methods.joint.alignment import JointAlignment as JointAlignment
    from congeal.methods.least_squares import LSC as LSC
    from congeal.methods.logdet import LogDet as LogDet
    from congeal.methods.lowrank.rasl import PSSV as PSSV
    from congeal.methods.lowrank.rasl import RASL as RASL
    from congeal.methods.lowrank.tgrasta import TGRASTA as TGRASTA
    from congeal.methods.sequence.estimator import SequenceCongealing as SequenceCongealing
    from congeal.opening import open_images as open_images
    from congeal.pipeline.align import align as align
    from congeal.pipeline.apply import apply as apply
    from congeal.propagate import collect_points as collect_points
    from congeal.propagate import propagate_mask as propagate_mask
    from congeal.propagate import propagate_overlay as propagate_overlay
    from congeal.propagate import propagate_points as propagate_points
    from congeal.stacking.stack import stack as stack
    from congeal.transforms import Transforms as Transforms

__version__ = "0.2.0"

list_methods = _methods

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
    "load": "congeal.methods.base.load",
    "open_images": "congeal.opening.open_images",
    "pack": "congeal.images.pack",
    "propagate_mask": "congeal.propagate.propagate_mask",
    "propagate_overlay": "congeal.propagate.propagate_overlay",
    "propagate_points": "congeal.propagate.propagate_points",
    "stack": "congeal.stacking.stack.stack",
}
__all__ = sorted([*_HOME, "CongealError", "__version__", "list_methods"])


def __getattr__(name: str) -> Any:
    if name in ("DeepCongealing", "PaperCongealing"):
        # Of an AttributeError, `from congeal import …` would not show the sentence.
        raise ImportError(f"there is no congeal.{name} any more: {DEEP_IS_GONE}, as JointAlignment or DPRC")
    if name not in _HOME:
        raise AttributeError(f"module 'congeal' has no attribute {name!r}; it has {', '.join(__all__)}")
    module, _, attribute = _HOME[name].rpartition(".")
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
