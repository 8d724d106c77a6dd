"""Images at working resolution, in memory or in memory-mapped files, and the files that describe them."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from congeal.errors import CongealError
from congeal.execution.shared_storage import SharedStorage
from congeal.files import DAMAGED, is_plain, replacing
from congeal.images.intensity import Ranges, intensity_range
from congeal.images.sources.arrays import as_slice
from congeal.images.sources.base import Indices
from congeal.memmap import PageTracker

Size = tuple[int, int]
# The file that marks a store as complete.
MARKER = "stack.npz"
# Arrays of a store with one row per image, in the order of its fields.
PER_IMAGE = ("sizes", "black", "white", "kinds")


class ShardedRows:
    """Rows of several .npy files one after the other, read on demand; behaves like an array.

    storage: where the files are. names: the files, in order; None for one whose rows all have the value `fill`. edges:
    first row of each file, and the number of all rows. shape, dtype: of one row.
    """

    def __init__(
        self,
        storage: SharedStorage,
        names: list[str | None],
        edges: np.ndarray,
        shape: tuple[int, ...],
        dtype: np.dtype,
        fill: int = 0,
    ) -> None:
        self.storage, self.names, self.edges = storage, names, edges
        self.shape, self.dtype, self.fill = (int(edges[-1]), *shape), np.dtype(dtype), fill

    def as_dict(self) -> dict[str, Any]:
        """The parameters, for JSON."""
        about = {"storage": str(self.storage), "names": self.names, "edges": self.edges.tolist()}
        return about | {"shape": self.shape[1:], "dtype": self.dtype.str, "fill": self.fill}

    @classmethod
    def from_dict(cls, about: dict[str, Any]) -> ShardedRows:
        """The inverse of `as_dict`."""
        storage, shape = SharedStorage(about["storage"]), tuple(about["shape"])
        edges, dtype = np.array(about["edges"]), np.dtype(about["dtype"])
        return cls(storage, about["names"], edges, shape, dtype, about["fill"])

    def exists(self) -> bool:
        """Whether all files exist."""
        files = [name.rpartition("/") for name in self.names if name is not None]
        present = {folder: self.storage.names(folder) for folder in {folder for folder, _, _ in files}}
        return all(file in present[folder] for folder, _, file in files)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Indices | slice) -> np.ndarray:
        positions = np.arange(len(self))[rows] if isinstance(rows, slice) else np.asarray(rows, dtype=np.int64)
        out = np.full((len(positions), *self.shape[1:]), self.fill, dtype=self.dtype)
        shards = np.searchsorted(self.edges, positions, side="right") - 1
        for shard in np.unique(shards):
            name = self.names[shard]
            if name is not None:
                here = np.flatnonzero(shards == shard)
                file = np.load(self.storage.local(name), mmap_mode="r")  # closed again after this file
                out[here] = file[as_slice(positions[here] - self.edges[shard])]
        return out


@dataclass
class Store:
    """Rows are positions in the source: pixels (N, C, h, w) uint8 or float32, masks (N, h, w) uint8 or None.

    black and white (N,) are the stored values that mean 0 and 1, the same for all images of a dtype (`ranges`); kinds
    (N,) are the names of the dtypes, "" where unread; sizes (N, 2); reasons say which rows are unusable. `folder` is
    where the store is kept, None if it ends with the process.
    """

    pixels: np.ndarray | ShardedRows
    masks: np.ndarray | ShardedRows | None
    sizes: np.ndarray
    black: np.ndarray
    white: np.ndarray
    kinds: np.ndarray
    reasons: dict[int, str] = field(default_factory=dict)
    blank: bool = True
    ranges: Ranges = field(default_factory=dict)
    folder: Path | None = None
    temporary: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.pages = PageTracker(*(array for array in (self.pixels, self.masks) if isinstance(array, np.ndarray)))

    # Other processes receive the names of memory-mapped files, not their contents.

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "pages": None, "temporary": None}
        for name in ("pixels", "masks"):
            if isinstance(state[name], np.memmap):
                state[name] = Path(str(state[name].filename)).resolve()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name in ("pixels", "masks"):
            if isinstance(state[name], Path):
                state[name] = np.load(state[name], mmap_mode="r")
        self.__dict__ = state
        self.__post_init__()

    def flush(self) -> None:
        """Write modified pages to the disk."""
        for array in (self.pixels, self.masks):
            if isinstance(array, np.memmap):
                array.flush()

    def set_ranges(self, known: Ranges) -> None:
        """Replace the smallest and largest value of each image by black and white of all images of its dtype."""
        ranges: dict[str, tuple[float, float]] = {}
        for name in filter(None, np.unique(self.kinds).tolist()):
            rows = self.kinds == name
            low, high = float(self.black[rows].min()), float(self.white[rows].max())
            ranges[name] = known.get(name) or intensity_range(np.dtype(name), low, high)
            self.black[rows], self.white[rows] = ranges[name]
        self.ranges = ranges

    def save(self, folder: Path, key: str = "") -> None:
        """Mark stack.npy and masks.npy of `folder`, which are the arrays of this store, as complete."""
        self.flush()
        write_description(folder / MARKER, self, {"key": key, "ranges": self.ranges})
        self.folder = folder


def empty_store(n: int, reasons: dict[int, str] | None = None) -> Store:
    """The store of n images before any is decoded, or of which none can be read."""
    black, white, kinds = np.zeros(n, np.float32), np.ones(n, np.float32), np.zeros(n, "U8")
    return Store(np.empty(0), None, np.zeros((n, 2), np.int32), black, white, kinds, reasons=reasons or {})


def write_description(path: Path, store: Store, about: dict[str, Any]) -> None:
    """The small file beside the large arrays: sizes, ranges and reasons; written when the arrays are on the disk."""
    facts = {"reasons": store.reasons, "blank": store.blank, "masks": store.masks is not None}
    if isinstance(store.pixels, ShardedRows):
        sharded = {"pixels": store.pixels, "masks": store.masks}
        facts["sharded"] = {name: rows.as_dict() for name, rows in sharded.items() if isinstance(rows, ShardedRows)}
    arrays: dict[str, Any] = {name: getattr(store, name) for name in PER_IMAGE}
    with replacing(path) as file:
        np.savez(file, about=json.dumps({**facts, **about}), **arrays)


def read_description(path: Path, key: str | None, mode: Any) -> tuple[Store, dict[str, Any]] | None:
    """The store that `path` describes, and the description; None if it is damaged or has another key."""
    try:
        return _read_store(path, key, mode)
    except DAMAGED:
        return None


def _read_store(path: Path, key: str | None, mode: Any) -> tuple[Store, dict[str, Any]] | None:
    with np.load(path, allow_pickle=False) as saved:
        about = json.loads(str(saved["about"]))
        if key not in (None, about["key"]):
            return None
        per_image = [saved[name] for name in PER_IMAGE]
    found: list[Any]
    if "sharded" in about:
        found = [ShardedRows.from_dict(about["sharded"][name]) for name in ("pixels", "masks")[: 1 + about["masks"]]]
        complete = all(rows.exists() for rows in found)
    else:
        files = [path.parent / name for name in ("stack.npy", "masks.npy")[: 1 + about["masks"]]]
        complete = all(map(is_plain, files))
        found = [np.load(file, mmap_mode=mode) for file in files] if complete else []
    if not complete or any(len(array) != len(found[0]) for array in per_image):
        return None
    pixels, masks = [*found, None][:2]
    reasons = {int(i): reason for i, reason in about["reasons"].items()}
    ranges = {name: (low, high) for name, (low, high) in about.get("ranges", {}).items()}
    sizes, black, white, kinds = per_image
    store = Store(pixels, masks, sizes, black, white, kinds, reasons, about["blank"], ranges, path.parent)
    return store, about


def open_store(folder: Path) -> Store:
    """The complete store of a folder."""
    found = read_description(folder / MARKER, None, mode="r")
    if found is None:
        raise CongealError(f"{folder} holds no images at working resolution")
    return found[0]


def find_store(folder: Path, key: str) -> Store | None:
    """The complete store of a folder if it has this key; the marker of another one is removed."""
    marker = folder / MARKER
    if not is_plain(marker):
        return None
    found = read_description(marker, key, mode="r")
    if found is None:
        marker.unlink()
        return None
    return found[0]
