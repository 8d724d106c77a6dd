"""Every way a command can end becomes one sentence and an exit code."""

from __future__ import annotations

import errno
import logging
import os
import traceback
from pathlib import Path
from typing import Any

from congeal.errors import CongealError, first_line

log = logging.getLogger("congeal")

LONGEST_NAME = 200  # characters of a path that are shown
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
        from congeal.errors import RunFailed

        log.error("congeal: %s", error)
        if command.debug:
            traceback.print_exc()
        return 1 if isinstance(error, RunFailed) else 2
    except MemoryError as error:
        return out_of_memory(str(error))
    except OSError as error:
        if error.errno is None:
            return unexpected(error, command)
        where = f": {str(error.filename)[:LONGEST_NAME]}" if error.filename else ""
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
    folder = Path(getattr(command, "output", ""))
    if (folder / "config.json").is_file():
        from congeal.files import write_text

        try:
            write_text(folder / "error.log", traceback.format_exc())  # which takes the place of a link
        except (OSError, CongealError) as problem:
            return f"this is a bug; run again with --debug to see the traceback (error.log: {problem})"
        return f"this is a bug; please report it with {folder / 'error.log'}"
    return "this is a bug; run again with --debug to see the traceback"
