"""LFW: the files as they are, boxes by the protocol, landmarks for measuring; and the words when they are missing."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from congeal import CongealError, open_images
from congeal.datasets import lfw
from congeal.geometry import map_points
from congeal.images import prepare
from congeal.images.faces import FaceSource
from congeal.metrics import landmark_error

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"
SMALL = "Jennifer_Capriati"


@pytest.fixture
def faces(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with lfw, lfw_deepfunneled and the landmarks."""
    pytest.importorskip("cv2", reason="OpenCV is not installed: pip install 'congeal[faces]'")
    for folder in (Path(os.environ.get("CONGEAL_DATA", BESIDE)), BESIDE):
        if (folder / "lfw" / SMALL).is_dir():
            monkeypatch.setenv("CONGEAL_DATA", str(folder))
            return folder
    pytest.skip("the faces of LFW are not at hand: set CONGEAL_DATA")


def test_original_files_and_their_boxes(faces: Path) -> None:
    source = open_images(f"lfw:{SMALL}", limit=9)
    assert isinstance(source, FaceSource)
    assert (source.name, source.kind, source.id(0)) == (f"lfw:{SMALL}", "photo", f"{SMALL}_0001.jpg")
    assert source.read(0).pixels.shape == (250, 250, 3)
    assert source.initial is not None
    assert source.initial_size is not None
    assert [source.id(int(i)) for i in source.faces.missing] == [f"{SMALL}_0008.jpg"]
    # Without a detection: the centre, as large as the others' median.
    x, y, width, height = source.faces.boxes[7]
    assert width == height == pytest.approx(np.median(np.delete(source.faces.boxes[:, 2], 7)))
    assert (x + width / 2, y + height / 2) == (125, 125)
    stack = prepare(source, size=64)
    assert stack.frame == (64, 64)
    assert stack.aligned_size == source.initial_size, "results have the resolution of the boxes"


def test_grown_boxes(faces: Path) -> None:
    plain, grown = (open_images(f"lfw:{SMALL}{grow}", limit=3) for grow in ("", "@0.3"))
    assert isinstance(plain, FaceSource)
    assert isinstance(grown, FaceSource)
    np.testing.assert_allclose(grown.faces.boxes[:, 2], 1.3 * plain.faces.boxes[:, 2])
    assert grown.initial_size == tuple(round(1.3 * np.median(plain.faces.boxes[:, 2])) for _ in range(2))


def test_landmark_errors_of_the_boxes_and_of_deep_congealing(faces: Path) -> None:
    """The numbers everything is compared with, measured independently of this code before it was written."""
    for source, error in ((f"lfw:{SMALL}", 8.4), (f"lfw-deepfunneled:{SMALL}", 6.1)):
        images = open_images(source)
        points = map_points(np.asarray(images.initial), lfw.landmarks(images))
        assert landmark_error(points)["mean"] == pytest.approx(error, abs=0.05)


def test_deep_funneled_images_share_one_box(faces: Path) -> None:
    source = open_images(f"lfw-deepfunneled:{SMALL}", limit=4)
    assert source.initial is not None
    assert (source.initial == source.initial[0]).all()
    assert source.initial[0, 0, 0] == pytest.approx(1, abs=0.01)


def test_unreliable_landmarks_are_nan(faces: Path) -> None:
    images = open_images(f"lfw:{SMALL}")
    points = lfw.landmarks(images)
    assert points.shape == (42, 3, 2)
    assert [images.id(i) for i in np.flatnonzero(np.isnan(points).any((1, 2)))] == [f"{SMALL}_0031.jpg"]
    left, right, nose = np.nanmean(points, 0)
    assert left[0] < nose[0] < right[0]
    assert nose[1] > left[1]


@pytest.mark.parametrize("name", ["lfw:Nobody", "lfw:", "lfw:.", "lfw:..", "lfw-deepfunneled:Nobody"])
def test_unknown_people(faces: Path, name: str) -> None:
    with pytest.raises(CongealError):
        open_images(name)


def test_a_person_is_named_with_the_folder(faces: Path) -> None:
    with pytest.raises(CongealError, match=f"no person 'Nobody'.*George_W_Bush, {SMALL}"):
        open_images("lfw:Nobody")
    with pytest.raises(CongealError, match=r"write lfw:Tony_Blair@0\.3"):
        open_images("lfw:Tony_Blair@big")


def test_nowhere_to_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONGEAL_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(lfw, "URL", "http://127.0.0.1:9/lfw.tgz")
    with pytest.raises(CongealError, match="set CONGEAL_DATA"):
        open_images("lfw:Tony_Blair")
    with pytest.raises(CongealError, match="set CONGEAL_DATA"):
        open_images("lfw-deepfunneled:Tony_Blair")
