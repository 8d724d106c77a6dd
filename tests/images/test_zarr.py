"""Zarr and OME-Zarr in and out, and arrays of other libraries that are never loaded whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from congeal import align
from congeal.errors import CongealError
from congeal.images import open_writer
from congeal.images.sources.base import ImageSource, UnreadableImage
from congeal.methods.least_squares import LSC
from congeal.opening import open_images

zarr = pytest.importorskip("zarr")
RNG = np.random.default_rng(5)
TCZYX = RNG.integers(-3000, 3000, (3, 2, 4, 20, 16)).astype(np.int16)
AXES = [
    {"name": "t", "type": "time", "unit": "second"},
    {"name": "c", "type": "channel"},
    {"name": "z", "type": "space", "unit": "micrometer"},
    {"name": "y", "type": "space", "unit": "micrometer"},
    {"name": "x", "type": "space", "unit": "micrometer"},
]
SCALE = [2.5, 1.0, 0.5, 0.13, 0.11]
OMERO = {"channels": [{"label": "DAPI", "color": "0000FF"}, {"label": "GFP", "color": "00FF00"}]}


def ome_zarr(path: Path, version: str, array: np.ndarray = TCZYX) -> Path:
    image = {
        "name": "cells",
        "axes": AXES,
        "datasets": [
            {"path": "s0", "coordinateTransformations": [{"type": "scale", "scale": SCALE}]},
            {"path": "s1", "coordinateTransformations": [{"type": "scale", "scale": [*SCALE[:3], 0.26, 0.22]}]},
        ],
    }
    old = version == "0.4"
    about = {"multiscales": [{**image, "version": "0.4"} if old else image], "omero": OMERO}
    group = zarr.open_group(str(path), mode="w", zarr_format=2 if old else 3)
    group.attrs.update({**about, "lab": "north"} if old else {"ome": {"version": "0.5", **about}, "lab": "north"})
    for name, values in (("s0", array), ("s1", array[..., ::2, ::2])):
        chunks = (2, 1, 1, 16, 16)
        group.create_array(name, shape=values.shape, dtype=values.dtype, chunks=chunks)[:] = values
    return path


def copy_through(source: ImageSource, folder: Path, format: str = "auto") -> Path:
    planes = source.parts or source
    with open_writer(folder, source, planes.probe(0)[:2], format) as writer:
        for i in reversed(range(len(planes))):
            writer.write(i, planes.read(i).pixels)
    assert open_writer(folder, source, planes.probe(0)[:2], format).done(0)
    return folder / "aligned.zarr"


@pytest.mark.parametrize("z", ["project", "planes"])
@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_ome_zarr_comes_back(tmp_path: Path, version: str, z: str) -> None:
    source = open_images(ome_zarr(tmp_path / "s.zarr", version), z=z)
    assert source.channel_names == ("DAPI", "GFP")
    assert len(source) == (3 if z == "project" else 12)
    expected = TCZYX.max(2) if z == "project" else TCZYX[:, :, 0]
    np.testing.assert_array_equal(source.read(0).pixels, np.moveaxis(expected[0], 0, -1))
    stack = (source.parts or source).hyperstack
    assert stack is not None
    assert {key: tuple(step) for key, step in stack.steps.items()} == {
        "T": (2.5, "s"),
        "Z": (0.5, "µm"),
        "Y": (0.13, "µm"),
        "X": (0.11, "µm"),
    }
    before, after = (zarr.open(str(p), mode="r") for p in (tmp_path / "s.zarr", copy_through(source, tmp_path / "out")))
    assert after.metadata.zarr_format == before.metadata.zarr_format == (2 if version == "0.4" else 3)
    first, second = before["s0"], after["s0"]
    assert second[:].tobytes() == first[:].tobytes()
    assert (second.dtype, second.chunks, second.compressors) == (first.dtype, first.chunks, first.compressors)
    attributes = dict(before.attrs)
    about = attributes.get("ome", attributes)
    about["multiscales"][0]["datasets"] = about["multiscales"][0]["datasets"][:1]
    assert dict(after.attrs) == attributes


@pytest.mark.parametrize("version", [2, 3])
def test_plain_arrays_come_back(tmp_path: Path, version: int) -> None:
    values = RNG.random((5, 20, 16)).astype(np.float32)
    named = {"dimension_names": ["time", "y", "x"]} if version == 3 else {}
    options = {"shape": values.shape, "dtype": values.dtype, "chunks": (2, 20, 16), "zarr_format": version, **named}
    array = zarr.create_array(str(tmp_path / "s.zarr"), attributes={"note": "by hand"}, **options)
    array[:] = values
    source = open_images(tmp_path / "s.zarr")
    assert source.id(4) == "page-00004"
    after = zarr.open(str(copy_through(source, tmp_path / "out")), mode="r")
    assert after[:].tobytes() == values.tobytes()
    assert after.metadata.to_dict() == zarr.open(str(tmp_path / "s.zarr"), mode="r").metadata.to_dict()
    back = copy_through(open_images(values), tmp_path / "from-array", "zarr")
    assert zarr.open(str(back), mode="r")[:].tobytes() == values.tobytes()


def test_other_stacks_become_ome_zarr_and_back(tmp_path: Path) -> None:
    values = TCZYX.transpose(0, 2, 1, 3, 4)
    about = {"axes": "TZCYX", "PhysicalSizeX": 0.11, "TimeIncrement": 2.5, "Channel": {"Name": ["DAPI", "GFP"]}}
    tifffile.imwrite(tmp_path / "s.ome.tif", values, ome=True, metadata=about)
    written = copy_through(open_images(tmp_path / "s.ome.tif"), tmp_path / "out", "zarr")
    group = zarr.open(str(written), mode="r")
    assert group["0"].shape == TCZYX.shape
    np.testing.assert_array_equal(group["0"][:], TCZYX)
    source = open_images(written)
    assert source.channel_names == ("DAPI", "GFP")
    with open_writer(tmp_path / "tiff", source, (20, 16), "tiff") as writer:
        for i in range(12):
            writer.write(i, source.parts.read(i).pixels)
    with tifffile.TiffFile(tmp_path / "tiff" / "aligned.tif") as file:
        assert (file.series[0].axes, file.series[0].kind) == ("TCZYX", "ome")
        np.testing.assert_array_equal(file.asarray(), TCZYX)
    assert 'PhysicalSizeX="0.11"' in tifffile.tiffcomment(tmp_path / "tiff" / "aligned.tif")


def test_a_missing_chunk_is_noticed(tmp_path: Path) -> None:
    source = open_images(ome_zarr(tmp_path / "s.zarr", "0.4"))
    written = copy_through(source, tmp_path / "out")
    next(path for path in (written / "s0").rglob("*") if path.is_file() and path.name.isdecimal()).unlink()
    assert not open_writer(tmp_path / "out", source, (20, 16)).done(0)


def test_what_cannot_be_opened_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zarr.open_group(str(tmp_path / "empty.zarr"), mode="w")
    with pytest.raises(CongealError, match=r"empty\.zarr is a Zarr group without arrays: it holds no images"):
        open_images(tmp_path / "empty.zarr")
    many = zarr.open_group(str(tmp_path / "many.zarr"), mode="w")
    for name in "ab":
        many.create_array(name, shape=(2, 4, 4), dtype="uint8")
    with pytest.raises(CongealError, match=r"holds a, b: give one of them, such as .*many\.zarr/a"):
        open_images(tmp_path / "many.zarr")
    assert len(open_images(tmp_path / "many.zarr" / "a")) == 2
    (tmp_path / "none.zarr").mkdir()
    with pytest.raises(CongealError, match=r"none\.zarr is not a readable Zarr"):
        open_images(tmp_path / "none.zarr")
    for shape, sentence in (((4,), "has 1 dimensions"), ((2,) * 6, "has 6 dimensions and no names for them")):
        zarr.create_array(str(tmp_path / "dims.zarr"), shape=shape, dtype="uint8", overwrite=True)
        with pytest.raises(CongealError, match=sentence):
            open_images(tmp_path / "dims.zarr")
    monkeypatch.setitem(__import__("sys").modules, "zarr", None)
    with pytest.raises(CongealError, match=r"pip install 'congeal\[zarr\]'"):
        open_images(tmp_path / "many.zarr" / "a")


def test_no_codec_that_runs_code_is_opened(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "s.zarr"), shape=(2, 4, 4), dtype="uint8", zarr_format=2)[:] = 1
    about = json.loads((tmp_path / "s.zarr" / ".zarray").read_text())
    about["filters"] = [{"id": "pickle", "protocol": 5}]
    (tmp_path / "s.zarr" / ".zarray").write_text(json.dumps(about))
    with pytest.raises(CongealError, match=r"codec 'pickle', which is not opened|not a readable Zarr"):
        open_images(tmp_path / "s.zarr")


class Counting:
    """An array of another library that notes the largest piece that was asked for."""

    def __init__(self, values: np.ndarray, chunks: Any = None) -> None:
        self.values, self.shape, self.dtype, self.ndim = values, values.shape, values.dtype, values.ndim
        self.chunks, self.largest = chunks, 0

    def __getitem__(self, index: Any) -> np.ndarray:
        found = self.values[index]
        self.largest = max(self.largest, found.size)
        return found


def drifting(n: int = 12) -> np.ndarray:
    from scipy.ndimage import gaussian_filter

    scene = gaussian_filter(np.random.default_rng(3).random((60, 70)), 3)
    scene = (scene - scene.min()) / np.ptp(scene)
    return np.stack([scene[i % 4 : 40 + i % 4, i % 3 : 50 + i % 3] * 60000 for i in range(n)]).astype(np.uint16)


def test_lazy_arrays_are_read_in_pieces(tmp_path: Path) -> None:
    values = drifting()
    whole = LSC(motion="translation").fit(values)
    array = Counting(values, chunks=((4, 4, 4), (40,), (50,)))
    model = LSC(motion="translation").fit(array)
    np.testing.assert_array_equal(model.transforms_.matrices, whole.transforms_.matrices)
    assert array.largest <= 4 * 40 * 50
    assert open_images(array).ids()[11] == "11"
    align(array, tmp_path / "run", method="lsc", motion="translation", quiet=True)
    assert np.load(tmp_path / "run" / "aligned" / "aligned.npy").shape == values.shape
    for wrong, sentence in ((np.zeros((4, 4)), "has shape"), (np.zeros((2, 4, 4), object), "dtype object")):
        with pytest.raises(CongealError, match=sentence):
            open_images(Counting(wrong))


def test_dask_in_dask_out() -> None:
    dask = pytest.importorskip("dask.array")
    values = drifting()
    expected = LSC(motion="translation").fit_transform(values)
    aligned = LSC(motion="translation").fit_transform(dask.from_array(values, chunks=(5, 40, 50)))
    assert isinstance(aligned, dask.Array)
    assert (aligned.shape, aligned.dtype) == (values.shape, values.dtype)
    np.testing.assert_array_equal(aligned[3].compute(), expected[3])


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("codec", ["Blosc", "GZip", "none"])
@pytest.mark.parametrize("left", ["half", "all but one", "nothing"])
def test_a_chunk_that_was_cut_short_is_no_image(tmp_path: Path, version: int, codec: str, left: str) -> None:
    numcodecs = pytest.importorskip("numcodecs")
    known = {
        2: {"Blosc": numcodecs.Blosc(), "GZip": numcodecs.GZip(), "none": None},
        3: {"Blosc": zarr.codecs.BloscCodec(), "GZip": zarr.codecs.GzipCodec(), "none": None},
    }
    images = np.add.outer(np.arange(4), np.add.outer(np.arange(20), np.arange(24))).astype(np.uint8)
    options: dict[str, Any] = {"zarr_format": version, "compressors": known[version][codec]}
    path, chunk = tmp_path / "cells.zarr", "2.0.0" if version == 2 else "c/2/0/0"
    zarr.create_array(str(path), shape=images.shape, chunks=(1, 20, 24), dtype="u1", **options)[:] = images
    whole = (path / chunk).read_bytes()
    (path / chunk).write_bytes({"half": whole[: len(whole) // 2], "all but one": whole[:-1], "nothing": b""}[left])
    source = open_images(path)
    with pytest.raises(UnreadableImage, match=r"chunk .*cut short"):
        source.read(2)
    for i in (0, 1, 3):
        assert np.array_equal(source.read(i).pixels[..., 0], images[i])
