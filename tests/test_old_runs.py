"""Run folders that earlier versions wrote can still be used."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from congeal import CongealError, Transforms, align, apply
from congeal.cli import main
from congeal.export import export
from congeal.opening import open_images
from congeal.pipeline.stages import finish
from congeal.runs.folder import RunFolder

# Six threes aligned with least squares, motion affine, as version 0.1.0 left them (without its report).
OLD = Path(__file__).parent / "run-0.1.0.zip"
ASKED = {"method": "lsc", "motion": "affine", "size": 28, "limit": 6, "write_aligned": False, "quiet": True}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    with zipfile.ZipFile(OLD) as archive:
        archive.extractall(tmp_path / "old")
    return tmp_path / "old"


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_its_report_can_be_written_again(old: Path) -> None:
    assert main(["report", str(old)]) == 0
    page = (old / "report.html").read_text()
    assert "18.93" in page
    assert "uint8" not in page, "a guess about one paper's typo, which is no longer shown"


def test_its_transforms_can_be_exported(old: Path, tmp_path: Path) -> None:
    export(old, tmp_path / "t.npz")
    assert Transforms.load(tmp_path / "t.npz").matrices.shape == (6, 3, 3)


def test_its_model_aligns_new_images(old: Path, tmp_path: Path) -> None:
    new = apply(old, "digits:3", tmp_path / "new", limit=6, write_aligned=False, quiet=True)
    known = Transforms.load(old / "transforms.csv")
    corners = np.array([[0, 27, 0, 27], [0, 0, 27, 27], [1, 1, 1, 1]])
    apart = np.linalg.norm(((new.transforms.matrices - known.matrices) @ corners)[:, :2], axis=1)
    assert np.median(apart) < 2, "the images the model was fitted on come out about where they were"


def test_a_run_that_stopped_after_its_pictures_is_finished(old: Path) -> None:
    """Version 0.1.0 had a stage "measured" between the pictures and the report."""
    change(old / ".work" / "state.json", stage="measured")
    run = RunFolder.existing(old)
    assert run.reached("rendered")
    assert not run.reached("reported")
    result = finish(run, open_images("digits:3", limit=6), quiet=True)
    assert result.report.is_file()
    assert result.metrics["apsnr_after"] == pytest.approx(18.93, abs=0.01)
    assert RunFolder.existing(old).reached("reported")


@pytest.mark.parametrize("stage", ["prepared", "measured", "reported"])
def test_going_on_with_other_parameters_is_refused_in_one_sentence(old: Path, stage: str) -> None:
    change(old / ".work" / "state.json", stage=stage)
    with pytest.raises(CongealError) as error:
        align("digits:3", old, params={"iterations": [2, 2, 2]}, **ASKED)
    said = str(error.value)
    assert "begun by another version of congeal (0.1.0)" in said
    assert "params.reference (was 'mean', now 'auto')" in said
    assert said.endswith("finish it with that version, or choose another folder")


def test_a_folder_of_a_later_version_is_refused(old: Path) -> None:
    change(old / ".work" / "state.json", stage="polished")
    with pytest.raises(CongealError, match="newer version of congeal"):
        RunFolder.existing(old)
