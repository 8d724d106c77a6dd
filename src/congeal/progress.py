"""Progress of long work: a bar on a terminal, one line a minute elsewhere, nothing when quiet."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

from tqdm import tqdm

log = logging.getLogger("congeal")

BAR_COLUMNS = 16
"""The bar itself, however long the numbers beside it are: all of a line fits on a terminal of 80 columns."""
VALUE_COLUMNS = 9
"""A value with four digits, such as -1.23e-05."""
LOG_INTERVAL_S = 60.0
"""Seconds between two lines where there is no terminal."""


class Progress:
    """Counts `total` units of `what`; shows the rate, the time left and the latest values.

    On a terminal everything keeps its place: the bar has one width, and values that do not fit are left out.
    """

    def __init__(self, total: int, what: str, *, quiet: bool = False, done: int = 0) -> None:
        self.total, self.what, self.quiet = total, what, quiet
        self.done = self._before = done  # what an earlier run did says nothing about the speed of this one
        self._start = self._last_log = time.monotonic()
        self._bar = None
        if not quiet and sys.stderr.isatty():
            bar = f"{{percentage:3.0f}}%|{{bar:{BAR_COLUMNS}}}| {{n_fmt:>{len(str(total))}}}/{{total_fmt}}"
            line = f"{what} {bar} {{rate_fmt:>11}} {{remaining:>5}} left{{postfix}}"
            self._bar = tqdm(total=total, initial=done, bar_format=line, dynamic_ncols=True, leave=False)

    def update(self, n: int = 1, **values: float) -> None:
        """`n` more units are done; values are shown beside the rate."""
        self.done += n
        if self._bar is not None:
            if values:
                self._bar.set_postfix_str(self._fitting(values), refresh=False)
            self._bar.update(n)
        elif not self.quiet and time.monotonic() - self._last_log >= LOG_INTERVAL_S:
            self._last_log = time.monotonic()
            rate = (self.done - self._before) / (self._last_log - self._start)
            left = (self.total - self.done) / rate if rate else float("inf")
            shown = "".join(f", {name} {value:.4g}" for name, value in values.items())
            log.info("%s: %d/%d (%.3g/s, %.0f s left%s)", self.what, self.done, self.total, rate, left, shown)

    def _fitting(self, values: Mapping[str, float]) -> str:
        """As many values as fit into the line; tqdm puts ", " before them."""
        assert self._bar is not None
        beside = len(f"{self.what} 100%|{'':{BAR_COLUMNS}}| {self.total}/{self.total} {'':11} {'':5} left, ")
        room, text = (self._bar.ncols or 80) - 1 - beside, ""
        for name, value in values.items():
            longer = f"{text}{name} {value:<{VALUE_COLUMNS}.4g} "
            if len(longer) > room:
                break
            text = longer
        return text

    def close(self) -> None:
        """Take the bar off the screen."""
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
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
    with console_handler(logging.INFO) if verbose and not log.hasHandlers() else nullcontext():
        yield
