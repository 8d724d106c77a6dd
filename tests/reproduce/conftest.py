"""Experiments on the small MNIST of made_data.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from congeal.cli import main
from congeal.comparison.process import FitClock, failure
from congeal.experiments import measures


@pytest.fixture
def run(made_mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """`congeal reproduce EXPERIMENT …` into tmp_path / EXPERIMENT; gives the exit code."""
    monkeypatch.setenv("CONGEAL_DATA", str(made_mnist))

    def call(experiment: str, *options: str) -> int:
        return main(["reproduce", experiment, "-o", str(tmp_path / experiment), "--quick", *options])

    return call


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells get no process of their own, which saves loading torch; other tests have a real one."""

    def run_here(work: Callable[..., dict[str, Any]], *args: Any, time_limit: float | None) -> dict[str, Any]:
        try:
            return work(FitClock(), *args)
        except Exception as error:
            return failure(error)

    monkeypatch.setattr(measures, "run_in_process", run_here)
