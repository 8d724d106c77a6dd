"""What a run keeps while a method works: its state, to resume from, its curve, to watch, and its peak of memory."""

from __future__ import annotations

import logging
import os
import pickle
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from congeal.errors import first_line
from congeal.files import DAMAGED, replacing

if TYPE_CHECKING:
    from congeal.runs.folder import RunFolder

log = logging.getLogger("congeal")


class Checkpoint:
    """Where a method keeps its state while fitting: plain tensors and numbers, one file, replaced whole.

    `seconds` is the time spent since it was opened, plus what went into the state that was loaded.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._opened = time.monotonic()
        self._before = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of work behind the state."""
        return self._before + time.monotonic() - self._opened

    def save(self, state: Mapping[str, Any]) -> None:
        """Replace the file by this state: plain tensors and numbers."""
        import torch

        with replacing(self.path) as file:  # straight to the disk: the poses of a million images are large
            try:
                torch.save({"seconds": self.seconds, "state": dict(state)}, file)
            except RuntimeError as error:  # what torch makes of a full disk
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from None
                raise

    def load(self) -> dict[str, Any] | None:
        """The state saved last; None where there is none or the file is damaged (which is reported)."""
        import torch

        if not self.path.exists():
            return None
        try:
            saved = torch.load(self.path, map_location="cpu", weights_only=True)
            self._before, state = float(saved["seconds"]), dict(saved["state"])
        except (*DAMAGED, pickle.UnpicklingError) as error:
            log.warning("%s is damaged and is ignored; fitting starts again (%s)", self.path, first_line(error))
            return None
        return state

    def delete(self) -> None:
        """Forget the state."""
        self.path.unlink(missing_ok=True)


class History:
    """A callback that keeps metrics.csv up to date while a method works, so that a long fit can be watched.

    An event has a `step` and `values`. Rows of an interrupted run stay, up to the step at which it goes on.
    """

    def __init__(self, run: RunFolder, every: float = 10.0) -> None:
        self.run, self.every = run, every
        self.rows: list[dict[str, Any]] | None = None
        self._due = time.monotonic() + every

    def __call__(self, event: Any) -> None:
        if self.rows is None:
            earlier = self.run.read_rows("metrics.csv")
            self.rows = [row for row in earlier if str(row.get("step")).isdecimal() and int(row["step"]) < event.step]
        self.rows.append({"step": event.step, **event.values})
        if time.monotonic() >= self._due:
            self.finish(self.rows)
            self._due = time.monotonic() + self.every

    def finish(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Leave these rows: in the end, the method's own account of all its steps."""
        self.run.write_rows("metrics.csv", rows, columns=["step"])


def peak_memory_mb() -> float | None:
    """The most memory this process held at any time, in MB; None where the system does not tell.

    Linux's own record comes first: `getrusage` starts a child at its parent's peak.
    """
    try:
        status = Path("/proc/self/status").read_text()
        return round(next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) / 1024, 1)
    except (OSError, StopIteration):
        pass
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1e6 if sys.platform == "darwin" else 1024), 1)
