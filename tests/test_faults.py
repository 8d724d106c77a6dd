"""Kills at random moments and full disks, for every command that writes: the same command again gives the same bytes.

The moments are drawn with a seed from all calls that change the disk (see killed.py). No test looks at the clock.
"""

from __future__ import annotations

import contextlib
import io
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from congeal import align
from congeal.cli import main
from congeal.comparison import compare as comparing
from congeal.comparison.process import FitClock, failure
from killed import count_moments, fork, outputs, run_killed
from small_files import LSC, SIDE, picture, save_images

KILLS = 4  # of each of the five commands
QUICK = ("--size", str(SIDE), "--quiet")
FAST = ("iterations=[1]", "blurs=[0.0]")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


class Given:
    """Images, a finished run and marks, and the commands that read them; `out` is where a command writes."""

    def __init__(self, home: Path) -> None:
        self.photos, self.run, self.home = save_images(home / "photos"), home / "run", home
        align(self.photos, self.run, **LSC)
        (home / "points.csv").write_text("x,y,name\n5,5,middle\n3,8,left\n")
        (home / "mask.png").write_bytes(picture("PNG", np.eye(SIDE, dtype=np.uint8) * 255))
        (home / "drawing.png").write_bytes(picture("PNG", np.full((SIDE, SIDE, 4), 128, np.uint8)))

    def command(self, name: str, out: Path) -> list[str]:
        """The arguments of a command that writes into the folder `out`."""
        marks = [f"--{kind}={self.home / file}" for kind, file in MARKS.items()]
        fast = [part for setting in FAST for part in ("--set", setting)]
        fast_lsc = [part for setting in FAST for part in ("--set", f"lsc.{setting}")]
        commands = {
            "align": ["align", str(self.photos), "-o", str(out), "--method", "lsc", *fast, *QUICK],
            "apply": ["apply", str(self.run), str(self.photos), "-o", str(out), "--quiet"],
            "compare": ["compare", str(self.photos), "-o", str(out), "--methods", "lsc", *fast_lsc, *QUICK],
            "pack": ["pack", str(self.photos), "-o", str(out / "packed.npy")],
            "propagate": ["propagate", str(self.run), "-o", str(out), *marks, "--quiet"],
            "export": ["export", str(self.run), "--to", str(out / "transforms.json")],
            "export-itk": ["export", str(self.run), "--to", str(out / "transforms.yml")],
            "report": ["report", str(out)],
        }
        if name == "report" and not out.exists():
            shutil.copytree(self.run, out)
        return commands[name]


MARKS = {"points": "points.csv", "mask": "mask.png", "overlay": "drawing.png"}
COMMANDS = ("align", "apply", "compare", "pack", "propagate")
WRITERS = (*COMMANDS, "export", "export-itk", "report")


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Given:
    return Given(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def undisturbed(given: Given) -> Callable[[str], dict[str, object]]:
    """What a command writes when nobody disturbs it."""
    known: dict[str, dict[str, object]] = {}

    def ask(name: str) -> dict[str, object]:
        if name not in known:
            out = given.home / "undisturbed" / name
            assert main(given.command(name, out)) == 0
            known[name] = outputs(out)
        return known[name]

    return ask


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """`compare` fits here instead of in a new interpreter, which would take seconds and could not be killed with us."""

    def run_here(work: Callable[..., dict[str, Any]], *args: Any, time_limit: float | None) -> dict[str, Any]:
        try:
            return work(FitClock(), *args)
        except Exception as error:
            return failure(error)

    monkeypatch.setattr(comparing, "run_in_process", run_here)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_command_goes_on_to_the_same_bytes(
    name: str, given: Given, undisturbed: Callable[[str], dict[str, object]], tmp_path: Path
) -> None:
    expected = undisturbed(name)
    moments = count_moments(lambda: main(given.command(name, tmp_path / "count")))
    rng = np.random.default_rng(COMMANDS.index(name))
    # One in each quarter of the work, so that early and late ones are among them.
    drawn = [int(rng.integers(moments * k // KILLS, max(moments * (k + 1) // KILLS, 1))) for k in range(KILLS)]
    for moment in drawn:
        out = tmp_path / f"killed-{moment}"
        arguments = given.command(name, out)
        assert not run_killed(lambda arguments=arguments: main(arguments), moment), "it was not killed"
        assert main(arguments) == 0, f"killed at moment {moment} of {moments}"
        assert outputs(out) == expected, f"killed at moment {moment} of {moments}"
        assert not litter(out)


def litter(folder: Path) -> list[str]:
    """Temporary files that a killed process left and nobody removed."""
    return [str(path) for path in folder.rglob(".*.tmp")]


@pytest.mark.parametrize("limit", [0, 200, 1000])
@pytest.mark.parametrize("name", WRITERS)
def test_no_room_for_files_of_more_than(
    name: str, limit: int, given: Given, undisturbed: Callable[[str], dict[str, object]], tmp_path: Path
) -> None:
    """RLIMIT_FSIZE refuses every write beyond so many bytes of a file."""
    out = tmp_path / "out"
    arguments = given.command(name, out)
    code, said = in_fork(arguments, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    if code or limit == 0:  # all its files may be smaller than another limit
        check_sentence(code, said)
    assert main(arguments) == 0
    if name != "report":
        assert outputs(out) == undisturbed(name)


@pytest.mark.parametrize("free", [0, 16, 48])
@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk(
    name: str,
    free: int,
    given: Given,
    undisturbed: Callable[[str], dict[str, object]],
    small_disk: Path,
) -> None:
    """A file system with so many kilobytes left."""
    out = small_disk / "out"
    arguments = given.command(name, out)
    fill(small_disk, leave=free << 10)
    code, said = in_fork(arguments, lambda: None)
    if code or free == 0:  # with some room a small command may finish
        check_sentence(code, said)
    (small_disk / "filler").unlink()
    assert main(arguments) == 0
    if name != "report":
        assert outputs(out) == undisturbed(name)


def check_sentence(code: int, said: str) -> None:
    """One sentence about the disk, and exit code 1: the request was right, the work failed."""
    lines = [line for line in said.splitlines() if line.startswith("congeal: ")]
    assert len(lines) == 1, said
    assert "the disk is full" in lines[0]
    assert "this is a bug" not in said
    assert "Traceback" not in said
    assert code == 1


def in_fork(arguments: list[str], first: Callable[[], Any]) -> tuple[int, str]:
    """Exit code and stderr of a command in a fork, after `first` was done there."""
    there, here = os.pipe()
    process = fork()
    if process == 0:
        said = io.StringIO()
        code = 99
        try:
            import torch

            torch.set_num_threads(1)
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            first()
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
                code = main(arguments)
        except BaseException as error:
            said.write(f"Traceback: {error!r}")
        finally:
            os.write(here, f"{code}\n{said.getvalue()}".encode())
            os._exit(0)
    os.close(here)
    with os.fdopen(there) as answer:
        code_text, _, text = answer.read().partition("\n")
    os.waitpid(process, 0)
    return int(code_text or 98), text


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte in memory; only who may mount has one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if done.returncode:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path, leave: int) -> None:
    """Take all room but so many bytes."""
    with (folder / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 4096)
    size = (folder / "filler").stat().st_size
    os.truncate(folder / "filler", max(0, size - leave))
