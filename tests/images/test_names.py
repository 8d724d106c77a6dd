"""Every image gets a file of its own, and one can tell which."""

from __future__ import annotations

import csv
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from blobs import blob
from congeal import Transforms, align
from congeal.images import open_writer
from congeal.images.formats.output_files import WRITTEN, OutputNames
from congeal.opening import open_images
from congeal.propagate import propagate_mask, propagate_overlay

QUICK = {"method": "lsc", "motion": "translation", "params": {"iterations": (1, 1, 1)}, "quiet": True}
MEETING = ["a.png", "a.jpg", "a.png.png", "b/c.png", "b\\c.png", "d.png"]


def table(folder: Path) -> dict[str, str]:
    with (folder / "names.csv").open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return {row["id"]: row["file"] for row in csv.DictReader(file)}


def write_images(folder: Path, names: list[str]) -> Path:
    """A folder of files that differ in one pixel."""
    images = blob(len(names))
    for k, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        images[k, 0, 0] = 10 * k
        Image.fromarray(images[k]).save(path, format="PNG")
    return folder


def test_usual_names_are_the_ids_without_extension() -> None:
    names = OutputNames(["0.png", "x/1.jpg", "1.5", " lead.png", "é.tif"])
    assert list(names.stems) == ["0", "x/1", "1.5", " lead", "é"]
    assert not names.odd


@given(st.lists(st.text(st.sampled_from("ab./\\~A\0é")), unique=True, max_size=12))
def test_no_two_images_share_a_file(ids: list[str]) -> None:
    stems = OutputNames(ids).stems
    files = [stem + extension for stem in stems for extension in WRITTEN]
    assert len(set(files)) == len(WRITTEN) * len(ids)
    above = {str(parent) for file in files for parent in Path(file).parents}
    assert not above & set(files), "no file where another one needs a folder"
    assert not any(part in ("", ".", "..") for stem in stems for part in stem.split("/"))


@pytest.mark.parametrize("id", ["x" * 252, "é" * 300, "a/" * 2000 + "b", "d" * 300 + "/x.png", "x" * 248 + ".jpg"])
def test_long_names_fit_the_system(tmp_path: Path, id: str) -> None:
    (stem,) = OutputNames([id]).stems
    path = tmp_path / f"{stem}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"it fits")


def test_a_run_writes_as_many_files_as_images(tmp_path: Path) -> None:
    result = align(write_images(tmp_path / "in", MEETING), tmp_path / "run", **QUICK)
    aligned = tmp_path / "run" / "aligned"
    files = table(aligned)
    assert set(files) == set(MEETING)
    assert {str(path.relative_to(aligned)) for path in aligned.rglob("*.png")} == set(files.values())
    assert len(set(files.values())) == len(MEETING)
    masks = propagate_mask(result, np.full((24, 24), 255, np.uint8), tmp_path / "out")
    drawn = propagate_overlay(result, np.zeros((24, 24, 4), np.uint8), tmp_path / "out")
    for folder in (masks, drawn):
        assert len(list(folder.rglob("*.png"))) == len(set(table(folder).values())) == len(MEETING)
    for k, id in enumerate(sorted(MEETING, key=MEETING.index)):
        assert np.asarray(Image.open(drawn / table(drawn)[id]))[0, 0] == 10 * k, "each is drawn on its own image"


def test_no_table_where_names_say_it_all(tmp_path: Path) -> None:
    align(write_images(tmp_path / "in", ["a.png", "a.bmp", "x/b.png"]), tmp_path / "run", **QUICK)
    aligned = tmp_path / "run" / "aligned"
    files = {str(path.relative_to(aligned)) for path in aligned.rglob("*") if path.is_file()}
    assert files == {"a.png.png", "a.bmp.png", "x/b.png"}


def test_members_of_a_shard_stay_apart(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "in.tar", "w") as tar:
        for name, image in zip(["evil.png", "../evil.png", "x/../evil.png", "good.png"], blob(4), strict=True):
            buffer = io.BytesIO()
            Image.fromarray(image).save(buffer, "PNG")
            member = tarfile.TarInfo(name)
            member.size = len(buffer.getvalue())
            tar.addfile(member, io.BytesIO(buffer.getvalue()))
    source = open_images(tmp_path / "in.tar")
    with open_writer(tmp_path / "out", source, (24, 24)) as writer:
        writer.begin_new(np.arange(4), blob(4)[..., None])()
    with tarfile.open(tmp_path / "out" / "in.tar") as tar:
        names = tar.getnames()
    assert len(set(names)) == 4
    assert not any(".." in name for name in names)
    assert {"evil.png", "good.png"} <= set(names)
    assert len(set(table(tmp_path / "out").values())) == 4
    again = open_images(tmp_path / "out" / "in.tar")
    assert [again.read(i).pixels[..., 0].tolist() for i in range(4)] == blob(4).tolist()
    with open_writer(tmp_path / "files", source, (24, 24), "files") as writer:
        writer.begin_new(np.arange(4), blob(4)[..., None])()
    assert len(list((tmp_path / "files").rglob("*.png"))) == 4


ODD = ["line\rfeed.png", "new\nline.png", "\r\n.png", " lead.png", 'quo"te,.png', "a\udcff.png", "a\udcfe.png"]


def test_odd_names_come_back_from_every_table(tmp_path: Path) -> None:
    result = align(write_images(tmp_path / "in", ODD), tmp_path / "run", **QUICK)
    assert set(result.transforms.ids) == set(ODD)
    assert Transforms.load(tmp_path / "run" / "transforms.csv").ids == result.transforms.ids
    again = align(tmp_path / "in", tmp_path / "run", **QUICK)
    assert again.transforms == result.transforms
    assert len(list((tmp_path / "run" / "aligned").iterdir())) == len(ODD)


def test_a_name_of_252_bytes_does_not_end_a_run(tmp_path: Path) -> None:
    ids = ["x" * 248 + ".png", "x" * 248 + ".jpg", "y.png"]
    align(write_images(tmp_path / "in", ids), tmp_path / "run", **QUICK)
    files = table(tmp_path / "run" / "aligned")
    assert set(files) == set(ids)
    assert all((tmp_path / "run" / "aligned" / file).is_file() for file in files.values())
