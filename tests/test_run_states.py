"""A run folder in a rough world: killed, files deleted or cut, images replaced; then resumed.

The model is the run that nobody disturbed: after a resume every file equals its own, byte for byte, except for times.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from congeal import CongealError, align
from killed import outputs, run_killed
from small_files import LSC, blobs, picture, save_images

OUTPUT = (
    "aligned/0.png",
    "aligned/2.png",
    "aligned",
    "mean.png",
    "metrics.csv",
    "metrics.json",
    "model.safetensors",
    "report.html",
    "skipped.csv",
    "transforms.csv",
    "variance.png",
    ".work/found.npz",
    ".work/start.npz",
    ".work/state.json",
    ".work/samples.json",
    ".work/samples",
    ".work/stack",
    ".work",
    "checkpoint.pt",
)
MOMENTS = 90  # more than a run has


class RunStates(RuleBasedStateMachine):
    """One run folder and its images."""

    undisturbed: dict[str, object] | None = None

    @initialize()
    def begin(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="congeal-states-"))
        self.images, self.run = save_images(self.home / "photos"), self.home / "run"
        for k, path in enumerate(sorted(self.images.iterdir())):
            os.utime(path, (1_000_000 + k, 1_000_000 + k))
        if type(self).undisturbed is None:
            align(self.images, self.home / "model", **LSC)
            type(self).undisturbed = outputs(self.home / "model")

    def again(self) -> None:
        """The same call, again."""
        align(self.images, self.run, **LSC)

    @rule(moment=st.integers(0, MOMENTS))
    def kill(self, moment: int) -> None:
        run_killed(self.again, moment)

    @rule(name=st.sampled_from(OUTPUT))
    def delete(self, name: str) -> None:
        path = self.run / name
        assume(path.exists())
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    @rule(name=st.sampled_from(OUTPUT), share=st.sampled_from([0.0, 0.5, 0.9]))
    def cut(self, name: str, share: float) -> None:
        path = self.run / name
        assume(path.is_file())
        os.truncate(path, int(share * path.stat().st_size))

    @precondition(lambda self: self.began())
    @rule(number=st.integers(0, 2))
    def replace_an_image(self, number: int) -> None:
        """Another image under the same name is noticed, with the same size and time as well."""
        path = self.images / f"{number}.png"
        before, times = path.read_bytes(), path.stat()
        path.write_bytes(picture("PNG", np.roll(blobs()[number], 2, axis=0)))
        with pytest.raises(CongealError, match="changed"):
            self.again()
        path.write_bytes(before)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def began(self) -> bool:
        """Whether the run knows its images."""
        try:
            state = json.loads((self.run / ".work" / "state.json").read_text())
        except (OSError, ValueError):
            return False
        return "fingerprint" in state

    @rule()
    def resume(self) -> None:
        self.again()
        assert outputs(self.run) == type(self).undisturbed

    def teardown(self) -> None:
        if hasattr(self, "home"):
            try:
                self.resume()
            finally:
                shutil.rmtree(self.home)


TestRunStates = RunStates.TestCase
TestRunStates.settings = settings(
    max_examples=10,
    stateful_step_count=6,
    deadline=None,
    derandomize=True,  # the same ones each time; benchmarks/fuzz.py draws new ones
    phases=(Phase.generate,),  # the steps are told as they were found: making them fewer takes minutes
    suppress_health_check=list(HealthCheck),
)
