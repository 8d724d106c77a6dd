"""Experiments on the small MNIST of made_data.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from congeal.cli import main


@pytest.fixture
def run(made_mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """`congeal reproduce EXPERIMENT …` into tmp_path / EXPERIMENT; gives the exit code."""
    monkeypatch.setenv("CONGEAL_DATA", str(made_mnist))

    def call(experiment: str, *options: str) -> int:
        return main(["reproduce", experiment, "-o", str(tmp_path / experiment), "--quick", *options])

    return call
