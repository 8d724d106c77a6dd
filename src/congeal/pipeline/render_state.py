"""Sums of rendered images: pictures of the set before and after, and the facts about its images."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from congeal.evaluation import RunningStats
from congeal.files import DAMAGED, replacing
from congeal.images import SkippedImage
from congeal.pipeline.display import png


class View(NamedTuple):
    """Images as they lie in a frame: levels (B,h,w,c) on the 0–255 scale, and what each pixel weighs (B,h,w,1)."""

    levels: np.ndarray
    weights: np.ndarray | None


@dataclass(frozen=True)
class DrawnBatch:
    """Some images when they are drawn.

    n_rows: how many images were asked for. after and before: how they lie in the two frames, None if they could not be
    read (`lost`). n_rotated: how many EXIF had turned. write: the part of writing that is done in order. group: which
    one each is in, where a pile was sorted.
    """

    n_rows: int
    after: View | None = None
    before: View | None = None
    lost: SkippedImage | None = None
    n_rotated: int = 0
    write: Callable[[], None] | None = None
    group: np.ndarray | None = None


def mean_png(stats: RunningStats) -> bytes:
    """The mean of a set."""
    return _png(stats, lambda band: band.mean)


def spread_png(stats: RunningStats) -> bytes:
    """The standard deviation of a set on a fixed scale: white is the largest possible one, half the range."""
    return _png(stats, lambda band: 2 * np.sqrt(band.variance))


def _png(stats: RunningStats, values: Callable[[RunningStats], np.ndarray]) -> bytes:
    levels = np.empty(stats.shape, np.uint8)
    for first in range(0, len(levels), 16):  # some rows at a time, so that memory holds one copy
        band = slice(first, first + 16)
        # What lies half-way between two grey levels must not go one way or the other by its sixteenth digit.
        levels[band] = np.rint(np.clip(values(stats.rows(band)) + 1e-6, 0, 255))
    return png(levels)


@dataclass
class RenderState:
    """Sums over some of the images, in their order.

    pictures: "after" and "before", and the number of each group of a pile that was sorted. lost: images that could be
    read at first but not again. n_rotated: how many EXIF had turned. position: number of rows that are done.
    """

    pictures: dict[str, RunningStats] = field(default_factory=lambda: defaultdict(RunningStats))
    lost: list[SkippedImage] = field(default_factory=list)
    n_rotated: int = 0
    seconds: float = 0.0
    position: int = 0

    def add(self, drawn: DrawnBatch) -> None:
        """Take in the images that come next."""
        if drawn.after is not None and drawn.before is not None:
            self.pictures["after"].update(*drawn.after)
            self.pictures["before"].update(*drawn.before)
            for number in () if drawn.group is None else np.unique(drawn.group[drawn.group >= 0]).tolist():
                own, (levels, weights) = drawn.group == number, drawn.after
                self.pictures[str(number)].update(levels[own], None if weights is None else weights[own])
        if drawn.lost is not None:
            self.lost.append(drawn.lost)
        self.n_rotated += drawn.n_rotated
        self.position += drawn.n_rows

    def merge(self, shard: RenderState) -> None:
        """Add the sums of the shard that comes next. Shards are divided by sizes alone, so that sums are the same
        wherever they are made."""
        for name, stats in shard.pictures.items():
            if self.pictures[name].count:
                self.pictures[name].merge(stats)
            else:  # the same numbers in the memory of one
                self.pictures[name] = stats
        self.lost += shard.lost
        self.n_rotated += shard.n_rotated
        self.position += shard.position

    def state(self) -> dict[str, np.ndarray]:
        """All of it as arrays by name."""
        facts = {name: getattr(self, name) for name in ("lost", "n_rotated", "seconds", "position")}
        arrays = {"facts": np.array(json.dumps(facts))}
        for name, stats in self.pictures.items():
            arrays |= {f"{name}:{key}": array for key, array in stats.state().items()}
        return arrays

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
        found.pictures |= {name: RunningStats.restore(parts) for name, parts in sums.items()}
        return found

    def save(self, path: Path) -> None:
        """All of it in one file, replaced whole."""
        with replacing(path) as file:
            np.savez(file, **self.state())  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: Path) -> RenderState:
        """The state of an interrupted pass; a new one if there is none, or a damaged one."""
        try:
            with np.load(path, allow_pickle=False) as saved:
                return cls.restored({name: saved[name] for name in saved.files})
        except DAMAGED:
            return cls()
