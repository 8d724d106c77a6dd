"""Two worker processes for all tests, and shards so small that a few images make several."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from congeal.execution import mapping
from congeal.registration import batching, joint_gauss_newton


@pytest.fixture(scope="session")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as workers:
        yield workers


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of 30 images or fewer; runs within them of about ten."""
    monkeypatch.setattr(mapping, "MAX_IMAGES_PER_SHARD", 30)
    monkeypatch.setattr(mapping, "MAX_WORKING_VALUES_PER_SHARD", 30 * 28 * 28)
    monkeypatch.setattr(joint_gauss_newton, "ROUNDS_PER_SHARD", 1)
    monkeypatch.setattr(batching, "CHUNK_VALUES", 10 * 28 * 28)
