"""Rows that lie in several files, one after the other: what workers decoded, each into files of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from congeal.distributed.exchange import Exchange, open_exchange
from congeal.images.arrays import as_slice
from congeal.images.source import Indices

SHARD_VALUES = 256_000_000  # pixel values of the originals of a shard: some ten seconds of decoding …
SHARD_IMAGES = 20_000  # … and at most so many images
LEAST_SHARDS = 8  # even of a small set, so that several workers have something to do …
FEWEST_IMAGES = 25  # … unless shards would have fewer images than this


class ShardedRows:
    """Rows of several .npy files one after the other, read when they are asked for; looks like an array.

    Parameters
    ----------
    exchange : Exchange
        Where the files are.
    names : sequence of str or None
        The files, in order; None for one whose rows all have the value `fill`.
    edges : (len(names) + 1,) array
        Rows before each of them, and all.
    shape, dtype
        Of one row.
    """

    def __init__(
        self,
        exchange: Exchange,
        names: list[str | None],
        edges: np.ndarray,
        shape: tuple[int, ...],
        dtype: np.dtype,
        fill: int = 0,
    ) -> None:
        self.exchange, self.names, self.edges = exchange, names, edges
        self.shape, self.dtype, self.fill = (int(edges[-1]), *shape), np.dtype(dtype), fill

    def as_dict(self) -> dict[str, Any]:
        """In JSON's own words."""
        about = {"exchange": str(self.exchange), "names": self.names, "edges": self.edges.tolist()}
        return about | {"shape": self.shape[1:], "dtype": self.dtype.str, "fill": self.fill}

    @classmethod
    def from_dict(cls, about: dict[str, Any]) -> ShardedRows:
        """The inverse of `as_dict`."""
        exchange, shape = open_exchange(about["exchange"]), tuple(about["shape"])
        edges, dtype = np.array(about["edges"]), np.dtype(about["dtype"])
        return cls(exchange, about["names"], edges, shape, dtype, about["fill"])

    def there(self) -> bool:
        """Whether all files are."""
        folders: dict[str, set[str]] = {}
        for name in self.names:
            if name is not None:
                folder, _, file = name.rpartition("/")
                if folder not in folders:
                    folders[folder] = self.exchange.names(folder)
                if file not in folders[folder]:
                    return False
        return True

    @property
    def ndim(self) -> int:
        """As of an array."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Indices | slice) -> np.ndarray:
        wanted = np.arange(len(self))[rows] if isinstance(rows, slice) else np.asarray(rows, dtype=np.int64)
        out = np.full((len(wanted), *self.shape[1:]), self.fill, dtype=self.dtype)
        shards = np.searchsorted(self.edges, wanted, side="right") - 1
        for shard in np.unique(shards):
            name = self.names[shard]
            if name is not None:
                here = np.flatnonzero(shards == shard)
                file = np.load(self.exchange.local(name), mmap_mode="r")  # and the map is closed again
                out[here] = file[as_slice(wanted[here] - self.edges[shard])]
        return out


def cut(n: int, values: float) -> list[tuple[int, int]]:
    """(first, stop) of shards of n images whose originals have so many values each; depends on nothing else."""
    step = max(1, min(SHARD_IMAGES, int(SHARD_VALUES // max(1.0, values)), max(FEWEST_IMAGES, -(-n // LEAST_SHARDS))))
    return [(first, min(n, first + step)) for first in range(0, n, step)]
