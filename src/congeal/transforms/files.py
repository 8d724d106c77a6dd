"""`Transforms` as files: CSV and JSON for people, NPZ and Parquet for millions of rows.

All are written and read a few thousand rows at a time: as Python objects a million rows would take gigabytes.
A pile that was sorted into groups has the columns `group` and `margin` at the end, and `group_name` where groups have
names; no other set has them.
"""

from __future__ import annotations

import csv
import json
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from congeal.errors import CongealError, require
from congeal.files import DAMAGED, CsvWriter, replacing
from congeal.rows import row_slices
from congeal.transforms.ids import ROWS_AT_ONCE, Ids
from congeal.transforms.transforms import (
    COLUMNS,
    GROUP_COLUMNS,
    GROUP_NAME,
    MATRIX_COLUMNS,
    NO_GROUP,
    NUMBERS,
    STATUSES,
    Transforms,
)

Table = Mapping[str, Sequence[Any] | NDArray[Any]]
"""Some rows, column by column, under the names of the CSV contract."""
SIZE_COLUMNS = ("source_height", "source_width")
HEADERS = (COLUMNS, (*COLUMNS, *GROUP_COLUMNS), (*COLUMNS, *GROUP_COLUMNS, GROUP_NAME))


def save(transforms: Transforms, path: str | os.PathLike[str]) -> None:
    """Write .csv, .json, .npz or .parquet, all or nothing."""
    target = Path(path)
    write = _format(target)[1]
    try:
        with replacing(target) as file:
            write(transforms, file)
    except OSError as error:
        raise CongealError(f"cannot write '{target}': {error.strerror or error}") from error
    except UnicodeEncodeError as error:
        raise CongealError(f"cannot write '{target}': an id is not UTF-8, which only .csv and .npz keep") from error


def load_transforms(path: str | os.PathLike[str]) -> Transforms:
    """Read what `save` wrote."""
    source = Path(path)
    read = _format(source)[0]
    with _reading(source):
        return read(source)


@contextmanager
def _reading(source: Path) -> Iterator[None]:
    """Whatever is wrong with the file becomes one sentence."""
    try:
        yield
    except FileNotFoundError as error:
        raise CongealError(f"there is no transforms file '{source}'") from error
    except CongealError as error:
        raise CongealError(f"cannot use '{source}' as transforms: {error}") from error
    except (*DAMAGED, csv.Error) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CongealError(f"'{source}' is not a transforms file written by congeal: {reason}") from error


def load_array(path: str | os.PathLike[str], name: str) -> NDArray[Any]:
    """One array of an .npz file: matrices, score, …"""
    with _reading(Path(path)), np.load(path) as table:
        return table[name]


def load_some(path: str | os.PathLike[str], name: str, rows: Sequence[int]) -> list[Any]:
    """A few rows of one array of an .npz file."""
    return list(load_array(path, name)[list(rows)])


# ---- the table of the CSV contract


def _parts(t: Transforms) -> Iterator[Transforms]:
    return (t[part] for part in row_slices(len(t), ROWS_AT_ONCE))


def _table(t: Transforms) -> dict[str, list[Any]]:
    """The columns in their order; None stands for an empty cell."""

    def cells(values: NDArray[np.float64]) -> list[float | None]:
        return [None if v != v else v for v in values.tolist()]

    table: dict[str, list[Any]] = {"id": list(t.ids), "status": t.status.tolist()}
    table |= {name: cells(getattr(t, name)) for name in NUMBERS}
    table |= {"source_width": t.source_sizes[:, 1].tolist(), "source_height": t.source_sizes[:, 0].tolist()}
    table |= {name: cells(t.matrices[:, k // 3, k % 3]) for k, name in enumerate(MATRIX_COLUMNS)}
    if t.group is not None and t.margin is not None:
        table |= {"group": [None if v == NO_GROUP else v for v in t.group.tolist()], "margin": cells(t.margin)}
    if t.group_names is not None:
        table[GROUP_NAME] = [name or None for name in t.named_groups()]
    return table


def _columns(table: Table) -> dict[str, NDArray[Any] | Ids]:
    """Arguments of `Transforms` from that table; empty cells may be None, NaN or ''."""

    def floats(name: str) -> NDArray[np.float64]:
        cells = table[name]
        if isinstance(cells, np.ndarray):
            return cells.astype(np.float64)
        return np.array([np.nan if v is None or v == "" else float(v) for v in cells], dtype=np.float64)

    columns: dict[str, NDArray[Any] | Ids] = {
        "ids": Ids(table["id"]),
        "matrices": np.stack([floats(name) for name in MATRIX_COLUMNS], axis=1).reshape(-1, 3, 3),
        "source_sizes": np.array([[int(v) for v in table[name]] for name in SIZE_COLUMNS], dtype=np.int32).T,
        "status": np.array(table["status"], dtype=np.str_),
        **{name: floats(name) for name in NUMBERS},
    }
    if "group" in table:
        groups = np.nan_to_num(floats("group"), nan=NO_GROUP)
        if not np.array_equal(groups, np.floor(groups)):
            raise ValueError("a group is a whole number, or nothing")
        columns |= {"group": groups.astype(np.int32), "margin": floats("margin")}
    if GROUP_NAME in table:
        columns[GROUP_NAME] = np.array([name or "" for name in table[GROUP_NAME]], dtype=object)
    return columns


def _joined(header: Iterable[str], tables: Iterable[Table], aligned_size: Any = None) -> Transforms:
    """Tables of successive rows → one `Transforms`."""
    parts = [_columns({name: [] for name in header}), *map(_columns, tables)]
    ids = Ids(chain.from_iterable(part.pop("ids") for part in parts))
    columns: dict[str, Any] = {name: np.concatenate([part.pop(name) for part in parts]) for name in tuple(parts[0])}
    if GROUP_NAME in columns:  # a group without images is called by its number
        known = dict(zip(columns["group"].tolist(), columns.pop(GROUP_NAME).tolist(), strict=True))
        count = int(columns["group"].max(initial=NO_GROUP)) + 1
        columns["group_names"] = [str(known.get(k) or k) for k in range(count)]
    return Transforms(ids, aligned_size=aligned_size, copy=False, **columns)


# ---- CSV and JSON


def _write_csv(t: Transforms, file: IO[bytes]) -> None:
    writer = CsvWriter(file)
    writer.writerow(_table(t[:0]))
    for part in _parts(t):
        writer.writerows(zip(*_table(part).values(), strict=True))


def _read_csv(path: Path) -> Transforms:
    with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
        rows = csv.reader(file, strict=True)
        header = tuple(next(rows, []))
        if header not in HEADERS:
            raise ValueError(f"the first line must be {','.join(COLUMNS)}")
        return _joined(header, _csv_tables(header, rows))


def _csv_tables(header: Sequence[str], rows: Iterable[list[str]]) -> Iterator[Table]:
    numbered = ((number, row) for number, row in enumerate(rows, start=1) if row)
    while part := list(islice(numbered, ROWS_AT_ONCE)):
        for number, row in part:
            if len(row) != len(header):
                raise ValueError(f"row {number} has {len(row)} cells instead of {len(header)}")
        yield dict(zip(header, zip(*(row for _, row in part), strict=True), strict=True))


def _write_json(t: Transforms, file: IO[bytes]) -> None:
    head = json.dumps({"format": "congeal-transforms", "aligned_size": t.aligned_size})
    file.write(f'{head[:-1]}, "images": ['.encode())
    separator = "\n"
    for part in _parts(t):
        table = _table(part)
        for cells in zip(*table.values(), strict=True):
            row = dict(zip(table, cells, strict=True))
            numbers = [row.pop(name) for name in MATRIX_COLUMNS]
            row["matrix"] = None if None in numbers else [numbers[0:3], numbers[3:6], numbers[6:9]]
            file.write((separator + json.dumps(row)).encode())
            separator = ",\n"
    file.write(b"\n]}\n")


def _read_json(path: Path) -> Transforms:
    document = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(document, dict) or document.get("format") != "congeal-transforms":
        raise ValueError('it lacks "format": "congeal-transforms"')
    images = document["images"]
    more = [name for name in (*GROUP_COLUMNS, GROUP_NAME) if images and name in images[0]]
    names = [*(name for name in COLUMNS if name not in MATRIX_COLUMNS), *more]
    table: dict[str, Any] = {name: [row[name] for row in images] for name in names}
    matrices = np.array([np.full((3, 3), np.nan) if row["matrix"] is None else row["matrix"] for row in images])
    table |= dict(zip(MATRIX_COLUMNS, matrices.astype(np.float64).reshape(len(images), 9).T, strict=True))
    return _joined(table, [table], document["aligned_size"])


# ---- NPZ: what `np.load` reads


def _write_npz(t: Transforms, file: IO[bytes]) -> None:
    text = np.dtype((np.str_, max(1, max(map(len, t.ids), default=0))))
    word = np.dtype((np.str_, max(map(len, STATUSES))))
    # As `np.savez_compressed`, which takes several times as long to make files little smaller, and some rows at a time.
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:

        def put(name: str, shape: tuple[int, ...], dtype: np.dtype, parts: Iterable[ArrayLike]) -> None:
            header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array_header_1_0(member, header)
                for part in parts:
                    member.write(np.ascontiguousarray(part, dtype=dtype).tobytes())

        put("ids", (len(t),), text, (np.array(part.ids, dtype=text) for part in _parts(t)))
        put("status", (len(t),), word, (part.status for part in _parts(t)))
        for name in ("matrices", "source_sizes", *NUMBERS, *(() if t.group is None else GROUP_COLUMNS)):
            array: NDArray[Any] = getattr(t, name)
            put(name, array.shape, array.dtype, (array[part] for part in row_slices(len(t), ROWS_AT_ONCE)))
        size = np.array(t.aligned_size or (), dtype=np.int64)
        put("aligned_size", size.shape, size.dtype, [size])
        if t.group_names is not None:
            names = np.array(t.group_names or [""], dtype=np.str_)[: len(t.group_names)]
            put("group_names", names.shape, names.dtype, [names])


def _read_npz(path: Path) -> Transforms:
    with np.load(path) as table:
        columns: dict[str, Any] = {name: table[name] for name in table.files}
    for name, column in columns.items():
        if not isinstance(column, np.ndarray) or (name == "ids" and (column.dtype.kind != "U" or column.ndim != 1)):
            raise ValueError(f"its part '{name}' is no array of the right kind")
    ids, size = Ids(columns.pop("ids")), tuple(columns.pop("aligned_size").tolist())
    return Transforms(ids, aligned_size=size or None, copy=False, **columns)


# ---- Parquet


def _write_parquet(t: Transforms, file: IO[bytes]) -> None:
    arrow, parquet = require("pyarrow", "parquet"), require("pyarrow.parquet", "parquet")
    kinds = dict.fromkeys(("id", "status", GROUP_NAME), arrow.string())
    kinds |= dict.fromkeys(("source_width", "source_height", "group"), arrow.int64())
    schema = arrow.schema([(name, kinds.get(name, arrow.float64())) for name in _table(t[:0])])
    schema = schema.with_metadata({"congeal": json.dumps({"aligned_size": t.aligned_size})})
    with parquet.ParquetWriter(file, schema) as writer:
        for part in _parts(t):
            writer.write_table(arrow.table(_table(part), schema=schema))


def _read_parquet(path: Path) -> Transforms:
    with require("pyarrow.parquet", "parquet").ParquetFile(path) as file:
        schema = file.schema_arrow
        if tuple(schema.names) not in HEADERS or b"congeal" not in (schema.metadata or {}):
            raise ValueError(f"its columns must be {','.join(COLUMNS)}")
        aligned_size = json.loads(schema.metadata[b"congeal"])["aligned_size"]
        batches = file.iter_batches(ROWS_AT_ONCE)
        tables = (
            {name: batch.column(name).to_numpy(zero_copy_only=False) for name in schema.names} for batch in batches
        )
        return _joined(schema.names, tables, aligned_size)


# Suffix: what reads a file, and what writes one.
FORMATS: dict[str, tuple[Callable[[Path], Transforms], Callable[[Transforms, IO[bytes]], None]]] = {
    ".csv": (_read_csv, _write_csv),
    ".json": (_read_json, _write_json),
    ".npz": (_read_npz, _write_npz),
    ".parquet": (_read_parquet, _write_parquet),
}


def _format(path: Path) -> tuple[Callable[[Path], Transforms], Callable[[Transforms, IO[bytes]], None]]:
    if path.suffix.lower() not in FORMATS:
        raise CongealError(f"transforms are stored as {', '.join(FORMATS)}, not as '{path.name}'")
    return FORMATS[path.suffix.lower()]
