"""Files that driver and workers share where there is no shared disk."""

from __future__ import annotations

import uuid
from pathlib import Path

import numpy as np
import pytest

from congeal.execution import shared_storage
from congeal.execution.shared_storage import SharedStorage


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SharedStorage:
    monkeypatch.setattr(shared_storage, "file_cache_folder", lambda: tmp_path)
    return SharedStorage(f"memory://{uuid.uuid4().hex}")


def test_what_is_mapped_is_copied_once_and_never_read_whole(
    remote: SharedStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Poses of millions of images are hundreds of megabytes, in every worker."""
    rows = np.arange(1000)
    remote.write_array("stage/rows.npy", rows)
    monkeypatch.setattr(remote, "read", lambda _: pytest.fail("the whole object went through memory"))
    copy = remote.local("stage/rows.npy")
    assert np.array_equal(np.load(copy, mmap_mode="r"), rows)
    remote.remove("stage")
    assert remote.local("stage/rows.npy") == copy, "a copy that is there is not asked for again"
    assert list(tmp_path.iterdir()) == [copy]


def test_an_object_that_is_not_there_leaves_nothing_behind(remote: SharedStorage, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        remote.local("stage/rows.npy")
    assert not list(tmp_path.iterdir())
