"""What rendering gathers while images pass by: pictures of the set before and after, and what became of the images."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from congeal.evaluation import RunningStats
from congeal.execution.threads import map_ordered, usable_cores
from congeal.files import DAMAGED, replacing
from congeal.images import SkippedImage
from congeal.pipeline.display import png

BAND_ROWS = 16
"""Rows of a picture that are converted to grey levels at a time, so that memory holds one copy; no result depends on
it."""
SIDES = ("after", "before")


class View(NamedTuple):
    """Images as they lie in a frame: levels (B,h,w,c) on the 0–255 scale, and what each pixel weighs (B,h,w,1)."""

    levels: np.ndarray
    weights: np.ndarray | None


@dataclass(frozen=True)
class DrawnBatch:
    """Some images when they are drawn.

    n_rows: how many images were asked for. after and before: how they lie in the two frames, None if they could not be
    read (`lost`) or are not needed. n_rotated: how many EXIF had turned. write: the part of writing that is done in
    order. group: which one each is in, where a pile was sorted.
    """

    n_rows: int
    after: View | None = None
    before: View | None = None
    lost: SkippedImage | None = None
    n_rotated: int = 0
    write: Callable[[], None] | None = None
    group: np.ndarray | None = None


@dataclass
class Picture:
    """Mean and spread of the set in one frame, gathered while images pass by, in the layout of `View`."""

    stats: RunningStats = field(default_factory=RunningStats)

    def add(self, views: Sequence[View]) -> None:
        """Take in some images; those of one kind that follow one another together."""
        for (_, kind), alike in groupby(views, key=lambda view: (view.levels.dtype, type(view.weights))):
            levels, weights = zip(*alike, strict=True)
            self.stats.update(np.concatenate(levels), np.concatenate(weights) if kind is np.ndarray else None)

    def mean_png(self) -> bytes:
        """The mean."""
        return self._png(lambda part: part.mean)

    def spread_png(self) -> bytes:
        """The standard deviation on a fixed scale: white is the largest possible one, half the range."""
        return self._png(lambda part: 2 * np.sqrt(part.variance))

    def _png(self, values: Callable[[RunningStats], np.ndarray]) -> bytes:
        levels = np.empty(self.stats.shape, np.uint8)
        for first in range(0, len(levels), BAND_ROWS):
            band = slice(first, first + BAND_ROWS)
            # What lies half-way between two grey levels must not go one way or the other by its sixteenth digit.
            levels[band] = np.rint(np.clip(values(self.stats.rows(band)) + 1e-6, 0, 255))
        return png(levels)


@dataclass
class RenderState:
    """What a pass over the images has gathered.

    Attributes
    ----------
    pictures : dict
        "after" and "before" of all finished shards, "own after" and "own before" of the one at hand, and the number of
        each group of a pile that was sorted.
    lost : list of SkippedImage
        Images that could be read at first but not again.
    n_rotated : int
        Number of images that were turned upright by their EXIF orientation.
    seconds : float
        Time spent.
    position : int
        Number of rows that are done.
    """

    pictures: dict[str, Picture] = field(default_factory=lambda: defaultdict(Picture))
    lost: list[SkippedImage] = field(default_factory=list)
    n_rotated: int = 0
    seconds: float = 0.0
    position: int = 0

    @property
    def groups(self) -> dict[int, Picture]:
        """The pictures of the groups by number."""
        return {int(name): picture for name, picture in self.pictures.items() if name.isdecimal()}

    def take(self, some: Sequence[DrawnBatch]) -> None:
        """Take in the images that come next."""
        views = {side: [view for one in some if (view := getattr(one, side)) is not None] for side in SIDES}
        # In parallel: no thread draws while the last images are taken in.
        both = [partial(self.pictures[f"own {side}"].add, views[side]) for side in SIDES]
        list(map_ordered(lambda add: add(), both, usable_cores()))
        for drawn in some:
            if drawn.after is not None and drawn.group is not None:
                for number in np.unique(drawn.group[drawn.group >= 0]).tolist():
                    own, (levels, weights) = drawn.group == number, drawn.after
                    part = View(levels[own], weights[own] if isinstance(weights, np.ndarray) else weights)
                    self.pictures[str(number)].add([part])
        self.lost += [drawn.lost for drawn in some if drawn.lost is not None]
        self.n_rotated += sum(drawn.n_rotated for drawn in some)
        self.position += sum(drawn.n_rows for drawn in some)

    def end_shard(self) -> None:
        """Add the sums of a shard to those of all before it. Shards are divided by sizes alone, so sums are the same
        wherever they are made."""
        for side in SIDES:
            own = self.pictures.pop(f"own {side}", Picture())
            if self.pictures[side].stats.count:
                self.pictures[side].stats.merge(own.stats)
            else:  # the same numbers in the memory of one
                self.pictures[side] = own

    def merge(self, other: RenderState) -> None:
        """Take in a shard that was drawn elsewhere."""
        for side in SIDES:
            self.pictures[side].stats.merge(other.pictures[side].stats)
        self.lost += other.lost
        self.n_rotated += other.n_rotated
        self.position += other.position

    def save(self, path: Path) -> None:
        """All of it in one file, replaced whole."""
        with replacing(path) as file:
            np.savez(file, **self.state())  # type: ignore[arg-type]

    def state(self) -> dict[str, np.ndarray]:
        """All of it as arrays by name."""
        facts = {name: getattr(self, name) for name in ("lost", "n_rotated", "seconds", "position")}
        sums = {
            f"{name}:{key}": array
            for name, picture in self.pictures.items()
            for key, array in picture.stats.state().items()
        }
        return {"facts": np.array(json.dumps(facts)), **sums}

    @classmethod
    def restored(cls, arrays: Mapping[str, np.ndarray]) -> RenderState:
        """The inverse of `state`."""
        facts = json.loads(str(arrays["facts"]))
        found = cls(**{**facts, "lost": [SkippedImage(*one) for one in facts["lost"]]})
        sums: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
        for name, array in arrays.items():
            picture, _, key = name.partition(":")
            if key:
                sums[picture][key] = array
        found.pictures |= {name: Picture(RunningStats.restore(parts)) for name, parts in sums.items()}
        return found

    @classmethod
    def load(cls, path: Path, *, needs_before: bool) -> RenderState:
        """The state of an interrupted pass; a new one if there is none, or a damaged one.

        needs_before: a pass that left out the pictures of the start is of no use.
        """
        try:
            with np.load(path, allow_pickle=False) as saved:
                found = cls.restored({name: saved[name] for name in saved.files})
        except DAMAGED:
            return cls()
        after, before = ([found.pictures[name].stats.count for name in (side, f"own {side}")] for side in SIDES)
        return cls() if needs_before and after != before else found
