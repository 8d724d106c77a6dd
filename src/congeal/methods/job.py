"""What a method reports to while it works: progress, history, callbacks, checkpoints."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from congeal.distributed import Crew
from congeal.distributed.broadcast import key_of
from congeal.errors import require
from congeal.images.sharded import LEAST_SHARDS
from congeal.progress import Progress, log
from congeal.solvers.streaming import shards


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

    def save(self, state: dict[str, Any]) -> None:
        """Replace what was kept."""

    def load(self) -> dict[str, Any] | None:
        """What was kept, or None."""


@dataclass(frozen=True)
class Spread:
    """A pass as other processes do it.

    Attributes
    ----------
    work : callable
        Gets a run of positions, gives its rows of every output; can be pickled.
    key : str
        What the answer depends on.
    values : int
        Of one image, by which shards are cut.
    """

    work: Callable[[np.ndarray], tuple[torch.Tensor, ...]]
    key: str
    values: int


@dataclass(frozen=True)
class ByRuns:
    """The work of a task: run by run through a shard, as one process would."""

    work: Callable[[np.ndarray], tuple[torch.Tensor, ...]]

    @torch.no_grad()
    def __call__(self, runs: Sequence[tuple[int, int]]) -> dict[str, np.ndarray]:
        """The rows of every output, by its number."""
        rows = zip(*(self.work(np.arange(first, stop)) for first, stop in runs), strict=True)
        return {str(number): torch.cat(one).numpy() for number, one in enumerate(rows)}


@dataclass
class Job:
    """One piece of work of a method: fitting a set, or placing new images.

    Parameters
    ----------
    method : str
        Its name, for the progress bar and the checkpoint.
    callbacks : iterable of callables
        Called with an `Event` after every step.
    checkpoint : StateFile, optional
        Where the state is kept, so that an interrupted job continues.
    quiet : bool
        Show no progress.
    save_every : float
        Seconds between checkpoints.
    """

    method: str
    callbacks: Iterable[Callback] = ()
    checkpoint: StateFile | None = None
    quiet: bool = True
    save_every: float = 20.0
    history: list[dict[str, float]] = field(default_factory=list)
    random_state: int = 0
    """The seed of the work, kept with its state."""
    crew: Crew | None = None
    """Who places images; None for this process."""
    _progress: Progress | None = None
    _why: str = ""
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

    def note(self, **values: float) -> None:
        """Report one more step of a stage whose number of steps is not known in advance."""
        step = len(self.history) + 1
        self.history.append({"step": step, **values})
        for callback in self.callbacks:
            callback(Event(self.method, step, step, values))

    def ends_early(self, why: str) -> None:
        """Say why not all steps are taken: "a step moved the images by less than 0.01 px"."""
        self._why = why

    def load(self) -> dict[str, Any] | None:
        """The state an earlier, interrupted run saved, or None. Its history continues."""
        state = self._stored()
        if state is None:
            return None
        self.history[:] = state["history"]
        return dict(state["state"])

    def saved_random_state(self) -> int | None:
        """The seed of the state that `load` would give, or None."""
        state = self._stored()
        return None if state is None else state.get("random_state")

    def _stored(self) -> dict[str, Any] | None:
        state = self.checkpoint.load() if self.checkpoint is not None else None
        return None if state is None or state.get("method") != self.method else state

    def due(self) -> bool:
        """Whether it is time to save; ask before building a costly state."""
        return self.checkpoint is not None and time.monotonic() - self._saved >= self.save_every

    def save(self, state: Mapping[str, Any]) -> None:
        """Keep plain tensors and numbers, from which `load` continues as if nothing had happened."""
        if self.checkpoint is not None:
            about = {"method": self.method, "history": self.history, "random_state": self.random_state}
            self.checkpoint.save({**about, "state": dict(state)})
            self._saved = time.monotonic()

    def place(
        self,
        parts: Sequence[np.ndarray],
        work: Callable[[Sequence[np.ndarray]], Iterable[tuple[torch.Tensor, ...]]],
        *outputs: torch.Tensor,
        beside: Mapping[str, Any] | None = None,
        name: str = "placed",
        spread: Spread | None = None,
    ) -> None:
        """A long pass over images that are each placed alone: fill the outputs run by run, with a progress bar.

        What is done is kept now and then, and an interrupted pass goes on after it.

        Parameters
        ----------
        parts : sequence of (k,) arrays
            Successive runs of positions, from 0.
        work : callable
            Gets the runs that are left; gives, for each in order, its rows of every output.
        *outputs : tensors
            Filled in place; row i belongs to position i.
        beside : mapping, optional
            What else the checkpoint has to hold.
        name : str
            Of this pass in the checkpoint, where a job has more than one.
        spread : Spread, optional
            The same work for other processes, used if there is a crew.
        """
        stored = self._stored() or {"state": {}}  # not `load`: the history may have grown since it was saved
        done, saved = stored["state"].get(name, (0, ()))
        for output, rows in zip(outputs, saved, strict=False):
            output[:done] = rows
        left = [part for part in parts if part[-1] >= done]
        self.close()
        if self.crew is not None and spread is not None:
            if self.checkpoint is not None:  # what came before is not done again if this process is ended
                self.save({**(beside or {}), name: (done, [output[:done].clone() for output in outputs])})
            self._place_by_crew(self.crew, left, spread, outputs)
            return
        total = int(parts[-1][-1]) + 1
        self._progress = progress = Progress(total, f"{self.method}: aligning", quiet=self.quiet, done=done)
        for part, rows in zip(left, work(left), strict=True):
            for output, values in zip(outputs, rows, strict=True):
                output[part] = values
            progress.update(len(part))
            if self.due():
                done = int(part[-1]) + 1
                self.save({**(beside or {}), name: (done, [output[:done].clone() for output in outputs])})
        self.close()  # steps that follow are counted anew

    def _place_by_crew(
        self, crew: Crew, parts: Sequence[np.ndarray], spread: Spread, outputs: Sequence[torch.Tensor]
    ) -> None:
        """The same runs in the same order, by shards; each result is a file, so nothing has to be saved here."""
        together = shards(parts, spread.values, least=LEAST_SHARDS)
        items = [[(int(part[0]), int(part[-1]) + 1) for part in shard] for shard in together]
        counts = [shard[-1][1] - shard[0][0] for shard in items]
        done = crew.map(f"{self.method}: aligning", key_of(spread.key, items), ByRuns(spread.work), items, counts)
        for item, result in zip(items, done, strict=True):
            for number, output in enumerate(outputs):
                output[item[0][0] : item[-1][1]] = torch.from_numpy(result[str(number)])

    def close(self) -> None:
        """End the progress bar, and say why it did not reach its end."""
        if self._progress is None:
            return
        self._progress.close()
        if self._why and not self.quiet:
            steps, most = len(self.history), self._progress.total
            log.info("%s stopped early, after %d of at most %d steps: %s", self.method, steps, most, self._why)
        self._progress, self._why = None, ""


class TensorBoard:
    """A callback that writes what a method reports to TensorBoard: one scalar per reported value and step.

    `method.fit(images, callbacks=[TensorBoard("logs")])`
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._writer = require("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(folder))

    def __call__(self, event: Event) -> None:
        for name, value in event.values.items():
            self._writer.add_scalar(f"{event.method}/{name}", value, event.step)
        self._writer.flush()  # a run may stop early, or be ended: what is on disk can be looked at

    def close(self) -> None:
        """Close the log."""
        self._writer.close()
