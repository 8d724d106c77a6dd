"""Sizes of the stack, the frame and the aligned image, chosen from the headers before any pixel is decoded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from congeal.errors import CongealError, RunFailed
from congeal.images.canvas import place
from congeal.images.intensity import AlignOn, Ranges
from congeal.images.sources.base import Header, ImageSource, UnreadableImage
from congeal.rows import evenly_spaced_rows, row_slices

if TYPE_CHECKING:
    from congeal.transforms import Transforms

Size = tuple[int, int]
# Headers that are read: sizes are medians, so a few thousand are as good as a million.
SAMPLED_HEADERS = 4096
# Initial poses that magnify by less than this keep the stack at working size; by more than MAX_ZOOM, which small boxes
# do, they do not enlarge it further. Chosen by judgement: a finer stack that wins a quarter of a pixel is not worth its
# memory, and eight times the side is 64 times the memory.
MIN_ZOOM, MAX_ZOOM = 1.25, 8.0
# The aligned image grows to the area of the largest image if its side grows by at least this factor; an image whose
# area is more than MAX_AREA_RATIO times the median is an outlier. Chosen by judgement: 5 % are not seen.
MIN_SIDE_RATIO, MAX_AREA_RATIO = 1.05, 8.0
# Determinant below which a matrix, scaled to a largest entry of 1, is singular: what rounding leaves of zero.
SINGULAR_DETERMINANT = 1e-15
# Factor between two levels of the image pyramid: poses accurate to a tenth of a pixel are then accurate to a third,
# from where Gauss-Newton steps converge. The last level may be LAST_PYRAMID_FACTOR larger, which saves a level.
PYRAMID_FACTOR, LAST_PYRAMID_FACTOR = 3, 4


@dataclass(frozen=True)
class Layout:
    """Sizes (height, width) and ranges of the stack a method was fitted on, which new images are prepared with.

    `ranges` are the values that became 0 and 1, by dtype. `kind` is the kind of the fitted set, "object" or "photo".
    """

    size: Size
    frame: Size
    aligned_size: Size
    channels: int
    align_on: AlignOn = None
    ranges: Ranges = field(default_factory=dict)
    kind: str | None = None

    def __post_init__(self) -> None:
        for name in ("size", "frame", "aligned_size"):  # JSON has lists only
            height, width = getattr(self, name)
            object.__setattr__(self, name, (height, width))
        object.__setattr__(self, "ranges", {dtype: tuple(values) for dtype, values in self.ranges.items()})

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Plan:
    """Sizes (height, width) of a stack, and how its images are stored.

    `initial` are aligned_from_source (N,3,3) or None; `channels` the counts that occur; `image_values` the median
    number of pixel values of an image; `eight_bit` whether images are stored with 8 bits; `ranges` the values that
    mean 0 and 1 by dtype, as known from a fitted set: other dtypes get those of this set.
    """

    size: Size
    frame: Size
    aligned: Size
    initial: np.ndarray | None
    channels: frozenset[int]
    eight_bit: bool
    image_values: float
    align_on: AlignOn
    ranges: Ranges

    @property
    def stored_channels(self) -> int:
        """Number of channels that are aligned on."""
        if self.align_on is None:
            return max(self.channels)
        return len(self.align_on) if isinstance(self.align_on, Sequence) and self.align_on != "grey" else 1


def make_plan(
    source: ImageSource,
    size: int,
    init: np.ndarray | Transforms | None,
    init_size: Size | None,
    align_on: AlignOn,
    layout: Layout | None = None,
) -> Plan:
    """Choose sizes from the headers of up to a few thousand images, or take those of a given layout.

    New images with initial poses get a stack of the resolution that these need; the frame is that of the model.
    Images with different numbers of channels meet in grey.
    """
    if size < 2:
        raise CongealError(f"size is the longer side of the working picture in pixels; {size} is too small")
    initial, aligned = resolve_initial_poses(source, init, init_size)
    if initial is not None:
        _check_invertible(source, initial)
    headers = sample_headers(source)
    sizes = np.array([(h.height, h.width) for h in headers.values()])
    typical = (int(np.median(sizes[:, 0])), int(np.median(sizes[:, 1])))
    stack = shrink(typical, size)
    if layout is None:
        if aligned is None and initial is None:
            aligned = enlarge_to_area(typical, largest_area(source, headers, typical), max(stack))
        aligned = typical if aligned is None else aligned
        frame = shrink(aligned, max(stack) if initial is None else size)
    else:
        if initial is None:
            stack = layout.size
        elif aligned is not None:  # initial poses without a size map to the aligned image of the model
            initial = place(aligned, layout.aligned_size).matrix @ initial
        frame, aligned = layout.frame, layout.aligned_size
    if initial is not None and stack != typical:
        zoom = _zoom(headers, initial, stack, frame, aligned)
        if zoom > MIN_ZOOM:
            longer = min(round(max(stack) * min(zoom, MAX_ZOOM)), max(typical))
            stack = shrink(typical, longer)
    channels = frozenset(h.channels for h in headers.values())
    image_values = float(np.median([h.height * h.width * h.channels for h in headers.values()]))
    eight_bit = {h.dtype for h in headers.values()} == {np.dtype(np.uint8)}
    align_on = "grey" if len(channels) > 1 and align_on is None else align_on
    ranges = {} if layout is None else layout.ranges
    return Plan(stack, frame, aligned, initial, channels, eight_bit, image_values, align_on, ranges)


def largest_area(source: ImageSource, headers: dict[int, Header], typical: Size) -> float:
    """Area of the largest image, at most MAX_AREA_RATIO times the median; headers that are larger may be wrong."""
    median, most = typical[0] * typical[1], MAX_AREA_RATIO * typical[0] * typical[1]
    for i in sorted(headers, key=lambda i: -headers[i].height * headers[i].width)[:8]:  # of which one is readable
        area = headers[i].height * headers[i].width
        if area <= median * MIN_SIDE_RATIO**2:
            break
        with suppress(UnreadableImage):
            source.read(i)
            return float(min(area, most))
    return float(median)


def enlarge_to_area(typical: Size, area: float, longer: int) -> Size:
    """A size of the median shape with the area of the largest image, so that this image keeps its resolution.

    If images have nearly one size, or differ in shape only (portrait among landscape), the median size is kept.
    longer: reduced to this longer side, both sizes have the same shape.
    """
    height, width = typical
    scale = (area / (height * width)) ** 0.5
    if scale < MIN_SIDE_RATIO:
        return typical
    first = math.ceil(max(typical) * scale - 1e-9)
    for side in range(first, first + 32):
        larger = round(height * side / max(typical)), round(width * side / max(typical))
        if shrink(larger, longer) == shrink(typical, longer):
            return larger
    return round(height * scale), round(width * scale)


def shrink(size: Size, longer: int) -> Size:
    """The size reduced to a longer side of at most `longer`; never enlarged."""
    scale = min(1.0, longer / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def sample_headers(source: ImageSource) -> dict[int, Header]:
    """Headers of readable images, evenly spaced over the set, by position."""
    if source.shape is not None and source.dtype is not None:
        return dict.fromkeys((0, len(source) // 2, len(source) - 1), Header(*source.shape, source.dtype))
    headers, reasons = dict[int, Header](), dict[int, str]()
    sample = evenly_spaced_rows(len(source), SAMPLED_HEADERS)
    rest = np.setdiff1d(np.arange(len(source)), sample)
    for number, i in enumerate(chain(sample, rest)):
        if headers and number >= len(sample):
            break
        try:
            headers[int(i)] = source.probe(int(i))
        except UnreadableImage as error:
            reasons[int(i)] = str(error)
    if not headers:
        raise nothing_readable(source, reasons)
    return headers


def nothing_readable(source: ImageSource, reasons: dict[int, str]) -> RunFailed:
    """The error for a set without one usable image, with the reason for the first."""
    i = min(reasons)
    first = f"{source.id(i)}: {reasons[i]}"
    return RunFailed(f"none of the {len(source)} images in {source.name} can be used; the first: {first}")


def resolve_initial_poses(
    source: ImageSource, init: np.ndarray | Transforms | None, init_size: Size | None
) -> tuple[np.ndarray | None, Size | None]:
    """Initial aligned_from_source (N,3,3) in the order of the source, and the size of its frame, if known."""
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
    """Raise an error for singular initial poses; NaN marks images without one."""
    for rows in row_slices(len(matrices)):
        part = np.asarray(matrices[rows], dtype=np.float64)
        scale = np.abs(part).max((1, 2))
        with np.errstate(all="ignore"):
            flat = np.abs(np.linalg.det(part / scale[:, None, None])) < SINGULAR_DETERMINANT
        singular = np.flatnonzero((flat | (scale == 0)) & np.isfinite(part).all((1, 2)))
        if len(singular):
            raise CongealError(f"the start of image '{source.id(rows.start + int(singular[0]))}' cannot be inverted")


def _zoom(headers: dict[int, Header], initial: np.ndarray, stack: Size, frame: Size, aligned: Size) -> float:
    """Median number of frame pixels per stack pixel under the initial poses."""
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


def pyramid_sizes(coarsest: int, finest: int) -> list[int]:
    """Longer sides, in pixels, of the pyramid levels above `coarsest`, up to `finest`."""
    sizes, size = [], coarsest
    while size < finest:
        size = finest if finest <= LAST_PYRAMID_FACTOR * size else PYRAMID_FACTOR * size
        sizes.append(size)
    return sizes
