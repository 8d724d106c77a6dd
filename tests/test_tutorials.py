"""Every tutorial runs as it is, in an empty folder, and leaves what it promises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from page_blocks import ROOT, run_page

TUTORIALS = ROOT / "docs" / "tutorials"
NEEDED = ("skimage", "scipy", "cv2", "av")  # what the pages make their data with, and the extras they name
# page: its run folder, and what else it leaves
LEAVES = {
    "photo-a-day": ("year", ["year/aligned/aligned.mp4", "january/aligned/aligned.gif"]),
    "microscope": ("run", ["run/aligned/aligned.tif", "true-drift.csv", "clean.tif"]),
    "lunar": ("run", ["run/mean.png", "run/aligned/aligned.mp4", "moon.tif"]),
    "forms": ("run", ["amounts/00.png", "tomorrow/report.html"]),
    "products": ("shelf", ["shelf/aligned/00.png", "cut/masks/00.png"]),
}


def test_every_tutorial_is_known_here() -> None:
    assert {path.stem for path in TUTORIALS.glob("*.md")} == set(LEAVES)


@pytest.mark.slow
@pytest.mark.parametrize("name", LEAVES)
def test_tutorial_runs(name: str, tmp_path: Path) -> None:
    for module in NEEDED:
        pytest.importorskip(module)
    run_page(TUTORIALS / f"{name}.md", tmp_path)
    run, files = LEAVES[name]
    for file in ["report.html", "transforms.csv"]:
        assert (tmp_path / run / file).is_file(), file
    for file in files:
        assert (tmp_path / file).is_file(), file
    assert json.loads((tmp_path / run / "metrics.json").read_text())["verdict"] == "good"
