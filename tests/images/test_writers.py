"""What comes in goes out: dtype, depth, channels, container; resumable, atomic; packing; resampling."""

from __future__ import annotations

import errno
import io
import json
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image as Pillow

from congeal.errors import CongealError, RunFailed
from congeal.execution.threads import map_ordered
from congeal.geometry.frame_coverage import covered
from congeal.geometry.warping import coverage, warp
from congeal.images import open_writer, pack, prepare, warp_image, warp_pixel_batch, warp_pixels
from congeal.images.canvas import place, put_on_canvas
from congeal.images.formats.output_files import png_bytes
from congeal.images.formats.writers import NpyWriter, RowWriter
from congeal.images.resample import Sampling
from congeal.images.sources.base import ImageSource, Indices
from congeal.opening import open_images

RNG = np.random.default_rng(3)
SHIFT = np.array([[1.0, 0, 2], [0, 1, 1], [0, 0, 1]])  # source_from_aligned: look 2 right, 1 down


def copy_through(source: ImageSource, folder: Path, format: str = "auto") -> None:
    """Write every readable image of one size unchanged."""
    size = source.read(0).pixels.shape[:2]
    with open_writer(folder, source, (size[0], size[1]), format) as writer:
        for i in range(len(source)):
            image = warp_image(source.read(i), np.eye(3), (size[0], size[1]))
            assert not writer.done(i)
            writer.write(i, image.pixels, image.mask)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_png_holds_every_value(dtype: type, channels: int) -> None:
    rng = np.random.default_rng(channels)
    for height, width in ((1, 1), (1, 9), (9, 1), (40, 50), (7, 301)):
        pixels = rng.integers(0, np.iinfo(dtype).max, (height, width, channels), dtype=dtype, endpoint=True)
        data = png_bytes(pixels)
        with Pillow.open(io.BytesIO(data)) as picture:
            picture.verify()
            assert picture.size == (width, height)
        if dtype == np.uint16 and channels > 1:  # Pillow reads these with 8 bits
            back = pytest.importorskip("imagecodecs").png_decode(data)
        else:
            back = np.array(Pillow.open(io.BytesIO(data)))
        np.testing.assert_array_equal(back.reshape(pixels.shape), pixels)


def test_png_finds_what_repeats() -> None:
    """What repeats is stored once; noise is no larger than its bytes."""
    rng = np.random.default_rng(0)
    pattern = np.tile(rng.integers(0, 256, (16, 90, 1), dtype=np.uint8), (20, 4, 1))
    assert len(png_bytes(pattern)) < pattern.size / 20
    noise = rng.integers(0, 256, (320, 360, 1), dtype=np.uint8)
    assert len(png_bytes(noise)) < 1.01 * noise.size


def test_the_same_pixels_are_the_same_png_in_any_thread_and_after_any_other() -> None:
    """What a compressor keeps of the picture before, or of another thread's, must not show."""
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 1 + k, (5 + 3 * k, 40, 1 + k % 4), dtype=np.uint8) for k in range(40)]
    alone = [png_bytes(picture) for picture in pictures]
    order = rng.permutation(np.repeat(np.arange(40), 25))
    with ThreadPoolExecutor(4) as pool:
        again = list(pool.map(png_bytes, [pictures[k] for k in order]))
    assert again == [alone[k] for k in order]


def test_warp_pixels_keeps_dtype_and_moves_exactly() -> None:
    for dtype in (np.uint8, np.uint16, np.int16, np.int32, np.float32, np.float64, bool):
        pixels = (RNG.random((9, 11, 2)) * 200).astype(dtype)
        same = warp_pixels(pixels, np.eye(3), (9, 11))
        assert same.dtype == dtype
        np.testing.assert_array_equal(same, pixels)
        moved = warp_pixels(pixels, SHIFT, (9, 11))
        np.testing.assert_allclose(moved[:8, :9].astype(float), pixels[1:, 2:].astype(float), rtol=1e-5, atol=1e-5)
        assert not moved[8:].any()
    grey = RNG.integers(0, 2**31, (5, 5), dtype=np.int64)
    np.testing.assert_array_equal(warp_pixels(grey, np.eye(3), (5, 5)), grey)
    with pytest.raises(CongealError, match="pixels must be"):
        warp_pixels(np.zeros(3), np.eye(3), (2, 2))


def test_bicubic_overshoot_is_clipped() -> None:
    step = np.zeros((8, 8, 1), np.uint8)
    step[:, 4:] = 255
    half = np.array([[1.0, 0, 0.5], [0, 1, 0], [0, 0, 1]])
    for kernel in ("bicubic", "lanczos"):
        out = warp_pixels(step, half, (8, 8), Sampling(kernel, "edge"))
        assert (out[:, 3] > 120).all()
        assert (out[:, 0] < 20).all()
        assert (out[:, 6] > 240).all()
        ramp = warp_pixels((50 + step // 4).astype(np.uint8), half, (8, 8), Sampling(kernel, "edge"))
        assert ramp.min() == 50, "nor does it ring below the darkest pixel"
        assert ramp.max() == 50 + 63


def test_shrinking_a_photo_does_not_alias() -> None:
    stripes = np.tile(np.array([0, 255], np.uint8), (400, 200))[..., None]
    from_small = np.array([[8.0, 0, 3.5], [0, 8, 3.5], [0, 0, 1]])
    out = warp_pixels(stripes, from_small, (50, 50))
    assert np.abs(out.astype(float) - 127.5).max() < 8
    spot = np.exp(-((np.mgrid[:400, :400] - np.array([160, 250])[:, None, None]) ** 2).sum(0) / 800).astype(np.float32)
    small = warp_pixels(spot, from_small, (50, 50))
    rows, columns = np.mgrid[:50, :50]
    found = np.array([(columns * small).sum(), (rows * small).sum()]) / small.sum()
    np.testing.assert_allclose(found * 8 + 3.5, [250, 160], atol=0.1)


def test_batch_equals_single() -> None:
    pixels = RNG.integers(0, 256, (4, 9, 9, 3), dtype=np.uint8)
    matrices = np.eye(3) + RNG.normal(0, 0.05, (4, 3, 3)) * [[1, 1, 1], [1, 1, 1], [0.01, 0.01, 0]]
    batch = warp_pixel_batch(pixels, matrices, (9, 9))
    for k in range(4):
        np.testing.assert_array_equal(batch[k], warp_pixels(pixels[k], matrices[k], (9, 9)))


def far_apart(n: int) -> np.ndarray:
    """(n,3,3) source_from_aligned with perspective: turned, shifted out of the frame, one with a horizon in it."""
    rng = np.random.default_rng(n)
    matrices = np.eye(3) + rng.normal(0, 0.2, (n, 3, 3)) * [[1, 1, 20], [1, 1, 20], [0.01, 0.01, 0]]
    matrices[-1, 2, 0] = -0.04
    return matrices


def test_parts_make_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image sampled a few rows at a time is the image `warp` samples at once."""
    pixels = np.random.default_rng(0).integers(0, 256, (4, 30, 41, 3), dtype=np.uint8)
    matrices, size = far_apart(4), (37, 29)
    whole = warp(torch.from_numpy(pixels).permute(0, 3, 1, 2).double(), torch.from_numpy(matrices), size)
    for at_once in (1, 200, 3000):
        monkeypatch.setattr("congeal.images.resample.PIXELS_AT_ONCE", at_once)
        out = warp_pixel_batch(pixels, matrices, size, Sampling("bilinear"))
        assert np.abs(out - whole.permute(0, 2, 3, 1).numpy()).max() < 0.51
        cover = covered(matrices, (30, 41), size)
        np.testing.assert_allclose(cover, coverage(torch.from_numpy(matrices), (30, 41), size)[:, 0], atol=2e-4)
        assert ((cover > 0) & (cover < 1)).any()
        assert (cover == 1).any()


def test_identity_is_exact_among_others() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 9, 9, 3), dtype=np.uint8)
    matrices = np.stack([SHIFT, np.eye(3), SHIFT])
    out = warp_pixel_batch(pixels, matrices, (9, 9))
    np.testing.assert_array_equal(out[1], pixels[1])
    assert (out[0] != pixels[0]).any()
    assert not np.shares_memory(warp_pixels(pixels[0], np.eye(3), (9, 9)), pixels)
    assert (covered(matrices[1:2], (9, 9), (9, 9)) == 1).all()


def test_the_filter_for_shrinking_is_the_same_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    pixels, mask = rng.integers(0, 256, (90, 70, 3), dtype=np.uint8), rng.random((90, 70)).astype(np.float32)
    for canvas in ((20, 31), (91, 40), (3, 3)):
        placement = place((90, 70), canvas)
        results = []
        for at_once in (1, 8, 1000):
            monkeypatch.setattr("congeal.images.canvas.BAND_PIXELS", at_once)
            results.append(put_on_canvas(pixels, canvas, placement, mask))
        for values, cover in results[1:]:
            np.testing.assert_allclose(values, results[0][0], atol=1e-3)
            np.testing.assert_allclose(cover, results[0][1], atol=1e-5)


@pytest.mark.parametrize(
    ("name", "dtype", "channels", "out"),
    [
        ("a.png", np.uint8, 1, "a.png"),
        ("a.png", np.uint8, 3, "a.png"),
        ("a.png", np.uint8, 4, "a.png"),
        ("a.png", np.uint8, 2, "a.png"),
        ("a.bmp", np.uint8, 3, "a.png"),
        ("a.png", np.uint16, 1, "a.png"),
        ("a.png", np.uint16, 3, "a.tif"),
        ("a.png", np.uint16, 4, "a.tif"),
        ("a.tif", np.uint8, 3, "a.tif"),
        ("a.tif", np.uint16, 3, "a.tif"),
        ("a.tif", np.uint16, 5, "a.tif"),
        ("a.tif", np.float32, 1, "a.tif"),
        ("a.tif", np.float32, 3, "a.tif"),
        ("a.tif", np.int16, 1, "a.tif"),
    ],
)
def test_files_keep_type_and_channels(tmp_path: Path, name: str, dtype: type, channels: int, out: str) -> None:
    pixels = (RNG.random((8, 6, channels)) * 250).astype(dtype)
    path = tmp_path / "in" / "deep" / name
    path.parent.mkdir(parents=True)
    flat = pixels[..., 0] if channels == 1 else pixels
    if name.endswith(".tif"):
        photometric = "rgb" if channels == 3 else "minisblack"
        tifffile.imwrite(path, flat, photometric=photometric, planarconfig="contig" if channels > 1 else None)
    elif dtype == np.uint16 and channels > 1:
        path.write_bytes(pytest.importorskip("imagecodecs").png_encode(flat))
    else:
        Pillow.fromarray(flat).save(path)
    source = open_images(tmp_path / "in")
    copy_through(source, tmp_path / "out")
    assert (tmp_path / "out" / "deep" / out).exists()
    before, after = source.read(0), open_images(tmp_path / "out").read(0)
    assert after.pixels.dtype == dtype
    np.testing.assert_array_equal(after.pixels, before.pixels)
    if before.mask is not None:
        np.testing.assert_allclose(after.mask, before.mask, atol=1e-6)


def test_names_that_would_collide_stay_apart(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a.png", "a.bmp", "b.jpg"):
        Pillow.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / "in" / name)
    copy_through(open_images(tmp_path / "in"), tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["a.bmp.png", "a.png.png", "b.png"]


def test_ids_cannot_leave_the_folder(tmp_path: Path) -> None:
    source = open_images([np.zeros((4, 4), np.uint8)])
    source.id = lambda i: "../../outside.png"  # type: ignore[method-assign]
    copy_through(source, tmp_path / "out")
    assert [p.name for p in tmp_path.rglob("*.png")] == ["outside.png"]
    assert (tmp_path / "out" / "outside.png").exists()


@pytest.mark.parametrize("shape", [(3, 8, 6), (3, 8, 6, 1), (3, 8, 6, 3)])
def test_array_in_array_out(tmp_path: Path, shape: tuple[int, ...]) -> None:
    array = RNG.integers(0, 60000, shape, dtype=np.uint16)
    copy_through(open_images(array), tmp_path)
    out = np.load(tmp_path / "aligned.npy")
    assert out.dtype == array.dtype
    np.testing.assert_array_equal(out, array)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["aligned.npy"]


@pytest.mark.parametrize("options", [{}, {"compression": "zlib"}])
@pytest.mark.parametrize("shape", [(3, 8, 6), (3, 8, 6, 3)])
def test_tiff_stack_in_tiff_stack_out(tmp_path: Path, shape: tuple[int, ...], options: dict[str, str]) -> None:
    array = RNG.integers(0, 60000, shape, dtype=np.uint16)
    tifffile.imwrite(tmp_path / "in.tif", array, photometric="rgb" if len(shape) == 4 else "minisblack", **options)
    copy_through(open_images(tmp_path / "in.tif"), tmp_path / "out")
    with tifffile.TiffFile(tmp_path / "out" / "aligned.tif") as file:
        assert len(file.pages) == 3
    out = open_images(tmp_path / "out" / "aligned.tif")
    np.testing.assert_array_equal(out.batch(range(3)).reshape(shape), array)


def test_shards_in_shards_out(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (4, 8, 6, 3), dtype=np.uint8)
    for shard in range(2):
        with tarfile.open(tmp_path / f"s-{shard}.tar", "w") as tar:
            for k in range(2):
                buffer = io.BytesIO()
                Pillow.fromarray(images[2 * shard + k]).save(buffer, "PNG")
                info = tarfile.TarInfo(f"d/{shard}{k}.png")
                info.size = buffer.tell()
                tar.addfile(info, io.BytesIO(buffer.getvalue()))
    source = open_images(str(tmp_path / "s-{0..1}.tar"))
    copy_through(source, tmp_path / "out")
    out = open_images(tmp_path / "out")
    assert [out.shard_of(i) for i in range(4)] == [source.shard_of(i) for i in range(4)]
    np.testing.assert_array_equal(out.batch(range(4)), images)
    # A run that stopped inside the second shard keeps the first and writes the second anew.
    (tmp_path / "out" / "s-1.tar").unlink()
    again = open_writer(tmp_path / "out", source.limit(4), (8, 6))
    assert [again.done(i) for i in range(4)] == [True, True, False, False]


def test_anything_goes_into_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("congeal.images.formats.shards.SHARD_IMAGES", 4)
    images = RNG.integers(0, 256, (10, 8, 6), dtype=np.uint8)
    copy_through(open_images(images), tmp_path / "out", format="shards")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [f"aligned-0000{k}.tar" for k in range(3)]
    out = open_images(tmp_path / "out")
    assert out.ids() == [str(i) for i in range(10)]
    np.testing.assert_array_equal(out.batch(range(10))[..., 0], images)


def test_keys_that_would_collide_are_numbered(tmp_path: Path) -> None:
    for name in ("a.png", "a.bmp", "b.c.png"):
        Pillow.fromarray(RNG.integers(0, 256, (8, 6), dtype=np.uint8)).save(tmp_path / name)
    copy_through(open_images(tmp_path), tmp_path / "out", format="shards")
    assert list(open_images(tmp_path / "out").ids()) == ["00000000-a", "00000001-a", "00000002-b_c"]


@pytest.mark.parametrize("format", ["files", "npy"])
def test_a_stopped_run_resumes(tmp_path: Path, format: str) -> None:
    array = RNG.integers(0, 256, (5, 8, 6), dtype=np.uint8)
    source = open_images(array)

    def interrupted() -> None:
        with open_writer(tmp_path, source, (8, 6), format) as writer:
            for i in (0, 3):
                writer.write(i, source.read(i).pixels)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not (tmp_path / "aligned.npy").exists()
    with open_writer(tmp_path, source, (8, 6), format) as writer:
        todo = [i for i in range(5) if not writer.done(i)]
        assert todo == [1, 2, 4]
        for i in todo:
            writer.write(i, source.read(i).pixels)
    found = open_images(tmp_path / "aligned.npy" if format == "npy" else tmp_path)
    np.testing.assert_array_equal(found.batch(range(5))[..., 0], array)
    finished = open_writer(tmp_path, source, (8, 6), format)
    assert all(finished.done(i) for i in range(5))


def test_different_images_do_not_fit_one_array(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, open_images([np.zeros((4, 4), np.uint8)] * 2), (4, 4), "npy")
    writer.write(0, np.zeros((4, 4, 1), np.uint8))
    with pytest.raises(CongealError, match="write files"):
        writer.write(1, np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(CongealError, match="unknown output format"):
        open_writer(tmp_path, open_images(np.zeros((1, 4, 4))), (4, 4), "jpeg2000")


def test_refusals_of_the_disk_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CongealError, match="cannot write"):
        open_writer(tmp_path / "file" / "out", open_images(np.zeros((1, 4, 4))), (4, 4))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    source = open_images([np.zeros((4, 4), np.uint8)])
    writer = open_writer(tmp_path / "out", source, (4, 4))
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", full)
        with pytest.raises(CongealError, match=r"the disk is full: could not write .*0\.png; free some space"):
            writer.write(0, source.read(0).pixels)
    assert list((tmp_path / "out").iterdir()) == []
    with monkeypatch.context() as patch:
        patch.setattr("os.posix_fallocate", full, raising=False)
        with pytest.raises(CongealError, match="the disk is full"):
            open_writer(tmp_path / "out", source, (4, 4), "npy").write(0, source.read(0).pixels)


@pytest.mark.parametrize("format", ["files", "npy", "tiff", "shards", "pack"])
@pytest.mark.parametrize(
    ("number", "kind", "says"),
    [(errno.ENOSPC, RunFailed, "the disk is full: could not write"), (errno.EACCES, CongealError, "cannot write to")],
)
def test_every_way_of_writing_has_the_same_errors(
    tmp_path: Path, format: str, number: int, kind: type[CongealError], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_images(np.zeros((2, 4, 4), np.uint8))

    def refused(*_: object) -> None:
        raise OSError(number, "no")

    def write() -> None:
        if format == "pack":
            pack(source, tmp_path / "out.npy")
            return
        with open_writer(tmp_path / "out", source, (4, 4), format) as writer:
            writer.write(0, source.read(0).pixels)

    monkeypatch.setattr("os.replace", refused)
    with pytest.raises(kind, match=says):
        write()
    assert [path.name for path in tmp_path.iterdir()] == ([] if format == "pack" else ["out"])


def test_what_a_killed_process_was_writing_is_swept_away(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".aligned-00000.tar.123.tmp").write_bytes(b"half of it")
    open_writer(tmp_path / "out", open_images(np.zeros((2, 4, 4), np.uint8)), (4, 4), "shards")
    assert list((tmp_path / "out").iterdir()) == []


def test_pack_one_size(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    images = RNG.integers(0, 256, (3, 8, 6, 3), dtype=np.uint8)
    for k, pixels in enumerate(images):
        Pillow.fromarray(pixels).save(tmp_path / "in" / f"{k}.png")
    (tmp_path / "in" / "1b.png").write_text("words")
    packed = pack(open_images(tmp_path / "in"), tmp_path / "p.npy")
    assert [packed.id(i) for i in range(4)] == ["0.png", "1.png", "1b.png", "2.png"]
    array = np.load(tmp_path / "p.npy")
    np.testing.assert_array_equal(array[[0, 1, 3]], images)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "p.npy", "p.npy.json"]
    stack = prepare(open_images(tmp_path / "p.npy"))
    assert [(s.id, s.reason) for s in stack.skipped] == [("1b.png", "not an image, or a format that cannot be read")]
    assert stack.masks([0]) is None
    with pytest.raises(CongealError, match=r"\.npy"):
        pack(open_images(images), tmp_path / "p.tar")


def test_pack_mixed_sizes_remembers_the_canvas(tmp_path: Path) -> None:
    items = [RNG.integers(0, 256, shape, dtype=np.uint8) for shape in ((20, 20), (20, 20), (40, 20))]
    packed = pack(open_images(items), tmp_path / "p.npy")
    assert packed.shape == (20, 20, 1)
    np.testing.assert_array_equal(packed.read(0).pixels[..., 0], items[0])
    about = json.loads((tmp_path / "p.npy.json").read_text())
    np.testing.assert_allclose(np.reshape(about["canvas_from_source"]["2"], (3, 3)) @ (9.5, 19.5, 1), (9.5, 9.5, 1))
    stack = prepare(packed)
    masks = stack.masks(range(3))
    assert masks is not None
    np.testing.assert_array_equal(masks[:, 0, 10].sum(1), [20, 20, 10])


def test_pack_mixed_kinds(tmp_path: Path) -> None:
    grey, colour = np.full((8, 8), 10, np.uint8), np.full((8, 8, 3), 20, np.uint8)
    packed = pack(open_images([grey, colour]), tmp_path / "c.npy")
    assert packed.shape == (8, 8, 3)
    deep = pack(open_images([grey, np.full((8, 8), 500, np.uint16)]), tmp_path / "d.npy")
    assert deep.dtype == np.uint16
    assert deep.read(0).pixels.max() == 2570
    floats = pack(open_images([grey, np.full((8, 8), 0.5, np.float32)]), tmp_path / "f.npy")
    assert floats.read(0).pixels[0, 0, 0] == pytest.approx(10 / 255)
    with pytest.raises(CongealError, match="channels"):
        pack(open_images([colour, np.zeros((8, 8, 5), np.uint8)]), tmp_path / "x.npy")


def test_pack_arrays_keeps_starting_warps_and_skips_nan(tmp_path: Path) -> None:
    source = open_images(RNG.random((4, 8, 6)).astype(np.float32))
    source.array[1, 2, 2] = np.nan  # type: ignore[attr-defined]
    source.initial, source.kind = np.broadcast_to(SHIFT, (4, 3, 3)), "object"
    packed = pack(source, tmp_path / "p.npy")
    assert packed.shape == (8, 6, 1)
    assert list(packed.unreadable) == [1]
    np.testing.assert_array_equal(packed.initial, source.initial)
    assert packed.kind == "object"
    np.testing.assert_array_equal(packed.batch([0, 2]), source.batch([0, 2]))
    with pytest.raises(CongealError, match="NaN"):
        pack(open_images(np.full((2, 4, 4), np.nan)), tmp_path / "n.npy")
    assert not (tmp_path / "n.npy").exists()


def test_a_foreign_json_beside_an_array_is_ignored(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 4, 4)))
    (tmp_path / "a.npy.json").write_text("[1, 2]")
    assert len(open_images(tmp_path / "a.npy")) == 2


def test_two_packs_into_one_file_do_not_mix(tmp_path: Path) -> None:
    black, white = (open_images(np.full((5, 8, 8), value, np.uint8)) for value in (1, 255))
    second: list[str] = []

    class Slow(type(black)):  # type: ignore[misc]
        def batch(self, indices: Indices) -> np.ndarray:
            with pytest.raises(CongealError) as error:
                pack(white, tmp_path / "p.npy")
            second.append(str(error.value))
            return super().batch(indices)

    packed = pack(Slow(black.array), tmp_path / "p.npy")  # type: ignore[attr-defined]
    assert "is packing into" in second[0]
    assert (packed.batch(range(5)) == 1).all()
    assert (pack(white, tmp_path / "p.npy").batch(range(5)) == 255).all()
    assert (packed.batch(range(5)) == 1).all(), "who has the old file open keeps it"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.npy", "p.npy.json"]


def test_packing_again_leaves_nothing_of_the_pack_before(tmp_path: Path) -> None:
    mixed = [RNG.integers(0, 256, shape, dtype=np.uint8) for shape in ((20, 20), (40, 20))]
    first = open_images(mixed)
    first.initial, first.initial_size = np.broadcast_to(np.eye(3), (2, 3, 3)), (20, 20)
    old = pack(first, tmp_path / "p.npy")
    pack(open_images(np.zeros((2, 4, 4), np.uint8)), tmp_path / "p.npy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.npy", "p.npy.json"]
    assert old.masks([1]).min() == 0, "its masks are still mapped"


def test_a_pack_stopped_while_it_is_published_leaves_no_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(open_images(np.zeros((2, 4, 4), np.uint8)), tmp_path / "p.npy")

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("congeal.images.packing.put_in_place", stopped)
    with pytest.raises(KeyboardInterrupt):
        pack(open_images(np.ones((2, 4, 4), np.uint8)), tmp_path / "p.npy")
    assert not (tmp_path / "p.npy").exists(), "not the old pixels beside the new ids"


def test_rows_that_threads_write_at_once_go_to_their_places(tmp_path: Path) -> None:
    source = open_images(np.zeros((4000, 3, 5), np.uint8))
    writer = NpyWriter(tmp_path, source, (3, 5))
    room = writer.make_room(np.zeros((1, 3, 5, 1), np.uint8))
    assert room is not None
    pixels = np.random.default_rng(0).integers(0, 256, (4000, 3, 5, 1), dtype=np.uint8)
    rows = RowWriter(room, source)
    runs = np.array_split(np.arange(4000), 400)
    runs[7] = runs[7][[3, 1, 2, 0, *range(4, len(runs[7]))]]  # rows need not follow one another
    list(map_ordered(lambda part: rows.begin_new(part, pixels[part])(), runs, 8))
    rows.close()
    writer.all_written(np.arange(4000))
    writer.close()
    assert np.array_equal(np.load(tmp_path / "aligned.npy"), pixels[..., 0])
