"""One small, good file of every format that is read, as bytes: to be damaged by tests and by benchmarks/fuzz.py."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image

from made_videos import windows, write_video

SIDE = 12
LSC = {"method": "lsc", "params": {"iterations": (1,), "blurs": (0.0,)}, "size": SIDE, "quiet": True}


def blobs(n: int = 3, size: int = SIDE, seed: int = 0) -> np.ndarray:
    """(n, size, size) uint8: one elongated blob at slightly different places."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:size, :size]
    places = size / 2 + rng.uniform(-1, 1, (n, 2))
    scale = size / SIDE
    return np.stack(
        [255 * np.exp(-(((x - a) / 3 / scale) ** 2) - ((y - b) / 1.5 / scale) ** 2) for a, b in places]
    ).astype(np.uint8)


def picture(kind: str, pixels: np.ndarray | None = None, **options: Any) -> bytes:
    """One image file in one of Pillow's formats."""
    buffer = io.BytesIO()
    Image.fromarray(blobs(1)[0] if pixels is None else pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def npy(array: np.ndarray | None = None) -> bytes:
    """A .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, blobs() if array is None else array, allow_pickle=True)
    return buffer.getvalue()


def npz(**arrays: Any) -> bytes:
    """A .npz file; without arrays one called `images`."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **(arrays or {"images": blobs()}))
    return buffer.getvalue()


def idx(array: np.ndarray | None = None) -> bytes:
    """A file in MNIST's format."""
    values = blobs() if array is None else array
    return b"\0\0\x08" + bytes([values.ndim]) + np.array(values.shape, ">i4").tobytes() + values.tobytes()


def idx_gz() -> bytes:
    """The same, packed."""
    return gzip.compress(idx(), 1, mtime=0)


def tar(members: dict[str, bytes] | None = None, *more: tarfile.TarInfo) -> bytes:
    """An uncompressed tar file of these members; of three images unless given."""
    if members is None:
        members = {f"{i}.png": picture("PNG", image) for i, image in enumerate(blobs())}
    buffer = io.BytesIO()
    with tarfile.TarFile(fileobj=buffer, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for info in more:
            archive.addfile(info)
    return buffer.getvalue()


def tiff_stack() -> bytes:
    """A TIFF with three compressed pages."""
    import tifffile

    buffer = io.BytesIO()
    tifffile.imwrite(buffer, blobs(), photometric="minisblack", compression="zlib")
    return buffer.getvalue()


def hyperstack(*, ome: bool = False) -> bytes:
    """Two times, two planes and two channels, with their names and pixel size: ImageJ's way or OME's."""
    import tifffile

    pixels = np.resize(blobs(), (2, 2, 2, SIDE, SIDE)).astype(np.uint16)
    buffer = io.BytesIO()
    if ome:
        described = {"axes": "TZCYX", "Channel": {"Name": ["red", "green"]}, "PhysicalSizeX": 0.2}
        tifffile.imwrite(buffer, pixels, ome=True, metadata=described)
    else:
        tifffile.imwrite(buffer, pixels, imagej=True, metadata={"axes": "TZCYX", "Labels": ["red", "green"] * 4})
    return buffer.getvalue()


def fits() -> bytes:
    """A cube of three images."""
    from astropy.io import fits as files

    buffer = io.BytesIO()
    files.PrimaryHDU(blobs().astype(np.float32)).writeto(buffer)
    return buffer.getvalue()


def zarr() -> bytes:
    """The files of a Zarr array of three images, in a zip file."""
    import zarr as arrays

    buffer = io.BytesIO()
    with TemporaryDirectory() as name:
        made = arrays.create_array(f"{name}/x.zarr", shape=(3, SIDE, SIDE), chunks=(1, SIDE, SIDE), dtype="uint8")
        made[:] = blobs()
        with zipfile.ZipFile(buffer, "w") as archive:
            for path in sorted(Path(name).rglob("*")):
                if path.is_file():
                    archive.write(path, path.relative_to(name))
    return buffer.getvalue()


def video(suffix: str, codec: str) -> bytes:
    """Three frames of a video."""
    with TemporaryDirectory() as name:
        return write_video(Path(name) / f"clip{suffix}", windows(3, (32, 32)), codec).read_bytes()


def parquet(columns: dict[str, Any] | None = None) -> bytes:
    """A Parquet table with a column of PNGs."""
    import pyarrow
    import pyarrow.parquet

    images = [picture("PNG", image) for image in blobs()]
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns or {"id": ["a", "b", "c"], "image": images}), buffer)
    return buffer.getvalue()


def mat(**fields: np.ndarray) -> bytes:
    """A batch in affNIST's format."""
    import scipy.io

    images = blobs(3, 40).reshape(3, 1600).T
    buffer = io.BytesIO()
    content = fields or {"image": np.asfortranarray(images), "label_int": np.array([[3, 3, 3]], np.uint8)}
    scipy.io.savemat(buffer, {"affNISTdata": content}, do_compression=False)
    return buffer.getvalue()


def transforms_csv() -> bytes:
    """The transforms of three images, 0.png to 2.png."""
    return finished("transforms.csv")


def model() -> bytes:
    """A fitted model in its safetensors file."""
    return finished("model.safetensors")


@cache
def finished(name: str) -> bytes:
    """A file of the finished run of three images."""
    from congeal import align

    with TemporaryDirectory() as place:
        folder = save_images(Path(place) / "photos")
        align(folder, Path(place) / "run", **LSC)
        data = (Path(place) / "run" / name).read_bytes()
    return data


def save_images(folder: Path, n: int = 3) -> Path:
    """A folder of n good images, 0.png to n-1.png."""
    folder.mkdir(parents=True)
    for i, image in enumerate(blobs(n)):
        (folder / f"{i}.png").write_bytes(picture("PNG", image))
    return folder


def npy_header(shape: tuple[int, ...], descr: str = "|u1") -> bytes:
    """The beginning of a .npy file that claims this shape."""
    text = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims this size and has next to nothing in it."""
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    )


def tiff_header(width: int, height: int) -> bytes:
    """A TIFF of one deflated strip that claims this size and has next to nothing in it."""
    import struct
    import zlib

    data = zlib.compress(b"\0" * 100)
    tags = [
        (256, 4, width),
        (257, 4, height),
        (258, 3, 8),
        (259, 3, 8),
        (262, 3, 1),
        (273, 4, 8 + 2 + 12 * 9 + 4),
        (277, 3, 1),
        (278, 4, height),
        (279, 4, len(data)),
    ]
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    return b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(tags)) + entries + struct.pack("<I", 0) + data


def bmp_header(width: int, height: int) -> bytes:
    """A BMP that claims this size."""
    import struct

    return struct.pack("<2sIHHIIiiHHIIiiII", b"BM", 54, 0, 0, 54, 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)


def as_json(value: Any) -> bytes:
    """JSON as bytes."""
    return json.dumps(value).encode()


# Files that are one image, by suffix; and files that hold a whole set.
IMAGES: dict[str, Callable[[], bytes]] = {
    ".png": lambda: picture("PNG"),
    ".jpg": lambda: picture("JPEG"),
    ".gif": lambda: picture("GIF"),
    ".bmp": lambda: picture("BMP"),
    ".tif": lambda: picture("TIFF", compression="tiff_adobe_deflate"),
    ".webp": lambda: picture("WEBP"),
    ".pgm": lambda: picture("PPM"),
}
SETS: dict[str, Callable[[], bytes]] = {
    ".npy": npy,
    ".npz": npz,
    ".idx": idx,
    ".idx.gz": idx_gz,
    ".tar": tar,
    ".parquet": parquet,
    ".mat": mat,
    ".tiff": tiff_stack,
}
