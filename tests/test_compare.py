"""`congeal compare`: the same conditions for all, honest rows, resuming, and what a failing method leaves behind."""

from __future__ import annotations

import csv
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import congeal
import deciding
from blobs import blob, save_folder
from congeal import CongealError, Transforms, align, compare
from congeal.cli import main
from congeal.comparison.entries import motion_for, read_labels
from congeal.comparison.process import FitClock, is_hopeless, run_in_process
from congeal.execution.task import read_payload
from congeal.images import Stack, prepare
from congeal.images.sources.files import FileSource
from congeal.methods.registry import method_class, methods
from congeal.opening import open_images, shared_images
from congeal.report.comparison import best, markdown, motion_words
from congeal.runs.folder import RunFolder

comparing = importlib.import_module("congeal.comparison.compare")  # the module, which the function hides

KEYS = {
    *("n_images", "n_skipped", "method", "motion", "apsnr_before", "apsnr_after"),
    *("energy_ratio", "mean_scale", "blank_share"),
    *("out_of_frame_share", "collapsed", "fit_seconds", "align_seconds", "images_per_second", "peak_memory_mb"),
    *("seed", "version"),
}
ENTRIES = ("lsc", "lsc@bad", "lsc@loose")
# A fit without an end, for limits and interruptions.
ENDLESS = {"tolerance": 0.0, "iterations": (10, 10, 10**9)}


def command(folder: Path, *more: str) -> list[str]:
    settings = ("--set", "lsc@bad.damping=abc", "--set", "lsc@loose.guards=False")
    methods = ("--methods", ",".join(ENTRIES), "--size", "28", "--limit", "40")
    return ["compare", "digits:3", *methods, *settings, "-o", str(folder), *more]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compare") / "out"
    assert main(command(folder, "--quiet")) == 0
    return folder


def table(folder: Path) -> dict[str, dict[str, object]]:
    return {row["method"]: row for row in json.loads((folder / "table.json").read_text())}


# ---- what it writes


def test_the_folder_has_what_the_design_says(compared: Path) -> None:
    for name in ("config.json", "table.json", "table.md", "table.csv", "report.html", "skipped.csv"):
        assert (compared / name).is_file(), name
    for name in ("transforms.csv", "mean.png", "variance.png", "metrics.json"):
        assert (compared / "lsc" / name).is_file(), name
    assert not (compared / ".work" / "shared_stack").exists()
    assert json.loads((compared / "config.json").read_text())["methods"] == list(ENTRIES)


def test_rows_come_in_the_order_given_with_the_keys_of_metrics(compared: Path) -> None:
    rows = table(compared)
    assert list(rows) == list(ENTRIES)
    metrics = json.loads((compared / "lsc" / "metrics.json").read_text())
    assert all(set(row) >= KEYS for row in rows.values())
    assert set(rows["lsc"]) >= set(metrics)
    assert rows["lsc"]["apsnr_after"] == metrics["apsnr_after"]


def test_every_method_has_the_same_start(compared: Path) -> None:
    done = [row for row in table(compared).values() if "error" not in row]
    assert len(done) == 2
    assert len({row["apsnr_before"] for row in done}) == 1
    assert {row["n_images"] for row in done} == {40}
    starts = [Transforms.load(compared / str(row["method"]) / ".work" / "start.npz") for row in done]
    assert all(np.array_equal(starts[0].matrices, other.matrices) for other in starts)


def test_the_answer_is_that_of_align(compared: Path, tmp_path: Path) -> None:
    alone = align("digits:3", tmp_path / "run", method="lsc", size=28, limit=40, quiet=True)
    together = Transforms.load(compared / "lsc" / "transforms.csv")
    assert np.allclose(alone.transforms.matrices, together.matrices, atol=1e-4)
    assert table(compared)["lsc"]["apsnr_after"] == pytest.approx(alone.metrics["apsnr_after"], abs=1e-3)


def test_a_method_that_fails_is_a_row_that_says_why(compared: Path) -> None:
    row = table(compared)["lsc@bad"]
    assert "damping" in str(row["error"])
    assert row["apsnr_after"] is None
    assert "FAILED: lsc: damping must be" in (compared / "table.md").read_text()
    assert "error" not in table(compared)["lsc"]


def test_a_collapse_cannot_be_misread(compared: Path) -> None:
    row = table(compared)["lsc@loose"]
    assert row["collapsed"] is True
    line = next(line for line in (compared / "table.md").read_text().splitlines() if line.startswith("| lsc@loose"))
    assert f"~~{row['apsnr_after']:.2f}~~ collapsed" in line
    assert "COLLAPSED" in line
    # Bold is for the best of the others, even when a collapsed row has more of it.
    high, sound = {**row, "likeness_after": 0.999}, {**table(compared)["lsc"], "likeness_after": 0.5}
    assert "**0.999**" not in markdown([high, sound])
    assert "**0.500**" in markdown([high, sound])


def test_rows_are_ranked_by_likeness(compared: Path) -> None:
    row = table(compared)["lsc"]
    sharp = {**row, "likeness_after": 0.8, "apsnr_after": 20.0}
    blunt = {**row, "likeness_after": 0.6, "apsnr_after": 30.0}
    assert best([blunt, sharp]) is sharp
    text = markdown([blunt, sharp])
    assert "| **0.800** |" in text
    assert "**30.00**" not in text
    assert best([{**sharp, "collapsed": True}, {"error": "no", **blunt}]) is None


def test_memory_is_that_of_the_child(compared: Path) -> None:
    row = table(compared)["lsc"]
    assert 50 < row["idle_memory_mb"] <= row["peak_memory_mb"]  # type: ignore[operator]
    assert json.loads((compared / "lsc" / "metrics.json").read_text())["peak_memory_mb"] == row["peak_memory_mb"]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the kernel's own count is only on Linux")
def test_memory_is_not_handed_down_from_the_parent() -> None:
    ballast = np.ones(60_000_000)  # 480 MB
    code = "from congeal.runs.checkpoint import peak_memory_mb; print(peak_memory_mb())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert float(told) < 400 < ballast.nbytes / 1e6


def test_csv_has_a_column_per_status_and_error(compared: Path) -> None:
    with (compared / "table.csv").open(newline="") as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert sum(int(rows["lsc"][f"n_{name}"] or 0) for name in ("ok", "outlier", "failed", "blank")) == 40
    assert rows["lsc"]["error"] == ""
    assert "damping" in rows["lsc@bad"]["error"]


def test_the_report_shows_every_method_and_needs_no_other_file(compared: Path) -> None:
    page = (compared / "report.html").read_text()
    assert all(label in page for label in ENTRIES)
    assert page.count("data:image/png;base64") == 2 * 3  # the start and two answers, mean and spread
    assert "lsc: damping must be" in page
    assert 'class="struck"' in page
    assert "<link" not in page
    assert "http" not in page


def test_a_methods_folder_is_a_run_folder(compared: Path, tmp_path: Path) -> None:
    assert main(["export", str(compared / "lsc"), "--to", str(tmp_path / "t.npz")]) == 0
    assert len(Transforms.load(tmp_path / "t.npz")) == 40


@pytest.mark.parametrize("part", ["", "lsc"])
def test_the_report_can_be_written_again(compared: Path, part: str) -> None:
    page = compared / part / "report.html"
    before = page.read_text()
    page.unlink()
    assert main(["report", str(compared / part)]) == 0
    assert page.read_text() == before


# ---- resuming


def test_the_same_command_runs_nothing_again(compared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(comparing, "run_in_process", lambda *a, **_: started.append(str(a)))
    before = (compared / "table.json").read_text()
    assert main(command(compared, "--quiet")) == 0
    assert not started
    assert (compared / "table.json").read_text() == before


def test_other_settings_of_a_finished_method_are_refused(compared: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert main(command(compared, "--quiet", "--set", "lsc.damping=0.5")) == 2
    assert "damping" in caplog.text
    assert main(command(compared, "--quiet", "--seed", "3")) == 2


def test_more_methods_and_mended_ones_join_a_comparison(tmp_path: Path) -> None:
    images = np.asarray(open_images("digits:3").batch(np.arange(12)))[..., 0]
    options = {"size": 28, "quiet": True}
    first = compare(images, ["lsc@a"], tmp_path / "out", params={"lsc@a": {"damping": "abc"}}, **options)
    assert "damping" in first[0]["error"]
    again = {"lsc@a": {"damping": 0.1, "motion": "affine"}}
    rows = compare(images, "lsc,lsc@a", tmp_path / "out", params=again, **options)
    assert [(row["method"], row["motion"]) for row in rows] == [("lsc", "homography"), ("lsc@a", "affine")]
    assert not any("error" in row for row in rows)
    finished = (tmp_path / "out" / "lsc" / "transforms.csv").stat().st_mtime_ns
    rows = compare(images, "lsc@a,lsc", tmp_path / "out", params=again, **options)
    assert [row["method"] for row in rows] == ["lsc@a", "lsc"]
    assert (tmp_path / "out" / "lsc" / "transforms.csv").stat().st_mtime_ns == finished


# ---- the limits


def test_out_of_time_is_a_row_and_more_time_is_another_try(tmp_path: Path) -> None:
    out = tmp_path / "out"
    rows = compare("digits:3", "lsc", out, params={"lsc": ENDLESS}, time_limit=0.3, size=28, limit=20, quiet=True)
    assert rows[0]["error"] == "not finished within the time limit of 0.3 s"
    assert rows[0]["apsnr_after"] is None
    assert "time limit of 0.3 s" in (out / "table.md").read_text()
    state = RunFolder.existing(out / "lsc").state
    assert is_hopeless(state, 0.3)
    assert not is_hopeless(state, 60)
    assert not is_hopeless(state, None)


def test_no_method_finished_is_exit_code_1(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    arguments = ["compare", "digits:3", "--methods", "lsc", "--set", "lsc.nonsense=1", "--limit", "5"]
    assert main([*arguments, "-o", str(tmp_path / "out")]) == 1
    assert "no method finished" in caplog.text
    assert "no parameter 'nonsense'" in (tmp_path / "out" / "table.md").read_text()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
@pytest.mark.parametrize(("stop", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_whatever_stops_the_command_ends_the_child(tmp_path: Path, stop: signal.Signals, code: int) -> None:
    settings = [word for key, value in ENDLESS.items() for word in ("--set", f"lsc.{key}={value}")]
    arguments = ["compare", "digits:3", "--methods", "lsc", "--limit", "20", "-o", str(tmp_path / "out"), *settings]
    run = subprocess.Popen([sys.executable, "-m", "congeal.cli", *arguments], start_new_session=True)
    while len(group_members(run.pid)) < 4:  # the command, two helpers of multiprocessing, and the method
        assert run.poll() is None
        time.sleep(0.01)
    run.send_signal(stop)  # to the parent alone
    assert run.wait(120) == code
    ended = time.monotonic() + 60
    while group_members(run.pid) and time.monotonic() < ended:
        time.sleep(0.05)
    assert not group_members(run.pid)


def group_members(group: int) -> list[int]:
    """The processes of the group that run; one that ended and was not collected does not count."""
    members = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            members.append(int(status.parent.name))
    return members


# ---- wrong use


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--methods", "lsc,nope"], "unknown method 'nope'"),
        (["--methods", "lsc,lsc"], "given twice"),
        (["--methods", "../lsc"], "is not a method"),
        (["--methods", ","], "no methods"),
        (["--methods", "lsc", "--set", "rasl.x=1"], "which is not compared"),
        (["--methods", "lsc", "--set", "damping=1"], "METHOD.KEY=VALUE"),
        (["--methods", "lsc", "--set", "lsc.size=9"], "share it"),
        (["--methods", "lsc", "--motion", "wobble"], "unknown motion"),
        (["--methods", "lsc", "--time-limit", "0"], "above 0"),
    ],
)
def test_wrong_use_is_one_sentence(
    more: list[str], words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert main(["compare", "digits:3", "-o", str(tmp_path / "out"), *more]) == 2
    assert words in caplog.text
    assert not (tmp_path / "out").exists()


def test_all_means_all() -> None:
    assert read_labels("all") == list(methods())


def test_a_motion_that_a_method_lacks_becomes_its_largest_within(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(method_class("lsc"), "motions", ("rigid", "affine"))
    assert motion_for("lsc", None) is None
    assert motion_for("lsc", "homography") == "affine"
    assert motion_for("lsc", "similarity") == "rigid"
    with pytest.raises(CongealError, match="no motion within translation"):
        motion_for("lsc", "translation")


def test_auto_is_for_methods_that_can_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    deciding.register(monkeypatch)
    assert motion_for("deciding", "auto") == "auto"
    assert motion_for("lsc", "auto") is None
    assert motion_words({"motion": "rigid", "motion_asked": "auto"}) == "rigid (chosen)"
    assert motion_words({"motion": "rigid", "motion_asked": "affine"}) == "rigid (has no affine)"


# ---- once each


def test_a_comparison_does_everything_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Originals decoded once for all methods, one row each, no second copy of the stack."""
    folder = save_folder(tmp_path / "photos", blob(12, size=40))
    reads, rows = Counter[str](), []
    read, make_row = FileSource.read, comparing.make_row
    monkeypatch.setattr(FileSource, "read", lambda source, i: reads.update([source.id(i)]) or read(source, i))
    monkeypatch.setattr(comparing, "make_row", lambda *a: rows.append(a) or make_row(*a))
    share, shared = comparing.share_stack, []
    monkeypatch.setattr(comparing, "share_stack", lambda *a: shared.append(share(*a)) or shared[-1])
    compare(folder, "lsc,lsc@loose", tmp_path / "out", params={"lsc@loose": {"guards": False}}, size=20, quiet=True)
    assert dict(reads) == {f"{i}.png": 1 for i in range(12)}
    assert all(size < 400 for payload in shared for _, size in payload.arrays), "the stack was copied"
    assert len(rows) == 2
    starts = [(tmp_path / "out" / name / ".work" / "mean_before.png").read_bytes() for name in ("lsc", "lsc@loose")]
    assert starts[0] == starts[1]
    pages = [(tmp_path / "out" / name / "report.html").read_text() for name in ("lsc", "lsc@loose")]
    assert [page.count("data:image/png") for page in pages] == [4 + 2 * (12 + 5)] * 2


# ---- the stack in another process


def in_other_process(stack: Stack, folder: Path) -> Stack:
    """The stack as another process gets it."""
    received: Stack = read_payload(comparing.share_stack(stack, folder))
    return received


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_another_process_sees_the_same_stack(tmp_path: Path, dtype: type) -> None:
    rng = np.random.default_rng(0)
    images = (rng.random((9, 20, 16, 4)) * (1 if dtype == np.float32 else np.iinfo(dtype).max)).astype(dtype)
    if dtype == np.float32:
        images[4, 0, 0, 0] = np.nan  # a skipped image
    init = np.tile(np.eye(3), (9, 1, 1))
    init[:, 0, 2] = np.arange(9)
    stack = prepare(open_images(images), size=16, init=init, init_size=(20, 16))
    shared = in_other_process(stack, tmp_path / "shared")
    assert len(shared) == len(stack) == (8 if dtype == np.float32 else 9)
    assert torch.equal(shared.images(slice(None)), stack.images(slice(None)))
    assert torch.equal(shared.images([3, 1]), stack.images([3, 1]))
    few, some = shared.some(np.array([5, 2, 7])), stack.some(np.array([5, 2, 7]))
    assert torch.equal(few.images([0, 2]), some.images([0, 2]))
    assert torch.equal(few.some(np.array([1])).images([0]), some.images([1]))
    assert np.array_equal(shared.start, stack.start)
    assert shared.layout == stack.layout
    assert shared.to_transforms(shared.start) == stack.to_transforms(stack.start)
    assert [*shared.skipped] == [*stack.skipped]


@pytest.mark.parametrize("dtype", [np.uint8, ">u2", np.float64])
def test_another_process_sees_a_mapped_array(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(1)
    np.save(tmp_path / "images.npy", (200 * rng.random((9, 12, 10, 3))).astype(dtype))
    named = shared_images(tmp_path / "images.npy")
    for images in (named, named.subset([7, 2, 5])):
        stack = prepare(images, size=12, align_on=[0, 2])
        shared = in_other_process(stack, tmp_path / "shared")
        assert torch.equal(shared.images(slice(None)), stack.images(slice(None)))
        assert torch.equal(shared.some(np.array([2, 0])).images([0, 1]), stack.images([2, 0]))
        assert shared.layout == stack.layout


def test_images_that_no_process_can_open_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = open_images(list(blob(6, size=30)))
    monkeypatch.setattr(type(images), "__module__", "__main__")
    with pytest.raises(CongealError, match="is defined in the script that runs"):
        compare(images, "lsc", tmp_path / "one", size=20, quiet=True)
    monkeypatch.undo()
    images.opened = (tmp_path / "file").open("w")  # type: ignore[attr-defined]
    with images.opened, pytest.raises(CongealError, match="cannot be sent to the processes of the methods"):  # type: ignore[attr-defined]
        compare(images, "lsc", tmp_path / "other", size=20, quiet=True)


def test_another_process_sees_masks(tmp_path: Path) -> None:
    images = [np.full((12, 8, 1), 200, np.uint8), np.full((8, 12, 1), 90, np.uint8)]
    images[0][2:4], images[1][2:4] = 10, 20
    stack = prepare(open_images(images), size=12)
    assert stack.has_masks
    masks, shared = stack.masks([0, 1]), in_other_process(stack, tmp_path / "shared").masks([0, 1])
    assert masks is not None
    assert shared is not None
    assert torch.equal(masks, shared)


@pytest.mark.parametrize("kind", ["files", "memory", "mapped"])
def test_another_process_has_larger_pictures(tmp_path: Path, kind: str) -> None:
    images = (255 * np.random.default_rng(2).random((5, 100, 80))).astype(np.uint8)
    np.save(tmp_path / "images.npy", images)
    opened = {"files": lambda: save_folder(tmp_path / "files", images), "memory": lambda: images}
    source = shared_images(opened.get(kind, lambda: tmp_path / "images.npy")())
    stack = prepare(source, size=10, folder=tmp_path / "stack")
    shared = in_other_process(stack, tmp_path / "shared")
    if kind == "files":
        (tmp_path / "files" / "0.png").unlink()  # what was decoded before is not decoded again
    assert shared.native_size == stack.native_size == 100
    assert shared.at(10) is shared
    for asked, has in ((30, 30), (100, 100), (5000, 100)):
        larger, wanted = shared.at(asked), stack.at(has)
        assert max(larger.frame) == has
        assert torch.equal(larger.images(slice(None)), wanted.images(slice(None)))
        assert np.array_equal(larger.start, wanted.start)
        assert larger.to_transforms(larger.start) == wanted.to_transforms(wanted.start)
        rows = np.array([4, 1])
        assert torch.equal(shared.some(rows).at(asked).images([0, 1]), wanted.images([4, 1]))
    assert shared.at(100) is shared.at(100), "opened once"


def test_compare_is_public() -> None:
    importlib.import_module("congeal.comparison.compare")  # which must not hide the function
    assert congeal.compare is compare


def test_what_is_gone_from_the_folder_of_a_method_is_made_again(compared: Path, tmp_path: Path) -> None:
    spoiled = Path(shutil.copytree(compared, tmp_path / "out"))
    part = next(path.parent for path in spoiled.glob("*/mean.png"))
    expected = (part / "mean.png").read_bytes(), (part / "transforms.csv").read_bytes()
    (part / "mean.png").unlink()
    (part / "transforms.csv").write_bytes(b"")
    assert main(command(spoiled, "--quiet")) == 0
    assert ((part / "mean.png").read_bytes(), (part / "transforms.csv").read_bytes()) == expected


# ---- the process of a method


def square(clock: FitClock, number: int) -> dict[str, Any]:
    with clock.fitting():
        return {"square": number**2, "pid": os.getpid(), "here": os.environ.get("CONGEAL_TEST")}


def fail(clock: FitClock, error: Exception) -> dict[str, Any]:
    raise error


def die(clock: FitClock, code: int) -> dict[str, Any]:
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


def wait(clock: FitClock, fitting: float, saving: float) -> dict[str, Any]:
    with clock.fitting(seconds=1.0):
        time.sleep(fitting)
    time.sleep(saving)
    return {"waited": True}


def test_each_piece_of_work_has_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONGEAL_TEST", "set after the fork server began")
    outcomes = [run_in_process(square, number) for number in (3, 4)]
    assert [outcome["square"] for outcome in outcomes] == [9, 16]
    assert len({os.getpid(), *(outcome["pid"] for outcome in outcomes)}) == 3
    assert outcomes[0]["here"] == "set after the fork server began"


def test_how_a_process_ended_is_said_in_a_sentence() -> None:
    assert run_in_process(fail, CongealError("no image")) == {"error": "no image"}
    bug = run_in_process(fail, KeyError("x"))
    assert "unexpected KeyError" in bug["error"]
    assert "in fail" in bug["traceback"]
    assert "want of memory" in run_in_process(die, -signal.SIGKILL)["error"]
    assert "crashed with SIGSEGV" in run_in_process(die, -signal.SIGSEGV)["error"]
    assert "ended with code 3" in run_in_process(die, 3)["error"]


def test_the_time_limit_counts_fitting_alone() -> None:
    assert run_in_process(wait, 0.0, 1.0, time_limit=1.5) == {"waited": True}
    began = time.monotonic()
    assert run_in_process(wait, 60.0, 0.0, time_limit=1.5)["out_of_time"] == 1.5, "a second was spent before"
    assert time.monotonic() - began < 30


def test_the_script_that_compares_is_not_run_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import congeal, sys\n"
        "print('running')\n"
        "rows = congeal.compare('digits:3', 'lsc', sys.argv[1], limit=8, size=28, quiet=True)\n"
        "print(rows[0].get('error'))\n"
    )
    told = subprocess.run([sys.executable, script, tmp_path / "out"], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["running", "None"]
