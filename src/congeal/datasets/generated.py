"""What all computed data sets share: images made from MNIST when they are asked for, the same ones every time."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from congeal.images.sources.base import Image, ImageSource, Indices


class GeneratedSource(ImageSource):
    """Grey uint8 images of one size, made batch by batch; image i depends on i and nothing else."""

    layout = "array"
    kind = "object"
    grey = True
    intensity = (0.0, 255.0)
    side = 28

    @abstractmethod
    def make(self, indices: np.ndarray) -> np.ndarray:
        """(B,) positions → (B, side, side) uint8."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of every image."""
        return self.side, self.side, 1

    @property
    def dtype(self) -> np.dtype:
        """uint8."""
        return np.dtype(np.uint8)

    def batch(self, indices: Indices) -> np.ndarray:
        """(B, side, side, 1) uint8 of these positions; a mask of booleans and negative positions work too."""
        rows = np.asarray(indices)
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows.astype(np.int64)
        return self.make(np.where(rows < 0, rows + len(self), rows))[..., None]

    def read(self, i: int) -> Image:
        """Image i, made alone."""
        return Image(self.id(i), self.batch([range(len(self))[i]])[0])


def warp_uint8(images: np.ndarray, source_from_output: np.ndarray, side: int) -> np.ndarray:
    """(B,H,W) uint8 sampled through (B,3,3) pixel matrices, bilinear on black, rounded → (B, side, side) uint8."""
    import torch

    from congeal.geometry.warping import warp

    with torch.no_grad():
        pixels = torch.from_numpy(images.astype(np.float32))[:, None]
        warped = warp(pixels, torch.from_numpy(source_from_output).float(), (side, side))
        return warped[:, 0].round_().clamp_(0, 255).to(torch.uint8).numpy()
