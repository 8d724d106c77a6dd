"""How a run ends: where its images are, what to type next, and what is left on the disk."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest

from blobs import blob, save_folder
from congeal.cli import main
from congeal.methods.fit_context import FitContext
from congeal.pipeline import stages

SMALL = ("--method", "lsc", "--motion", "translation")


def last_lines(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    lines = capsys.readouterr().out.splitlines()[-3:]
    return {line[:14].strip(): line[14:] for line in lines}


def test_the_last_lines_say_where_and_what_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_folder(tmp_path / "photos", blob())
    assert main(["align", "photos", "-o", "my run", *SMALL]) == 0
    told = last_lines(capsys)
    assert told["aligned"] == str((tmp_path / "my run" / "aligned").resolve())
    assert len(list(Path(told["aligned"]).iterdir())) == 8
    assert told["report"] == str((tmp_path / "my run" / "report.html").resolve())
    new = [{"NEW_IMAGES": "photos", "DIR": "new"}.get(word, word) for word in shlex.split(told["next"])]
    assert new[0] == "congeal"
    assert main(new[1:]) == 0, "the next command works as it is printed"
    assert last_lines(capsys)["next"] == "congeal studio new", "new images are no model"


def test_a_result_that_needs_a_look_leads_to_the_studio(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (8, 24, 24), dtype=np.uint8)
    save_folder(tmp_path / "noise", noise)
    assert main(["align", str(tmp_path / "noise"), "-o", str(tmp_path / "run"), *SMALL, "--no-aligned"]) == 0
    out = capsys.readouterr().out
    if "verdict       good" not in out and "verdict       unchanged" not in out:
        assert out.splitlines()[-1].startswith("next          congeal studio ")
    assert "aligned       " not in out


# ---- the checkpoint


@pytest.fixture
def always_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FitContext, "due", lambda context: context.checkpoint is not None)


@pytest.mark.usefixtures("always_due")
def test_a_finished_run_drops_its_checkpoint_and_can_be_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = save_folder(tmp_path / "photos", blob())
    run = tmp_path / "run"
    command = ["align", str(photos), "-o", str(run), *SMALL]
    seen: list[bool] = []
    finish = stages.finish

    def looked(*arguments: object, **options: object) -> object:
        seen.append((run / "checkpoint.pt").exists())
        return finish(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("congeal.pipeline.align.finish", looked)
    assert main(command) == 0
    assert seen == [True], "there is a checkpoint while the run is at work"
    assert not (run / "checkpoint.pt").exists()
    transforms, model = (run / "transforms.csv").read_bytes(), (run / "model.safetensors").read_bytes()
    assert main(command) == 0, "the same command again"
    (run / "model.safetensors").unlink()
    capsys.readouterr()
    assert main(command) == 0, "what is gone is made again, from the beginning"
    assert "is gone or damaged and is made again" in capsys.readouterr().err
    assert (run / "transforms.csv").read_bytes() == transforms
    assert (run / "model.safetensors").read_bytes() == model
    assert not (run / "checkpoint.pt").exists()


@pytest.mark.usefixtures("always_due")
def test_the_checkpoint_of_a_run_that_was_finished_earlier_is_dropped_too(tmp_path: Path) -> None:
    photos = save_folder(tmp_path / "photos", blob())
    command = ["align", str(photos), "-o", str(tmp_path / "run"), *SMALL, "--quiet"]
    assert main(command) == 0
    (tmp_path / "run" / "checkpoint.pt").write_bytes(b"of an earlier version")
    assert main(command) == 0
    assert not (tmp_path / "run" / "checkpoint.pt").exists()


@pytest.mark.usefixtures("always_due")
def test_a_run_stopped_before_its_report_keeps_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = save_folder(tmp_path / "photos", blob())
    command = ["align", str(photos), "-o", str(tmp_path / "run"), *SMALL, "--quiet"]

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("congeal.pipeline.stages.render_originals", interrupted)
        assert main(command) == 130
    assert (tmp_path / "run" / "checkpoint.pt").exists()
    assert main(command) == 0
    assert not (tmp_path / "run" / "checkpoint.pt").exists()
