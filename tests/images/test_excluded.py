"""Leaving out images by id: they stay rows of the set, and nothing else of it depends on them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import congeal
from blobs import blob
from congeal import CongealError
from congeal.cli import main
from congeal.images.sources.base import UnreadableImage
from congeal.images.sources.views import exclude_images
from congeal.opening import open_images


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    photos = tmp_path / "photos"
    photos.mkdir()
    for k, image in enumerate(blob(8)):
        Image.fromarray(image).save(photos / f"im {k}.png")
    Image.fromarray(np.zeros((90, 70), np.uint8)).save(photos / "odd.png")
    return photos


def skipped(run: Path) -> dict[str, str]:
    with (run / "skipped.csv").open(newline="") as file:
        return {row["id"]: row["reason"] for row in csv.DictReader(file)}


@pytest.mark.parametrize(
    "text", ["id\nodd.png\nim 3.png\n", "odd.png\n\nim 3.png \n", "score,id\n0.1,odd.png\n0.2,im 3.png\n"]
)
def test_a_file_of_ids_leaves_images_out(folder: Path, tmp_path: Path, text: str) -> None:
    listed = tmp_path / "ids.csv"
    listed.write_text(text)
    source = exclude_images(open_images(folder), listed)
    assert source.unreadable == {3: "excluded", 8: "excluded"}
    with pytest.raises(UnreadableImage, match="excluded"):
        source.read(3)
    assert source.read(2).pixels.shape[-1] == 1


def test_excluded_images_are_rows_of_skipped_and_change_nothing_else(folder: Path, tmp_path: Path) -> None:
    options = {"method": "lsc", "motion": "translation", "size": 24, "quiet": True}
    run = congeal.align(folder, tmp_path / "run", exclude=["odd.png", "im 3.png"], **options)
    assert skipped(run.folder) == {"im 3.png": "excluded", "odd.png": "excluded"}
    assert run.metrics["n_images"] == 7
    assert run.transforms.counts()["skipped"] == 2
    (folder / "odd.png").unlink()
    (folder / "im 3.png").unlink()
    alone = congeal.align(folder, tmp_path / "alone", **options)
    np.testing.assert_array_equal(run.transforms.matching(alone.transforms.ids).matrices, alone.transforms.matrices)
    assert (run.folder / "mean.png").read_bytes() == (alone.folder / "mean.png").read_bytes()


def test_an_array_loses_rows_in_place(tmp_path: Path) -> None:
    images = blob(6)
    run = congeal.align(images, tmp_path / "run", exclude=["4"], method="lsc", size=32, quiet=True)
    assert skipped(run.folder) == {"4": "excluded"}
    aligned = np.load(run.folder / "aligned" / "aligned.npy")
    assert not aligned[4].any()
    assert aligned[3].any()


def test_another_list_is_another_run(folder: Path, tmp_path: Path) -> None:
    options = {"method": "lsc", "motion": "translation", "size": 24, "quiet": True}
    first = congeal.align(folder, tmp_path / "run", exclude=["odd.png"], **options)
    assert json.loads((first.folder / "config.json").read_text())["exclude"]["images"] == 1
    congeal.align(folder, tmp_path / "run", exclude=["odd.png"], **options)
    with pytest.raises(CongealError, match="differs in exclude"):
        congeal.align(folder, tmp_path / "run", exclude=["im 1.png"], **options)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nobody.png\n", "cannot exclude 'nobody.png': .* has no image of that name"),
        ("name,score\nodd.png,1\n", "no column id"),
        (None, "there is no file"),
        ("id\n" + "".join(f"im {k}.png\n" for k in range(8)) + "odd.png\n", "all 9 are excluded"),
    ],
)
def test_a_list_that_cannot_be_meant_is_one_sentence(folder: Path, tmp_path: Path, text: str | None, told: str) -> None:
    listed = tmp_path / "ids.csv"
    if text is not None:
        listed.write_text(text)
    with pytest.raises(CongealError, match=told):
        exclude_images(open_images(folder), listed)
    with pytest.raises(CongealError, match="give a file, or a list"):
        exclude_images(open_images(folder), 7)  # type: ignore[arg-type]


def test_the_command_line_says_so_too(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["align", str(folder), "-o", str(tmp_path / "run"), "--exclude", str(tmp_path / "none.txt")]
    assert main(run) == 2
    assert "there is no file" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    (tmp_path / "none.txt").write_text("im 7.png\nodd.png")
    assert main([*run, "--limit", "3", "--method", "lsc", "--size", "16", "--quiet"]) == 0, "beyond the limit is fine"
