"""Large arrays lie in files: the same values, little memory, and nothing left on the disk."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import congeal.memmap
import congeal.rows
from congeal.evaluation import scales
from congeal.execution.shared_storage import SharedStorage
from congeal.execution.task import key_of, read_payload, write_payload
from congeal.geometry import identity
from congeal.geometry.orientation import mirrored
from congeal.images.sources.arrays import ArraySource
from congeal.memmap import MAX_IN_MEMORY_BYTES, allocate, memmap_dir, release_pages
from congeal.methods.views import _worst
from congeal.registration.gauge import Gauge, mean_motion
from congeal.rows import finite_rows, row_slices
from congeal.transforms import Transforms
from congeal.transforms.ids import Ids

needs_maps = pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="large arrays stay in memory here")
LARGE = MAX_IN_MEMORY_BYTES // 8 + 1


def resident(array: np.ndarray) -> int:
    """Bytes of an array that this process holds, from the system's own list of its maps."""
    first, found = array.ctypes.data, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head and not head.endswith(":"):
            begin, end = (int(part, 16) for part in head.split("-"))
            found = begin <= first < end
        elif found and head == "Rss:":
            return int(line.split()[1]) * 1024
    raise AssertionError("no such map")


def test_without_a_home_arrays_are_in_memory() -> None:
    array = allocate((LARGE,), np.float64, 2.0)
    assert array.base is None
    assert (array == 2).all()


@needs_maps
def test_a_large_array_lies_in_a_file_without_a_name(tmp_path: Path) -> None:
    with memmap_dir(tmp_path):
        array = allocate((LARGE,), np.float64, 2.0)
        array[5] = 7
        release_pages()
    assert list(tmp_path.iterdir()) == []
    assert array.base is not None
    assert array[5] == 7
    assert (array == 2).sum() == LARGE - 1


@needs_maps
@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the system does not list maps")
def test_pages_are_given_back(tmp_path: Path) -> None:
    with memmap_dir(tmp_path):
        array = allocate((LARGE,), np.float64)
    array[:] = 1
    assert resident(array) >= MAX_IN_MEMORY_BYTES
    release_pages()
    assert resident(array) < MAX_IN_MEMORY_BYTES // 4
    assert array.sum() == LARGE


def test_where_no_file_can_be_made_memory_is_used(tmp_path: Path) -> None:
    with memmap_dir(tmp_path / "missing"):
        assert allocate((LARGE,), np.float64, 0.0).base is None


def test_runs_cover_all_rows_once() -> None:
    assert [(part.start, part.stop) for part in row_slices(7, 3)] == [(0, 3), (3, 6), (6, 7)]
    assert list(row_slices(0, 3)) == []


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven rows at a time."""
    monkeypatch.setattr(congeal.rows.row_slices, "__defaults__", (7,))


def some_matrices(n: int = 40) -> np.ndarray:
    rng = np.random.default_rng(0)
    matrices = identity(n) + 0.1 * rng.normal(size=(n, 3, 3))
    matrices[:, 2, :2] = 0
    matrices[3] = np.nan
    matrices[5, 0] *= -1
    return matrices


def test_parts_give_what_the_whole_gives(request: pytest.FixtureRequest) -> None:
    matrices, rng = some_matrices(), np.random.default_rng(1)
    score, status = rng.random(40).round(1), rng.integers(0, 2, 40).astype(np.uint8)
    poses = torch.as_tensor(np.nan_to_num(matrices, nan=1.0)).float()
    poses[3] = torch.eye(3)
    start = torch.eye(3).expand(40, 3, 3)
    gauge = Gauge(start, (28, 28), "affine")

    def all_of_it() -> list[np.ndarray]:
        return [finite_rows(matrices), mirrored(matrices), scales(matrices), _worst(score, status)]

    whole, mean = all_of_it(), gauge.fix(poses)
    moved = mean_motion(poses, mean, (28, 28))
    request.getfixturevalue("in_parts")
    for one, other in zip(whole, all_of_it(), strict=True):
        assert np.array_equal(one, other, equal_nan=True)
    assert torch.allclose(gauge.fix(poses), mean, atol=1e-6)
    assert mean_motion(poses, mean, (28, 28)) == pytest.approx(moved)


def test_rows_that_are_all_alike_are_sent_once(tmp_path: Path) -> None:
    storage = SharedStorage(str(tmp_path))
    one = np.broadcast_to(np.eye(3), (100_000, 3, 3))
    order = write_payload(storage, "work", {"start": one, "ids": Ids(map(str, range(100_000)))})
    assert len(order.work) < 10_000
    got = read_payload(order)
    assert np.array_equal(got["start"], one)
    assert got["start"].strides[0] == 0
    assert got["ids"][99_999] == "99999"


def test_names_go_through_every_pickle() -> None:
    ids = Ids(["a", "ü", "\udcff"])
    for protocol in range(2, 6):
        assert pickle.loads(pickle.dumps(ids, protocol)) == ids


def test_keys_do_not_depend_on_how_an_array_is_read(tmp_path: Path) -> None:
    array = np.arange(1000.0)
    whole = key_of(array)
    np.save(tmp_path / "array.npy", array)
    assert key_of(np.load(tmp_path / "array.npy", mmap_mode="r")) == whole


def test_a_sample_of_a_mapped_file_is_read_in_its_order(tmp_path: Path) -> None:
    pixels = np.arange(500 * 4, dtype=np.uint16).reshape(500, 2, 2)
    np.save(tmp_path / "a.npy", pixels)
    source = ArraySource(np.load(tmp_path / "a.npy", mmap_mode="r"))
    rows = np.random.default_rng(0).permutation(500)[:300]
    assert np.array_equal(source.batch(rows)[..., 0], pixels[rows])


GROWTH = """
import resource, sys, tempfile
from pathlib import Path
import numpy as np
from congeal.memmap import allocate, memmap_dir
from congeal.rows import row_slices
from congeal.transforms import Transforms

def peak():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM:")).split()[1]) * 1024

n = int(sys.argv[1])
with tempfile.TemporaryDirectory() as folder, memmap_dir(Path(folder)):
    Transforms(["a"], np.eye(3)[None], [[28, 28]]).save(Path(folder) / "one.npz")
    before = peak()
    matrices = allocate((n, 3, 3), np.float64)
    for part in row_slices(n):
        matrices[part] = np.eye(3)
    sizes = np.broadcast_to(np.array([28, 28], np.int32), (n, 2))
    found = Transforms(map(str, range(n)), matrices, sizes, (28, 28), copy=False)
    found.save(Path(folder) / "found.npz")
    print(peak() - before)
"""


@needs_maps
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell the peak")
def test_transforms_of_many_images_take_little_memory() -> None:
    n = 600_000
    ran = subprocess.run([sys.executable, "-c", GROWTH, str(n)], capture_output=True, text=True, check=True)
    assert int(ran.stdout) < 60 * n  # a matrix alone has 72 bytes


def test_transforms_in_files_are_those_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(congeal.memmap, "MAX_IN_MEMORY_BYTES", 100)
    plain = Transforms(map(str, range(40)), some_matrices(), np.full((40, 2), 28), (28, 28))
    with memmap_dir(tmp_path):
        matrices = allocate((40, 3, 3), np.float64)
        matrices[:] = plain.matrices
        mapped = Transforms(map(str, range(40)), matrices, np.full((40, 2), 28), (28, 28), copy=False)
        mapped.save(tmp_path / "mapped.npz")
    plain.save(tmp_path / "plain.npz")
    assert (tmp_path / "mapped.npz").read_bytes() == (tmp_path / "plain.npz").read_bytes()
