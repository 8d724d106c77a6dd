"""Progress of long work: a bar on a terminal, one line a minute elsewhere, nothing when quiet."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType

from tqdm import tqdm

log = logging.getLogger("congeal")

BAR = 16  # columns of the bar itself, however long the numbers beside it are
DIGITS = 9  # of a value: as many as "-1.23e-05" has


class Progress:
    """Counts `total` units of `what`; shows the rate, the time left and the latest values.

    On a terminal everything keeps its place: the bar has one width, and values that do not fit are left out.
    """

    def __init__(self, total: int, what: str, *, quiet: bool = False, log_every: float = 60.0, done: int = 0) -> None:
        self.total, self.what, self.quiet, self.log_every = total, what, quiet, log_every
        self.done = self._before = done  # what an earlier run did says nothing about the speed of this one
        self._start = self._last_log = time.monotonic()
        self._bar = None
        if not quiet and sys.stderr.isatty():
            bar = f"{{percentage:3.0f}}%|{{bar:{BAR}}}| {{n_fmt:>{len(str(total))}}}/{{total_fmt}}"
            line = f"{what} {bar} {{rate_fmt:>11}} {{remaining:>5}} left{{postfix}}"
            self._bar = tqdm(total=total, initial=done, bar_format=line, dynamic_ncols=True, leave=False)

    def update(self, n: int = 1, **values: float) -> None:
        """`n` more units are done; values are shown beside the rate."""
        self.done += n
        if self._bar is not None:
            if values:
                self._bar.set_postfix_str(self._fitting(values), refresh=False)
            self._bar.update(n)
        elif not self.quiet and time.monotonic() - self._last_log >= self.log_every:
            self._last_log = time.monotonic()
            log.info(self._line(values))

    def _fitting(self, values: Mapping[str, float]) -> str:
        """As many values as the line has room for; tqdm puts ", " before them."""
        assert self._bar is not None
        beside = len(f"{self.what} 100%|{'':{BAR}}| {self.total}/{self.total} {'':11} {'':5} left, ")
        room, text = (self._bar.ncols or 80) - 1 - beside, ""
        for name, value in values.items():
            longer = f"{text}{name} {value:<{DIGITS}.4g} "
            if len(longer) > room:
                break
            text = longer
        return text

    def _line(self, values: dict[str, float]) -> str:
        seconds = max(time.monotonic() - self._start, 1e-9)
        rate = (self.done - self._before) / seconds
        left = (self.total - self.done) / rate if rate else float("inf")
        shown = "".join(f", {k} {v:.4g}" for k, v in values.items())
        return f"{self.what}: {self.done}/{self.total} ({rate:.3g}/s, {left:.0f} s left{shown})"

    def close(self) -> None:
        """Take the bar off the screen."""
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def console_handler(level: int) -> Iterator[None]:
    """While this lasts, messages from this level on are lines on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    before = log.level
    log.addHandler(handler)
    log.setLevel(level)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


@contextmanager
def log_to_console(verbose: bool) -> Iterator[None]:
    """`verbose` for those who use the library: messages are shown, unless their program listens to them already."""
    if verbose and not log.hasHandlers():
        with console_handler(logging.INFO):
            yield
    else:
        yield
