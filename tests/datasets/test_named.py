"""Names of data sets, and the bundled digits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from congeal.datasets import names, open_named
from congeal.datasets.mnist import load_mnist
from congeal.errors import CongealError


def test_unknown_names_list_what_exists() -> None:
    for name in ("nosuch:3", "digit", ""):
        with pytest.raises(CongealError) as caught:
            open_named(name)
        assert all(example in str(caught.value) for example in names())


@pytest.mark.parametrize(
    "name",
    [
        "digits:",
        "digits:10",
        "digits:x",
        "mnist:",
        "mnist:12",
        "mnist:3/train",
        "mnist:all/train",
        "mnist:3/both",
        "perspective:3",
        "perspective:3@",
        "perspective:3@big",
        "perspective:3@-0.1",
        "perspective:3@nan",
        "perspective:@0.2",
        "perspective-baked:3@2",
        "affnist:2@0",
        "affnist:x",
        "infimnist:7@-5",
        "infimnist:77",
        "affnist-original:x",
        "affnist-original:2@0",
        "infimnist-original:7@many",
    ],
)
def test_wrong_names_are_quoted_with_an_example(name: str) -> None:
    family = name.partition(":")[0]
    with pytest.raises(CongealError, match=rf"'{name}' is not a data set: write {family}:\d"):
        open_named(name)


def test_bundled_digits() -> None:
    source = open_named("digits:3")
    assert len(source) == 200
    assert source.shape == (28, 28, 1)
    assert source.dtype == np.uint8
    assert source.kind == "object"
    assert len({source.id(i) for i in range(200)}) == 200
    assert source.read(3).pixels.max() > 100


def test_all_bundled_digits_are_the_ten_sets_in_order() -> None:
    everything = open_named("digits:all")
    assert len(everything) == 2000 == len({everything.id(i) for i in range(2000)})
    sevens = open_named("digits:7")
    np.testing.assert_array_equal(everything.batch(np.arange(1400, 1600)), sevens.batch(np.arange(200)))
    assert everything.id(1400) == sevens.id(0)


def test_the_bundled_file_is_the_start_of_the_test_set(original_mnist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONGEAL_DATA", str(original_mnist))
    images, labels = load_mnist("t10k")
    for digit in range(10):
        source = open_named(f"digits:{digit}")
        rows = np.flatnonzero(labels == digit)[:200]
        np.testing.assert_array_equal(source.batch(np.arange(200))[..., 0], images[rows])
        assert [source.id(i) for i in range(200)] == [f"test-{row:05d}" for row in rows]
