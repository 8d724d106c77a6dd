"""Tables and lists of ids that people write by hand: CSV files, and one id per line; and the images that they name."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from congeal.errors import CongealError
from congeal.rows import finite_rows
from congeal.transforms.transforms import Transforms

IdList = Iterable[str] | str | os.PathLike[str]
"""Ids themselves, or a file that lists them."""


def read_table(path: str | os.PathLike[str], columns: tuple[str, ...]) -> list[dict[str, str]]:
    """The rows of a CSV file that has at least these columns."""
    file = _existing(path)
    try:
        with file.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as lines:
            reader = csv.DictReader(lines, skipinitialspace=True, strict=True)
            header = [name.strip() for name in reader.fieldnames or []]
            reader.fieldnames = header
            rows = [{key: _cell(key, value or "") for key, value in row.items() if key} for row in reader]
    except (OSError, csv.Error) as error:
        raise CongealError(f"cannot read '{file}' as a CSV table: {error}") from error
    if not set(columns) <= set(header):
        raise CongealError(f"'{file}' needs the columns {','.join(columns)}; its first line is {','.join(header)!r}")
    return rows


def read_ids(path: str | os.PathLike[str]) -> list[str]:
    """The ids a file lists: the column id of a CSV table, or one id per line where there is no such column."""
    file = _existing(path)
    try:
        with file.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as lines:
            header = [name.strip() for name in next(csv.reader(lines), [])]
    except (OSError, csv.Error) as error:
        raise CongealError(f"cannot read '{file}' as a list of ids: {error}") from error
    if "id" in header:
        return [row["id"] for row in read_table(file, ("id",))]
    if len(header) > 1 and file.suffix.lower() == ".csv":
        raise CongealError(
            f"'{file}' has no column id; its first line is {','.join(header)!r}: name the column with the ids 'id', or "
            "give one id per line"
        )
    text = file.read_text(encoding="utf-8-sig", errors="surrogateescape")
    return [line for line in text.splitlines() if line.strip()]


def resolve_ids(listed: IdList | None, what: str) -> list[str]:
    """Ids as they are, or those of a file; what: what they are for, in words."""
    if listed is None:
        return []
    if isinstance(listed, str | os.PathLike):
        return read_ids(listed)
    try:
        return [str(id) for id in listed]
    except TypeError:
        raise CongealError(f"{what}: give a file, or a list of ids, not {listed!r}") from None


def match_ids(given: Iterable[str], known: Sequence[str]) -> dict[str, str]:
    """Ids as people write them → the ids of the set: exactly, or else up to blanks around them if that is clear.

    Ids that are not in the set are left out.
    """
    exact = set(known)
    loose: dict[str, list[str]] = {}
    for id in known:
        loose.setdefault(id.strip(), []).append(id)
    meant = {id: [id] if id in exact else loose.get(id.strip(), []) for id in given}
    return {id: found[0] for id, found in meant.items() if len(found) == 1}


def usable_rows(found: Transforms, exclude: IdList | None, *, flagged: bool = True) -> NDArray[np.intp]:
    """The rows that have a matrix and are not excluded; without `flagged`, only those whose status is ok."""
    given = resolve_ids(exclude, "images to exclude")
    meant = match_ids(given, found.ids)
    unknown = [id for id in given if id not in meant]
    if unknown:
        raise CongealError(f"cannot exclude {unknown[0]!r}: the run has no image of that name")
    usable = finite_rows(found.matrices) & (found.ok | flagged)
    unwanted = set(meant.values())
    rows = np.array([row for row, id in enumerate(found.ids) if usable[row] and id not in unwanted], dtype=np.intp)
    if not len(rows):
        more = "" if flagged else "; --flagged uses those whose status is not ok as well"
        raise CongealError(f"no image is left{more}: every other one was skipped or is excluded")
    return rows


def _existing(path: str | os.PathLike[str]) -> Path:
    file = Path(path)
    if not os.path.exists(file):
        raise CongealError(f"there is no file '{file}'")
    if not file.is_file():
        raise CongealError(f"'{file}' is not a file")
    return file


def _cell(column: str, text: str) -> str:
    """A cell without the blanks around it; those of an id may be part of a file's name."""
    return text if column == "id" else text.strip()
