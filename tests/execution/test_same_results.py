"""Spread over workers, a run ends with the same bytes as in one process."""

from __future__ import annotations

import tarfile
from concurrent.futures import ProcessPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from same_results import assert_same

from congeal import align, apply
from congeal.opening import open_images

QUICK: dict[str, Any] = {
    "size": 28,
    "motion": "similarity",
    "params": {"fit_sample": 40, "restarts": 4},
    "quiet": True,
}
LSC: dict[str, Any] = {
    "method": "lsc",
    "motion": "affine",
    "params": {"blurs": [1.0, 0.0], "iterations": [2, 2]},
    "size": 28,
    "quiet": True,
}


def digits(n: int) -> np.ndarray:
    return open_images("digits:3").batch(np.arange(n))[..., 0]


def photographs(folder: Path, n: int) -> Path:
    """Colour pictures of several sizes, one with alpha, one that is no picture."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i, digit in enumerate(digits(n)):
        ground = rng.integers(60, 90, (40 + i % 3, 44, 3), dtype=np.uint8)
        ground[6:34, 8:36] = np.maximum(ground[6:34, 8:36], digit[..., None])
        Image.fromarray(ground).save(folder / f"{i:03d}.png")
    with Image.open(folder / "005.png") as picture:
        picture.putalpha(200)
        picture.save(folder / "005.png")
    (folder / "007.png").write_bytes(b"no picture")
    return folder


def tar_of(folder: Path, path: Path) -> Path:
    """The files of a folder in tars of 25."""
    path.mkdir()
    names = sorted(file.name for file in folder.iterdir())
    for first in range(0, len(names), 25):
        with tarfile.open(path / f"part-{first // 25:03d}.tar", "w") as tar:
            for name in names[first : first + 25]:
                data = (folder / name).read_bytes()
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, BytesIO(data))
    return path


@pytest.mark.usefixtures("small_shards")
def test_an_array_and_new_images(tmp_path: Path, pool: ProcessPoolExecutor) -> None:
    np.save(tmp_path / "digits.npy", digits(100))
    options = {**QUICK, "output_format": "files"}
    plain = align(tmp_path / "digits.npy", tmp_path / "plain", **options)
    spread = align(tmp_path / "digits.npy", tmp_path / "spread", executor=pool, **options)
    assert_same(plain, spread)
    rows = [row.split(",") for row in (tmp_path / "spread" / "shards.csv").read_text().splitlines()]
    assert rows[0] == ["stage", "pass", "shard", "images", "seconds", "cpu_seconds", "bytes", "worker", "attempt"]
    shards = {(row[0], row[2]) for row in rows[1:]}
    stages = {"joint: aligning", "measuring pixels", "measuring likeness", "writing"}
    assert stages >= {stage for stage, _ in shards}
    assert {("joint: aligning", "3"), ("measuring pixels", "0"), ("writing", "3")} <= shards
    assert not (tmp_path / "spread" / ".work" / "shards").exists()
    new = digits(160)[100:]  # in memory: it goes to the workers in a file
    here, there = (apply(plain, new, tmp_path / f"new-{who is None}", executor=who, quiet=True) for who in (None, pool))
    assert_same(here, there)


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("output_format", ["files", "shards", "tiff"])
def test_decoded_images(tmp_path: Path, pool: ProcessPoolExecutor, output_format: str) -> None:
    folder = photographs(tmp_path / "photographs", 70)
    source = tar_of(folder, tmp_path / "tars") if output_format == "shards" else folder
    if output_format == "tiff":
        (folder / "005.png").unlink()
    options = {**LSC, "output_format": output_format}
    plain, spread = (align(source, tmp_path / str(who is None), executor=who, **options) for who in (None, pool))
    assert_same(plain, spread)
    assert plain.metrics["n_skipped"] == 1
    assert "007" in (spread.folder / "skipped.csv").read_text()


@pytest.mark.usefixtures("small_shards")
def test_deep_goes_finer_on_photographs(tmp_path: Path, pool: ProcessPoolExecutor) -> None:
    folder = photographs(tmp_path / "photographs", 60)
    options = {**QUICK, "size": 20, "write_aligned": False}
    plain, spread = (align(folder, tmp_path / str(who is None), executor=who, **options) for who in (None, pool))
    assert_same(plain, spread)
