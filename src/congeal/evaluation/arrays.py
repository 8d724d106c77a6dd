"""What every metric takes: images as NumPy arrays or torch tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Size = tuple[int, int]
"""(height, width) in pixels."""


def as_numpy(values: Any) -> Array:
    """A NumPy view of an array or torch tensor (on any device, with or without gradient)."""
    return values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)
