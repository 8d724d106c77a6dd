"""The context of a fit: progress, history, callbacks, checkpoints, the map over images; and its result."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from congeal.errors import require
from congeal.execution import has_workers, map_images
from congeal.methods.checks import MOST_SEED
from congeal.progress import Progress, log


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


Work = Callable[[np.ndarray], tuple[torch.Tensor, ...]]
"""Rows of every output for a batch of positions."""


@dataclass(frozen=True)
class _BatchWork:
    """Work with its outputs as arrays by number, for `map_images`."""

    work: Work

    @torch.no_grad()
    def __call__(self, batch: np.ndarray) -> dict[str, np.ndarray]:
        return {str(number): rows.numpy() for number, rows in enumerate(self.work(batch))}


@dataclass(frozen=True)
class FitResult:
    """Poses of a stack's n images, and how they were reached.

    Attributes
    ----------
    poses : (n, 3, 3) tensor
        stack_from_frame.
    motion : str
        The motion that was used: the one asked for, or the one chosen for "auto".
    levels : tuple of int
        Longer sides, in pixels, of the frames that were worked at, coarse to fine.
    trained : bool
        Whether a network was trained.
    error : (n,) tensor or None
        Standard error of a frame corner's position, in stack pixels; NaN where it is not known.
    decisions : mapping
        What was decided and why: name → facts as JSON can hold them. Every one has a "sentence".
    sight : FeatureSight or None
        What likeness is measured on, where that is not local contrast.
    unknown : (n,) tensor of bool or None
        Images whose pose nothing ties to those of the others; they are flagged.
    """

    poses: torch.Tensor
    motion: str
    levels: tuple[int, ...]
    trained: bool = False
    error: torch.Tensor | None = None
    decisions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sight: Any = None
    unknown: torch.Tensor | None = None


@dataclass
class FitContext:
    """The context in which a method fits a set or aligns new images.

    method: its name, for the progress bar and the checkpoint. callbacks: called with an `Event` after every step.
    checkpoint: where the state is kept every `save_every` seconds, so that an interrupted run continues. quiet: show no
    progress.
    """

    method: str
    callbacks: Iterable[Callback] = ()
    checkpoint: StateFile | None = None
    quiet: bool = True
    save_every: float = 20.0
    history: list[dict[str, float]] = field(default_factory=list)
    random_state: int = 0
    """The seed of the work, kept with its state."""
    _progress: Progress | None = None
    _why: str = ""
    _saved: float = field(default_factory=time.monotonic)

    def step(self, step: int, total: int, **values: float) -> None:
        """Report that step `step` (from 1) of `total` is done."""
        if self._progress is None:
            self._progress = Progress(total, self.method, quiet=self.quiet)
            self._progress.update(step - 1)
        self._progress.update(step - self._progress.done, **values)
        self._record(step, total, values)

    def note(self, **values: float) -> None:
        """Report one more step of a stage whose number of steps is not known in advance."""
        step = len(self.history) + 1
        self._record(step, step, values)

    def _record(self, step: int, total: int, values: dict[str, float]) -> None:
        self.history.append({"step": step, **values})
        for callback in self.callbacks:
            callback(Event(self.method, step, total, values))

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

    def choose_seed(self, random_state: int | None) -> int:
        """The seed of a fit: the one given, else that of the interrupted fit, else a random one."""
        if random_state is not None:
            return int(random_state)
        before = (self._stored() or {}).get("random_state")
        return secrets.randbelow(MOST_SEED + 1) if before is None else before

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

    def map_images(
        self,
        work: Work,
        batches: Sequence[np.ndarray],
        *outputs: torch.Tensor,
        state: Mapping[str, Any] | None = None,
        name: str = "placed",
        key: Callable[[], str] | None = None,
        values: int = 1,
        threads: int = 1,
    ) -> None:
        """Fill the outputs batch by batch, with a progress bar, for images that are each registered alone.

        Finished rows go to the checkpoint now and then, and an interrupted pass continues after them.

        work: gets a batch, returns its rows of every output; can be pickled if `key` is given. batches: successive
        positions, from 0. outputs: filled in place; row i belongs to position i. state: results of earlier stages that
        the checkpoint has to hold. name: of this pass in the checkpoint, where a run has more than one. key: gives a
        digest of the inputs of `work`, so that an executor may do it; None: it stays in this process. values: pixel
        values of one image, by which an executor gets shards. threads: batches that this process works on at a time.
        """
        stored = self._stored() or {"state": {}}  # not `load`: the history may have grown since it was saved
        done, saved = stored["state"].get(name, (0, ()))
        for output, rows in zip(outputs, saved, strict=False):
            output[:done] = rows
        left = [batch for batch in batches if batch[-1] >= done]
        self.close()
        stage, distributed = f"{self.method}: aligning", has_workers() and key is not None

        def save() -> None:
            self.save({**(state or {}), name: (done, [output[:done].clone() for output in outputs])})

        if distributed and self.checkpoint is not None:  # only results of workers are kept otherwise
            save()
        total = int(batches[-1][-1]) + 1
        self._progress = Progress(total, stage, quiet=self.quiet or distributed, done=done)
        results = map_images(_BatchWork(work), left, stage=stage, key=key, values=values, threads=threads)
        with closing(results):  # type: ignore[type-var]  # a generator, which gives its threads back
            for batch, result in zip(left, results, strict=True):
                for number, output in enumerate(outputs):
                    output[batch[0] : batch[-1] + 1] = torch.from_numpy(result[str(number)])
                self._progress.update(len(batch))
                if self.due() and not distributed:
                    done = int(batch[-1]) + 1
                    save()
        self.close()  # steps that follow are counted anew

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
