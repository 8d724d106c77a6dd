"""Put an image of any size on a canvas of a given size, with exact geometry.

Convention: a source pixel centre x lands at `scale · (x + ½) − ½ + offset` on the canvas, on each axis. Shrinking uses
a triangle filter as wide as the step between canvas pixels, so nothing aliases; scale 1 is exact.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

Size = tuple[int, int]
# Canvas pixels whose weights are multiplied together: few, because the source pixels they need are taken together too.
BAND_PIXELS = 8
# How much shorter or longer than its canvas a source may be that fills it: rounding a side changes it by half a pixel.
MAX_SHORTER_PX, MAX_LONGER_PX = 0.5 + 1e-9, 1 + 1e-9


class Placement(NamedTuple):
    """Where a source image lies on its canvas; `offset` is the canvas position of its top-left outer corner."""

    scale_x: float
    scale_y: float
    offset_x: float
    offset_y: float

    @property
    def matrix(self) -> np.ndarray:
        """canvas_from_source (3, 3), pixel centres."""
        x, y = self.scale_x, self.scale_y
        return np.array([[x, 0, x / 2 - 0.5 + self.offset_x], [0, y, y / 2 - 0.5 + self.offset_y], [0, 0, 1.0]])


def place(source: Size, canvas: Size) -> Placement:
    """Fit the source into the canvas, centred, both axes by the same scale, so that a turn stays a turn.

    A canvas that has the source's shape but for rounding is filled along its longer side, so that images of about one
    shape get no letterbox; along the other the source may be up to half a pixel shorter, or a pixel longer.
    """
    height, width = source
    scale = max(canvas) / max(source)
    longer = scale * height - canvas[0], scale * width - canvas[1]
    if min(longer) < -MAX_SHORTER_PX or max(longer) > MAX_LONGER_PX:
        scale = min(canvas[0] / height, canvas[1] / width)
    return Placement(scale, scale, (canvas[1] - scale * width) / 2, (canvas[0] - scale * height) / 2)


def placements(sources: np.ndarray, canvas: Size) -> np.ndarray:
    """canvas_from_source (N, 3, 3) for sizes (N, 2); one shared matrix when all sizes are equal."""
    if len(sources) and (sources == sources[0]).all():
        height, width = (int(v) for v in sources[0])
        return np.broadcast_to(place((height, width), canvas).matrix, (len(sources), 3, 3))
    unique, inverse = np.unique(sources, axis=0, return_inverse=True)
    matrices = np.array([place((int(h), int(w)), canvas).matrix for h, w in unique]).reshape(-1, 3, 3)
    return matrices[inverse.reshape(-1)]


def put_on_canvas(
    pixels: np.ndarray, canvas: Size, placement: Placement, mask: np.ndarray | None = None, *, sharp: bool = False
) -> tuple[np.ndarray, np.ndarray | None]:
    """(H, W, C) → (C, h, w) float32 in the same units, and the canvas mask (h, w), None where everything is covered.

    sharp: a cubic filter in place of the triangle; its values may leave the range of the pixels.
    """
    height, width = pixels.shape[:2]
    rows, cover_y = _axis(height, canvas[0], placement.scale_y, placement.offset_y, sharp)
    columns, cover_x = _axis(width, canvas[1], placement.scale_x, placement.offset_x, sharp)
    if (height, width) == canvas and placement == (1, 1, 0, 0):
        out = np.ascontiguousarray(np.moveaxis(pixels, -1, 0), dtype=np.float32)
        return out, None if mask is None or (mask >= 1).all() else mask.astype(np.float32)
    out = _resample(pixels, rows, columns)
    cover = np.outer(cover_y, cover_x)
    if (cover >= 1 - MAX_SHORTER_PX / 2).all():  # its outermost pixels go on to the edge of the canvas
        cover = np.ones_like(cover)
    if mask is not None:
        cover = cover * _resample(mask[..., None], rows, columns)[0]
    return out, None if (cover > 0.999).all() else cover.astype(np.float32)


# Weights of some neighbouring canvas pixels: which pixels these are, which source pixels they need, and the weights
# (sums, needed); they are zero elsewhere.
Band = tuple[slice, slice, np.ndarray]


def _resample(pixels: np.ndarray, rows: list[Band], columns: list[Band]) -> np.ndarray:
    """Weighted sums of rows, then of columns: (H, W, C) → (C, h, w) float32."""
    import torch  # here, so that opening images does not load it

    for bands in (rows, columns):
        flat = pixels.reshape(len(pixels), -1)
        out = np.empty((bands[-1][0].stop, flat.shape[1]), np.float32)
        for sums, needed, weights in bands:
            # By torch, which can be asked for one thread where each of several prepares an image; NumPy's products
            # take all cores each, and wait for one another.
            values = torch.from_numpy(flat[needed].astype(np.float32))
            torch.mm(torch.from_numpy(weights), values, out=torch.from_numpy(out[sums]))
        pixels = out.reshape(-1, *pixels.shape[1:]).swapaxes(0, 1)
    return np.ascontiguousarray(np.moveaxis(pixels, -1, 0))


@lru_cache(maxsize=128)
def _axis(
    n_source: int, n_canvas: int, scale: float, offset: float, sharp: bool = False
) -> tuple[list[Band], np.ndarray]:
    """The filter along one axis in bands, and how much of each canvas pixel is covered."""
    left = np.arange(n_canvas) - offset
    cover = np.clip(np.minimum(left + 1, scale * n_source) - np.maximum(left, 0), 0, 1).astype(np.float32)
    centre = np.clip((left + 0.5) / scale - 0.5, 0, n_source - 1)
    reach = max(1.0, 1 / scale)
    distance = np.abs(np.arange(n_source) - centre[:, None]) / reach
    weights = np.maximum(0, 1 - distance)
    if sharp:  # the cubic through four points (Catmull and Rom)
        near, far = (1.5 * distance - 2.5) * distance**2 + 1, ((2.5 - 0.5 * distance) * distance - 4) * distance + 2
        weights = np.where(distance < 1, near, np.where(distance < 2, far, 0.0))
    weights *= (cover > 0)[:, None] / weights.sum(1, keepdims=True)
    bands: list[Band] = []
    for first in range(0, n_canvas, BAND_PIXELS):
        own = weights[first : first + BAND_PIXELS]
        used = np.flatnonzero(own.any(0))
        needed = slice(int(used[0]), int(used[-1]) + 1) if len(used) else slice(0, 0)
        own = np.ascontiguousarray(own[:, needed], dtype=np.float32)
        bands.append((slice(first, first + len(own)), needed, own))
    return bands, cover
