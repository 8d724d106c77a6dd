"""Aligned images of a pile that was sorted: a folder for each group, and one for images that are in none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from congeal.errors import CongealError
from congeal.images.source import ImageSource
from congeal.images.writers import Size, Writer, open_writer

OUTSIDE = "outliers"
"""Folder of the images that are in no group."""
LONGEST_NAME = 100


def check_name(name: str) -> str:
    """The name of a group, if it can be one: it is also the name of a folder."""
    wrong = not name.isprintable() or any(letter in name for letter in '/\\:*?"<>|') or name.strip() != name
    if not name or len(name) > LONGEST_NAME or wrong or name.startswith(".") or name.endswith(".") or name == OUTSIDE:
        raise CongealError(
            f"{name[:LONGEST_NAME]!r} cannot be the name of a group, which is also that of a folder: use 1 to "
            f"{LONGEST_NAME} letters and digits without / \\ : * ? \" < > | or a dot at either end, and not '{OUTSIDE}'"
        )
    return name


def folder_of(group: int, names: Sequence[str] | None = None) -> str:
    """The folder of a group, below `aligned`: its name or its number; −1 is none."""
    if group < 0:
        return OUTSIDE
    return str(group) if names is None else check_name(names[group])


class GroupedWriter(Writer):
    """A writer of the usual kind for each group, in a folder of its own; group (N,), −1 for none; names of groups, if
    they have any."""

    def __init__(
        self,
        folder: Path,
        source: ImageSource,
        size: Size,
        format: str,
        group: np.ndarray,
        names: Sequence[str] | None = None,
    ) -> None:
        if source.parts is not None:
            raise CongealError(f"{source.name} has depth and cannot be sorted by its projection: use --z planes")
        super().__init__(folder, source, size)
        self._group, self._place = group, np.zeros(len(group), dtype=np.int64)
        self._writers: dict[int, Writer] = {}
        for number in np.unique(group).tolist():
            rows = np.flatnonzero(group == number)
            self._place[rows] = np.arange(len(rows))
            self._writers[number] = open_writer(folder / folder_of(number, names), source.subset(rows), size, format)

    def _own(self, index: int) -> tuple[Writer, int]:
        """The writer of an image, and its position there."""
        return self._writers[int(self._group[index])], int(self._place[index])

    def write(self, index: int, pixels: np.ndarray, mask: np.ndarray | None = None) -> None:
        """Write image `index` into the folder of its group."""
        writer, place = self._own(index)
        writer.write(place, pixels, mask)

    def done(self, index: int) -> bool:
        """Whether it is there."""
        writer, place = self._own(index)
        return writer.done(place)

    def begin_new(self, indices: np.ndarray, pixels: np.ndarray, masks: np.ndarray | None = None) -> Callable[[], None]:
        """Both steps of every group's own writer."""
        rest = []
        for number in np.unique(self._group[indices]).tolist():
            own = np.flatnonzero(self._group[indices] == number)
            some = None if masks is None else masks[own]
            rest.append(self._writers[number].begin_new(self._place[indices[own]], pixels[own], some))

        def finish() -> None:
            for step in rest:
                step()

        return finish

    def flush(self) -> None:
        """Bring what is done to the disk."""
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Finish every folder."""
        for writer in self._writers.values():
            writer.close()
