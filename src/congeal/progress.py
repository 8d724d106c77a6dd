"""Progress of long work: a bar on a terminal, one line a minute elsewhere, nothing when quiet."""

from __future__ import annotations

import logging
import sys
import time
from types import TracebackType

from tqdm import tqdm

log = logging.getLogger("congeal")


class Progress:
    """Counts `total` units of `what`; shows the rate, the time left and the latest values."""

    def __init__(self, total: int, what: str, *, quiet: bool = False, log_every: float = 60.0, done: int = 0) -> None:
        self.total, self.what, self.quiet, self.log_every = total, what, quiet, log_every
        self.done = self._before = done  # what an earlier run did says nothing about the speed of this one
        self._start = self._last_log = time.monotonic()
        terminal = not quiet and sys.stderr.isatty()
        self._bar = tqdm(total=total, initial=done, desc=what, dynamic_ncols=True, leave=False) if terminal else None

    def update(self, n: int = 1, **values: float) -> None:
        """`n` more units are done; values are shown beside the rate."""
        self.done += n
        if self._bar is not None:
            if values:
                self._bar.set_postfix({k: f"{v:.4g}" for k, v in values.items()}, refresh=False)
            self._bar.update(n)
        elif not self.quiet and time.monotonic() - self._last_log >= self.log_every:
            self._last_log = time.monotonic()
            log.info(self._line(values))

    def _line(self, values: dict[str, float]) -> str:
        seconds = max(time.monotonic() - self._start, 1e-9)
        rate = (self.done - self._before) / seconds
        left = (self.total - self.done) / rate if rate else float("inf")
        shown = "".join(f", {k} {v:.4g}" for k, v in values.items())
        return f"{self.what}: {self.done}/{self.total} ({rate:.3g}/s, {left:.0f} s left{shown})"

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
