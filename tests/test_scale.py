"""What a million images need, at a few hundred: bounded memory, compact tables, runs that can be killed at any time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import congeal.pipeline.output_options
from congeal import Transforms, align, apply
from congeal.export import export
from congeal.images import ImageSource, decoding, prepare
from congeal.opening import open_images
from congeal.pipeline.draw import Batch
from congeal.propagate import propagate_points
from congeal.report import write_report
from congeal.runs.folder import RunFolder
from congeal.runs.originals import run_transforms

QUICK = {"method": "lsc", "motion": "affine", "params": {"blurs": [0.0], "iterations": [1]}, "size": 28, "quiet": True}


def digits(n: int) -> np.ndarray:
    source = open_images("digits:3")
    images = source.batch(np.arange(len(source)))[..., 0]
    return np.tile(images, (-(-n // len(images)), 1, 1))[:n]


# ---- tables


@pytest.mark.parametrize("kind", ["npz", "parquet"])
def test_everything_reads_the_table_a_run_has(tmp_path: Path, kind: str) -> None:
    np.save(tmp_path / "digits.npy", digits(30))
    plain = align(tmp_path / "digits.npy", tmp_path / "plain", **QUICK)
    run = align(tmp_path / "digits.npy", tmp_path / "run", transforms_format=kind, **QUICK)
    assert not (run.folder / "transforms.csv").exists()
    assert Transforms.load(run.folder / f"transforms.{kind}") == plain.transforms == run.transforms
    assert run_transforms(RunFolder.existing(run)) == plain.transforms
    export(run, tmp_path / "exported.csv")
    assert (tmp_path / "exported.csv").read_bytes() == (plain.folder / "transforms.csv").read_bytes()
    points = [[3.0, 4.0], [20.0, 9.0]]
    assert np.array_equal(propagate_points(run, points).xy, propagate_points(plain, points).xy)
    (run.folder / "report.html").unlink()
    assert write_report(RunFolder.existing(run)).stat().st_size > 10_000
    new = [apply(trained, digits(5), tmp_path / f"new-{trained.folder.name}", quiet=True) for trained in (run, plain)]
    assert new[0].transforms == new[1].transforms
    again = align(
        tmp_path / "digits.npy", tmp_path / "again", init=run.folder / f"transforms.{kind}", **QUICK
    ).transforms
    assert again.aligned_size == (28, 28)
    assert align(tmp_path / "digits.npy", tmp_path / "run", transforms_format=kind, **QUICK).metrics == run.metrics


def test_large_sets_get_a_compact_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(congeal.pipeline.output_options, "MAX_CSV_ROWS", 20)
    assert (align(digits(20), tmp_path / "small", **QUICK).folder / "transforms.csv").exists()
    large = align(digits(21), tmp_path / "large", **QUICK).folder
    assert not (large / "transforms.csv").exists()
    assert os.path.samefile(large / "transforms.npz", large / ".work" / "found.npz")
    with np.load(large / "transforms.npz") as table:  # plain NumPy reads it
        assert table["ids"].tolist() == [str(i) for i in range(21)]
        assert table["matrices"].shape == (21, 3, 3)
        assert set(table["status"]) <= {"ok", "outlier"}


@pytest.mark.parametrize("suffix", [".csv", ".json", ".npz", ".parquet"])
@pytest.mark.parametrize("step", [1, 2, 3, 7])
def test_every_so_many_rows(tmp_path: Path, suffix: str, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("congeal.transforms.files.ROWS_AT_ONCE", 4)
    matrices = np.tile(np.eye(3), (23, 1, 1))
    matrices[:, 0, 2] = np.arange(23)
    whole = Transforms(map(str, range(23)), matrices, np.full((23, 2), 9), (9, 9))
    whole.save(tmp_path / f"t{suffix}")
    some = Transforms.load(tmp_path / f"t{suffix}", step)
    some.aligned_size = (9, 9)
    assert some == whole[::step]


# ---- killed and resumed

KILLED_AT_49 = """
import os, signal, sys
from types import SimpleNamespace
from congeal.pipeline import align, draw, render
from congeal.images.formats import shards
draw.CHUNK_VALUES, shards.SHARD_IMAGES = 28 * 28 * 7, 20
render.SAVE_INTERVAL_S, render.time = 0.0, SimpleNamespace(monotonic=lambda: 0.0)
save = render.RenderState.save
def save_and_die(rendered, path):
    save(rendered, path)
    if rendered.position >= 49:
        os.kill(os.getpid(), signal.SIGKILL)
render.RenderState.save = save_and_die
align.align(
    sys.argv[1], sys.argv[2], method="lsc", motion="affine", params={"blurs": [0.0], "iterations": [1]}, size=28,
    quiet=True, output_format=sys.argv[3], transforms_format="npz",
)
"""


@pytest.mark.parametrize("output_format", ["npy", "shards"])
def test_a_run_killed_while_it_writes_goes_on(
    tmp_path: Path, output_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "digits.npy", digits(100))
    arguments = [str(tmp_path / name) for name in ("digits.npy", "killed")]
    killed = subprocess.run([sys.executable, "-c", KILLED_AT_49, *arguments, output_format])
    assert killed.returncode == -signal.SIGKILL
    notes = tmp_path / "killed" / ".work" / "rendering.npz"
    seen = position(notes)

    monkeypatch.setattr("congeal.pipeline.draw.CHUNK_VALUES", 28 * 28 * 7)
    monkeypatch.setattr("congeal.images.formats.shards.SHARD_IMAGES", 20)
    sample, sampled = Batch.sample, []

    def counted(batch: Batch, *arguments: object) -> Batch:
        sampled.append(len(batch.pixels))
        return sample(batch, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Batch, "sample", counted)
    options = {**QUICK, "output_format": output_format, "transforms_format": "npz"}
    for name in ("killed", "whole"):
        sampled.clear()
        align(tmp_path / "digits.npy", tmp_path / name, **options)
        # two samples of every image, before and after; those of an unfinished shard are written once more
        assert sum(sampled) <= (200 if name == "whole" else 2 * (100 - seen) + 20)
    files = {name: contents(tmp_path / name) for name in ("killed", "whole")}
    assert len(files["whole"]) == 5 + (1 if output_format == "npy" else 5)
    assert files["killed"] == files["whole"]


def position(notes: Path) -> int:
    with np.load(notes) as saved:
        return int(json.loads(str(saved["facts"]))["position"])


def contents(run: Path) -> dict[str, bytes]:
    names = ["mean.png", "variance.png", "transforms.npz", ".work/mean_before.png", ".work/variance_before.png"]
    paths = [*map(run.joinpath, names), *(run / "aligned").iterdir()]
    return {str(path.relative_to(run)): path.read_bytes() for path in paths}


def test_decoding_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "SAVE_INTERVAL_S", 0.0)
    rng = np.random.default_rng(0)
    source = open_images([rng.integers(0, 256, (30 + i % 3, 40, 1), dtype=np.uint8) for i in range(200)])
    decode, decoded, stopping = decoding.decode_at, [], ["once"]

    def stops(source: ImageSource, size: tuple[int, int], align_on: None, i: int) -> object:
        if i == 150 and stopping:
            stopping.clear()
            raise KeyboardInterrupt
        decoded.append(i)
        return decode(source, size, align_on, i)

    monkeypatch.setattr(decoding, "decode_at", stops)
    with pytest.raises(KeyboardInterrupt):
        prepare(source, size=16, folder=tmp_path / "stack")
    decoded.clear()
    resumed = prepare(source, size=16, folder=tmp_path / "stack")
    assert min(decoded) == 150, "what was decoded was decoded again"
    expected = prepare(source, size=16)
    assert np.array_equal(resumed.images(range(200)).numpy(), expected.images(range(200)).numpy())
    assert np.array_equal(resumed.source_sizes, expected.source_sizes)
    assert not (tmp_path / "stack" / "unfinished.npz").exists()


# ---- memory

PEAK = """
import os, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one thread: how far several run ahead is chance
import congeal.pipeline.align, congeal.methods.least_squares
from congeal import memmap
memmap.MAX_RESIDENT_BYTES = 1 << 20
settings = {"blurs": [0.0], "iterations": [1]}
options = {"method": "lsc", "motion": "affine", "params": settings, "size": 28, "quiet": True}
congeal.pipeline.align.align(sys.argv[1], sys.argv[1] + ".run", transforms_format="npz", output_format="npy", **options)
with open("/proc/self/status") as file:
    print(next(int(line.split()[1]) for line in file if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory from /proc")
def test_memory_grows_by_a_few_numbers_an_image(tmp_path: Path) -> None:
    peaks = []
    for n in (15_000, 30_000):  # at both a shard is as large as it gets
        np.save(tmp_path / f"{n}.npy", digits(n))
        arguments = [sys.executable, "-c", PEAK, str(tmp_path / f"{n}.npy")]
        done = subprocess.run(arguments, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout) * 1024)
    # Pixels of the mapped files in and out alone are 1,568 bytes an image, and ids as Python strings 60.
    assert (peaks[1] - peaks[0]) / 15_000 < 1_200
