"""Poses corrected by hand: pins, the fit from there, what is refused, and what the rest of the package makes of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import ndimage

from blobs import blob
from congeal import CongealError, Transforms, align
from congeal.export import export
from congeal.geometry.matrix import map_points
from congeal.geometry.motion import transform_from_points
from congeal.pipeline.initial_poses import parse_start_options
from congeal.pipeline.options import AlignOptions
from congeal.runs.folder import RunFolder
from congeal.studio.realign import Realignment, options_from_config
from congeal.studio.refit import refit_pose
from congeal.studio.session import Session


@pytest.mark.parametrize(
    ("motion", "count", "free"),
    [("translation", 3, "translation"), ("homography", 1, "translation"), ("rigid", 2, "rigid"),
     ("affine", 2, "similarity"), ("homography", 3, "affine")],
)  # fmt: skip
def test_pins_are_met_as_far_as_the_motion_can(motion: str, count: int, free: str) -> None:
    linear = {
        "translation": np.eye(2),
        "rigid": np.array([[0.6, -0.8], [0.8, 0.6]]),
        "similarity": 1.5 * np.array([[0.6, -0.8], [0.8, 0.6]]),
        "affine": np.array([[1.2, 0.3], [-0.1, 0.7]]),
    }[free]
    points = np.array([[0.0, 0.0], [10.0, 2.0], [3.0, 8.0]])[:count]
    targets = points @ linear.T + (5, -3)
    found = transform_from_points(points, targets, motion)
    assert np.allclose(map_points(found, points), targets)
    assert np.allclose(found[:2, :2], linear)


def test_points_on_one_line_or_on_one_place_do_no_harm() -> None:
    line = np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]])
    assert np.isfinite(transform_from_points(line, line + 1, "affine")).all()
    same = np.ones((2, 2))
    assert np.allclose(transform_from_points(same, same + 2, "affine"), [[1, 0, 2], [0, 1, 2], [0, 0, 1]])


def scene() -> np.ndarray:
    noise = np.random.default_rng(0).normal(size=(150, 200))
    smooth = ndimage.gaussian_filter(noise, 4)
    return (255 * (smooth - smooth.min()) / np.ptp(smooth)).astype(np.float32)


def test_a_pin_near_the_truth_is_enough_for_the_fit() -> None:
    whole = scene()
    mean, image = whole[30:120, 40:160], whole[16:106, 60:180]  # it lies 20 px to the left and 14 down in the image
    rough = np.array([[60.0, 45.0]]), np.array([[60.0 - 20 + 2.0, 45.0 + 14 - 1.5]])
    found = refit_pose(image, mean, np.eye(3), rough, "rigid")
    assert found.fitted
    assert np.allclose(found.matrix[:2, 2], (20, -14), atol=0.2)
    assert np.allclose(found.matrix[:2, :2], np.eye(2), atol=0.003)


def test_where_the_fit_would_leave_the_pin_the_user_is_right() -> None:
    mean = scene()[30:120, 40:160]
    wrong = np.array([[60.0, 45.0]]), np.array([[30.0, 45.0]])  # 30 px off, and the picture knows nothing of it
    found = refit_pose(mean, mean, np.eye(3), wrong, "translation")
    assert np.hypot(*(map_points(found.matrix, wrong[1]) - wrong[0])[0]) < 0.05 * 120 + 1e-6


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("settle")
    np.save(folder / "images.npy", blob(6))
    align(folder / "images.npy", folder / "run", method="lsc", motion="translation", size=16, quiet=True)
    return folder / "run"


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"index": 99, "pins": []}, "no such image"),
        ({"index": "0", "pins": []}, "no such image"),
        ({"index": 0, "pins": []}, "dragged"),
        ({"index": 0, "pins": [{"x": 1, "y": 1, "u": "a", "v": 0}]}, "x, y, u and v"),
        ({"index": 0, "matrix": [0] * 9, "pins": [{"x": 1, "y": 1, "u": 1, "v": 0}]}, "inverse"),
        ({"index": 0, "matrix": [1], "pins": [{"x": 1, "y": 1, "u": 1, "v": 0}]}, "nine numbers"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(run: Path, document: dict[str, Any], says: str) -> None:
    with pytest.raises(CongealError, match=says):
        Session(run).refit_pose(document)


def test_corrected_poses_are_used_from_then_on(run: Path, tmp_path: Path) -> None:
    session = Session(run)
    moved = session.found.matrices[2].copy()
    moved[0, 2] += 3
    nothing: dict[str, Any] = {"points": [], "excluded": []}
    with pytest.raises(CongealError, match="inverse"):
        session.save({**nothing, "poses": [{"index": 2, "matrix": [0.0] * 9}]})
    session.save({**nothing, "poses": [{"index": 2, "matrix": moved.ravel().tolist()}]})
    assert "transforms.csv" in session.saved_words()["files"]
    assert [pose["index"] for pose in Session(run).state()["poses"]] == [2]
    export(run, tmp_path / "t.npz")
    out = Transforms.load(tmp_path / "t.npz")
    assert np.allclose(out.matrices[2], moved)
    assert np.array_equal(out.matrices[[0, 1, 3]], session.found.matrices[[0, 1, 3]])
    session.save(nothing)
    assert not (run / "studio" / "transforms.csv").exists()


def test_a_strangers_run_cannot_choose_programs_or_machines(run: Path, tmp_path: Path) -> None:
    """What is aligned again is asked for by config.json, which may have come with the run."""
    shutil.copytree(run, tmp_path / "run")
    own = json.loads((run / "config.json").read_text())
    for more, fits in (
        ({"params": {**own["params"], "features": "theirs.pt"}}, False),
        ({"start_features": "theirs.onnx"}, False),
        ({"executor": "dask:tcp://127.0.0.1:9", "device": "cuda:7"}, True),
    ):
        (tmp_path / "run" / "config.json").write_text(json.dumps({**own, **more}))
        theirs = RunFolder.existing(tmp_path / "run")
        if not fits:
            with pytest.raises(CongealError, match="a program that the run must not choose"):
                Realignment(theirs, None, ["0"])
            continue
        again = Realignment(theirs, None, ["0"])
        again._thread.join()
        assert again.status == "done", again._said
        assert again.run.parent == tmp_path / "run" / "studio"


@pytest.mark.parametrize(
    "options",
    [
        {
            "method": "lsc",
            "motion": "rigid",
            "channel": "0,2",
            "canvas": "30x20",
            "fill": "edge",
            "size": 16,
            "seed": 3,
        },
        {"method": "lsc", "interpolation": "nearest", "limit": 5, "transforms_format": "npz", "write_aligned": False},
        {"method": "ecc", "start": "none", "output_format": "files"},
        {"method": "lsc", "mirror": True, "init": "t.csv"},
        {"sequence": True, "smooth": 3, "motion": "translation"},
        {"sequence": True, "reference": "mean", "motion": "translation"},
        {"groups": 2, "method": "lsc", "motion": "translation"},
    ],
    ids=lambda options: "-".join(options),
)
def test_what_was_asked_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    images = np.stack([blob(6, seed=seed) for seed in (0, 0, 1)], -1)
    np.save("images.npy", images)
    Transforms([str(i) for i in range(6)], np.tile(np.eye(3), (6, 1, 1)), np.full((6, 2), 24), (24, 24)).save("t.csv")
    align("images.npy", "run", quiet=True, **options)
    again = Realignment(RunFolder.existing(Path("run")), None, ["1"])
    again._thread.join()
    assert again.status == "done", again._said
    asked, now = (json.loads((folder / "config.json").read_text()) for folder in (Path("run"), again.run))
    assert now["exclude"]["images"] == 1
    differing = {key for key in now if now[key] != asked[key]}
    assert differing - {"command", "created"} == {"exclude"}


@pytest.mark.parametrize("init", [None, "t.csv"])
@pytest.mark.parametrize("mirror", [True, False])
def test_a_start_from_features_is_asked_again(init: str | None, mirror: bool) -> None:
    asked = {"start": "features"} if init is None else {"features": "lite0", "init": str(Path(init).resolve())}
    start = parse_start_options(AlignOptions(method="lsc", mirror=mirror, **asked))
    config = {"method": start.method, **start.as_config()}
    assert config["start_features"] == "lite0"
    assert parse_start_options(AlignOptions(**options_from_config(config))) == start
