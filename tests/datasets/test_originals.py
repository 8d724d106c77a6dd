"""The original files of affNIST (MATLAB) and infiMNIST (bare floats), written here in their layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from congeal import CongealError, open_images
from congeal.datasets import open_named
from congeal.datasets.mnist import load_mnist
from congeal.datasets.synthetic import TANGENT_FILE, moved_by_one
from congeal.images.formats.array_files import CLASSES, read_variable
from made_data import write_infimnist

io = pytest.importorskip("scipy.io", reason="writes the MATLAB files")


def digits(count: int = 30) -> tuple[np.ndarray, np.ndarray]:
    """Bundled digits in the middle of 40×40, all ten mixed, and their labels."""
    images = np.concatenate([open_named(f"digits:{d}").batch(np.arange(count))[..., 0] for d in range(10)])
    labels = np.repeat(np.arange(10), count)
    mixed = np.random.default_rng(0).permutation(len(images))
    return np.pad(images, ((0, 0), (6, 6), (6, 6)))[mixed], labels[mixed]


def write_batch(path: Path, images: np.ndarray, labels: np.ndarray, column_major: bool = False) -> None:
    order = images.transpose(0, 2, 1) if column_major else images
    record = {"image": order.reshape(len(images), -1).T, "label_int": labels[None].astype(np.uint8)}
    path.parent.mkdir(parents=True, exist_ok=True)
    io.savemat(path, {"affNISTdata": record}, do_compression=True)


@pytest.mark.parametrize("column_major", [False, True])
def test_a_batch_comes_out_upright_in_either_pixel_order(tmp_path: Path, column_major: bool) -> None:
    images, labels = digits()
    write_batch(tmp_path / "1.mat", images, labels, column_major)
    source = open_images(tmp_path / "1.mat")
    assert (len(source), source.shape, source.dtype, source.kind) == (300, (40, 40, 1), np.uint8, "object")
    np.testing.assert_array_equal(source.batch(np.arange(300))[..., 0], images)


@pytest.mark.parametrize("digit", range(10))
def test_the_pixel_order_is_seen_on_every_digit_alone(tmp_path: Path, digit: int) -> None:
    images = np.pad(open_named(f"digits:{digit}").batch(np.arange(100))[..., 0], ((0, 0), (6, 6), (6, 6)))
    write_batch(tmp_path / "1.mat", images, np.full(100, digit), column_major=True)
    np.testing.assert_array_equal(open_images(tmp_path / "1.mat").batch(np.arange(5))[..., 0], images[:5])


def test_a_digit_is_taken_from_the_batches_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = digits()
    for number in (1, 2, 10):  # 10 comes after 2
        write_batch(tmp_path / "affnist" / "training_batches" / f"{number}.mat", np.roll(images, number, 2), labels)
    monkeypatch.setenv("CONGEAL_DATA", str(tmp_path))
    source = open_named("affnist-original:2@70")
    twos = images[labels == 2]
    wanted = np.concatenate([np.roll(twos, number, 2) for number in (1, 2, 10)])[:70]
    np.testing.assert_array_equal(source.batch(np.arange(70))[..., 0], wanted)
    assert [source.id(i).partition("-")[0] for i in (0, 30, 69)] == ["1", "2", "10"]
    assert len(open_named("affnist-original:2")) == 90  # without a number, all there are up to 100,000
    with pytest.raises(CongealError, match=r"90 images of the digit 2, not 91"):
        open_named("affnist-original:2@91")


def test_what_is_not_an_affnist_batch_is_refused_with_a_reason(tmp_path: Path) -> None:
    io.savemat(tmp_path / "other.mat", {"x": np.eye(3)})
    io.savemat(tmp_path / "shape.mat", {"affNISTdata": {"image": np.zeros((784, 2), np.uint8), "label_int": [[1, 2]]}})
    io.savemat(tmp_path / "field.mat", {"affNISTdata": {"label_int": [[1, 2]]}})
    (tmp_path / "broken.mat").write_bytes(b"MATLAB 5.0 MAT-file" + bytes(200))
    reasons = {"other": "no affNISTdata", "shape": r"\(784, 2\)", "field": "lacks 'image'", "broken": "not a readable"}
    for name, reason in reasons.items():
        with pytest.raises(CongealError, match=reason):
            open_images(tmp_path / f"{name}.mat")


def test_matlab_files_are_read_as_scipy_reads_them(tmp_path: Path) -> None:
    """Numbers of every kind, compressed or not, stored smaller than they are, in a structure beside other things."""
    rng = np.random.default_rng(0)
    fields: dict[str, object] = {kind: (100 * rng.random((3, 4, 2))).astype(kind) for kind in CLASSES.values()}
    fields |= {"small": np.arange(4.0), "empty": np.zeros((0, 3)), "text": "words", "cells": np.array([1, "a"], object)}
    fields |= {"nested": {"image": np.eye(2)}, "complex": np.array([1 + 2j])}
    for compressed in (False, True):
        file = tmp_path / f"{compressed}.mat"
        io.savemat(file, {"first": np.eye(3), "affNISTdata": fields, "last": [[7]]}, do_compression=compressed)
        expected, found = io.loadmat(file), read_variable(file, "affNISTdata")
        assert isinstance(found, dict)
        assert set(found) == set(fields) - {"text", "cells", "nested", "complex"}
        for name, values in found.items():
            other = expected["affNISTdata"][name][0, 0]
            np.testing.assert_array_equal(values, other)
            assert values.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(read_variable(file, "last")), expected["last"])
        with pytest.raises(KeyError):
            read_variable(file, "none")


def test_a_matlab_file_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    io.savemat(tmp_path / "bomb.mat", {"affNISTdata": {"image": np.zeros((1600, 300), np.uint8)}}, do_compression=True)
    monkeypatch.setattr("congeal.images.formats.array_files.MOST_BYTES", 100_000)
    with pytest.raises(CongealError, match="too large unpacked"):
        open_images(tmp_path / "bomb.mat")


def test_missing_originals_say_where_to_put_them(tmp_path: Path, mnist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mnist").symlink_to(mnist)
    monkeypatch.setenv("CONGEAL_DATA", str(tmp_path))
    for name in ("affnist-original:2", "infimnist-original:7"):
        with pytest.raises(CongealError, match=r"put .* there and set CONGEAL_DATA"):
            open_named(name)


@pytest.fixture
def infimnist(tmp_path: Path, mnist: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[np.ndarray, np.ndarray]:
    """The fields and the tangents in the files."""
    (tmp_path / "mnist").symlink_to(mnist)
    monkeypatch.setenv("CONGEAL_DATA", str(tmp_path))
    return write_infimnist(tmp_path / "infimnist" / "data")


def test_infimnist_from_its_files_follows_the_programs_formula(infimnist: tuple[np.ndarray, np.ndarray]) -> None:
    fields, tangents = infimnist
    source = open_named("infimnist-original:7@6000")
    images, _ = load_mnist("train")
    seen = set()
    for index in range(40):  # image by image, as the program does it
        i = int(source.id(index).removeprefix("infi-"))
        a = (i - 10000) % 60000
        k1 = (i * 131071) % 2**32 % 1521
        k2 = (k1 + 1 + 2 * i) % 1522
        alpha = -1.0 if (k1 + k2) % 2 else 1.0
        x = images[a].reshape(-1).astype(np.float64)
        x = np.clip(x + alpha * (fields[k1] * tangents[a, 0].astype(np.float64) - fields[k2] * tangents[a, 1]), 0, 255)
        wanted = by_the_letter(np.floor(x), k1 % 9)
        difference = np.abs(source.read(index).pixels.reshape(-1) - wanted)
        assert difference.max() <= 1
        assert (difference > 0).mean() < 0.01  # float32 may fall on the other side of a whole number
        seen.add(k1 % 9)
    assert len(seen) == 9


def by_the_letter(c: np.ndarray, t: int) -> np.ndarray:
    """The shifts one pixel after the other."""
    c = c.copy()
    for move in {0: [0], 1: [1], 2: [2], 3: [3], 4: [0, 2], 5: [0, 3], 6: [1, 2], 7: [1, 3], 8: []}[t]:
        if move == 0:
            c[:756], c[756:] = c[28:].copy(), 0
        elif move == 1:
            c[28:], c[:28] = c[:-28].copy(), 0
        elif move == 2:
            for i in range(783):
                c[i] = 0 if i % 28 == 0 else c[i + 1]
            c[783] = 0
        else:
            for i in range(783, 0, -1):
                c[i] = 0 if (i - 1) % 28 == 0 else c[i - 1]
            c[0] = 0
    return c


def test_moves_go_where_they_say() -> None:
    dot = np.zeros((1, 28, 28), np.uint8)
    dot[0, 10, 12] = 9
    places = {m: tuple(np.argwhere(moved_by_one(dot.reshape(1, -1), m).reshape(28, 28))[0]) for m in "udlr"}
    assert places == {"u": (9, 12), "d": (11, 12), "l": (10, 11), "r": (10, 13)}


def test_a_file_of_the_wrong_size_is_refused(infimnist: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    (tmp_path / "infimnist" / "data" / TANGENT_FILE).write_bytes(bytes(100))
    with pytest.raises(CongealError, match="has 100 bytes"):
        open_named("infimnist-original:7@10")
