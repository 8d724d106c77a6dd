"""Mark the mean once, get it on every original; and back."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import tifffile
from PIL import Image

from congeal import (
    CongealError,
    Transforms,
    align,
    collect_points,
    propagate_mask,
    propagate_overlay,
    propagate_points,
)
from congeal.cli import main
from congeal.images.formats.output_files import OutputNames

ALIGNED = (40, 50)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


QUICK = {"iterations": (1, 1, 1)}  # where the alignment itself does not matter


@pytest.fixture(scope="module")
def found() -> Transforms:
    """Homographies of originals of two sizes, one of them skipped."""
    rng = np.random.default_rng(3)
    matrices = []
    for _ in range(6):
        m = np.array([[0.45, 0.05, -3], [-0.04, 0.42, 2], [0, 0, 1]]) + rng.normal(0, 0.02, (3, 3)) * [[1, 1, 50]] * 3
        m[2] = [*rng.normal(0, 2e-4, 2), 1]
        matrices.append(m)
    matrices.append(np.full((3, 3), np.nan))
    sizes = [(90, 120), (100, 110)] * 3 + [(90, 120)]
    return Transforms([f"im {i}.jpg" for i in range(7)], matrices, sizes, ALIGNED)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of originals of different sizes and types, aligned."""
    folder = tmp_path_factory.mktemp("propagate")
    originals = folder / "originals"
    (originals / "sub").mkdir(parents=True)
    for i, (name, size) in enumerate([("a.png", 48), ("b.png", 60), ("sub/a.png", 48), ("c.tif", 52), ("d.jpg", 48)]):
        y, x = np.mgrid[:size, :size] - (size / 2 + np.array([i - 2, 2 - i])[:, None, None])
        blob = np.exp(-((x / (0.2 * size)) ** 2) - (y / (0.1 * size)) ** 2)
        if name == "c.tif":
            tifffile.imwrite(originals / name, (3000 * blob + 500).astype(np.uint16))
        elif name == "d.jpg":
            Image.fromarray(np.stack([(255 * blob).astype(np.uint8)] * 3, -1)).save(originals / name, quality=95)
        else:
            Image.fromarray((255 * blob).astype(np.uint8)).save(originals / name)
    (originals / "z.png").write_text("not a picture")
    align(originals, folder / "run", method="lsc", motion="similarity", size=32, quiet=True)
    return folder / "run"


# ---- points


def test_points_go_out_and_come_back(found: Transforms, tmp_path: Path) -> None:
    xy = np.array([[10.0, 12.0], [30.5, 20.25], [44.0, 33.0]])
    carried = propagate_points(found, xy, names=["left", "middle", "right"], output=tmp_path)
    assert carried.ids == found.ids[:6]
    back = collect_points(found, tmp_path / "points.csv")
    assert np.abs(back.xy.reshape(6, 3, 2) - xy).max() < 1e-6  # the issue asks for 0.1 px
    assert [row["name"] for row in back.spread] == ["left", "middle", "right"]
    assert max(row["largest"] for row in back.spread) < 1e-6


def test_points_are_where_opencv_puts_them(found: Transforms) -> None:
    xy = np.array([[3.0, 4.0], [20.0, 30.0]])
    carried = propagate_points(found, xy)
    for i in range(6):
        expected = cv2.perspectiveTransform(xy[:, None], np.linalg.inv(found.matrices[i]))[:, 0]
        assert np.allclose(carried.xy[i], expected, atol=1e-9)


def test_visibility_is_about_the_whole_pixel() -> None:
    one = Transforms(["a"], np.eye(3)[None], [(10, 20)], (10, 20))
    carried = propagate_points(one, [[-0.5, 0], [-0.6, 0], [19.5, 9.5], [19.6, 9.5], [5, 9.6]])
    assert carried.visible.tolist() == [[True, False, True, False, False]]


def test_a_point_behind_the_horizon_is_not_visible() -> None:
    # the horizon of this one crosses the aligned picture at x = 15; (18, 5) maps into the image, mirrored through it
    back = np.array([[1.0, 0, 0], [0, 1.0, 0], [-1 / 15, 0, 1.0]])
    one = Transforms(["a"], np.linalg.inv(back)[None], [(200, 200)], (10, 12))
    carried = propagate_points(one, [[5.0, 5.0], [18.0, 5.0]])
    assert carried.visible.tolist() == [[True, False]]


def test_coco_keypoints(found: Transforms, tmp_path: Path) -> None:
    carried = propagate_points(found, [[20.0, 20.0], [-900.0, 0.0]], names=["in", "out"], output=tmp_path)
    coco = json.loads((tmp_path / "points.json").read_text())
    assert coco["categories"][0]["keypoints"] == ["in", "out"]
    assert [image["file_name"] for image in coco["images"]] == list(found.ids[:6])
    assert (coco["images"][0]["width"], coco["images"][0]["height"]) == (120, 90)
    images = {image["id"] for image in coco["images"]}
    for annotation, xy in zip(coco["annotations"], carried.xy, strict=True):
        assert annotation["image_id"] in images
        assert np.allclose(annotation["keypoints"][:2], xy[0])
        assert annotation["keypoints"][2:] == [2, 0, 0, 0]
        assert annotation["num_keypoints"] == 1
    table = rows(tmp_path / "points.csv")
    assert list(table[0]) == ["id", "name", "x", "y", "visible", "status"]
    assert [row["visible"] for row in table[:2]] == ["1", "0"]
    assert float(table[1]["x"]) < 0


def test_excluded_images_are_left_out(found: Transforms, tmp_path: Path) -> None:
    (tmp_path / "excluded.csv").write_text("id\nim 2.jpg\n")
    assert "im 2.jpg" not in propagate_points(found, [[1, 2]], exclude=tmp_path / "excluded.csv").ids
    assert len(propagate_points(found, [[1, 2]], exclude=["im 0.jpg", "im 1.jpg"]).ids) == 4
    with pytest.raises(CongealError, match="cannot exclude 'other'"):
        propagate_points(found, [[1, 2]], exclude=["other"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n", "needs the columns x,y"),
        ("x,y\n", "holds no points"),
        ("x,y\n1,two\n", "line 2"),
        ("x,y\n1,nan\n", "line 2"),
        ("x,y,name\n1,2,a\n3,4,a\n", "names must differ"),
    ],
)
def test_tables_that_cannot_be_used(found: Transforms, tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(CongealError, match=says):
        propagate_points(found, tmp_path / "p.csv")


# ---- masks and drawings


def test_masks_land_where_points_land(found: Transforms, tmp_path: Path) -> None:
    mask = np.zeros(ALIGNED, bool)
    mask[18:23, 23:28] = True  # centred at (25, 20)
    folder = propagate_mask(found, mask, tmp_path)
    carried = propagate_points(found, [[25.0, 20.0]])
    files = sorted(folder.iterdir())
    assert [path.name for path in files] == [f"im {i}.png" for i in range(6)]
    for path, xy, size in zip(files, carried.xy[:, 0], found.source_sizes, strict=False):
        landed = np.asarray(Image.open(path))
        assert landed.shape == tuple(size)
        assert set(np.unique(landed)) == {0, 255}
        y, x = np.nonzero(landed)
        assert np.allclose([x.mean(), y.mean()], xy, atol=0.25)  # a sharp mask is as fine as its pixels


def test_a_soft_mask_lands_to_a_tenth_of_a_pixel() -> None:
    y, x = np.mgrid[:40, :50]
    mask = (255 * np.exp(-((x - 25) ** 2 + (y - 20) ** 2) / 18)).astype(np.uint8)
    back = np.array([[1.02, 0.1, 4.3], [-0.1, 0.98, 6.6], [0, 0, 1]])
    one = Transforms(["a"], np.linalg.inv(back)[None], [(60, 70)], ALIGNED)
    from congeal.propagate.warped import land_mask

    landed = land_mask(mask, one.matrices[0], (60, 70), None).astype(float)
    v, u = np.mgrid[:60, :70]
    centre = [(u * landed).sum() / landed.sum(), (v * landed).sum() / landed.sum()]
    assert np.linalg.norm(centre - propagate_points(one, [[25.0, 20.0]]).xy[0, 0]) < 0.1


def test_a_mask_may_be_drawn_on_an_enlarged_mean(found: Transforms, tmp_path: Path) -> None:
    small = np.zeros(ALIGNED, np.uint8)
    small[10:30, 10:40] = 255
    large = np.kron(small, np.ones((4, 4), np.uint8))
    a, b = propagate_mask(found, small, tmp_path / "a"), propagate_mask(found, large, tmp_path / "b")
    for path in a.iterdir():
        one, other = np.asarray(Image.open(path)) > 0, np.asarray(Image.open(b / path.name)) > 0
        assert (one != other).sum() < 0.05 * one.sum()  # only the corners are rounder
    with pytest.raises(CongealError, match="same proportions"):
        propagate_mask(found, np.zeros((40, 40), bool), tmp_path)


def test_labels_are_never_blended(found: Transforms, tmp_path: Path) -> None:
    mask = np.zeros(ALIGNED, np.uint8)
    mask[5:35, 5:25], mask[5:35, 25:45] = 3, 9
    folder = propagate_mask(found, mask, tmp_path, labels=True)
    for path in folder.iterdir():
        assert set(np.unique(np.asarray(Image.open(path)))) == {0, 3, 9}
    blended = propagate_mask(found, mask, tmp_path / "soft")
    assert len(np.unique(np.asarray(Image.open(blended / "im 0.png")))) > 3


def test_a_whole_mask_covers_what_the_aligned_picture_covers() -> None:
    one = Transforms(["a"], np.eye(3)[None], [(30, 40)], (20, 25))
    from congeal.propagate.warped import land_mask

    landed = land_mask(np.full((20, 25), 255, np.uint8), np.eye(3), (30, 40), np.array([255]))
    assert landed[:20, :25].all()
    assert landed.sum() == 255 * 20 * 25
    assert one.aligned_size == (20, 25)


def test_overlays_keep_depth_and_what_is_not_drawn_on(run: Path, tmp_path: Path) -> None:
    mean = np.asarray(Image.open(run / "mean.png"))
    drawing = np.zeros((*mean.shape[:2], 4), np.uint8)
    drawing[20:28, 20:28] = (255, 0, 0, 255)
    Image.fromarray(drawing).save(tmp_path / "edit.png")
    folder = propagate_overlay(run, tmp_path / "edit.png", tmp_path / "out")
    originals = run.parent / "originals"
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert names == {"a.png", "b.png", "sub/a.png", "c.tif", "d.png"}
    edited, original = np.asarray(Image.open(folder / "b.png")), np.asarray(Image.open(originals / "b.png"))
    assert edited.shape == (60, 60, 3)  # grey under a coloured drawing becomes colour
    red = (edited[..., 0] > 250) & (edited[..., 1] < 5)
    assert red.sum() > 30
    untouched = (edited == original[..., None]).all(-1)
    assert untouched.sum() > 0.8 * untouched.size
    deep, before = tifffile.imread(folder / "c.tif"), tifffile.imread(originals / "c.tif")
    assert deep.dtype == np.uint16
    assert deep.shape == (52, 52, 3)
    assert (deep[..., 0] > 2000)[deep[..., 1] < 500].any()  # red by the measure of the set, not of all 16 bits
    assert (deep == before[..., None]).all(-1).sum() > 0.8 * before.size
    xy = propagate_points(run, [[23.5, 23.5]], exclude=["a.png", "sub/a.png", "c.tif", "d.jpg"]).xy[0, 0]
    v, u = np.nonzero(red)
    assert np.allclose([u.mean(), v.mean()], xy, atol=0.5)


def test_a_grey_drawing_leaves_grey_images_grey(run: Path, tmp_path: Path) -> None:
    drawing = np.zeros((*np.asarray(Image.open(run / "mean.png")).shape[:2], 4), np.uint8)
    drawing[..., :3] = 200
    drawing[5:9, 5:9, 3] = 255
    folder = propagate_overlay(run, drawing, tmp_path)
    assert Image.open(folder / "b.png").mode == "L"
    assert tifffile.imread(folder / "c.tif").ndim == 2


def test_an_overlay_without_transparency_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(CongealError, match="no transparency"):
        propagate_overlay(run, run / "mean.png", tmp_path)


def test_originals_that_moved_are_given_again(tmp_path: Path) -> None:
    images = (255 * np.random.default_rng(0).random((6, 16, 16))).astype(np.uint8)
    result = align(images, tmp_path / "run", method="lsc", motion="translation", params=QUICK, quiet=True)
    drawing = np.zeros((16, 16, 4), np.uint8)
    with pytest.raises(CongealError, match="source="):
        propagate_overlay(result, drawing, tmp_path / "out")
    folder = propagate_overlay(result, drawing, tmp_path / "out", source=images)
    assert np.array_equal(np.asarray(Image.open(folder / "3.png")), images[3])
    with pytest.raises(CongealError, match="does not hold the images"):
        propagate_overlay(result, drawing, tmp_path / "out", source=images[:4])


def test_file_names_differ_when_ids_do() -> None:
    assert list(OutputNames(["a.png", "a.jpg", "b.png", "1.5", "x/../y.tif"]).stems) == [
        "a.png",
        "a.jpg",
        "b",
        "1.5",
        "x/y",
    ]


# ---- collecting


def test_collecting_measures_the_spread(found: Transforms, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 1.5, (6, 2, 2))
    xy = np.array([[10.0, 10.0], [30.0, 20.0]])
    sources = found[:6].apply_points(xy + noise, inverse=True)
    lines = [f"{id},{x!r},{y!r}" for id, points in zip(found.ids, sources.tolist(), strict=False) for x, y in points]
    (tmp_path / "p.csv").write_text("id,x,y\n" + "\n".join(lines) + "\nim 6.jpg,1,1\n")
    collected = collect_points(found, tmp_path / "p.csv", tmp_path / "out")
    assert len(collected.ids) == 12  # the skipped image has no place in the aligned picture
    for k, row in enumerate(collected.spread):
        landed = xy[k] + noise[:, k]
        distance = np.linalg.norm(landed - landed.mean(0), axis=1)
        assert np.allclose([row["x"], row["y"]], landed.mean(0))
        assert np.isclose(row["spread"], distance.mean())
        assert np.isclose(row["rms"], np.sqrt((distance**2).mean()))
        assert np.isclose(row["largest"], distance.max())
    assert len(rows(tmp_path / "out" / "collected.csv")) == 12
    assert [row["name"] for row in rows(tmp_path / "out" / "spread.csv")] == ["1", "2"]


def test_collecting_says_what_alignment_gained(run: Path, tmp_path: Path) -> None:
    # the centre of each blob, known from how the originals were drawn
    centres = {"a.png": (48, 0), "b.png": (60, 1), "sub/a.png": (48, 2), "c.tif": (52, 3), "d.jpg": (48, 4)}
    lines = [f"{id},{size / 2 + 2 - i},{size / 2 + i - 2},centre" for id, (size, i) in centres.items()]
    (tmp_path / "p.csv").write_text("id,x,y,name\n" + "\n".join(lines) + "\n")
    (row,) = collect_points(run, tmp_path / "p.csv").spread
    assert row["spread"] < 0.3 * row["spread_before"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x,y\n1,2\n", "needs the columns id,x,y"),
        ("id,x,y\nother,1,2\n", "another set"),
        ("id,x,y,name\nim 1.jpg,1,2,a\nim 1.jpg,1,2,a\n", "twice"),
        ("id,x,y\nim 6.jpg,1,2\n", "was skipped"),
    ],
)
def test_labels_that_cannot_be_used(found: Transforms, tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(CongealError, match=says):
        collect_points(found, tmp_path / "p.csv")


# ---- the command


def test_the_command_does_all_of_it(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.csv").write_text("x,y,name\n24,24,middle\n-400,0,far\n")
    width, height = Image.open(run / "mean.png").size
    Image.new("L", (width, height), 255).save(tmp_path / "mask.png")
    Image.new("RGBA", (width, height), (0, 255, 0, 90)).save(tmp_path / "edit.png")
    out = tmp_path / "out"
    given = ["--points", "p.csv", "--mask", "mask.png", "--overlay", "edit.png"]
    arguments = [str(tmp_path / word) if "." in word else word for word in given]
    assert main(["propagate", str(run), *arguments, "-o", str(out)]) == 0
    assert "5 of 10 points" in capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {"points.csv", "points.json", "masks", "overlays"}
    assert main(["propagate", str(run), "--collect", str(out / "points.csv"), "-o", str(out)]) == 0
    assert "middle" in capsys.readouterr().out
    assert (out / "spread.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "nothing to do"),
        (["--points", "none.csv"], "none.csv"),
        (["--mask", "none.png"], "none.png"),
        (["--overlay", "none.png"], "none.png"),
        (["--exclude", "none.csv", "--points", "none.csv"], "none.csv"),
    ],
)
def test_wrong_use(
    run: Path, tmp_path: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["propagate", str(run), *arguments, "-o", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert "Traceback" not in said
