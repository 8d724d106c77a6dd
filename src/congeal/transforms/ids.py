"""The names of images: many in little memory, and lists of names in tables that people write."""

from __future__ import annotations

import csv
import io
import os
import pickle
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

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
    """An unchangeable sequence of strings that takes their bytes and four (eight beyond 4 GB) more for each.

    Equal to any list, tuple or `Ids` with the same strings. Slices and `take` give `Ids`.
    """

    _text: bytes
    _edges: NDArray[Any]

    def __init__(self, names: Iterable[str] = ()) -> None:
        if isinstance(names, Ids):
            self._text, self._edges = names._text, names._edges
            return
        text, lengths, rest = bytearray(), [np.zeros(1, dtype=np.uint64)], iter(names)
        while part := [str(name).encode(*_ENCODING) for name in islice(rest, ROWS_AT_ONCE)]:
            text += b"".join(part)
            lengths.append(np.fromiter(map(len, part), dtype=np.uint64, count=len(part)))
        edges = np.cumsum(np.concatenate(lengths), dtype=np.uint64)
        self._text, self._edges = bytes(text), edges.astype(np.uint32 if len(text) < 2**32 else np.uint64)

    @classmethod
    def _made(cls, text: Any, edges: NDArray[Any]) -> Ids:
        ids = cls()
        ids._text, ids._edges = bytes(text), edges
        return ids

    def __len__(self) -> int:
        return len(self._edges) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Ids: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1 or stop <= start:
                return self.take(np.arange(start, stop, step))
            edges = self._edges[start : stop + 1]
            return self._made(self._text[int(edges[0]) : int(edges[-1])], edges - edges[0])
        i = range(len(self))[index]
        return self._text[int(self._edges[i]) : int(self._edges[i + 1])].decode(*_ENCODING)

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), ROWS_AT_ONCE):
            edges = self._edges[start : start + ROWS_AT_ONCE + 1].tolist()
            for first, last in pairwise(edges):
                yield self._text[first:last].decode(*_ENCODING)

    def take(self, rows: NDArray[Any]) -> Ids:
        """The names at these positions (not negative), in this order."""
        return Ids(self[int(i)] for i in rows)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Ids):
            return self._text == other._text and np.array_equal(self._edges, other._edges)
        if isinstance(other, list | tuple):
            return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))
        return NotImplemented

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(list(self), dtype=np.str_ if dtype is None else dtype)

    def __repr__(self) -> str:
        shown = ", ".join(repr(name) for name in islice(self, 3))
        return f"Ids({shown}{f', … {len(self)} in all' if len(self) > 3 else ''})"

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        text = pickle.PickleBuffer(self._text) if protocol >= 5 else self._text
        return Ids._made, (text, self._edges)

    @property
    def unique(self) -> bool:
        """Whether no name occurs twice, by 64-bit hashes: those of a million names meet once in 10⁷ sets."""
        return len(np.unique(np.fromiter(map(hash, self), dtype=np.int64, count=len(self)))) == len(self)


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
