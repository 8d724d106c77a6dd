"""Boxes in images, and the transforms that fit them into one frame.

A box is (x, y, width, height) in pixels by its outer edges: (0, 0, image width, image height) is the whole image.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Size = tuple[int, int]


def grow_boxes(boxes: NDArray[np.float64], share: float) -> NDArray[np.float64]:
    """(N,4) boxes whose sides are 1 + share times as long, about the same centres; they may leave the image."""
    x, y, width, height = boxes.T
    wider, higher = share * width, share * height
    return np.stack([x - wider / 2, y - higher / 2, width + wider, height + higher], axis=1)


def fit_boxes(boxes: NDArray[np.float64]) -> tuple[NDArray[np.float64], Size]:
    """(N,3,3) `frame_from_image` that fit each box (N,4) into one frame, and that frame's (height, width).

    The frame has the median size of the boxes. Rows with NaN are images without a box; their matrices are NaN.
    """
    known = np.isfinite(boxes).all(1)
    x, y, width, height = boxes[known].T
    frame = (max(1, round(float(np.median(height)))), max(1, round(float(np.median(width)))))
    matrices = np.full((len(boxes), 3, 3), np.nan)
    scale_x, scale_y = frame[1] / width, frame[0] / height
    matrices[known] = np.eye(3)
    matrices[known, 0, 0], matrices[known, 1, 1] = scale_x, scale_y
    # The outer edge of a box lies half a pixel before the centre of its first pixel, here and in the frame.
    matrices[known, 0, 2] = -0.5 - scale_x * (x - 0.5)
    matrices[known, 1, 2] = -0.5 - scale_y * (y - 0.5)
    return matrices, frame
