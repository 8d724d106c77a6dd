"""Images that were laid down mirrored or turned, given upright.

Methods know no mirror images: what they see is upright. The way back to the original pixels is a matrix with a negative
determinant, which `Stack.stack_from_source` holds (see `congeal.geometry.orientation`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from congeal.geometry.orientation import make_upright
from congeal.images.source import Header, Image, ImageSource, Indices, Subset


class OrientedSource(Subset):
    """The images of another source, made upright. Starts and sizes in transforms are still those of the originals.

    Parameters
    ----------
    source : ImageSource
    orientation : (N,) int
        0 to 7 of each image, see `congeal.geometry.orientation`.
    """

    def __init__(self, source: ImageSource, orientation: np.ndarray) -> None:
        super().__init__(source, np.arange(len(source)))
        self.orientation = np.asarray(orientation, dtype=np.int64)

    @property
    def original(self) -> ImageSource:
        """The images as they are."""
        return self.source.original

    def read(self, i: int) -> Image:
        """Image i, upright."""
        image, way = self.source.read(i), int(self.orientation[i])
        mask = None if image.mask is None else np.ascontiguousarray(make_upright(image.mask, way))
        return Image(image.id, np.ascontiguousarray(make_upright(image.pixels, way)), mask, image.orientation)

    def probe(self, i: int) -> Header:
        """Size and type of image i, upright."""
        header = self.source.probe(i)
        return header._replace(height=header.width, width=header.height) if self.orientation[i] % 2 else header

    @property
    def shape(self) -> tuple[int, int, int] | None:
        """That of the originals, where turning does not change it."""
        shape = self.source.shape
        return None if shape is None or (shape[0] != shape[1] and (self.orientation % 2).any()) else shape

    def batch(self, indices: Indices) -> np.ndarray:
        """(B, H, W, C) pixels of these images, upright."""
        return self._turned(self.source.batch, np.asarray(indices, dtype=np.int64))

    def masks(self, indices: Indices) -> np.ndarray:
        """(B, H, W) masks of these images, upright."""
        return self._turned(self.source.masks, np.asarray(indices, dtype=np.int64))

    def _turned(self, read: Callable[[Any], np.ndarray], rows: np.ndarray) -> np.ndarray:
        values = np.array(read(rows))
        for way in np.unique(self.orientation[rows]):
            which = self.orientation[rows] == way
            values[which] = np.stack([make_upright(one, int(way)) for one in values[which]])
        return values

    def fingerprint(self) -> str:
        """That of the originals, and how they are made upright."""
        return self.marked(self.source.fingerprint())

    def marked(self, fingerprint: str) -> str:
        """The fingerprint of the originals, and how they are made upright."""
        return f"{fingerprint} {bytes(self.orientation.astype(np.uint8)).hex()}"

    def subset(self, indices: Indices) -> ImageSource:
        """The images at these positions, in this order, upright as well."""
        rows = np.asarray(indices, dtype=np.int64)
        return OrientedSource(self.source.subset(rows), self.orientation[rows])
