"""Aligned images as one file each: a name after the id, and PNG, TIFF or FITS without loss."""

from __future__ import annotations

import hashlib
import io
import os
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import deflate
import numpy as np

from congeal.errors import CongealError
from congeal.files import LONGEST_NAME, OutputFolders, shortened, write_bytes, write_rows
from congeal.images.formats.decode import EXTENSIONS, FITS
from congeal.images.formats.writers import Size, Writer, is_complete
from congeal.images.sources.base import ImageSource
from congeal.transforms.ids import Ids

_PNG_COLOUR = {1: 0, 2: 4, 3: 2, 4: 6}  # channels → PNG's number for grey, grey and alpha, colour, colour and alpha
WRITTEN = (".png", ".tif", ".fits")  # what is put behind a stem
_LONGEST_STEM = LONGEST_NAME - max(map(len, WRITTEN))
# Bytes of a path below the output folder: systems allow 4096 with everything above it.
_LONGEST_PATH = 1000


class FileWriter(Writer):
    """One file per image, named after its id: PNG where that is lossless, TIFF for the rest and for TIFF input.

    `names.csv` says which file is of which image where the names do not.
    """

    any_order = True

    def __init__(self, folder: Path, source: ImageSource, size: Size, *, alone: bool = True) -> None:
        super().__init__(folder, source, size, alone=alone)
        self._names, self._folders = OutputNames(source.ids()), OutputFolders(folder, alone=alone)

    def _encode(self, index: int, pixels: np.ndarray, mask: np.ndarray | None) -> tuple[bytes, str]:
        suffix = os.path.splitext(self.source.id(index))[1].lower()
        if suffix in FITS and mask is None:
            from congeal.images.formats.fits import fits_bytes

            pose = None if self.poses is None else self.poses[index]
            return fits_bytes(pixels, self.source.header_of(index), pose), ".fits"
        return encode(pixels, mask, tiff=suffix in (".tif", ".tiff"))

    def _put(self, index: int, encoded: tuple[bytes, str]) -> None:
        data, extension = encoded
        below = self._names.stems[index] + extension
        write_bytes(self._folders.above(below) / os.path.basename(below), data)

    def _found(self, index: int) -> Path | None:
        paths = (self.folder / (self._names.stems[index] + extension) for extension in WRITTEN)
        return next((path for path in paths if is_complete(path)), None)

    def done(self, index: int) -> bool:
        return self._found(index) is not None

    def close(self) -> None:
        """Each file was complete when it appeared; only the table of odd names has to be written."""
        if self._names.odd:
            paths = {id: self._found(i) for i, id in enumerate(self.source.ids())}
            files = {id: path.relative_to(self.folder).as_posix() for id, path in paths.items() if path is not None}
            write_names(self.folder, files)


class OutputNames:
    """A relative path without extension for each id, all different, in no other's way.

    An id such as "a/b.jpg" gives "a/b". The image extension stays where two ids differ in nothing else. Where names
    would still meet, be too long, or lead out of the folder, a mark made from the id is put behind them. stems: the
    paths, in order. odd: whether some cannot be told from their ids, so that a table of them is needed.
    """

    def __init__(self, ids: Iterable[str]) -> None:
        given = ids if isinstance(ids, Ids) else Ids(ids)
        stems = _usual_stems(given)
        self.odd = any(safe_name(id) != id for id in given)
        above = {stem.rpartition("/")[0] for stem in stems} - {""}
        folders = {folder for path in above for folder in accumulate(path.split("/"), "{}/{}".format)}
        if not stems.unique or any(_in_the_way(stem, folders) for stem in stems):
            self.odd, stems = True, Ids(_apart(given, stems, folders))
        self.stems = stems


def write_names(folder: Path, files: Mapping[str, str]) -> None:
    """names.csv: which file is of which image. files: id → path below the folder."""
    write_rows(folder / "names.csv", [{"id": id, "file": file} for id, file in files.items()], columns=["id", "file"])


def safe_name(id: str) -> str:
    """An id as a relative path that stays inside its folder."""
    parts = [part for part in id.replace("\\", "/").replace("\0", "_").split("/") if part not in ("", ".", "..")]
    return "/".join(parts) or "image"


def _usual_stems(ids: Ids) -> Ids:
    """Names without image extension, unless several ids differ in nothing else."""
    # An id such as "1.5" is a name with a dot in it, not a file with an extension.
    parts = map(os.path.splitext, map(safe_name, ids))
    stems = Ids(stem if suffix.lower() in EXTENSIONS else stem + suffix for stem, suffix in parts)
    if stems.unique:
        return stems
    times = Counter(stems)
    return Ids(stem if times[stem] == 1 else safe_name(id) for id, stem in zip(ids, stems, strict=True))


def _fits(stem: str) -> bool:
    *above, last = map(os.fsencode, stem.split("/"))
    short = len(last) <= _LONGEST_STEM and all(len(part) <= LONGEST_NAME for part in above)
    return short and len(os.fsencode(stem)) <= _LONGEST_PATH


def _in_the_way(stem: str, folders: set[str]) -> bool:
    return not _fits(stem) or any(stem + extension in folders for extension in WRITTEN)


def _apart(ids: Ids, stems: Ids, folders: set[str]) -> Iterator[str]:
    """The stems; the first of those that meet keeps its name, the others get a mark."""
    taken = set[str]()
    for id, usual in zip(ids, stems, strict=True):
        stem, tries = usual, 0
        while stem in taken or _in_the_way(stem, folders):
            stem = _marked(usual, id, tries)
            tries += 1
        taken.add(stem)
        yield stem


def _marked(stem: str, id: str, tries: int) -> str:
    """A name that says which id it is of, as far as there is room."""
    mark = hashlib.sha256(f"{tries} {id}".encode("utf-8", "surrogatepass")).hexdigest()[:10]
    above, slash, last = stem.rpartition("/")
    if not _fits(f"{above}/x"):  # the folders themselves are too long
        above, slash = "", ""
    return f"{above}{slash}{shortened(last, _LONGEST_STEM - len(mark) - 1)}~{mark}"


def encode(pixels: np.ndarray, mask: np.ndarray | None = None, *, tiff: bool = False) -> tuple[bytes, str]:
    """(H, W, C) and a mask in [0, 1], which becomes alpha → (file bytes, extension).

    PNG where Pillow reads it back without loss (8 bits in 1 to 4 channels, 16 bits in one), else or on request TIFF.
    """
    if pixels.dtype == bool:
        pixels = pixels.astype(np.uint8) * np.uint8(255)
    if mask is not None:
        most = np.iinfo(pixels.dtype).max if pixels.dtype.kind in "ui" else None
        alpha = mask if most is None else np.rint(mask * np.float64(most))
        pixels = np.concatenate([pixels, alpha.astype(pixels.dtype)[..., None]], axis=-1)
    channels = pixels.shape[-1]
    if not tiff and channels <= {"uint8": 4, "uint16": 1}.get(pixels.dtype.name, 0):
        return png_bytes(pixels), ".png"
    from tifffile import imwrite

    if pixels.dtype.kind not in "uif":
        raise CongealError(f"TIFF holds no images of type {pixels.dtype}")
    buffer = io.BytesIO()
    imwrite(buffer, pixels[..., 0] if channels == 1 else pixels, **tiff_options(channels, alpha=mask is not None))
    return buffer.getvalue(), ".tif"


def png_bytes(pixels: np.ndarray) -> bytes:
    """(H, W, C) of 8 or 16 bits in 1–4 channels → a PNG file; two channels are grey and alpha, four colour and alpha.

    Every row is stored as its difference to the average of the pixels to the left and above, which vectorises and is
    the best of PNG's filters for photographs: 4 to 7 times as fast as trying all of them, and no larger.
    """
    height, width, channels = pixels.shape
    step = channels * pixels.dtype.itemsize  # bytes of a pixel
    rows = np.ascontiguousarray(pixels, dtype=pixels.dtype.newbyteorder(">")).view(np.uint8).reshape(height, -1)
    above, left = np.zeros_like(rows), np.zeros_like(rows)
    above[1:], left[:, step:] = rows[:-1], rows[:, :-step]
    # (a + b) // 2 without leaving 8 bits: what both share, and half of what they do not.
    average = (above & left) + ((above ^ left) >> 1)
    filtered = np.full((height, rows.shape[1] + 1), 3, np.uint8)  # 3 is the number of this filter
    np.subtract(rows, average, out=filtered[:, 1:])
    header = struct.pack(">IIBBBBB", width, height, 8 * pixels.dtype.itemsize, _PNG_COLOUR[channels], 0, 0, 0)
    # libdeflate takes half of zlib's time; isal took less, but files of the same pixels once had other bytes.
    data = bytes(deflate.zlib_compress(filtered, 1))
    return b"\x89PNG\r\n\x1a\n" + b"".join(map(_chunk, (b"IHDR", b"IDAT", b"IEND"), (header, data, b"")))


def _chunk(kind: bytes, data: bytes) -> bytes:
    """A part of a PNG file: length, kind, data, checksum."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", deflate.crc32(data, deflate.crc32(kind)))


def tiff_options(channels: int, *, alpha: bool) -> dict[str, Any]:
    """How tifffile stores (…, H, W, C) so that it reads back as the same channels."""
    photometric, own = ("rgb", 3) if channels - alpha == 3 else ("minisblack", 1)
    spare = ["unspecified"] * (channels - own - alpha) + ["unassalpha"] * alpha
    options = {"photometric": photometric, "planarconfig": "contig" if channels > 1 else None}
    return {**options, "extrasamples": spare} if spare else options
