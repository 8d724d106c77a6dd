"""Pictures that can be seen: grey levels of a low-contrast set spread over the whole range, the same for all pictures.

Only what a page shows is changed, never a file of the run. Numbers come from grey levels as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image

LOW = 110.0
"""Pictures whose values, but for half a per cent at either end, span fewer grey levels than this are stretched."""
ENDS = 0.005
MOST_PICTURES = 60  # that are looked at


@dataclass(frozen=True)
class Contrast:
    """Grey levels that are shown black and white."""

    black: float = 0.0
    white: float = 255.0

    @property
    def gain(self) -> float:
        """How many times larger differences look."""
        return 255.0 / (self.white - self.black)

    @property
    def stretched(self) -> bool:
        """Whether pictures are changed at all."""
        return self.gain > 1.0

    def shown(self, image: Image.Image) -> Image.Image:
        """The picture as it is shown."""
        if not self.stretched:
            return image
        plain = image if image.mode in ("L", "RGB") else image.convert("RGB")
        table = np.clip((np.arange(256) - self.black) * self.gain, 0, 255).round().astype(np.uint8).tolist()
        return plain.point(table * len(plain.getbands()))


def contrast_of(paths: Iterable[Path], *, dark_ground: bool) -> Contrast:
    """One contrast for all these pictures. dark_ground: black is empty ground and stays black; else it is what lies
    outside of photographs and does not count."""
    counts = np.zeros(256)
    for image in _opened(paths):
        counts += np.array(image.convert("L").histogram()) / (image.width * image.height)
    counts[0] = 0.0
    if not counts.any():
        return Contrast()
    share = np.cumsum(counts) / counts.sum()
    black, white = float(np.searchsorted(share, ENDS)), float(np.searchsorted(share, 1 - ENDS))
    black = 0.0 if dark_ground else black
    if white - black >= LOW or white - black < 1:
        return Contrast()
    margin = 0.05 * (white - black)
    return Contrast(max(0.0, black - margin), min(255.0, white + margin))


def brightened(paths: Iterable[Path]) -> Contrast:
    """One gain for dark pictures that begin at 0, such as those of the spread."""
    tops = [float(np.quantile(np.asarray(image.convert("L")), 0.99)) for image in _opened(paths)]
    top = max(tops, default=255.0)
    return Contrast(0.0, max(top, 4.0)) if top < LOW else Contrast()


def _opened(paths: Iterable[Path]) -> Iterable[Image.Image]:
    """Those of the pictures that can be read."""
    for path in islice(paths, MOST_PICTURES):
        if path.is_symlink() or not path.is_file():
            continue
        try:
            with Image.open(path, formats=["PNG"]) as image:
                image.load()
        except Exception:  # damaged pictures raise nearly anything; a page has a place without them
            continue
        yield image
