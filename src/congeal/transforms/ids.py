"""The names of images: many in little memory, and lists of names in tables that people write."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from congeal.errors import CongealError
from congeal.rows import finite_rows

if TYPE_CHECKING:
    from congeal.transforms.transforms import Transforms

IdList = Iterable[str] | str | os.PathLike[str]
"""Ids themselves, or a file that lists them."""
ROWS_AT_ONCE = 10_000
"""Rows of a table, or names, that are Python objects at a time: about 10 MB. Chosen by judgement."""
_ENCODING = ("utf-8", "surrogatepass")  # file names that are not UTF-8 are lone surrogates, and come back as they were


class Ids(Sequence[str]):
    """An unchangeable sequence of strings, as UTF-8 in one array, because a million Python strings take much memory.

    Equal to any list, tuple or `Ids` with the same strings. Slices and `take` give `Ids`.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._bytes: NDArray[np.bytes_]
        if isinstance(names, Ids):
            self._bytes = names._bytes
            return
        parts, rest = [np.empty(0, np.bytes_)], iter(names)
        while part := [str(name).encode(*_ENCODING) for name in islice(rest, ROWS_AT_ONCE)]:
            parts.append(np.array(part, dtype=np.bytes_))
        self._bytes = np.concatenate(parts)

    def __len__(self) -> int:
        return len(self._bytes)

    def __getitem__(self, index: Any) -> Any:
        return self.take(index) if isinstance(index, slice) else self._bytes[index].decode(*_ENCODING)

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), ROWS_AT_ONCE):
            yield from (name.decode(*_ENCODING) for name in self._bytes[first : first + ROWS_AT_ONCE].tolist())

    def take(self, rows: NDArray[Any] | slice) -> Ids:
        """The names at these positions, in this order."""
        some = Ids()
        some._bytes = self._bytes[rows]
        return some

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Ids | list | tuple):
            return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))
        return NotImplemented

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(list(self), dtype=np.str_ if dtype is None else dtype)

    @property
    def unique(self) -> bool:
        """Whether no name occurs twice."""
        return len(np.unique(self._bytes)) == len(self)


# ---- names that people list


def _read_text(path: str | os.PathLike[str]) -> str:
    if not os.path.exists(path):
        raise CongealError(f"there is no file '{path}'")
    if not os.path.isfile(path):
        raise CongealError(f"'{path}' is not a file")
    try:
        with open(path, newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            return file.read()
    except OSError as error:
        raise CongealError(f"cannot read '{path}': {error}") from error


def read_table(path: str | os.PathLike[str], columns: tuple[str, ...]) -> list[dict[str, str]]:
    """The rows of a CSV file that has at least these columns; blanks around a cell do not count, but those of an id."""
    reader = csv.DictReader(io.StringIO(_read_text(path), newline=""), skipinitialspace=True, strict=True)
    try:
        reader.fieldnames = header = [name.strip() for name in reader.fieldnames or []]
        rows = [{key: value or "" for key, value in row.items() if key} for row in reader]
    except csv.Error as error:
        raise CongealError(f"cannot read '{path}' as a CSV table: {error}") from error
    if not set(columns) <= set(header):
        raise CongealError(f"'{path}' needs the columns {','.join(columns)}; its first line is {','.join(header)!r}")
    return [{key: text if key == "id" else text.strip() for key, text in row.items()} for row in rows]


def read_ids(path: str | os.PathLike[str]) -> list[str]:
    """The ids a file lists: the column id of a CSV table, or one id per line where there is no such column."""
    lines = _read_text(path).splitlines()
    try:
        header = [name.strip() for name in next(csv.reader(lines), [])]
    except csv.Error as error:
        raise CongealError(f"cannot read '{path}' as a list of ids: {error}") from error
    if "id" in header:
        return [row["id"] for row in read_table(path, ("id",))]
    if len(header) > 1 and Path(path).suffix.lower() == ".csv":
        raise CongealError(
            f"'{path}' has no column id; its first line is {','.join(header)!r}: name the column with the ids 'id', or "
            "give one id per line"
        )
    return [line for line in lines if line.strip()]


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
