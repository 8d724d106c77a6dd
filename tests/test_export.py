"""Exports as other programs read them, and the pages of docs/ that show how: every block is run."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from congeal import DPRC, CongealError, Transforms, align, load, open_images
from congeal.cli import main
from congeal.export import FORMATS, export
from congeal.geometry import warp
from congeal.images import warp_pixels
from congeal.images.resample import SOFT

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r"(<!-- not run[^\n]*\n)?```(\w+)\n(.*?)\n```", re.DOTALL)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photos/ as the pages expect it, and their commands not yet run."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "photos").mkdir()
    digits = open_images("digits:3", limit=12)
    for i in range(12):
        Image.fromarray(digits.read(i).pixels[..., 0]).save(folder / "photos" / f"{i}.png")
    return folder


def run_page(name: str) -> list[dict[str, Any]]:
    """Run the page's blocks in the current folder, in order; gives the names each Python block left behind."""
    names: dict[str, Any] = {}
    states = []
    for shown_only, language, code in BLOCK.findall((DOCS / name).read_text()):
        if shown_only:
            continue
        if language == "python":
            exec(compile(code, f"docs/{name}", "exec"), names)
            states.append(dict(names))
        for line in code.splitlines() if language == "sh" else ():
            assert main(shlex.split(line, comments=True)[1:]) == 0, line
    return states


def close(found: np.ndarray, expected: np.ndarray, tolerance: float) -> bool:
    """Programs round and interpolate a little differently; the border is left out, where they differ on purpose."""
    difference = np.abs(found.astype(float) - expected.astype(float))[2:-2, 2:-2]
    return float(difference.max()) <= tolerance


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's exporter has many of its own
def test_the_page_on_exports(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("cv2", "skimage", "SimpleITK", "scipy", "onnxscript", "onnxruntime"):
        pytest.importorskip(module)
    from scipy import ndimage

    monkeypatch.chdir(place)
    table, arrays, opencv, skimage, itk, napari, python, onnx = run_page("export.md")
    found = Transforms.load("run/transforms.csv")
    image = np.asarray(Image.open("photos/0.png"))
    size = found.aligned_size or image.shape  # the pages sample as their programs do by default, bilinearly
    ours = warp_pixels(image, found[0].inverse().matrices[0], (size[0], size[1]), SOFT)

    assert np.array_equal(table["matrices"], found.matrices)
    assert np.allclose(table["point"], found[0].apply_points([[10, 12]])[0, 0])
    assert np.array_equal(arrays["matrices"], found.matrices)
    assert opencv["names"] == list(found.ids)
    assert np.array_equal(opencv["matrices"], found.matrices)
    assert close(opencv["aligned"], ours, 6)  # OpenCV samples at 1/32 of a pixel
    assert close(skimage["aligned"], ours, 1)
    assert close(itk["aligned"], ours, 1)
    row_column = napari["affine"] @ (5.0, 7.0, 1.0)
    assert np.allclose(row_column[1::-1], found[0].apply_points([[7.0, 5.0]])[0, 0])
    shown = ndimage.affine_transform(
        image.astype(float), np.linalg.inv(napari["affine"]), output_shape=ours.shape, order=1
    )
    assert close(shown, ours, 1)
    assert python["in_aligned"].shape == (12, 1, 2)
    assert len(Transforms.load("good.csv")) == int(found.ok.sum())
    model = load("dprc-run/model.safetensors")
    assert isinstance(model, DPRC)
    small = torch.tensor(onnx["images"])
    with torch.no_grad():
        expected = model.aligner_.predict(small, torch.eye(3)[None], model.passes)
    assert np.allclose(onnx["stack_from_frame"], expected, atol=1e-4)
    assert close(onnx["aligned"], 255 * warp(small, expected, (28, 28))[0, 0].numpy(), 6)
    check_batches(onnx["session"], model)


def check_batches(session: Any, model: DPRC) -> None:
    """The file gives the net's own answer for one image, a few and many, wherever they start."""
    layout = json.loads(session.get_modelmeta().custom_metadata_map["congeal"])
    assert layout["size"] == [28, 28]
    images = open_images("digits:3").batch(np.arange(40))[..., 0]
    for n in (1, 7, 40):
        batch = (images[:n, None] / 255).astype(np.float32)
        start = np.tile(np.eye(3, dtype=np.float32), (n, 1, 1))
        start[:, 0, 2] = 1.5
        (found,) = session.run(None, {"images": batch, "start": start})
        with torch.no_grad():
            expected = model.aligner_.predict(torch.tensor(batch), torch.tensor(start), model.passes)
        np.testing.assert_allclose(found, expected.numpy(), atol=1e-4)
        assert not np.allclose(found, start, atol=1e-3)


def test_only_a_dprc_run_has_a_network(tmp_path: Path) -> None:
    result = align("digits:1", tmp_path / "run", method="lsc", limit=5, quiet=True)
    with pytest.raises(CongealError, match="made with lsc"):
        export(result, tmp_path / "model.onnx")


def test_the_page_on_marking(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    if not Path("run").exists():
        align("photos", "run", method="lsc", motion="affine", size=28, quiet=True)
    Path("points.csv").write_text("x,y,name\n14,9,tip\n")
    Image.new("L", (28, 28), 255).save("mask.png")
    Image.new("RGBA", (28, 28), (255, 0, 0, 80)).save("edit.png")
    (python,) = run_page("report.md")
    assert python["points"].xy.shape == (12, 1, 2)
    assert python["spread"][0]["largest"] < 1e-6
    for name in ("masks/3.png", "overlays/3.png", "points.json", "collected.csv", "spread.csv"):
        assert Path("marks", name).exists(), name


def test_the_page_names_every_format() -> None:
    page = (DOCS / "export.md").read_text()
    assert all(f"`{suffix}`" in page for suffix in FORMATS if suffix != ".yaml")


def test_opencv_reads_strange_names_and_skipped_images(tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    (tmp_path / "photos").mkdir()
    names = ['a "quoted".png', "back\\slash.png", "ümlaut 日.png", "# no comment: [x].png", "plain.png"]
    for i, name in enumerate(names):
        pixels = np.zeros((16, 16), np.uint8)
        pixels[4 + i % 2 : 12, 5:11] = 200
        Image.fromarray(pixels).save(tmp_path / "photos" / name)
    (tmp_path / "photos" / "broken.png").write_text("no")
    align(tmp_path / "photos", tmp_path / "run", method="lsc", motion="rigid", quiet=True)
    target = export(tmp_path / "run", tmp_path / "t.yaml")
    file = cv2.FileStorage(str(target), cv2.FILE_STORAGE_READ)
    found = Transforms.load(tmp_path / "run" / "transforms.csv")
    ids = [file.getNode("ids").at(k).string() for k in range(file.getNode("ids").size())]
    status = [file.getNode("status").at(k).string() for k in range(file.getNode("status").size())]
    assert ids == list(found.ids)
    assert set(names) < set(ids)
    assert status == found.status.tolist()
    matrices = file.getNode("matrices").mat().reshape(-1, 3, 3)
    assert np.array_equal(matrices, found.matrices, equal_nan=True)
    assert np.isnan(matrices[ids.index("broken.png")]).all()


@pytest.mark.parametrize("motion", ["translation", "rigid", "similarity", "affine"])
def test_itk_reads_every_simpler_motion(place: Path, tmp_path: Path, motion: str) -> None:
    sitk = pytest.importorskip("SimpleITK")
    quick = {"iterations": (2, 2, 2)}
    result = align(place / "photos", tmp_path / "run", method="lsc", motion=motion, size=28, params=quick, quiet=True)
    folder = export(result, tmp_path / "transforms.tfm")
    for i, id in enumerate(result.transforms.ids):
        back = sitk.ReadTransform(str(folder / f"{id}.tfm"))
        expected = result.transforms[i].apply_points([[3.0, 20.0]], inverse=True)[0, 0]
        assert np.allclose(back.TransformPoint((3.0, 20.0)), expected, atol=1e-9)
