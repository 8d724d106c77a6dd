"""`Transforms` as files: CSV and JSON for people, NPZ and Parquet for millions of rows.

All are written and read a few thousand rows at a time: as Python objects a million rows would take gigabytes.
A pile that was sorted into groups has the columns `group` and `margin` at the end, and `group_name` where groups have
names; no other set has them.
"""

from __future__ import annotations

import csv
import io
import json
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from congeal.errors import CongealError, require
from congeal.files import DAMAGED, CsvWriter, replacing
from congeal.rows import row_slices
from congeal.transforms.ids import Ids
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

# What readers raise, depending on where a file is damaged.
DAMAGE = (*DAMAGED, csv.Error)
HEADERS = (COLUMNS, (*COLUMNS, *GROUP_COLUMNS), (*COLUMNS, *GROUP_COLUMNS, GROUP_NAME))
_ROWS_AT_ONCE = 10_000
_ROWS_OF_A_GROUP = 50_000  # of Parquet, which compresses and reads by groups


def save(transforms: Transforms, path: str | os.PathLike[str]) -> None:
    """Write .csv, .json, .npz or .parquet, all or nothing."""
    target = Path(path)
    write = _format(target, _WRITERS)
    with _writing(target) as file:
        write(transforms, file)


@contextmanager
def _writing(target: Path) -> Iterator[IO[bytes]]:
    """A file that appears when all of it is there; what goes wrong becomes one sentence."""
    try:
        with replacing(target) as file:
            yield file
    except OSError as error:
        raise CongealError(f"cannot write '{target}': {error.strerror or error}") from error
    except UnicodeEncodeError as error:
        raise CongealError(f"cannot write '{target}': an id is not UTF-8, which only .csv and .npz keep") from error


def load(path: str | os.PathLike[str], step: int = 1) -> Transforms:
    """Read what `save` wrote, or every step-th row of it."""
    source = Path(path)
    read = _format(source, _READERS)
    with _reading(source):
        return read(source, step)


@contextmanager
def _reading(source: Path) -> Iterator[None]:
    """Whatever is wrong with the file becomes one sentence."""
    try:
        yield
    except FileNotFoundError as error:
        raise CongealError(f"there is no transforms file '{source}'") from error
    except CongealError as error:
        raise CongealError(f"cannot use '{source}' as transforms: {error}") from error
    except DAMAGE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CongealError(f"'{source}' is not a transforms file written by congeal: {reason}") from error


def load_matrices(path: str | os.PathLike[str]) -> NDArray[np.float64]:
    """Only the matrices (N,3,3) of an .npz file; where all known ones are equal, one of them seen N times."""
    with zipfile.ZipFile(path) as archive:
        one, rows = None, 0
        for part in _read_member(archive, "matrices", 1):
            known = part[np.isfinite(part).all(axis=(1, 2))]
            rows += len(part)
            one = known[0].copy() if one is None and len(known) else one
            if one is not None and not (known == one).all():
                return _collect(_read_member(archive, "matrices", 1))
    return np.broadcast_to(np.eye(3) if one is None else one, (rows, 3, 3))


def load_numbers(path: str | os.PathLike[str], name: str) -> NDArray[np.float64] | None:
    """One column (N,) of an .npz file, a name of `NUMBERS`; None if the file has none."""
    with _reading(Path(path)), zipfile.ZipFile(path) as archive:
        return _collect(_read_member(archive, name, 1)) if _has(archive, name) else None


def load_ids(path: str | os.PathLike[str], rows: Sequence[int]) -> list[str]:
    """The ids of a few rows of an .npz file, without those of all others."""
    return [str(name) for name in load_some(path, "ids", rows)]


def load_some(path: str | os.PathLike[str], name: str, rows: Sequence[int]) -> list[Any]:
    """A few rows of one array of an .npz file (ids, status, matrices, … ), without holding the others."""
    found: dict[int, Any] = {}
    first = 0
    with _reading(Path(path)), zipfile.ZipFile(path) as archive:
        for part in _read_member(archive, name, 1):
            found |= {row: part[row - first].copy() for row in rows if first <= row < first + len(part)}
            first += len(part)
    return [found[row] for row in rows]


def _parts(t: Transforms) -> Iterator[Transforms]:
    return (t[part] for part in row_slices(len(t), _ROWS_AT_ONCE))


def _columns(t: Transforms) -> dict[str, list[Any]]:
    """The table of the CSV contract, column by column; None stands for an empty cell."""
    flat = t.matrices.reshape(-1, 9)
    numbers = {name: getattr(t, name) for name in NUMBERS}
    numbers |= {name: flat[:, k] for k, name in enumerate(MATRIX_COLUMNS)}
    cells = {name: [None if v != v else v for v in column.tolist()] for name, column in numbers.items()}
    cells["id"], cells["status"] = list(t.ids), t.status.tolist()
    cells["source_height"], cells["source_width"] = t.source_sizes[:, 0].tolist(), t.source_sizes[:, 1].tolist()
    if t.group is not None and t.margin is not None:
        cells["group"] = [None if v == NO_GROUP else v for v in t.group.tolist()]
        cells["margin"] = [None if v != v else v for v in t.margin.tolist()]
        cells[GROUP_NAME] = [name or None for name in t.named_groups()]
    return {name: cells[name] for name in names_of(t)}


def names_of(t: Transforms) -> tuple[str, ...]:
    """The columns of its table."""
    named = () if t.group_names is None else (GROUP_NAME,)
    return COLUMNS if t.group is None else (*COLUMNS, *GROUP_COLUMNS, *named)


def _from_columns(columns: dict[str, list[Any]]) -> dict[str, Any]:
    """Constructor arguments from that table; empty cells may be None or ''."""

    def floats(name: str) -> NDArray[np.float64]:
        return np.array([np.nan if v is None or v == "" else float(v) for v in columns[name]], dtype=np.float64)

    def ints(name: str) -> list[int]:
        return [int(v) for v in columns[name]]

    return {
        "ids": columns["id"],
        "matrices": np.stack([floats(name) for name in MATRIX_COLUMNS], axis=1).reshape(-1, 3, 3),
        "source_sizes": np.array([ints("source_height"), ints("source_width")], dtype=np.int32).T,
        "status": np.array(columns["status"], dtype=np.str_),
        **{name: floats(name) for name in NUMBERS},
        **({"group": _group_codes(floats("group")), "margin": floats("margin")} if "group" in columns else {}),
        **({GROUP_NAME: _words(columns[GROUP_NAME])} if GROUP_NAME in columns else {}),
    }


def _words(cells: Sequence[str | None]) -> NDArray[Any]:
    return np.array([cell or "" for cell in cells], dtype=object)


def _names(group: NDArray[np.int32], words: NDArray[Any]) -> tuple[str, ...]:
    """What groups are called, from the group and the name of every row; one without images has its number."""
    known = dict(zip(group.tolist(), words.tolist(), strict=True))
    return tuple(str(known.get(k) or k) for k in range(int(group.max(initial=NO_GROUP)) + 1))


def _group_codes(numbers: NDArray[np.float64]) -> NDArray[np.int32]:
    """Groups as they are kept, from cells that are empty for none."""
    if not np.array_equal(np.nan_to_num(numbers), np.floor(np.nan_to_num(numbers))):
        raise ValueError("a group is a whole number, or nothing")
    return np.where(np.isnan(numbers), NO_GROUP, np.nan_to_num(numbers)).astype(np.int32)


def _joined(parts: list[dict[str, Any]], aligned_size: Any = None) -> Transforms:
    """Constructor arguments of successive rows → one `Transforms`."""
    ids = Ids(chain.from_iterable(part.pop("ids") for part in parts))
    columns: dict[str, Any] = {name: np.concatenate([part.pop(name) for part in parts]) for name in tuple(parts[0])}
    if GROUP_NAME in columns:
        columns["group_names"] = _names(columns["group"], columns.pop(GROUP_NAME))
    return Transforms(ids, aligned_size=aligned_size, copy=False, **columns)


# ---- CSV and JSON


def _write_csv(t: Transforms, file: IO[bytes]) -> None:
    writer = CsvWriter(file)
    writer.writerow(names_of(t))
    _write_lines(t, writer)


def _write_lines(t: Transforms, writer: CsvWriter) -> None:
    for part in _parts(t):
        writer.writerows(zip(*_columns(part).values(), strict=True))


def csv_lines(t: Transforms) -> bytes:
    """The lines of some rows, without the header: what `save` would write."""
    lines = io.BytesIO()
    _write_lines(t, CsvWriter(lines))
    return lines.getvalue()


def save_lines(t: Transforms, lines: Iterable[bytes], path: str | os.PathLike[str]) -> None:
    """The .csv file that `save` would write, from the lines of all its rows."""
    with _writing(Path(path)) as file:
        CsvWriter(file).writerow(names_of(t))
        file.writelines(lines)


def _read_csv(path: Path, step: int) -> Transforms:
    with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
        rows = csv.reader(file, strict=True)
        header = tuple(next(rows, []))
        if header not in HEADERS:
            raise ValueError(f"the first line must be {','.join(COLUMNS)}")
        numbered = ((number, row) for number, row in enumerate(rows, start=1) if row)
        chosen = islice(numbered, 0, None, step)
        parts = [_from_columns({name: [] for name in header})]
        while part := list(islice(chosen, _ROWS_AT_ONCE)):
            for number, row in part:
                if len(row) != len(header):
                    raise ValueError(f"row {number} has {len(row)} cells instead of {len(header)}")
            parts.append(_from_columns({name: [row[k] for _, row in part] for k, name in enumerate(header)}))
            parts[-1]["ids"] = Ids(parts[-1]["ids"])
    return _joined(parts)


def _write_json(t: Transforms, file: IO[bytes]) -> None:
    head = json.dumps({"format": "congeal-transforms", "aligned_size": t.aligned_size})
    file.write(f'{head[:-1]}, "images": ['.encode())
    separator = "\n"
    for part in _parts(t):
        columns = _columns(part)
        for cells in zip(*columns.values(), strict=True):
            row = dict(zip(columns, cells, strict=True))
            numbers = [row.pop(name) for name in MATRIX_COLUMNS]
            row["matrix"] = None if None in numbers else [numbers[0:3], numbers[3:6], numbers[6:9]]
            file.write((separator + json.dumps(row)).encode())
            separator = ",\n"
    file.write(b"\n]}\n")


def _read_json(path: Path, step: int) -> Transforms:
    document = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(document, dict) or document.get("format") != "congeal-transforms":
        raise ValueError('it lacks "format": "congeal-transforms"')
    images = document["images"][::step]
    kept = [name for name in COLUMNS if name not in MATRIX_COLUMNS]
    columns: dict[str, list[Any]] = {name: [row[name] for row in images] for name in kept}
    if images and "group" in images[0]:
        named = (GROUP_NAME,) if GROUP_NAME in images[0] else ()
        columns |= {name: [row[name] for row in images] for name in (*GROUP_COLUMNS, *named)}
    matrices = np.array([np.full((3, 3), np.nan) if row["matrix"] is None else row["matrix"] for row in images])
    flat = matrices.astype(np.float64).reshape(len(images), 9)
    columns |= {name: flat[:, k].tolist() for k, name in enumerate(MATRIX_COLUMNS)}
    return _joined([_from_columns(columns)], document["aligned_size"])


# ---- NPZ: what `np.load` reads, without ever holding a whole column of text


def _write_npz(t: Transforms, file: IO[bytes]) -> None:
    text = np.dtype((np.str_, max(1, t.ids.longest)))
    word = np.dtype((np.str_, max(map(len, STATUSES))))
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        size = np.array(t.aligned_size or (), dtype=np.int64)
        _write_member(archive, "aligned_size", size.shape, size.dtype, [size])
        _write_member(archive, "ids", (len(t),), text, (np.array(p.ids, dtype=text) for p in _parts(t)))
        _write_member(archive, "status", (len(t),), word, (p.status for p in _parts(t)))
        for name in ("matrices", "source_sizes", *NUMBERS, *(GROUP_COLUMNS if t.group is not None else ())):
            array: NDArray[Any] = getattr(t, name)
            parts = (array[part] for part in row_slices(len(t), _ROWS_AT_ONCE))
            _write_member(archive, name, array.shape, array.dtype, parts)
        if t.group_names is not None:
            names = np.array(t.group_names or [""], dtype=np.str_)[: len(t.group_names)]
            _write_member(archive, "group_names", names.shape, names.dtype, [names])


def _write_member(archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], dtype: np.dtype, parts: Any) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array_header_1_0(member, header)
        for part in parts:
            member.write(np.ascontiguousarray(part, dtype=dtype).tobytes())


def _read_npz(path: Path, step: int) -> Transforms:
    with zipfile.ZipFile(path) as archive:
        ids = Ids(chain.from_iterable(part.tolist() for part in _read_member(archive, "ids", step)))
        size = [int(v) for part in _read_member(archive, "aligned_size", 1) for v in part]
        status = np.concatenate([_code(part) for part in _read_member(archive, "status", step)])
        known = ("matrices", "source_sizes", *NUMBERS, *GROUP_COLUMNS)
        names = [name for name in known if name not in GROUP_COLUMNS or _has(archive, name)]
        columns: dict[str, Any] = {name: _collect(_read_member(archive, name, step)) for name in names}
        if _has(archive, "group_names"):
            columns["group_names"] = _collect(_read_member(archive, "group_names", 1)).tolist()
    return Transforms(ids, aligned_size=tuple(size) or None, status=status, copy=False, **columns)  # type: ignore[arg-type]


def _has(archive: zipfile.ZipFile, name: str) -> bool:
    return f"{name}.npy" in archive.namelist()


def _read_member(archive: zipfile.ZipFile, name: str, step: int) -> Iterator[NDArray[Any]]:
    """Every step-th row of an array in the archive, some rows at a time; the first part may be empty."""
    with archive.open(f"{name}.npy") as member:
        version = np.lib.format.read_magic(member)
        read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in read_header:
            raise ValueError(f"its array '{name}' has the unknown format {version}")
        shape, fortran, dtype = read_header[version](member)
        if dtype.hasobject or fortran or not shape:
            raise ValueError(f"its array '{name}' is not one of plain rows")
        yield np.empty((0, *shape[1:]), dtype)
        bytes_of_row = dtype.itemsize * int(np.prod(shape[1:]))
        for start in range(0, shape[0], _ROWS_AT_ONCE):
            rows = min(_ROWS_AT_ONCE, shape[0] - start)
            data = member.read(rows * bytes_of_row)
            part = np.frombuffer(data, dtype, count=rows * int(np.prod(shape[1:]))).reshape(rows, *shape[1:])
            yield part[-start % step :: step]


def _collect(parts: Iterator[NDArray[Any]]) -> NDArray[Any]:
    """Parts of an array into one that grows: holding the parts and the whole would take twice the memory."""
    whole, done = next(parts).copy(), 0
    for part in parts:
        if done + len(part) > len(whole):
            whole.resize((max(done + len(part), int(1.1 * len(whole))), *whole.shape[1:]), refcheck=False)
        whole[done : done + len(part)] = part
        done += len(part)
    whole.resize((done, *whole.shape[1:]), refcheck=False)
    return whole


def _code(words: NDArray[np.str_]) -> NDArray[np.uint8]:
    codes = np.full(len(words), len(STATUSES), dtype=np.uint8)
    for code, word in enumerate(STATUSES):
        codes[words == word] = code
    return codes


# ---- Parquet


def _write_parquet(t: Transforms, file: IO[bytes]) -> None:
    arrow, parquet = require("pyarrow", "parquet"), require("pyarrow.parquet", "parquet")
    kinds = {
        "id": arrow.string(),
        "status": arrow.string(),
        "source_width": arrow.int64(),
        "source_height": arrow.int64(),
        "group": arrow.int64(),
        GROUP_NAME: arrow.string(),
    }
    schema = arrow.schema([(name, kinds.get(name, arrow.float64())) for name in names_of(t)])
    schema = schema.with_metadata({"congeal": json.dumps({"aligned_size": t.aligned_size})})
    with parquet.ParquetWriter(file, schema) as writer:
        for start in range(0, max(1, len(t)), _ROWS_OF_A_GROUP):
            part = t[start : start + _ROWS_OF_A_GROUP]
            flat = part.matrices.reshape(-1, 9)
            cells: dict[str, Any] = {"id": list(part.ids), "status": part.status.tolist()}
            cells |= {"source_height": part.source_sizes[:, 0], "source_width": part.source_sizes[:, 1]}
            cells |= {name: getattr(part, name) for name in NUMBERS}
            cells |= {name: np.ascontiguousarray(flat[:, k]) for k, name in enumerate(MATRIX_COLUMNS)}
            if part.group is not None:
                cells["group"] = [None if v == NO_GROUP else v for v in part.group.tolist()]
                cells["margin"] = part.margin
                cells[GROUP_NAME] = [name or None for name in part.named_groups()]
            # from_pandas: NaN becomes an empty cell
            arrays = [arrow.array(cells[field.name], type=field.type, from_pandas=True) for field in schema]
            writer.write_table(arrow.Table.from_arrays(arrays, schema=schema))


def _read_parquet(path: Path, step: int) -> Transforms:
    with require("pyarrow.parquet", "parquet").ParquetFile(path) as file:
        schema = file.schema_arrow
        if tuple(schema.names) not in HEADERS or b"congeal" not in (schema.metadata or {}):
            raise ValueError(f"its columns must be {','.join(COLUMNS)}")
        aligned_size = json.loads(schema.metadata[b"congeal"])["aligned_size"]
        parts, done = [_from_columns({name: [] for name in schema.names})], 0
        parts[0]["status"] = np.zeros(0, dtype=np.uint8)
        for batch in file.iter_batches(_ROWS_OF_A_GROUP):
            parts.append(_from_batch(batch, slice(-done % step, None, step)))
            done += batch.num_rows
    return _joined(parts, aligned_size)


def _from_batch(batch: Any, rows: slice) -> dict[str, Any]:
    """Constructor arguments from some rows of a Parquet table."""

    def numbers(name: str) -> NDArray[np.float64]:
        return np.asarray(batch.column(name).to_numpy(zero_copy_only=False), dtype=np.float64)[rows]

    grouped, named = ("group" in batch.schema.names, GROUP_NAME in batch.schema.names)
    ids = batch.column("id").to_pylist()[rows]
    sizes = [batch.column(name).to_numpy(zero_copy_only=False)[rows] for name in ("source_height", "source_width")]
    return {
        "ids": Ids(ids),
        "matrices": np.stack([numbers(name) for name in MATRIX_COLUMNS], axis=1).reshape(-1, 3, 3),
        "source_sizes": np.stack(sizes, axis=1).astype(np.int32),
        "status": _code(np.array(batch.column("status").to_pylist()[rows], dtype=np.str_)),
        **{name: numbers(name) for name in NUMBERS},
        **({"group": _group_codes(numbers("group")), "margin": numbers("margin")} if grouped else {}),
        **({GROUP_NAME: _words(batch.column(GROUP_NAME).to_pylist()[rows])} if named else {}),
    }


_READERS: dict[str, Callable[[Path, int], Transforms]] = {
    ".csv": _read_csv,
    ".json": _read_json,
    ".npz": _read_npz,
    ".parquet": _read_parquet,
}
_WRITERS: dict[str, Callable[[Transforms, IO[bytes]], None]] = {
    ".csv": _write_csv,
    ".json": _write_json,
    ".npz": _write_npz,
    ".parquet": _write_parquet,
}
Handler = TypeVar("Handler")


def _format(path: Path, handlers: dict[str, Handler]) -> Handler:
    try:
        return handlers[path.suffix.lower()]
    except KeyError:
        raise CongealError(f"transforms are stored as {', '.join(handlers)}, not as '{path.name}'") from None
