"""Mirror images and features through a whole run, and points of one image in the others."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import congeal
from congeal.cli import main
from congeal.errors import CongealError
from congeal.geometry.orientation import make_upright, mirrored, orientation_of
from congeal.methods.semantic.estimator import SemanticCongealing
from congeal.opening import open_images
from congeal.propagate.match import match_points
from made_birds import made_birds


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("match")
    np.save(folder / "birds.npy", made_birds(8, seed=3)[0])
    options = ["--features", "lite0", "--mirror", "--no-aligned", "--quiet"]
    assert main(["align", str(folder / "birds.npy"), "-o", str(folder / "run"), *options]) == 0
    return folder / "run"


def test_a_run_says_how_many_are_mirrored(run: Path) -> None:
    metrics = json.loads((run / "metrics.json").read_text())
    found = congeal.Transforms.load(run / "transforms.csv")
    assert metrics["n_mirrored"] == mirrored(found.matrices).sum() > 0
    assert metrics["method"] == "semantic"
    assert "mirrored" in metrics["decisions"]["features"]["sentence"]


def test_points_land_in_the_other_images(run: Path, tmp_path: Path) -> None:
    _, _, points = made_birds(8, seed=3)
    ids = list(congeal.Transforms.load(run / "transforms.csv").ids)
    lines = [f"{ids[0]},{x},{y},{name}" for (x, y), name in zip(points[0], ("beak", "eye", "tail"), strict=True)]
    (tmp_path / "points.csv").write_text("\n".join(["id,x,y,name", *lines]))
    assert main(["match", str(run), "--points", str(tmp_path / "points.csv"), "-o", str(tmp_path / "out")]) == 0
    with (tmp_path / "out" / "matches.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 24
    for x, y in (("x", "y"), ("frame_x", "frame_y")):
        there = np.array([[float(row[x]), float(row[y])] for row in rows]).reshape(8, 3, 2)
        assert np.median(np.linalg.norm(there - points, axis=-1)[1:]) < 0.1 * 128


def test_points_of_other_sets_are_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(CongealError, match="has no image 'nobody'"):
        match_points(run, {"nobody": [[1, 2]]})
    (tmp_path / "points.csv").write_text("id,x,y\n")
    with pytest.raises(CongealError, match="holds no points"):
        match_points(run, tmp_path / "points.csv")


def test_a_model_file_cannot_choose_a_program(run: Path) -> None:
    model = congeal.load(run / "model.safetensors")
    assert isinstance(model, SemanticCongealing)
    model.features = "stranger.onnx"
    model._restore(model._state())
    with pytest.raises(CongealError, match="must not choose"):
        model.extractor()


def test_mirrored_and_turned_digits_without_a_network(tmp_path: Path) -> None:
    digits = np.stack([congeal.open_images("digits:7").read(i).pixels[..., 0] for i in range(60)])
    ways = np.random.default_rng(0).choice([0, 0, 0, 2, 4, 7], 60)
    # What undoes an orientation: turns the other way round; a mirrored one undoes itself.
    undo = np.where(ways >= 4, ways, -ways % 4)
    given = np.stack([make_upright(one, int(way)) for one, way in zip(digits, undo, strict=True)])
    found = congeal.align(
        given, tmp_path / "run", method="lsc", mirror=True, turns=True, write_aligned=False, quiet=True
    )
    assert (orientation_of(found.transforms.matrices) == ways).mean() > 0.9
    assert found.metrics["n_turned"] > 0


def test_start_none_takes_away_what_a_source_brings_along(tmp_path: Path) -> None:
    started = open_images(np.stack([congeal.open_images("digits:3").read(i).pixels[..., 0] for i in range(8)]))
    started.initial, started.initial_size = np.tile(np.eye(3), (8, 1, 1)), (28, 28)
    started.initial[:, 0, 2] = np.linspace(-2, 2, 8)
    options = {"method": "lsc", "write_aligned": False, "quiet": True}
    plain = congeal.align(started, tmp_path / "run", start="none", **options)  # type: ignore[arg-type]
    assert json.loads((plain.folder / "config.json").read_text())["start"] == "none"
    begun = np.load(plain.folder / ".work" / "start.npz")["matrices"]
    assert np.allclose(begun, begun[:1])
    begun = np.load(congeal.align(started, tmp_path / "own", **options).folder / ".work" / "start.npz")["matrices"]  # type: ignore[arg-type]
    assert not np.allclose(begun, begun[:1])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"start": "faces", "init": "faces"}, "given twice"),
        ({"mirror": "maybe"}, "mirror is True"),
        ({"features": "lite9"}, "features are edges"),
        ({"features": "edges", "method": "lsc"}, "only joint"),
        ({"features": "lite0", "method": "lsc", "start": "none"}, "leave one of them out"),
    ],
)
def test_wishes_that_make_no_sense(options: dict[str, str], words: str, tmp_path: Path) -> None:
    with pytest.raises(CongealError, match=words):
        congeal.align("digits:3", tmp_path / "run", quiet=True, **options)  # type: ignore[arg-type]
