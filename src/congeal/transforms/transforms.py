"""`Transforms`: what an alignment found, one 3×3 matrix per image.

Convention: every matrix is `aligned_from_source`. It acts on column vectors (x, y, 1) of pixel-centre coordinates
of the original image and gives pixels of the aligned picture. Sizes are (height, width).

Files are chosen by suffix: `.csv`, `.json`, `.npz`, `.parquet`. All four keep every float exactly. CSV has no room for
`aligned_size`, which is None after loading one. How they are written is in files.py.
"""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from congeal.errors import CongealError
from congeal.geometry import matrix
from congeal.memmap import allocate
from congeal.rows import finite_rows
from congeal.transforms.ids import Ids

STATUSES = ("ok", "blank", "outlier", "failed", "skipped")
MATRIX_COLUMNS = tuple(f"m{row}{column}" for row in range(3) for column in range(3))
NUMBERS = ("score", "out_of_frame", "uncertainty_px")
COLUMNS = ("id", "status", *NUMBERS, "source_width", "source_height", *MATRIX_COLUMNS)
GROUP_COLUMNS = ("group", "margin")
"""Columns of a pile that was sorted into groups; other sets have none."""
GROUP_NAME = "group_name"
"""And one of a pile whose groups have names."""
NO_GROUP = -1

_WORDS = np.array(STATUSES)
FAILED, SKIPPED = STATUSES.index("failed"), STATUSES.index("skipped")
_UNKNOWN = {"source_sizes": 0, "status": SKIPPED, "group": NO_GROUP}
"""What a row without an image has in a column; NaN in the others."""

Index = SupportsIndex | slice | Sequence[int] | Sequence[bool] | NDArray[Any]


class Transforms:
    """What an alignment found for N images: ids, matrices, sizes, status and scores. Not to be changed in place.

    Parameters
    ----------
    ids : iterable of str
        The names of the images. They are kept in one block of text, so that millions take little memory.
    matrices : array_like, shape (N, 3, 3)
        `aligned_from_source`: pixels (x, y, 1) of the original image → pixels of the aligned picture.
    source_sizes : array_like of int, shape (N, 2)
        (height, width) of each original image.
    aligned_size : tuple of int, optional
        (height, width) of the aligned picture, if known.
    status : iterable of str or array of uint8, shape (N,), optional
        Words of `STATUSES`, or positions in it. By default images with a finite matrix are "ok", the others "skipped".
        A "skipped" image could not be read and has a matrix of NaN; a "failed" one may have.
    score, out_of_frame, uncertainty_px : array_like, shape (N,), optional
        Correlation with the mean image, where 1 is perfect; share of the aligned frame that lies outside the original
        image; and standard error of where a corner of the frame lies, in source pixels. NaN is unknown.
    group, margin : array_like, shape (N,), optional
        Where a pile was sorted into groups: the group of each image, from 0, or −1 for none; and the likeness to it
        less that to the next best one.
    group_names : sequence of str, optional
        What the groups are called, where somebody named them.
    copy : bool
        False keeps arrays of the right type as they are instead of copying them.

    The arguments are attributes of the same names: `ids` a sequence of str (`Ids`), the numbers arrays of float64,
    `source_sizes` and `group` of int32, `status` an array of words.
    """

    def __init__(
        self,
        ids: Iterable[str],
        matrices: ArrayLike,
        source_sizes: ArrayLike,
        aligned_size: tuple[int, int] | None = None,
        status: Iterable[str] | NDArray[np.uint8] | None = None,
        score: ArrayLike | None = None,
        out_of_frame: ArrayLike | None = None,
        uncertainty_px: ArrayLike | None = None,
        *,
        group: ArrayLike | None = None,
        margin: ArrayLike | None = None,
        group_names: Sequence[str] | None = None,
        copy: bool = True,
    ) -> None:
        self.ids = Ids(ids)
        n = len(self.ids)
        self.matrices = _shaped(matrices, (n, 3, 3), np.float64, "matrices", copy)
        self.source_sizes = _shaped(source_sizes, (n, 2), np.int32, "source_sizes", copy)
        self.aligned_size = _size(aligned_size)
        missing = ~finite_rows(self.matrices)
        self._status: NDArray[Any] = missing * np.uint8(SKIPPED) if status is None else _codes(status, self.ids)
        self.score = _numbers(score, n, "score", copy)
        self.out_of_frame = _numbers(out_of_frame, n, "out_of_frame", copy)
        self.uncertainty_px = _numbers(uncertainty_px, n, "uncertainty_px", copy)
        self.group = None if group is None else _shaped(group, (n,), np.int32, "group", copy)
        self.margin = None if group is None else _numbers(margin, n, "margin", copy)
        self.group_names = None if group is None or group_names is None else tuple(group_names)
        self._check_rows(missing)

    def _check_rows(self, missing: NDArray[np.bool_]) -> None:
        for row in np.flatnonzero(missing & (self._status != SKIPPED) & (self._status != FAILED))[:1]:
            word = STATUSES[self._status[row]]
            raise CongealError(f"image '{self.ids[row]}' has status '{word}' but no finite matrix")
        for row in np.flatnonzero(~missing & (self._status == SKIPPED))[:1]:
            raise CongealError(f"image '{self.ids[row]}' is skipped and must have a matrix of NaN")
        if (self.source_sizes < 0).any():
            raise CongealError("source_sizes must not be negative")
        last = NO_GROUP if self.group is None else int(self.group.max(initial=NO_GROUP))
        if self.group_names is not None and last >= len(self.group_names):
            raise CongealError("every group needs a name, or none has one")

    def _columns(self) -> dict[str, NDArray[Any]]:
        """Every array with one row per image."""
        names = ("matrices", "source_sizes", *NUMBERS, *(() if self.group is None else GROUP_COLUMNS))
        return {"status": self._status, **{name: getattr(self, name) for name in names}}

    # ---- looking at it

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def status(self) -> NDArray[np.str_]:
        """(N,) words of `STATUSES`; made anew on every call."""
        return _WORDS[self._status]

    @property
    def ok(self) -> NDArray[np.bool_]:
        """(N,) True where the alignment is to be trusted."""
        return self._status == STATUSES.index("ok")

    def counts(self) -> dict[str, int]:
        """How many images have each status, without statuses that do not occur."""
        found = np.bincount(self._status, minlength=len(STATUSES)).tolist()
        return {name: n for name, n in zip(STATUSES, found, strict=True) if n}

    def __eq__(self, other: object) -> bool:
        """Same rows in the same order, float for float; NaN equals NaN."""
        if not isinstance(other, Transforms):
            return NotImplemented
        own, others = self._columns(), other._columns()
        facts = [(one.ids, one.aligned_size, one.group_names) for one in (self, other)]
        same = (np.array_equal(own[name], others[name], equal_nan=True) for name in own.keys() & others.keys())
        return facts[0] == facts[1] and own.keys() == others.keys() and all(same)

    __hash__ = None  # type: ignore[assignment]  # holds arrays

    def __repr__(self) -> str:
        return f"Transforms({self._summary()})"

    def _summary(self) -> str:
        flags = ", ".join(f"{count} {name}" for name, count in sorted(self.counts().items()))
        size = "" if self.aligned_size is None else f", aligned to {self.aligned_size[0]}×{self.aligned_size[1]} (h×w)"
        return f"{len(self)} images" + (f": {flags}" if flags else "") + size

    def _repr_html_(self, rows: int = 5) -> str:
        """Notebook view: counts and the first rows."""
        head = "".join(f"<th>{name}</th>" for name in ("id", "status", "score", "out of frame", "aligned_from_source"))
        body, status = "", self[:rows].status
        for i in range(min(rows, len(self))):
            numbers = "<br>".join(" ".join(f"{v:.4g}" for v in line) for line in self.matrices[i])
            cells = (self.ids[i], status[i], f"{self.score[i]:.3f}", f"{self.out_of_frame[i]:.3f}")
            body += "<tr>" + "".join(f"<td>{html.escape(str(c))}</td>" for c in cells) + f"<td>{numbers}</td></tr>"
        more = f"<p>… {len(self) - rows} more</p>" if len(self) > rows else ""
        return f"<p><b>Transforms</b> {self._summary()}</p><table><tr>{head}</tr>{body}</table>{more}"

    def named_groups(self) -> list[str]:
        """The name of every image's group, its number where groups have no names, "" for none."""
        if self.group is None:
            return [""] * len(self)
        known = self.group_names or [str(k) for k in range(int(self.group.max(initial=NO_GROUP)) + 1)]
        return ["" if k == NO_GROUP else known[k] for k in self.group.tolist()]

    # ---- choosing rows

    def __getitem__(self, index: Index) -> Transforms:
        """Rows by int (one row), slice, mask or integer array; always a `Transforms`."""
        if isinstance(index, slice):
            return self._take(index, self.ids[index])
        rows = np.atleast_1d(np.arange(len(self))[np.asarray(index)])
        return self._take(rows, self.ids.take(rows))

    def _take(self, rows: NDArray[np.intp] | slice, ids: Ids) -> Transforms:
        columns: dict[str, Any] = {name: values[rows] for name, values in self._columns().items()}
        return Transforms(ids, aligned_size=self.aligned_size, group_names=self.group_names, copy=False, **columns)

    def matching(self, ids: Iterable[str]) -> Transforms:
        """The rows of these ids, in this order; an id without a row means that the file belongs to another set."""
        wanted = Ids(ids)
        if not self.ids.unique:
            raise CongealError("these transforms have ids that occur twice, so they cannot be matched to images by id")
        if wanted == self.ids:
            return self
        row_of = {name: row for row, name in enumerate(self.ids)}
        missing = [name for name in wanted if name not in row_of]
        if missing:
            raise CongealError(
                f"these transforms belong to another set: {len(missing)} of {len(wanted)} images have no row, "
                f"the first is '{missing[0]}'"
            )
        return self._take(np.array([row_of[name] for name in wanted], dtype=np.intp), wanted)

    def spread(self, rows: NDArray[Any], ids: Iterable[str]) -> Transforms:
        """One row per name of `ids`: those of self at the positions `rows` (N,), the others skipped."""
        names = Ids(ids)
        columns: dict[str, Any] = {}
        for name, values in self._columns().items():
            columns[name] = np.full((len(names), *values.shape[1:]), _UNKNOWN.get(name, np.nan), values.dtype)
            columns[name][rows] = values
        return Transforms(names, aligned_size=self.aligned_size, group_names=self.group_names, copy=False, **columns)

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
        known = finite_rows(self.matrices)
        back = np.full_like(self.matrices, np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            back[known] = matrix.invert(self.matrices[known])
            singular = known & ((np.linalg.det(self.matrices) == 0) | ~np.isfinite(back).all(axis=(1, 2)))
        for row in np.flatnonzero(singular)[:1]:
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

    def placed(self, further_from_aligned: ArrayLike, size: tuple[int, int]) -> Transforms:
        """The same rows on another canvas: one matrix (3,3) further, to a picture of `size` (height, width)."""
        same = self._take(slice(None), self.ids)
        same.matrices = matrix.normalise(np.asarray(further_from_aligned, dtype=np.float64) @ self.matrices)
        same.aligned_size = _size(size)
        return same

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
        from congeal.transforms.files import save

        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Transforms:
        """Read what `save` wrote."""
        from congeal.transforms.files import load_transforms

        return load_transforms(path)


def _shaped(values: ArrayLike, shape: tuple[int, ...], dtype: Any, name: str, copy: bool) -> NDArray[Any]:
    """Exactly this shape and dtype, as an own copy unless told otherwise; an empty list counts as any empty shape."""
    try:
        array = (np.array(values) if copy else np.asarray(values)).astype(dtype, copy=False)
    except (ValueError, TypeError) as error:
        raise CongealError(f"{name} must be numbers of shape {shape}: {error}") from error
    if array.shape != shape:
        if shape[0] != 0 or array.size != 0:
            raise CongealError(f"{name} must have shape {shape} to fit the ids, not {array.shape}")
        array = array.reshape(shape)
    return array


def _numbers(values: ArrayLike | None, n: int, name: str, copy: bool) -> NDArray[np.float64]:
    """One number for each of n images, NaN where nothing is known."""
    if values is None:
        return allocate((n,), np.float64, np.nan)
    return _shaped(values, (n,), np.float64, name, copy)


def _size(value: Sequence[int] | None) -> tuple[int, int] | None:
    if value is None:
        return None
    size = tuple(int(v) for v in value)
    if len(size) != 2 or min(size) < 1:
        raise CongealError(f"aligned_size must be (height, width), not {value}")
    return size[0], size[1]


def _codes(status: Iterable[str] | NDArray[np.uint8], ids: Ids) -> NDArray[np.uint8]:
    """Words → positions in `STATUSES`; such positions as they are."""
    words = status if isinstance(status, np.ndarray) else list(status)
    if np.shape(words) != (len(ids),):
        raise CongealError(f"status must have shape {(len(ids),)} to fit the ids, not {np.shape(words)}")
    if isinstance(words, np.ndarray) and words.dtype == np.uint8:
        codes: NDArray[np.uint8] = words
    else:
        known = {word: code for code, word in enumerate(STATUSES)}
        codes = np.fromiter((known.get(word, len(STATUSES)) for word in words), np.uint8, count=len(ids))
    for row in np.flatnonzero(codes >= len(STATUSES))[:1]:
        raise CongealError(f"image '{ids[row]}' has status '{words[row]}'; use {', '.join(STATUSES)}")
    return codes
