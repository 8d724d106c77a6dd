"""Aligned images out, the way they came in: files, one array, one TIFF stack, or shards."""

from __future__ import annotations

import io
import os
import tarfile
from abc import ABC, abstractmethod
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from congeal.errors import CongealError
from congeal.images.decode import EXTENSIONS
from congeal.images.disk import allocate, write_atomic, writing
from congeal.images.encode import encode, tiff_options
from congeal.images.source import ImageSource

Size = tuple[int, int]
FORMATS = ("auto", "files", "npy", "tiff", "shards")


class Writer(ABC):
    """Takes aligned images by their position in the source. Use it as a context manager: leaving it without an
    exception finishes the output; after an exception or Ctrl-C what was written stays and `done` tells what."""

    def __init__(self, folder: Path, source: ImageSource, size: Size) -> None:
        self.folder, self.source, self.size = folder, source, size
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)

    @abstractmethod
    def write(self, index: int, pixels: np.ndarray, mask: np.ndarray | None = None) -> None:
        """Aligned pixels (h, w, C) of image `index`; `mask` (h, w) in [0, 1] becomes alpha where the format has it."""

    @abstractmethod
    def done(self, index: int) -> bool:
        """Whether the image was written, now or by an earlier run into the same folder."""

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


def open_writer(folder: Path | str, source: ImageSource, size: Size, format: str = "auto") -> Writer:
    """A writer for aligned images of `size` (h, w); "auto" gives files for files, an array for an array, and so on."""
    if format not in FORMATS:
        raise CongealError(f"unknown output format '{format}': use {', '.join(FORMATS)}")
    if format == "auto":
        format = {"array": "npy", "tiff": "tiff", "shards": "shards"}.get(source.layout, "files")
        if format in ("npy", "tiff") and source.has_masks:
            format = "files"  # an array has no place for alpha
    kinds: dict[str, type[Writer]] = {"files": FileWriter, "npy": NpyWriter, "tiff": TiffWriter, "shards": ShardWriter}
    return kinds[format](Path(folder), source, size)


class FileWriter(Writer):
    """One file per image, named after its id: PNG where that is lossless, TIFF for the rest and for TIFF input."""

    def __init__(self, folder: Path, source: ImageSource, size: Size) -> None:
        super().__init__(folder, source, size)
        stems = Counter(os.path.splitext(safe_name(source.id(i)))[0] for i in range(len(source)))
        self._shared = {stem for stem, count in stems.items() if count > 1}

    def _path(self, index: int, extension: str) -> Path:
        name = safe_name(self.source.id(index))
        stem, suffix = os.path.splitext(name)
        # An id such as "1.5" is a name with a dot in it, not a file with an extension.
        keep = stem in self._shared or suffix.lower() not in EXTENSIONS
        return self.folder / ((name if keep else stem) + extension)

    def write(self, index: int, pixels: np.ndarray, mask: np.ndarray | None = None) -> None:
        tiff = self.source.id(index).lower().endswith((".tif", ".tiff"))
        data, extension = encode(pixels, mask, tiff=tiff)
        path = self._path(index, extension)
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, data)

    def done(self, index: int) -> bool:
        return any(self._path(index, extension).exists() for extension in (".png", ".tif"))

    def close(self) -> None:
        """Nothing is left to do: each file was complete when it appeared."""


class NpyWriter(Writer):
    """`aligned.npy` (N, h, w[, C]), one row per image of the source; rows of skipped images stay zero."""

    def __init__(self, folder: Path, source: ImageSource, size: Size) -> None:
        super().__init__(folder, source, size)
        self._final = folder / "aligned.npy"
        self._partial, self._marks = folder / ".aligned.partial.npy", folder / ".aligned.done.npy"
        self._array: np.ndarray | None = None
        self._done: np.ndarray | None = None
        self._complete = self._final_exists()
        if not self._complete and self._partial.exists() and self._marks.exists():
            self._array, self._done = np.load(self._partial, mmap_mode="r+"), np.load(self._marks, mmap_mode="r+")
            if len(self._done) != len(source) or self._array.shape[1:3] != size:
                self._array = self._done = None

    def _final_exists(self) -> bool:
        if not self._final.exists():
            return False
        return np.load(self._final, mmap_mode="r").shape[:3] == (len(self.source), *self.size)

    def write(self, index: int, pixels: np.ndarray, mask: np.ndarray | None = None) -> None:
        if self._array is None or self._done is None:
            channels = () if self.source.grey and pixels.shape[-1] == 1 else (pixels.shape[-1],)
            self._array = allocate(self._partial, (len(self.source), *self.size, *channels), pixels.dtype)
            self._done = allocate(self._marks, (len(self.source),), np.dtype(bool))
            self._complete = False
        row = self._array[index]
        if pixels.dtype != row.dtype or pixels.size != row.size:
            raise CongealError(
                f"image {self.source.id(index)} is {pixels.shape} of {pixels.dtype}, the others {row.shape} of "
                f"{row.dtype}: write files instead of one array"
            )
        self._array[index] = pixels.reshape(row.shape)
        self._done[index] = True

    def done(self, index: int) -> bool:
        return self._complete or (self._done is not None and bool(self._done[index]))

    def close(self) -> None:
        if self._array is None:
            return
        if isinstance(self._array, np.memmap):
            self._array.flush()
        self._finish(self._array)
        self._array = self._done = None
        self._partial.unlink(missing_ok=True)
        self._marks.unlink(missing_ok=True)
        self._complete = True

    def _finish(self, array: np.ndarray) -> None:
        with writing(self._final):
            os.replace(self._partial, self._final)


class TiffWriter(NpyWriter):
    """`aligned.tif`, one page per image; gathered in a memory map first because pages can arrive in any order."""

    def __init__(self, folder: Path, source: ImageSource, size: Size) -> None:
        self._tiff = folder / "aligned.tif"
        super().__init__(folder, source, size)

    def _final_exists(self) -> bool:
        import tifffile

        if not self._tiff.exists():
            return False
        with tifffile.TiffFile(self._tiff) as file:
            return len(file.pages) == len(self.source) and file.pages.first.shape[:2] == self.size

    def _finish(self, array: np.ndarray) -> None:
        import tifffile

        partial = self._tiff.with_name(f".{self._tiff.name}.partial")
        channels = array.shape[3] if array.ndim == 4 else 1
        options: dict[str, Any] = tiff_options(channels, alpha=False)
        with writing(self._tiff):
            with tifffile.TiffWriter(partial, bigtiff=array.nbytes > 3 << 30) as file:
                for page in array:
                    pixels = page[..., 0] if array.ndim == 4 and channels == 1 else page
                    file.write(np.ascontiguousarray(pixels), contiguous=False, metadata=None, **options)
            os.replace(partial, self._tiff)


class ShardWriter(Writer):
    """Tar shards with the input's names and keys, written in the order of the source, each complete or absent."""

    def __init__(self, folder: Path, source: ImageSource, size: Size) -> None:
        super().__init__(folder, source, size)
        if source.shard_of(0) is None:
            raise CongealError(f"{source.name} does not come from shards: choose the format files or npy")
        self._current: str | None = None
        self._tar: tarfile.TarFile | None = None
        self._written: set[str] = {path.name for path in folder.glob("*.tar")}

    def _place(self, index: int) -> tuple[str, str]:
        place = self.source.shard_of(index)
        if place is None:
            raise CongealError(f"image {self.source.id(index)} does not come from a shard")
        return place

    def write(self, index: int, pixels: np.ndarray, mask: np.ndarray | None = None) -> None:
        shard, key = self._place(index)
        if shard != self._current:
            if shard in self._written:
                raise CongealError(
                    f"{self.folder / shard} is already complete: shards are written in the order of the source"
                )
            self._end_shard()
            with writing(self.folder / shard):
                self._tar = tarfile.open(self.folder / f".{shard}.partial", "w")  # noqa: SIM115  (closed by _end_shard)
            self._current = shard
        data, extension = encode(pixels, mask)
        member = tarfile.TarInfo(safe_name(key) + extension)
        member.size = len(data)
        if self._tar is None:
            raise CongealError(f"the shard {shard} is closed")
        with writing(self.folder / shard):
            self._tar.addfile(member, io.BytesIO(data))

    def done(self, index: int) -> bool:
        return self._place(index)[0] in self._written

    def _end_shard(self) -> None:
        if self._tar is None or self._current is None:
            return
        path = self.folder / self._current
        with writing(path):
            self._tar.close()
            os.replace(path.with_name(f".{path.name}.partial"), path)
        self._written.add(self._current)
        self._tar = self._current = None

    def close(self) -> None:
        self._end_shard()


def safe_name(id: str) -> str:
    """An id as a relative path that stays inside its folder."""
    parts = [part for part in id.replace("\\", "/").split("/") if part not in ("", ".", "..")]
    return "/".join(parts) or "image"
