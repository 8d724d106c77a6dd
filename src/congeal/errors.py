"""The one public error, and the sentence for a missing optional dependency."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType


class CongealError(Exception):
    """Something the user can fix; the message names the thing that is wrong and what to do."""


class RunFailed(CongealError):
    """The request was right, the work failed (full disk, nothing readable): exit code 1 rather than 2."""


class MissingExtra(CongealError):
    """An optional dependency is needed and not installed."""


def first_line(error: BaseException) -> str:
    """The error's message without what follows its first line; its kind if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """What to put behind a word that nobody knows: " (did you mean 'align'?)", or nothing if it resembles none."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return f" (did you mean '{by_lower[close[0]]}'?)" if close else ""


def require(module: str, extra: str) -> ModuleType:
    """Import an optional dependency, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.split(".")[0]
        raise MissingExtra(
            f"this needs the package '{name}', which is not installed: pip install 'congeal[{extra}]'"
        ) from error


@contextmanager
def raise_as_run_failure() -> Iterator[None]:
    """From here on the work has begun: a `CongealError` is a failure of the run, not wrong use."""
    try:
        yield
    except RunFailed:
        raise
    except CongealError as error:
        raise RunFailed(str(error)) from error
