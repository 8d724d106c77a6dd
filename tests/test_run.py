"""The run folder: resume, refusal, locks, whole files, checkpoints."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from congeal import files as run_module
from congeal.errors import CongealError, RunFailed, raise_as_run_failure
from congeal.files import sweep, write_bytes, write_json, write_rows, write_text
from congeal.runs.checkpoint import Checkpoint, History
from congeal.runs.folder import RunFolder

CONFIG = {"source": "digits:3", "method": "lsc", "params": {"iterations": 3}, "seed": 0, "version": "1", "command": "a"}


def test_new_folder_holds_the_question(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "deep" / "run").begin(CONFIG) as run:
        stored = json.loads((run / "config.json").read_text())
    assert {key: stored[key] for key in CONFIG} == CONFIG
    assert stored["created"].startswith("20")


def test_same_question_resumes_with_its_state(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run").begin(CONFIG) as run:
        assert not run.reached("prepared")
        run.finish("fitted", fit_seconds=1.5)
    with RunFolder(tmp_path / "run").begin({**CONFIG, "version": "2", "command": "b"}) as run:
        assert run.reached("prepared")
        assert run.reached("fitted")
        assert not run.reached("rendered")
        assert run.state["fit_seconds"] == 1.5
    assert RunFolder.existing(tmp_path / "run").config["command"] == "a"


def test_another_question_is_refused_by_name(tmp_path: Path) -> None:
    RunFolder(tmp_path / "run").begin(CONFIG).close()
    other = {**CONFIG, "seed": 1, "params": {"iterations": 4}, "extra": True}
    with pytest.raises(CongealError, match="another run") as error:
        RunFolder(tmp_path / "run").begin(other)
    for word in ("seed (was 0, now 1)", "params", "extra", "choose another folder or delete it"):
        assert word in str(error.value)
    assert "method" not in str(error.value)
    RunFolder(tmp_path / "run").begin(CONFIG).close()  # the refusal left no lock behind


def test_tuples_and_arrays_compare_like_what_json_keeps(tmp_path: Path) -> None:
    config = {"size": (28, 28), "value": np.float64(0.5), "path": Path("x"), "nothing": float("nan")}
    RunFolder(tmp_path / "run").begin(config).close()
    RunFolder(tmp_path / "run").begin(config).close()


def test_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(CongealError, match=r"belongs to something else.*thesis\.tex"):
        RunFolder(tmp_path).begin(CONFIG)
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_empty_folder_is_used(tmp_path: Path) -> None:
    RunFolder(tmp_path).begin(CONFIG).close()


@pytest.mark.parametrize("name", ["file", "file/run"])
def test_unwritable_place_is_one_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CongealError, match=r"cannot write to .*choose"):
        RunFolder(tmp_path / name).begin(CONFIG)


def test_damaged_config_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CongealError, match="is damaged"):
        RunFolder(tmp_path).begin(CONFIG)


def test_reading_what_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(CongealError, match="no such run folder"):
        RunFolder.existing(tmp_path / "none")
    with pytest.raises(CongealError, match="not a run folder"):
        RunFolder.existing(tmp_path)
    RunFolder(tmp_path / "run").begin(CONFIG).close()
    with pytest.raises(CongealError, match="not finished"):
        RunFolder.existing(tmp_path / "run").read_json("metrics.json")


def test_two_at_once_are_refused_with_the_pid(tmp_path: Path) -> None:
    with (
        RunFolder(tmp_path / "run").begin(CONFIG),
        pytest.raises(CongealError, match=f"another process .pid {os.getpid()}."),
    ):
        RunFolder(tmp_path / "run").begin(CONFIG)
    RunFolder(tmp_path / "run").begin(CONFIG).close()


def test_lock_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    hold = (
        "import sys, time; from congeal.runs.folder import RunFolder; RunFolder(sys.argv[1]).begin({'a': 1}); "
        "print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", hold, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(CongealError, match=f"pid {process.pid}"):
            RunFolder(tmp_path / "run").begin({"a": 1})
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert (tmp_path / "run" / ".lock").read_text() == f"{process.pid}\n"
    with RunFolder(tmp_path / "run").begin({"a": 1}):
        assert (tmp_path / "run" / ".lock").read_text() == f"{os.getpid()}\n"


def test_a_write_that_fails_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bytes(tmp_path / "a", b"old")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run_module.os, "fsync", full)  # a full disk cannot be had in a test without root
    with pytest.raises(RunFailed, match=r"disk is full.*run the same command again"):
        write_bytes(tmp_path / "a", b"new and longer")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_real_full_device_is_one_sentence() -> None:
    with pytest.raises(RunFailed, match="disk is full"), run_module.writing("/dev/full"):
        Path("/dev/full").write_bytes(b"x")


def _write_forever(path: str) -> None:
    while True:
        for letter in b"ab":
            write_bytes(path, bytes([letter]) * 100_000)


def test_a_killed_writer_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "whole"
    write_bytes(path, b"a" * 100_000)
    for _ in range(3):
        writer = multiprocessing.get_context("fork").Process(target=_write_forever, args=(str(path),))
        writer.start()
        writer.join(0.05)
        writer.kill()
        writer.join()
        data = path.read_bytes()
        assert len(data) == 100_000
        assert len(set(data)) == 1


def test_json_is_strict_json(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"inf": float("inf"), "n": np.int64(3), "m": np.eye(2), "flag": np.bool_(True)})
    value = json.loads((tmp_path / "a.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert value == {"inf": None, "n": 3, "m": [[1.0, 0.0], [0.0, 1.0]], "flag": True}


def test_rows_keep_all_columns(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.csv", [{"step": 1, "loss": 0.5}, {"step": 2, "apsnr": 3.0}], columns=["step"])
    assert (tmp_path / "a.csv").read_text() == "step,loss,apsnr\n1,0.5,\n2,,3.0\n"
    write_rows(tmp_path / "b.csv", [], columns=["id", "reason"])
    assert (tmp_path / "b.csv").read_text() == "id,reason\n"


def test_history_can_be_watched_and_goes_on_after_an_interruption(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run").begin(CONFIG) as run:
        first = History(run, every=0.0)
        for step in (1, 2, 3):
            first(SimpleNamespace(step=step, values={"loss": 1.0 / step}))
        assert [row["step"] for row in run.read_rows("metrics.csv")] == ["1", "2", "3"]
        again = History(run, every=0.0)
        again(SimpleNamespace(step=3, values={"loss": 9.0}))
        assert [(row["step"], row["loss"]) for row in run.read_rows("metrics.csv")] == [
            ("1", "1.0"),
            ("2", "0.5"),
            ("3", "9.0"),
        ]


def test_names_that_are_not_utf8_survive(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.png")
    with RunFolder(tmp_path / "run").begin({"source": name}) as run:
        run.write_rows("skipped.csv", [{"id": name, "reason": "é"}])
        assert run.read_rows("skipped.csv") == [{"id": name, "reason": "é"}]
    RunFolder(tmp_path / "run").begin({"source": name}).close()


def test_checkpoint_round_trip(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "checkpoint.pt")
    assert checkpoint.load() is None
    checkpoint.save({"step": 3, "weights": {"w": torch.arange(3.0)}, "history": [{"loss": 0.1}]})
    later = Checkpoint(tmp_path / "checkpoint.pt")
    state = later.load()
    assert state is not None
    assert state["step"] == 3
    assert torch.equal(state["weights"]["w"], torch.arange(3.0))
    checkpoint.delete()
    assert checkpoint.load() is None


def test_time_spent_before_an_interruption_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("congeal.runs.checkpoint.time.monotonic", lambda: now)
    first = Checkpoint(tmp_path / "checkpoint.pt")
    now = 107.0
    first.save({"step": 1})
    second = Checkpoint(tmp_path / "checkpoint.pt")
    assert second.seconds == 0
    second.load()
    assert second.seconds == 7


@pytest.mark.parametrize("damage", [b"", b"not a checkpoint", "half", "last byte"])
def test_damaged_checkpoint_is_reported_and_ignored(
    tmp_path: Path, damage: bytes | str, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = Checkpoint(tmp_path / "checkpoint.pt")
    checkpoint.save({"weights": torch.arange(1000.0)})
    whole = checkpoint.path.read_bytes()
    cut = {"half": whole[: len(whole) // 2], "last byte": whole[:-1]}
    checkpoint.path.write_bytes(damage if isinstance(damage, bytes) else cut[damage])
    assert checkpoint.load() is None
    assert "damaged" in caplog.text


class Rude:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.system, ("echo loaded code from a checkpoint",))


def test_checkpoint_with_code_in_it_is_not_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    torch.save({"a": Rude()}, tmp_path / "checkpoint.pt")
    assert Checkpoint(tmp_path / "checkpoint.pt").load() is None
    assert "loaded code" not in capfd.readouterr().out


def test_errors_during_the_work_are_failures() -> None:
    with pytest.raises(RunFailed, match="nothing readable"), raise_as_run_failure():
        raise CongealError("nothing readable")


def test_threads_that_write_one_file_at_once_all_succeed(tmp_path: Path) -> None:
    texts = [f"{k}" * 100_000 for k in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(lambda k: write_text(tmp_path / "file", texts[k % 8]), range(80)):
            pass
    assert (tmp_path / "file").read_text() in texts
    assert os.listdir(tmp_path) == ["file"]


def test_a_name_as_long_as_the_system_allows_can_be_written(tmp_path: Path) -> None:
    write_bytes(tmp_path / ("é" * 127), b"whole")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"whole"]


@pytest.mark.parametrize("name", ["x" * 300, "x" * 300 + "/y", "a/" * 3000])
def test_a_name_that_is_too_long_is_one_sentence(tmp_path: Path, name: str) -> None:
    with pytest.raises(CongealError, match="cannot write"):
        RunFolder(tmp_path / name).begin(CONFIG)


def test_only_what_an_ended_process_left_is_swept_from_a_folder_of_others(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, ours = f".a.png.{ended.pid}-0123456789ab.tmp", f".a.png.{os.getpid()}-0123456789ab.tmp"
    for name in (left, ours, ".somebody.tmp", ".else.12.tmp"):
        (tmp_path / name).touch()
    sweep(tmp_path, shared=True)
    assert set(os.listdir(tmp_path)) == {ours, ".somebody.tmp", ".else.12.tmp"}
