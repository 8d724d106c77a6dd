"""Names of earlier versions, in which one method was both of today's: the answer is one sentence that names these."""

from __future__ import annotations

from pathlib import Path

import pytest

import congeal
from congeal.cli import main
from congeal.methods.registry import DEEP_IS_GONE

ALIGN = ("align", "digits:3", "-o", "run")


def test_the_sentence_names_both_methods() -> None:
    assert "joint (direct optimisation, the default" in DEEP_IS_GONE
    assert "dprc (the paper's trained network)" in DEEP_IS_GONE


@pytest.mark.parametrize(
    "arguments",
    [
        (*ALIGN, "--method", "deep"),
        (*ALIGN, "--method", "Deep"),
        (*ALIGN, "--groups", "2", "--method", "deep"),
        (*ALIGN, "--train"),
        (*ALIGN, "--train", "always"),
        (*ALIGN, "--train=never"),
        ("compare", "digits:3", "-o", "run", "--methods", "lsc,deep"),
        ("compare", "digits:3", "-o", "run", "--methods", "deep@wide"),
        ("reproduce", "mnist", "-o", "run", "--methods", "deep"),
    ],
    ids=" ".join,
)
def test_on_the_command_line(
    arguments: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(list(arguments)) == 2
    said = capsys.readouterr().err
    assert said.endswith(f"{DEEP_IS_GONE}\n")
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir()), "nothing is written"


@pytest.mark.parametrize("name", ["DeepCongealing", "PaperCongealing"])
def test_old_classes_in_python(name: str) -> None:
    for use in (f"congeal.{name}", f"from congeal import {name}"):
        with pytest.raises(ImportError, match=f"no congeal.{name} any more: .*, as JointAlignment or DPRC") as caught:
            exec(use, {"congeal": congeal})
        assert DEEP_IS_GONE in str(caught.value)


def test_old_arguments_in_python(tmp_path: Path) -> None:
    with pytest.raises(congeal.CongealError) as refused:
        congeal.align("digits:3", tmp_path / "run", method="deep")
    with pytest.raises(congeal.CongealError) as compared:
        congeal.compare("digits:3", ["lsc", "deep"], tmp_path / "run")
    with pytest.raises(TypeError) as unknown:
        congeal.align("digits:3", tmp_path / "run", train="never")
    assert all(DEEP_IS_GONE in str(caught.value) for caught in (refused, compared, unknown))
    assert not (tmp_path / "run").exists()
