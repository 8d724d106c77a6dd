"""Workers and drivers that are killed, files that are damaged, shards that cannot be read: the same answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from congeal.errors import CongealError, RunFailed
from congeal.execution import ShardExecutor, open_executor
from congeal.execution.backends import Backend
from congeal.execution.shared_storage import SharedStorage
from congeal.execution.task import RetryShard, key_of, read_payload, result_name, write_payload


class Squares:
    """Work that can be told to go wrong the first times, by files."""

    def __init__(self, folder: Path, **trouble: int) -> None:
        self.folder, self.trouble = folder, trouble

    def __call__(self, item: int) -> dict[str, np.ndarray]:
        for kind, number in self.trouble.items():
            mark = self.folder / f"{kind}-{item}"
            if number == item and not mark.exists():
                mark.touch()
                getattr(self, kind)()
        if self.trouble.get("unreadable") == item:
            raise RetryShard("gone", {"square": np.array(-1)})
        return {"square": np.array(item**2)}

    def dies(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def fails(self) -> None:
        raise OSError("a hiccup")

    def unreadable(self) -> None:
        """The first time as every time."""

    def full(self) -> None:
        raise RunFailed("the disk is full: could not write x; free some space")

    def always(self) -> None:
        raise ZeroDivisionError


def squares(executor: ShardExecutor, work: Any, n: int = 6) -> list[int]:
    done = executor.map("squares", key_of(n), work, list(range(n)), [1] * n)
    return [int(one["square"]) for one in done]


def executor_of(pool: Executor, folder: Path) -> ShardExecutor:
    return ShardExecutor(Backend(pool), SharedStorage(str(folder / "storage")))


def test_a_process_that_is_killed_is_replaced(tmp_path: Path) -> None:
    with open_executor("processes:1", tmp_path / "storage") as executor:
        assert executor is not None
        assert squares(executor, Squares(tmp_path, dies=2)) == [0, 1, 4, 9, 16, 25]
        assert executor.retries >= 1


def test_a_hiccup_is_tried_again_and_an_unreadable_shard_taken_for_granted(
    tmp_path: Path, pool: ProcessPoolExecutor
) -> None:
    executor = executor_of(pool, tmp_path)
    assert squares(executor, Squares(tmp_path, fails=1, unreadable=3)) == [0, 1, 4, -1, 16, 25]
    assert executor.retries == 3
    assert {row["shard"]: row["attempt"] for row in executor.timings} == {0: 1, 1: 2, 2: 1, 3: 3, 4: 1, 5: 1}


def test_what_is_done_is_not_done_again_unless_it_is_damaged(tmp_path: Path, pool: ProcessPoolExecutor) -> None:
    executor = executor_of(pool, tmp_path)
    squares(executor, Squares(tmp_path))
    folder = tmp_path / "storage" / f"squares-{key_of(6)}"
    whole = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.npz")}
    (folder / result_name(4)).write_bytes(b"half a fi")
    assert squares(executor_of(pool, tmp_path), Squares(tmp_path)) == [0, 1, 4, 9, 16, 25]
    again = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.npz")}
    assert {name for name in whole if whole[name] != again[name]} == {result_name(4)}


class Deaf(Executor):
    """Takes tasks and forgets them, as a scheduler does that is restarted, until it is replaced by one that works."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []
        self.works = False

    def submit(self, function: Any, /, *arguments: Any, **_: Any) -> Future[Any]:
        done: Future[Any] = Future()
        self.heard.append(arguments)
        if self.works:
            done.set_result(function(*arguments))
        return done


class Restarted(Backend):
    """A backend that notices."""

    def is_alive(self) -> bool:
        return bool(self._executor.works)  # type: ignore[attr-defined]

    def recover(self) -> None:
        self._executor.works = True  # type: ignore[attr-defined]


def test_a_stage_outlives_the_scheduler(tmp_path: Path) -> None:
    deaf = Deaf()
    executor = ShardExecutor(Restarted(deaf), SharedStorage(str(tmp_path / "storage")))
    assert squares(executor, Squares(tmp_path)) == [0, 1, 4, 9, 16, 25]
    lost = executor.retries
    assert lost > 1  # tasks that the first scheduler forgot
    assert len(deaf.heard) == 6 + lost


class Tired(Deaf):
    """Runs the first task only."""

    def submit(self, function: Any, /, *arguments: Any, **options: Any) -> Future[Any]:
        self.works = not self.heard
        return super().submit(function, *arguments, **options)


def test_what_nobody_asks_for_is_cancelled_in_the_end(tmp_path: Path) -> None:
    pending: list[Future[Any]] = []

    class Noting(Backend):
        def submit(self, *arguments: Any) -> Future[Any]:
            pending.append(super().submit(*arguments))
            return pending[-1]

    executor = ShardExecutor(Noting(Tired()), SharedStorage(str(tmp_path / "storage")))
    results = executor.map("squares", key_of(6), Squares(tmp_path), list(range(6)), [1] * 6)
    assert int(next(results)["square"]) == 0
    results.close()  # type: ignore[attr-defined]
    assert len(pending) > 2
    assert all(future.cancelled() for future in pending[1:])


@pytest.mark.parametrize(
    ("trouble", "sentence"),
    [("full", r"the disk is full: .* \(on worker .*process \d+\)"), ("always", "shard 2 failed 3 times.*Zero")],
)
def test_work_that_cannot_be_done_is_one_sentence(
    tmp_path: Path, pool: ProcessPoolExecutor, trouble: str, sentence: str
) -> None:
    work = Squares(tmp_path, **{trouble: 2})
    if trouble == "always":
        work = Failing()
    with pytest.raises(RunFailed, match=sentence):
        squares(executor_of(pool, tmp_path), work)


class Failing:
    def __call__(self, item: int) -> dict[str, np.ndarray]:
        return {"square": np.array(1 // (2 - item))}


def test_a_worker_that_does_not_see_the_files_says_so(tmp_path: Path, pool: ProcessPoolExecutor) -> None:
    class Elsewhere(SharedStorage):
        """Where the driver writes is not where workers read."""

        def __str__(self) -> str:
            return str(tmp_path / "not" / "shared")

    executor = ShardExecutor(Backend(pool), Elsewhere(str(tmp_path / "storage")))
    with pytest.raises(RunFailed, match=r"cannot read .*which the driver wrote.*on a disk that all workers see"):
        squares(executor, Squares(tmp_path))


def test_other_versions_are_refused(tmp_path: Path, pool: ProcessPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    from congeal.execution import task as module

    monkeypatch.setattr(module, "library_versions", lambda: (("congeal", "9.9"),))
    with pytest.raises(RunFailed, match=r"has congeal .*, the driver 9\.9: install the same versions"):
        squares(executor_of(pool, tmp_path), Squares(tmp_path))


def test_a_worker_without_the_package_is_told(tmp_path: Path) -> None:
    class Bare(Executor):
        def submit(self, *arguments: Any, **options: Any) -> Future[Any]:  # type: ignore[override]
            failed: Future[Any] = Future()
            failed.set_exception(ModuleNotFoundError("No module named 'congeal'", name="congeal"))
            return failed

    with pytest.raises(RunFailed, match="a worker has no package 'congeal'"):
        squares(executor_of(Bare(), tmp_path), Squares(tmp_path))


class WithAddress:
    """Images that every worker opens itself."""

    def __init__(self, address: Any) -> None:
        self.address = address


class Address:
    def open(self) -> str:
        return "opened by the worker"


def test_the_disk_holds_arrays_but_neither_code_nor_addresses(tmp_path: Path) -> None:
    work = {"poses": np.arange(5000.0), "images": WithAddress(Address())}
    payload = write_payload(SharedStorage(str(tmp_path)), "stage", work)
    assert [path.name for path in (tmp_path / "stage").iterdir()] == ["arrays.bin"]
    assert (tmp_path / "stage" / "arrays.bin").read_bytes().strip(b"\0") in np.arange(5000.0).tobytes()
    got = read_payload(payload)
    assert np.array_equal(got["poses"], np.arange(5000.0))
    assert got["images"] == "opened by the worker"


def test_processes_end_with_their_driver(tmp_path: Path) -> None:
    program = """
import os, time
from congeal.execution import backends
if __name__ == "__main__":
    print(backends.ProcessBackend(1).submit(os.getpid).result(), flush=True)
    time.sleep(600)
"""
    (tmp_path / "driver.py").write_text(program)
    driver = subprocess.Popen([sys.executable, str(tmp_path / "driver.py")], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    worker = int(driver.stdout.readline())
    driver.kill()
    driver.wait()
    driver.stdout.close()
    deadline = time.monotonic() + 60
    while _runs(worker):
        assert time.monotonic() < deadline, "the worker outlives its driver"
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"


def test_keys_tell_inputs_apart() -> None:
    one = np.broadcast_to(np.eye(3), (4, 3, 3))
    assert key_of(one, "a") == key_of(one, "a") != key_of(one, "b")
    assert key_of(one) != key_of(np.broadcast_to(np.eye(3) * 2, (4, 3, 3)))
    assert key_of({"a": 1}, [1.5, None]) != key_of({"a": 1}, [1.5, 0])


@pytest.mark.parametrize(
    ("on", "sentence"),
    [
        ("threads:4", "nothing to work on called 'threads:4'"),
        ("processes", "how many workers"),
        ("processes:0", "how many workers"),
        ("dask:local:x", "how many workers"),
        ("dask:", "nothing to work on"),
        ("dask:here", "is no scheduler"),
        ("dask:none.json", "no such scheduler file"),
        ("dask:tcp://127.0.0.1:9", "no Dask scheduler at tcp://127.0.0.1:9"),
        (7, "an executor is processes:N"),
    ],
)
def test_wrong_executors(tmp_path: Path, on: Any, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if str(on).startswith("dask:"):
        pytest.importorskip("distributed")
        from congeal.execution import backends

        monkeypatch.setattr(backends, "CONNECT_SECONDS", 0.5)
    with pytest.raises(CongealError, match=sentence), open_executor(on, tmp_path):
        pass
