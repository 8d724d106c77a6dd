"""MNIST for tests: `$CONGEAL_DATA`, or the data folder beside the repository; without it such tests are skipped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def mnist_folder() -> Path:
    for folder in (Path(os.environ.get("CONGEAL_DATA", BESIDE)), BESIDE):
        if (folder / "mnist" / "train-images-idx3-ubyte.gz").is_file():
            return folder
    pytest.skip("the original MNIST files are not at hand: set CONGEAL_DATA")


@pytest.fixture
def mnist(mnist_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONGEAL_DATA", str(mnist_folder))
    return mnist_folder / "mnist"
