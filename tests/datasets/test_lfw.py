"""LFW: the files as they are, boxes by the protocol, landmarks for measuring; and the words when they are missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from congeal import CongealError, open_images
from congeal.datasets import photographs as lfw
from congeal.evaluation import landmark_error
from congeal.geometry import map_points
from congeal.images import prepare
from congeal.images.sources.faces import FaceSource
from made_data import NO_FACE, PERSON, SHOTS

SMALL = "Jennifer_Capriati"  # of the original people, the one with the fewest files


@pytest.fixture
def faces(made_lfw: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONGEAL_DATA", str(made_lfw))
    return made_lfw


def opened(name: str, limit: int | None = None) -> FaceSource:
    source = open_images(name, limit=limit)
    assert isinstance(source, FaceSource)
    return source


def check_files_and_boxes(source: FaceSource, person: str, faceless: int) -> None:
    """Photographs of 250×250, with a box around each face and one in the centre where there is none."""
    assert (source.name, source.kind, source.id(0)) == (f"lfw:{person}", "photo", f"{person}_0001.jpg")
    assert source.read(0).pixels.shape == (250, 250, 3)
    assert source.initial is not None
    assert source.initial_size is not None
    assert source.faces.missing.tolist() == [faceless]
    # Without a detection: the centre, as large as the others' median.
    x, y, width, height = source.faces.boxes[faceless]
    assert width == height == pytest.approx(np.median(np.delete(source.faces.boxes[:, 2], faceless)))
    assert (x + width / 2, y + height / 2) == (125, 125)
    stack = prepare(source, size=64)
    assert stack.frame == (64, 64)
    assert stack.aligned_size == source.initial_size, "results have the resolution of the boxes"


def test_files_and_their_boxes(faces: Path) -> None:
    source = opened(f"lfw:{PERSON}")
    check_files_and_boxes(source, PERSON, NO_FACE)
    for shot, (x, y, width, height) in zip(SHOTS, source.faces.boxes, strict=False):
        assert ((shot.face > [x, y]) & (shot.face < [x + width, y + height])).all()


def test_grown_boxes(faces: Path) -> None:
    plain, grown = (opened(f"lfw:{PERSON}{grow}", limit=3) for grow in ("", "@0.3"))
    np.testing.assert_allclose(grown.faces.boxes[:, 2], 1.3 * plain.faces.boxes[:, 2])
    assert grown.initial_size == tuple(round(1.3 * np.median(plain.faces.boxes[:, 2])) for _ in range(2))


def test_deep_funneled_images_share_one_box(faces: Path) -> None:
    source = open_images(f"lfw-deepfunneled:{PERSON}", limit=3)
    assert source.initial is not None
    assert (source.initial == source.initial[0]).all()
    assert source.initial[0, 0, 0] == pytest.approx(1, abs=0.01)


def test_landmarks_and_unreliable_ones(faces: Path) -> None:
    points = lfw.landmarks(open_images(f"lfw:{PERSON}"))
    assert np.flatnonzero(np.isnan(points).any((1, 2))).tolist() == [NO_FACE]
    np.testing.assert_allclose(points[:NO_FACE], [shot.face for shot in SHOTS])


def test_landmark_errors_tell_poses_apart(faces: Path) -> None:
    """Boxes are rough, the poses the photographs were made with are exact, and so are the funneled images."""
    photos, funneled = open_images(f"lfw:{PERSON}"), open_images(f"lfw-deepfunneled:{PERSON}")
    points = lfw.landmarks(photos)
    portrait_from_photo = np.linalg.inv([shot.photo_from_portrait for shot in SHOTS])
    assert 0.5 < landmark_error(map_points(np.asarray(photos.initial), points))["mean"] < 10
    assert landmark_error(map_points(portrait_from_photo, points[:NO_FACE]))["mean"] < 1e-6
    assert landmark_error(map_points(np.asarray(funneled.initial), lfw.landmarks(funneled)))["mean"] < 1e-6


def test_the_original_files(original_lfw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of the boxes and of Deep Congealing were measured independently of this code before it was written."""
    monkeypatch.setenv("CONGEAL_DATA", str(original_lfw))
    check_files_and_boxes(opened(f"lfw:{SMALL}", limit=9), SMALL, 7)
    for name, error in ((f"lfw:{SMALL}", 8.4), (f"lfw-deepfunneled:{SMALL}", 6.1)):
        images = open_images(name)
        points = lfw.landmarks(images)
        assert landmark_error(map_points(np.asarray(images.initial), points))["mean"] == pytest.approx(error, abs=0.05)
        if name == f"lfw:{SMALL}":
            assert [images.id(i) for i in np.flatnonzero(np.isnan(points).any((1, 2)))] == [f"{SMALL}_0031.jpg"]


@pytest.mark.parametrize("name", ["lfw:Nobody", "lfw:", "lfw:.", "lfw:..", "lfw-deepfunneled:Nobody"])
def test_unknown_people(faces: Path, name: str) -> None:
    with pytest.raises(CongealError):
        open_images(name)


def test_a_person_is_named_with_the_folder(faces: Path) -> None:
    with pytest.raises(CongealError, match=f"no person 'Nobody'.*{PERSON}"):
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
