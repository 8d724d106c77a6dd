"""Single image files: what is kept, what is turned, what is refused and with which words."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
import tifffile
from PIL import Image as Pillow
from PIL import ImageOps

from congeal.images.formats.decode import decode, orient, probe
from congeal.images.sources.base import UnreadableImage

RNG = np.random.default_rng(0)
RGB = RNG.integers(0, 256, (12, 17, 3), dtype=np.uint8)


def png(picture: Pillow.Image, **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", **options)
    return buffer.getvalue()


def tiff(array: np.ndarray, **options: object) -> bytes:
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, array, **options)
    return buffer.getvalue()


def jpeg(orientation: int | None = None) -> bytes:
    buffer = io.BytesIO()
    exif = Pillow.Exif()
    if orientation:
        exif[0x0112] = orientation
    Pillow.fromarray(RGB).save(buffer, "JPEG", quality=95, exif=exif)
    return buffer.getvalue()


def deep_png(array: np.ndarray) -> bytes:
    return pytest.importorskip("imagecodecs").png_encode(array)


def test_rgb_and_grey_are_exact() -> None:
    image = decode(png(Pillow.fromarray(RGB)), "a.png")
    assert image.id == "a.png"
    assert image.mask is None
    np.testing.assert_array_equal(image.pixels, RGB)
    grey = decode(png(Pillow.fromarray(RGB[..., 0])), "g.png").pixels
    np.testing.assert_array_equal(grey, RGB[..., :1])


def test_alpha_becomes_the_mask() -> None:
    rgba = np.dstack([RGB, RNG.integers(0, 256, RGB.shape[:2], dtype=np.uint8)])
    image = decode(png(Pillow.fromarray(rgba)), "a.png")
    np.testing.assert_array_equal(image.pixels, RGB)
    np.testing.assert_allclose(image.mask, rgba[..., 3] / 255, atol=1e-6)
    grey = decode(png(Pillow.fromarray(rgba[..., 2:])), "la.png")
    assert grey.pixels.shape == (12, 17, 1)
    np.testing.assert_allclose(grey.mask, rgba[..., 3] / 255, atol=1e-6)


def test_palette_and_one_bit() -> None:
    palette = Pillow.fromarray(RGB).quantize(256)
    image = decode(png(palette), "p.png")
    np.testing.assert_array_equal(image.pixels, np.asarray(palette.convert("RGB")))
    transparent = decode(png(palette, transparency=0), "p.png")
    np.testing.assert_array_equal(transparent.mask == 0, np.asarray(palette) == 0)
    bits = RGB[..., 0] > 128
    one = decode(png(Pillow.fromarray(bits)), "1.png").pixels
    assert one.dtype == np.uint8
    np.testing.assert_array_equal(one[..., 0], bits * np.uint8(255))


def test_sixteen_bit_grey_is_kept() -> None:
    deep = RNG.integers(0, 65536, (9, 8), dtype=np.uint16)
    image = decode(png(Pillow.fromarray(deep)), "d.png")
    assert image.pixels.dtype == np.uint16
    np.testing.assert_array_equal(image.pixels[..., 0], deep)


@pytest.mark.parametrize("channels", [2, 3, 4])
def test_sixteen_bit_colour_png_keeps_its_depth(channels: int) -> None:
    deep = RNG.integers(0, 65536, (9, 8, channels), dtype=np.uint16)
    image = decode(deep_png(deep), "d.png")
    colours = channels - (channels in (2, 4))
    np.testing.assert_array_equal(image.pixels, deep[..., :colours])
    assert (image.mask is not None) == (channels in (2, 4))


def test_sixteen_bit_colour_png_without_the_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    data = deep_png(RNG.integers(0, 65536, (9, 8, 3), dtype=np.uint16))
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    with pytest.raises(UnreadableImage, match=r"pip install 'congeal\[formats\]'"):
        decode(data, "d.png")


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_exif_orientation(orientation: int) -> None:
    data = jpeg(orientation)
    with Pillow.open(io.BytesIO(data)) as picture:
        upright = np.asarray(ImageOps.exif_transpose(picture))
    image = decode(data, "o.jpg")
    assert image.orientation == orientation
    np.testing.assert_array_equal(image.pixels, upright)
    header = probe(data, "o.jpg")
    assert header is not None
    assert header[:3] == upright.shape
    array = np.arange(6).reshape(2, 3)
    assert orient(array, orientation).shape == ((2, 3) if orientation < 5 else (3, 2))


def test_tiff_types_and_layouts() -> None:
    for dtype in (np.uint8, np.uint16, np.int16, np.float32):
        grey = RNG.integers(0, 100, (7, 9)).astype(dtype)
        pixels = decode(tiff(grey), "t.tif").pixels
        assert pixels.dtype == dtype
        np.testing.assert_array_equal(pixels[..., 0], grey)
    planar = RNG.integers(0, 65536, (3, 7, 9), dtype=np.uint16)
    data = tiff(planar, photometric="rgb", planarconfig="separate")
    np.testing.assert_array_equal(decode(data, "t.tif").pixels, np.moveaxis(planar, 0, -1))
    five = RNG.integers(0, 255, (5, 7, 9), dtype=np.uint8)
    data = tiff(five, imagej=True, metadata={"axes": "CYX"})
    np.testing.assert_array_equal(decode(data, "t.tif").pixels, np.moveaxis(five, 0, -1))
    rgba = RNG.integers(0, 255, (7, 9, 4), dtype=np.uint8)
    image = decode(tiff(rgba, photometric="rgb", extrasamples=["unassalpha"]), "t.tif")
    np.testing.assert_array_equal(image.pixels, rgba[..., :3])
    np.testing.assert_allclose(image.mask, rgba[..., 3] / 255, atol=1e-6)


def test_a_tiff_of_several_pages_in_a_folder_has_a_reason() -> None:
    with pytest.raises(UnreadableImage, match="6 pages"):
        decode(tiff(np.zeros((6, 8, 8), np.uint8), photometric="minisblack"), "t.tif")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"just some words, not pixels", "not an image"),
        (jpeg()[:300], "truncated|damaged"),
        (png(Pillow.fromarray(RGB))[:200], "truncated|damaged"),
        (tiff(RGB)[:100], "damaged"),
        (tiff(np.full((4, 4), np.nan, np.float32)), "NaN"),
    ],
    ids=["empty", "text", "jpeg", "png", "tiff", "nan"],
)
def test_bad_files_have_reasons(data: bytes, reason: str) -> None:
    with pytest.raises(UnreadableImage, match=reason):
        decode(data, "bad")
