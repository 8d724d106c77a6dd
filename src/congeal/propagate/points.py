"""Points of the aligned picture, carried to every original; labelled points of originals, carried back, and how well
they come together; and the tables of points that people write by hand."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from congeal.errors import CongealError
from congeal.files import make_folders, sweep, write_json, write_rows
from congeal.geometry.matrix import map_points
from congeal.runs.folder import RunFolder, log
from congeal.runs.originals import transforms_of
from congeal.transforms import Transforms
from congeal.transforms.ids import match_ids, read_table, usable_rows


@dataclass(frozen=True)
class PropagatedPoints:
    """P points on each of N originals.

    xy (N, P, 2) in pixels of each original; visible (N, P) False where a point falls outside the image (its
    coordinates are kept); ids, status and sizes (N, 2: height, width) of the originals.
    """

    ids: Sequence[str]
    names: tuple[str, ...]
    xy: np.ndarray
    visible: np.ndarray
    status: np.ndarray
    sizes: np.ndarray

    def save_csv(self, path: str | os.PathLike[str]) -> None:
        """One line per image and point: id,name,x,y,visible,status."""
        columns = ("id", "name", "x", "y", "visible", "status")
        rows = [
            (id, name, x, y, int(seen), status)
            for id, status, points, flags in zip(self.ids, self.status, self.xy.tolist(), self.visible, strict=True)
            for name, (x, y), seen in zip(self.names, points, flags, strict=True)
        ]
        write_rows(path, [dict(zip(columns, row, strict=True)) for row in rows], columns=columns)

    def save_coco(self, path: str | os.PathLike[str]) -> None:
        """COCO keypoints: v = 2 for a point in the image, and 0 0 0, COCO's "not labelled", for one outside."""
        images, annotations = [], []
        for row, (id, (height, width)) in enumerate(zip(self.ids, self.sizes.tolist(), strict=True), start=1):
            seen, xy = self.visible[row - 1], self.xy[row - 1]
            low, high = (xy[seen].min(0), xy[seen].max(0)) if seen.any() else np.zeros((2, 2))
            box = {"bbox": [*low.tolist(), *(high - low).tolist()], "area": math.prod((high - low).tolist())}
            points = [(x, y, 2) if there else (0.0, 0.0, 0) for (x, y), there in zip(xy.tolist(), seen, strict=True)]
            keypoints = {"keypoints": [value for point in points for value in point], "num_keypoints": int(seen.sum())}
            images.append({"id": row, "file_name": id, "width": width, "height": height})
            annotations.append({"id": row, "image_id": row, "category_id": 1, "iscrowd": 0, **keypoints, **box})
        category = {"id": 1, "name": "object", "supercategory": "", "keypoints": list(self.names), "skeleton": []}
        write_json(path, {"images": images, "annotations": annotations, "categories": [category]})


def propagate_points(
    run: str | os.PathLike[str] | Transforms,
    points: str | os.PathLike[str] | ArrayLike,
    output: str | os.PathLike[str] | None = None,
    *,
    names: Sequence[str] | None = None,
    exclude: Iterable[str] | str | os.PathLike[str] | None = None,
) -> PropagatedPoints:
    """Carry points of the aligned picture (pixels of mean.png) to every original.

    points: a CSV file with the columns x,y[,name], or an array (P, 2) with `names`. With `output`, writes points.csv
    and points.json (COCO keypoints) there. exclude: ids to leave out, or a table of them such as the studio's.
    """
    if isinstance(points, str | os.PathLike):
        xy, labels = read_points(points)
    else:
        xy = np.asarray(points, dtype=np.float64)
        if xy.ndim != 2 or xy.shape[1] != 2 or not np.isfinite(xy).all():
            raise CongealError(f"points must be numbers (P, 2), x and y each, not an array {xy.shape}")
        labels = [str(number) for number in range(1, len(xy) + 1)]
    if names is not None:
        labels = [str(name) for name in names]
        if len(labels) != len(xy) or len(set(labels)) < len(labels):
            raise CongealError(f"{len(xy)} points need as many names, all different, not {labels}")
    found = transforms_of(run)
    found = found[usable_rows(found, exclude)]
    landed, visible = land(found, xy)
    result = PropagatedPoints(found.ids, tuple(labels), landed, visible, found.status, found.source_sizes)
    if output is not None:
        folder = Path(output)
        sweep(make_folders(folder), shared=True)
        result.save_csv(folder / "points.csv")
        result.save_coco(folder / "points.json")
    return result


def land(found: Transforms, xy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Points (P, 2) of the aligned picture → (N, P, 2) in each source, and (N, P) whether they are in the image.

    A point behind the horizon of a homography is in no image, wherever its coordinates fall.
    """
    back = found.inverse().matrices
    height, width = found.aligned_size or (1, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        landed = found.apply_points(xy, inverse=True)
        depth = xy @ back[:, 2, :2].transpose() + back[:, 2, 2]  # (P, N)
        centre = back[:, 2] @ ((width - 1) / 2, (height - 1) / 2, 1.0)
    return landed, in_image(found, landed) & (depth.T / centre[:, None] > 0)


def in_image(found: Transforms, xy: np.ndarray) -> np.ndarray:
    """(N, P) whether points (N, P, 2) lie within their originals."""
    with np.errstate(invalid="ignore"):
        return np.all((xy >= -0.5) & (xy <= found.source_sizes[:, None, ::-1] - 0.5), axis=-1)


# ---- and back


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
        folder = Path(output)
        sweep(make_folders(folder), shared=True)
        known = zip(ids, names, landed.tolist(), strict=True)
        table = [{"id": id, "name": name, "x": x, "y": y} for id, name, (x, y) in known]
        write_rows(folder / "collected.csv", table)
        write_rows(folder / "spread.csv", result.spread)
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


# ---- tables


def read_points(path: str | os.PathLike[str]) -> tuple[np.ndarray, list[str]]:
    """Points of the aligned picture, (P, 2) and their names, from a table with the columns x,y[,name]."""
    rows, xy = _read_coordinates(path, ("x", "y"))
    names = [row.get("name") or str(number) for number, row in enumerate(rows, start=1)]
    if len(set(names)) < len(names):
        raise CongealError(f"'{path}' has two points with one name; names must differ")
    return xy, names


def read_source_points(
    points: str | os.PathLike[str] | Mapping[str, ArrayLike], known: Sequence[str]
) -> tuple[list[str], list[str], np.ndarray]:
    """Points of originals: for each the id of its image, one of `known`; its name; and xy (P, 2).

    points: a table with the columns id,x,y[,name], or {id: (P, 2) array}. A point without a name is called by its
    number within its image.
    """
    if isinstance(points, Mapping):
        arrays = {id: np.asarray(xy, dtype=np.float64).reshape(-1, 2) for id, xy in points.items()}
        rows: list[dict[str, Any]] = [{"id": id} for id, xy in arrays.items() for _ in xy]
        place, xy = "the points", np.concatenate([np.zeros((0, 2)), *arrays.values()])
    else:
        rows, xy = _read_coordinates(points, ("id", "x", "y"))
        place = f"'{points}'"
    counts: Counter[str] = Counter()
    names = []
    for row in rows:
        counts[row["id"]] += 1
        names.append(row.get("name") or str(counts[row["id"]]))
    for (id, name), times in Counter(zip((row["id"] for row in rows), names, strict=True)).items():
        if times > 1:
            raise CongealError(f"{place}: the point '{name}' is there twice on image '{id}'")
    meant = match_ids(counts, known)
    unknown = sorted(counts.keys() - meant.keys())
    if unknown:
        raise CongealError(f"{place}: these are points of another set; the run has no image '{unknown[0]}'")
    return [meant[row["id"]] for row in rows], names, xy


def _read_coordinates(
    path: str | os.PathLike[str], columns: tuple[str, ...]
) -> tuple[list[dict[str, str]], np.ndarray]:
    """The rows of a table, at least one, and (P, 2) from its columns x and y."""
    rows = read_table(path, columns)
    if not rows:
        raise CongealError(f"'{path}' holds no points; give it a line per point under {','.join(columns)}[,name]")
    points = []
    for line, row in enumerate(rows, start=2):
        with suppress(ValueError):
            points.append((float(row["x"]), float(row["y"])))
        if len(points) < line - 1 or not all(map(math.isfinite, points[-1])):
            raise CongealError(f"line {line} of '{path}': x and y must be numbers, not {row['x']!r} and {row['y']!r}")
    return rows, np.array(points, dtype=np.float64)
