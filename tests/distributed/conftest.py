"""Two worker processes for all tests, and shards so small that a few images make several."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from congeal.images import sharded
from congeal.pipeline import tables
from congeal.solvers import setpass, streaming


@pytest.fixture(scope="session")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as workers:
        yield workers


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of 30 images or fewer; runs within them of about ten."""
    monkeypatch.setattr(sharded, "SHARD_IMAGES", 30)
    monkeypatch.setattr(tables, "ROWS", 30)
    monkeypatch.setattr(streaming, "SHARD_VALUES", 30 * 28 * 28)
    monkeypatch.setattr(setpass, "TIMES_LONGER", 1)
    monkeypatch.setattr(streaming, "CHUNK_VALUES", 10 * 28 * 28)
