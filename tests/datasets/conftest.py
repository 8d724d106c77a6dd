"""The data folder of a test: the small MNIST that is made for all of them."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def mnist(made_mnist: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONGEAL_DATA", str(made_mnist))
    return made_mnist
