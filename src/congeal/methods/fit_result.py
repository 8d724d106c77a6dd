"""What a method gives back: poses, and what was decided on the way to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class FitResult:
    """Poses of a stack's n images, and how they were reached.

    Attributes
    ----------
    poses : (n, 3, 3) tensor
        stack_from_frame.
    motion : str
        The motion that was used: the one asked for, or the one chosen for "auto".
    levels : tuple of int
        Longer sides, in pixels, of the frames that were worked at, coarse to fine.
    trained : bool
        Whether a network was trained.
    error : (n,) tensor or None
        Standard error of a frame corner's position, in stack pixels; NaN where it is not known.
    decisions : mapping
        What was decided and why: name → facts as JSON can hold them. Every one has a "sentence".
    sight : FeatureSight or None
        What likeness is measured on, where that is not local contrast.
    unknown : (n,) tensor of bool or None
        Images whose pose nothing ties to those of the others; they are flagged.
    """

    poses: torch.Tensor
    motion: str
    levels: tuple[int, ...]
    trained: bool = False
    error: torch.Tensor | None = None
    decisions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sight: Any = None
    unknown: torch.Tensor | None = None
