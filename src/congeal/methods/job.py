"""What a method reports to while it works: progress, history, callbacks, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from congeal.progress import Progress


@dataclass(frozen=True)
class Event:
    """One step of a method: step `step` of `total`, with the values it reports."""

    method: str
    step: int
    total: int
    values: dict[str, float]


Callback = Callable[[Event], None]


class StateFile(Protocol):
    """Where state is kept between steps; `congeal.runs.folder.Checkpoint` is one."""

    def save(self, state: dict[str, Any]) -> None: ...
    def load(self) -> dict[str, Any] | None: ...


@dataclass
class Job:
    method: str
    callbacks: Iterable[Callback] = ()
    checkpoint: StateFile | None = None
    quiet: bool = True
    save_every: float = 20.0
    """Seconds between checkpoints."""
    history: list[dict[str, float]] = field(default_factory=list)
    _progress: Progress | None = None
    _saved: float = field(default_factory=time.monotonic)

    def step(self, step: int, total: int, **values: float) -> None:
        """Report that step `step` (from 1) of `total` is done."""
        if self._progress is None:
            self._progress = Progress(total, self.method, quiet=self.quiet)
            self._progress.update(step - 1)
        self._progress.update(step - self._progress.done, **values)
        self.history.append({"step": step, **values})
        for callback in self.callbacks:
            callback(Event(self.method, step, total, values))

    def stage(self, what: str, total: int, done: int = 0) -> Progress:
        """A bar of its own for a long pass over the images, in place of the steps'."""
        self.close()
        self._progress = Progress(total, f"{self.method}: {what}", quiet=self.quiet, done=done)
        return self._progress

    def load(self) -> dict[str, Any] | None:
        """The state an earlier, interrupted run saved, or None. Its history continues."""
        state = self.checkpoint.load() if self.checkpoint is not None else None
        if state is None or state.get("method") != self.method:
            return None
        self.history[:] = state["history"]
        return dict(state["state"])

    def due(self) -> bool:
        """Whether it is time to save; ask before building a costly state."""
        return self.checkpoint is not None and time.monotonic() - self._saved >= self.save_every

    def save(self, state: dict[str, Any]) -> None:
        """Keep plain tensors and numbers, from which `load` continues as if nothing had happened."""
        if self.checkpoint is not None:
            self.checkpoint.save({"method": self.method, "history": self.history, "state": state})
            self._saved = time.monotonic()

    def close(self) -> None:
        if self._progress is not None:
            self._progress.__exit__(None, None, None)
