"""Real small files, damaged at random, and the readers they are given to: for test_readers_fuzzed.py and
benchmarks/fuzz.py.

Damage that a checksum would catch at once is also done below it: PNG chunks and tar headers get the right sum for the
wrong bytes, and what is packed is damaged inside.
"""

from __future__ import annotations

import atexit
import gzip
import io
import re
import shutil
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

import congeal
import small_files
from congeal.propagate.points import read_points
from congeal.runs.folder import RunFolder
from congeal.runs.originals import open_originals, run_transforms

EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 60)
NUMBERS = ("-1", "0", "1e999", "nan", "99999999999999999999", "1.5", "null", "true", '"x"', "[]", "{}", "1e-320", "\0")


# ---- damage


def mutate(data: bytes, rng: np.random.Generator) -> bytes:
    """One to four random changes to the bytes."""
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        kind = int(rng.integers(7))
        n = len(changed)
        if n == 0:
            break
        at = int(rng.integers(n))
        length = int(rng.integers(1, max(2, n // 8)))
        if kind == 0:
            changed[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            changed[at] = int(rng.integers(256))
        elif kind == 2:
            width = int(rng.choice([1, 2, 4, 8]))
            value = int(rng.choice(EXTREMES)) % (1 << (8 * width))
            changed[at : at + width] = value.to_bytes(width, "little" if rng.integers(2) else "big")
        elif kind == 3:
            del changed[at : at + length]
        elif kind == 4:
            changed[at:at] = changed[at : at + length]
        elif kind == 5:
            changed[at : at + length] = rng.bytes(length)
        else:
            del changed[at:]
    return bytes(changed)


def mutate_text(data: bytes, rng: np.random.Generator) -> bytes:
    """Another number or word in place of one of the file's own; now and then, damage to the bytes."""
    places = [found.span() for found in re.finditer(rb"-?\d+(\.\d+)?(e-?\d+)?|\"[^\"]*\"", data)]
    if not places or rng.random() < 0.3:
        return mutate(data, rng)
    for start, end in sorted(places, reverse=True)[:: max(1, len(places) // int(rng.integers(1, 4)))]:
        if rng.random() < 0.5:
            data = data[:start] + str(rng.choice(NUMBERS)).encode() + data[end:]
    return data


def mutate_png(data: bytes, rng: np.random.Generator) -> bytes:
    """Damage inside the chunks of a PNG, with the right checksums."""
    if rng.random() < 0.4:
        return mutate(data, rng)
    chunks, at = [], 8
    while at + 12 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    chosen = int(rng.integers(len(chunks)))
    kind, body = chunks[chosen]
    if kind == b"IDAT" and rng.random() < 0.5:
        body = zlib.compress(mutate(zlib.decompress(body), rng))
    else:
        body = mutate(body, rng)
    chunks[chosen] = (kind, body)
    sums = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
    return data[:8] + b"".join(sums)


def mutate_gzip(data: bytes, rng: np.random.Generator) -> bytes:
    """Damage inside what is packed."""
    return mutate(data, rng) if rng.random() < 0.4 else gzip.compress(mutate(gzip.decompress(data), rng), 1)


def mutate_zip(data: bytes, rng: np.random.Generator) -> bytes:
    """Damage to a zip file, or to one of its members."""
    return mutate(data, rng) if rng.random() < 0.4 else mutate_members(data, rng)


def mutate_members(data: bytes, rng: np.random.Generator) -> bytes:
    """Damage to one member of a zip file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as damaged:
        names = archive.namelist()
        chosen = names[int(rng.integers(len(names)))]
        for name in names:
            content = archive.read(name)
            change = mutate_text if name.endswith(".json") else mutate
            damaged.writestr(name, change(content, rng) if name == chosen else content)
    return buffer.getvalue()


def mutate_tar(data: bytes, rng: np.random.Generator) -> bytes:
    """Damage to a header of a tar file, with the right checksum."""
    if rng.random() < 0.4:
        return mutate(data, rng)
    header = bytearray(mutate(data[:512], rng)[:512].ljust(512, b"\0"))
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + data[512:]


# ---- readers


def read_images(path: Path) -> None:
    """Everything that is done to a source before its pixels are used; an image it cannot read is told at the end."""
    source = congeal.open_images(path)
    source.ids()
    refused = None
    for i in range(min(len(source), 5)):
        for look in (source.probe, source.read):
            try:
                look(i)
            except congeal.CongealError as error:
                refused = error
    if refused is not None:
        raise refused


def read_model(path: Path) -> None:
    congeal.load(path)


def read_zarr(path: Path) -> None:
    """A Zarr folder whose files are in a zip file."""
    folder = path.with_suffix("")
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    read_images(folder / "x.zarr")


def read_transforms(path: Path) -> None:
    congeal.Transforms.load(path)


def read_marks(path: Path) -> None:
    read_points(path)


def read_config(path: Path) -> None:
    """A run folder with this configuration."""
    run = _run_with("config.json", path)
    open_originals(run, run_transforms(run))


def read_metrics(path: Path) -> None:
    """A run folder with these numbers."""
    run = _run_with("metrics.json", path)
    run_transforms(run)


def _run_with(name: str, path: Path) -> RunFolder:
    folder = _finished_run()
    for own in ("config.json", "metrics.json"):
        (folder / own).write_bytes(_own(own))
    shutil.copyfile(path, folder / name)
    return RunFolder.existing(folder)


@cache
def _finished_run() -> Path:
    home = Path(mkdtemp(prefix="congeal-fuzz-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    congeal.align(small_files.save_images(home / "photos"), home / "run", **small_files.LSC)
    shutil.copytree(home / "run", home / "kept")
    return home / "run"


def _own(name: str) -> bytes:
    """A file of that run as it was at first."""
    return (_finished_run().with_name("kept") / name).read_bytes()


def transforms_in(suffix: str) -> bytes:
    """The transforms of a small run in another format."""
    home = Path(mkdtemp(prefix="congeal-fuzz-"))
    try:
        (home / "a.csv").write_bytes(small_files.transforms_csv())
        congeal.Transforms.load(home / "a.csv").save(home / f"b{suffix}")
        return (home / f"b{suffix}").read_bytes()
    finally:
        shutil.rmtree(home)


Mutation = Callable[[bytes, np.random.Generator], bytes]
# Name → (suffix of the file, its good bytes, how it is damaged, who reads it).
FORMATS: dict[str, tuple[str, Callable[[], bytes], Mutation, Callable[[Path], None]]] = {
    "png": (".png", small_files.IMAGES[".png"], mutate_png, read_images),
    "jpg": (".jpg", small_files.IMAGES[".jpg"], mutate, read_images),
    "gif": (".gif", small_files.IMAGES[".gif"], mutate, read_images),
    "bmp": (".bmp", small_files.IMAGES[".bmp"], mutate, read_images),
    "webp": (".webp", small_files.IMAGES[".webp"], mutate, read_images),
    "pgm": (".pgm", small_files.IMAGES[".pgm"], mutate, read_images),
    "tiff": (".tif", small_files.IMAGES[".tif"], mutate, read_images),
    "tiff stack": (".tif", small_files.tiff_stack, mutate, read_images),
    "npy": (".npy", small_files.npy, mutate, read_images),
    "npz": (".npz", small_files.npz, mutate_zip, read_images),
    "idx": (".idx", small_files.idx, mutate, read_images),
    "idx.gz": (".gz", small_files.idx_gz, mutate_gzip, read_images),
    "tar": (".tar", small_files.tar, mutate_tar, read_images),
    "parquet": (".parquet", small_files.parquet, mutate, read_images),
    "hyperstack": (".tif", small_files.hyperstack, mutate, read_images),
    "ome tiff": (".ome.tif", lambda: small_files.hyperstack(ome=True), mutate, read_images),
    "fits": (".fits", small_files.fits, mutate, read_images),
    "zarr": (".zip", small_files.zarr, mutate_members, read_zarr),
    "mp4": (".mp4", lambda: small_files.video(".mp4", "libx264"), mutate, read_images),
    "avi": (".avi", lambda: small_files.video(".avi", "mjpeg"), mutate, read_images),
    "mat": (".mat", small_files.mat, mutate, read_images),
    "transforms csv": (".csv", small_files.transforms_csv, mutate_text, read_transforms),
    "transforms json": (".json", lambda: transforms_in(".json"), mutate_text, read_transforms),
    "transforms npz": (".npz", lambda: transforms_in(".npz"), mutate_zip, read_transforms),
    "points csv": (".csv", lambda: b"x,y,name\n5,5,middle\n3.5,8e0,left\n", mutate_text, read_marks),
    "model": (".safetensors", small_files.model, mutate_text, read_model),
    "config json": (".json", lambda: _own("config.json"), mutate_text, read_config),
    "metrics json": (".json", lambda: _own("metrics.json"), mutate_text, read_metrics),
}


@cache
def good_bytes(name: str) -> bytes:
    """The file before it is damaged."""
    return FORMATS[name][1]()


def case(name: str, number: int) -> bytes:
    """Damaged file `number` of a format; the same bytes each time."""
    rng = np.random.default_rng([number, zlib.crc32(name.encode())])
    return FORMATS[name][2](good_bytes(name), rng)


def try_case(name: str, number: int, folder: Path) -> str:
    """Write the damaged file, read it; gives "read" or "refused". Anything else but `CongealError` comes out."""
    suffix, _, _, read = FORMATS[name]
    path = folder / f"case{suffix}"
    path.unlink(missing_ok=True)
    path.write_bytes(case(name, number))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            read(path)
        except congeal.CongealError:
            return "refused"
    return "read"
