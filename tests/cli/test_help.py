"""What `--help` prints: no line ends before it has to."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from congeal.cli import COMMANDS, main

_TEXT = re.compile(r"[│ ] {12,}(\S.*?) *│?")  # the frame is drawn for terminals only
_WIDTH = 52  # characters that surely fit on a line of a help text, on a screen of 80 columns


@pytest.mark.parametrize("name", COMMANDS)
def test_lines_are_full(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([name, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    pairs = [(_TEXT.fullmatch(line), _TEXT.fullmatch(following)) for line, following in pairwise(lines)]
    for this, rest in pairs:
        if this and rest:
            assert len(this[1]) + 1 + len(rest[1].split()[0]) > _WIDTH, f"{this[1]}\n{rest[1]}"
    assert name != "align" or sum(map(all, pairs)) > 10


def test_reproduce_names_every_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    from congeal.experiments import EXPERIMENTS

    assert main(["reproduce", "--help"]) == 0
    shown = re.split(r"\W+", capsys.readouterr().out)
    assert set(EXPERIMENTS) <= set(shown)
