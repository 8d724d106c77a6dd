"""Source shards, results and output in object storage: S3 as moto plays it, on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from same_results import files, numbers
from test_same_results import photographs, tar_of

from congeal import align
from congeal.errors import CongealError

moto = pytest.importorskip("moto.server")
s3fs = pytest.importorskip("s3fs")
QUICK: dict[str, Any] = {
    "method": "lsc",
    "motion": "affine",
    "params": {"blurs": [0.0], "iterations": [1]},
    "size": 28,
    "quiet": True,
}


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """A bucket called `set`, on loopback; its address is in the environment, which workers inherit."""
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    s3fs.S3FileSystem.clear_instance_cache()
    system = s3fs.S3FileSystem()
    system.makedirs("set", exist_ok=True)
    yield system
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


@pytest.mark.usefixtures("small_shards")
def test_from_a_bucket_to_a_bucket(tmp_path: Path, bucket: Any) -> None:
    tars = tar_of(photographs(tmp_path / "photographs", 50), tmp_path / "tars")
    for path in tars.iterdir():
        bucket.put_file(str(path), f"set/tars/{path.name}")
    plain = align(tars, tmp_path / "plain", **QUICK)
    spread = align("s3://set/tars", "s3://set/run", executor="processes:1", **QUICK)
    assert spread.transforms == plain.transforms
    assert numbers(spread.metrics) == numbers(plain.metrics)
    bucket.invalidate_cache()
    there = {path.removeprefix("set/run/") for path in bucket.find("set/run")}
    expected = files(plain.folder)
    assert {name for name in expected if not name.startswith(".")} <= there
    assert not any(name.startswith(".") for name in there)
    for name in ("transforms.csv", "mean.png", *(name for name in there if name.startswith("aligned/"))):
        assert bucket.cat_file(f"set/run/{name}") == expected[name], name


@pytest.mark.usefixtures("bucket")
def test_one_large_file_is_not_written_by_many(pool: ProcessPoolExecutor) -> None:
    with pytest.raises(CongealError, match="give --output-format shards or files"):
        align(np.zeros((5, 9, 9), np.uint8), "s3://set/run", executor=pool, **QUICK)


@pytest.mark.usefixtures("bucket")
def test_an_address_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CongealError, match="s3://no-such-bucket/run cannot be written"):
        align("digits:3", "s3://no-such-bucket/run", **QUICK)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(CongealError, match="credentials are missing or not accepted"):
        align("digits:3", "s3://set/run", **QUICK)
