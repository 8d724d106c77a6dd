"""`Transforms`: what an alignment found, one 3×3 matrix per image.

Convention: every matrix is `aligned_from_source`. It acts on column vectors (x, y, 1) of pixel-centre coordinates
of the original image and gives pixels of the aligned picture. Sizes are (height, width).

Files are chosen by suffix: `.csv`, `.json`, `.npz`, `.parquet`. All four keep every float exactly. CSV has no room for
`aligned_size`, which is None after loading one.
"""

from __future__ import annotations

import csv
import html
import json
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, SupportsIndex, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from congeal.errors import CongealError, require
from congeal.geometry import matrix

STATUSES = ("ok", "blank", "outlier", "failed", "skipped")
MATRIX_COLUMNS = tuple(f"m{row}{column}" for row in range(3) for column in range(3))
COLUMNS = ("id", "status", "score", "out_of_frame", "source_width", "source_height", *MATRIX_COLUMNS)

_ROWS_AT_ONCE = 10_000

Index = SupportsIndex | slice | Sequence[int] | Sequence[bool] | NDArray[Any]


class Transforms:
    """Ids, matrices (N,3,3) `aligned_from_source`, sizes, scores and flags of N images.

    status is one of `STATUSES`; a "skipped" image could not be read and has a NaN matrix, a "failed" one may have.
    score is the likeness to the mean (1 is perfect), out_of_frame the share of the aligned frame that lies outside the
    source image; both are NaN where unknown. The value is not meant to be changed in place.
    """

    def __init__(
        self,
        ids: Iterable[str],
        matrices: ArrayLike,
        source_sizes: ArrayLike,
        aligned_size: tuple[int, int] | None = None,
        status: Iterable[str] | None = None,
        score: ArrayLike | None = None,
        out_of_frame: ArrayLike | None = None,
    ) -> None:
        self.ids: tuple[str, ...] = tuple(str(i) for i in ids)
        n = len(self.ids)
        self.matrices = _shaped(matrices, (n, 3, 3), np.float64, "matrices")
        self.source_sizes = _shaped(source_sizes, (n, 2), np.int64, "source_sizes")
        self.aligned_size = _size(aligned_size)
        missing = ~np.isfinite(self.matrices).all(axis=(1, 2))
        given = np.where(missing, "skipped", "ok") if status is None else list(status)
        self.status = _shaped(given, (n,), np.str_, "status")
        self.score = _shaped(np.full(n, np.nan) if score is None else score, (n,), np.float64, "score")
        unknown = np.full(n, np.nan) if out_of_frame is None else out_of_frame
        self.out_of_frame = _shaped(unknown, (n,), np.float64, "out_of_frame")
        self._check_rows(missing)

    def _check_rows(self, missing: NDArray[np.bool_]) -> None:
        wrong = ~np.isin(self.status, STATUSES)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise CongealError(f"image '{self.ids[row]}' has status '{self.status[row]}'; use {', '.join(STATUSES)}")
        lost = missing & ~np.isin(self.status, ("skipped", "failed"))
        if lost.any():
            row = int(np.flatnonzero(lost)[0])
            raise CongealError(f"image '{self.ids[row]}' has status '{self.status[row]}' but no finite matrix")
        kept = ~missing & (self.status == "skipped")
        if kept.any():
            row = int(np.flatnonzero(kept)[0])
            raise CongealError(f"image '{self.ids[row]}' is skipped and must have a matrix of NaN")
        if (self.source_sizes < 0).any():
            raise CongealError("source_sizes must not be negative")

    # ---- looking at it

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def ok(self) -> NDArray[np.bool_]:
        """(N,) True where the alignment is to be trusted."""
        return self.status == "ok"

    def __eq__(self, other: object) -> bool:
        """Same rows in the same order, float for float; NaN equals NaN."""
        if not isinstance(other, Transforms):
            return NotImplemented
        return (
            self.ids == other.ids
            and self.aligned_size == other.aligned_size
            and np.array_equal(self.status, other.status)
            and np.array_equal(self.source_sizes, other.source_sizes)
            and np.array_equal(self.matrices, other.matrices, equal_nan=True)
            and np.array_equal(self.score, other.score, equal_nan=True)
            and np.array_equal(self.out_of_frame, other.out_of_frame, equal_nan=True)
        )

    __hash__ = None  # type: ignore[assignment]  # holds arrays

    def __repr__(self) -> str:
        return f"Transforms({self._summary()})"

    def _summary(self) -> str:
        names, counts = np.unique(self.status, return_counts=True)
        flags = ", ".join(f"{count} {name}" for name, count in zip(names, counts, strict=True))
        size = "" if self.aligned_size is None else f", aligned to {self.aligned_size[0]}×{self.aligned_size[1]} (h×w)"
        return f"{len(self)} images" + (f": {flags}" if flags else "") + size

    def _repr_html_(self, rows: int = 5) -> str:
        """Notebook view: counts and the first rows."""
        head = "".join(f"<th>{name}</th>" for name in ("id", "status", "score", "out of frame", "aligned_from_source"))
        body = ""
        for i in range(min(rows, len(self))):
            numbers = "<br>".join(" ".join(f"{v:.4g}" for v in line) for line in self.matrices[i])
            cells = (self.ids[i], self.status[i], f"{self.score[i]:.3f}", f"{self.out_of_frame[i]:.3f}")
            body += "<tr>" + "".join(f"<td>{html.escape(str(c))}</td>" for c in cells) + f"<td>{numbers}</td></tr>"
        more = f"<p>… {len(self) - rows} more</p>" if len(self) > rows else ""
        return f"<p><b>Transforms</b> {self._summary()}</p><table><tr>{head}</tr>{body}</table>{more}"

    # ---- choosing rows

    def __getitem__(self, index: Index) -> Transforms:
        """Rows by int (one row), slice, mask or integer array; always a `Transforms`."""
        rows = np.arange(len(self))[index if isinstance(index, slice) else np.asarray(index)]
        return self._take(np.atleast_1d(rows))

    def __iter__(self) -> Iterator[Transforms]:
        return (self[i] for i in range(len(self)))

    def _take(self, rows: NDArray[np.intp]) -> Transforms:
        return Transforms(
            [self.ids[i] for i in rows],
            self.matrices[rows],
            self.source_sizes[rows],
            self.aligned_size,
            self.status[rows],
            self.score[rows],
            self.out_of_frame[rows],
        )

    def matching(self, ids: Iterable[str]) -> Transforms:
        """The rows of these ids, in this order; an id without a row means that the file belongs to another set."""
        row_of = {name: row for row, name in enumerate(self.ids)}
        wanted = [str(i) for i in ids]
        if len(row_of) < len(self):
            raise CongealError("these transforms have ids that occur twice, so they cannot be matched to images by id")
        missing = [name for name in wanted if name not in row_of]
        if missing:
            raise CongealError(
                f"these transforms belong to another set: {len(missing)} of {len(wanted)} images have no row, "
                f"the first is '{missing[0]}'"
            )
        return self._take(np.array([row_of[name] for name in wanted], dtype=np.intp))

    # ---- geometry

    def inverse(self) -> Transforms:
        """The way back, `source_from_aligned`.

        In the result the aligned picture plays the source: `source_sizes` are the aligned size (0 where it is unknown)
        and `aligned_size` is the size of the source images if they all share one.
        """
        sizes = np.unique(self.source_sizes[self.status != "skipped"], axis=0)
        return Transforms(
            self.ids,
            self._inverse_matrices(),
            np.tile(np.array(self.aligned_size or (0, 0)), (len(self), 1)),
            (int(sizes[0, 0]), int(sizes[0, 1])) if len(sizes) == 1 and (sizes > 0).all() else None,
            self.status,
            self.score,
        )

    def _inverse_matrices(self) -> NDArray[np.float64]:
        known = np.isfinite(self.matrices).all(axis=(1, 2))
        back = np.full_like(self.matrices, np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            back[known] = matrix.invert(self.matrices[known])
            singular = known & ((np.linalg.det(self.matrices) == 0) | ~np.isfinite(back).all(axis=(1, 2)))
        if singular.any():
            row = int(np.flatnonzero(singular)[0])
            raise CongealError(f"the transform of image '{self.ids[row]}' has no inverse: its matrix is singular")
        return back

    def compose(self, other: Transforms | ArrayLike) -> Transforms:
        """First self, then other: `further_from_source = further_from_aligned @ aligned_from_source`.

        other maps *this* aligned picture further: a `Transforms` of the aligned images with the same ids (a second run
        on the first one's output), or an array (3,3) or (N,3,3). A row is only as good as the worse of its two parts.
        The out-of-frame share is not known for the result.
        """
        if isinstance(other, Transforms):
            then = other.matching(self.ids)
            status = np.where(self.status == "ok", then.status, self.status)
            status = np.where(then.status == "skipped", "skipped", status)
            further, aligned_size, score = then.matrices, then.aligned_size, then.score
        else:
            further = np.asarray(other, dtype=np.float64)
            if further.shape not in ((3, 3), (len(self), 3, 3)):
                raise CongealError(f"compose needs matrices (3,3) or ({len(self)},3,3), not {further.shape}")
            status, aligned_size, score = self.status, None, self.score
        composed = matrix.compose(np.broadcast_to(further, self.matrices.shape), self.matrices)
        composed = np.where((status == "skipped")[:, None, None], np.nan, composed)
        return Transforms(self.ids, composed, self.source_sizes, aligned_size, status, score)

    def apply_points(self, xy: ArrayLike, inverse: bool = False) -> NDArray[np.float64]:
        """Map points (x, y) from every source image to the aligned picture; with `inverse`, back to every source image.

        xy is (P,2), the same points for all images, or (N,P,2), own points for each. Gives (N,P,2), NaN for images
        without a matrix.
        """
        points = np.asarray(xy, dtype=np.float64)
        if points.ndim not in (2, 3) or points.shape[-1] != 2 or (points.ndim == 3 and len(points) != len(self)):
            raise CongealError(f"points must be (P,2) or ({len(self)},P,2), not {points.shape}")
        points = np.broadcast_to(points, (len(self), *points.shape[-2:]))
        return np.asarray(matrix.map_points(self._inverse_matrices() if inverse else self.matrices, points))

    # ---- files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write .csv, .json, .npz or .parquet (extra `parquet`), by suffix, all or nothing."""
        target = Path(path)
        write = _format(target, _WRITERS)
        try:
            with _atomic(target) as file:
                write(self, file)
        except OSError as error:
            raise CongealError(f"cannot write '{target}': {error.strerror or error}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Transforms:
        """Read what `save` wrote."""
        source = Path(path)
        read = _format(source, _READERS)
        try:
            return cls(**read(source))
        except FileNotFoundError as error:
            raise CongealError(f"there is no transforms file '{source}'") from error
        except CongealError as error:
            raise CongealError(f"cannot use '{source}' as transforms: {error}") from error
        except (OSError, ValueError, KeyError, TypeError, EOFError, csv.Error, zipfile.BadZipFile) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise CongealError(f"'{source}' is not a transforms file written by congeal: {reason}") from error


def _shaped(values: ArrayLike, shape: tuple[int, ...], dtype: Any, name: str) -> NDArray[Any]:
    """An own copy with exactly this shape; an empty list counts as any empty shape."""
    try:
        array = np.array(values).astype(dtype, copy=False)
    except (ValueError, TypeError) as error:
        raise CongealError(f"{name} must be numbers of shape {shape}: {error}") from error
    if array.shape != shape:
        if shape[0] != 0 or array.size != 0:
            raise CongealError(f"{name} must have shape {shape} to fit the ids, not {array.shape}")
        array = array.reshape(shape)
    return array


def _size(value: Sequence[int] | None) -> tuple[int, int] | None:
    if value is None:
        return None
    size = tuple(int(v) for v in value)
    if len(size) != 2 or min(size) < 1:
        raise CongealError(f"aligned_size must be (height, width), not {value}")
    return size[0], size[1]


@contextmanager
def _atomic(target: Path) -> Iterator[IO[bytes]]:
    """A file next to the target that takes its place only when everything was written."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _parts(t: Transforms) -> Iterator[Transforms]:
    """A few thousand rows at a time: as Python objects a million rows would take gigabytes."""
    return (t[start : start + _ROWS_AT_ONCE] for start in range(0, len(t), _ROWS_AT_ONCE))


def _columns(t: Transforms) -> dict[str, list[Any]]:
    """The table of the CSV contract, column by column; None stands for an empty cell."""
    flat = t.matrices.reshape(-1, 9)
    numbers = {"score": t.score, "out_of_frame": t.out_of_frame}
    numbers |= {name: flat[:, k] for k, name in enumerate(MATRIX_COLUMNS)}
    cells = {name: [None if v != v else v for v in column.tolist()] for name, column in numbers.items()}
    cells["id"], cells["status"] = list(t.ids), t.status.tolist()
    cells["source_height"], cells["source_width"] = t.source_sizes[:, 0].tolist(), t.source_sizes[:, 1].tolist()
    return {name: cells[name] for name in COLUMNS}


def _from_columns(columns: dict[str, list[Any]]) -> dict[str, Any]:
    """Constructor arguments from that table; empty cells may be None or ''."""

    def floats(name: str) -> NDArray[np.float64]:
        return np.array([np.nan if v is None or v == "" else float(v) for v in columns[name]], dtype=np.float64)

    def ints(name: str) -> list[int]:
        return [int(v) for v in columns[name]]

    return {
        "ids": columns["id"],
        "matrices": np.stack([floats(name) for name in MATRIX_COLUMNS], axis=1).reshape(-1, 3, 3),
        "source_sizes": np.array([ints("source_height"), ints("source_width")], dtype=np.int64).T,
        "status": np.array(columns["status"], dtype=np.str_),
        "score": floats("score"),
        "out_of_frame": floats("out_of_frame"),
    }


def _write_csv(t: Transforms, file: IO[bytes]) -> None:
    # csv writes floats with repr, which is exact; file names that are not UTF-8 come back as they were
    class Encoded:
        def write(self, text: str) -> int:
            return file.write(text.encode("utf-8", "surrogateescape"))

    writer = csv.writer(Encoded(), lineterminator="\n")
    writer.writerow(COLUMNS)
    for part in _parts(t):
        writer.writerows(zip(*_columns(part).values(), strict=True))


def _read_csv(path: Path) -> dict[str, Any]:
    with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
        rows = csv.reader(file, strict=True)
        header = next(rows, [])
        if tuple(header) != COLUMNS:
            raise ValueError(f"the first line must be {','.join(COLUMNS)}")
        numbered = ((number, row) for number, row in enumerate(rows, start=1) if row)
        parts = [_from_columns({name: [] for name in COLUMNS})]
        while part := list(islice(numbered, _ROWS_AT_ONCE)):
            for number, row in part:
                if len(row) != len(COLUMNS):
                    raise ValueError(f"row {number} has {len(row)} cells instead of {len(COLUMNS)}")
            parts.append(_from_columns({name: [row[k] for _, row in part] for k, name in enumerate(COLUMNS)}))
    ids = list(chain.from_iterable(part.pop("ids") for part in parts))
    return {"ids": ids, **{name: np.concatenate([part[name] for part in parts]) for name in parts[0]}}


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


def _read_json(path: Path) -> dict[str, Any]:
    document = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(document, dict) or document.get("format") != "congeal-transforms":
        raise ValueError('it lacks "format": "congeal-transforms"')
    images = document["images"]
    columns: dict[str, list[Any]] = {name: [row[name] for row in images] for name in COLUMNS[:6]}
    matrices = np.array([np.full((3, 3), np.nan) if row["matrix"] is None else row["matrix"] for row in images])
    flat = matrices.astype(np.float64).reshape(len(images), 9)
    columns |= {name: flat[:, k].tolist() for k, name in enumerate(MATRIX_COLUMNS)}
    return {**_from_columns(columns), "aligned_size": document["aligned_size"]}


def _write_npz(t: Transforms, file: IO[bytes]) -> None:
    np.savez_compressed(
        file,
        ids=np.array(t.ids, dtype=np.str_),
        matrices=t.matrices,
        source_sizes=t.source_sizes,
        aligned_size=np.array(t.aligned_size or (), dtype=np.int64),
        status=t.status,
        score=t.score,
        out_of_frame=t.out_of_frame,
    )


def _read_npz(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as stored:
        if not isinstance(stored, np.lib.npyio.NpzFile):
            raise ValueError("it is not an NPZ archive")
        names = ("ids", "matrices", "source_sizes", "status", "score", "out_of_frame", "aligned_size")
        arrays: dict[str, Any] = {name: stored[name] for name in names}
    return {**arrays, "ids": arrays["ids"].tolist(), "aligned_size": arrays["aligned_size"].tolist() or None}


def _write_parquet(t: Transforms, file: IO[bytes]) -> None:
    arrow, parquet = require("pyarrow", "parquet"), require("pyarrow.parquet", "parquet")
    kinds = {
        "id": arrow.string(),
        "status": arrow.string(),
        "source_width": arrow.int64(),
        "source_height": arrow.int64(),
    }
    schema = arrow.schema([(name, kinds.get(name, arrow.float64())) for name in COLUMNS])
    schema = schema.with_metadata({"congeal": json.dumps({"aligned_size": t.aligned_size})})
    parquet.write_table(arrow.table(_columns(t), schema=schema), file)


def _read_parquet(path: Path) -> dict[str, Any]:
    table = require("pyarrow.parquet", "parquet").read_table(path)
    if tuple(table.column_names) != COLUMNS or b"congeal" not in (table.schema.metadata or {}):
        raise ValueError(f"its columns must be {','.join(COLUMNS)}")
    aligned_size = json.loads(table.schema.metadata[b"congeal"])["aligned_size"]
    return {**_from_columns(table.to_pydict()), "aligned_size": aligned_size}


_READERS: dict[str, Callable[[Path], dict[str, Any]]] = {
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
