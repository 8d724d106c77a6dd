"""Labelled points of the originals, carried into the aligned picture: how well do they come together?"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from congeal.errors import CongealError
from congeal.files import make_folders, sweep, write_rows
from congeal.geometry.matrix import map_points
from congeal.propagate.tables import parse_coordinates, select_images
from congeal.runs.folder import RunFolder, log
from congeal.runs.originals import transforms_of
from congeal.transforms import Transforms
from congeal.transforms.lists import match_ids, read_table


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
    rows = read_table(points, ("id", "x", "y"))
    if not rows:
        raise CongealError(f"'{points}' holds no points; give it a line per point under id,x,y[,name]")
    xy, names = parse_coordinates(rows, points), point_names(rows, points)
    everything = transforms_of(run)
    found = select_images(everything, exclude)
    row_of = {id: row for row, id in enumerate(found.ids)}
    given = {row["id"] for row in rows}
    meant = match_ids(given, everything.ids)
    strangers = given - meant.keys()
    if strangers:
        raise CongealError(f"'{points}' belongs to another set: the run has no image '{sorted(strangers)[0]}'")
    rows = [{**row, "id": meant[row["id"]]} for row in rows]
    used = np.array([row["id"] in row_of for row in rows])
    if not used.all():
        log.warning("%d points are on images that were skipped or are excluded, and are left out", int((~used).sum()))
    if not used.any():
        raise CongealError(f"every image of '{points}' was skipped or is excluded")
    chosen = np.flatnonzero(used)
    place = np.array([row_of[rows[k]["id"]] for k in chosen])
    labels = [names[k] for k in chosen]
    landed = map_points(found.matrices[place], xy[chosen][:, None])[:, 0]
    start = start_matrices(run, found)
    began = None if start is None else map_points(start[place], xy[chosen][:, None])[:, 0]
    ids = tuple(rows[k]["id"] for k in chosen)
    result = CollectedPoints(ids, tuple(labels), landed, spread_rows(labels, landed, began))
    if output is not None:
        save(result, Path(output))
    return result


def point_names(rows: Sequence[dict[str, str]], path: str | os.PathLike[str]) -> list[str]:
    """The names given, or the point's number within its image."""
    seen: Counter[str] = Counter()
    names = []
    for row in rows:
        seen[row["id"]] += 1
        names.append(row.get("name") or str(seen[row["id"]]))
    twice = [pair for pair, times in Counter(zip((row["id"] for row in rows), names, strict=True)).items() if times > 1]
    if twice:
        raise CongealError(f"'{path}' has the point '{twice[0][1]}' twice on image '{twice[0][0]}'")
    return names


def start_matrices(run: str | os.PathLike[str] | Transforms, found: Transforms) -> np.ndarray | None:
    """Where the images of a run folder started, (N, 3, 3) aligned_from_source; None where that is not known."""
    if isinstance(run, Transforms):
        return None
    path = RunFolder(run).work / "start.npz"
    return Transforms.load(path).matching(found.ids).matrices if path.exists() else None


def spread_rows(names: Sequence[str], xy: np.ndarray, before: np.ndarray | None) -> list[dict[str, Any]]:
    """Of each name: how far its points (P, 2), and those before alignment, lie from their mean, in pixels."""
    result = []
    labels = np.array(names)
    for name in dict.fromkeys(names):
        mine = labels == name
        centre, distance = scatter(xy[mine])
        result.append(
            {
                "name": name,
                "count": int(mine.sum()),
                "x": float(centre[0]),
                "y": float(centre[1]),
                "spread": float(distance.mean()),
                "rms": float(np.sqrt((distance**2).mean())),
                "largest": float(distance.max()),
                "spread_before": None if before is None else float(scatter(before[mine])[1].mean()),
            }
        )
    return result


def scatter(xy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean position of points (P, 2), and the distance of each from it."""
    centre = xy.mean(0)
    return centre, np.linalg.norm(xy - centre, axis=-1)


def save(result: CollectedPoints, folder: Path) -> None:
    """Write collected.csv and spread.csv."""
    sweep(make_folders(folder), shared=True)
    rows = [
        {"id": id, "name": name, "x": x, "y": y}
        for id, name, (x, y) in zip(result.ids, result.names, result.xy.tolist(), strict=True)
    ]
    write_rows(folder / "collected.csv", rows)
    write_rows(folder / "spread.csv", result.spread)
