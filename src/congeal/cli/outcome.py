"""How a command ends: the outcome of a run on stdout, or one sentence about an error; and the exit code."""

from __future__ import annotations

import errno
import logging
import os
import shlex
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from congeal.errors import CongealError, RunFailed, first_line

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


WRONG_NAME = frozenset(
    (errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)
)
"""What the system says of a path that the user should have given differently; anything else is a failure."""


def perform(command: Any, as_typed: str) -> int:
    """Run the command; every way it can end becomes one sentence and an exit code."""
    try:
        return command.run(as_typed) or 0
    except KeyboardInterrupt:
        log.error("stopped; run the same command to resume")
        return 130
    except BrokenPipeError:
        raise  # whoever read our output has seen enough
    except CongealError as error:
        log.error("congeal: %s", error)
        if command.debug:
            traceback.print_exc()
        return 1 if isinstance(error, RunFailed) else 2
    except MemoryError as error:
        return out_of_memory(str(error))
    except OSError as error:
        if error.errno is None:
            return unexpected(error, command)
        where = f": {str(error.filename)[:200]}" if error.filename else ""
        log.error("congeal: %s%s", os.strerror(error.errno).lower(), where)
        if command.debug:
            traceback.print_exc()
        return 2 if error.errno in WRONG_NAME else 1
    except RuntimeError as error:
        if "allocate memory" in str(error) or "out of memory" in str(error):  # torch has no error of its own for it
            return out_of_memory("")
        return unexpected(error, command)
    except Exception as error:
        return unexpected(error, command)


def out_of_memory(what: str) -> int:
    """Say so; gives the exit code."""
    log.error("congeal: not enough memory%s; try a smaller --size or fewer images with --limit", what and f" ({what})")
    return 1


def unexpected(error: Exception, command: Any) -> int:
    """What nobody thought of: say where the traceback is; gives the exit code."""
    log.error("congeal: unexpected %s: %s; %s", type(error).__name__, first_line(error), keep_traceback(command))
    return 1


def keep_traceback(command: Any) -> str:
    """Put the traceback of the current error where it can be found; gives the words for where that is."""
    if command.debug:
        traceback.print_exc()
        return "this is a bug; please report it with the traceback above"
    folder = Path(getattr(command, "output", None) or "")
    if (folder / "config.json").is_file():
        from congeal.files import write_text

        try:
            write_text(folder / "error.log", traceback.format_exc())  # which takes the place of a link
        except (OSError, CongealError) as problem:
            return f"this is a bug; run again with --debug to see the traceback (error.log: {problem})"
        return f"this is a bug; please report it with {folder / 'error.log'}"
    return "this is a bug; run again with --debug to see the traceback"
