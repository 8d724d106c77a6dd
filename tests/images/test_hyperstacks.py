"""Scientific TIFF stacks come back whole: axes, pixel sizes, time step, channel names, and every number."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from congeal.errors import CongealError
from congeal.images import UnreadableImage, open_writer
from congeal.images.formats.hyperstack import Hyperstack, Step
from congeal.images.intensity import find_channels
from congeal.images.sources.base import ImageSource
from congeal.opening import open_images

RNG = np.random.default_rng(14)
TZCYX = RNG.integers(0, 65536, (3, 2, 4, 20, 16), dtype=np.uint16)
NAMES = ["DAPI", "GFP", "mCherry", "Cy5"]
IMAGEJ = {"axes": "TZCYX", "unit": "um", "spacing": 0.5, "finterval": 2.5, "fps": 0.4, "Info": "by hand"}
OME = {
    "axes": "TZCYX",
    "PhysicalSizeX": 0.11,
    "PhysicalSizeXUnit": "µm",
    "PhysicalSizeY": 0.13,
    "PhysicalSizeYUnit": "µm",
    "PhysicalSizeZ": 0.5,
    "PhysicalSizeZUnit": "µm",
    "TimeIncrement": 2.5,
    "TimeIncrementUnit": "s",
    "Channel": {"Name": NAMES},
    "Plane": {"ExposureTime": [0.1 * i for i in range(24)], "DeltaT": [0.5 * i for i in range(24)]},
}


def imagej(path: Path, array: np.ndarray = TZCYX, **options: Any) -> Path:
    metadata = {**IMAGEJ, "Labels": NAMES * 6, **options.pop("metadata", {})}
    tifffile.imwrite(path, array, imagej=True, resolution=(1 / 0.11, 1 / 0.13), metadata=metadata, **options)
    return path


def ome_tiff(path: Path, array: np.ndarray = TZCYX, **options: Any) -> Path:
    tifffile.imwrite(path, array, ome=True, metadata={**OME, **options.pop("metadata", {})}, **options)
    return path


def copy_through(source: ImageSource, folder: Path, format: str = "auto") -> Path:
    """Write every plane that can be read, unchanged."""
    planes = source.parts or source
    with open_writer(folder, source, planes.probe(0)[:2], format) as writer:
        for i in reversed(range(len(planes))):  # in any order
            try:
                writer.write(i, planes.read(i).pixels)
            except UnreadableImage:
                continue
    assert open_writer(folder, source, planes.probe(0)[:2], format).done(0)
    return folder / "aligned.tif"


def ome_of(path: Path) -> Any:
    ome_types = pytest.importorskip("ome_types")
    return ome_types.from_tiff(path)


# ---- in


@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("write", [imagej, ome_tiff])
def test_axes_and_facts_are_read(tmp_path: Path, write: Any, compression: str | None) -> None:
    path = write(tmp_path / "s.tif", compression=compression)
    planes = open_images(path, z="planes")
    assert len(planes) == 6
    assert planes.id(5) == "t00002-z00001"
    for i in range(6):
        np.testing.assert_array_equal(planes.read(i).pixels, np.moveaxis(TZCYX[i // 2, i % 2], 0, -1))
    assert planes.channel_names == tuple(NAMES)
    stack = planes.hyperstack
    assert stack is not None
    assert {key: (pytest.approx(step.size), step.unit) for key, step in stack.steps.items()} == {
        "X": (0.11, "µm"),
        "Y": (0.13, "µm"),
        "Z": (0.5, "µm"),
        "T": (2.5, "s"),
    }


def test_a_time_point_is_the_projection_of_its_planes(tmp_path: Path) -> None:
    path = ome_tiff(tmp_path / "s.ome.tif")
    for z, expected in (
        (None, TZCYX.max(1)),
        ("project", TZCYX.max(1)),
        ("mean", TZCYX.mean(1, dtype=np.float64).astype(np.float32)),
    ):
        source = open_images(path, z=z)
        assert len(source) == 3
        assert source.ids()[2] == "page-00002"
        assert source.probe(0).channels == 4
        assert source.probe(0).dtype == expected.dtype
        np.testing.assert_array_equal(source.read(1).pixels, np.moveaxis(expected[1], 0, -1))
    assert len({open_images(path, z=z).fingerprint() for z in ("project", "mean", "planes")}) == 3


def test_planes_are_images_where_there_is_only_depth(tmp_path: Path) -> None:
    path = ome_tiff(tmp_path / "s.ome.tif", TZCYX[0], metadata={"axes": "ZCYX", "Plane": {}})
    source = open_images(path)
    assert len(source) == 2
    assert source.parts is None
    with pytest.raises(CongealError, match="one Z stack: projected it is a single image; use --z planes"):
        open_images(path, z="project")


def test_z_is_refused_where_it_means_nothing(tmp_path: Path) -> None:
    path = imagej(tmp_path / "s.tif", TZCYX[:, 0], metadata={"axes": "TCYX", "Labels": NAMES * 3})
    with pytest.raises(CongealError, match=r"s\.tif has no Z axis to project \(its axes are TCYX\)"):
        open_images(path, z="project")
    with pytest.raises(CongealError, match="z is auto, project, mean or planes, not 'max'"):
        open_images(path, z="max")
    with pytest.raises(CongealError, match="no stack with a Z axis: leave out --z planes"):
        open_images(TZCYX[:, 0, 0], z="planes")
    assert len(open_images(TZCYX[:, 0, 0], z="auto")) == 3


# ---- out


def same_pixels(before: Path, after: Path) -> None:
    first, second = tifffile.TiffFile(before), tifffile.TiffFile(after)
    assert [one.axes for one in second.series] == [one.axes for one in first.series]
    assert second.series[0].kind == first.series[0].kind
    for one, other in zip(first.series, second.series, strict=True):
        assert one.dtype == other.dtype
        assert one.asarray().tobytes() == other.asarray().tobytes()


@pytest.mark.parametrize("z", ["project", "planes"])
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_imagej_comes_back(tmp_path: Path, z: str, compression: str | None) -> None:
    before = imagej(tmp_path / "s.tif", compression=compression)
    after = copy_through(open_images(before, z=z), tmp_path / "out")
    same_pixels(before, after)
    first, second = tifffile.TiffFile(before), tifffile.TiffFile(after)
    assert second.imagej_metadata == first.imagej_metadata
    for tag in ("XResolution", "YResolution", "ResolutionUnit", "Compression"):
        assert second.pages[0].tags[tag].value == first.pages[0].tags[tag].value


@pytest.mark.parametrize("z", ["project", "planes"])
@pytest.mark.parametrize("options", [{}, {"compression": "zlib", "predictor": True, "tile": (16, 16)}])
def test_ome_tiff_comes_back(tmp_path: Path, z: str, options: dict[str, Any]) -> None:
    if options:
        pytest.importorskip("imagecodecs")
    before = ome_tiff(tmp_path / "s.ome.tif", **options)
    after = copy_through(open_images(before, z=z), tmp_path / "out")
    same_pixels(before, after)
    first, second = ome_of(before).images[0].pixels, ome_of(after).images[0].pixels
    for pixels in (first, second):
        pixels.tiff_data_blocks, pixels.big_endian, pixels.interleaved = [], None, None
    assert second == first
    assert [channel.name for channel in second.channels] == NAMES
    pages = [tifffile.TiffFile(path).pages[0] for path in (before, after)]
    for what in ("compression", "predictor", "tile"):
        assert getattr(pages[1], what) == getattr(pages[0], what)


def test_what_ome_says_besides_is_kept_and_regions_are_not(tmp_path: Path) -> None:
    ome_types = pytest.importorskip("ome_types")
    ome = ome_types.from_tiff(ome_tiff(tmp_path / "s.ome.tif"))
    ome.instruments = [ome_types.model.Instrument(id="Instrument:0", microscope={"model": "Axio"})]
    ome.images[0].description = "grün & <blue>"
    ome.rois = [ome_types.model.ROI(id="ROI:0")]
    ome.images[0].roi_refs = [ome_types.model.ROIRef(id="ROI:0")]
    data = TZCYX.reshape(24, 20, 16)
    tifffile.imwrite(tmp_path / "s.ome.tif", data, description=ome.to_xml().encode(), metadata=None)
    found = ome_of(copy_through(open_images(tmp_path / "s.ome.tif"), tmp_path / "out"))
    assert found.instruments[0].microscope.model == "Axio"
    assert found.images[0].description == "grün & <blue>"
    assert not found.rois
    assert not found.images[0].roi_refs


def test_large_compressed_pages_come_back(tmp_path: Path) -> None:
    pages = RNG.integers(0, 256, (3, 700, 900), dtype=np.uint8)
    for name, options in (("strips", {}), ("tiles", {"tile": (256, 256)})):
        before = tmp_path / f"{name}.ome.tif"
        tifffile.imwrite(before, pages, ome=True, compression="zlib", metadata={"axes": "TYX"}, **options)
        same_pixels(before, copy_through(open_images(before), tmp_path / name))
    planar = RNG.integers(0, 256, (3, 3, 100, 90), dtype=np.uint8)
    options = {"photometric": "rgb", "planarconfig": "separate", "compression": "zlib", "tile": (48, 48)}
    tifffile.imwrite(tmp_path / "planar.tif", planar, metadata=None, **options)
    same_pixels(tmp_path / "planar.tif", copy_through(open_images(tmp_path / "planar.tif"), tmp_path / "planar"))


@pytest.mark.parametrize("dtype", [np.int16, np.float32, np.uint8])
def test_types_come_back(tmp_path: Path, dtype: type) -> None:
    values = TZCYX.astype(dtype) if dtype != np.float32 else (TZCYX / 700 - 20).astype(dtype)
    before = ome_tiff(tmp_path / "s.ome.tif", values)
    same_pixels(before, copy_through(open_images(before), tmp_path / "out"))


def test_colours_and_odd_orders_come_back(tmp_path: Path) -> None:
    rgb = RNG.integers(0, 256, (3, 2, 20, 16, 3), dtype=np.uint8)
    tifffile.imwrite(tmp_path / "rgb.tif", rgb, ome=True, photometric="rgb", metadata={"axes": "TZYXS"})
    same_pixels(tmp_path / "rgb.tif", copy_through(open_images(tmp_path / "rgb.tif"), tmp_path / "rgb"))
    for axes in ("CTZYX", "ZCTYX"):  # depth outside of time: no view of the file is a list of images
        before = tmp_path / f"{axes}.tif"
        turned = np.ascontiguousarray(TZCYX.transpose(["TZCYX".index(letter) for letter in axes]))
        tifffile.imwrite(before, turned, ome=True, metadata={"axes": axes})
        source = open_images(before)
        np.testing.assert_array_equal(source.read(2).pixels, np.moveaxis(TZCYX[2].max(0), 0, -1))
        same_pixels(before, copy_through(source, tmp_path / axes))
    plain = tmp_path / "plain.tif"
    options = {"resolution": (300, 300), "resolutionunit": "INCH", "compression": "lzma"}
    tifffile.imwrite(plain, TZCYX[0, 0], photometric="minisblack", metadata=None, **options)
    after = copy_through(open_images(plain), tmp_path / "plain")
    same_pixels(plain, after)
    assert tifffile.TiffFile(after).pages[0].resolution == (300, 300)
    assert tifffile.TiffFile(after).pages[0].compression.name == "LZMA"


def test_positions_of_one_file_are_images(tmp_path: Path) -> None:
    before = tmp_path / "s.ome.tif"
    with tifffile.TiffWriter(before, ome=True) as file:
        for k in range(3):
            file.write(TZCYX[k], metadata={"axes": "ZCYX", "Name": f"position {k}", "Channel": {"Name": NAMES}})
    source = open_images(before)
    assert len(source) == 3
    after = copy_through(source, tmp_path / "out")
    same_pixels(before, after)
    assert [image.name for image in ome_of(after).images] == ["position 0", "position 1", "position 2"]


def test_some_images_of_a_stack_keep_what_is_said_of_them(tmp_path: Path) -> None:
    before = ome_tiff(tmp_path / "s.ome.tif")
    after = copy_through(open_images(before, limit=2), tmp_path / "two")
    np.testing.assert_array_equal(tifffile.imread(after), TZCYX[:2])
    pixels = ome_of(after).images[0].pixels
    assert (pixels.size_t, len(pixels.planes), pixels.time_increment) == (2, 16, 2.5)
    outer = copy_through(open_images(before).subset([0, 2]), tmp_path / "outer")
    pixels = ome_of(outer).images[0].pixels
    assert [plane.delta_t for plane in pixels.planes] == [0.5 * i for i in (*range(8), *range(16, 24))]
    assert {plane.the_t for plane in pixels.planes} == {0, 1}
    odd = copy_through(open_images(before, z="planes").subset([0, 1, 3]), tmp_path / "odd")
    assert tifffile.TiffFile(odd).series[0].axes == "TCYX"
    assert ome_of(odd).images[0].pixels.physical_size_x == 0.11
    again = imagej(tmp_path / "ij.tif", metadata={"Labels": [f"slice {i}" for i in range(24)]})
    found = tifffile.TiffFile(copy_through(open_images(again).subset([2, 0]), tmp_path / "ij")).imagej_metadata
    assert found["Labels"] == [f"slice {i}" for i in (*range(16, 24), *range(8))]


def test_huge_imagej_stacks_have_one_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("congeal.images.formats.tiff.MOST_CLASSIC", 1000)
    before = imagej(tmp_path / "s.tif")
    after = copy_through(open_images(before), tmp_path / "out")
    same_pixels(before, after)
    assert len(tifffile.TiffFile(after).pages) == 1
    after.write_bytes(after.read_bytes()[:-100])
    assert not open_writer(tmp_path / "out", open_images(before), (20, 16)).done(0)


def test_other_stacks_become_ome_tiff() -> None:
    stack = Hyperstack("TYXC", (3, 20, 16, 2), {"X": Step(0.5, "µm")}, ("a", "b"))
    assert stack.ids()[1] == "page-00001"
    assert stack.taken(np.array([0, 2])).shape == (2, 20, 16, 2)
    with pytest.raises(CongealError, match="needs axes Y and X"):
        Hyperstack("TC", (2, 2))


# ---- bad input


def test_broken_ome_xml_is_said_and_nothing_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = ome_tiff(tmp_path / "s.ome.tif").read_bytes()
    for wrong in (good.replace(b"</OME>", b"</OMX>"), good.replace(b"<Image ", b"<Imago ", 1)):
        (tmp_path / "s.ome.tif").write_bytes(wrong)
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="congeal"):
            source = open_images(tmp_path / "s.ome.tif")
        assert [record.message.partition(" (")[0] for record in caplog.records if record.name == "congeal"] == [
            f"the OME-XML of {tmp_path / 's.ome.tif'} is broken"
        ]
        assert len(source) == 24
        np.testing.assert_array_equal(source.read(23).pixels[..., 0], TZCYX[2, 1, 3])
        np.testing.assert_array_equal(
            tifffile.imread(copy_through(source, tmp_path / "out")), TZCYX.reshape(24, 20, 16)
        )


def test_pages_that_are_counted_but_missing_are_skipped(tmp_path: Path) -> None:
    data = ome_tiff(tmp_path / "s.ome.tif").read_bytes()
    (tmp_path / "s.ome.tif").write_bytes(data.replace(b'SizeT="3"', b'SizeT="5"'))
    source = open_images(tmp_path / "s.ome.tif")
    assert len(source) == 5
    np.testing.assert_array_equal(source.read(2).pixels, np.moveaxis(TZCYX[2].max(0), 0, -1))
    with pytest.raises(UnreadableImage, match="the file has no page 24"):
        source.read(3)
    after = tifffile.imread(copy_through(source, tmp_path / "out"))
    np.testing.assert_array_equal(after[:3], TZCYX)
    assert not after[3:].any()


def test_channels_are_found_by_name_and_number(tmp_path: Path) -> None:
    source = open_images(ome_tiff(tmp_path / "s.ome.tif"))
    wanted = {"GFP": 1, "gfp": 1, 2: 2, "3": 3, "DAPI, cy5": [0, 3], (0, "GFP"): [0, 1], "grey": "grey", None: None}
    assert {key: find_channels(source, key) for key in wanted} == wanted
    for channel in ("RFP", 4, -1, "DAPI,RFP", True):
        with pytest.raises(CongealError, match=r"has no channel .* it has 0 'DAPI', 1 'GFP', 2 'mCherry', 3 'Cy5'"):
            find_channels(source, channel)
    with pytest.raises(CongealError, match="no channel 'red' to align on: it has channels 0 to 2, without names"):
        find_channels(open_images(np.zeros((2, 4, 4, 3))), "red")
