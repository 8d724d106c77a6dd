"""Labelled points of the originals, carried into the aligned picture: how well do they come together?"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from congeal.errors import CongealError
from congeal.files import make_folders, sweep, write_rows
from congeal.geometry.matrix import map_points
from congeal.propagate.points import read_source_points
from congeal.runs.folder import RunFolder, log
from congeal.runs.originals import transforms_of
from congeal.transforms import Transforms
from congeal.transforms.ids import usable_rows


@dataclass(frozen=True)
class CollectedPoints:
    """P labelled points in the aligned picture, xy (P, 2) in its pixels, each with the id of its image and its name.

    spread: one row per name, {name, count, x, y, spread, rms, largest, spread_before}: mean position, and mean,
    root-mean-square and largest distance from it, in aligned pixels; spread_before is the mean distance with the
    starting transforms, None where these are not known.
    """

    ids: tuple[str, ...]
    names: tuple[str, ...]
    xy: np.ndarray
    spread: list[dict[str, Any]]

    def summary(self) -> str:
        """The spread as lines of text."""
        head = ("name", "count", "x", "y", "spread", "largest", "before")
        lines = ["{:<20} {:>6} {:>9} {:>9} {:>8} {:>8} {:>8}   (aligned pixels)".format(*head)]
        for row in self.spread:
            before = "–" if row["spread_before"] is None else f"{row['spread_before']:.2f}"
            lines.append(
                f"{row['name']:<20.20} {row['count']:>6} {row['x']:>9.2f} {row['y']:>9.2f} {row['spread']:>8.2f} "
                f"{row['largest']:>8.2f} {before:>8}"
            )
        return "\n".join(lines)


def collect_points(
    run: str | os.PathLike[str] | Transforms,
    points: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    exclude: Iterable[str] | str | os.PathLike[str] | None = None,
) -> CollectedPoints:
    """Map labelled points of the originals (CSV with the columns id,x,y[,name]) into the aligned picture.

    Points without a name are matched by their order in each image. With `output`, writes collected.csv and spread.csv
    there.
    """
    everything = transforms_of(run)
    ids, names, xy = read_source_points(points, everything.ids)
    found = everything[usable_rows(everything, exclude)]
    row_of = {id: row for row, id in enumerate(found.ids)}
    used = np.array([k for k, id in enumerate(ids) if id in row_of], dtype=np.intp)
    if len(used) < len(ids):
        log.warning("%d points are on images that were skipped or excluded, and are left out", len(ids) - len(used))
    if not len(used):
        raise CongealError(f"every image of '{points}' was skipped or is excluded")
    ids, names = [ids[k] for k in used], [names[k] for k in used]
    rows, places = np.array([row_of[id] for id in ids]), xy[used][:, None]
    landed = map_points(found.matrices[rows], places)[:, 0]
    before = None
    if not isinstance(run, Transforms) and (start := RunFolder(run).work / "start.npz").exists():
        begun = Transforms.load(start).matching(found.ids).matrices
        before = map_points(begun[rows], places)[:, 0]
    result = CollectedPoints(tuple(ids), tuple(names), landed, spread_rows(names, landed, before))
    if output is not None:
        save(result, Path(output))
    return result


def spread_rows(names: Sequence[str], xy: np.ndarray, before: np.ndarray | None) -> list[dict[str, Any]]:
    """Of each name: how far its points (P, 2), and those before alignment, lie from their mean, in pixels."""
    result = []
    for name in dict.fromkeys(names):
        mine = np.array(names) == name
        centre = xy[mine].mean(0)
        distance = np.linalg.norm(xy[mine] - centre, axis=-1)
        far = None if before is None else np.linalg.norm(before[mine] - before[mine].mean(0), axis=-1)
        result.append(
            {
                "name": name,
                "count": int(mine.sum()),
                "x": float(centre[0]),
                "y": float(centre[1]),
                "spread": float(distance.mean()),
                "rms": float(np.sqrt((distance**2).mean())),
                "largest": float(distance.max()),
                "spread_before": None if far is None else float(far.mean()),
            }
        )
    return result


def save(result: CollectedPoints, folder: Path) -> None:
    """Write collected.csv and spread.csv."""
    sweep(make_folders(folder), shared=True)
    rows = [
        {"id": id, "name": name, "x": x, "y": y}
        for id, name, (x, y) in zip(result.ids, result.names, result.xy.tolist(), strict=True)
    ]
    write_rows(folder / "collected.csv", rows)
    write_rows(folder / "spread.csv", result.spread)
