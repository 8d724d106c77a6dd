"""open_images(anything): every format round trip with real files, and each wrong input with its sentence."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import tifffile
import torch
from PIL import Image as Pillow

from congeal.errors import CongealError
from congeal.images import UnreadableImage
from congeal.images.formats.array_files import read_idx
from congeal.images.sources.base import ImageSource
from congeal.images.sources.files import expand_braces, natural_key
from congeal.opening import open_images

RNG = np.random.default_rng(1)
GREY = RNG.integers(0, 256, (5, 8, 6), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (5, 8, 6, 3), dtype=np.uint8)


def save(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Pillow.fromarray(pixels).save(path)


def encoded(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Pillow.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def ids(source: ImageSource) -> list[str]:
    return [source.id(i) for i in range(len(source))]


def same(source: ImageSource, expected: np.ndarray) -> None:
    expected = expected if expected.ndim == 4 else expected[..., None]
    assert len(source) == len(expected)
    for i, pixels in enumerate(expected):
        found = source.read(i).pixels
        assert found.dtype == pixels.dtype
        np.testing.assert_array_equal(found, pixels)


def idx_bytes(array: np.ndarray, code: int) -> bytes:
    head = bytes([0, 0, code, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


def test_arrays_and_tensors() -> None:
    same(open_images(GREY), GREY)
    same(open_images(COLOUR), COLOUR)
    same(open_images(torch.from_numpy(GREY)), GREY)
    same(open_images(torch.from_numpy(COLOUR).permute(0, 3, 1, 2)), COLOUR)
    source = open_images(COLOUR)
    assert (source.shape, source.dtype) == ((8, 6, 3), np.uint8)
    assert np.shares_memory(source.batch([1, 2, 3]), COLOUR)
    np.testing.assert_array_equal(source.batch([3, 0]), COLOUR[[3, 0]])
    half = torch.rand(2, 4, 4).to(torch.bfloat16)
    assert open_images(half).dtype == np.float32


def test_lists() -> None:
    mixed = open_images([GREY[0], COLOUR[0], Pillow.fromarray(COLOUR[1]), torch.from_numpy(COLOUR[2]).permute(2, 0, 1)])
    assert [mixed.read(i).pixels.shape[-1] for i in range(4)] == [1, 3, 3, 3]
    np.testing.assert_array_equal(mixed.read(3).pixels, COLOUR[2])


def test_npy_npz_idx(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", COLOUR)
    source = open_images(tmp_path / "a.npy")
    same(source, COLOUR)
    assert isinstance(source.array, np.memmap)  # type: ignore[attr-defined]
    np.savez(tmp_path / "one.npz", GREY)
    same(open_images(str(tmp_path / "one.npz")), GREY)
    np.savez(tmp_path / "two.npz", labels=np.arange(5), images=GREY)
    same(open_images(tmp_path / "two.npz"), GREY)
    np.savez(tmp_path / "which.npz", a=GREY, b=GREY)
    with pytest.raises(CongealError, match="'images'"):
        open_images(tmp_path / "which.npz")
    (tmp_path / "t-images-idx3-ubyte").write_bytes(idx_bytes(GREY, 8))
    same(open_images(tmp_path / "t-images-idx3-ubyte"), GREY)
    (tmp_path / "t.gz").write_bytes(gzip.compress(idx_bytes(GREY, 8)))
    same(open_images(tmp_path / "t.gz"), GREY)
    shorts = RNG.integers(-500, 500, (3, 4, 5)).astype(np.int16)
    (tmp_path / "s.idx").write_bytes(idx_bytes(shorts, 0x0B))
    same(open_images(tmp_path / "s.idx"), shorts)
    np.testing.assert_array_equal(open_images(tmp_path / "s.idx").batch([0, 2])[..., 0], shorts[[0, 2]])


def test_broken_arrays_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "o.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(CongealError, match="not a readable"):
        open_images(tmp_path / "o.npy")
    (tmp_path / "e.npy").write_bytes(b"")
    with pytest.raises(CongealError, match=r"e\.npy"):
        open_images(tmp_path / "e.npy")
    (tmp_path / "e.npz").write_bytes(b"PK nonsense")
    with pytest.raises(CongealError, match=r"e\.npz"):
        open_images(tmp_path / "e.npz")
    (tmp_path / "labels-idx1-ubyte").write_bytes(idx_bytes(np.arange(5, dtype=np.uint8), 8))
    with pytest.raises(CongealError, match="label"):
        open_images(tmp_path / "labels-idx1-ubyte")
    (tmp_path / "empty-images-idx3-ubyte").write_bytes(b"")
    with pytest.raises(CongealError, match=r"empty-images-idx3-ubyte is an empty file"):
        read_idx(tmp_path / "empty-images-idx3-ubyte")
    (tmp_path / "short.idx").write_bytes(idx_bytes(GREY, 8)[:-9])
    with pytest.raises(CongealError, match="cut short"):
        open_images(tmp_path / "short.idx")


@pytest.mark.parametrize("shape", [(5,), (5, 4), (2, 3, 4, 5, 6)])
def test_wrong_rank(shape: tuple[int, ...]) -> None:
    with pytest.raises(CongealError, match=r"\(N, H, W\)"):
        open_images(np.zeros(shape))
    with pytest.raises(CongealError, match=r"\(N, C, H, W\)"):
        open_images(torch.zeros(shape))


def test_nan_and_inf_are_reasons() -> None:
    images = np.zeros((3, 4, 4))
    images[1, 2, 2], images[2, 0, 0] = np.nan, np.inf
    source = open_images(images)
    source.read(0)
    for i in (1, 2):
        with pytest.raises(UnreadableImage, match="NaN"):
            source.read(i)


def test_folder_is_recursive_natural_and_skips_hidden(tmp_path: Path) -> None:
    for name in ("img10.png", "img2.png", "sub/b.png", ".hidden.png", ".git/x.png", "img1.PNG"):
        save(tmp_path / name, GREY[0])
    (tmp_path / "notes.csv").write_text("not an image")
    source = open_images(tmp_path)
    assert ids(source) == ["img1.PNG", "img2.png", "img10.png", "sub/b.png"]
    assert source.shape is None
    assert ids(source.limit(2)) == ["img1.PNG", "img2.png"]
    assert ids(open_images(str(tmp_path), limit=3)) == ["img1.PNG", "img2.png", "img10.png"]
    assert len(source.limit(None)) == 4
    with pytest.raises(CongealError, match="at least 1"):
        source.limit(0)


def test_natural_sort() -> None:
    names = ["a10", "a9", "a1b2", "a1b10", "b", "10", "9"]
    assert sorted(names, key=natural_key) == ["9", "10", "a1b2", "a1b10", "a9", "a10", "b"]


def test_globs_and_lists(tmp_path: Path) -> None:
    for k in range(3):
        save(tmp_path / f"set/{k}.png", COLOUR[k])
    source = open_images(str(tmp_path / "set" / "*.png"))
    same(source, COLOUR[:3])
    assert ids(source) == ["0.png", "1.png", "2.png"]
    assert len(open_images(str(tmp_path / "**" / "[01].png"))) == 2
    (tmp_path / "list.txt").write_text("# comment\nset/2.png\n\nset/0.png\n")
    listed = open_images(tmp_path / "list.txt")
    same(listed, COLOUR[[2, 0]])
    (tmp_path / "gone.lst").write_text("set/2.png\nset/9.png\nset/2.png\n")
    gone = open_images(tmp_path / "gone.lst")
    assert ids(gone) == ["2.png", "9.png", "2.png#2"]
    with pytest.raises(UnreadableImage, match="cannot be opened"):
        gone.read(1)
    paths = [tmp_path / "set/1.png", str(tmp_path / "set/0.png")]
    same(open_images(paths), COLOUR[[1, 0]])
    with pytest.raises(CongealError, match="no file matches"):
        open_images(str(tmp_path / "*.jpg"))


def test_braces() -> None:
    assert expand_braces("s-{08..10}.tar") == ["s-08.tar", "s-09.tar", "s-10.tar"]
    assert expand_braces("{a,b}/{1..2}") == ["a/1", "a/2", "b/1", "b/2"]


def test_tiff_stacks(tmp_path: Path) -> None:
    path = tmp_path / "s.tif"
    tifffile.imwrite(path, GREY, photometric="minisblack")
    source = open_images(path)
    same(source, GREY)
    assert source.layout == "tiff"
    assert source.shape == (8, 6, 1)
    tifffile.imwrite(path, COLOUR, photometric="rgb", compression="zlib")
    same(open_images(path), COLOUR)
    planar = np.moveaxis(COLOUR, -1, 1)
    tifffile.imwrite(path, planar, photometric="rgb", planarconfig="separate")
    same(open_images(path), COLOUR)
    hyper = RNG.integers(0, 65536, (2, 3, 4, 8, 6), dtype=np.uint16)  # TZCYX
    tifffile.imwrite(path, hyper, imagej=True, metadata={"axes": "TZCYX"})
    same(open_images(path, z="planes"), np.moveaxis(hyper, 2, -1).reshape(6, 8, 6, 4))
    tifffile.imwrite(path, COLOUR[0], photometric="rgb")
    same(open_images(path), COLOUR[:1])
    with tifffile.TiffWriter(path) as file:
        file.write(GREY[0])
        file.write(GREY[1, :5])
    mixed = open_images(path)
    assert [mixed.read(i).pixels.shape for i in range(2)] == [(8, 6, 1), (5, 6, 1)]
    path.write_bytes(b"II*\0 this is no TIFF")
    with pytest.raises(CongealError, match=r"s\.tif"):
        open_images(path)


def test_a_damaged_page_is_skipped_not_fatal(tmp_path: Path) -> None:
    path = tmp_path / "s.tif"
    tifffile.imwrite(path, GREY, photometric="minisblack", compression="zlib", rowsperstrip=8, contiguous=False)
    with tifffile.TiffFile(path) as file:
        offset = file.pages[2].dataoffsets[0]
    data = bytearray(path.read_bytes())
    data[offset : offset + 8] = b"\xff" * 8
    path.write_bytes(data)
    source = open_images(path)
    np.testing.assert_array_equal(source.read(1).pixels[..., 0], GREY[1])
    with pytest.raises(UnreadableImage, match="damaged page"):
        source.read(2)


def write_shard(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def test_shards(tmp_path: Path) -> None:
    write_shard(
        tmp_path / "s-000.tar", {"d/a.png": encoded(COLOUR[0]), "d/a.json": b"{}", "d/b.png": encoded(COLOUR[1])}
    )
    write_shard(tmp_path / "s-001.tar", {"c.cls": b"3", "c.png": encoded(COLOUR[2]), "e.png": b"junk"})
    source = open_images(str(tmp_path / "s-{000..001}.tar"))
    assert ids(source) == ["d/a", "d/b", "c", "e"]
    same(source.limit(3), COLOUR[:3])
    assert source.shard_of(2) == ("s-001.tar", "c")
    with pytest.raises(UnreadableImage, match="not an image"):
        source.read(3)
    assert len(open_images(tmp_path)) == len(open_images(str(tmp_path / "*.tar"))) == 4
    assert len(open_images(tmp_path / "s-000.tar")) == 2
    (tmp_path / "bad.tar").write_bytes(b"no tar at all")
    with pytest.raises(CongealError, match=r"bad\.tar"):
        open_images(tmp_path / "bad.tar")


def test_parquet(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    images = [encoded(pixels) for pixels in COLOUR]
    parquet.write_table(arrow.table({"id": list("abcde"), "image": images}), tmp_path / "a.parquet", row_group_size=2)
    source = open_images(tmp_path / "a.parquet")
    same(source, COLOUR)
    assert ids(source) == list("abcde")
    structs = [{"bytes": data, "path": f"{k}.png"} for k, data in enumerate(images)]
    structs[1]["bytes"] = None
    parquet.write_table(arrow.table({"label": list(range(5)), "image": structs}), tmp_path / "b.parquet")
    hub = open_images(tmp_path / "b.parquet")
    assert ids(hub)[:2] == ["0.png", "1.png"]
    np.testing.assert_array_equal(hub.read(4).pixels, COLOUR[4])
    with pytest.raises(UnreadableImage, match="no image in this row"):
        hub.read(1)
    nested = arrow.array(GREY.tolist(), type=arrow.list_(arrow.list_(arrow.uint8())))
    parquet.write_table(arrow.table({"pixels": nested}), tmp_path / "c.parquet")
    same(open_images(tmp_path / "c.parquet"), GREY)
    parquet.write_table(arrow.table({"label": [1, 2]}), tmp_path / "d.parquet")
    with pytest.raises(CongealError, match="label"):
        open_images(tmp_path / "d.parquet")
    with pytest.raises(CongealError, match="other columns"):
        open_images(str(tmp_path / "[ab].parquet"))
    (tmp_path / "e.parquet").write_bytes((tmp_path / "a.parquet").read_bytes())
    both = open_images(str(tmp_path / "[ae].parquet"))
    same(both, np.concatenate([COLOUR, COLOUR]))
    assert ids(both)[5] == "a#2"


def test_urls(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    for k in range(3):
        memory.pipe(f"/set/{k}.png", encoded(COLOUR[k]))
    memory.pipe("/set/readme.md", b"words")
    source = open_images("memory://set")
    same(source, COLOUR[:3])
    assert ids(source) == ["0.png", "1.png", "2.png"]
    same(open_images("memory://set/1.png"), COLOUR[1:2])
    assert len(open_images("memory://set/[01].png")) == 2
    buffer = io.BytesIO()
    np.save(buffer, GREY)
    memory.pipe("/arrays/g.npy", buffer.getvalue())
    same(open_images("memory://arrays/g.npy"), GREY)
    with pytest.raises(CongealError, match="no such"):
        open_images("memory://nowhere")
    save(tmp_path / "a.png", COLOUR[0])
    same(open_images(f"file://{tmp_path}"), COLOUR[:1])
    same(open_images(f"file://{tmp_path}/a.png"), COLOUR[:1])
    with pytest.raises(CongealError, match="nosuchscheme"):
        open_images("nosuchscheme://x")


def test_wrong_paths(tmp_path: Path) -> None:
    with pytest.raises(CongealError, match=r"no images.*\.png"):
        open_images(tmp_path)
    with pytest.raises(CongealError, match="no such file or folder"):
        open_images(tmp_path / "nothing")
    with pytest.raises(CongealError, match="no such file or folder"):
        open_images("nothing-here")
    (tmp_path / "x.doc").write_text("words")
    with pytest.raises(CongealError, match="not a known kind"):
        open_images(tmp_path / "x.doc")
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(CongealError, match="names no images"):
        open_images(tmp_path / "empty.txt")
    for wrong in (5, None, {"a": 1}):
        with pytest.raises(CongealError, match=type(wrong).__name__):
            open_images(wrong)
    with pytest.raises(CongealError, match="empty"):
        open_images([])
    with pytest.raises(CongealError, match="no images"):
        open_images(np.zeros((0, 4, 4)))


def test_fingerprint_follows_the_set() -> None:
    other = GREY.copy()
    other[0, 0, 0] ^= 1
    assert open_images(GREY).fingerprint() == open_images(GREY.copy()).fingerprint()
    assert len({open_images(a).fingerprint() for a in (GREY, other, GREY[:4])}) == 3


def test_opening_images_needs_no_torch(tmp_path: Path) -> None:
    save(tmp_path / "a.png", GREY[0])
    code = f"from congeal.opening import open_images; open_images({str(tmp_path)!r}).read(0)"
    code += "; import sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("name", "dtype", "channels"),
    [
        ("a.png", np.uint8, 1),
        ("a.png", np.uint8, 3),
        ("a.png", np.uint16, 1),
        ("a.jpg", np.uint8, 1),
        ("a.jpg", np.uint8, 3),
        ("a.tif", np.uint8, 3),
        ("a.tif", np.uint16, 1),
        ("a.tif", np.uint16, 3),
        ("a.tif", np.float32, 3),
    ],
)
def test_headers_tell_what_decoding_finds(tmp_path: Path, name: str, dtype: type, channels: int) -> None:
    pixels = (RNG.random((8, 6, channels)) * 250).astype(dtype)
    flat = pixels[..., 0] if channels == 1 else pixels
    if name == "a.tif":
        tifffile.imwrite(tmp_path / name, flat, photometric="rgb" if channels == 3 else "minisblack")
    else:
        Pillow.fromarray(flat).save(tmp_path / name)
    source = open_images(tmp_path)
    found = source.read(0).pixels
    assert source.probe(0) == (*found.shape, found.dtype)


def fingerprint_of(*arguments: Any) -> str:
    return open_images(*arguments).fingerprint()


def test_the_fingerprint_knows_every_array_in_memory() -> None:
    images = np.zeros((100, 4, 4), np.uint8)
    before = {fingerprint_of(kind) for kind in (images, torch.from_numpy(images.copy()), list(images))}
    images[53, 2, 2] = 1  # not one of the 16 that are always looked at
    after = {fingerprint_of(kind) for kind in (images, torch.from_numpy(images.copy()), list(images))}
    assert not before & after


@pytest.mark.parametrize("cheap", [True, False])
def test_the_fingerprint_knows_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cheap: bool) -> None:
    if not cheap:
        monkeypatch.setattr("congeal.images.sources.base.MAX_HASHED_BYTES", 10)
    for i in range(40):
        Pillow.fromarray(GREY[i % len(GREY)]).save(tmp_path / f"{i}.png")
    before = fingerprint_of(tmp_path), fingerprint_of(tmp_path, 20)
    assert before == (fingerprint_of(tmp_path), fingerprint_of(tmp_path, 20))
    if cheap:  # by content: it does not matter when a file was copied
        os.utime(tmp_path / "31.png", ns=(1, 1))
        assert fingerprint_of(tmp_path) == before[0]
    Pillow.fromarray(255 - GREY[0]).save(tmp_path / "31.png")
    assert fingerprint_of(tmp_path) != before[0]
    assert fingerprint_of(tmp_path, 20) == before[1], "only files of the images that are used count"
    (tmp_path / "31.png").unlink()
    (tmp_path / "31.png").symlink_to(tmp_path / "nowhere.png")
    assert fingerprint_of(tmp_path) != before[0]


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.tif"])
def test_the_fingerprint_knows_the_file_of_a_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def write(images: np.ndarray) -> str:
        if name == "a.tif":
            tifffile.imwrite(tmp_path / name, images)
        else:
            (np.save if name == "a.npy" else np.savez)(tmp_path / name, images)
        return fingerprint_of(tmp_path / name)

    images = np.zeros((100, 4, 4), np.uint8)
    before, changed = write(images), images.copy()
    assert write(images) == before
    changed[53, 2, 2] = 1
    assert write(changed) != before
    monkeypatch.setattr("congeal.images.sources.base.MAX_HASHED_BYTES", 10)
    write(images)
    os.utime(tmp_path / name, ns=(1, 1))
    before = fingerprint_of(tmp_path / name)
    write(changed)
    assert fingerprint_of(tmp_path / name) != before, "a large file is known by its time"


def test_a_list_keeps_blanks_that_belong_to_a_name(tmp_path: Path) -> None:
    for name in (" lead.png", "plain.png"):
        save(tmp_path / name, GREY[0])
    (tmp_path / "list.txt").write_text(" lead.png\n  plain.png \r\n")
    assert list(open_images(tmp_path / "list.txt").ids()) == [" lead.png", "plain.png"]
