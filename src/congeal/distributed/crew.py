"""The driver's side: tasks go out, what was lost goes out again, results come back in the order of the shards."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from congeal.distributed.broadcast import Order, broadcast
from congeal.distributed.engine import Engine, Starting, open_engine
from congeal.distributed.exchange import Exchange, open_exchange, unpack
from congeal.distributed.task import TRIES, TryAgain, load, perform, result_name
from congeal.errors import CongealError, RunFailed, first_line
from congeal.files import DAMAGED
from congeal.mapped import let_go
from congeal.progress import Progress

log = logging.getLogger("congeal")

Result = dict[str, np.ndarray]
Work = Callable[[Any], Result]
MOST_LOST = 20  # workers that a shard may cost before the run stops
LOOK_EVERY = 1.0  # seconds between looks at the engine
COUNT_EVERY = 5.0  # … and at the number of workers
TABLE = ("stage", "pass", "shard", "images", "seconds", "cpu_seconds", "bytes", "worker", "attempt")


class Crew:
    """Workers, and the place where they leave their results.

    Parameters
    ----------
    engine : Engine
    exchange : Exchange
    quiet : bool
        Show no progress.

    Attributes
    ----------
    retries : int
        Tasks that went out again.
    timings : list of dict
        One row per shard and stage.
    """

    def __init__(self, engine: Engine, exchange: Exchange, *, quiet: bool = True) -> None:
        self.engine, self.exchange, self.quiet = engine, exchange, quiet
        self.retries = 0
        self.timings: list[dict[str, Any]] = []
        self._workers, self._counted = engine.workers, time.monotonic()
        self._warming: list[Future[None]] = []
        self._begun: set[_Sent] = set()

    def warm(self, *modules: str) -> None:
        """Let workers import what they will need while the driver has something else to do; nobody waits for it."""
        self._warming = [self.engine.submit(load, modules) for _ in range(self._workers)]

    def map(
        self,
        stage: str,
        key: str,
        work: Work,
        items: Sequence[Any],
        images: Sequence[int],
        *,
        keep: bool = True,
        show: bool = True,
    ) -> Iterator[Result]:
        """work(item) of every item, done by workers, in order. The first are under way when this returns.

        Parameters
        ----------
        stage : str
            What is done, for people.
        key : str
            What the results depend on, see `key_of`; those of an earlier, interrupted call with it are taken over.
        work : callable
            Can be pickled; gives arrays by name. `large` names those that stay in files of their own.
        items : sequence
            One shard each; small.
        images : sequence of int
            How many images a shard has, for the progress bar.
        keep : bool
            Leave the results where they are, for a run that is interrupted later on.
        show : bool
            Show progress.
        """
        folder = f"{stage.replace(' ', '-')}-{key}"
        sent = _Sent(self, broadcast(self.exchange, folder, work), items)
        self._begun.add(sent)
        sent.send()
        return self._results(sent, stage, key, images, folder=None if keep else folder, show=show)

    def _results(
        self, sent: _Sent, stage: str, key: str, images: Sequence[int], *, folder: str | None, show: bool
    ) -> Iterator[Result]:
        """The results of a stage in order. folder: what is removed in the end."""
        with Progress(sum(images), stage, quiet=self.quiet or not show) as progress, sent.cancelling():
            for number in range(len(images)):
                result = sent.result(number, lambda: progress.update(0, **self._facts()))
                about = json.loads(str(result.pop("about")))
                row = {"stage": stage, "pass": key[:8], "shard": number, "images": images[number], **about}
                self.timings.append({name: row[name] for name in TABLE})
                progress.update(images[number], **self._facts())
                yield result
                let_go()
        if folder is not None:
            self.exchange.remove(folder)

    def knows(self, stage: str, key: str) -> bool:
        """Whether an earlier call has left results."""
        return any(name.endswith(".npz") for name in self.exchange.names(f"{stage.replace(' ', '-')}-{key}"))

    def forget(self, stage: str, key: str) -> None:
        """Remove the results of an earlier call."""
        self.exchange.remove(f"{stage.replace(' ', '-')}-{key}")

    def path(self, stage: str, key: str, number: int, name: str) -> str:
        """The file of a large array of a result, below the exchange."""
        return f"{stage.replace(' ', '-')}-{key}/{number:08d}.{name}.npy"

    def _facts(self) -> dict[str, float]:
        now = time.monotonic()
        if now - self._counted > COUNT_EVERY:
            self._workers, self._counted = self.engine.workers, now
        return {"workers": self._workers, "retries": self.retries}

    @property
    def room(self) -> int:
        """How many tasks may be under way: enough that no worker waits for the driver."""
        return 2 * max(1, self._workers) + 2

    def recover(self) -> None:
        """Be ready for tasks again; those of all stages that have begun go out once more."""
        for sent in self._begun:
            sent.lose()
        self.engine.recover()
        for sent in self._begun:
            sent.look()

    def ended(self, sent: _Sent) -> None:
        """A stage is over."""
        self._begun.discard(sent)

    def close(self) -> None:
        """End the engine."""
        for sent in tuple(self._begun):  # whose results nobody came to ask for
            sent.cancel()
        self.engine.close()


class _Sent:
    """The tasks of one stage: which are done, which are under way, which are still to go out."""

    def __init__(self, crew: Crew, order: Order, items: Sequence[Any]) -> None:
        self.crew, self.order, self.items = crew, order, items
        there = crew.exchange.names(order.folder)
        self.done = {number for number in range(len(items)) if result_name(number) in there}
        self.waiting = deque(number for number in range(len(items)) if number not in self.done)
        self.under_way: dict[Future[None], int] = {}
        self.tries: Counter[int] = Counter()
        self.lost: Counter[int] = Counter()

    def result(self, number: int, tick: Callable[[], None]) -> Result:
        """The result of a shard, when it is there; meanwhile the others go on."""
        while True:
            while number not in self.done:
                self.send()
                self._wait()
                tick()
            self.send()
            name = f"{self.order.folder}/{result_name(number)}"
            try:
                return unpack(self.crew.exchange.read(name))
            except DAMAGED:
                self.done.discard(number)  # damaged, or removed by somebody
                self.crew.exchange.remove(name)
                self._again(number, self.tries)
                if self.tries[number] > 2 * TRIES:
                    raise RunFailed(f"{self.crew.exchange}/{name} is damaged again and again") from None

    def send(self) -> None:
        """As many as there is room for."""
        while self.waiting and len(self.under_way) < self.crew.room:
            number = self.waiting.popleft()
            arguments = (self.order, number, self.items[number], self.tries[number] + 1)
            self.under_way[self.crew.engine.submit(perform, *arguments)] = number

    def _wait(self) -> None:
        finished, _ = wait(self.under_way, timeout=LOOK_EVERY, return_when=FIRST_COMPLETED)
        for future in finished:
            self._take(future, self.under_way.pop(future))
        if not self.crew.engine.sound():
            self.crew.recover()

    def lose(self) -> None:
        """Nothing that is under way will come back."""
        for future, number in self.under_way.items():
            future.cancel()
            self._again(number, self.lost)
        self.under_way.clear()

    def look(self) -> None:
        """What is there by now need not go out again."""
        there = self.crew.exchange.names(self.order.folder)
        self.done |= {number for number in self.waiting if result_name(number) in there}
        self.waiting = deque(number for number in self.waiting if number not in self.done)

    def _take(self, future: Future[None], number: int) -> None:
        error = CancelledError() if future.cancelled() else future.exception()
        if error is None:
            self.done.add(number)
        elif self.crew.engine.lost(error):
            if self.crew.engine.sound():
                self.crew.engine.recover()
            self._again(number, self.lost)
            if self.lost[number] > MOST_LOST:
                raise RunFailed(
                    f"shard {number} ended {MOST_LOST} workers, most likely for want of memory; give workers more, or "
                    "use a smaller --size; what is done is kept"
                )
        elif _without_package(error):
            raise RunFailed("a worker has no package 'congeal': install the same version of it on all workers")
        elif isinstance(error, CongealError):
            raise RunFailed(str(error)) from error
        else:
            self._again(number, self.tries)
            if self.tries[number] >= TRIES and not isinstance(error, TryAgain):
                raise RunFailed(
                    f"shard {number} failed {TRIES} times ({type(error).__name__}: {first_line(error)}); "
                    "what is done is kept"
                ) from error

    def _again(self, number: int, counter: Counter[int]) -> None:
        counter[number] += 1
        self.crew.retries += 1
        self.waiting.appendleft(number)

    @contextmanager
    def cancelling(self) -> Iterator[None]:
        """Whatever ends the stage, tasks that have not begun are not begun any more."""
        try:
            yield
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Tasks that have not begun are not begun any more."""
        for future in self.under_way:
            future.cancel()
        self.crew.ended(self)


def _without_package(error: BaseException | None) -> bool:
    """Whether this package is what a worker could not import."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and str(error.name or error).split(".")[0].endswith("congeal"):
            return True
        if "No module named 'congeal" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def open_crew(on: Any, folder: Path | str, *, quiet: bool = True) -> Iterator[Crew | None]:
    """The crew of `--on`, which leaves its results below `folder`; None for no one, and the work is done here."""
    if on is None:
        yield None
        return
    engine = open_engine(on)
    crew = Crew(engine, open_exchange(str(folder)), quiet=quiet)
    if not quiet:
        named = isinstance(on, str | Starting)
        log.info("working on %s: %d workers", on if named else type(on).__name__, engine.workers)
    try:
        yield crew
    finally:
        crew.close()
