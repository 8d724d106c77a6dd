"""Some images of a source, chosen behind its name as Python chooses from a list: clip.mp4[0:500:5], stack.tif[7]."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from congeal.errors import CongealError
from congeal.images.source import ImageSource

_CHOSEN = re.compile(r"(?P<path>.+)\[(?P<choice>[^\[\]]*)\]", re.DOTALL)
_NUMBER = re.compile(r"\s*-?\d+\s*")


class Chosen(NamedTuple):
    """A file or folder, and what is chosen of it, as written."""

    path: Path
    choice: str

    @property
    def full_name(self) -> str:
        """The same from anywhere."""
        return f"{self.path.resolve()}[{self.choice}]"


def chosen(text: str) -> Chosen | None:
    """The two parts of such a name; None for any other, be it a path with brackets or a glob."""
    found = _CHOSEN.fullmatch(text)
    if found is None or os.path.exists(text) or not os.path.exists(found["path"]):
        return None
    return Chosen(Path(found["path"]), found["choice"])


def choose(source: ImageSource, choice: str) -> ImageSource:
    """The images of a source that a choice such as "0:500:5" or "7" means."""
    name, n = source.name, len(source)
    parts = choice.split(":")
    if not 1 <= len(parts) <= 3 or not all(_NUMBER.fullmatch(part) or not part.strip() for part in parts) or not choice:
        raise CongealError(
            f"'[{choice}]' behind {name} cannot be understood: write {name}[START:STOP:STEP], such as {name}[0:500:5]"
        )
    numbers = [int(part) if part.strip() else None for part in parts]
    if len(numbers) == 1 and numbers[0] is not None:
        if not -n <= numbers[0] < n:
            raise CongealError(f"there is no image {numbers[0]} in {name}: it has 0 to {n - 1}")
        rows = np.array([numbers[0] % n])
    else:
        if len(numbers) == 3 and numbers[2] is not None and numbers[2] < 1:
            raise CongealError(f"the step of {name}[{choice}] must be at least 1: images are read forwards")
        rows = np.arange(n)[slice(*numbers)]
    if not len(rows):
        raise CongealError(f"{name}[{choice}] is none of its {n} images: they have the numbers 0 to {n - 1}")
    some = source.subset(rows)
    some.name = f"{name}[{choice}]"
    return some
