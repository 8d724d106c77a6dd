"""The small CSV tables people write by hand: points, and lists of ids."""

from __future__ import annotations

import math
import os

import numpy as np

from congeal.errors import CongealError
from congeal.transforms import Transforms
from congeal.transforms.lists import IdList, match_ids, read_table, resolve_ids


def parse_coordinates(rows: list[dict[str, str]], path: str | os.PathLike[str]) -> np.ndarray:
    """(P, 2) from the columns x and y."""
    points = []
    for line, row in enumerate(rows, start=2):
        try:
            point = (float(row["x"]), float(row["y"]))
        except ValueError:
            point = (math.nan, math.nan)
        if not all(map(math.isfinite, point)):
            raise CongealError(f"line {line} of '{path}': x and y must be numbers, not {row['x']!r} and {row['y']!r}")
        points.append(point)
    return np.array(points, dtype=np.float64).reshape(-1, 2)


def read_points(path: str | os.PathLike[str]) -> tuple[np.ndarray, list[str]]:
    """Points of the aligned picture, (P, 2) and their names, from a table with the columns x,y[,name]."""
    rows = read_table(path, ("x", "y"))
    if not rows:
        raise CongealError(f"'{path}' holds no points; give it a line per point under x,y[,name]")
    names = [row.get("name") or str(number) for number, row in enumerate(rows, start=1)]
    if len(set(names)) < len(names):
        raise CongealError(f"'{path}' has two points with one name; names must differ")
    return parse_coordinates(rows, path), names


def select_images(found: Transforms, exclude: IdList | None) -> Transforms:
    """The rows that have a matrix and are not excluded: by ids, by a table with the column id, or one id per line."""
    unwanted = set(resolve_ids(exclude, "images to exclude"))
    meant = match_ids(unwanted, found.ids)
    unknown = unwanted - meant.keys()
    if unknown:
        raise CongealError(f"the images to exclude belong to another set: it has no image '{sorted(unknown)[0]}'")
    known = np.isfinite(found.matrices).all(axis=(1, 2))
    chosen = found[known & ~np.isin(found.ids, list(meant.values()))]
    if len(chosen) == 0:
        raise CongealError("no image is left: every one was skipped or is excluded")
    return chosen
