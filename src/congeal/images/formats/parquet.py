"""Parquet tables with a column of encoded images (bytes, or a struct with 'bytes' and 'path') or of nested lists."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from congeal.errors import CongealError, require
from congeal.images.formats.decode import as_unopenable, as_unreadable, decode, make_image
from congeal.images.sources.base import Image, ImageSource, UnreadableImage, unique_ids
from congeal.transforms.ids import Ids

_IMAGE_NAMES = ("image", "img", "images", "picture", "bytes", "png", "jpg", "jpeg", "pixels")
_ID_NAMES = ("id", "key", "name", "file_name", "filename", "path", "__key__")
_NUMPY_NAMES = {"halffloat": "float16", "float": "float32", "double": "float64"}  # where Arrow says it differently


class ParquetSource(ImageSource):
    """One image per row. A row group is read when one of its images is asked for, and the last one is kept."""

    def __init__(self, paths: Sequence[Path], *, name: str) -> None:
        self._parquet = require("pyarrow.parquet", "parquet")
        self._types = require("pyarrow.types", "parquet")
        self.name, self.paths, self._lock = name, list(paths), Lock()
        self._files = [self._open(path) for path in self.paths]
        self._groups = [(f, g) for f, file in enumerate(self._files) for g in range(file.metadata.num_row_groups)]
        counts = [self._files[f].metadata.row_group(g).num_rows for f, g in self._groups]
        self._starts = [0, *accumulate(counts)]
        for path, file in zip(self.paths, self._files, strict=True):
            if file.schema_arrow.names != self._files[0].schema_arrow.names:
                raise CongealError(f"{path} has other columns than {self.paths[0]}: open them one at a time")
        self._column = self._image_column(self._files[0].schema_arrow)
        self._ids = self._read_ids()
        self._held: tuple[int, Any] = (-1, None)

    def _open(self, path: Path) -> Any:
        with as_unopenable(path, "Parquet file"):
            return self._parquet.ParquetFile(path)

    def _image_column(self, schema: Any) -> str:
        usable = [field.name for field in schema if self._holds_images(field.type)]
        for name in (*_IMAGE_NAMES, *usable):
            if name in usable:
                return str(name)
        raise CongealError(
            f"{self.name} has no column of images (bytes or nested lists); it has {', '.join(schema.names)}"
        )

    def _holds_images(self, kind: Any) -> bool:
        types = self._types
        if types.is_struct(kind):
            return any(field.name == "bytes" for field in kind)
        nested = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        return types.is_binary(kind) or types.is_large_binary(kind) or bool(nested)

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

    def id(self, i: int) -> str:
        return self._ids[i]

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
            pixels = np.array(value, dtype=_NUMPY_NAMES.get(str(kind), str(kind)))
        except (ValueError, TypeError, NotImplementedError) as error:
            raise UnreadableImage(f"the nested list is not an array ({error})") from error
        if pixels.ndim not in (2, 3) or pixels.dtype.kind not in "buif" or 0 in pixels.shape:
            raise UnreadableImage(f"shape {pixels.shape} of {pixels.dtype} is not an image (H, W) or (H, W, C)")
        return make_image(id, pixels)


def open_parquet(paths: Sequence[Path], *, name: str) -> ParquetSource:
    """One or several .parquet files with the same columns."""
    return ParquetSource(paths, name=name)
