"""MNIST: what a name means, where files are looked for, and what happens offline."""

from __future__ import annotations

import gzip
import hashlib
import socket
from pathlib import Path

import numpy as np
import pytest

from congeal.datasets import mnist as module
from congeal.datasets import open_named
from congeal.errors import CongealError
from congeal.evaluation import apsnr
from congeal.experiments.measures import apsnr_uint8_wrap
from made_data import N_TRAIN, write_idx


def tiny_mnist(folder: Path, suffix: str = ".gz") -> None:
    """Every image of digit d is filled with d; 30 training and 20 test images."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, n in (("train", 30), ("t10k", 20)):
        labels = (np.arange(n) % 10).astype(np.uint8)
        write_idx(folder / f"{part}-labels-idx1-ubyte{suffix}", labels)
        write_idx(folder / f"{part}-images-idx3-ubyte{suffix}", np.tile(labels[:, None, None], (1, 28, 28)))


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache and a mirror that refuses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setattr(module, "MIRRORS", [f"http://127.0.0.1:{port}/mnist/"])
    monkeypatch.setattr(module, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.delenv("CONGEAL_DATA", raising=False)
    return tmp_path


def test_offline_is_one_sentence_with_the_way_out(offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (offline / "empty").mkdir()
    monkeypatch.setenv("CONGEAL_DATA", str(offline / "empty"))
    with pytest.raises(CongealError) as caught:
        open_named("mnist:3")
    assert "CONGEAL_DATA" in str(caught.value)
    assert "train-images-idx3-ubyte.gz" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", ["", "mnist"])
@pytest.mark.parametrize("suffix", [".gz", ""])
def test_own_files_are_found(offline: Path, monkeypatch: pytest.MonkeyPatch, place: str, suffix: str) -> None:
    tiny_mnist(offline / "own" / place, suffix)
    monkeypatch.setenv("CONGEAL_DATA", str(offline / "own"))
    source = open_named("mnist:4")
    assert [source.id(i) for i in range(len(source))] == [
        "train-00004",
        "train-00014",
        "train-00024",
        "test-00004",
        "test-00014",
    ]
    assert (source.batch(np.arange(5)) == 4).all()


def test_the_cache_is_used_only_with_the_right_checksum(offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = offline / "cache" / "mnist"
    tiny_mnist(cache)
    right = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in cache.iterdir()}
    assert set(right) == set(module.SHA256)
    monkeypatch.setattr(module, "SHA256", right)
    assert len(open_named("mnist:0/test")) == 2
    monkeypatch.setattr(module, "SHA256", right | {"t10k-labels-idx1-ubyte.gz": "0" * 64})
    with pytest.raises(CongealError, match="neither on this machine"):
        open_named("mnist:0/test")


@pytest.mark.parametrize(
    "damage",
    [b"", b"hello", gzip.compress(b"\0\0\x08\x03\0\0\0\x01"), None],
    ids=["empty", "text", "cut short", "absent"],  # packed bytes hold the time of day
)
def test_a_damaged_file_is_named(offline: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes | None) -> None:
    tiny_mnist(offline)
    path = offline / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20] if damage is None else damage)
    monkeypatch.setenv("CONGEAL_DATA", str(offline))
    with pytest.raises(CongealError, match=r"t10k-images-idx3-ubyte\.gz"):
        open_named("mnist:3")


def test_files_that_do_not_belong_together(offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_mnist(offline)
    write_idx(offline / "t10k-labels-idx1-ubyte.gz", np.zeros(3, np.uint8))
    monkeypatch.setenv("CONGEAL_DATA", str(offline))
    with pytest.raises(CongealError, match="do not belong together"):
        open_named("mnist:3")


def check_rows(name: str, count: int) -> None:
    """So many images, all of the digit, each where its id says it is."""
    source = open_named(name)
    assert len(source) == count
    assert source.kind == "object"
    ids = [source.id(i) for i in range(count)]
    assert len(set(ids)) == count
    parts = {"train": module.load_mnist("train"), "test": module.load_mnist("t10k")}
    for i in (0, count // 2, count - 1):
        part, number = ids[i].split("-")
        images, labels = parts[part]
        assert labels[int(number)] == int(name[6])
        np.testing.assert_array_equal(source.read(i).pixels[..., 0], images[int(number)])


def test_counts_and_ids(mnist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n_train, n_test = ((module.load_mnist(part)[1] == 5).sum() for part in ("train", "t10k"))
    check_rows("mnist:5", n_train + n_test)  # fewer than 6,000: all there are
    check_rows("mnist:5/test", n_test)
    monkeypatch.setattr(module, "PER_DIGIT", n_train + 7)
    check_rows("mnist:5", n_train + 7)
    monkeypatch.setattr(module, "PER_DIGIT", n_train - 7)
    check_rows("mnist:5", n_train)
    assert len(open_named("mnist:all")) == N_TRAIN


def test_the_original_files(original_mnist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONGEAL_DATA", str(original_mnist))
    for name, checksum in module.SHA256.items():
        assert hashlib.sha256(module.find(name).read_bytes()).hexdigest() == checksum
    for name, count in (("mnist:3", 6131), ("mnist:5", 6000), ("mnist:5/test", 892)):
        check_rows(name, count)
    # 12.8 dB by the paper's formula, 31.4 in wrapping uint8: the range the paper prints
    sets = [open_named(f"mnist:{digit}").batch(np.arange(6000)) for digit in range(10)]
    assert np.mean([apsnr(images) for images in sets]) == pytest.approx(12.79, abs=0.02)
    assert np.mean([apsnr_uint8_wrap(images) for images in sets]) == pytest.approx(31.4, abs=0.1)
