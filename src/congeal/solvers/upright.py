"""A first pose from moments: an object on empty ground, centred, upright and at one size, whatever frame it came in.

It is only where comparing two images begins, so it need not be right: Gauss-Newton steps do the rest.
"""

from __future__ import annotations

import torch

from congeal.geometry.matrix import Size

_REACH = 2.3
"""Half the side of the view, in standard deviations of the ink: a digit fills it."""
_MOST_SHEAR = 0.7
"""More is not a slant: a bar that lies down has nothing to be straightened."""
_LEAST_SPREAD = 0.5
"""Pixels: a dot is not blown up to fill the view."""


def frame_from_view(shown: torch.Tensor, view: Size) -> torch.Tensor:
    """(B, 3, 3) for images (B, C, h, w) as the frame shows them: pixels of an upright view → pixels of the frame.

    The view is centred on the ink, its width follows the ink's spread, and it leans as the ink leans: x + shear · y.
    An image without ink is seen whole.
    """
    ink = shown.mean(1).double().clamp(min=0)
    height, width = ink.shape[-2:]
    x, y = torch.arange(width, dtype=torch.float64), torch.arange(height, dtype=torch.float64)
    total = ink.sum((1, 2))
    known = total > 1e-6
    total = total.clamp(min=1e-6)
    columns, rows = ink.sum(1), ink.sum(2)
    centre_x, centre_y = (columns * x).sum(1) / total, (rows * y).sum(1) / total
    dx, dy = x - centre_x[:, None], y - centre_y[:, None]
    xx, yy = (columns * dx.square()).sum(1) / total, (rows * dy.square()).sum(1) / total
    xy = ((ink * dx[:, None]).sum(2) * dy).sum(1) / total
    shear = (xy / yy.clamp(min=_LEAST_SPREAD**2)).clamp(-_MOST_SHEAR, _MOST_SHEAR)
    across = (xx - 2 * shear * xy + shear.square() * yy).clamp(min=0)
    spread = (across + yy).sqrt().clamp(min=_LEAST_SPREAD)
    scale = torch.where(known, 2 * _REACH * spread / max(view), max(height, width) / max(view))
    shear = torch.where(known, shear, 0)
    centre_x, centre_y = torch.where(known, centre_x, (width - 1) / 2), torch.where(known, centre_y, (height - 1) / 2)
    matrix = torch.zeros(len(ink), 3, 3, dtype=torch.float64)
    middle_x, middle_y = (view[1] - 1) / 2, (view[0] - 1) / 2
    matrix[:, 0, 0], matrix[:, 0, 1] = scale, shear * scale
    matrix[:, 0, 2] = centre_x - scale * middle_x - shear * scale * middle_y
    matrix[:, 1, 1], matrix[:, 1, 2] = scale, centre_y - scale * middle_y
    matrix[:, 2, 2] = 1
    return matrix
