"""Names of many images in one block of text."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from congeal.transforms.ids import Ids

NAMES = ["a", "Größe/ü.png", "", b"caf\xe9".decode("utf-8", "surrogateescape"), "a" * 50]


def test_it_is_the_list_it_was_made_of() -> None:
    ids = Ids(NAMES)
    assert list(ids) == NAMES
    assert ids == NAMES == ids
    assert ids == tuple(NAMES)
    assert ids != NAMES[:-1]
    assert ids != [*NAMES[:-1], "b"]
    assert [ids[i] for i in range(-5, 5)] == NAMES * 2
    assert "Größe/ü.png" in ids
    assert pickle.loads(pickle.dumps(ids)) == ids
    assert np.array(ids).tolist() == NAMES
    with pytest.raises(IndexError):
        ids[5]


@pytest.mark.parametrize("part", [slice(1, 3), slice(3, 1), slice(None, None, -1), slice(-2, None), slice(0, 5, 2)])
def test_slices(part: slice) -> None:
    ids = Ids(NAMES)[part]
    assert isinstance(ids, Ids)
    assert ids == NAMES[part]
    assert ids[:1] == NAMES[part][:1]


def test_made_of_arrays_and_generators() -> None:
    many = [str(i) for i in range(25_000)]
    assert Ids(np.array(many)) == Ids(iter(many)) == many
    assert Ids([]) == ()
    assert Ids(many).take(np.array([3, 24_999])) == ["3", "24999"]


def test_repeated_names_are_seen() -> None:
    assert Ids(NAMES).unique
    assert not Ids([*NAMES, "a"]).unique
    assert Ids([]).unique


def test_a_name_takes_little_more_than_its_letters() -> None:
    ids = Ids(f"image-{i:06d}" for i in range(10_000))
    assert ids._bytes.nbytes < 17 * 10_000
