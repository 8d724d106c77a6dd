"""Decide, before any pixel is decoded, how large the stack, the frame and the aligned picture are."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from congeal.errors import CongealError, RunFailed
from congeal.images.canvas import place
from congeal.images.intensity import AlignOn, Ranges
from congeal.images.source import Header, ImageSource, UnreadableImage

if TYPE_CHECKING:
    from congeal.transforms import Transforms

Size = tuple[int, int]
# Sizes are medians, so a few thousand headers tell as much as a million.
_SAMPLE = 4096
# A start that zooms in by less than this keeps the plain stack; small differences are not worth a decoding pass.
_WORTHWHILE_ZOOM = 1.25
# A stack never grows beyond this multiple of the working size, however small the boxes are.
_LARGEST_ZOOM = 8.0
_ROWS_AT_ONCE = 50_000
_MOST_GROWTH = 8.0
_WORTHWHILE_GROWTH = 1.05
_READ_AT_MOST = 8
_FLAT = 1e-15  # determinant of a matrix whose largest entry is 1


@dataclass(frozen=True)
class Layout:
    """What a fitted method remembers of its stack, so that new images reach it at the same sizes (height, width).

    `ranges` are the values that became 0 and 1, by dtype: new 16-bit or float images are scaled as the fitted were.
    `kind` is what the fitted set was, "object" or "photo"; None in model files from before it was kept.
    """

    size: Size
    frame: Size
    aligned_size: Size
    channels: int
    align_on: AlignOn = None
    ranges: Ranges = field(default_factory=dict)
    kind: str | None = None

    def __post_init__(self) -> None:
        for name in ("size", "frame", "aligned_size"):  # JSON knows lists only
            height, width = getattr(self, name)
            object.__setattr__(self, name, (height, width))
        object.__setattr__(self, "ranges", {dtype: tuple(values) for dtype, values in self.ranges.items()})

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Plan:
    """Sizes are (height, width). `initial` (N,3,3) aligned_from_source or None; `channels` and `dtypes` that occur."""

    size: Size
    frame: Size
    aligned: Size
    initial: np.ndarray | None
    channels: frozenset[int]
    dtypes: frozenset[np.dtype]


def make_plan(
    source: ImageSource,
    size: int,
    init: np.ndarray | Transforms | None,
    init_size: Size | None,
    layout: Layout | None = None,
) -> Plan:
    """Look at the headers of up to a few thousand images and choose sizes, or take those of a given layout.

    With a start of their own, new images keep a stack as fine as their start asks for: the frame is what a model knows.
    """
    if size < 2:
        raise CongealError(f"size is the longer side of the working picture in pixels; {size} is too small")
    initial, aligned = starting_matrices(source, init, init_size)
    if initial is not None:
        _check_invertible(source, initial)
    headers = sample_headers(source)
    sizes = np.array([(h.height, h.width) for h in headers.values()])
    typical = (int(np.median(sizes[:, 0])), int(np.median(sizes[:, 1])))
    stack = shrink(typical, size)
    if layout is None:
        if aligned is None:
            aligned = (
                typical if initial is not None else roomy(typical, largest_area(source, headers, typical), max(stack))
            )
        frame = shrink(aligned, max(stack) if initial is None else size)
    else:
        if initial is None:
            stack = layout.size
        elif aligned is not None:  # a start of unknown size leads to the model's own picture
            initial = place(aligned, layout.aligned_size).matrix @ initial
        frame, aligned = layout.frame, layout.aligned_size
    if initial is not None and stack != typical:
        zoom = _zoom(headers, initial, stack, frame, aligned)
        if zoom > _WORTHWHILE_ZOOM:
            longer = min(round(max(stack) * min(zoom, _LARGEST_ZOOM)), max(typical))
            stack = shrink(typical, longer)
    channels = frozenset(h.channels for h in headers.values())
    return Plan(stack, frame, aligned, initial, channels, frozenset(h.dtype for h in headers.values()))


def largest_area(source: ImageSource, headers: dict[int, Header], typical: Size) -> float:
    """Pixels of the largest image, at most eight times the typical: one that is read, because a header may lie."""
    least, most = typical[0] * typical[1] * _WORTHWHILE_GROWTH**2, _MOST_GROWTH * typical[0] * typical[1]
    larger = {i: h.height * h.width for i, h in headers.items() if h.height * h.width > least}
    for i in sorted(larger, key=lambda i: (-larger[i], i))[:_READ_AT_MOST]:
        try:
            source.read(i)
        except UnreadableImage:
            continue
        return min(float(larger[i]), most)
    return float(typical[0] * typical[1])


def roomy(typical: Size, area: float, longer: int) -> Size:
    """A picture of the typical shape with as many pixels as the largest image, `area`, so that it keeps them.

    Images of nearly one size, or of another shape (portrait among landscape), are no reason to resample all the others.
    longer: the shape stays what it was when it is shrunk to that.
    """
    height, width = typical
    scale = (area / (height * width)) ** 0.5
    if scale < _WORTHWHILE_GROWTH:
        return typical
    first = math.ceil(max(typical) * scale - 1e-9)
    for side in range(first, first + 32):
        larger = round(height * side / max(typical)), round(width * side / max(typical))
        if shrink(larger, longer) == shrink(typical, longer):
            return larger
    return round(height * scale), round(width * scale)


def shrink(size: Size, longer: int) -> Size:
    """The same shape with its longer side at most `longer`; never enlarged."""
    scale = min(1.0, longer / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def sample_headers(source: ImageSource) -> dict[int, Header]:
    """Headers of readable images spread evenly over the set, by position."""
    if source.shape is not None and source.dtype is not None:
        return dict.fromkeys((0, len(source) // 2, len(source) - 1), Header(*source.shape, source.dtype))
    first_reason = ""
    headers: dict[int, Header] = {}
    sample = np.unique(np.linspace(0, len(source) - 1, min(len(source), _SAMPLE)).astype(int))
    rest = np.setdiff1d(np.arange(len(source)), sample)
    for positions in (sample, rest):
        for i in positions:
            try:
                headers[int(i)] = source.probe(int(i))
            except UnreadableImage as error:
                first_reason = first_reason or f"{source.id(int(i))}: {error}"
            if positions is rest and headers:
                return headers
        if headers:
            return headers
    raise nothing_readable(source, first_reason)


def nothing_readable(source: ImageSource, first_reason: str) -> RunFailed:
    """The error for a set without one usable image."""
    return RunFailed(f"none of the {len(source)} images in {source.name} can be used; the first: {first_reason}")


def starting_matrices(
    source: ImageSource, init: np.ndarray | Transforms | None, init_size: Size | None
) -> tuple[np.ndarray | None, Size | None]:
    """aligned_from_source (N,3,3) to start from, in the order of the source, and the size it leads to, if known."""
    if init is None:
        return source.initial, init_size or source.initial_size
    if not isinstance(init, np.ndarray | list | tuple):
        ids, size = source.ids(), init_size or init.aligned_size
        if init.ids == ids:
            return init.matrices, size
        row = {id: k for k, id in enumerate(init.ids)}
        missing = [id for id in ids if id not in row]
        if missing:
            raise CongealError(
                f"the starting transforms belong to another set: {len(missing)} of {len(source)} images of "
                f"{source.name} are not in them, the first is '{missing[0]}'"
            )
        return np.asarray(init.matrices, dtype=np.float64)[[row[id] for id in ids]], size
    try:
        matrices = np.asarray(init, dtype=np.float64)
    except (ValueError, TypeError) as error:
        raise CongealError(f"init is not an array of numbers ({error})") from error
    if matrices.shape != (len(source), 3, 3):
        raise CongealError(f"init has shape {matrices.shape}; {len(source)} images need ({len(source)}, 3, 3)")
    return matrices, init_size


def _check_invertible(source: ImageSource, matrices: np.ndarray) -> None:
    """Refuse starts that put a whole image on a line or a point; those of NaN are images without a start."""
    for first in range(0, len(matrices), _ROWS_AT_ONCE):
        part = np.asarray(matrices[first : first + _ROWS_AT_ONCE], dtype=np.float64)
        scale = np.abs(part).max((1, 2))
        with np.errstate(all="ignore"):
            flat = np.abs(np.linalg.det(part / scale[:, None, None])) < _FLAT
        singular = np.flatnonzero((flat | (scale == 0)) & np.isfinite(part).all((1, 2)))
        if len(singular):
            raise CongealError(f"the start of image '{source.id(first + int(singular[0]))}' cannot be inverted")


def _zoom(headers: dict[int, Header], initial: np.ndarray, stack: Size, frame: Size, aligned: Size) -> float:
    """How many frame pixels the start shows per pixel of the plain stack: the median over the sampled images."""
    from congeal.images.resample import scale_at_centre

    aligned_from_frame = np.linalg.inv(place(aligned, frame).matrix)
    zooms = []
    for i, header in headers.items():
        if not np.isfinite(initial[i]).all() or abs(np.linalg.det(initial[i])) < 1e-12:
            continue
        stack_from_source = place((header.height, header.width), stack).matrix
        stack_from_frame = stack_from_source @ np.linalg.inv(initial[i]) @ aligned_from_frame
        zooms.append(1 / max(float(scale_at_centre(stack_from_frame, frame)), 1e-6))
    return float(np.median(zooms)) if zooms else 1.0
