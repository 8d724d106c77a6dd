"""The frame of the results: cropped, grown or of a given size, with matrices that lead there."""

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
from congeal.geometry.boxes import Box, centred, reached, shared
from congeal.geometry.frame_coverage import covered
from congeal.geometry.matrix import invert
from congeal.images import warp_pixels

OPTIONS = {"method": "lsc", "motion": "translation", "size": 24, "quiet": True}


def wild(n: int, seed: int) -> np.ndarray:
    """(n, 3, 3) frame_from_source, a little perspective among them."""
    rng = np.random.default_rng(seed)
    return np.eye(3) + rng.normal(0, 0.05, (n, 3, 3)) * [[1, 1, 40], [1, 1, 40], [0.01, 0.01, 0]]


@pytest.mark.parametrize("seed", range(6))
def test_the_largest_box_that_all_images_cover(seed: int) -> None:
    matrices, sizes, frame = wild(4, seed), np.tile([30, 41], (4, 1)), (30, 41)
    all_of_them = (covered(invert(matrices), (30, 41), frame) > 0.999).all(0)
    best = 0
    for top in range(30):
        for bottom in range(top, 30):
            columns = all_of_them[top : bottom + 1].all(0)
            runs = np.diff(np.flatnonzero(np.diff(np.concatenate([[0], columns, [0]]))))[::2]
            best = max(best, (bottom - top + 1) * int(runs.max(initial=0)))
    box = shared(matrices, sizes, frame)
    assert box is not None
    height, width = box.size
    assert all_of_them[box.top : box.top + height, box.left : box.left + width].all()
    assert height * width == best


def test_boxes_of_what_does_not_move() -> None:
    still, sizes = np.tile(np.eye(3), (2, 1, 1)), np.array([[20, 30], [20, 30]])
    assert shared(still, sizes, (20, 30)) == Box(0, 0, (20, 30)) == reached(still, sizes)
    apart = still.copy()
    apart[1, :2, 2] = 40, 0
    assert shared(apart, sizes, (20, 30)) is None
    assert reached(apart, sizes) == Box(0, 0, (20, 70))
    assert centred((20, 30), (10, 40)) == Box(-5, 5, (10, 40))
    assert reached(apart[:0], sizes[:0]) is None


@pytest.mark.parametrize("canvas", ["common", "union", "40x18"])
def test_pixels_pictures_and_matrices_share_the_canvas(canvas: str, tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", images := blob())
    plain = congeal.align(tmp_path / "images.npy", tmp_path / "plain", **OPTIONS)
    run = congeal.align(tmp_path / "images.npy", tmp_path / "run", canvas=canvas, **OPTIONS)
    size = run.transforms.aligned_size
    assert size is not None
    assert run.metrics["aligned_size"] == [*size]
    assert json.loads((run.folder / "config.json").read_text())["canvas"] == canvas
    if canvas == "40x18":
        assert size == (18, 40)
    elif canvas == "common":
        assert size[0] < 24 > size[1]
    else:
        assert size[0] > 24 < size[1]
    moved = run.transforms.matrices[:, :2, 2] - plain.transforms.matrices[:, :2, 2]
    np.testing.assert_allclose(moved, np.tile(np.rint(moved[0]), (len(moved), 1)), atol=1e-9)
    aligned = np.load(run.folder / "aligned" / "aligned.npy")
    for i, matrix in enumerate(run.transforms.matrices):
        np.testing.assert_array_equal(aligned[i], warp_pixels(images[i], invert(matrix), size))
    assert Image.open(run.folder / "mean.png").size == (size[1], size[0])
    with (run.folder / "transforms.csv").open(newline="") as file:
        assert float(next(csv.DictReader(file))["m02"]) == pytest.approx(run.transforms.matrices[0, 0, 2])
    points = congeal.propagate_points(run, [[1.0, 2.0]])
    np.testing.assert_allclose(points.xy[0, 0], (np.linalg.inv(run.transforms.matrices[0]) @ [1, 2, 1])[:2])
    assert congeal.stack(run, method="mean", flagged=True).picture.shape == size
    if canvas == "common":
        inside = covered(np.linalg.inv(run.transforms.matrices[run.transforms.ok]), (24, 24), size)
        assert inside.min() > 0.99


def test_new_images_lie_on_the_canvas_of_the_run(tmp_path: Path) -> None:
    run = congeal.align(blob(), tmp_path / "run", canvas="30x20", **OPTIONS)
    new = congeal.apply(run, blob(4, seed=3), tmp_path / "new", quiet=True)
    assert new.transforms.aligned_size == (20, 30)
    again = congeal.apply(run, blob(), tmp_path / "again", quiet=True)
    assert np.abs(again.transforms.matrices - run.transforms.matrices)[:, :2, 2].max() < 1


def test_a_canvas_that_cannot_be_is_the_inputs_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("congeal.pipeline.output_options.MAX_CANVAS_PIXELS", 100)
    run = congeal.align(blob(), tmp_path / "run", canvas="union", **OPTIONS)
    assert run.transforms.aligned_size == (24, 24)
    assert "so the canvas is that of the input" in caplog.text
    assert "more than 100" in run.metrics["decisions"]["canvas"]["sentence"]


@pytest.mark.parametrize("canvas", ["all", "0x5", "12", "-3x4", "99999x99999", "1.5x3"])
def test_no_such_canvas(canvas: str, tmp_path: Path) -> None:
    with pytest.raises(CongealError, match="the canvas"):
        congeal.align(blob(), tmp_path / "run", canvas=canvas, **OPTIONS)
    assert not (tmp_path / "run").exists()
