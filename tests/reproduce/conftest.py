"""A small MNIST for experiments: the bundled digits in the format of the original files; nothing is fetched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from congeal.cli import main
from congeal.datasets import open_named


def write_idx(path: Path, array: np.ndarray) -> None:
    head = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    path.write_bytes(head + array.astype(np.uint8).tobytes())


@pytest.fixture(scope="session")
def small_mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    images, labels = open_named("digits:all").batch(np.arange(2000))[..., 0], np.repeat(np.arange(10), 200)
    mixed = np.random.default_rng(0).permutation(2000)
    for part, rows in (("train", mixed[:1500]), ("t10k", mixed[1500:])):
        write_idx(folder / f"{part}-images-idx3-ubyte", images[rows])
        write_idx(folder / f"{part}-labels-idx1-ubyte", labels[rows])
    return folder


@pytest.fixture
def run(small_mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """`congeal reproduce EXPERIMENT …` into tmp_path / EXPERIMENT; gives the exit code."""
    monkeypatch.setenv("CONGEAL_DATA", str(small_mnist))

    def call(experiment: str, *options: str) -> int:
        return main(["reproduce", experiment, "-o", str(tmp_path / experiment), "--quick", *options])

    return call
