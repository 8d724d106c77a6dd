"""What is shown while work goes on: a bar that keeps its place, why it stopped early, and nothing unless asked."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import numpy as np
import pytest
import torch

import congeal
from blobs import blob
from congeal.methods.fit_context import FitContext

BAR = """
import sys
from congeal.progress import Progress
with Progress(1500, "deep") as progress:
    progress._bar.mininterval = 0
    for i in range(1500):
        progress.update(1, loss=10.0 ** (i % 9 - 5) / 3, self_supervision=-0.1 * i, distortion=1e-7 * i, complexity=i)
"""


def in_terminal(code: str, columns: int, *arguments: str) -> str:
    """What a program writes to a terminal of so many columns."""
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(2, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        os.execv(sys.executable, [sys.executable, "-c", code, *arguments])
    written = b""
    while True:
        try:
            part = os.read(terminal, 1 << 16)
        except OSError:  # how Linux says that the other side is closed
            break
        if not part:
            break
        written += part
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, written.decode()
    return written.decode()


@pytest.mark.parametrize("columns", [80, 120, 60])
def test_the_bar_keeps_its_width(columns: int) -> None:
    written = in_terminal(BAR, columns)
    drawn = [line for line in re.split(r"[\r\n]+", written) if "%|" in line]
    assert len(drawn) > 50
    assert all(len(line) <= columns for line in drawn), "no line is broken in two"
    bars = {(line.index("|"), line.rindex("|")) for line in drawn}
    assert len(bars) == 1, "the bar stays where it is, and as wide"
    values = {tuple(re.findall(r" ([a-z_]+) [-+.e0-9]+(?= )", line)) for line in drawn if " left, " in line}
    assert values == {80: {("loss",)}, 120: {("loss", "self_supervision")}}.get(columns, set()), "as many as fit, whole"


FIT = """
import sys
import congeal, numpy as np
images = np.load(sys.argv[1])
for verbose in (False, True):
    print("verbose", verbose, flush=True)
    model = congeal.LSC(motion="translation", iterations=(40, 40), blurs=(2.0, 0.0))
    model.fit(images, verbose=verbose)
    model.transform(images[:3], verbose=verbose)
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("blobs") / "blobs.npy"
    np.save(path, blob())
    return path


def test_verbose_shows_progress_and_why_it_stopped(images: Path) -> None:
    """Without a terminal there are lines, which nobody has to set up logging for."""
    done = subprocess.run([sys.executable, "-c", FIT, str(images)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        r"lsc stopped early, after \d+ of at most 80 steps: a step moved the images by less than 0.01 px\n", done.stderr
    ), "once: for the fit that was to be verbose"


def test_a_terminal_shows_a_bar_only_if_asked(images: Path) -> None:
    quiet, _, loud = in_terminal(FIT, 80, str(images)).partition("verbose True")
    assert "|" not in quiet.partition("verbose False")[2]
    assert re.search(r"lsc +\d+%\|", loud)
    assert "lsc: aligning" in loud, "so does transform"


def test_the_programs_own_logging_is_not_doubled(images: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="congeal"):
        congeal.LSC(motion="translation").fit(np.load(images), verbose=True)
        congeal.LSC(motion="translation").fit(np.load(images))
    assert [record.message for record in caplog.records if "stopped early" in record.message] == [
        record.message for record in caplog.records
    ]
    assert len(caplog.records) == 1


@pytest.mark.parametrize("method", ["lsc", "rasl", "ecc", "entropy", "logdet"])
def test_every_method_that_can_end_early_says_why(
    method: str, images: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if method == "ecc":
        pytest.importorskip("cv2")
    with caplog.at_level("INFO", logger="congeal"):
        params = {"tolerance": 5.0}
        congeal.align(np.load(images), tmp_path / "run", method=method, motion="translation", params=params)
    assert any(
        re.fullmatch(rf"{method} stopped early, after \d+ of at most \d+ steps: .+", record.message)
        for record in caplog.records
    )


def test_steps_after_a_pass_over_images_are_counted_anew() -> None:
    """Ten groups of 70,000 images were "1/70000" done."""
    context, found = FitContext("groups"), torch.zeros(30)
    context.map_images(lambda part: (torch.ones(len(part)),), np.array_split(np.arange(30), 3), found)
    assert found.all()
    context.step(1, 2)
    assert context._progress is not None
    assert (context._progress.done, context._progress.total) == (1, 2)
