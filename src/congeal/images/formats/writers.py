"""Writers of aligned images in the format of the input: files, one array, and a folder for each group."""

from __future__ import annotations

import os
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from types import TracebackType

import numpy as np

from congeal.errors import CongealError
from congeal.files import (
    DAMAGED,
    OutputFolders,
    create_npy,
    is_plain,
    make_folders,
    put_in_place,
    sweep,
    write_bytes,
    writing,
)
from congeal.images.formats.decode import FITS
from congeal.images.formats.encode import encode
from congeal.images.formats.output_names import WRITTEN, OutputNames, write_names
from congeal.images.sources.arrays import as_slice
from congeal.images.sources.base import ImageSource
from congeal.memmap import PageTracker

Size = tuple[int, int]
# Folder of the images that are in no group.
OUTLIERS = "outliers"
# Characters of the name of a group, which is also the name of a folder.
MAX_GROUP_NAME_LENGTH = 100
FORMATS = ("auto", "files", "npy", "tiff", "zarr", "fits", "shards", "mp4", "gif")
VIDEO_FORMATS = ("mp4", "gif")  # one file whose frames come one after the other
PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
TAR_END = bytes(2 * tarfile.BLOCKSIZE)


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
    def write(self, index: int, pixels: np.ndarray, mask: np.ndarray | None = None) -> None:
        """Aligned pixels (h, w, C) of image `index`; `mask` (h, w) in [0, 1] becomes alpha where the format has it."""

    @abstractmethod
    def done(self, index: int) -> bool:
        """Whether the image was written, now or by an earlier run into the same folder."""

    def write_new(self, indices: np.ndarray, pixels: np.ndarray, masks: np.ndarray | None = None) -> None:
        """Write those of these images (B, h, w, C) that are not done yet."""
        for k, index in enumerate(indices.tolist()):
            if not self.done(index):
                self.write(index, pixels[k], None if masks is None else masks[k])

    def begin_new(self, indices: np.ndarray, pixels: np.ndarray, masks: np.ndarray | None = None) -> Callable[[], None]:
        """`write_new` in two steps: what needs no order is done here, in any thread; calling the answer does the rest.

        The second steps are taken in one thread and in the order of the source.
        """
        return partial(self.write_new, indices, pixels, masks)

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()


def open_writer(
    folder: Path | str, source: ImageSource, size: Size, format: str = "auto", *, alone: bool = True
) -> Writer:
    """A writer for aligned images of `size` (h, w); "auto" gives files for files, an array for an array, and so on.

    Where an image of the source has parts, such as the planes of a Z stack, the writer takes those. alone: no other
    process writes there; files and shards only.
    """
    format = chosen_format(source, format)
    if format in VIDEO_FORMATS:
        from congeal.images.formats.video import GifWriter, Mp4Writer

        return (Mp4Writer if format == "mp4" else GifWriter)(Path(folder), source, size)
    own = {} if alone else {"alone": False}
    return _writer_class(format)(Path(folder), source.parts or source, size, **own)


def chosen_format(source: ImageSource, format: str) -> str:
    """What "auto" means for a source."""
    if format not in FORMATS:
        raise CongealError(f"unknown output format '{format}': use {', '.join(FORMATS)}")
    if format == "auto":
        format = usual_format(source)
        if format in ("npy", "tiff", "zarr", "fits") and source.has_masks:
            format = "files"  # an array has no place for alpha
    return format


def _writer_class(format: str) -> type[Writer]:
    if format == "tiff":
        from congeal.images.formats.tiff import TiffWriter

        return TiffWriter
    if format == "zarr":
        from congeal.images.formats.zarr import ZarrWriter

        return ZarrWriter
    if format == "fits":
        from congeal.images.formats.fits import FitsWriter

        return FitsWriter
    if format == "shards":
        from congeal.images.formats.shards import ShardWriter

        return ShardWriter
    return NpyWriter if format == "npy" else FileWriter


def takes_parts(writer: Writer, source: ImageSource) -> bool:
    """Whether the writer wants the parts that each image of the source stands for. A film shows the images."""
    return source.parts is not None and writer.source is source.parts


def set_transforms(writer: Writer, source: ImageSource, aligned_from_source: np.ndarray) -> None:
    """Tell a writer how the images of a source are moved: some formats say where their pixels lie."""
    parts = takes_parts(writer, source)
    writer.poses = np.repeat(aligned_from_source, source.n_parts, axis=0) if parts else aligned_from_source


def usual_format(source: ImageSource) -> str:
    """The format that gives back what came in."""
    by_layout = {"array": "npy", "video": "mp4"}
    format = by_layout.get(source.layout, source.layout)
    return format if format in FORMATS else "files"


class FileWriter(Writer):
    """One file per image, named after its id: PNG where that is lossless, TIFF for the rest and for TIFF input.

    `names.csv` says which file is of which image where the names do not.
    """

    any_order = True

    def __init__(self, folder: Path, source: ImageSource, size: Size, *, alone: bool = True) -> None:
        super().__init__(folder, source, size, alone=alone)
        self._names, self._folders = OutputNames(source.ids()), OutputFolders(folder, alone=alone)

    def _path(self, index: int, extension: str) -> Path:
        return self.folder / (self._names.stems[index] + extension)

    def _found(self, index: int) -> Path | None:
        """The file of image `index`, if it is there."""
        paths = (self._path(index, extension) for extension in WRITTEN)
        return next((path for path in paths if is_whole(path)), None)

    def write(self, index: int, pixels: np.ndarray, mask: np.ndarray | None = None) -> None:
        """Write the file of image `index`."""
        data, extension = self._encoded(index, pixels, mask)
        below = self._names.stems[index] + extension
        write_bytes(self._folders.above(below) / os.path.basename(below), data)

    def begin_new(self, indices: np.ndarray, pixels: np.ndarray, masks: np.ndarray | None = None) -> Callable[[], None]:
        """All of it: files stand by themselves."""
        self.write_new(indices, pixels, masks)
        return _nothing

    def _encoded(self, index: int, pixels: np.ndarray, mask: np.ndarray | None) -> tuple[bytes, str]:
        suffix = os.path.splitext(self.source.id(index))[1].lower()
        if suffix in FITS and mask is None:
            from congeal.images.formats.fits import fits_bytes

            pose = None if self.poses is None else self.poses[index]
            return fits_bytes(pixels, self.source.header_of(index), pose), ".fits"
        return encode(pixels, mask, tiff=suffix in (".tif", ".tiff"))

    def done(self, index: int) -> bool:
        """Whether its file is there."""
        return self._found(index) is not None

    def close(self) -> None:
        """Each file was complete when it appeared; only the table of odd names is left to do."""
        if self._names.odd:
            paths = {id: self._found(i) for i, id in enumerate(self.source.ids())}
            files = {id: path.relative_to(self.folder).as_posix() for id, path in paths.items() if path is not None}
            write_names(self.folder, files)


class NpyWriter(Writer):
    """`aligned.npy` (N, h, w[, C]), one row per image of the source; rows of skipped images stay zero."""

    any_order = True

    def __init__(self, folder: Path, source: ImageSource, size: Size) -> None:
        super().__init__(folder, source, size)
        self._lock = Lock()
        self._final = folder / "aligned.npy"
        self._partial, self._marks = folder / ".aligned.partial.npy", folder / ".aligned.done.npy"
        self._array: np.ndarray | None = None
        self._done: np.ndarray | None = None
        self._complete = self._final_exists()
        if not self._complete and is_plain(self._partial) and is_plain(self._marks):
            self._resume()
        self._pages = PageTracker(self._array)

    def _resume(self) -> None:
        try:
            array, done = np.load(self._partial, mmap_mode="r+"), np.load(self._marks, mmap_mode="r+")
        except DAMAGED:
            return  # it was stopped while these files were made
        if done.shape == (len(self.source),) and array.shape[:3] == (len(self.source), *self.size):
            self._array, self._done = array, done

    def _final_exists(self) -> bool:
        try:
            shape = np.load(self._final, mmap_mode="r").shape if is_plain(self._final) else ()
        except DAMAGED:
            return False  # damaged: it is written again
        return shape[:3] == (len(self.source), *self.size)

    def write(self, index: int, pixels: np.ndarray, mask: np.ndarray | None = None) -> None:
        """Write the row of image `index`."""
        self._put(np.array([index]), pixels[None])

    def write_new(self, indices: np.ndarray, pixels: np.ndarray, masks: np.ndarray | None = None) -> None:
        """Write many rows at a time."""
        missing = self.missing(indices)
        if len(missing):
            self._put(missing, pixels if len(missing) == len(indices) else pixels[np.isin(indices, missing)])

    def _allocate(self, pixels: np.ndarray) -> None:
        channels = () if self.source.grey and pixels.shape[-1] == 1 else (pixels.shape[-1],)
        self._array = create_npy(self._partial, (len(self.source), *self.size, *channels), pixels.dtype)
        self._done = create_npy(self._marks, (len(self.source),), np.dtype(bool))
        self._pages = PageTracker(self._array)
        self._complete = False

    def _put(self, indices: np.ndarray, pixels: np.ndarray) -> None:
        """Rows of the array: many images of one kind at a time."""
        with self._lock:
            self._put_alone(indices, pixels)

    def _put_alone(self, indices: np.ndarray, pixels: np.ndarray) -> None:
        if self._array is None or self._done is None:
            self._allocate(pixels)
        assert self._array is not None
        assert self._done is not None
        row = self._array[0]
        if pixels.dtype != row.dtype or pixels[0].size != row.size:
            raise _another_kind(self.source.id(int(indices[0])), pixels, row)
        self._array[as_slice(indices)] = pixels.reshape(-1, *row.shape)
        self._done[indices] = True
        self._pages.touched(pixels.nbytes)

    @property
    def has_room(self) -> bool:
        """Whether there is a file with rows, whole or not."""
        return self._complete or self._array is not None

    def make_room(self, pixels: np.ndarray) -> Path | None:
        """The file into which other processes may write rows like these (B, h, w, C); None if all is done."""
        if not self._complete and self._array is None:
            self._allocate(pixels)
        return None if self._complete else self._partial

    def all_written(self, indices: np.ndarray) -> None:
        """Other processes have written these rows."""
        if self._done is not None:
            self._done[indices] = True

    def missing(self, indices: np.ndarray) -> np.ndarray:
        """Those of these rows that are not marked as done."""
        if self._complete or self._done is None:
            return indices[:0] if self._complete else indices
        return indices[~self._done[indices]]

    def flush(self) -> None:
        """Bring the rows to the disk, then the marks that speak of them."""
        for array in (self._array, self._done):  # the marks last: they speak of the pixels
            if isinstance(array, np.memmap):
                array.flush()

    def done(self, index: int) -> bool:
        """Whether its row is marked as done."""
        return self._complete or (self._done is not None and bool(self._done[index]))

    def close(self) -> None:
        """Give the array its name."""
        if self._array is None:
            return
        self.flush()
        self._finish(self._array)
        self._array = self._done = None
        self._partial.unlink(missing_ok=True)
        self._marks.unlink(missing_ok=True)
        self._complete = True

    def _finish(self, array: np.ndarray) -> None:
        put_in_place(self._partial, self._final)


class RowWriter:
    """Writes rows into the array that another process's `NpyWriter` made room for: at their places, with plain writes,
    because on a network's disk two machines must not map the same page. Several threads may write at once."""

    def __init__(self, file: Path, source: ImageSource) -> None:
        array = np.load(file, mmap_mode="r")
        self._row, self._offset, self._source = array[0], int(array.offset), source
        self._file, self._lock = file.open("r+b"), Lock()

    def begin_new(self, indices: np.ndarray, pixels: np.ndarray, masks: np.ndarray | None = None) -> Callable[[], None]:
        """All of it: rows stand by themselves."""
        if pixels.dtype != self._row.dtype or pixels[0].size != self._row.size:
            raise _another_kind(self._source.id(int(indices[0])), pixels, self._row)
        follows = np.flatnonzero(np.diff(indices) != 1) + 1
        runs = zip(np.split(indices, follows), np.split(np.ascontiguousarray(pixels), follows), strict=True)
        with writing(Path(self._file.name)), self._lock:  # a place in the file is all threads' place
            for rows, images in runs:
                self._file.seek(self._offset + int(rows[0]) * self._row.nbytes)
                self._file.write(images.data)
        return _nothing

    def close(self) -> None:
        """Bring the rows to the disk."""
        with writing(Path(self._file.name)):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()


def _another_kind(id: str, pixels: np.ndarray, row: np.ndarray) -> CongealError:
    return CongealError(
        f"image {id} is {pixels.shape[1:]} of {pixels.dtype}, the others {row.shape} of {row.dtype}: write files "
        "instead of one array"
    )


def _nothing() -> None:
    """What is left to do where all is done."""


def is_whole(path: Path) -> bool:
    """Whether a file that a writer made is there up to its last bytes."""
    if not is_plain(path):
        return False
    if path.suffix == ".tif":
        from congeal.images.formats.tiff import is_whole_tiff

        return is_whole_tiff(path)
    if path.suffix == ".fits":
        from congeal.images.formats.fits import is_whole_fits

        return is_whole_fits(path)
    end = PNG_END if path.suffix == ".png" else TAR_END
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(-min(size, len(end)), os.SEEK_END)
        return file.read() == end and (path.suffix == ".png" or size % tarfile.RECORDSIZE == 0)


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

    def _own(self, index: int) -> tuple[Writer, int]:
        """The writer of an image, and its position there."""
        return self._writers[int(self._group[index])], int(self._place[index])

    def write(self, index: int, pixels: np.ndarray, mask: np.ndarray | None = None) -> None:
        """Write image `index` into the folder of its group."""
        writer, place = self._own(index)
        writer.write(place, pixels, mask)

    def done(self, index: int) -> bool:
        """Whether it is there."""
        writer, place = self._own(index)
        return writer.done(place)

    def begin_new(self, indices: np.ndarray, pixels: np.ndarray, masks: np.ndarray | None = None) -> Callable[[], None]:
        """Both steps of every group's own writer."""
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
        """Bring what is done to the disk."""
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Finish every folder."""
        for writer in self._writers.values():
            writer.close()
