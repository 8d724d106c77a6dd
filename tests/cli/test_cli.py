"""The command line as a user meets it: what it does, what it says, how it ends."""

from __future__ import annotations

import csv
import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import congeal
from blobs import blob, save_folder
from congeal.cli import COMMANDS, main
from congeal.cli import align as image_commands
from congeal.methods.fit_context import FitContext
from congeal.pipeline.result import Result
from congeal.transforms import Transforms

KEYS = {
    *("n_images", "n_skipped", "method", "motion", "apsnr_before", "apsnr_after"),
    *("energy_ratio", "mean_scale", "blank_share"),
    *("out_of_frame_share", "collapsed", "fit_seconds", "align_seconds", "images_per_second", "peak_memory_mb"),
    *("seed", "version", "motion_asked", "likeness_before", "likeness_after", "improved_share", "uncertainty_px"),
    *("trained", "levels", "decisions", "verdict"),
}
LSC = ("--method", "lsc")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return save_folder(tmp_path / "photos", blob())


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("digits") / "run"
    assert main(["align", "digits:3", "-o", str(run), *LSC, "--size", "28", "--limit", "40"]) == 0
    return run


def skipped(run: Path) -> dict[str, str]:
    with (run / "skipped.csv").open() as file:
        return {row["id"]: row["reason"] for row in csv.DictReader(file)}


# ---- what it does


def test_align_writes_the_run_folder_of_the_design(digits_run: Path) -> None:
    names = "config.json model.safetensors metrics.csv metrics.json transforms.csv aligned mean.png variance.png"
    for name in (*names.split(), "report.html", "skipped.csv"):
        assert (digits_run / name).exists(), name
    metrics = json.loads((digits_run / "metrics.json").read_text())
    assert set(metrics) >= KEYS
    assert metrics["n_images"] == 40
    assert metrics["apsnr_after"] > metrics["apsnr_before"] + 3
    assert metrics["collapsed"] is False
    assert len(Transforms.load(digits_run / "transforms.csv")) == 40
    assert (digits_run / "skipped.csv").read_text() == "id,reason\n"
    history = list(csv.DictReader((digits_run / "metrics.csv").open()))
    assert [int(row["step"]) for row in history] == sorted(int(row["step"]) for row in history)
    assert Image.open(digits_run / "mean.png").size == (28, 28)


def test_align_tells_the_outcome_on_stdout(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["align", str(photos), "-o", str(tmp_path / "run"), *LSC, "--motion", "translation"]) == 0
    out = capsys.readouterr().out
    for word in ("8 images aligned with lsc, translation", "APSNR", "energy ratio", "mean scale", "verdict"):
        assert word in out
    assert str((tmp_path / "run" / "report.html").resolve()) in out


def test_quiet_prints_nothing(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["align", str(photos), "-o", str(tmp_path / "run"), *LSC, "--motion", "translation", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == ""


def test_no_aligned_writes_everything_else(photos: Path, tmp_path: Path) -> None:
    assert main(["align", str(photos), "-o", str(tmp_path / "run"), *LSC, "--no-aligned", "--quiet"]) == 0
    assert not (tmp_path / "run" / "aligned").exists()
    assert (tmp_path / "run" / "mean.png").exists()


def test_same_command_again_is_done_at_once(digits_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in digits_run.iterdir() if path.is_file() and path.name != ".lock"}
    assert main(["align", "digits:3", "-o", str(digits_run), *LSC, "--size", "28", "--limit", "40"]) == 0
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert "APSNR" in capsys.readouterr().out


def test_apply_aligns_new_images(digits_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["apply", str(digits_run), "digits:3", "-o", str(tmp_path / "new"), "--limit", "60"]) == 0
    metrics = json.loads((tmp_path / "new" / "metrics.json").read_text())
    assert set(metrics) >= KEYS
    assert metrics["n_images"] == 60
    assert metrics["apsnr_after"] > metrics["apsnr_before"] + 2
    for name in ("transforms.csv", "aligned", "mean.png", "variance.png", "report.html", "skipped.csv", "config.json"):
        assert (tmp_path / "new" / name).exists(), name
    assert "60 images aligned" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", ["csv", "json", "npz", "parquet"])
def test_export_tables(digits_run: Path, tmp_path: Path, suffix: str) -> None:
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    target = tmp_path / "out" / f"transforms.{suffix}"
    assert main(["export", str(digits_run), "--to", str(target)]) == 0
    written, own = Transforms.load(target), Transforms.load(digits_run / "transforms.csv")
    assert np.array_equal(written.matrices, own.matrices)
    assert written.ids == own.ids
    assert written.aligned_size == (None if suffix == "csv" else (28, 28))


def test_export_unknown_suffix_names_the_known(digits_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(digits_run), "--to", "transforms.xlsx"]) == 2
    assert "transforms.parquet" in capsys.readouterr().err


def test_report_is_written_again(digits_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = (digits_run / "report.html").read_text()
    (digits_run / "report.html").unlink()
    assert main(["report", str(digits_run)]) == 0
    assert (digits_run / "report.html").read_text() == whole
    assert str(digits_run / "report.html") in capsys.readouterr().out


def test_pack_then_align(photos: Path, tmp_path: Path) -> None:
    packed = tmp_path / "photos.npy"
    assert main(["pack", str(photos), "-o", str(packed)]) == 0
    assert main(["align", str(packed), "-o", str(tmp_path / "run"), *LSC, "--quiet"]) == 0
    assert Transforms.load(tmp_path / "run" / "transforms.csv").ids == tuple(f"{i}.png" for i in range(8))


def test_methods_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in congeal.list_methods())
    assert "homography" in out


def test_settings_reach_the_method(photos: Path, tmp_path: Path) -> None:
    arguments = ["--set", "damping=0.5", "--set", "iterations=[1,1,2]", "--seed", "7", "--quiet"]
    assert main(["align", str(photos), "-o", str(tmp_path / "run"), *LSC, *arguments]) == 0
    params = json.loads((tmp_path / "run" / "config.json").read_text())["params"]
    assert (params["damping"], params["iterations"], params["random_state"]) == (0.5, [1, 1, 2], 7)


def test_the_seed_is_the_random_state(photos: Path, tmp_path: Path) -> None:
    short = ["--set", "blurs=[0.0]", "--set", "iterations=[1]", "--quiet", *LSC]
    for name, seed in {"flag": ["--seed", "7"], "parameter": ["--set", "random_state=7"]}.items():
        assert main(["align", str(photos), "-o", str(tmp_path / name), *short, *seed]) == 0
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("flag", "parameter")]
    assert [(one["seed"], one["params"]["random_state"]) for one in configs] == [(7, 7), (7, 7)]
    assert json.loads((tmp_path / "parameter" / "metrics.json").read_text())["seed"] == 7


@pytest.mark.parametrize("reference", ["auto", "mean", "medoid"])
def test_words_for_the_reference_mean_the_same_as_in_the_library(photos: Path, tmp_path: Path, reference: str) -> None:
    settings = {"blurs": (1.0,), "iterations": (3,)}
    arguments = ["--set", "blurs=[1.0]", "--set", "iterations=[3]", "--reference", reference, "--quiet", *LSC]
    assert main(["align", str(photos), "-o", str(tmp_path / "run"), *arguments]) == 0
    model = congeal.LSC(reference=reference, **settings).fit(photos)
    found = Transforms.load(tmp_path / "run" / "transforms.csv")
    assert np.allclose(found.matrices, model.transforms_.matrices, atol=1e-12)


def test_a_preset_runs_and_is_recorded_as_what_it_is(tmp_path: Path) -> None:
    arguments = ["align", "digits:3", "--preset", "paper-mnist", "--set", "steps=1", "--limit", "4", "--quiet"]
    assert main([*arguments, "-o", str(tmp_path / "run")]) == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["method"] == "dprc-as-printed"
    assert {key: config["params"][key] for key in ("networks", "size", "steps")} == {
        "networks": "mnist",
        "size": 28,
        "steps": 1,
    }
    assert "preset" not in config


def test_a_collapse_is_said_loudly_and_is_no_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # A start that shows the object at less than half its size, under a motion that could have made it large again.
    images = blob()
    np.save(tmp_path / "a.npy", images)
    shrink = np.array([[0.4, 0, 7], [0, 0.4, 7], [0, 0, 1.0]])
    start = Transforms([str(i) for i in range(8)], np.tile(shrink, (8, 1, 1)), np.tile(images.shape[1:], (8, 1)))
    start.save(tmp_path / "start.csv")
    arguments = ["--init", str(tmp_path / "start.csv"), "--motion", "similarity", *LSC]
    assert main(["align", str(tmp_path / "a.npy"), "-o", str(tmp_path / "run"), *arguments]) == 0
    captured = capsys.readouterr()
    assert "WARNING: the alignment collapsed" in captured.err
    assert "COLLAPSED" in captured.out
    assert "Collapsed" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    ("verdict", "code"),
    [("good", 0), ("unchanged", 0), *((word, 3) for word in ("mixed", "shrunk", "zoomed", "worse", "failed"))],
)
@pytest.mark.parametrize("command", ["align", "apply"])
def test_strict_has_an_exit_code_for_results_nobody_should_use(
    command: str, verdict: str, code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = {"verdict": verdict, "advice": "Look at it.", "collapsed": verdict == "shrunk"}
    result = Result(metrics, Transforms([], np.zeros((0, 3, 3)), np.zeros((0, 2))), Path("run"))
    monkeypatch.setattr(f"congeal.pipeline.{command}.{command}", lambda *_, **__: result)
    arguments = [command, *(["run"] if command == "apply" else []), "photos", "-o", "out", "--quiet"]
    assert main(arguments) == 0
    assert ("WARNING" in caplog.text) == (code != 0)
    assert main([*arguments, "--strict"]) == code


# ---- bad input: one sentence and a non-zero exit, or a row in skipped.csv


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    """The only line on stderr that is an error; never a traceback."""
    err = capsys.readouterr().err
    assert "Traceback" not in err
    lines = [line for line in err.splitlines() if line.startswith("congeal: ")]
    assert len(lines) == 1, err
    return lines[0]


def make_empty_folder(path: Path) -> Path:
    (path / "empty").mkdir()
    return path / "empty"


def make_one_image(path: Path) -> Path:
    return save_folder(path / "one", blob(1))


def make_all_blank(path: Path) -> Path:
    return save_folder(path / "blank", np.zeros((4, 16, 16), np.uint8))


def make_text_only(path: Path) -> Path:
    (path / "text").mkdir()
    (path / "text" / "a.png").write_text("not a picture")
    return path / "text"


def make_wrong_rank(path: Path) -> Path:
    np.save(path / "rank2.npy", np.zeros((5, 5)))
    return path / "rank2.npy"


def make_words(path: Path) -> Path:
    np.save(path / "words.npy", np.array([[["a", "b"]]]))
    return path / "words.npy"


def make_all_nan(path: Path) -> Path:
    np.save(path / "nan.npy", np.full((4, 16, 16), np.nan, np.float32))
    return path / "nan.npy"


BAD_SOURCES: list[tuple[Callable[[Path], Path], int, str]] = [
    (lambda path: path / "nowhere", 2, "nowhere"),
    (make_empty_folder, 2, "no images"),
    (make_one_image, 1, "at least two"),
    (make_all_blank, 1, "blank"),
    (make_text_only, 1, "a.png"),
    (make_wrong_rank, 2, "(5, 5)"),
    (make_words, 2, "dtype"),
    (make_all_nan, 1, "NaN"),
]


@pytest.mark.parametrize(("make", "code", "says"), BAD_SOURCES, ids=[row[2] for row in BAD_SOURCES])
def test_source_that_cannot_be_aligned(
    make: Callable[[Path], Path], code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = make(tmp_path)
    assert main(["align", str(source), "-o", str(tmp_path / "run"), *LSC]) == code
    assert says in sentence(capsys)


def test_bad_files_among_good_ones_become_rows(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "text.png").write_text("not a picture")
    (photos / "zero.png").write_bytes(b"")
    Image.fromarray(blob(1)[0]).resize((200, 200)).save(photos / "cut.jpg")
    (photos / "cut.jpg").write_bytes((photos / "cut.jpg").read_bytes()[:700])
    deep = pytest.importorskip("imagecodecs").png_encode(np.full((24, 24, 3), 40000, np.uint16))
    (photos / "deep.png").write_bytes(deep)
    monkeypatch.setitem(sys.modules, "imagecodecs", None)  # as if the extra were not installed
    assert main(["align", str(photos), "-o", str(tmp_path / "run"), *LSC]) == 0
    reasons = skipped(tmp_path / "run")
    assert set(reasons) == {"text.png", "zero.png", "cut.jpg", "deep.png"}
    assert "congeal[formats]" in reasons["deep.png"]
    assert "empty" in reasons["zero.png"]
    found = Transforms.load(tmp_path / "run" / "transforms.csv")
    assert len(found) == 12
    assert set(np.array(found.ids)[found.status == "skipped"]) == set(reasons)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert (metrics["n_images"], metrics["n_skipped"]) == (8, 4)
    assert len(list((tmp_path / "run" / "aligned").iterdir())) == 8
    page = (tmp_path / "run" / "report.html").read_text()
    assert all(name in page for name in reasons)
    assert "skipped" in capsys.readouterr().out


def test_nan_and_infinite_images_become_rows(tmp_path: Path) -> None:
    images = blob().astype(np.float32) / 255
    images[2, 3, 4], images[5, 0, 0] = np.nan, np.inf
    np.save(tmp_path / "a.npy", images)
    assert main(["align", str(tmp_path / "a.npy"), "-o", str(tmp_path / "run"), *LSC, "--quiet"]) == 0
    assert set(skipped(tmp_path / "run")) == {"2", "5"}


def test_different_channel_counts_and_sizes_are_aligned_together(photos: Path, tmp_path: Path) -> None:
    Image.fromarray(blob(1, size=40)[0]).convert("RGB").save(photos / "colour.png")
    Image.fromarray(blob(1, size=30)[0]).convert("LA").save(photos / "alpha.png")
    assert main(["align", str(photos), "-o", str(tmp_path / "run"), *LSC, "--quiet"]) == 0
    modes = {path.name: Image.open(path).mode for path in (tmp_path / "run" / "aligned").iterdir()}
    assert modes["colour.png"] == "RGB"
    assert modes["0.png"] == "L"
    assert modes["alpha.png"] == "LA"
    assert Image.open(tmp_path / "run" / "mean.png").mode == "RGB"


def test_folder_of_another_run(photos: Path, digits_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["align", str(photos), "-o", str(digits_run), *LSC]) == 2
    said = sentence(capsys)
    assert "belongs to another run" in said
    assert "source" in said


def test_folder_of_something_else(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["align", str(photos), "-o", str(photos), *LSC]) == 2
    assert "belongs to something else" in sentence(capsys)
    assert len(list(photos.iterdir())) == 8


def test_unwritable_folder(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["align", str(photos), "-o", str(photos / "0.png" / "run"), *LSC]) == 2
    assert "cannot write" in sentence(capsys)


def test_transforms_of_another_set(
    photos: Path, digits_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--init", str(digits_run / "transforms.csv"), *LSC]
    assert main(["align", str(photos), "-o", str(tmp_path / "run"), *arguments]) == 2
    assert "another set" in sentence(capsys)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--method", "magic"], "magic"),
        (["--motion", "wobble"], "wobble"),
        (["--init", "none.csv"], "none.csv"),
        (["--init", "faces@wide"], "write faces@0.3"),
        (["--reference", "none.png"], "'auto', 'mean', 'stack', 'medoid', an index or an image file, not 'none.png'"),
        (["--seed", "3", "--set", "random_state=4"], "the seed is given twice"),
        (["--motion", "affine", "--set", "motion=rigid"], "the motion is given twice"),
        (["--reference", "mean", "--set", "reference=stack"], "the reference is given twice"),
        (["--preset", "paper-mnist"], "belongs to the method 'dprc-as-printed', not to 'lsc'"),
        (["--preset", "paper-cifar"], "unknown preset 'paper-cifar'"),
        (["--reference", "99"], "99"),
        (["--limit", "0"], "at least 1"),
        (["--output-format", "jpeg"], "jpeg"),
        (["--transforms-format", "xlsx"], "xlsx"),
        (["--motion", "auto"], "lsc cannot choose its motion: give --motion translation, "),
        (["--train", "never"], "use joint (direct optimisation, the default, trains nothing) or dprc"),
        (["--set", "damping"], "KEY=VALUE"),
        (["--set", "colour=3"], "no parameter 'colour'"),
        (["--set", "damping=high"], "a number"),
        (["--set", "iterations=5"], "same length"),
        (["--size", "0"], "size must be a whole number of 2 or more"),
    ],
)
def test_wrong_use(
    arguments: list[str], says: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    method = () if "--method" in arguments else LSC
    code = main(["align", str(photos), "-o", str(tmp_path / "run"), *method, *arguments])
    assert says in sentence(capsys)
    assert code == 2


@pytest.mark.parametrize("arguments", [["align"], ["align", "x"], ["nonsense"], ["align", "x", "-o", "y", "--bogus"]])
def test_flags_that_do_not_exist(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("seed", ["-1", str(2**32)])
def test_a_seed_that_is_none(seed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "mnist", "-o", str(tmp_path / "out"), "--seed", seed]) == 2
    assert f"a whole number from 0 to 4294967295, not {seed}" in sentence(capsys)


@pytest.mark.parametrize("command", ["apply none digits:3 -o x", "export none --to a.csv", "report none"])
def test_run_that_is_not_there(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command.split()) == 2
    assert "no such run folder" in sentence(capsys)


def test_unexpected_errors_leave_a_log(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import congeal.pipeline.stages

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(congeal.pipeline.stages, "render_originals", broken)
    arguments = ["align", str(photos), "-o", str(tmp_path / "run"), *LSC]
    assert main(arguments) == 1
    said = sentence(capsys)
    assert "ZeroDivisionError: a bug" in said
    assert "error.log" in said
    assert "in broken" in (tmp_path / "run" / "error.log").read_text()
    assert main([*arguments, "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_is_130_and_says_how_to_go_on(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import congeal.pipeline.stages

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    arguments = ["align", str(photos), "-o", str(tmp_path / "run"), *LSC]
    with monkeypatch.context() as patch:
        patch.setattr(congeal.pipeline.stages, "render_originals", interrupted)
        assert main(arguments) == 130
    assert "run the same command to resume" in capsys.readouterr().err
    assert main(arguments) == 0


# ---- in a process of its own


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True)


def test_help_does_not_load_torch() -> None:
    check = (
        "import sys, congeal.cli as c; code = c.main(['align', '--help']); "
        "sys.exit(code or ' '.join({'torch', 'numpy', 'PIL'} & set(sys.modules)) or 0)"
    )
    done = python("-c", check)
    assert done.returncode == 0, done.stderr
    assert "--reference" in done.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["align", "--help"], ["methods"], ["--version"]])
def test_nobody_reads_on(arguments: list[str]) -> None:
    """`congeal --help | head -1`: whoever read the first line has seen enough, and that is no error."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "congeal.cli", *arguments], stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("closed", [">&- 2>&-"])
def test_closed_streams(closed: str, photos: Path, tmp_path: Path) -> None:
    """Nothing is read of what is said, and the work is done all the same."""
    arguments = ["-m", "congeal.cli", "align", str(photos), "-o", str(tmp_path / "run"), *LSC, "--no-aligned"]
    done = subprocess.run(["sh", "-c", f'"$0" "$@" {closed}', sys.executable, *arguments], capture_output=True)
    assert done.returncode == 0
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.parametrize("command", ["align", "pack", "export"])
def test_a_name_of_300_characters(
    command: str, photos: Path, digits_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = str(tmp_path / f"{'x' * 300}.npy")
    arguments = {
        "align": ["align", str(photos), "-o", long, *LSC],
        "pack": ["pack", str(photos), "-o", long],
        "export": ["export", str(digits_run), "--to", f"{long}.csv"],
    }
    assert main(arguments[command]) == 2
    assert "file name too long" in sentence(capsys)


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "a.csv"), 2, "congeal: permission denied: a.csv"),
        (OSError(errno.EIO, "Input/output error", "a.csv"), 1, "congeal: input/output error: a.csv"),
        (MemoryError("a.png needs more than there is"), 1, "not enough memory (a.png needs more than there is)"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 1, "congeal: not enough memory;"),
        (RuntimeError("something else"), 1, "this is a bug"),
    ],
)
def test_what_the_system_refuses_is_no_bug(
    error: Exception, code: int, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(command: object) -> None:
        raise error

    monkeypatch.setattr(image_commands, "describe_methods", lambda: refused(None))
    assert main(["methods"]) == code
    assert says in sentence(capsys)


def model_file(path: Path, header: bytes) -> Path:
    """A safetensors file with this header and no tensors."""
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    return path


@pytest.mark.parametrize(
    "about", ["{", "[]", '{"format": 2}', '{"format": 2, "method": [], "params": {}}', "[" * 100_000, '{"format": {}}']
)
def test_a_damaged_model_header(about: str, tmp_path: Path) -> None:
    header = json.dumps({"__metadata__": {"congeal": about}}).encode()
    for data in (header, header[:-1], b"garbage"):
        with pytest.raises(congeal.CongealError, match=r"model\.safetensors"):
            congeal.load(model_file(tmp_path / "model.safetensors", data))


@pytest.mark.parametrize(("name", "value"), [("layout", {"size": 3}), ("params", {"size": -3}), ("random_state", "x")])
def test_a_model_header_that_says_nonsense(name: str, value: object, digits_run: Path, tmp_path: Path) -> None:
    data = (digits_run / "model.safetensors").read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    about = json.loads(header["__metadata__"]["congeal"])
    header["__metadata__"]["congeal"] = json.dumps({**about, name: value})
    changed = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(len(changed).to_bytes(8, "little") + changed + data[end:])
    with pytest.raises(congeal.CongealError, match=r"model\.safetensors' is damaged"):
        congeal.load(tmp_path / "model.safetensors")


def test_version_and_no_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"congeal {congeal.__version__}\n"
    assert main([]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in COMMANDS)


SLOWLY = """
import sys, time
from congeal.methods.fit_context import FitContext
FitContext.due = lambda context: context.checkpoint is not None     # a checkpoint at every step
step = FitContext.step
FitContext.step = lambda context, *a, **k: (step(context, *a, **k), time.sleep(0.05))
from congeal.cli import main
sys.exit(main(sys.argv[1:]))
"""


def kill_after_a_checkpoint(process: subprocess.Popen[bytes], checkpoint: Path) -> None:
    while not checkpoint.exists():
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def test_a_killed_run_resumes_to_the_same_answer(tmp_path: Path) -> None:
    arguments = ["align", "digits:2", *LSC, "--size", "28", "--limit", "50", "--quiet", "-o"]
    process = subprocess.Popen([sys.executable, "-c", SLOWLY, *arguments, str(tmp_path / "killed")])
    kill_after_a_checkpoint(process, tmp_path / "killed" / "checkpoint.pt")
    assert not (tmp_path / "killed" / "transforms.csv").exists()
    assert main([*arguments, str(tmp_path / "killed")]) == 0
    assert main([*arguments, str(tmp_path / "whole")]) == 0
    resumed, whole = (Transforms.load(tmp_path / name / "transforms.csv") for name in ("killed", "whole"))
    assert resumed == whole
    rows = [(tmp_path / name / "metrics.csv").read_text() for name in ("killed", "whole")]
    assert rows[0].count("\n") == rows[1].count("\n")


IN_PARTS = """
import sys, time
from congeal.methods.fit_context import FitContext
from congeal.registration import batching
batching.CHUNK_VALUES = 28 * 28 * 7                 # seven images at a time
FitContext.due = lambda context: context.checkpoint is not None     # a checkpoint after each part
save = FitContext.save
FitContext.save = lambda context, state: (save(context, state), time.sleep(0.2))
from congeal.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_killed_apply_resumes_to_the_same_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        main(["align", "digits:2", *LSC, "--size", "28", "--limit", "30", "--quiet", "-o", str(tmp_path / "run")]) == 0
    )
    arguments = ["apply", str(tmp_path / "run"), "digits:2", "--limit", "60", "--no-aligned", "--quiet", "-o"]
    process = subprocess.Popen([sys.executable, "-c", IN_PARTS, *arguments, str(tmp_path / "killed")])
    kill_after_a_checkpoint(process, tmp_path / "killed" / "checkpoint.pt")
    assert not (tmp_path / "killed" / "transforms.csv").exists()
    monkeypatch.setattr("congeal.registration.batching.CHUNK_VALUES", 28 * 28 * 7)
    placed, map_images = [], FitContext.map_images

    def counted(context: FitContext, work: Any, parts: Sequence[np.ndarray], *rest: Any, **options: Any) -> None:
        state = context.load() or {}
        placed.append(sum(map(len, parts)) - int(state.get("placed", (0,))[0]))
        map_images(context, work, parts, *rest, **options)

    monkeypatch.setattr(FitContext, "map_images", counted)
    for name in ("killed", "whole"):
        assert main([*arguments, str(tmp_path / name)]) == 0
    assert 0 < placed[0] < placed[1] == 60, "what was done before the kill was done again"
    files = [(tmp_path / name / "transforms.csv").read_bytes() for name in ("killed", "whole")]
    assert files[0] == files[1]
