"""What no reader may do: take all memory, wait for ever, or lose a file without a word."""

from __future__ import annotations

import gzip
import io
import os
import re
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import tifffile

from blobs import blob, save_folder
from congeal import LSC, CongealError, open_images
from congeal.cli import main
from congeal.images import prepare
from congeal.images.formats.decode import MOST_BYTES, MOST_PIXELS, decode
from congeal.images.sources.base import UnreadableImage

SIDE = 60_000


def lying_tiff(side: int = SIDE) -> bytes:
    """A small TIFF that claims side × side pixels, compressed."""
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, np.zeros((64, 64), np.uint8), compression="zlib", rowsperstrip=64)
    data = bytearray(buffer.getvalue())
    with tifffile.TiffFile(io.BytesIO(bytes(data))) as file:
        tags = file.pages.first.tags
        places = [tags[name].valueoffset for name in ("ImageWidth", "ImageLength", "RowsPerStrip")]
    for place in places:
        data[place : place + 4] = struct.pack("<I", side)
    return bytes(data)


def reasons(source: object) -> dict[str, str]:
    """Why images were skipped, by name."""
    return {one.id: one.reason for one in prepare(open_images(source), size=24).skipped}


def add(tar: tarfile.TarFile, name: str, data: bytes = b"", **about: object) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    for key, value in about.items():
        setattr(member, key, value)
    tar.addfile(member, io.BytesIO(data))


def png_bytes(tmp_path: Path) -> bytes:
    return (save_folder(tmp_path / "one", blob(1)) / "0.png").read_bytes()


def test_a_tiff_that_claims_too_many_pixels_is_skipped_unread(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "images", blob(3))
    (folder / "huge.tif").write_bytes(lying_tiff())
    assert reasons(folder) == {"huge.tif": f"the image is too large ({SIDE} × {SIDE} pixels; {MOST_PIXELS:,} at most)"}


def test_so_is_a_page_of_a_stack(tmp_path: Path) -> None:
    (tmp_path / "huge.tif").write_bytes(lying_tiff())
    with pytest.raises(CongealError, match=r"none of the 1 images.*too large \(60000 × 60000"):
        reasons(tmp_path / "huge.tif")


@pytest.mark.parametrize("bits", [8, 16])
def test_a_png_that_claims_too_many_pixels_is_too(bits: int) -> None:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", SIDE, SIDE, bits, 2, 0, 0, 0)
    with pytest.raises(UnreadableImage, match="too large"):
        decode(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", b"") + chunk(b"IEND", b""), "a.png")


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    """A named pipe would be waited for, /dev/zero read for ever; a child process so that a failure can be ended."""
    folder = save_folder(tmp_path / "images", blob(3))
    os.mkfifo(folder / "pipe.png")
    os.mkfifo(folder / "pipe.tif")
    (folder / "zero.png").symlink_to("/dev/zero")
    (folder / "gone.png").symlink_to("/nowhere")
    code = f"import json; from test_limits import reasons; print(json.dumps(reasons({str(folder)!r})))"
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert eval(found.stdout) == {
        "gone.png": "cannot be opened (No such file or directory)",
        "pipe.png": "is a named pipe, not a file",
        "pipe.tif": "is a named pipe, not a file",
        "zero.png": "is a device, not a file",
    }


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.tif", "x.tar", "x.mat", "x.txt", "x"])
def test_a_named_pipe_given_by_itself_is_refused(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(CongealError, match="named pipe"):
        open_images(tmp_path / name)


def test_a_file_of_too_many_bytes_is_skipped_unread(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "images", blob(3))
    with (folder / "huge.png").open("wb") as file:
        file.truncate(MOST_BYTES + 1)  # takes no space on the disk
    assert list(reasons(folder)) == ["huge.png"]
    assert "too large" in reasons(folder)["huge.png"]


def test_a_tar_names_what_it_skips(tmp_path: Path) -> None:
    """A member of 6 GB (a hole in the file), links, devices: rows in skipped.csv."""
    data = png_bytes(tmp_path)
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for i in range(3):
            add(tar, f"{i}.png", data)
        add(tar, "link.png", type=tarfile.SYMTYPE, linkname="0.png")
        add(tar, "hard.png", type=tarfile.LNKTYPE, linkname="0.png")
        add(tar, "pipe.png", type=tarfile.FIFOTYPE)
    size = 6 << 30
    head = tarfile.TarInfo("huge.png")
    head.size = size
    with (tmp_path / "a.tar").open("r+b") as file:
        end = file.seek(_end_of_members(tmp_path / "a.tar"))
        file.write(head.tobuf())
        file.truncate(end + 512 + size + 1024)
    found = reasons(tmp_path / "a.tar")
    assert set(found) == {"link", "hard", "pipe", "huge"}
    assert "too large (6.4 GB" in found["huge"]
    assert found["link"] == "is a link inside the tar, not a file"
    assert found["pipe"] == "is a named pipe or device inside the tar, not a file"


def _end_of_members(path: Path) -> int:
    with tarfile.open(path) as tar:
        tar.getmembers()
        return tar.offset


def test_linked_folders_are_named(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "images", blob(3))
    (folder / "more").symlink_to(save_folder(tmp_path / "others", blob(2)))
    (folder / "loop").symlink_to(folder)
    expected = "is a link to a folder, which is not followed: give that folder by itself"
    assert reasons(folder) == {"more": expected, "loop": expected}


def test_what_is_packed_is_unpacked_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("congeal.images.sources.arrays.MOST_UNPACKED", 10_000)
    monkeypatch.setattr("congeal.images.formats.array_files.MOST_UNPACKED", 10_000)
    images = np.zeros((30, 28, 28), np.uint8)
    np.savez_compressed(tmp_path / "a.npz", images)
    with pytest.raises(CongealError, match=r"a.npz.*save it as \.npy"):
        open_images(tmp_path / "a.npz")
    header = bytes([0, 0, 8, 3]) + struct.pack(">III", *images.shape)
    (tmp_path / "a.gz").write_bytes(gzip.compress(header + images.tobytes()))
    with pytest.raises(CongealError, match=r"a\.gz.*unpack it"):
        open_images(tmp_path / "a.gz")


def test_an_idx_that_claims_more_than_there_is(tmp_path: Path) -> None:
    for rank, sizes in ((3, (2**32 - 1,) * 3), (255, (2**31,) * 255)):
        for pack in (bytes, gzip.compress):
            header = bytes([0, 0, 8, rank]) + struct.pack(f">{rank}I", *sizes)
            (tmp_path / "a.idx").write_bytes(pack(header + bytes(100)))
            with pytest.raises(CongealError, match=r"a\.idx"):
                open_images(tmp_path / "a.idx")


@pytest.mark.parametrize("content", ["text", "npy", "array of objects", "header", "encrypted", "nothing"])
def test_npz_with_something_else(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.npz"
    if content == "npy":
        np.save(tmp_path / "a.npy", blob(3))
        (tmp_path / "a.npy").rename(path)
    elif content == "array of objects":
        np.savez(path, np.array([{}, None]))
    elif content == "nothing":
        path.write_bytes(b"")
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("images.npy" if content != "text" else "images", b"\x93NUMPY\x01\x00" + b"?" * 9)
        if content == "encrypted":
            data = bytearray(path.read_bytes())
            for place in (6, data.index(b"PK\1\2") + 8):
                data[place] |= 1
            path.write_bytes(data)
    with pytest.raises(CongealError, match=r"a\.npz"):
        open_images(path)


@pytest.mark.parametrize(
    "about", ["[", '{"format": "congeal-pack-1"}', "\xff", '{"format": "congeal-pack-1", "ids": 3}']
)
def test_a_damaged_list_beside_a_packed_array(tmp_path: Path, about: str) -> None:
    np.save(tmp_path / "a.npy", blob(3))
    (tmp_path / "a.npy.json").write_bytes(about.encode("latin-1"))
    with pytest.raises(CongealError, match=r"a\.npy\.json is damaged"):
        open_images(tmp_path / "a.npy")


def test_nul_in_a_list(tmp_path: Path) -> None:
    save_folder(tmp_path / "images", blob(3))
    (tmp_path / "list.txt").write_bytes(b"images/0.png\nimages/1.png\nimages/\x00.png\n")
    found = reasons(tmp_path / "list.txt")
    (reason,) = found.values()
    assert re.fullmatch(r"cannot be opened \(.*embedded null .*\)", reason)  # in the words of each Python


@pytest.mark.parametrize("kind", ["array", "list", "tiff", "files"])
def test_values_too_large_for_single_precision(tmp_path: Path, kind: str) -> None:
    images = blob(4).astype(np.float64)
    images[2, 3, 3] = 1e39
    if kind == "array":
        found = reasons(images)
    elif kind == "list":
        found = reasons(list(images))
    elif kind == "tiff":
        tifffile.imwrite(tmp_path / "a.tif", images, photometric="minisblack")
        found = reasons(tmp_path / "a.tif")
    else:
        for i, image in enumerate(images):
            tifffile.imwrite(tmp_path / f"{i}.tif", image)
        found = reasons(tmp_path)
    assert list(found.values()) == ["the image has NaN, infinite or huge values (beyond 1e38)"]


def test_values_that_single_precision_cannot_tell_apart() -> None:
    for images in (blob(4) / 255 * 1e-50 - 5e-51, blob(4) / 255 - 1e9):
        stack = prepare(open_images(images), size=24)
        assert bool(stack.images(range(4)).isfinite().all())


def test_a_start_that_cannot_be_inverted_is_named(tmp_path: Path) -> None:
    init = np.stack([np.eye(3)] * 8)
    init[5, 0, 0] = 0
    with pytest.raises(CongealError, match=r"start.*image '5'.*inverted"):
        LSC().fit(blob(), init=init)


@pytest.mark.parametrize(
    "reference", [np.full((24, 24), np.nan), "nothing", object(), np.zeros((24, 24), "U3"), -1, 99]
)
def test_a_reference_that_is_none(reference: object) -> None:
    with pytest.raises(CongealError, match="reference"):
        LSC(reference=reference).fit(blob())


def test_a_run_goes_on_without_them(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "images", blob(4))
    (folder / "huge.tif").write_bytes(lying_tiff())
    os.mkfifo(folder / "pipe.png")
    arguments = ["align", str(folder), "-o", str(tmp_path / "run"), "--method", "lsc", "--size", "24", "--quiet"]
    assert main(arguments) == 0
    assert len((tmp_path / "run" / "skipped.csv").read_text().splitlines()) == 3
