"""Words that nobody knows: each is refused in one sentence, which says what was probably meant, before any work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from blobs import blob, save_folder
from congeal.cli import COMMANDS, main
from congeal.cli.arguments import list_options, unknown_argument

ALIGN = ("align", "digits:3", "-o", "run", "--limit", "4", "--quiet")
WRONG = [
    (("aling", "digits:3", "-o", "run"), "'aling' (did you mean 'align'?)"),
    (("Align", "digits:3", "-o", "run"), "'Align' (did you mean 'align'?)"),
    (("zzzz",), "there is no command 'zzzz': choose one of align,"),
    ((*ALIGN, "--metod", "lsc"), "no option --metod (did you mean '--method'?)"),
    ((*ALIGN, "--ouptut_format=npy"), "no option --ouptut-format (did you mean '--output-format'?)"),
    ((*ALIGN, "--00000"), "align has no option --00000: 'congeal align --help' lists them"),
    ((*ALIGN, "--method", "lcs"), "'lcs' (did you mean 'lsc'?)"),
    ((*ALIGN, "--method", "RASLL"), "'RASLL' (did you mean 'rasl'?)"),
    ((*ALIGN, "--motion", "homograpy"), "'homograpy' (did you mean 'homography'?)"),
    ((*ALIGN, "--motion", "Affine"), "'Affine' (did you mean 'affine'?)"),
    ((*ALIGN, "--method", "lsc", "--set", "dampng=1"), "'dampng' (did you mean 'damping'?)"),
    ((*ALIGN, "--preset", "paper-mist"), "(did you mean 'paper-mnist'?)"),
    ((*ALIGN, "--output-format", "tif"), "(did you mean 'tiff'?)"),
    (("align", "digts:3", "-o", "run"), "(did you mean 'digits'?)"),
    ((*ALIGN, "--device", "cud"), "unknown device 'cud' (did you mean 'cuda'?)"),
    ((*ALIGN, "--device", "gpu", "--method", "lsc"), "unknown device 'gpu'"),
    (("compare", "digits:3", "-o", "run", "--methods", "lsc,rals"), "'rals' (did you mean 'rasl'?)"),
    (("compare", "digits:3", "-o", "run", "--motion", "rigit"), "'rigit' (did you mean 'rigid'?)"),
    (("compare", "digits:3", "-o", "run", "--device", "cud"), "(did you mean 'cuda'?)"),
    (("reproduce", "mnits", "-o", "run"), "'mnits' (did you mean 'mnist'?)"),
    (
        ("align", "digits:3", "-o", "run", "--limit", "1"),
        "--limit 1 leaves too few images",
    ),
    (("compare", "digits:3", "-o", "run", "--limit", "1"), "at least two"),
    (("--tyro-write-completion", "bsh", "x"), "'bsh' (did you mean 'bash'?)"),
    (("--tyro-write-completion", "bash"), "congeal --tyro-write-completion SHELL FILE"),
]


@pytest.mark.parametrize(("arguments", "says"), WRONG, ids=[says for _, says in WRONG])
def test_one_sentence_and_nothing_written(
    arguments: tuple[str, ...],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("congeal: ")
    assert captured.err.count("\n") == 1
    assert says in captured.err
    assert list(tmp_path.iterdir()) == [], "a folder was made before the question was understood"


def test_what_is_known_is_left_alone() -> None:
    for name, command in COMMANDS.items():
        assert unknown_argument([name, "--debug", "--help", *list_options(command)], COMMANDS) is None
        assert unknown_argument([name, *list_options(command)], COMMANDS) is None
    assert unknown_argument(["align", "x", "-o", "y", "--", "--name-of-a-file"], COMMANDS) is None
    assert unknown_argument(["align", "x", "-o", "y", "--no_aligned"], COMMANDS) is None
    assert unknown_argument([], COMMANDS) is unknown_argument(["--help"], COMMANDS) is None


def test_a_device_that_is_not_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    missing = next(
        name for name in ("cuda", "mps") if not getattr(torch, "cuda" if name == "cuda" else name).is_available()
    )
    run = ["align", "digits:3", "--limit", "4", "-o", str(tmp_path / "run"), "--device", missing]
    assert main(run) == 2
    assert f"congeal: there is no device '{missing}' here: use auto or cpu\n" in capsys.readouterr().err
    assert main([*run, "--method", "lsc"]) == 2
    assert not (tmp_path / "run").exists()


def test_the_cpu_is_a_device_of_every_method(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--limit", "6", "--size", "28", "--quiet", "--device", "cpu"]
    assert main(["align", "digits:3", "-o", str(tmp_path / "run"), *common]) == 0
    new = ["apply", str(tmp_path / "run"), "digits:3", "-o", str(tmp_path / "new"), "--limit", "3", "--quiet"]
    assert main([*new, "--device", "cuda"]) == 2
    assert "new images are aligned on the CPU" in capsys.readouterr().err
    assert main([*new, "--device", "cpu"]) == 0
    assert main(["compare", "digits:3", "-o", str(tmp_path / "both"), *common, "--methods", "LSC@Wide"]) == 0
    rows = json.loads((tmp_path / "both" / "table.json").read_text())
    assert [row["method"] for row in rows] == ["lsc@Wide"]


def test_a_method_in_capitals(tmp_path: Path) -> None:
    small = [
        "align",
        "digits:3",
        "--limit",
        "4",
        "--size",
        "28",
        "--no-aligned",
        "--quiet",
        "-o",
        str(tmp_path / "run"),
    ]
    assert main([*small, "--method", "LSC"]) == 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["method"] == "lsc"
    assert main([*small, "--method", "Lsc"]) == 0, "the same run"


@pytest.mark.parametrize("below", ["", "deep/er"])
def test_a_folder_of_odd_extensions(
    below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--init faces` on pictures that a browser saved as .jfif: the sentence names the glob, and the glob works."""
    pytest.importorskip("cv2")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "my photos" / below
    folder.mkdir(parents=True)
    (folder / "a note.xyz").write_text("not an image")
    for i, image in enumerate(blob(4)):
        Image.fromarray(image).save(folder / f"{i}.jfif", format="JPEG")
    assert main(["align", "my photos", "-o", "run", "--init", "faces"]) == 2
    err = capsys.readouterr().err
    glob = err.strip().partition("give the glob ")[2]
    assert glob == ("'my photos/**/*.jfif'" if below else "'my photos/*.jfif'"), err
    assert main(["align", glob.strip("'"), "-o", "run", "--method", "lsc", "--quiet"]) == 0


def test_a_folder_without_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("nothing to see")
    assert main(["align", str(tmp_path), "-o", str(tmp_path / "run")]) == 2
    assert "these are read: " in capsys.readouterr().err


# ---- warnings of libraries

WARNING = """
import sys, warnings
import congeal.pipeline.align as a
align = a.align
def warned(*args, **options):
    import torch
    warnings.warn("for programmers", UserWarning)
    torch.nn.Upsample(scale_factor=2, mode="bilinear")(torch.zeros(1, 1, 4, 4)).squeeze().T.mT
    torch.from_numpy(__import__("numpy").frombuffer(b"abcd", dtype="uint8"))   # torch: the array is not writable
    return align(*args, **options)
a.align = warned
from congeal.cli import main
sys.argv = ["congeal", *sys.argv[1:]]
sys.exit(main())
"""


@pytest.mark.parametrize("asked", [False, True])
def test_warnings_of_torch_do_not_reach_the_user(asked: bool, tmp_path: Path) -> None:
    photos = save_folder(tmp_path / "photos", blob())
    arguments = ["align", str(photos), "-o", str(tmp_path / "run"), "--method", "lsc", "--quiet"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONWARNINGS"}
    command = [sys.executable, *(["-W", "default"] if asked else []), "-c", WARNING, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    if asked:
        assert "not writable" in done.stderr
    else:
        assert done.stderr == ""
