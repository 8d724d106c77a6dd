"""The names of many images in little memory: one block of text instead of a million Python strings."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

_AT_ONCE = 10_000
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
        while part := [str(name).encode(*_ENCODING) for name in islice(rest, _AT_ONCE)]:
            text += b"".join(part)
            lengths.append(np.fromiter(map(len, part), dtype=np.uint64, count=len(part)))
        self._set(bytes(text), np.cumsum(np.concatenate(lengths), dtype=np.uint64))

    def _set(self, text: bytes, edges: NDArray[Any]) -> None:
        self._text = text
        self._edges = edges.astype(np.uint32 if len(text) < 2**32 else np.uint64, copy=False)

    @classmethod
    def _made(cls, text: Any, edges: NDArray[Any]) -> Ids:
        ids = cls.__new__(cls)
        ids._set(bytes(text), edges)
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
        for start in range(0, len(self), _AT_ONCE):
            edges = self._edges[start : start + _AT_ONCE + 1].tolist()
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
        """Whether no name occurs twice; only names with the same hash are compared."""
        hashes = np.fromiter(map(hash, self), dtype=np.int64, count=len(self))
        order = np.argsort(hashes, kind="stable")
        same = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
        candidates = np.union1d(order[same], order[same + 1])
        return len({self[int(i)] for i in candidates}) == len(candidates)
