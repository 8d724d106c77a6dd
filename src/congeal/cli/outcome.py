"""How the outcome of a run is told: lines on stdout, a warning, an exit code."""

from __future__ import annotations

import logging
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congeal.pipeline.result import Result

log = logging.getLogger("congeal")

SOUND = ("good", "unchanged")
"""Verdicts of a result that can be used as it is. A mixed one needs a look: part of the set is something else."""
NOT_SOUND = 3  # exit code under --strict


def print_result(result: Result, quiet: bool) -> None:
    """The outcome in a few lines on stdout; a result that cannot be trusted as a warning on stderr as well."""
    verdict, advice = result.metrics["verdict"], result.metrics["advice"]
    if result.metrics["collapsed"]:
        log.warning("WARNING: the alignment collapsed (%s): %s", verdict, advice)
    elif verdict not in SOUND:
        log.warning("WARNING: the result is %s: %s", verdict, advice)
    if not quiet:
        print(f"{result.summary()}\nnext          {next_command(result)}")


def next_command(result: Result) -> str:
    """What to type now: a sound result is used, any other is looked at."""
    run = shlex.quote(str(result.folder))
    if result.metrics["verdict"] in SOUND and (result.folder / "model.safetensors").is_file():
        return f"congeal apply {run} NEW_IMAGES -o DIR"
    return f"congeal studio {run}"


def exit_code(result: Result, strict: bool) -> int:
    """0, or `NOT_SOUND` for a result that a strict user would not take: shrunk, zoomed, worse, failed, or mixed."""
    return NOT_SOUND if strict and result.metrics["verdict"] not in SOUND else 0
