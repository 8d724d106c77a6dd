"""A film from beginning to end: aligned, written as a film, and resumed after a kill while it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

import congeal
from films import RATE, read_film, windows, write_film
from killed import count_moments, outputs, run_killed

pytest.importorskip("av")
OPTIONS = {"method": "lsc", "params": {"iterations": (1,), "blurs": (0.0,)}, "size": 16, "quiet": True}


@pytest.mark.parametrize("format", ["auto", "gif"])
def test_a_film_is_aligned_and_resumed(tmp_path: Path, format: str) -> None:
    path = write_film(tmp_path / "clip.mp4", windows(12))

    def work(name: str) -> congeal.Result:
        return congeal.align(f"{path}[::2]", tmp_path / name, output_format=format, **OPTIONS)

    done = work("whole")
    assert [*done.transforms.ids] == [f"clip.mp4[{i:05d}]" for i in range(0, 12, 2)]
    if format == "auto":
        frames, rate = read_film(tmp_path / "whole" / "aligned" / "aligned.mp4")
        assert (len(frames), rate) == (6, RATE)
    moments = count_moments(lambda: work("counted"))
    for moment in range(3, moments, 7):
        name = f"killed-{moment}"
        run_killed(lambda name=name: work(name), moment)
        work(name)
        assert outputs(tmp_path / name) == outputs(tmp_path / "whole")


def test_a_run_of_chosen_frames_finds_them_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from congeal.runs.folder import RunFolder

    write_film(tmp_path / "clip.mp4", windows(6))
    monkeypatch.chdir(tmp_path)
    congeal.align("clip.mp4[1:4]", "run", **OPTIONS)
    assert RunFolder("run").config["source"] == f"{tmp_path / 'clip.mp4'}[1:4]"
