"""Every script of examples/ runs as it is, in an empty folder."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
# script: what it leaves behind, and words it says
LEAVES = {
    "align_folder": (["example-run/report.html", "example-run/aligned"], "least like the others"),
    "align_new_images": (["example-model.safetensors"], "50 new images, uint8"),
    "compare_methods": (["example-comparison/table.json", "example-comparison/report.html"], "dB"),
    "propagate_mask": (["example-marks/masks", "example-marks/points.json"], "60 masks"),
    "tiff_stack": (["example-stack-run/aligned/aligned.tif"], "uint16"),
}


def test_every_example_is_known_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(LEAVES)


@pytest.mark.parametrize("name", LEAVES)
def test_example_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{name}.py"])
    script = EXAMPLES / f"{name}.py"
    assert len(script.read_text().splitlines()) <= 50, "an example is short"
    runpy.run_path(str(script), run_name="__main__")
    files, words = LEAVES[name]
    for file in files:
        assert (tmp_path / file).exists(), file
    assert words in capsys.readouterr().out


def test_the_stack_comes_to_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the TIFF example says is true: the drift it made is the drift it finds."""
    import numpy as np

    from congeal import Transforms

    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / "tiff_stack.py"), run_name="__main__")
    found = -Transforms.load("example-stack-run/transforms.csv").matrices[:, :2, 2]
    rng = np.random.default_rng(0)
    rng.uniform(16, 48, (6, 2))
    true = np.cumsum(rng.normal(0, 0.6, (20, 2)), axis=0)
    error = (found - found.mean(0)) - (true - true.mean(0))
    assert np.abs(error).max() < 0.2
