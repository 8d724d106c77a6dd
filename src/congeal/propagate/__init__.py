"""Mark the mean image once, get it on every original; and the other way round.

points.py   points of the aligned picture → points of every original (CSV, COCO keypoints); and labelled points of the
            originals → the aligned picture, and how far they scatter there
warped.py   a mask or a drawing on the aligned picture → the same on every original, at full resolution
match.py    points of some originals → all the others

Coordinates are pixel centres: (0, 0) is the centre of the top-left pixel, of `mean.png` or of an original.
"""

from __future__ import annotations

from congeal.propagate.points import CollectedPoints, PropagatedPoints, collect_points, propagate_points
from congeal.propagate.warped import propagate_mask, propagate_overlay

__all__ = [
    "CollectedPoints",
    "PropagatedPoints",
    "collect_points",
    "propagate_mask",
    "propagate_overlay",
    "propagate_points",
]
