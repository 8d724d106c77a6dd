"""Files that hold many encoded images: tar shards in the WebDataset layout, read and written, and Parquet tables.

The members of one sample of a shard share a name up to the first dot. A table has a column of encoded images (bytes, or
a struct with 'bytes' and 'path') or of nested lists.
"""

from __future__ import annotations

import io
import os
import tarfile
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from congeal.errors import CongealError, require
from congeal.files import replacing, writing
from congeal.images.formats.decode import (
    EXTENSIONS,
    as_unopenable,
    as_unreadable,
    check_bytes,
    decode,
    make_image,
    probe,
)
from congeal.images.formats.output_files import OutputNames, encode, safe_name, write_names
from congeal.images.formats.writers import Size, Writer, is_complete
from congeal.images.sources.base import Header, Image, ImageSource, UnreadableImage, unique_ids
from congeal.transforms.ids import Ids

# Images per shard, if they do not come from shards: `docs/formats.md` promises it.
SHARD_IMAGES = 10_000
_IMAGE_NAMES = ("image", "img", "images", "picture", "bytes", "png", "jpg", "jpeg", "pixels")
_ID_NAMES = ("id", "key", "name", "file_name", "filename", "path", "__key__")


class ShardSource(ImageSource):
    """Images inside tar files. Headers are scanned once; after that any image is one seek away."""

    layout = "shards"

    def __init__(self, paths: Sequence[Path], *, name: str) -> None:
        self.paths, self.name = list(paths), name
        # One number each instead of an object: there may be millions.
        shards, offsets, sizes = array("i"), array("q"), array("q")
        self._bad: dict[int, str] = {}
        keys: list[Ids] = []
        for k in range(len(self.paths)):
            found = _scan(self._file(k))
            keys.append(Ids(found))
            self._bad |= {len(offsets) + i: one.reason for i, one in enumerate(found.values()) if one.reason}
            shards.extend([k] * len(found))
            offsets.extend(one.offset for one in found.values())
            sizes.extend(one.size for one in found.values())
        # As arrays that other processes map instead of reading them whole.
        self._shards, self._offsets, self._sizes = (np.array(one) for one in (shards, offsets, sizes))
        if not len(self):
            raise CongealError(f"{name} has no images; these are read: {' '.join(sorted(EXTENSIONS))}")
        ((common, times),) = Counter(path.name for path in self.paths).most_common(1)
        if times > 1:
            raise CongealError(f"two shards are called {common}: give them different names")
        self._ids = self._keys = Ids(key for part in keys for key in part)
        if not self._keys.unique:  # keys that occur in several shards get the shard's name in front
            counts, pairs = Counter(self._keys), zip(self._keys, self._shards, strict=True)
            stems = [path.stem for path in self.paths]
            self._ids = unique_ids(key if counts[key] == 1 else f"{stems[shard]}/{key}" for key, shard in pairs)

    def _file(self, number: int) -> Path:
        return self.paths[number]

    def __len__(self) -> int:
        return len(self._offsets)

    def shard_of(self, i: int) -> tuple[str, str]:
        return self.paths[self._shards[i]].name, self._keys[i]

    def read(self, i: int) -> Image:
        return decode(self._bytes(i), self.id(i))

    def probe(self, i: int) -> Header:
        return probe(self._bytes(i), self.id(i)) or super().probe(i)

    def _bytes(self, i: int) -> bytes:
        i = range(len(self))[i]
        if i in self._bad:
            raise UnreadableImage(self._bad[i])
        path = self._file(self._shards[i])
        try:
            # Opened for each read: no handle to share between threads or to lose in a forked process.
            with path.open("rb") as file:
                file.seek(self._offsets[i])
                return file.read(self._sizes[i])
        except OSError as error:
            raise UnreadableImage(f"{path} cannot be read ({error.strerror})") from error


class _Member(NamedTuple):
    """Where an image begins in its tar file and how many bytes it has, or the reason why it cannot be used."""

    offset: int
    size: int
    reason: str


def _scan(path: Path) -> dict[str, _Member]:
    """The first image of every sample in a tar file by its key, in file order."""
    found: dict[str, _Member] = {}
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                tar.members.clear()  # type: ignore[attr-defined]  # it would keep every header, a kilobyte each
                name = PurePosixPath(member.name)
                if member.isdir() or name.name.startswith(".") or name.suffix.lower() not in EXTENSIONS:
                    continue
                key, reason = str(name.parent / name.name.split(".")[0]), _unusable(member)
                if key not in found or (found[key].reason and not reason):
                    found[key] = _Member(member.offset_data, member.size, reason)
    except FileNotFoundError as error:
        raise CongealError(f"no such file: {path}") from error
    except (tarfile.TarError, OSError, ValueError) as error:
        raise CongealError(
            f"{path} is not a complete, uncompressed tar file ({error}): unpack or copy it again"
        ) from error
    return found


def _unusable(member: tarfile.TarInfo) -> str:
    """Why the image of a member cannot be read; empty if it can."""
    if member.issym() or member.islnk():
        return "is a link inside the tar, not a file"
    if member.issparse():
        return "is stored in the tar as a sparse file: unpack it"
    if not member.isfile():
        return "is a named pipe or device inside the tar, not a file"
    try:
        check_bytes(member.size)
    except UnreadableImage as error:
        return str(error)
    return ""


ARROW_TYPES = {"halffloat": "float16", "float": "float32", "double": "float64"}


class ParquetSource(ImageSource):
    """One image per row. A row group is read when one of its images is asked for, and the last one is kept."""

    def __init__(self, paths: Sequence[Path], *, name: str) -> None:
        parquet, self._types = require("pyarrow.parquet", "parquet"), require("pyarrow.types", "parquet")
        self.name, self.paths, self._lock, self._files = name, list(paths), Lock(), list[Any]()
        for path in self.paths:
            with as_unopenable(path, "Parquet file"):
                self._files.append(parquet.ParquetFile(path))
            if self._files[-1].schema_arrow.names != self._files[0].schema_arrow.names:
                raise CongealError(f"{path} has other columns than {self.paths[0]}: open them one at a time")
        self._groups = [(f, g) for f, file in enumerate(self._files) for g in range(file.metadata.num_row_groups)]
        counts = [self._files[f].metadata.row_group(g).num_rows for f, g in self._groups]
        self._starts = [0, *accumulate(counts)]
        self._column = self._image_column(self._files[0].schema_arrow)
        self._ids = self._read_ids()
        self._held: tuple[int, Any] = (-1, None)

    def _image_column(self, schema: Any) -> str:
        usable = [field.name for field in schema if self._holds_images(field.type)]
        if usable:
            return str(next((name for name in _IMAGE_NAMES if name in usable), usable[0]))
        raise CongealError(
            f"{self.name} has no column of images (bytes or nested lists); it has {', '.join(schema.names)}"
        )

    def _holds_images(self, kind: Any) -> bool:
        types = self._types
        if types.is_struct(kind):
            return any(field.name == "bytes" for field in kind)
        return types.is_binary(kind) or types.is_large_binary(kind) or hasattr(kind, "value_field")  # a list

    def _read_ids(self) -> Ids:
        schema = self._files[0].schema_arrow
        kind = schema.field(self._column).type
        column = next((name for name in _ID_NAMES if name in schema.names and name != self._column), None)
        if column is None and self._types.is_struct(kind) and any(field.name == "path" for field in kind):
            column = f"{self._column}.path"
        if column is None:
            return Ids(str(i) for i in range(len(self)))
        names: list[Any] = []
        for path, file in zip(self.paths, self._files, strict=True):
            with as_unopenable(path, "Parquet file"):
                values = file.read(columns=[column]).column(0).to_pylist()
            names += [value.get("path") if isinstance(value, dict) else value for value in values]
        if len(names) != len(self):
            raise CongealError(f"{self.name} is damaged: it announces {len(self)} rows and holds {len(names)}")
        return unique_ids(str(i) if name is None else str(name) for i, name in enumerate(names))

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, i: int) -> Image:
        i = range(len(self))[i]
        group = bisect_right(self._starts, i) - 1
        with self._lock:
            if self._held[0] != group:
                file, row_group = self._groups[group]
                with as_unreadable("row group", self.id(i)):
                    table = self._files[file].read_row_group(row_group, columns=[self._column])
                self._held = (group, table.column(0).combine_chunks())
            row = i - self._starts[group]
            if row >= len(self._held[1]):
                raise UnreadableImage("its row group is damaged: it holds fewer rows than announced")
            cell = self._held[1][row]
        value = cell.as_py()
        if isinstance(value, dict):
            value = value.get("bytes")
        if value is None:
            raise UnreadableImage("the table has no image in this row")
        return decode(value, self.id(i)) if isinstance(value, bytes) else self._from_lists(value, cell.type, self.id(i))

    def _from_lists(self, value: list[Any], kind: Any, id: str) -> Image:
        while hasattr(kind, "value_type"):
            kind = kind.value_type
        try:
            pixels = np.array(value, dtype=ARROW_TYPES.get(str(kind), str(kind)))  # its own names need pandas
        except (ValueError, TypeError, NotImplementedError) as error:
            raise UnreadableImage(f"the nested list is not an array ({error})") from error
        if pixels.ndim not in (2, 3) or pixels.dtype.kind not in "buif" or 0 in pixels.shape:
            raise UnreadableImage(f"shape {pixels.shape} of {pixels.dtype} is not an image (H, W) or (H, W, C)")
        return make_image(id, pixels)


def _key(id: str) -> str:
    """The key of an image in a shard: no dot, because what follows the first one is the extension."""
    stem, suffix = os.path.splitext(safe_name(id))
    return (stem if suffix.lower() in EXTENSIONS else stem + suffix).replace(".", "_")


class ShardWriter(Writer):
    """Tar shards with the input's names and keys, written in the order of the source, each complete or absent.

    Images that do not come from shards are put into shards of 10,000, with their ids (without extension) as keys.
    """

    def __init__(self, folder: Path, source: ImageSource, size: Size, *, alone: bool = True) -> None:
        super().__init__(folder, source, size, alone=alone)
        self._numbered = source.shard_of(0) is None and not Ids(map(_key, source.ids())).unique
        self._current: tuple[str, tarfile.TarFile] | None = None  # the shard at hand
        self._members: tuple[str, dict[str, str]] = ("", {})  # a shard, and the member of each key in it
        self._open = ExitStack()  # its file
        self._written: set[str] = {path.name for path in folder.glob("*.tar") if is_complete(path)}

    def _place(self, index: int) -> tuple[str, str]:
        place = self.source.shard_of(index)
        if place is not None:
            return place
        key = _key(self.source.id(index))
        return f"aligned-{index // SHARD_IMAGES:05d}.tar", f"{index:08d}-{key}" if self._numbered else key

    def _member(self, index: int) -> str:
        """What image `index` is called in its shard, without extension."""
        shard, key = self._place(index)
        if self._members[0] != shard:
            first, last = index, index + 1  # the images of a shard follow one another
            while first and self._place(first - 1)[0] == shard:
                first -= 1
            while last < len(self.source) and self._place(last)[0] == shard:
                last += 1
            keys = [self._place(i)[1] for i in range(first, last)]
            self._members = shard, dict(zip(keys, OutputNames(keys).stems, strict=True))
        return self._members[1][key]

    def _encode(self, index: int, pixels: np.ndarray, mask: np.ndarray | None) -> tuple[bytes, str]:
        return encode(pixels, mask)

    def _put(self, index: int, encoded: tuple[bytes, str]) -> None:
        data, extension = encoded
        shard, _ = self._place(index)
        if self._current is None or shard != self._current[0]:
            if shard in self._written:
                raise CongealError(
                    f"{self.folder / shard} is already complete: shards are written in the order of the source"
                )
            self.end_shard()
            file = self._open.enter_context(replacing(self.folder / shard))
            self._current = shard, self._open.enter_context(tarfile.TarFile(fileobj=file, mode="w"))
        member, tar = tarfile.TarInfo(self._member(index) + extension), self._current[1]
        member.size = len(data)
        with writing(self.folder / shard):
            tar.addfile(member, io.BytesIO(data))
        tar.members.clear()  # type: ignore[attr-defined]  # it would keep every header

    def done(self, index: int) -> bool:
        return self._place(index)[0] in self._written

    def next_shard(self, rows: np.ndarray, at: int) -> int:
        """The first position from `at` on at which another shard begins among these rows."""
        while 0 < at < len(rows) and self._place(int(rows[at]))[0] == self._place(int(rows[at - 1]))[0]:
            at += 1
        return at

    def end_shard(self) -> None:
        """Complete the shard at hand."""
        if self._current is not None:
            self._open.close()
            self._written.add(self._current[0])
            self._current = None

    def close(self) -> None:
        self.end_shard()
        places = map(self._place, range(len(self.source)))
        if any(safe_name(key) != key for _, key in places):
            members = ((i, f"{self._place(i)[0]}/{self._member(i)}") for i in range(len(self.source)))
            write_names(self.folder, {self.source.id(i): member for i, member in members})
