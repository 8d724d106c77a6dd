"""The images as methods see them: one size, float32 in [0, 1], with the matrices that lead back to the originals."""

from __future__ import annotations

import copy
import logging
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from congeal.errors import CongealError
from congeal.evaluation import looks_like_objects, scales
from congeal.geometry.matrix import compose, invert, normalise
from congeal.geometry.orientation import all_upright_from_source, orientation_of, upright_sizes
from congeal.images.canvas import place, placements
from congeal.images.intensity import Channel, find_channels
from congeal.images.plan import Layout, Plan, make_plan, nothing_readable, resolve_initial_poses, shrink
from congeal.images.sources.arrays import as_slice
from congeal.images.sources.base import ImageSource, Indices, SkippedImage
from congeal.images.sources.views import SourceView
from congeal.images.store import Store, fill_store, open_in_place
from congeal.memmap import allocate, touch_pages
from congeal.rows import evenly_spaced_rows, row_slices
from congeal.transforms.ids import Ids

if TYPE_CHECKING:
    from congeal.transforms import Transforms

log = logging.getLogger("congeal")

Size = tuple[int, int]
NO_INITIAL_POSE = "no starting transform was given for it"
# A larger copy of the set beyond this many pixel values (8 GB at 8 bits) would take too much of the disk. Chosen by
# judgement: as much as a large set of photographs takes itself.
MAX_COPY_VALUES = 8 << 30
# Images from which objects are told from photographs, and the resolution of the originals is estimated: a median and
# a share of so many are known to a few percent.
SAMPLED_IMAGES = 500


class Stack:
    """n readable images of a source at working resolution. See docs/architecture.md for the four spaces.

    size, frame, aligned_size are (height, width). start and stack_from_source are (n, 3, 3) float64, to be copied
    before a change: rows that are equal may share their memory. kept (n,) are positions in the source; source_sizes
    (n, 2); source_channels are the channel counts of the originals; intensity is the (black, white) pixel values that
    became 0 and 1.
    """

    _per_image: tuple[str, ...] = ("kept", "source_sizes", "stack_from_source", "start")
    _part_of: tuple[Stack, np.ndarray] | None = None  # what `some` took it from, and which rows

    def __init__(self, source: ImageSource, plan: Plan, store: Store, fingerprint: str | None) -> None:
        self.source, self.size, self.frame, self.aligned_size = source, plan.size, plan.frame, plan.aligned
        self._plan, self._store, self._fingerprint = plan, store, fingerprint
        reasons = dict(store.reasons)
        if plan.initial is not None:
            lost = np.flatnonzero(~np.isfinite(plan.initial).all(axis=(1, 2)))
            reasons = {int(i): NO_INITIAL_POSE for i in lost} | reasons
        if len(reasons) == len(source):
            raise nothing_readable(source, reasons)
        if store.blank:
            raise CongealError(
                f"every image in {source.name} is blank (one value everywhere): there is nothing to align"
            )
        self.skipped = [SkippedImage(source.id(i), reasons[i]) for i in sorted(reasons)]
        self.kept = np.setdiff1d(np.arange(len(source)), list(reasons)) if reasons else np.arange(len(source))
        self.source_sizes = store.sizes[self.kept] if reasons else store.sizes
        self.stack_from_source = placements(self.source_sizes, self.size)
        if source.orientation is not None:  # sizes are of the upright images
            way = source.orientation[self.kept]
            self.source_sizes = upright_sizes(way, self.source_sizes)
            self.stack_from_source = self.stack_from_source @ all_upright_from_source(way, self.source_sizes)
        self.start = self._start(plan)
        self.align_on, self.source_channels = plan.align_on, plan.channels
        self.intensity = float(store.black[self.kept[0]]), float(store.white[self.kept[0]])
        self._larger: dict[int, Stack] = {}

    def _start(self, plan: Plan) -> np.ndarray:
        n = len(self.kept)
        if plan.initial is None:
            # One matrix n times, in the memory of one; not read-only only because torch dislikes that.
            one = invert(place(self.size, self.frame).matrix)
            return np.lib.stride_tricks.as_strided(one, (n, 3, 3), (0, *one.strides))
        aligned_from_frame, start = self.aligned_from_frame, np.empty((n, 3, 3))
        for part in row_slices(n):
            source_from_aligned = invert(np.asarray(plan.initial[self.kept[part]], dtype=np.float64))
            start[part] = normalise(compose(self.stack_from_source[part], source_from_aligned, aligned_from_frame))
        return start

    def some(self, rows: np.ndarray) -> Self:
        """A smaller stack: these positions of this one, sharing its pixels and its kind."""
        _ = self.kind  # a part of a set is of the kind of the set, whatever these few images look like
        few = copy.copy(self)
        for name in self._per_image:
            setattr(few, name, getattr(self, name)[rows])
        few._part_of = (self, rows)
        return few

    @property
    def aligned_from_frame(self) -> np.ndarray:
        """(3, 3) from the frame to the picture of the results; both axes by the same scale."""
        return invert(place(self.aligned_size, self.frame).matrix)

    def frame_from(self, other: Stack) -> np.ndarray:
        """(3, 3) from the frame of the same set in pictures of another size to that of this one."""
        return np.eye(3) if other is self else invert(self.aligned_from_frame) @ other.aligned_from_frame

    def stack_from(self, other: Stack, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """(n, 3, 3), or (1, 3, 3) where it is the same for all: from images of the same set in pictures of another size
        to those of this one. They are not each other's plain enlargement, because sides are rounded to whole pixels."""
        if other is self:
            return np.eye(3)[None]
        pair = self.stack_from_source, other.stack_from_source
        mine, theirs = (m[:1] if all(p.strides[0] == 0 for p in pair) else m[rows] for m in pair)
        return mine @ invert(theirs)

    @property
    def native_size(self) -> int:
        """Longer side of the frame at which, in the median, one of its pixels is one pixel of the originals."""
        spread = evenly_spaced_rows(len(self), SAMPLED_IMAGES)
        frame_from_source = invert(self.start[spread]) @ self.stack_from_source[spread]
        return max(1, round(max(self.frame) / float(np.median(scales(frame_from_source, self.frame)))))

    def has_room_at(self, size: int) -> bool:
        """Whether the set in pictures of this size, see `at`, would not take too much of the disk."""
        whole = self if self._part_of is None else self._part_of[0]
        return len(whole) * size**2 <= MAX_COPY_VALUES

    def at(self, size: int, *, enlarge: bool = False) -> Stack:
        """The same images in larger pictures: the frame's longer side is `size`, or what the originals have if less.

        Made once and kept, beside the pixels of this stack if they are in a folder. This stack itself where there is
        nothing to win, where the set would take too much of the disk, or where an original can no longer be read.
        enlarge: that size even where the originals have less.
        """
        size = size if enlarge else min(size, self.native_size)
        if size <= max(self.frame) or not self.has_room_at(size):
            return self
        if self._part_of is not None:
            whole, rows = self._part_of
            larger = whole.at(size, enlarge=enlarge)
            return self if larger is whole else larger.some(rows)
        if size not in self._larger:
            self._larger[size] = self._build_at(size)
        return self._larger[size]

    def _plan_at(self, size: int) -> Plan:
        frame = shrink(self.aligned_size, size)
        stack_size = frame
        if self.size != self.frame:
            shown = self.source_sizes
            if self.source.orientation is not None:
                shown = upright_sizes(self.source.orientation[self.kept], shown)
            typical = int(np.median(shown[:, 0])), int(np.median(shown[:, 1]))
            stack_size = shrink(typical, round(max(self.size) * max(frame) / max(self.frame)))
        return replace(self._plan, size=stack_size, frame=frame, align_on=self.align_on, ranges=self._store.ranges)

    def _build_at(self, size: int) -> Stack:
        folder = None if self.store_folder is None else self.store_folder / f"at-{size}"
        larger = _build_stack(self.source, self._plan_at(size), folder, self._fingerprint)
        if not np.array_equal(larger.kept, self.kept):
            log.warning("some images of %s cannot be read any more: poses stay as coarse as they are", self.source.name)
            return self
        larger.kind = self.kind
        return larger

    def __getstate__(self) -> dict[str, Any]:
        _ = self.kind
        larger = {size: one for size, one in self._larger.items() if one.store_folder is not None}  # by its name
        return {**self.__dict__, "_larger": larger, "_part_of": None, "_plan": replace(self._plan, initial=None)}

    def __len__(self) -> int:
        return len(self.kept)

    @property
    def ids(self) -> Ids:
        """Names of the images of the stack."""
        everything = self.source.ids()
        return everything if len(self) == len(everything) else everything.take(self.kept)

    @property
    def channels(self) -> int:
        """Channels of the pictures of the stack."""
        return int(self.images([0]).shape[1])

    @cached_property
    def kind(self) -> str:
        """ "object" on empty ground or "photo": what the source says, else told from up to 500 images of the set."""
        if self.source.kind is not None:
            return self.source.kind
        sample = evenly_spaced_rows(len(self), SAMPLED_IMAGES)
        return looks_like_objects(self.images(sample), self.masks(sample))

    @property
    def layout(self) -> Layout:
        """What a method fitted on this stack has to remember of it."""
        sizes = self.size, self.frame, self.aligned_size
        return Layout(*sizes, self.channels, self.align_on, self._store.ranges, self.kind)

    @property
    def store_folder(self) -> Path | None:
        """The folder with the pixels of the stack; None if they are in memory or still in the source."""
        return self._store.folder

    def _rows(self, indices: Indices | slice) -> np.ndarray:
        """Positions in the source."""
        return self.kept[indices if isinstance(indices, slice) else np.asarray(indices, dtype=np.int64)]

    def images(self, indices: Indices | slice) -> torch.Tensor:
        """(B, C, H, W) float32 in [0, 1] for positions in the stack (not in the source)."""
        black, white = self.black_and_white(indices)
        images = torch.from_numpy(np.array(self.unscaled(indices), dtype=np.float32, order="C"))
        low, span = (torch.from_numpy(v.astype(np.float32))[:, None, None, None] for v in (black, white - black))
        return images.sub_(low).div_(span).clamp_(0, 1)

    def unscaled(self, indices: Indices | slice) -> np.ndarray:
        """(B, C, H, W) the same images in the values and units of their source; perhaps a view, not to be changed."""
        values = self._store.pixels[as_slice(self._rows(indices))]
        touch_pages(values.nbytes)
        return values

    def black_and_white(self, indices: Indices | slice) -> tuple[np.ndarray, np.ndarray]:
        """(B,) each: the values of `unscaled` that mean 0 and 1."""
        rows = self._rows(indices)
        return self._store.black[rows], self._store.white[rows]

    def masks(self, indices: Indices | slice) -> torch.Tensor | None:
        """(B, 1, H, W) float32, 1 where the image is; None if every image of the set fills its canvas."""
        if self._store.masks is None:
            return None
        masks = np.array(self._store.masks[as_slice(self._rows(indices))], dtype=np.float32)
        touch_pages(masks.size)
        return torch.from_numpy(masks)[:, None].div_(255)

    @property
    def has_masks(self) -> bool:
        """Whether some images do not fill their canvas, or have alpha."""
        return self._store.masks is not None

    def source_pixels(self) -> np.ndarray:
        """(n,) how many pixels of its source lie along one pixel of each image of the stack."""
        return 1 / np.sqrt(np.abs(np.linalg.det(self.stack_from_source[:, :2, :2])))

    def aligned_from_source(self, stack_from_frame: np.ndarray) -> np.ndarray:
        """(n, 3, 3) at full resolution from what a method found, (n, 3, 3) stack_from_frame."""
        aligned_from_frame, aligned = self.aligned_from_frame, allocate((len(self), 3, 3), np.float64)
        for part in row_slices(len(self)):  # products of a million matrices at once would take half a gigabyte
            found = np.asarray(stack_from_frame[part], dtype=np.float64)
            aligned[part] = normalise(compose(aligned_from_frame, invert(found), self.stack_from_source[part]))
        return aligned

    def to_transforms(
        self,
        stack_from_frame: np.ndarray,
        score: np.ndarray | None = None,
        status: np.ndarray | list[str] | None = None,
        out_of_frame: np.ndarray | None = None,
        uncertainty_px: np.ndarray | None = None,
        **groups: Any,
    ) -> Transforms:
        """One row per image of the source; skipped ones have a matrix of NaN and source size 0.

        groups: `group`, `margin` and `group_names` of `Transforms`.
        """
        from congeal.transforms import Transforms

        matrices, ids = self.aligned_from_source(stack_from_frame), self.ids
        columns = (status, score, out_of_frame, uncertainty_px)
        found = Transforms(ids, matrices, self.source_sizes, self.aligned_size, *columns, **groups, copy=False)
        return found if len(self) == len(self.source) else found.spread(self.kept, self.source.ids())


def prepare(
    source: ImageSource,
    *,
    size: int = 64,
    init: np.ndarray | Transforms | None = None,
    init_size: Size | None = None,
    folder: Path | None = None,
    align_on: Channel = None,
    layout: Layout | None = None,
    fingerprint: str | None = None,
    quiet: bool = True,
) -> Stack:
    """Make the stack of a source.

    size: longer side of the working picture. init: aligned_from_source to start from, an array (N, 3, 3) in the
    order of the source or Transforms matched by id; `init_size` is the (height, width) it leads to. folder: where a
    decoded stack is kept, and found again by a resumed run. align_on: channels by number or name, or "grey".
    layout: that of the stack a model was fitted on, for new images. fingerprint: that of the source, if the caller
    knows it.
    """
    source = _upright(source, init)
    if isinstance(source, SourceView) and source.orientation is not None:
        fingerprint = None if fingerprint is None else source.with_orientation(fingerprint)
    channels = find_channels(source, align_on) if layout is None else layout.align_on
    plan = make_plan(source, size, init, init_size, channels, layout)
    stack = _build_stack(source, plan, None if folder is None else Path(folder), fingerprint, quiet=quiet)
    if layout is not None and stack.channels != layout.channels:
        raise CongealError(
            f"{source.name} has {stack.channels} channel(s) to align on, the model was fitted on {layout.channels}: "
            "convert the images, or fit with align_on='grey'"
        )
    if layout is not None and layout.kind is not None:
        stack.kind = layout.kind
    return stack


def _upright(source: ImageSource, init: np.ndarray | Transforms | None) -> ImageSource:
    """The source as methods see it: images that start mirrored are given mirrored, so that no method has to know."""
    if source.orientation is not None:
        return source
    initial, _ = resolve_initial_poses(source, init, None)
    if initial is None:
        return source
    way = np.concatenate([orientation_of(np.asarray(initial[part]), turns=False) for part in row_slices(len(source))])
    return SourceView(source, orientation=way) if way.any() else source


def _build_stack(
    source: ImageSource, plan: Plan, folder: Path | None, fingerprint: str | None, *, quiet: bool = True
) -> Stack:
    """The stack of a plan: over the source itself if its images have the right size, else over decoded images."""
    if source.shape is not None and source.dtype is not None and plan.size == source.shape[:2]:
        store = open_in_place(source, source.shape, source.dtype, plan, quiet)
    else:
        store = fill_store(source, plan, folder, fingerprint, quiet=quiet)
    return Stack(source, plan, store, fingerprint)
