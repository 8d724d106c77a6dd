"""Scientific stacks through whole runs: one channel is aligned on, all channels and planes move, nothing gets lost."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image
from scipy.ndimage import gaussian_filter

from congeal import CongealError, align, apply, compare
from congeal.cli import main
from congeal.images import warp_pixels
from congeal.methods.least_squares import LSC
from congeal.pipeline.display import DisplayRange

OPTIONS = {"method": "lsc", "motion": "translation", "quiet": True}
OME = {"axes": "TZCYX", "PhysicalSizeX": 0.11, "PhysicalSizeZ": 0.5, "TimeIncrement": 2.5}
OME["Channel"] = {"Name": ["beads", "cells", "noise"]}
MOVES = np.array([(0, 0), (3, -2), (-4, 1), (2, 4), (-1, -3)])


def made_stack() -> np.ndarray:
    """(T, Z, C, Y, X): cells that drift, dim; beads that stay, bright; noise."""
    rng = np.random.default_rng(2)
    cells = gaussian_filter(rng.random((2, 72, 84)), (0, 2.5, 2.5))
    cells = (cells - cells.min()) / np.ptp(cells)
    stack = np.zeros((5, 2, 3, 48, 56), np.uint16)
    stack[:, :, 0] = rng.integers(0, 60000, (2, 48, 56))
    stack[:, :, 2] = rng.integers(0, 3000, (5, 2, 48, 56))
    for t, (x, y) in enumerate(MOVES):
        stack[t, :, 1] = 800 * cells[:, 12 - y : 60 - y, 14 - x : 70 - x]
    return stack


@pytest.fixture(scope="module")
def stack() -> np.ndarray:
    return made_stack()


@pytest.fixture
def path(tmp_path: Path, stack: np.ndarray) -> Path:
    tifffile.imwrite(tmp_path / "s.ome.tif", stack, ome=True, metadata=OME)
    return tmp_path / "s.ome.tif"


def worst(matrices: np.ndarray) -> float:
    """How far off the drift is, in pixels, after what all share is taken away."""
    off = matrices[:, :2, 2] + MOVES
    return float(np.abs(off - off.mean(0)).max())


def test_the_channel_that_is_named_is_aligned_on_and_all_move(tmp_path: Path, path: Path, stack: np.ndarray) -> None:
    found = align(path, tmp_path / "run", channel="cells", **OPTIONS)
    assert worst(found.transforms.matrices) < 0.1
    assert found.transforms.ids[0] == "page-00000"
    assert json.loads((tmp_path / "run" / "config.json").read_text())["channel"] == "cells"
    with tifffile.TiffFile(tmp_path / "run" / "aligned" / "aligned.tif") as file:
        assert (file.series[0].axes, file.series[0].kind) == ("TZCYX", "ome")
        aligned = file.asarray()
    for t, matrix in enumerate(found.transforms.matrices):
        for z in range(2):
            moved = warp_pixels(np.moveaxis(stack[t, z], 0, -1), np.linalg.inv(matrix), (48, 56))
            np.testing.assert_array_equal(aligned[t, z], np.moveaxis(moved, -1, 0))
    # On all channels the beads, which stay where they are, win; by number, on the command line, the same as by name.
    assert worst(align(path, tmp_path / "all", **OPTIONS).transforms.matrices) > 1
    command = ["align", str(path), "-o", str(tmp_path / "cli"), "--method", "lsc", "--motion", "translation"]
    assert main([*command, "--channel", "1", "--quiet"]) == 0
    again = (tmp_path / "cli" / "transforms.csv").read_bytes()
    assert again == (tmp_path / "run" / "transforms.csv").read_bytes()


def test_planes_have_poses_of_their_own(tmp_path: Path, path: Path) -> None:
    found = align(path, tmp_path / "run", channel="cells", z="planes", **OPTIONS)
    assert len(found.transforms) == 10
    assert found.transforms.ids[3] == "t00001-z00001"
    assert tifffile.TiffFile(tmp_path / "run" / "aligned" / "aligned.tif").series[0].axes == "TZCYX"
    with pytest.raises(CongealError, match="belongs to another run"):
        align(path, tmp_path / "run", channel="cells", **OPTIONS)


def test_an_identity_run_gives_every_byte_back(tmp_path: Path, stack: np.ndarray) -> None:
    still = np.repeat(stack[:1], 4, axis=0)
    tifffile.imwrite(tmp_path / "s.tif", still, imagej=True, metadata={"axes": "TZCYX", "spacing": 0.5, "unit": "um"})
    align(tmp_path / "s.tif", tmp_path / "run", channel=1, **OPTIONS)
    before, after = (tifffile.TiffFile(path) for path in (tmp_path / "s.tif", tmp_path / "run/aligned/aligned.tif"))
    assert after.asarray().tobytes() == still.tobytes()
    assert after.series[0].axes == before.series[0].axes
    assert after.imagej_metadata == before.imagej_metadata


def test_what_is_gone_is_written_again_and_the_same(tmp_path: Path, path: Path) -> None:
    align(path, tmp_path / "run", channel="cells", **OPTIONS)
    aligned = tmp_path / "run" / "aligned" / "aligned.tif"
    data = aligned.read_bytes()
    aligned.unlink()
    align(path, tmp_path / "run", channel="cells", **OPTIONS)
    assert aligned.read_bytes() == data


@pytest.mark.parametrize("format", ["npy", "files", "shards"])
def test_planes_in_other_formats(tmp_path: Path, path: Path, format: str) -> None:
    align(path, tmp_path / "run", channel="cells", output_format=format, **OPTIONS)
    folder = tmp_path / "run" / "aligned"
    if format == "npy":
        assert np.load(folder / "aligned.npy").shape == (10, 48, 56, 3)
    elif format == "files":
        assert len([*folder.glob("t*-z*.tif")]) == 10
    else:
        assert [one.name for one in folder.iterdir()] == ["aligned-00000.tar"]


def test_new_images_are_aligned_on_the_channel_of_that_name(tmp_path: Path, path: Path, stack: np.ndarray) -> None:
    align(path, tmp_path / "run", channel="cells", **OPTIONS)
    swapped = stack[:, :, [1, 0, 2]]
    names = {**OME, "Channel": {"Name": ["cells", "beads", "noise"]}}
    tifffile.imwrite(tmp_path / "new.ome.tif", swapped, ome=True, metadata=names)
    found = apply(tmp_path / "run", tmp_path / "new.ome.tif", tmp_path / "new", quiet=True)
    assert worst(found.transforms.matrices) < 0.2
    assert (
        worst(
            apply(
                tmp_path / "run", swapped.max(1).transpose(0, 2, 3, 1), tmp_path / "array", channel=0, quiet=True
            ).transforms.matrices
        )
        < 0.2
    )
    names["Channel"] = {"Name": ["a", "b", "c"]}
    tifffile.imwrite(tmp_path / "other.ome.tif", swapped, ome=True, metadata=names)
    with pytest.raises(CongealError, match="no channel 'cells' to align on: it has 0 'a', 1 'b', 2 'c'"):
        apply(tmp_path / "run", tmp_path / "other.ome.tif", tmp_path / "other", quiet=True)


def test_methods_are_compared_on_one_channel(tmp_path: Path, path: Path) -> None:
    rows = compare(path, "lsc", tmp_path / "table", motion="translation", channel="cells", quiet=True)
    assert "error" not in rows[0]
    lines = (tmp_path / "table" / "lsc" / "transforms.csv").read_text().splitlines()
    assert len(lines) == 6
    found = np.array([line.split(",")[-9:] for line in lines[1:]], float).reshape(-1, 3, 3)
    assert worst(found) < 0.1
    with pytest.raises(CongealError, match=r"cannot be set: all methods of a comparison share it \(--channel\)"):
        compare(path, "lsc", tmp_path / "other", params={"lsc": {"align_on": 1}}, quiet=True)


def test_estimators_take_names_and_give_planes(tmp_path: Path, path: Path, stack: np.ndarray) -> None:
    model = LSC(motion="translation", align_on="cells")
    aligned = model.fit_transform(path)
    assert worst(model.transforms_.matrices) < 0.1
    assert [one.shape for one in aligned] == [(2, 48, 56, 3)] * 5
    assert all(one.dtype == np.uint16 for one in aligned)
    model.fit_transform(path, output=tmp_path / "out")
    whole = tifffile.imread(tmp_path / "out" / "aligned.tif")
    np.testing.assert_array_equal(whole[3], np.moveaxis(aligned[3], -1, 1))


def test_pictures_show_what_was_aligned_on(tmp_path: Path, path: Path) -> None:
    align(path, tmp_path / "run", channel="cells", **OPTIONS)
    mean = np.asarray(Image.open(tmp_path / "run" / "mean.png"))
    assert mean.shape == (48, 56)  # one channel in grey, stretched: cells are 75 times as dim as beads
    assert mean.max() > 200
    align(path, tmp_path / "two", channel="beads,cells", **OPTIONS)
    both = np.asarray(Image.open(tmp_path / "two" / "mean.png"))
    assert both.shape == (48, 56, 3)
    assert both.reshape(-1, 3).max(0).min() > 150


def test_channels_are_stretched_one_by_one_and_drawn_in_colours() -> None:
    display = DisplayRange(0, 60000, 3, shown=(0, 3), by_channel=((0, 1000), (100, 200)))
    pixels = np.array([[[1000, 9, 9, 100], [500, 9, 9, 200], [9999, 9, 9, 0]]], np.uint16)
    assert display.levels(pixels).tolist() == [[[0, 255, 0], [255, 127.5, 255], [0, 255, 0]]]
    assert DisplayRange(0, 1, 1, shown=[1], by_channel=[(0, 2)]).levels(np.ones((1, 1, 2)))[0, 0, 0] == 127.5


BAD: list[tuple[list[str], str]] = [
    (["--channel", "RFP"], "has no channel 'RFP' to align on: it has 0 'beads', 1 'cells', 2 'noise'"),
    (["--channel", "7"], "has no channel '7' to align on: it has 0 'beads', 1 'cells', 2 'noise'"),
    (["--z", "sideways"], "z is auto, project, mean or planes, not 'sideways'"),
    (["--channel", "1", "--set", "align_on=1"], "the channel is given twice"),
]


@pytest.mark.parametrize(("arguments", "sentence"), BAD)
def test_wrong_use_is_one_sentence_and_makes_no_folder(
    tmp_path: Path, path: Path, arguments: list[str], sentence: str, capsys: Any
) -> None:
    assert main(["align", str(path), "-o", str(tmp_path / "run"), "--method", "lsc", *arguments]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_an_image_without_the_channel_is_skipped_not_fatal(tmp_path: Path, stack: np.ndarray) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    for t in range(4):
        shown = (stack[t, 0].transpose(1, 2, 0) >> 8).astype(np.uint8)
        shown[..., 1] = stack[t, 0, 1] >> 2
        Image.fromarray(shown).save(folder / f"{t}.png")
    Image.fromarray(shown[..., 0]).save(folder / "grey.png")
    found = align(folder, tmp_path / "run", channel=1, **OPTIONS)
    assert found.metrics["n_skipped"] == 1
    assert 'grey.png,"channel 1 is to be aligned on' in (tmp_path / "run" / "skipped.csv").read_text()


def test_a_zarr_chunk_that_was_cut_short_is_a_row_in_skipped_csv(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    images = made_stack()[:, 0, 1]
    path = tmp_path / "cells.zarr"
    zarr.create_array(str(path), shape=images.shape, chunks=(1, *images.shape[1:]), dtype="u2", zarr_format=2)[:] = (
        images
    )
    chunk = path / "2.0.0"
    chunk.write_bytes(chunk.read_bytes()[:-7])
    found = align(path, tmp_path / "run", **OPTIONS).transforms
    with (tmp_path / "run" / "skipped.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["id"] == found.ids[2]
    assert re.search(r"chunk .*cut short", row["reason"])
    assert found.status.tolist() == ["ok", "ok", "skipped", "ok", "ok"]
    written = zarr.open_array(str(tmp_path / "run" / "aligned" / "aligned.zarr"), mode="r")
    assert written.shape == images.shape
    assert [bool(np.any(image)) for image in written] == [True, True, False, True, True]
