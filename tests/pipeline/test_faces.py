"""Faces as a start: found in photographs of any size and orientation, and everything that comes of it."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from congeal import CongealError, Transforms, align, apply
from congeal.comparison.compare import compare
from congeal.errors import MissingExtra, RunFailed
from congeal.geometry import map_points
from congeal.images.sources import faces
from congeal.images.sources.faces import FaceSearch, FaceSource, cascade, find_faces, parse_grow
from congeal.opening import open_images
from congeal.pipeline.initial_poses import inherited_init, read_initial_poses, start_at_faces
from congeal.runs.folder import RunFolder
from portraits import NO_FACE, SHOTS, Shot, name, save, take

OPTIONS = {"method": "lsc", "motion": "similarity", "quiet": True}


@pytest.fixture(scope="module")
def run(portraits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faces") / "run"
    align(portraits, folder, init="faces", **OPTIONS)
    return folder


def spread(transforms: Transforms, names: list[str], points: np.ndarray) -> float:
    """Mean distance of the points from their centroid over images, in % of the distance between the eyes."""
    there = map_points(transforms.matching(names).matrices, points)
    centre = there.mean(0)
    return float(100 * np.linalg.norm(there - centre, axis=-1).mean() / np.linalg.norm(centre[0] - centre[1]))


def test_boxes_are_in_upright_pixels_and_hold_the_face(portraits: Path) -> None:
    source = open_images(portraits)
    faces = find_faces(source)
    assert [source.id(int(i)) for i in faces.missing] == [NO_FACE]
    for shot, (x, y, width, height) in zip(SHOTS, faces.boxes, strict=False):
        assert width == pytest.approx(height, rel=0.01)
        assert width == pytest.approx(100 * shot.scale, rel=0.25)
        assert (shot.face > [x, y]).all()
        assert (shot.face < [x + width, y + height]).all()
        assert np.linalg.norm(shot.face.mean(0) - [x + width / 2, y + height / 2]) < 0.2 * width
    # Without a face: a square in the middle, as large a part of the photograph as the others' faces are.
    height, width, *_ = source.probe(len(SHOTS))
    x, y, w, h = faces.boxes[-1]
    assert (x + w / 2, y + h / 2) == pytest.approx((width / 2, height / 2))
    parts = [box[2] / min(shot.height, shot.width) for shot, box in zip(SHOTS, faces.boxes, strict=False)]
    assert w == h == pytest.approx(np.median(parts) * height)


def test_any_pixel_type_gives_the_same_boxes() -> None:
    pytest.importorskip("cv2")
    picture = np.asarray(take(SHOTS[2]))
    kinds = [picture, picture.astype(np.uint16) * 16, picture / np.float32(255), (picture / 255).astype(np.float64)]
    boxes = find_faces(open_images(kinds)).boxes
    assert np.isfinite(boxes).all()
    assert np.abs(boxes - boxes[0]).max() < 0.05 * boxes[0, 2]
    assert find_faces(open_images([picture[..., 1], picture])).found.all()


def test_a_large_face_in_the_middle_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller ones are only looked for where there is none; the answer is the same."""
    pytest.importorskip("cv2")
    detect, shares = faces._detect, list[float]()
    monkeypatch.setattr(faces, "_detect", lambda *a: shares.append(a[2]) or detect(*a))
    large, small = (np.asarray(take(shot)) for shot in (SHOTS[3], SHOTS[0]))
    aside = np.roll(large, 80, axis=1)
    for picture, searched in ((large, [0.3]), (small, [0.3, 0.1]), (aside, [0.3, 0.1])):
        shares.clear()
        found = find_faces(open_images([picture]))
        assert shares == searched
        everywhere = find_faces(open_images([picture]), FaceSearch(large=0.1))
        assert np.abs(found.boxes - everywhere.boxes).max() < 0.1 * everywhere.boxes[0, 2]


def test_the_search_waits_until_it_is_needed(portraits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("congeal.images.sources.faces.cascade", lambda: pytest.fail("searched"))
    source = FaceSource(open_images(portraits), 0.3)
    part = source.limit(2)
    assert isinstance(part, FaceSource)
    assert (part.grow, len(part), part.id(1)) == (0.3, 2, name(1))
    assert source.subset([1]).subset([0]).id(0) == name(1)
    assert part.fingerprint() != source.fingerprint()


def test_growing_keeps_the_centre(portraits: Path) -> None:
    few = open_images(portraits, limit=2)
    plain, grown = FaceSource(few).faces.boxes, FaceSource(few, 0.3).faces.boxes
    np.testing.assert_allclose(grown[:, 2:], 1.3 * plain[:, 2:])
    np.testing.assert_allclose(grown[:, :2] + grown[:, 2:] / 2, plain[:, :2] + plain[:, 2:] / 2)


def test_photos_end_to_end(run: Path) -> None:
    """Colour photographs of mixed sizes, some lying on their side: faces meet, in colour, at full resolution."""
    found = Transforms.load(run / "transforms.csv")
    start = Transforms.load(run / ".work" / "start.npz")
    names = [name(i) for i in range(len(SHOTS))]
    points = np.array([shot.face for shot in SHOTS])
    assert spread(start, names, points) > 3
    assert spread(found, names, points) < 1.5
    size = RunFolder.existing(run).read_json("metrics.json")["aligned_size"]
    boxes = RunFolder.existing(run).read_rows("boxes.csv")
    assert size == [round(np.median([float(box["height"]) for box in boxes]))] * 2
    assert max(size) > 64, "the result has the resolution of the photographs, not of the working picture"
    assert RunFolder.existing(run).read_json("metrics.json")["n_exif_rotated"] == 4
    aligned = [np.asarray(Image.open(run / "aligned" / f"photo {i}.png")).astype(int) for i in range(len(SHOTS))]
    assert all(picture.shape == (*size, 3) for picture in aligned)
    middle = slice(size[0] // 4, -size[0] // 4)
    skin = np.array([picture[middle, middle].mean((0, 1)) for picture in aligned])
    assert (skin[:, 0] > skin[:, 2] + 20).all(), "a face is redder than it is blue, in every aligned photograph"


def test_images_without_a_face_are_listed(run: Path) -> None:
    remarks = {row["id"]: row["remark"] for row in RunFolder.existing(run).read_rows("boxes.csv")}
    assert [image for image, remark in remarks.items() if remark] == [NO_FACE]
    page = (run / "report.html").read_text()
    assert "Images without a face" in page
    assert f"<li>{NO_FACE}</li>" in page
    assert (run / "skipped.csv").read_text() == "id,reason\n", "they are used, not skipped"


def test_a_run_says_which_have_none(portraits: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "congeal"):
        align(portraits, tmp_path / "run", init="faces@0.3", write_aligned=False, **OPTIONS)
    assert f"{NO_FACE}: no face found" in caplog.text
    assert RunFolder.existing(tmp_path / "run").config["init"] == "faces@0.3"


def test_written_boxes_are_a_start(run: Path, portraits: Path) -> None:
    again, size = read_initial_poses(run / "boxes.csv", open_images(portraits))
    start = Transforms.load(run / ".work" / "start.npz")
    assert size == start.aligned_size
    np.testing.assert_allclose(np.asarray(again), start.matrices, atol=0.01)


def test_new_photos_start_at_their_faces(run: Path, tmp_path: Path) -> None:
    """Of other sizes than those of the fit, and with the face elsewhere."""
    folder = tmp_path / "new"
    folder.mkdir()
    shots = [Shot(800, 1000, 2.0, (-120, 40), 0.03, 8), Shot(500, 400, 0.8, (30, -50), -0.03, 1)]
    for i, shot in enumerate(shots):
        save(take(shot), folder / name(i), shot.orientation)
    apply(run, folder, tmp_path / "applied", quiet=True)
    assert RunFolder.existing(tmp_path / "applied").config["init"] == "faces"
    old, new = (Transforms.load(one / ".work" / "start.npz") for one in (run, tmp_path / "applied"))
    assert new.aligned_size == old.aligned_size
    home = map_points(old.matrices[: len(SHOTS)], np.array([shot.face for shot in SHOTS])).mean(0)
    there = map_points(new.matrices, np.array([shot.face for shot in shots]))
    assert np.linalg.norm(there - home, axis=-1).max() < 0.1 * np.linalg.norm(home[0] - home[1])


def test_what_new_images_inherit() -> None:
    assert inherited_init({"source": "photos", "init": "faces@0.2"}) == "faces@0.2"
    assert inherited_init({"source": "lfw:Tony_Blair@0.3", "init": None}) == "faces@0.3"
    assert inherited_init({"source": "lfw:Tony_Blair", "init": None}) == "faces@0"
    assert inherited_init({"source": "lfw:Tony_Blair", "init": "/a/boxes.csv"}) is None
    assert inherited_init({"source": "photos", "init": None}) is None


def test_methods_are_compared_from_the_same_faces(portraits: Path, tmp_path: Path) -> None:
    rows = compare(portraits, "lsc", tmp_path / "c", init="faces", motion="similarity", quiet=True)
    assert rows[0]["apsnr_after"] > rows[0]["apsnr_before"]
    assert RunFolder.existing(tmp_path / "c").read_rows("boxes.csv")[-1]["remark"]


# ---- what can go wrong


def test_no_face_anywhere(tmp_path: Path) -> None:
    pytest.importorskip("cv2")
    noise = np.random.default_rng(0).integers(0, 40, (3, 60, 60, 3), dtype=np.uint8)
    with pytest.raises(RunFailed, match="no face was found in any of the 3 images"):
        align(noise, tmp_path / "run", init="faces", **OPTIONS)


def test_unreadable_photos_are_skipped_as_such(portraits: Path, tmp_path: Path) -> None:
    for i in range(3):
        (tmp_path / name(i)).write_bytes((portraits / name(i)).read_bytes())
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8nothing")
    align(tmp_path, tmp_path / "run", init="faces", write_aligned=False, **OPTIONS)
    assert "broken.jpg" in (tmp_path / "run" / "skipped.csv").read_text()
    assert "broken.jpg" not in (tmp_path / "run" / "boxes.csv").read_text()


def test_missing_extra_is_named_before_anything_is_written(
    portraits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(MissingExtra, match=r"congeal\[faces\]"):
        align(portraits, tmp_path / "run", init="faces", **OPTIONS)
    assert not (tmp_path / "run").exists()


def test_opencv_5_has_no_cascade(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", SimpleNamespace(__version__="5.0.0"))  # type: ignore[arg-type]
    with pytest.raises(CongealError, match="opencv-python-headless<5"):
        cascade()


@pytest.mark.parametrize("text", ["wide", "1e3", "-1", "nan", "11"])
def test_a_share_to_grow_by_is_a_sensible_number(text: str) -> None:
    with pytest.raises(CongealError, match=r"write faces@0\.3"):
        parse_grow(text, "faces@0.3")


def test_the_word_is_faces_and_nothing_like_it(portraits: Path) -> None:
    source = open_images(portraits)
    assert start_at_faces(source, None) is source
    assert start_at_faces(source, "faces.csv") is source
    assert isinstance(start_at_faces(source, "faces@-0.1"), FaceSource)
    with pytest.raises(CongealError, match="no file 'face'"):
        read_initial_poses("face", source)
