"""The small CSV tables people write by hand: points, and lists of ids."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from congeal.errors import CongealError
from congeal.transforms import Transforms


def read_table(path: str | os.PathLike[str], columns: tuple[str, ...]) -> list[dict[str, str]]:
    """The rows of a CSV file that has at least these columns."""
    file = Path(path)
    if file.exists() and not file.is_file():
        raise CongealError(f"'{file}' is not a file")
    try:
        with file.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as lines:
            reader = csv.DictReader(lines, skipinitialspace=True, strict=True)
            header = [name.strip() for name in reader.fieldnames or []]
            reader.fieldnames = header
            rows = [{key: _cell(key, value or "") for key, value in row.items() if key} for row in reader]
    except FileNotFoundError as error:
        raise CongealError(f"there is no file '{file}'") from error
    except (OSError, csv.Error) as error:
        raise CongealError(f"cannot read '{file}' as a CSV table: {error}") from error
    if not set(columns) <= set(header):
        raise CongealError(f"'{file}' needs the columns {','.join(columns)}; its first line is {','.join(header)!r}")
    return rows


def _cell(column: str, text: str) -> str:
    """A cell without the blanks around it; those of an id may be part of a file's name."""
    return text if column == "id" else text.strip()


def meant_ids(given: Iterable[str], known: Sequence[str]) -> dict[str, str]:
    """Ids as people write them → the ids of the set: exactly, or else up to blanks around them if that is clear.

    Ids that are not in the set are left out.
    """
    exact = set(known)
    loose: dict[str, list[str]] = {}
    for id in known:
        loose.setdefault(id.strip(), []).append(id)
    meant = {id: [id] if id in exact else loose.get(id.strip(), []) for id in given}
    return {id: found[0] for id, found in meant.items() if len(found) == 1}


def coordinates(rows: list[dict[str, str]], path: str | os.PathLike[str]) -> np.ndarray:
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
    return coordinates(rows, path), names


def kept(found: Transforms, exclude: Iterable[str] | str | os.PathLike[str] | None) -> Transforms:
    """The rows that have a matrix and are not excluded: by ids, or by a table with the column id."""
    if exclude is None:
        unwanted: set[str] = set()
    elif isinstance(exclude, str | os.PathLike):
        unwanted = {row["id"] for row in read_table(exclude, ("id",))}
    else:
        unwanted = set(exclude)
    meant = meant_ids(unwanted, found.ids)
    unknown = unwanted - meant.keys()
    if unknown:
        raise CongealError(f"the images to exclude belong to another set: it has no image '{sorted(unknown)[0]}'")
    known = np.isfinite(found.matrices).all(axis=(1, 2))
    chosen = found[known & ~np.isin(found.ids, list(meant.values()))]
    if len(chosen) == 0:
        raise CongealError("no image is left: every one was skipped or is excluded")
    return chosen
