"""The best iterate so far, so that a method that overshoots late does not end worse than it once was."""

from __future__ import annotations

import math
from typing import Any

import torch

from congeal.evaluation.thresholds import COMPARABLE_ENERGY


class BestIterate:
    """Keeps the stack_from_frame with the lowest cost, among iterates that kept their ink if there is one."""

    def __init__(self, found: torch.Tensor, state: dict[str, Any] | None = None) -> None:
        kept = state or {"found": found, "cost": math.inf, "sound": False}
        self.found: torch.Tensor = kept["found"]
        self.cost, self.sound = float(kept["cost"]), bool(kept["sound"])

    def offer(self, found: torch.Tensor, cost: float, energy: float | None = None) -> None:
        """Look at an iterate; `energy` is its energy ratio, None where ink means nothing (photographs)."""
        sound = energy is None or COMPARABLE_ENERGY[0] <= energy <= COMPARABLE_ENERGY[1]
        if sound < self.sound or not math.isfinite(cost):
            return
        # Among unsound ones the later is nearer to being put right by the gauge.
        if sound > self.sound or not sound or cost < self.cost:
            self.found, self.cost, self.sound = found.clone(), cost, sound

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"found": self.found, "cost": self.cost, "sound": self.sound}
