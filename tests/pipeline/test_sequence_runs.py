"""Runs of sequences from the command line: canvases, several processes, kills."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from skimage import data

import congeal
from congeal.cli import main
from killed import count_moments, outputs, run_killed

STEP, SIZE, N = 11, (60, 80), 10


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stack that drifts by more than a width, in whole pixels, so that results can be told byte for byte."""
    folder, scene = tmp_path_factory.mktemp("sequences"), data.coffee()[80:]
    frames = np.stack([scene[i % 3 : i % 3 + SIZE[0], STEP * i : STEP * i + SIZE[1]] for i in range(N)])
    np.save(folder / "stack.npy", frames)
    align(folder / "stack.npy", folder / "whole")
    return folder


def align(stack: Path, run: Path, *options: str) -> None:
    given = ["--sequence", "--motion", "translation", "--canvas", "union", "--quiet", *options]
    assert main(["align", str(stack), "-o", str(run), *given]) == 0


def test_the_union_holds_all_that_was_seen(place: Path) -> None:
    frames, found = np.load(place / "stack.npy"), congeal.Transforms.load(place / "whole" / "transforms.csv")
    aligned = np.load(place / "whole" / "aligned" / "aligned.npy")
    grown = np.array(aligned.shape[1:3]) - (SIZE[0] + 2, STEP * (N - 1) + SIZE[1])
    assert (grown >= 0).all()
    assert (grown <= 1).all()  # a pixel for what is a hundredth of one off
    first = found.matrices[0, :2, 2]
    assert np.allclose(first, first.round())
    for i, matrix in enumerate(found.matrices):
        assert np.allclose(matrix[:2, 2] - first, (STEP * i, i % 3), atol=0.03)
    x, y = first.round().astype(int)
    assert np.array_equal(aligned[0, y : y + SIZE[0], x : x + SIZE[1]], frames[0])
    assert not aligned[0, :, x + SIZE[1] :].any()  # what the first image does not show
    assert aligned[-1, 5:-5, STEP * (N - 1) + 3 : -3].any(-1).all()


def test_several_processes_give_the_same_bytes(place: Path) -> None:
    align(place / "stack.npy", place / "shared", "--on", "processes:2")
    shared = outputs(place / "shared")
    assert shared.pop("shards.csv")  # who did what
    assert shared == outputs(place / "whole")


def test_a_killed_run_ends_the_same(place: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    moments = count_moments(lambda: align(place / "stack.npy", tmp_path / "counted"))
    shutil.rmtree(tmp_path / "counted")
    killed = 0
    for moment in np.linspace(2, moments - 1, 4).astype(int).tolist():
        killed += not run_killed(lambda: align(place / "stack.npy", run), moment)
        align(place / "stack.npy", run)
        assert outputs(run) == outputs(place / "whole"), moment
        shutil.rmtree(run)
    assert killed == 4
