"""Writers of aligned images in the format of the input: files, one array, and a folder for each group."""

from __future__ import annotations

import os
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from congeal.errors import CongealError
from congeal.files import DAMAGED, create_npy, is_plain, make_folders, put_in_place, sweep, writing
from congeal.images.formats.hyperstack import Hyperstack
from congeal.images.intensity import NOT_FINITE
from congeal.images.sources.arrays import as_slice
from congeal.images.sources.base import ImageSource, UnreadableImage
from congeal.memmap import track_pages

Size = tuple[int, int]
# Folder of the images that are in no group.
OUTLIERS = "outliers"
# Characters of the name of a group, which is also the name of a folder. Chosen by judgement: names are for reading.
MAX_GROUP_NAME_LENGTH = 100
# Format of the output → module and class of its writer.
_WRITERS = {
    "files": ("output_files", "FileWriter"),
    "npy": ("writers", "NpyWriter"),
    "tiff": ("tiff", "TiffWriter"),
    "zarr": ("zarr", "ZarrWriter"),
    "fits": ("fits", "FitsWriter"),
    "shards": ("shards", "ShardWriter"),
    "mp4": ("video", "Mp4Writer"),
    "gif": ("video", "GifWriter"),
}
FORMATS = ("auto", *_WRITERS)
VIDEO_FORMATS = ("mp4", "gif")  # one file whose frames come one after the other
# The last bytes of files that tell by them that they are complete. In an MP4 it is an empty box of our own.
FILE_ENDS = {".png": b"IEND\xaeB`\x82", ".gif": b"\0;", ".mp4": b"\0\0\0\x08free", ".tar": bytes(2 * tarfile.BLOCKSIZE)}
# The sizes of these files are multiples of a block.
_BLOCK_BYTES = {".tar": tarfile.RECORDSIZE, ".fits": 2880}
# Of other files: the module and the function that open them.
_OPENERS = {
    ".npy": ("sources.arrays", "open_npy"),
    ".tif": ("formats.tiff", "open_tiff"),
    ".fits": ("formats.fits", "open_fits"),
}


class Writer(ABC):
    """Takes aligned images by their position in the source. Use it as a context manager: leaving it without an
    exception finishes the output; after an exception or Ctrl-C what was written stays and `done` tells what."""

    any_order = False  # images may be written as they come, by several threads
    poses: np.ndarray | None = None  # aligned_from_source of each image, if whoever writes them said so

    def __init__(self, folder: Path, source: ImageSource, size: Size, *, alone: bool = True) -> None:
        self.folder, self.source, self.size, self.alone = folder, source, size, alone
        make_folders(folder)
        if alone:  # else what looks left over may be what another process is writing
            sweep(folder)

    @abstractmethod
    def done(self, index: int) -> bool:
        """Whether the image was written, now or by an earlier run into the same folder."""

    def _encode(self, index: int, pixels: np.ndarray, mask: np.ndarray | None) -> Any:
        """The image as `_put` takes it: work that needs no order."""
        return pixels

    def _put(self, index: int, encoded: Any) -> None:
        """Write an encoded image."""
        raise NotImplementedError

    def write(self, index: int, pixels: np.ndarray, mask: np.ndarray | None = None) -> None:
        """Aligned pixels (h, w, C) of image `index`; `mask` (h, w) in [0, 1] becomes alpha where the format has it."""
        self._put(index, self._encode(index, pixels, mask))

    def begin_new(self, indices: np.ndarray, pixels: np.ndarray, masks: np.ndarray | None = None) -> Callable[[], None]:
        """Write those of these images (B, h, w, C) that are not done yet, in two steps.

        What needs no order is done here, in any thread. Calling the answer does the rest: in one thread and in the
        order of the source.
        """
        new = [
            (index, self._encode(index, pixels[k], None if masks is None else masks[k]))
            for k, index in enumerate(indices.tolist())
            if not self.done(index)
        ]

        def put() -> None:
            while new:
                self._put(*new.pop(0))

        if self.any_order:
            put()
        return put

    def missing(self, indices: np.ndarray) -> np.ndarray:
        """Those of these images that are not done yet."""
        return np.array([index for index in indices.tolist() if not self.done(index)], dtype=np.int64)

    def flush(self) -> None:  # noqa: B027  (files are on the disk as soon as they are done)
        """Bring what is done to the disk."""

    @abstractmethod
    def close(self) -> None:
        """Finish the output."""

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()


def open_writer(
    folder: Path | str, source: ImageSource, size: Size, format: str = "auto", *, alone: bool = True
) -> Writer:
    """A writer for aligned images of `size` (h, w); "auto" gives files for files, an array for an array, and so on.

    Where an image of the source has parts, such as the planes of a Z stack, the writer takes those, unless it makes a
    video. alone: no other process writes there.
    """
    format = chosen_format(source, format)
    module, name = _WRITERS[format]
    make = getattr(import_module(f"congeal.images.formats.{module}"), name)
    written = source if format in VIDEO_FORMATS else source.parts or source
    writer: Writer = make(Path(folder), written, size, alone=alone)
    return writer


def chosen_format(source: ImageSource, format: str) -> str:
    """The format itself; for "auto" the one that gives back what came in."""
    if format not in FORMATS:
        raise CongealError(f"unknown output format '{format}': use {', '.join(FORMATS)}")
    if format != "auto":
        return format
    usual = {"array": "npy", "video": "mp4"}.get(source.layout, source.layout)
    if usual not in _WRITERS or (usual in ("npy", "tiff", "zarr", "fits") and source.has_masks):
        return "files"  # an array has no place for alpha
    return usual


def takes_parts(writer: Writer, source: ImageSource) -> bool:
    """Whether the writer wants the parts that each image of the source stands for. A video shows the images."""
    return source.parts is not None and writer.source is source.parts


def set_transforms(writer: Writer, source: ImageSource, aligned_from_source: np.ndarray) -> None:
    """Tell a writer how the images of a source are moved: some formats say where their pixels lie."""
    parts = takes_parts(writer, source)
    writer.poses = np.repeat(aligned_from_source, source.n_parts, axis=0) if parts else aligned_from_source


class NpyWriter(Writer):
    """`aligned.npy` (N, h, w[, C]), one row per image of the source; rows of skipped images stay zero.

    Other formats with all images in one file gather them in the same array first, because images can arrive in any
    order. They override `file_name`, `_finish` and, for the axes of a scientific stack, `_arranged`.
    """

    any_order = True
    file_name = "aligned.npy"

    def __init__(self, folder: Path, source: ImageSource, size: Size, *, alone: bool = True) -> None:
        super().__init__(folder, source, size, alone=alone)
        self._lock, self.path = Lock(), folder / self.file_name
        self.stack = None if source.hyperstack is None else self._arranged(source.hyperstack.resized(size))
        self._partial, self._marks = folder / ".aligned.partial.npy", folder / ".aligned.done.npy"
        self._rows: RowWriter | None = None
        self._done = np.zeros(len(source), dtype=bool)
        self._complete = self._is_complete()
        if not self._complete and is_plain(self._partial) and is_plain(self._marks):
            self._resume()

    def _arranged(self, stack: Hyperstack) -> Hyperstack:
        """The stack with its axes in the order of the format."""
        return stack

    def _is_complete(self) -> bool:
        """Whether the finished file is there and undamaged."""
        return is_complete(self.path, len(self.source), self.size)

    def _finish(self, array: np.ndarray) -> None:
        """Make the file of all rows."""
        put_in_place(self._partial, self.path)

    def _resume(self) -> None:
        try:
            array, done = np.load(self._partial, mmap_mode="r"), np.load(self._marks, mmap_mode="r+")
        except DAMAGED:
            return  # it was stopped while these files were made
        if done.shape == (len(self.source),) and array.shape[:3] == (len(self.source), *self.size):
            self._rows, self._done = RowWriter(self._partial, self.source), done

    def _allocate(self, pixels: np.ndarray) -> None:
        channels = () if self.source.grey and pixels.shape[-1] == 1 else (pixels.shape[-1],)
        create_npy(self._partial, (len(self.source), *self.size, *channels), pixels.dtype)
        self._done = create_npy(self._marks, (len(self.source),), np.dtype(bool))
        self._rows = RowWriter(self._partial, self.source)

    def _put(self, index: int, encoded: np.ndarray) -> None:
        self._put_rows(np.array([index]), encoded[None])

    def begin_new(self, indices: np.ndarray, pixels: np.ndarray, masks: np.ndarray | None = None) -> Callable[[], None]:
        missing = self.missing(indices)
        return partial(self._put_rows, missing, pixels[as_slice(np.isin(indices, missing))])

    def _put_rows(self, indices: np.ndarray, pixels: np.ndarray) -> None:
        if not len(indices):
            return
        with self._lock:
            if self._rows is None:
                self._allocate(pixels)
            assert self._rows is not None
            self._rows.begin_new(indices, pixels)
            self._done[indices] = True

    @property
    def has_room(self) -> bool:
        """Whether there is a file with rows, whole or not."""
        return self._complete or self._rows is not None

    def make_room(self, pixels: np.ndarray) -> Path | None:
        """The file into which other processes may write rows like these (B, h, w, C); None if all is done."""
        if not self.has_room:
            self._allocate(pixels)
        return None if self._complete else self._partial

    def all_written(self, indices: np.ndarray) -> None:
        """Other processes have written these rows."""
        self._done[indices] = True

    def missing(self, indices: np.ndarray) -> np.ndarray:
        return indices[:0] if self._complete else indices[~self._done[indices]]

    def done(self, index: int) -> bool:
        return not len(self.missing(np.array([index])))

    def flush(self) -> None:
        if self._rows is not None:
            self._rows.flush()
        if isinstance(self._done, np.memmap):  # last: it speaks of the pixels
            self._done.flush()

    def close(self) -> None:
        if self._rows is None:
            return
        self._rows.close()
        array = np.load(self._partial, mmap_mode="r")
        track_pages(array)
        self._finish(array)
        self._rows = None
        self._partial.unlink(missing_ok=True)
        self._marks.unlink(missing_ok=True)
        self._complete = True


class RowWriter:
    """Writes rows into the array that a `NpyWriter` made room for, perhaps in another process: at their places, with
    plain writes, because on a network's disk two machines must not map the same page. Threads may write at once."""

    def __init__(self, file: Path, source: ImageSource) -> None:
        array = np.load(file, mmap_mode="r")
        self._row, self._offset, self._source = array[0], int(array.offset), source
        self._path, self._file, self._lock = file, file.open("r+b"), Lock()

    def begin_new(self, indices: np.ndarray, pixels: np.ndarray, masks: np.ndarray | None = None) -> Callable[[], None]:
        """All of it: rows stand by themselves."""
        row = self._row
        if pixels.dtype != row.dtype or pixels[0].size != row.size:
            raise CongealError(
                f"image {self._source.id(int(indices[0]))} is {pixels.shape[1:]} of {pixels.dtype}, the others "
                f"{row.shape} of {row.dtype}: write files instead of one array"
            )
        follows = np.flatnonzero(np.diff(indices) != 1) + 1
        runs = zip(np.split(indices, follows), np.split(np.ascontiguousarray(pixels), follows), strict=True)
        with writing(self._path), self._lock:  # a place in the file is all threads' place
            for rows, images in runs:
                self._file.seek(self._offset + int(rows[0]) * row.nbytes)
                self._file.write(images.data)
        return lambda: None

    def flush(self) -> None:
        """Bring the rows to the disk."""
        with writing(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Bring the rows to the disk and end."""
        self.flush()
        self._file.close()


def is_complete(path: Path, images: int = 1, size: Size | None = None) -> bool:
    """Whether a file that a writer made ends as its format does, or holds (a multiple of) so many images of that size,
    the last of which can be read."""
    if not is_plain(path) or path.stat().st_size % _BLOCK_BYTES.get(path.suffix, 1):
        return False
    end = FILE_ENDS.get(path.suffix)
    if end is not None:
        with path.open("rb") as file:
            file.seek(-min(len(end), file.seek(0, os.SEEK_END)), os.SEEK_END)
            return file.read() == end
    module, name = _OPENERS[path.suffix]
    try:
        source: ImageSource = getattr(import_module(f"congeal.images.{module}"), name)(path)
        source = source.parts or source
        if len(source) % images or size not in (None, source.probe(0)[:2]):
            return False
        source.read(len(source) - 1)
    except UnreadableImage as error:
        return str(error) == NOT_FINITE
    except CongealError:
        return False
    return True


def check_group_name(name: str) -> str:
    """The name of a group, if it can be one: it is also the name of a folder."""
    wrong = not name.isprintable() or any(letter in name for letter in '/\\:*?"<>|') or name.strip() != name
    wrong = wrong or name.startswith(".") or name.endswith(".") or name == OUTLIERS
    if wrong or not 1 <= len(name) <= MAX_GROUP_NAME_LENGTH:
        raise CongealError(
            f"{name[:MAX_GROUP_NAME_LENGTH]!r} cannot be the name of a group, which is also that of a folder: use 1 to "
            f'{MAX_GROUP_NAME_LENGTH} letters and digits without / \\ : * ? " < > | or a dot at either end, and not '
            f"'{OUTLIERS}'"
        )
    return name


def group_folder(group: int, names: Sequence[str] | None = None) -> str:
    """The folder of a group, below `aligned`: its name or its number; −1 is none."""
    if group < 0:
        return OUTLIERS
    return str(group) if names is None else check_group_name(names[group])


class GroupedWriter(Writer):
    """A writer of the usual kind for each group, in a folder of its own; group (N,), −1 for none; names of groups, if
    they have any."""

    def __init__(
        self,
        folder: Path,
        source: ImageSource,
        size: Size,
        format: str,
        group: np.ndarray,
        names: Sequence[str] | None = None,
    ) -> None:
        if source.parts is not None:
            raise CongealError(f"{source.name} has depth and cannot be sorted by its projection: use --z planes")
        super().__init__(folder, source, size)
        self._group, self._place = group, np.zeros(len(group), dtype=np.int64)
        self._writers: dict[int, Writer] = {}
        for number in np.unique(group).tolist():
            rows = np.flatnonzero(group == number)
            self._place[rows] = np.arange(len(rows))
            self._writers[number] = open_writer(folder / group_folder(number, names), source.subset(rows), size, format)

    def write(self, index: int, pixels: np.ndarray, mask: np.ndarray | None = None) -> None:
        self._writers[int(self._group[index])].write(int(self._place[index]), pixels, mask)

    def done(self, index: int) -> bool:
        return self._writers[int(self._group[index])].done(int(self._place[index]))

    def begin_new(self, indices: np.ndarray, pixels: np.ndarray, masks: np.ndarray | None = None) -> Callable[[], None]:
        rest = []
        for number in np.unique(self._group[indices]).tolist():
            own = np.flatnonzero(self._group[indices] == number)
            some = None if masks is None else masks[own]
            rest.append(self._writers[number].begin_new(self._place[indices[own]], pixels[own], some))

        def finish() -> None:
            for step in rest:
                step()

        return finish

    def flush(self) -> None:
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
