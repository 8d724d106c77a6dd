"""A method that decides things in no time, to see what becomes of its decisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from congeal.geometry import MOTIONS
from congeal.images import Stack
from congeal.methods import registry
from congeal.methods.base import Method
from congeal.methods.fit_context import FitContext, FitResult
from congeal.registration.features import ImageFeatures

WHY = {
    "motion": {"sentence": "Rigid suffices; similarity would have bought 0.01 of likeness.", "chosen": "rigid"},
    "training": {"sentence": "No network was trained: every image was matched without one."},
}


@dataclass(kw_only=True, eq=False)
class Deciding(Method):
    """Leaves every image where it starts, and says why; image 3 is the one it is least sure of."""

    motion: str = "auto"
    train: str = "auto"

    name: ClassVar[str] = "deciding"
    motions: ClassVar[tuple[str, ...]] = ("auto", *MOTIONS)

    def _align(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> FitResult:
        error = torch.full((len(stack),), 0.125)
        error[3], error[0] = 2.0, torch.nan
        used = "rigid" if self.motion == "auto" else self.motion
        return FitResult(torch.from_numpy(stack.start).clone(), used, (16, 48), self.train == "always", error, WHY)


def register(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `method="deciding"` known for the length of a test."""
    monkeypatch.setitem(registry._METHODS, "deciding", (__name__, "Deciding", "decides"))
