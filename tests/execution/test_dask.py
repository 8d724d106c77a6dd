"""A real Dask cluster on this machine, and one whose worker, driver and scheduler are killed one after the other."""

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
import torch
from same_results import assert_same

from congeal import align
from congeal.errors import CongealError
from congeal.execution import open_executor
from congeal.execution.backends import open_backend, start_forkserver
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


# A driver that is killed when so many results are there, or waits there until somebody has done something else.
DRIVER = """
import os, signal, sys, time
from pathlib import Path
from congeal import align
from congeal.execution import ShardExecutor
from congeal.execution import mapping
from congeal.registration import batching, joint_gauss_newton

mapping.MAX_IMAGES_PER_SHARD, mapping.MAX_WORKING_VALUES_PER_SHARD = 30, 30 * 28 * 28  # as in conftest.py
joint_gauss_newton.ROUNDS_PER_SHARD, batching.CHUNK_VALUES = 1, 10 * 28 * 28
die_at, wait_at, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
usual, seen = ShardExecutor.map, 0

def counted(*arguments, **options):
    global seen
    for one in usual(*arguments, **options):
        seen += 1
        if seen == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if seen == wait_at:
            (folder / "waiting").touch()
            while (folder / "waiting").exists():
                time.sleep(0.02)
        yield one

ShardExecutor.map = counted
if __name__ == "__main__":
    from test_dask import QUICK
    align(folder / "digits.npy", folder / "killed", executor=f"dask:{folder / 'scheduler.json'}", **QUICK)
"""
# A worker that is killed in the middle of its third task.
DYING = """
import os, signal
from congeal.execution import task

usual, seen = task.pack_arrays, 0

def counted(arrays):
    global seen
    seen += 1
    if seen == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return usual(arrays)

task.pack_arrays = counted
"""


class Cluster:
    """A scheduler and a worker, each a process that can be killed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file, self.running = folder, folder / "scheduler.json", dict[str, subprocess.Popen[bytes]]()

    def start(self, name: str, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        options = {"env": {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, "stdout": subprocess.DEVNULL}
        self.running[name] = subprocess.Popen(
            [sys.executable, *program.split(), *arguments], stderr=subprocess.DEVNULL, **options
        )
        return self.running[name]

    def start_scheduler(self, port: str = "0") -> None:
        where = ("--host", "127.0.0.1", "--no-dashboard", "--port", port, "--scheduler-file", str(self.file))
        wait_for(self.file, self.start("scheduler", "-m distributed.cli.dask_scheduler", *where), ends="}")

    def start_worker(self, *more: str) -> subprocess.Popen[bytes]:
        own = ("--nthreads", "1", "--no-nanny", "--local-directory", str(self.folder), "--death-timeout", "60")
        where = ("--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", str(self.file))
        return self.start("worker", "-m distributed.cli.dask_worker", *where, *own, *more)

    def start_driver(self, die_at: int, wait_at: int) -> subprocess.Popen[bytes]:
        return self.start("driver", str(self.folder / "driver.py"), str(die_at), str(wait_at), str(self.folder))

    def kill(self, *names: str) -> None:
        for name in names:
            process = self.running.pop(name)
            process.kill()
            process.wait()


def wait_for(path: Path, process: subprocess.Popen[bytes], ends: str = "") -> None:
    """Wait until the process has written the file. ends: how a whole one ends."""
    deadline = time.monotonic() + 120
    while not (path.exists() and path.read_text().rstrip().endswith(ends)):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.usefixtures("small_shards")
def test_worker_driver_and_scheduler_are_killed(tmp_path: Path) -> None:
    np.save(tmp_path / "digits.npy", open_images("digits:3").batch(np.arange(60))[..., 0])
    (tmp_path / "driver.py").write_text(DRIVER)
    (tmp_path / "dying.py").write_text(DYING)
    plain = align(tmp_path / "digits.npy", tmp_path / "plain", **QUICK)
    cluster = Cluster(tmp_path)
    try:
        cluster.start_scheduler()
        port = json.loads(cluster.file.read_text())["address"].rsplit(":", 1)[1]
        worker = cluster.start_worker("--preload", str(tmp_path / "dying.py"))
        driver = cluster.start_driver(4, 0)
        assert worker.wait(120) == -signal.SIGKILL
        cluster.start_worker()  # the driver, who knows of nothing, gets the fourth result from this one …
        assert driver.wait(120) == -signal.SIGKILL
        assert any((tmp_path / "killed" / ".work" / "shards").rglob("*.npz"))
        driver = cluster.start_driver(0, 3)
        wait_for(tmp_path / "waiting", driver)
        cluster.kill("worker", "scheduler")
        cluster.file.unlink()
        cluster.start_scheduler(port)
        cluster.start_worker()
        (tmp_path / "waiting").unlink()
        assert driver.wait(120) == 0  # … and goes on when there is a scheduler again
    finally:
        cluster.kill(*cluster.running)
    again = align(tmp_path / "digits.npy", tmp_path / "killed", **QUICK)  # nobody holds the folder, nothing is left
    assert_same(plain, again)
    assert not (tmp_path / "killed" / ".work" / "shards").exists()


def descendants() -> set[int]:
    """Processes of this one, and theirs, that have not ended."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rsplit(")", 1)[1].split()[:2]
        except OSError:
            continue
        if state != "Z":
            parents[int(folder.name)] = int(parent)
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads processes from /proc")
def test_a_cluster_of_this_machine_ends_with_the_run(tmp_path: Path) -> None:
    start_forkserver("distributed")  # the process that workers come from stays
    before = descendants()
    with pytest.raises(ZeroDivisionError), open_executor("dask:local:1", tmp_path):
        raise ZeroDivisionError
    assert descendants() - before == set()


def test_the_driver_keeps_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    usual = torch.get_num_threads()
    open_backend("dask:local:1").close()
    assert os.environ["OMP_NUM_THREADS"] == "2"
    assert not {"MKL_NUM_THREADS", "PYTHONSAFEPATH"} & set(os.environ)
    assert torch.get_num_threads() == usual


@pytest.mark.parametrize("on", ["dask:local:1", "processes:1"])
def test_workers_see_variables_set_after_the_fork_server_started(on: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start_forkserver("distributed")
    monkeypatch.setenv("CONGEAL_SET_LATER", "yes")
    backend = open_backend(on)
    try:
        assert backend.submit(os.getenv, "CONGEAL_SET_LATER").result(60) == "yes"
        assert backend.submit(os.getenv, "OMP_NUM_THREADS").result(60) == "1"
    finally:
        backend.close()


@pytest.mark.parametrize("on", ["dask:local:1", "processes:1"])
def test_workers_run_no_code_from_the_current_folder(tmp_path: Path, on: str) -> None:
    """A file that has the name of a module of Python lies beside the images."""
    images, program = tmp_path / "images", tmp_path / "program.py"
    images.mkdir()
    (images / "threading.py").write_text("open('it-ran', 'w').close()")
    program.write_text(
        "from congeal.execution.backends import open_backend\n"
        "if __name__ == '__main__':\n"
        f"    backend = open_backend({on!r})\n"
        "    print(backend.submit(sum, [1, 2]).result(60))\n"
        "    backend.close()\n"
    )
    ran = subprocess.run([sys.executable, str(program)], cwd=images, capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "3", ran.stderr
    assert not (images / "it-ran").exists()


def test_a_wrong_count_is_told_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(CongealError, match="does not say how many workers"):
        align("digits:3", tmp_path / "run", executor="dask:local:none", **QUICK)
    assert not (tmp_path / "run").exists()


def test_wrong_input_stays_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "congeal.cli", "align", "nowhere", "-o", str(tmp_path / "run")]
    ran = subprocess.run([*command, "--quiet", "--on", "dask:local:1"], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr.strip().splitlines() == ["congeal: no such file or folder: nowhere"]
