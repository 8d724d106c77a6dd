"""How likeness sees a set that was aligned by features: by the same features, in the object's window.

The channels of a look are laid side by side as one picture, which every measure of likeness can then take for local
contrast.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from congeal.images import Stack
from congeal.solvers.extractors import Extractor
from congeal.solvers.joining import Template
from congeal.solvers.looks import look

_ROWS = 4  # of channels in the picture, and as many columns: the 16 in which the set differs most


@dataclass(frozen=True)
class FeatureSight:
    """Looks at images under any poses with the features that aligned them."""

    extractor: Extractor
    template: Template

    def of(self, stack: Stack, poses: np.ndarray, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Pictures (B, h, w) of channels side by side for these rows, under poses of the whole stack; where they
        count."""
        few = stack.some(rows)
        seen = look(few, np.asarray(poses)[rows], self.template.window, self.extractor, basis=self.template.basis)
        height, width = seen.grid
        channels = min(_ROWS * _ROWS, seen.cells.shape[-1])
        across = max(1, int(np.sqrt(channels)))
        down = channels // across
        cells = torch.from_numpy(np.asarray(seen.cells[:, 0, :, : down * across], dtype=np.float32))
        inside = torch.from_numpy(seen.seen[:, 0]).float()
        tiles = (cells * inside[..., None]).reshape(len(rows), height, width, down, across)
        pictures = tiles.permute(0, 3, 1, 4, 2).reshape(len(rows), down * height, across * width)
        counts = inside.reshape(len(rows), height, width).repeat(1, down, across)
        return pictures.contiguous(), counts
