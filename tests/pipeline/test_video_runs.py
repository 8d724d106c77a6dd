"""A video from beginning to end: aligned, written as a video, and resumed after a kill while it is written."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import congeal
from congeal.runs.folder import RunFolder
from killed import outputs
from made_videos import RATE, read_video, windows, write_video

pytest.importorskip("av")
OPTIONS = {"method": "lsc", "params": {"iterations": (1,), "blurs": (0.0,)}, "size": 16, "quiet": True}
# Ends itself while the fourth frame is added to the video.
KILLED = """
import os, signal, sys
import congeal
from congeal.images.formats import video
added, left = video.VideoWriter._put, [3]
def add(self, index, frame):
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    added(self, index, frame)
video.VideoWriter._put = add
congeal.align(sys.argv[1], sys.argv[2], output_format=sys.argv[3], **eval(sys.argv[4]))
"""


@pytest.mark.parametrize("format", ["auto", "gif"])
def test_a_video_is_aligned_and_resumed(tmp_path: Path, format: str) -> None:
    source = f"{write_video(tmp_path / 'clip.mp4', windows(12))}[::2]"
    done = congeal.align(source, tmp_path / "whole", output_format=format, **OPTIONS)
    assert [*done.transforms.ids] == [f"clip.mp4[{i:05d}]" for i in range(0, 12, 2)]
    if format == "auto":
        frames, rate = read_video(tmp_path / "whole" / "aligned" / "aligned.mp4")
        assert (len(frames), rate) == (6, RATE)
    killed = tmp_path / "killed"
    ended = subprocess.run([sys.executable, "-c", KILLED, source, str(killed), format, repr(OPTIONS)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert not [path for path in (killed / "aligned").iterdir() if not path.name.startswith(".")]
    congeal.align(source, killed, output_format=format, **OPTIONS)
    assert outputs(killed) == outputs(tmp_path / "whole")


def test_a_run_of_chosen_frames_finds_them_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_video(tmp_path / "clip.mp4", windows(6))
    monkeypatch.chdir(tmp_path)
    congeal.align("clip.mp4[1:4]", "run", **OPTIONS)
    assert RunFolder("run").config["source"] == f"{tmp_path / 'clip.mp4'}[1:4]"
