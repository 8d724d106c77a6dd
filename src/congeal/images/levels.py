"""How large pictures grow from the working size to the size of the originals."""

from __future__ import annotations

_STEP = 3  # times as large: poses good to a tenth of a pixel are then good to a third, from where steps converge
_LAST = 4  # times: the originals themselves are reached in one step of this, rather than in two small ones


def finer_sizes(coarsest: int, finest: int) -> list[int]:
    """Longer sides, in pixels, of the pictures above `coarsest`, up to `finest`."""
    sizes, size = [], coarsest
    while size < finest:
        size = finest if finest <= _LAST * size else _STEP * size
        sizes.append(size)
    return sizes
