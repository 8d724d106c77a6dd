"""A real Dask cluster on this machine, and one whose scheduler is restarted in the middle of the work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from same import assert_same

from congeal import align
from congeal.distributed.broadcast import key_of
from congeal.distributed.crew import open_crew
from congeal.opening import open_images

pytest.importorskip("distributed")
QUICK: dict[str, Any] = {
    "method": "lsc",
    "motion": "affine",
    "params": {"blurs": [0.0], "iterations": [2]},
    "size": 28,
    "quiet": True,
}


@pytest.mark.usefixtures("small_shards")
def test_a_local_cluster(tmp_path: Path) -> None:
    np.save(tmp_path / "digits.npy", open_images("digits:3").batch(np.arange(60))[..., 0])
    plain = align(tmp_path / "digits.npy", tmp_path / "plain", **QUICK)
    spread = align(tmp_path / "digits.npy", tmp_path / "spread", executor="dask:local:1", **QUICK)
    assert_same(plain, spread)


class Slowly:
    """Work that waits, the first time, for somebody to allow it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, item: int) -> dict[str, np.ndarray]:
        (self.folder / f"began-{item}").touch()
        while item and not (self.folder / "go").exists():
            time.sleep(0.02)
        return {"twice": np.array(2 * item)}


def start(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", f"distributed.cli.{arguments[0]}", *arguments[1:]],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},  # workers import this file
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_scheduler_and_a_worker_that_are_killed(tmp_path: Path) -> None:
    where = ["--host", "127.0.0.1", "--no-dashboard"]
    file = tmp_path / "scheduler.json"
    begin = ["dask_scheduler", *where, "--scheduler-file", str(file)]
    worker_arguments = ["dask_worker", "--scheduler-file", str(file), *where, "--nthreads", "1", "--no-nanny"]
    worker_arguments += ["--local-directory", str(tmp_path), "--death-timeout", "60"]
    scheduler = start(*begin, "--port", "0")
    running = [scheduler]
    try:
        wait_for(file, scheduler)
        port = json.loads(file.read_text())["address"].rsplit(":", 1)[1]
        running.append(start(*worker_arguments))
        with open_crew(f"dask:{file}", tmp_path / "exchange") as crew:
            assert crew is not None
            done = crew.map("slowly", key_of("a"), Slowly(tmp_path), list(range(4)), [1] * 4)
            assert int(next(done)["twice"]) == 0
            wait_for(tmp_path / "began-1", running[-1])
            for process in running:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
            file.unlink()
            scheduler = start(*begin, "--port", port)
            running = [scheduler]
            wait_for(file, scheduler)
            (tmp_path / "go").touch()
            running.append(start(*worker_arguments))
            assert [int(one["twice"]) for one in done] == [2, 4, 6]
            assert crew.retries >= 1
    finally:
        for process in running:
            process.kill()
            process.wait()
